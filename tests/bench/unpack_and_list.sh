#!/usr/bin/env bash
# How it is done by hand: unpack_and_list.sh WHEEL CUOBJDUMP FOLDER. Unpack the wheel, then ask cuobjdump of every library.
set -euo pipefail
rm -rf "$3"
python3 -m zipfile -e "$1" "$3"
find "$3" -name '*.so*' -type f -print0 | while IFS= read -r -d '' library; do
  # It fails on libraries without GPU code.
  "$2" --list-elf --list-ptx "$library" 2>/dev/null || true
done | awk '{ split($NF, part, "."); count[part[length(part) - 1] "." part[length(part)]]++ } END { for (one in count) print one, count[one] }'
