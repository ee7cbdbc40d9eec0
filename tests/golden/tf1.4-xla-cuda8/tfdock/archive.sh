#!/bin/bash
# archive.sh URL SHA256 PREFIX [ARGUMENT…]: put a toolkit or library from its archive below PREFIX.
# With arguments the archive is a program that installs itself; without, it holds the folders include and lib or lib64.
set -euo pipefail

url=$1 sha256=$2 prefix=$3
shift 3
work=/opt/tfdock/archive
mkdir -p "$work/unpacked" "$prefix/include" "$prefix/lib64"
cd "$work"

if ! curl -fsSL --retry 3 --connect-timeout 30 --speed-limit 1024 --speed-time 60 -o archive "$url"; then
  echo "tfdock: cannot download $url" >&2
  exit 68
fi
found=$(sha256sum <archive | cut -d' ' -f1)
if [ "$found" != "$sha256" ]; then
  echo "tfdock: $url has the sha256 $found, but $sha256 was expected" >&2
  exit 65
fi

if [ $# -gt 0 ]; then
  sh ./archive "$@" </dev/null
  # The newer installers crash over the log of an earlier one.
  rm -f /tmp/cuda-installer.log
else
  # Nobody links the static libraries, which are the larger half.
  tar -xf archive --strip-components=1 --no-same-owner --exclude='*.a' -C unpacked
  cp -R unpacked/include/. "$prefix/include/"
  for folder in unpacked/lib64 unpacked/lib; do
    [ ! -d "$folder" ] || cp -R "$folder/." "$prefix/lib64/"
  done
fi
cd /
rm -rf "$work"

# Programs that a build runs load these libraries. The stub of the driver's library comes after everything else (zz):
# where there is a GPU, its driver's own is found first.
if [ -e "$prefix/lib64/stubs/libcuda.so" ]; then
  ln -sf libcuda.so "$prefix/lib64/stubs/libcuda.so.1"
fi
printf '%s\n' "$prefix/lib64" "$prefix/extras/CUPTI/lib64" "$prefix/lib64/stubs" >/etc/ld.so.conf.d/zz-tfdock.conf
ldconfig
