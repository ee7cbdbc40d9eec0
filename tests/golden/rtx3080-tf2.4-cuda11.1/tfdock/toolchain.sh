#!/bin/bash
# toolchain.sh BAZEL_VERSION [TOOL…]: make Bazel ready for offline use by any user, and write down what compiles.
set -euo pipefail

wanted=$1
shift
export HOME=/opt/tfdock/home USER=tfdock LC_ALL=C
mkdir -p "$HOME"

# Bazel unpacks itself on first use (bazelisk: downloads itself first) into a folder named by its hash. Done once
# here and given a fixed name, so that every container starts at once and needs neither network nor time for it.
found=$(cd / && bazel --batch --output_user_root=/opt/tfdock/bazel version |
  sed -n 's/^Build label: *\([0-9.]*[0-9]\).*/\1/p')
if [ "$found" != "$wanted" ]; then
  echo "tfdock: Bazel $wanted is wanted, the base image has ${found:-none}" >&2
  exit 64
fi
# Debian's Bazel comes unpacked.
[ ! -d /opt/tfdock/bazel/install ] || ln -s /opt/tfdock/bazel/install/* /opt/tfdock/bazel/unpacked
find /opt/tfdock/bazel -mindepth 1 -maxdepth 1 ! -name install ! -name unpacked -exec rm -rf {} +
rm -rf "$HOME"
chmod -R a+rX /opt/tfdock
# Whoever the container runs as adds itself (phase.sh): setuptools and others stop for a user without an entry.
chmod a+w /etc/passwd

# The toolchain's identity: the same on every machine that has the same tools, whatever the image's id.
{
  echo "bazel $found"
  dpkg-query -W -f 'package ${Package} ${Version} ${Architecture}\n' | sort
  for tool in "$@"; do
    [ ! -f "$tool" ] || echo "tool $tool $(sha256sum <"$(readlink -f "$tool")" | cut -d' ' -f1)"
  done
} >/opt/tfdock/toolchain
