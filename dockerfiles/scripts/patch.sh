#!/bin/bash
# patch.sh: apply the profile's patches in order; one that does not apply stops the build and changes nothing.
set -euo pipefail

cd /tf/tensorflow
for patch in /opt/tfdock/patches/*; do
  echo "tfdock: applying ${patch##*/}"
  git apply --whitespace=nowarn "$patch"
done
