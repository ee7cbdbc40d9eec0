#!/bin/bash
# configure.sh [OPTION...]: run TensorFlow's ./configure with the plan's environment and without a terminal.
# OPTION, such as --repo_env=NAME: how Bazel is to be given a variable that ./configure gives to every action.
set -euo pipefail

while IFS= read -r line; do
  export "${line?}"
done </opt/tfdock/environment

cd /tf/tensorflow
# Old releases start Bazel here, which unpacks itself into the home folder; unprivileged.py removes that.
./configure </dev/null

for option; do
  sed --in-place --regexp-extended "s/^build --action_env[ =](${option#*=}=)/build ${option%%=*}=\1/" .tf_configure.bazelrc
done

echo "tfdock: .tf_configure.bazelrc says:"
cat .tf_configure.bazelrc
# Bazel puts its bazel-* links here, for whichever user the container runs as.
chmod a+rwx .
