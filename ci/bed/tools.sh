# Real compilers and listers for tests that look into what they make; no image holds them, they run on this machine.
# shellcheck shell=bash

# Headers for CUDA 12.4, whose compiler comes out of Debian's packages.
CUDA_12=(nvidia-cuda-runtime-cu12==12.4.127 nvidia-cuda-nvcc-cu12==12.4.131)

# What LLVM's programs of Debian trixie need to run on any other Linux, its dynamic loader among it.
LLVM_LIBRARIES=(libc6 libstdc++6 libgcc-s1 libzstd1 zlib1g libedit2 libffi8 libz3-4 libxml2 libtinfo6 libbsd0 libmd0
  libicu76 liblzma5)

# cuda_tools VERSION: prints a folder with bin/nvcc and bin/cuobjdump of that release. Those of the images are shared.
cuda_tools() {
  local folder
  mkdir -p "$BED/cache/toolchain" "$BED/cache/2.14" "$BED/cache/compilers"
  case $1 in
    13.0)
      folder=$BED/cache/toolchain/cuda-13.0
      cuda_13 "$folder"
      ;;
    12.4)
      folder=$BED/cache/compilers/cuda-12.4
      cuda_12 "$folder"
      ;;
    11.8)
      folder=$BED/cache/2.14/cuda-11.8
      cuda_11 "$folder"
      ;;
    *) die "no CUDA $1; there are 11.8, 12.4 and 13.0" ;;
  esac
  printf '%s\n' "$folder"
}

# CUDA 12.4: the compiler out of Debian's package, headers from PyPI. No host compiler is named in it, and no cudart:
# who calls it says `-ccbin` and links without.
cuda_12() {
  [[ ! -d $1 ]] || return 0
  say "fetching the CUDA 12.4 compiler"
  local part=$1.part debian=$1.part/debian/usr tree=$1.part/tree
  rm -rf "$part"
  mkdir -p "$tree"/{bin,include,nvvm/bin}
  private_apt "deb [signed-by=$KEYRING] $(debian_mirror) trixie non-free"
  packages "$part/debian" nvidia-cuda-toolkit
  mv "$debian"/bin/{bin2c,cudafe++,cuobjdump,fatbinary,nvlink,ptxas} \
    "$debian"/lib/nvidia-cuda-toolkit/bin/{crt,nvcc} "$tree/bin/"
  mv "$debian/lib/nvidia-cuda-toolkit/bin/cicc" "$tree/nvvm/bin/"
  mv "$debian/lib/nvidia-cuda-toolkit/libdevice" "$tree/nvvm/"
  cp "$HERE/images/2.14/nvcc.profile" "$tree/bin/"
  wheels "$part/wheels" "${CUDA_12[@]}"
  cp -R "$part"/wheels/nvidia/*/include/. "$tree/include/"
  mv "$tree" "$1"
  rm -rf "$part"
}

# offload_bundler VERSION FOLDER: that LLVM's clang-offload-bundler as FOLDER/clang-offload-bundler, 250 MB with its
# libraries. It is not kept: what it makes is a few kilobytes, and who wants those keeps them.
offload_bundler() {
  local version=$1 folder=$2
  [[ $version && $folder ]] || die "offload-bundler VERSION FOLDER"
  say "fetching clang-offload-bundler $version"
  private_apt "deb [signed-by=$KEYRING] $(debian_mirror) trixie main"
  packages "$folder/usr-of-trixie" "clang-tools-$version" "libclang-cpp$version" "libllvm$version" "${LLVM_LIBRARIES[@]}"
  cat >"$folder/clang-offload-bundler" <<'TEXT'
#!/bin/sh
here=$(cd "$(dirname "$0")" && pwd)/usr-of-trixie
PATH=$here/path:$PATH
exec "$here/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2" --library-path "$here/usr/lib/x86_64-linux-gnu" \
  "$here/bundler" "$@"
TEXT
  chmod 0755 "$folder/clang-offload-bundler"
  ln -s "usr/lib/llvm-$version/bin/clang-offload-bundler" "$folder/usr-of-trixie/bundler"
  # It looks for this one before it starts, and uses it for host objects only: binutils' own does.
  mkdir "$folder/usr-of-trixie/path"
  ln -s "$(command -v objcopy)" "$folder/usr-of-trixie/path/llvm-objcopy"
}

# packages FOLDER PACKAGE... : unpacks Debian's packages into FOLDER, from the sources that `private_apt` chose.
packages() {
  local folder=$1 archive
  shift
  mkdir -p "$folder/archives"
  (cd "$folder/archives" && apt-get "${APT_OPTIONS[@]}" download "$@" >>"$LOGS/apt.log" 2>&1) ||
    die "apt-get download $* failed, see $LOGS/apt.log"
  for archive in "$folder"/archives/*.deb; do dpkg-deb --extract "$archive" "$folder"; done
  rm -rf "$folder/archives"
}

# What runs a pipeline of GitLab's on one machine. Newer ones want a newer Node than Debian 12 has.
GITLAB_CI_LOCAL=gitlab-ci-local@4.60.0

# gitlab_ci_local_programs: that program of npm's; prints its path. It copies a job's files with rsync.
gitlab_ci_local_programs() {
  local folder=$BED/${GITLAB_CI_LOCAL/@/-}
  need npm npm
  need rsync rsync
  need git git
  if [[ ! -d $folder ]]; then
    say "fetching $GITLAB_CI_LOCAL"
    rm -rf "$folder.part"
    mkdir "$folder.part"
    npm install --ignore-scripts --loglevel=error --no-audit --no-fund --prefix "$folder.part" "$GITLAB_CI_LOCAL" \
      >>"$LOGS/npm.log" 2>&1 </dev/null || die "npm could not fetch $GITLAB_CI_LOCAL, see $LOGS/npm.log"
    # A script would compile this one, with headers of Node's, and tools that Debian 12's Node is too old for. For the
    # patterns of our own pipelines JavaScript's expressions will do.
    echo 'module.exports = RegExp;' >"$folder.part/node_modules/re2/re2.js"
    mv "$folder.part" "$folder"
  fi
  printf '%s\n' "$folder/node_modules/.bin/gitlab-ci-local"
}
