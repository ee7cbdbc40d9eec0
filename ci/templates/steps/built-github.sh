if [ -s tfdock-ci/wheels.txt ]; then
  echo "wheels=true" >>"$GITHUB_OUTPUT"
fi
if [ "$status" -eq 8 ] && [ "$TFDOCK_LAST_ROUND" = false ]; then
  mkdir -p tfdock-ci/cut
  # What has failed is tried again as well, and fails again: of a job that ends well nobody would hear it.
  python3 - >"tfdock-ci/cut/$TFDOCK_JOB" <<'END'
import json
with open("tfdock-ci/report/report.json", encoding="utf-8") as file:
    cells = json.load(file)["cells"]
print(*(cell["build_id"] for cell in cells if cell["exit_code"]), sep="\n")
END
  echo "cut=true" >>"$GITHUB_OUTPUT"
  echo "stopped before the end: the next round goes on from the cache"
  exit 0
fi
exit "$status"
