# A machine of GitHub's brings 30 GB that no build needs. Its second disk, if it has one, is empty and larger.
if [ "${RUNNER_ENVIRONMENT:-}" = github-hosted ]; then
  sudo rm -rf /usr/local/lib/android /usr/share/dotnet /usr/share/swift /opt/ghc /usr/local/.ghcup \
    /opt/hostedtoolcache/CodeQL /usr/local/share/boost /usr/local/share/powershell
  sudo docker image prune --all --force >/dev/null
  if mountpoint -q /mnt; then
    cache=${TFDOCK_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/tfdock}
    mkdir -p "$cache"
    sudo install -d -m 700 -o "$(id -u)" -g "$(id -g)" /mnt/tfdock
    sudo mount --bind /mnt/tfdock "$cache"
  fi
fi
