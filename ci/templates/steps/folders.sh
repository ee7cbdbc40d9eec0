# Folders for this job alone. Removing comes first: neither an earlier job nor a commit leaves a link here.
find "$RUNNER_TEMP/tfdock" -type d ! -perm -700 -exec chmod u+rwx '{}' ';' 2>/dev/null || true
rm -rf "$RUNNER_TEMP/tfdock" tfdock-ci
mkdir -m 700 "$RUNNER_TEMP/tfdock" "$RUNNER_TEMP/tfdock/docker"
mkdir tfdock-ci
echo "DOCKER_CONFIG=$RUNNER_TEMP/tfdock/docker" >>"$GITHUB_ENV"
echo "TFDOCK_WHEELHOUSE=$RUNNER_TEMP/tfdock/wheelhouse" >>"$GITHUB_ENV"
