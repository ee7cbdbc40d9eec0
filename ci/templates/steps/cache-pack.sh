# Plain files alone, and no link: builds wrote them. What is older than the pull is in the registry. Holes stay holes.
packed=$RUNNER_TEMP/tfdock/cache.tar.gz
cache=${TFDOCK_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/tfdock}
if [ -d "$cache/disk" ]; then
  cd "$cache"
  find disk -type f '(' -newer "$RUNNER_TEMP/tfdock/pulled" -o -path 'disk/*.about/*' ')' -print0 |
    tar --null --sparse --no-recursion --files-from=- --use-compress-program='gzip -1' -cf "$packed"
fi
