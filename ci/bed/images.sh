# Stand-ins for the base images that profiles ask for, made of Debian's packages, in the bed's registry.
# shellcheck shell=bash

# The layer under all of them, where an engine can pull; elsewhere debootstrap makes it.
HUB_BASE=debian:bookworm-slim
BASE=tfdock-bed/debian:bookworm

# Docker Hub's own images lie below library/ in its mirrors.
DEFAULT_IMAGES=(tensorflow/build:99.18-python3.11 tensorflow/build:99.15-python3.11
  library/python:3.11-slim-bookworm)
ALL_IMAGES=("${DEFAULT_IMAGES[@]}" tensorflow/build:2.14-python3.11)

# The compiler of CUDA 13 as PyPI has it; cuobjdump starts at 13.2 there and lists older code as well.
CUDA_13=(nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88
  nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85 nvidia-cuda-cuobjdump==13.2.51)
# Headers for CUDA 11.8, whose compiler comes out of Debian's packages.
CUDA_11=(nvidia-cuda-runtime-cu11==11.8.89 nvidia-cublas-cu11==11.11.3.6 nvidia-cusolver-cu11==11.4.1.48
  nvidia-curand-cu11==10.3.0.86 nvidia-cufft-cu11==10.9.0.58 nvidia-cusparse-cu11==11.7.5.86
  nvidia-cuda-cupti-cu11==11.8.87 nvidia-cuda-nvcc-cu11==11.8.89 nvidia-cudnn-cu11==8.6.0.163
  nvidia-nccl-cu11==2.16.5)
BAZEL_NPM=@bazel/bazel-linux_x64@0.26.1

registry_has() {
  [[ $(http_status HEAD 127.0.0.1 "$REGISTRY_PORT" "/v2/${1%:*}/manifests/${1##*:}" \
    'Accept: application/vnd.docker.distribution.manifest.v2+json') == 200 ]]
}

# One hash for all recipes: the engine's layer cache makes a needless rebuild cheap.
recipe() { (cd "$HERE" && find images images.sh -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum); }

images_up() {
  local image stamp recipe
  recipe=$(recipe)
  mkdir -p "$BED/cache" "$BED/images"
  for image in "$@"; do
    [[ " ${ALL_IMAGES[*]} " == *" $image "* ]] || die "no stand-in for $image; there are: ${ALL_IMAGES[*]}"
    stamp=$BED/images/${image//[\/:]/_}
    if [[ -e $stamp && $(<"$stamp") == "$recipe" ]] && registry_has "$image"; then
      say "image: $image is in the registry"
      continue
    fi
    say "image: building $image (log: $LOGS/image.log)"
    image_build "$image"
    docker push -q "127.0.0.1:$REGISTRY_PORT/$image" >>"$LOGS/image.log"
    printf '%s\n' "$recipe" >"$stamp"
    say "image: $image pushed"
  done
}

image_build() {
  local kind=${1#*:}
  kind=${kind%-python*}
  base_layer
  case $kind in
    *-slim-*) ;; # no compiler in there
    *) docker_build tfdock-bed/tools tools ;;
  esac
  case $kind in
    99.18) image_toolchain ;;
    99.15)
      image_toolchain
      bazel_0_26 "$BED/cache/99.15/bazel-0.26.1"
      ;;
    2.14) cuda_11 "$BED/cache/2.14/cuda-11.8" ;;
  esac
  # Under the registry's name only: who asks for the plain name must go through the mirror.
  docker_build "127.0.0.1:$REGISTRY_PORT/$1" "$kind"
}

image_toolchain() {
  cuda_13 "$BED/cache/toolchain/cuda-13.0"
  docker_build tfdock-bed/toolchain toolchain
}

# docker_build TAG KIND: the context is the recipe's folder, with what was fetched for it and the shared Bazel recipe.
docker_build() {
  local context=$BED/cache/$2 variable options=()
  mkdir -p "$context"
  cp -R "$HERE/images/$2/." "$HERE/images/bazel" "$context/"
  for variable in http_proxy https_proxy no_proxy; do
    [[ ! ${!variable:-} ]] || options+=(--build-arg "$variable")
  done
  # The classic builder, as tfdock uses it.
  DOCKER_BUILDKIT=0 docker build --network "$ENGINE_NETWORK" "${options[@]}" --tag "$1" "$context" \
    >>"$LOGS/image.log" 2>&1 </dev/null || die "building $1 failed, see $LOGS/image.log"
}

