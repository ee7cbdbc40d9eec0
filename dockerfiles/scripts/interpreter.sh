#!/bin/bash
# interpreter.sh VERSION URL SHA256: compile a Python from its source archive into /usr/local, beside the distribution's.
set -euo pipefail

version=$1 url=$2 sha256=$3
python=/usr/local/bin/python${version%.*}
work=/opt/tfdock/interpreter
mkdir -p "$work"
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
tar -xf archive --strip-components=1 --no-same-owner

# The interpreter carries the moment of its compilation; the same sources shall give the same program everywhere.
{
  printf '#define DATE "Jan  1 1970"\n#define TIME "00:00:00"\n'
  cat Modules/getbuildinfo.c
} >getbuildinfo.c
mv getbuildinfo.c Modules/getbuildinfo.c

./configure --quiet --prefix=/usr/local
make --quiet -j"$(nproc)"
# Not `install`, which would replace the python3 that the distribution's own programs run on.
make --quiet altinstall

# TensorFlow's build needs a Python that can compress and download; configure leaves modules out without a word.
"$python" -c 'import bz2, ctypes, hashlib, ssl, zlib'

if ! "$python" -m pip --version; then
  # Before 3.4 Python brings no pip. These are the last ones that run on 3.3, fetched by the distribution's own pip.
  python3 -m pip download --no-cache-dir --no-deps --dest wheels pip==10.0.1 setuptools==39.2.0
  "$python" wheels/pip-10.0.1-py2.py3-none-any.whl/pip install --no-cache-dir --no-index --find-links wheels \
    pip setuptools
fi
cd /
rm -rf "$work" "/usr/local/lib/python${version%.*}/test"
