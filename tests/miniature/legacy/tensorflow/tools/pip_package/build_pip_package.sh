#!/usr/bin/env bash
# Packs what Bazel built into a wheel. Runs in the root of the workspace, beside the links that Bazel puts there.
set -e

readonly BUILT=bazel-bin/tensorflow/tools/pip_package/build_pip_package.runfiles/org_tensorflow

function usage() {
  echo "Usage: $0 FOLDER [--project_name NAME | --cpu | --gpu | --rocm | --nightly_flag]"
  echo "       $0 [--src FOLDER] [--dst FOLDER] [options]"
  echo "  FOLDER, --dst   where the wheel goes"
  echo "  --src           where its parts are laid out; a temporary folder otherwise"
  exit 1
}

function lay_out() {
  local parts=$1
  if [[ ! -d bazel-bin/tensorflow ]]; then
    echo "Could not find bazel-bin. This runs in the root of the build tree, after the build."
    exit 1
  fi
  echo "$(date) : === Preparing sources in dir: $parts"
  mkdir -p "$parts"
  cp -LR "$BUILT/tensorflow" "$parts"
  cp -L tensorflow/tools/pip_package/setup.py "$parts"
  cp -L "$BUILT/tensorflow/tools/pip_package/VERSION" "$parts"
  rm -rf "$parts/tensorflow/tools"
}

function pack() {
  local parts=$1 wheels=$2 name=$3
  if [[ -e tools/python_bin_path.sh ]]; then
    source tools/python_bin_path.sh
  fi
  echo "$(date) : === Building wheel"
  (cd "$parts" && "${PYTHON_BIN_PATH:-python3}" setup.py -q bdist_wheel --project_name "$name" >/dev/null)
  mkdir -p "$wheels"
  cp "$parts"/dist/*.whl "$wheels"
  echo "$(date) : === Output wheel file is in: $wheels"
}

name=tensorflow
parts=
wheels=
while [[ $# -gt 0 ]]; do
  case $1 in
    --help) usage ;;
    --project_name)
      name=$2
      shift
      ;;
    --cpu) name=tensorflow_cpu ;;
    --gpu) name=tensorflow_gpu ;;
    --rocm) name=tensorflow_rocm ;;
    --nightly_flag) name=tf_nightly ;;
    --src)
      parts=$(realpath -m "$2")
      shift
      ;;
    --dst)
      wheels=$(realpath -m "$2")
      shift
      ;;
    *) wheels=$(realpath -m "$1") ;;
  esac
  shift
done

if [[ -z $parts && -z $wheels ]]; then
  echo "No destination dir provided"
  usage
fi
if [[ -z $parts ]]; then
  parts=$(mktemp -d)
  trap 'rm -rf "$parts"' EXIT
fi
lay_out "$parts"
if [[ -n $wheels ]]; then
  pack "$parts" "$wheels" "$name"
fi
