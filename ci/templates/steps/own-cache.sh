# Not the machine's cache, nor its journal: other jobs use them.
echo "TFDOCK_CACHE_DIR=$RUNNER_TEMP/tfdock/cache" >>"$GITHUB_ENV"
echo "TFDOCK_STATE_DIR=$RUNNER_TEMP/tfdock/state" >>"$GITHUB_ENV"