base_layer() {
  ! docker image inspect "$BASE" >/dev/null 2>&1 || return 0
  if docker image inspect "$HUB_BASE" >/dev/null 2>&1; then
    docker tag "$HUB_BASE" "$BASE"
    return 0
  fi
  local archive=$BED/cache/debian-bookworm.tar
  if [[ ! -e $archive ]]; then
    is_root || die "making the Debian layer needs root, or an engine that can pull $HUB_BASE"
    need debootstrap debootstrap
    say "image: making the Debian layer"
    bootstrap bookworm "$BED/cache/debian"
    tar -C "$BED/cache/debian" --numeric-owner -cf "$archive.part" --exclude='./dev/*' .
    mv "$archive.part" "$archive"
    rm -rf --one-file-system "$BED/cache/debian"
  fi
  docker import - "$BASE" <"$archive" >>"$LOGS/image.log"
}

# bootstrap SUITE FOLDER [OPTION...]
bootstrap() {
  local suite=$1 folder=$2
  shift 2
  rm -rf --one-file-system "$folder"
  mkdir -p "$folder"
  # In a mount namespace: when this is interrupted, no /proc stays mounted in the folder.
  unshare --mount debootstrap --variant=minbase "$@" "$suite" "$folder" "$(debian_mirror)" \
    >>"$LOGS/debootstrap.log" 2>&1 </dev/null || die "debootstrap $suite failed, see $LOGS/debootstrap.log"
  rm -rf "$folder"/var/cache/apt/archives/*.deb "$folder"/var/lib/apt/lists/*
}

# The fetchers fill a folder beside the wanted one and move it there whole, so that an interrupted one leaves nothing half.

# wheels FOLDER REQUIREMENT... : unpacks PyPI's packages into FOLDER.
wheels() {
  local folder=$1
  shift
  need python3 python3
  python3 -m pip --version >/dev/null 2>&1 || need pip3 python3-pip
  # pip runs out here, where the machine's index, certificates and proxy are configured; the images know none of them.
  # --no-cache-dir: two gigabytes of CUDA libraries come along with the headers.
  python3 -m pip install --no-deps --quiet --no-cache-dir --no-compile --root-user-action ignore --target "$folder" "$@" \
    >>"$LOGS/image.log" 2>&1 </dev/null || die "pip could not fetch $*, see $LOGS/image.log"
}

# private_apt LINE: sets APT_OPTIONS so that apt uses that source with lists of its own; the machine's stay as they are.
private_apt() {
  local root=$BED/cache/apt
  rm -rf "$root"
  mkdir -p "$root/lists/partial"
  printf '%s\n' "$1" >"$root/sources.list"
  APT_OPTIONS=(-o "Dir::Etc::SourceList=$root/sources.list" -o Dir::Etc::SourceParts=/dev/null
    -o "Dir::State::Lists=$root/lists" -o Dir::Cache::PkgCache= -o Dir::Cache::SrcPkgCache=
    -o Acquire::Check-Valid-Until=false -o APT::Sandbox::User=root -qq)
  apt-get "${APT_OPTIONS[@]}" update >>"$LOGS/apt.log" 2>&1 || die "apt-get update failed, see $LOGS/apt.log"
}
KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg

cuda_13() {
  [[ ! -d $1 ]] || return 0
  say "image: fetching the CUDA 13.0 compiler"
  rm -rf "$1.part"
  wheels "$1.part" "${CUDA_13[@]}"
  rm "$1.part/nvidia/cu13/lib/libnvvm.so.4" # 63 MB for compilers other than nvcc
  mv "$1.part/nvidia/cu13" "$1"
  rm -rf "$1.part"
}

# CUDA 11.8: the compiler out of Debian's package (the whole toolkit there is 8 GB), headers and cudart from PyPI.
cuda_11() {
  [[ ! -d $1 ]] || return 0
  say "image: fetching the CUDA 11.8 compiler and headers"
  local part=$1.part debian=$1.part/debian/usr tree=$1.part/tree
  rm -rf "$part"
  mkdir -p "$tree"/{bin,include,lib64,nvvm/bin}

  private_apt "deb [signed-by=$KEYRING] $(debian_mirror) bookworm non-free"
  (cd "$part" && apt-get "${APT_OPTIONS[@]}" download nvidia-cuda-toolkit >>"$LOGS/apt.log" 2>&1) ||
    die "apt-get download nvidia-cuda-toolkit failed, see $LOGS/apt.log"
  dpkg-deb --extract "$part"/*.deb "$part/debian"
  mv "$debian"/bin/{__nvcc_device_query,bin2c,cudafe++,cuobjdump,fatbinary,nvlink,nvprune,ptxas} \
    "$debian"/lib/nvidia-cuda-toolkit/bin/{crt,nvcc} "$tree/bin/"
  mv "$debian/lib/nvidia-cuda-toolkit/bin/cicc" "$tree/nvvm/bin/"
  mv "$debian/lib/nvidia-cuda-toolkit/libdevice" "$tree/nvvm/"
  # nvcc searches here first, before PATH: 11.8 refuses Debian's own gcc 12.
  ln -s /usr/bin/gcc-11 "$tree/nvvm/bin/gcc"
  ln -s /usr/bin/g++-11 "$tree/nvvm/bin/g++"
  cp "$HERE/images/2.14/nvcc.profile" "$tree/bin/"

  wheels "$part/wheels" "${CUDA_11[@]}"
  cp -R "$part"/wheels/nvidia/*/include/. "$tree/include/"
  cp "$part"/wheels/nvidia/cuda_runtime/lib/libcudart.so.11.0 "$tree/lib64/"
  rm -f "$tree/include/__init__.py"
  mv "$tree" "$1"
  rm -rf "$part"
}

