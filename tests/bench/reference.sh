#!/usr/bin/env bash
# What one writes by hand instead of `tfdock build`: docker build, docker run to fetch, docker run to compile, and the
# wheel moved to its folder. bench.py hands in what such a script would have written out: the rendered context, names,
# folders and limits, and in $PLAN the environment and the two commands, one word a line, as `tfdock plan` prints them.
set -euo pipefail

mkdir -p "$CACHE/repository" "$CACHE/disk" "$WHEELHOUSE"
work=$(mktemp -d "$CACHE/run.XXXXXX")
mkdir "$work/output" "$work/staging"
# Bazel leaves folders without write permission.
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT

# phase NAME NETWORK
phase() {
  local words
  mapfile -t words <"$PLAN/$1"
  docker run --rm --init --network "$2" \
    --user "$(id -u):$(id -g)" --cap-drop ALL --security-opt no-new-privileges \
    --memory "$MEMORY" --memory-swap "$MEMORY" --cpus "$CPUS" --pids-limit "$PIDS" \
    --env HOME=/tmp --env USER=tfdock --env LC_ALL=C.UTF-8 --env TZ=UTC --env PYTHONHASHSEED=0 \
    --env SOURCE_DATE_EPOCH=315532800 --env TFDOCK_RUN=reference --env-file "$PLAN/environment" \
    --mount "type=bind,source=$work/output,target=/tf/output" \
    --mount "type=bind,source=$work/staging,target=/tf/staging" \
    --mount "type=bind,source=$CACHE/repository,target=/tf/cache/repository" \
    --mount "type=bind,source=$CACHE/disk,target=/tf/cache/disk" \
    "$IMAGE" "${words[@]}"
}

docker build --network "$NETWORK" --build-arg BASE_IMAGE="$BASE" --tag "$IMAGE" "$CONTEXT"
phase fetch "$NETWORK"
phase compile none
mv "$work"/staging/raw/*.whl "$WHEELHOUSE/"
