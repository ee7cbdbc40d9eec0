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

# Ctrl-C reaches the whole process group: Bazel stops cleanly by itself, this shell stays to report its exit code.
trap : INT TERM
cd /tf/tensorflow
umask 022

if [ "$phase" = fetch ]; then
  exec bazel "${startup[@]}" build --nobuild "${flags[@]}" -- "${targets[@]}"
fi

bazel "${startup[@]}" build "${flags[@]}" -- "${targets[@]}"

mkdir -p /tf/staging/raw
case ${package[0]} in
collect) ! compgen -G "${package[1]}/*.whl" >/dev/null || cp -L "${package[1]}"/*.whl /tf/staging/raw/ ;;
run) "${package[@]:1}" ;;
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
