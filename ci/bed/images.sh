# Stand-ins for the base images that profiles ask for, made of Debian's packages, in the bed's registry.
# shellcheck shell=bash

# The layer under all of them, where an engine can pull; elsewhere debootstrap makes it.
HUB_BASE=debian:bookworm-slim
BASE=tfdock-bed/debian:bookworm

# Docker Hub's own images lie below library/ in its mirrors.
DEFAULT_IMAGES=(tensorflow/build:99.18-python3.11 tensorflow/build:99.15-python3.11
  library/python:3.11-slim-bookworm tensorflow/build:99.18-played)
ALL_IMAGES=("${DEFAULT_IMAGES[@]}" tensorflow/build:2.14-python3.11)

# The compiler of CUDA 13 as PyPI has it; cuobjdump starts at 13.2 there and lists older code as well.
CUDA_13=(nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88
  nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85 nvidia-cuda-cuobjdump==13.2.51)
# Headers for CUDA 11.8, whose compiler comes out of Debian's packages.
CUDA_11=(nvidia-cuda-runtime-cu11==11.8.89 nvidia-cublas-cu11==11.11.3.6 nvidia-cusolver-cu11==11.4.1.48
  nvidia-curand-cu11==10.3.0.86 nvidia-cufft-cu11==10.9.0.58 nvidia-cusparse-cu11==11.7.5.86
  nvidia-cuda-cupti-cu11==11.8.87 nvidia-cuda-nvcc-cu11==11.8.89 nvidia-cudnn-cu11==8.6.0.163
  nvidia-nccl-cu11==2.16.5)
# Headers for CUDA 12.4, whose compiler comes out of Debian's packages.
CUDA_12=(nvidia-cuda-runtime-cu12==12.4.127 nvidia-cuda-nvcc-cu12==12.4.131)
BAZEL_NPM=@bazel/bazel-linux_x64@0.26.1

registry_has() {
  [[ $(http_status HEAD 127.0.0.1 "$REGISTRY_PORT" "/v2/${1%:*}/manifests/${1##*:}" \
    'Accept: application/vnd.docker.distribution.manifest.v2+json') == 200 ]]
}

# One hash for all recipes: the engine's layer cache makes a needless rebuild cheap.
recipe() { (cd "$HERE" && find images images.sh -type f -print0 | sort -z | xargs -0 sha256sum) | sha256sum | head -c 12; }

images_up() {
  local image
  for image in "$@"; do
    [[ " ${ALL_IMAGES[*]} " == *" $image "* ]] || die "no stand-in for $image; there are: ${ALL_IMAGES[*]}"
    if registry_has "$image"; then
      say "image: $image is in the registry"
      continue
    fi
    say "image: building $image (log: $LOGS/image.log)"
    image_build "$image"
    timeout 600 docker push -q "127.0.0.1:$REGISTRY_PORT/$image" >>"$LOGS/image.log" ||
      die "pushing $image failed, see $LOGS/image.log"
    say "image: $image pushed"
  done
}

image_build() {
  local kind=${1#*:}
  kind=${kind%-python*}
  base_layer
  case $kind in
    *-slim-* | *-played) ;; # no compiler in there
    *)
      docker_build tfdock-bed/tools tools
      docker_build tfdock-bed/bazel bazel
      ;;
  esac
  # Under the registry's name only: who asks for the plain name must go through the mirror.
  local name=127.0.0.1:$REGISTRY_PORT/$1
  case $kind in
    *-played)
      docker_build tfdock-bed/python 3.11-slim-bookworm
      docker_build "$name" "$kind"
      ;;
    99.18)
      cuda 13.0
      docker_build "$name" "$kind" cuda-13.0="$STORED"
      ;;
    99.15)
      cuda 13.0
      docker_build tfdock-bed/99.18 99.18 cuda-13.0="$STORED"
      stored bazel-0.26.1 fill_bazel "$BAZEL_NPM"
      docker_build "$name" "$kind" bazel-0.26.1="$STORED"
      ;;
    2.14)
      cuda 11.8
      docker_build "$name" "$kind" cuda-11.8="$STORED"
      ;;
    *) docker_build "$name" "$kind" ;;
  esac
}

