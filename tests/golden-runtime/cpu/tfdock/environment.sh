#!/bin/sh
# environment.sh VERSION FOLDER: make an environment in FOLDER for that Python (`3.11`), or for whichever the image has
# of that version, with the image's own pip: the one that an old `venv` brings knows too few platforms.
set -eu
version=$1
folder=$2

fail() {
  echo "tfdock: $1" >&2
  exit 67
}

is_it() {
  "$1" -c 'import sys; sys.exit("%d.%d" % sys.version_info[:2] != sys.argv[1])' "$version" 2> /dev/null
}

python=
for one in "python$version" python python3; do
  if is_it "$one"; then
    python=$one
    break
  fi
done
[ -n "$python" ] || fail "the base image has no Python $version"
"$python" -c 'import venv' || fail "Python $version of the base image makes no environments: it has no venv"
"$python" -m venv --without-pip "$folder" || fail "Python $version of the base image makes no environments"

pip=$("$python" -c 'import os, pip; print(os.path.dirname(pip.__file__))') || fail "the base image's Python has no pip"
packages=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
cp -R "$pip" "$pip"-*.*-info "$packages"
cat > "$folder/bin/pip" << END
#!$folder/bin/python
import sys
from pip._internal.cli.main import main
sys.exit(main())
END
chmod 755 "$folder/bin/pip"
