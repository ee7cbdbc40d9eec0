if [ -s tfdock-ci/wheels.txt ]; then
  echo "wheels=true" >>"$GITHUB_OUTPUT"
fi
if [ "$status" -eq 8 ] && [ "$TFDOCK_LAST_ROUND" = false ]; then
  mkdir -p tfdock-ci/cut
  for cell in $TFDOCK_CELLS; do
    printf '%s\n' "$cell"
  done >"tfdock-ci/cut/$TFDOCK_JOB"
  echo "cut=true" >>"$GITHUB_OUTPUT"
  echo "stopped before the end: the next round goes on from the cache"
  exit 0
fi
exit "$status"
