set --
while IFS= read -r wheel; do
  set -- "$@" "$wheel"
done <tfdock-ci/wheels.txt
if [ $# -gt 0 ]; then
  tfdock image push "$@" "$TFDOCK_REGISTRY"
fi
