# Beside what the registry has: a push sends only actions with all that they need.
# The job that built chose every byte: one file of it is read, and all that is in there ends below `disk`.
packed=$RUNNER_TEMP/tfdock/compiled/cache.tar.gz
if [ -f "$packed" ] && [ ! -L "$packed" ]; then
  mkdir -p "$TFDOCK_CACHE_DIR/disk"
  tar --use-compress-program=gzip --no-same-owner --no-same-permissions --strip-components=1 -C "$TFDOCK_CACHE_DIR/disk" \
    -xf "$packed"
fi
