# Beside the wheels of this run those that a registry has from earlier ones. What is in neither, the table says.
mkdir -p "$TFDOCK_WHEELHOUSE"
if [ -n "$TFDOCK_REGISTRIES" ]; then
  tfdock pull --matrix "$TFDOCK_MATRIX" --report tfdock-ci/pulled
fi
tfdock wheelhouse index --html
tfdock matrix -- "$TFDOCK_MATRIX"
