# Folders for this job alone, beside the checkout: no other job has it meanwhile. A job that was killed leaves them.
TFDOCK_FOLDER=$CI_PROJECT_DIR.tfdock
clear_folder() {
  # A build may have left folders that nobody may open.
  find "$TFDOCK_FOLDER" -type d ! -perm -700 -exec chmod u+rwx '{}' ';' 2>/dev/null || true
  rm -rf "$TFDOCK_FOLDER"
}
clear_folder
rm -rf tfdock-ci
trap clear_folder EXIT
mkdir -m 700 "$TFDOCK_FOLDER" "$TFDOCK_FOLDER/docker"
mkdir tfdock-ci
TFDOCK_TOOLS=$TFDOCK_FOLDER/tools
export DOCKER_CONFIG="$TFDOCK_FOLDER/docker"
# Only jobs of protected branches push, and none of a merge request's: nobody else decides what later builds take for
# compiled. The others do not use the machine's cache, nor its journal.
trusted=false TFDOCK_DOMAINS=
if [ "${CI_COMMIT_REF_PROTECTED:-}" = true ] && [ -n "${CI_COMMIT_BRANCH:-}" ]; then
  trusted=true TFDOCK_DOMAINS="--domain all"
else
  mkdir "$TFDOCK_FOLDER/wheelhouse"
  export TFDOCK_CACHE_DIR="$TFDOCK_FOLDER/cache" TFDOCK_STATE_DIR="$TFDOCK_FOLDER/state"
  export TFDOCK_WHEELHOUSE="$TFDOCK_FOLDER/wheelhouse" TFDOCK_REMOTE_UPLOAD=false
fi
