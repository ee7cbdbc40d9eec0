# Real compilers and listers for tests that look into what they make; no image holds them, they run on this machine.
# shellcheck shell=bash

# What LLVM's programs of Debian trixie need to run on any other Linux, its dynamic loader among it.
LLVM_LIBRARIES=(libc6 libstdc++6 libgcc-s1 libzstd1 zlib1g libedit2 libffi8 libz3-4 libxml2 libtinfo6 libbsd0 libmd0
  libicu76 liblzma5)

# offload_bundler VERSION FOLDER: that LLVM's clang-offload-bundler as FOLDER/clang-offload-bundler, 250 MB with its
# libraries. It is not kept: what it makes is a few kilobytes, and who wants those keeps them.
offload_bundler() {
  local version=$1 folder=$2
  [[ $version && $folder ]] || die "offload-bundler VERSION FOLDER"
  say "fetching clang-offload-bundler $version"
  mkdir -p "$folder"
  private_apt "$folder" trixie main
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

# What runs a pipeline of GitLab's on one machine. Newer ones want a newer Node than Debian 12 has.
GITLAB_CI_LOCAL=gitlab-ci-local@4.60.0

# gitlab_ci_local_programs: that program of npm's; prints its path. It copies a job's files with rsync.
gitlab_ci_local_programs() {
  need rsync rsync
  need git git
  need npm npm
  stored gitlab-ci-local fill_gitlab_ci_local "$GITLAB_CI_LOCAL"
  printf '%s\n' "$STORED/node_modules/.bin/gitlab-ci-local"
}

fill_gitlab_ci_local() {
  fetched "$2" npm install --ignore-scripts --loglevel=error --no-audit --no-fund --prefix "$1" "$2"
  # A script would compile this one, with headers of Node's, and tools that Debian 12's Node is too old for. For the
  # patterns of our own pipelines JavaScript's expressions will do.
  echo 'module.exports = RegExp;' >"$1/node_modules/re2/re2.js"
}
