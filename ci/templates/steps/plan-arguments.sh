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
  # That commit, in a folder of its own. A matrix that cannot be planned there has no cells.
  base=${TFDOCK_FOLDER:-$RUNNER_TEMP/tfdock}/base
  git worktree add --force --detach "$base" "$TFDOCK_CHANGED_SINCE"
  (cd "$base" && tfdock matrix --json -- "$TFDOCK_MATRIX") >"$base.json" || echo "every cell counts as changed"
  set -- "$@" --changed-since "$base.json"
fi
