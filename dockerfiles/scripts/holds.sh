#!/bin/bash
# holds.sh TITLE=VERSION=COMMAND: compare what the image holds with what the plan says, as far as both are written.
# COMMAND prints a version, or a header with macros …_MAJOR and …_MINOR. One that prints neither proves nothing.
set -euo pipefail

title=${1%%=*} rest=${1#*=}
wanted=${rest%%=*} command=${rest#*=}
told=$(/bin/bash -c "$command" 2>/dev/null || :)
found=$(sed -nE 's/^#define +[A-Z]+_(MAJOR|MINOR) +([0-9]+).*/\2/p' <<<"$told" | sed -n '1{h;d};2{H;x;s/\n/./p;q}')
[ -n "$found" ] || found=$(grep -oE '[0-9]+(\.[0-9]+)+|^[0-9]+$' <<<"$told" | sed -n 1p || :)
if [ -n "$found" ] && [[ $found. != "$wanted".* && $wanted. != "$found".* ]]; then
  echo "tfdock: the plan says $title $wanted, the base image holds $found" >&2
  echo "tfdock: write that version in the profile, or name another image: \`base: …\`" >&2
  exit 67
fi
