# Whatever becomes of the build, what was compiled is kept by the steps after it: they need its status.
mkdir -p tfdock-ci
status=0
tfdock build --matrix "$TFDOCK_MATRIX" "$@" --missing --no-pull -j auto \
  --time-limit "$TFDOCK_TIME_LIMIT" --report tfdock-ci/report >tfdock-ci/wheels.txt || status=$?
