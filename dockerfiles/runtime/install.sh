#!/bin/sh
# install.sh FOLDER: install what requirements.txt in /opt/tfdock/wheels lists, from the wheels there, for the environment
# in FOLDER, into a folder of its own, /opt/tfdock/installed, which is then laid over the environment. A file
# constraints.txt beside them goes there too. The same wheels give the same files.
set -eu
python=$1/bin/python
target=/opt/tfdock/installed

# Each of these was chosen before, with what it requires: pip has nothing to decide. By name and version, and not as
# files: of a file it would write down where that was.
"$python" -m pip install --prefix "$target" --ignore-installed --no-deps --no-index --no-cache-dir --no-compile \
  --disable-pip-version-check --no-warn-script-location --find-links /opt/tfdock/wheels \
  --requirement /opt/tfdock/wheels/requirements.txt

# Nobody can write there later, so modules are compiled now; valid by their contents, where Python can, and not by a time;
# one after the other, because what a process has compiled before shows in the bytes. A package may have files that this
# Python cannot read: no part of it needs them.
mode=$("$python" -c 'import sys; print("--invalidation-mode=unchecked-hash" if sys.version_info >= (3, 7) else "-f")')
PYTHONHASHSEED=0 "$python" -m compileall -qq "$mode" "$target" || true

if [ -f /opt/tfdock/wheels/constraints.txt ]; then
  cp /opt/tfdock/wheels/constraints.txt "$target/"
fi
