# Beside what the registry has: a push sends only actions with all that they need.
packed=$RUNNER_TEMP/tfdock/cache.tar.gz
if [ -f "$packed" ]; then
  mkdir -p "$TFDOCK_CACHE_DIR"
  tar --use-compress-program=gzip --no-same-owner --no-same-permissions -C "$TFDOCK_CACHE_DIR" -xf "$packed"
fi
