# A machine of GitHub's brings 30 GB that no build needs. On one of your own only tfdock's own leftovers go.
if [ "${RUNNER_ENVIRONMENT:-}" = github-hosted ]; then
  sudo rm -rf /usr/local/lib/android /usr/share/dotnet /usr/share/swift /opt/ghc /usr/local/.ghcup \
    /opt/hostedtoolcache/CodeQL /usr/local/share/boost /usr/local/share/powershell
  sudo docker image prune --all --force >/dev/null
else
  tfdock cache prune --images || echo "nothing was removed"
fi
df -h .
