#!/bin/bash
# phase.sh fetch|compile STARTUP… -- FLAGS… -- TARGETS… -- PACKAGE…
# One phase of a build, in a container. PACKAGE is `collect FOLDER` or `run COMMAND…`; TFDOCK_RUN names the run.
# Success is the file /tf/staging/done, written last: an exit code alone can lie after a restart of the engine.
set -euo pipefail

phase=$1
shift
startup=() flags=() targets=() package=()
for section in startup flags targets package; do
  declare -n list=$section
  while [ $# -gt 0 ] && [ "$1" != "--" ]; do
    list+=("$1")
    shift
  done
  [ $# -eq 0 ] || shift
done

# Bazel hands no HOME to its actions; the user database is where they look next.
getent passwd "$(id -u)" >/dev/null || echo "tfdock:x:$(id -u):$(id -g)::/tmp:/bin/bash" >>/etc/passwd

# Bazel as the image has it unpacked (toolchain.sh); else each container would unpack it again.
[ ! -e /opt/tfdock/bazel/unpacked ] || startup=(--install_base=/opt/tfdock/bazel/unpacked "${startup[@]}")

# The container's init signals this shell alone. The first INT or TERM goes on to the step that runs, and no later one:
# Bazel takes a second for more than the first. The step's whole group gets it: bazelisk hands no INT on to Bazel.
signals=0 child='' stop=''
pass_on() {
  signals=$((signals + 1))
  [ -z "$stop" ] || return 0
  stop=wanted
  [ -z "$child" ] || interrupt
}
interrupt() {
  stop=sent
  kill -INT -- "-$child" 2>/dev/null || true
}
trap pass_on INT TERM
# Job control gives each step a group of its own. Without it bash starts background processes that ignore INT.
set -m

# run COMMAND…: run a step and return its exit status. After a signal no further step begins.
run() {
  local status before
  [ -z "$stop" ] || exit 130
  "$@" &
  child=$!
  # The signal may have come before `child` was known.
  [ "$stop" != wanted ] || interrupt
  while :; do
    before=$signals status=0
    wait "$child" || status=$?
    # A signal ends `wait` before the step ends.
    [ "$signals" != "$before" ] || break
  done
  child=''
  return "$status"
}

cd /tf/tensorflow
umask 022

if [ "$phase" = fetch ]; then
  run bazel "${startup[@]}" build --nobuild "${flags[@]}" -- "${targets[@]}"
  exit
fi

run bazel "${startup[@]}" build "${flags[@]}" -- "${targets[@]}"

mkdir -p /tf/staging/raw
case ${package[0]} in
collect) ! compgen -G "${package[1]}/*.whl" >/dev/null || cp -L "${package[1]}"/*.whl /tf/staging/raw/ ;;
run) run "${package[@]:1}" ;;
esac
cd /tf/staging/raw
if ! ls ./*.whl >/dev/null 2>&1; then
  echo "tfdock: the build ended without a wheel in ${package[*]}" >&2
  exit 66
fi
sha256sum -- *.whl >/tf/staging/SHA256SUMS
echo "$TFDOCK_RUN" >/tf/staging/done.tmp
sync -f /tf/staging
mv /tf/staging/done.tmp /tf/staging/done
