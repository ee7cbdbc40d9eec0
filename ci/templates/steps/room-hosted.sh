# A machine of GitHub's brings 30 GB that no build needs. Where it has a second disk, that is empty, and larger.
if [ "${RUNNER_ENVIRONMENT:-}" = github-hosted ]; then
  sudo rm -rf /usr/local/lib/android /usr/share/dotnet /usr/share/swift /opt/ghc /usr/local/.ghcup \
    /opt/hostedtoolcache/CodeQL /usr/local/share/boost /usr/local/share/powershell
  sudo docker image prune --all --force >/dev/null
  if mountpoint -q /mnt; then
    sudo install -d -o "$(id -u)" -g "$(id -g)" /mnt/tfdock
    echo "TFDOCK_CACHE_DIR=/mnt/tfdock" >>"$GITHUB_ENV"
  fi
fi