# docker_build TAG KIND [NAME=FOLDER]: the context is the recipe and a folder of the store.
docker_build() {
  local tag=$1 kind=$2 variable options=() stored=()
  [[ ! ${3:-} ]] || stored=(--transform "flags=r;s,^${3#*=},${3%%=*}," -P "${3#*=}")
  for variable in http_proxy https_proxy no_proxy; do
    [[ ! ${!variable:-} ]] || options+=(--build-arg "$variable")
  done
  # The classic builder, as tfdock uses it.
  tar -cf - -C "$HERE/images/$kind" . "${stored[@]}" |
    DOCKER_BUILDKIT=0 timeout 1800 docker build --network "$ENGINE_NETWORK" "${options[@]}" --tag "$tag" - \
      >>"$LOGS/image.log" 2>&1 || die "building $tag failed, see $LOGS/image.log"
}

base_layer() {
  local imported
  if docker image inspect "$HUB_BASE" >/dev/null 2>&1; then
    docker tag "$HUB_BASE" "$BASE"
    return 0
  fi
  is_root || die "making the Debian layer needs root, or an engine that can pull $HUB_BASE"
  need debootstrap debootstrap
  stored debian-bookworm fill_debian
  imported=${BASE%:*}:${STORED##*-}
  docker image inspect "$imported" >/dev/null 2>&1 ||
    docker import - "$imported" <"$STORED/layer.tar" >>"$LOGS/image.log"
  docker tag "$imported" "$BASE"
}

fill_debian() {
  bootstrap bookworm "$1/root"
  # As in Docker Hub's image: small, and apt keeps no packages.
  rm -rf "$1/root"/usr/share/{doc,info,locale,man}/*
  echo 'DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb /var/cache/apt/*.bin"; };' \
    >"$1/root/etc/apt/apt.conf.d/docker-clean"
  tar -C "$1/root" --numeric-owner -cf "$1/layer.tar" --exclude='./dev/*' .
  remove "$1/root"
}

# bootstrap SUITE FOLDER [OPTION...]
bootstrap() {
  local suite=$1 folder=$2
  shift 2
  mkdir -p "$folder"
  # In a mount namespace: when this is interrupted, no /proc stays mounted in the folder.
  timeout 1800 unshare --mount debootstrap --variant=minbase "$@" "$suite" "$folder" "$(debian_mirror)" \
    >>"$LOGS/debootstrap.log" 2>&1 </dev/null || die "debootstrap $suite failed, see $LOGS/debootstrap.log"
  rm -rf "$folder"/var/cache/apt/archives/*.deb "$folder"/var/lib/apt/lists/*
}

# The functions below fill a folder of the store: their first argument.

# fetched WHAT COMMAND... : runs it, for half an hour at most; the error says what may be gone.
fetched() {
  local what=$1
  shift
  timeout 1800 "$@" >>"$LOGS/fetch.log" 2>&1 </dev/null ||
    die "cannot fetch $what: $(tail -n 1 "$LOGS/fetch.log"). No network, or it is gone there: then name another" \
      "version in ci/bed. All is in $LOGS/fetch.log"
}

# wheels FOLDER REQUIREMENT... : unpacks PyPI's packages into FOLDER.
wheels() {
  local folder=$1
  shift
  need python3 python3
  python3 -m pip --version >/dev/null 2>&1 || need pip3 python3-pip
  # pip runs out here, where the machine's index, certificates and proxy are configured; the images know none of them.
  # --no-cache-dir: two gigabytes of CUDA libraries come along with the headers.
  fetched "$*" python3 -m pip install --no-deps --quiet --no-cache-dir --no-compile --root-user-action ignore \
    --target "$folder" "$@"
}

# private_apt FOLDER SUITE COMPONENT [deb-src]: sets APT_OPTIONS so that apt asks that part of Debian, with lists of its
# own in FOLDER; the machine's stay as they are.
private_apt() {
  local root=$1/apt
  mkdir -p "$root/lists/partial"
  printf '%s [signed-by=%s] %s %s %s\n' "${4:-deb}" "$KEYRING" "$(debian_mirror)" "$2" "$3" >"$root/sources.list"
  APT_OPTIONS=(-o "Dir::Etc::SourceList=$root/sources.list" -o Dir::Etc::SourceParts=/dev/null
    -o "Dir::State::Lists=$root/lists" -o Dir::Cache::PkgCache= -o Dir::Cache::SrcPkgCache=
    -o Acquire::Check-Valid-Until=false -o APT::Sandbox::User=root -qq)
  fetched "Debian's list of $2" apt-get "${APT_OPTIONS[@]}" update
}
KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg


# packages FOLDER PACKAGE... : unpacks Debian's packages into FOLDER, from the sources that `private_apt` chose.
packages() {
  local folder=$1 archive
  shift
  mkdir -p "$folder/archives"
  (cd "$folder/archives" && fetched "$*" apt-get "${APT_OPTIONS[@]}" download "$@")
  for archive in "$folder"/archives/*.deb; do dpkg-deb --extract "$archive" "$folder"; done
  rm -rf "$folder/archives"
}

# cuda VERSION: sets STORED to the folder with bin/nvcc and bin/cuobjdump of that release.
cuda() {
  case $1 in
    13.0) stored cuda-13.0 fill_cuda_13 "${CUDA_13[@]}" ;;
    12.4) stored cuda-12.4 fill_cuda_of_debian trixie 12.4 "${CUDA_12[@]}" ;;
    11.8) stored cuda-11.8 fill_cuda_of_debian bookworm 11.8 "${CUDA_11[@]}" ;;
    *) die "no CUDA $1; there are 11.8, 12.4 and 13.0" ;;
  esac
}

fill_cuda_13() {
  wheels "$1/wheels" "${@:2}"
  rm "$1/wheels/nvidia/cu13/lib/libnvvm.so.4" # 63 MB for compilers other than nvcc
  mv "$1"/wheels/nvidia/cu13/* "$1/"
  rm -rf "$1/wheels"
}

# The compiler out of Debian's package (the whole toolkit is 8 GB), headers from PyPI.
fill_cuda_of_debian() {
  local tree=$1 suite=$2 version=$3 debian=$1/debian/usr
  shift 3
  private_apt "$tree" "$suite" non-free
  packages "$tree/debian" nvidia-cuda-toolkit
  mkdir -p "$tree"/{bin,include,lib64,nvvm/bin}
  mv "$debian"/bin/{__nvcc_device_query,bin2c,cudafe++,cuobjdump,fatbinary,nvlink,nvprune,ptxas} \
    "$debian"/lib/nvidia-cuda-toolkit/bin/{crt,nvcc} "$tree/bin/"
  mv "$debian/lib/nvidia-cuda-toolkit/bin/cicc" "$tree/nvvm/bin/"
  mv "$debian/lib/nvidia-cuda-toolkit/libdevice" "$tree/nvvm/"
  cp "$HERE/images/2.14/nvcc.profile" "$tree/bin/"
  "$tree/bin/nvcc" --version | grep -q "release $version," || die "Debian $suite has no CUDA $version any more"
  if [[ $version == 11.8 ]]; then
    # nvcc searches here first, before PATH: 11.8 refuses Debian's own gcc 12.
    ln -s /usr/bin/gcc-11 "$tree/nvvm/bin/gcc"
    ln -s /usr/bin/g++-11 "$tree/nvvm/bin/g++"
  fi
  wheels "$tree/wheels" "$@"
  cp -R "$tree"/wheels/nvidia/*/include/. "$tree/include/"
  cp "$tree"/wheels/nvidia/cuda_runtime/lib/libcudart.so.* "$tree/lib64/"
  rm -rf "$tree"/{wheels,debian,apt,include/__init__.py}
}

# The official binary of the Bazel that TensorFlow 1.15 was built with; npm is the one registry that carries it.
fill_bazel() {
  need npm npm
  (cd "$1" && fetched "$2" npm pack --silent "$2" && tar --strip-components=1 -xzf ./*.tgz)
  find "$1" -type f ! -name 'bazel-*-linux-x86_64' -delete
  mv "$1"/bazel-* "$1/bazel"
  chmod 0755 "$1/bazel"
}

# The upstream tree as Debian sid carries it, without Debian's patches.
fill_tensorflow() {
  private_apt "$1" sid main deb-src
  command -v xz >/dev/null || need xz xz-utils
  (cd "$1" && fetched "TensorFlow's source" apt-get "${APT_OPTIONS[@]}" source --download-only --tar-only tensorflow)
  [[ -e $(echo "$1/tensorflow_$2"+*.orig.tar.xz) ]] || die "Debian sid has TensorFlow $2 no longer, but $(ls "$1")"
  tar -C "$1" --strip-components=1 --no-same-owner -xf "$1"/tensorflow_*.orig.tar.xz
  rm -rf "$1"/{apt,tensorflow_*}
}
