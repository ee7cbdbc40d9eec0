# A later round is for what the time limit cut: an earlier one has left the names of such cells here.
mkdir -p tfdock-ci
set --
for file in tfdock-ci/cut/*; do
  [ -f "$file" ] || continue
  while IFS= read -r cell; do
    set -- "$@" --only "$cell"
  done <"$file"
done
if [ -n "$TFDOCK_SHARDS" ]; then
  set -- "$@" --shards "$TFDOCK_SHARDS"
fi
if [ -n "$TFDOCK_CHANGED_SINCE" ]; then
  set -- "$@" --changed-since "$TFDOCK_CHANGED_SINCE"
fi