# The official binary of the Bazel that TensorFlow 1.15 was built with; npm is the one registry that carries it.
bazel_0_26() {
  [[ ! -e $1 ]] || return 0
  need npm npm
  say "image: fetching Bazel 0.26.1"
  rm -rf "$1.part"
  mkdir -p "$1.part"
  (cd "$1.part" && npm pack --silent "$BAZEL_NPM" >>"$LOGS/image.log" 2>&1 </dev/null) ||
    die "npm could not fetch $BAZEL_NPM, see $LOGS/image.log"
  tar -C "$1.part" --strip-components=1 -xzf "$1.part"/*.tgz
  chmod 0755 "$1.part"/bazel-0.26.1-linux-x86_64
  mv "$1.part"/bazel-0.26.1-linux-x86_64 "$1"
  rm -rf "$1.part"
}

# The upstream tree as Debian sid carries it, without Debian's patches.
tensorflow_source() {
  local folder=$BED/tensorflow-2.14.1 part=$BED/tensorflow.part
  if [[ ! -d $folder ]]; then
    say "fetching TensorFlow's source package"
    rm -rf "$part"
    mkdir -p "$part"
    private_apt "deb-src [signed-by=$KEYRING] $(debian_mirror) sid main"
    command -v xz >/dev/null || need xz xz-utils
    (cd "$part" && apt-get "${APT_OPTIONS[@]}" source --download-only --tar-only tensorflow >>"$LOGS/apt.log" 2>&1) ||
      die "apt-get source tensorflow failed, see $LOGS/apt.log"
    [[ -e $(echo "$part"/tensorflow_2.14.1+*.orig.tar.xz) ]] ||
      die "Debian sid no longer has TensorFlow 2.14.1 but $(ls "$part")"
    mkdir "$part/tree"
    tar -C "$part/tree" --strip-components=1 --no-same-owner -xf "$part"/tensorflow_*.orig.tar.xz
    mv "$part/tree" "$folder"
    rm -rf "$part"
  fi
  printf '%s\n' "$folder"
}
