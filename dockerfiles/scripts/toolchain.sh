#!/bin/bash
# toolchain.sh BAZEL_VERSION CACHEBUSTERS NUMBER [TITLE=VERSION=COMMAND…] [TOOL…]: compare that number of versions
# (holds.sh), make Bazel ready for offline use by any user, and write down what compiles. CACHEBUSTERS are names of
# variables, parted by commas.
set -euo pipefail

wanted=$1 cachebusters=$2 number=$3
shift 3
for held in "${@:1:number}"; do
  /bin/bash /opt/tfdock/holds.sh "$held"
done
shift "$number"
export HOME=/opt/tfdock/home USER=tfdock LC_ALL=C
mkdir -p "$HOME"

# Bazel unpacks itself on first use (bazelisk: downloads itself first) into a folder named by its hash. Done once
# here and given a fixed name, so that every container starts at once and needs neither network nor time for it.
# With a server, which needs a workspace: in batch mode the whole environment is on Bazel's command line, with the
# login of a proxy.
mkdir "$HOME/workspace"
cd "$HOME/workspace"
touch WORKSPACE
found=$(bazel --output_user_root=/opt/tfdock/bazel version | sed -n 's/^Build label: *\([0-9.]*[0-9]\).*/\1/p')
bazel --output_user_root=/opt/tfdock/bazel shutdown
cd /
if [ "$found" != "$wanted" ]; then
  echo "tfdock: Bazel $wanted is wanted, the base image has ${found:-none}" >&2
  exit 64
fi
# Debian's Bazel comes unpacked.
if [ -d /opt/tfdock/bazel/install ]; then
  # Bazel 8 and later leave a file, `<hash>.lock`, beside the folder.
  ln -s /opt/tfdock/bazel/install/*/ /opt/tfdock/bazel/unpacked
  # Bazel dates its files ten years ahead, and refuses them as a corrupt installation when less than nine years are left
  # (bazelbuild/bazel issue 14355): an image would serve for one year.
  find -L /opt/tfdock/bazel/unpacked -type f -exec touch -d 2100-01-01 {} +
fi
find /opt/tfdock/bazel -mindepth 1 -maxdepth 1 ! -name install ! -name unpacked -exec rm -rf {} +
rm -rf "$HOME"
chmod -R a+rX /opt/tfdock
# Whoever the container runs as adds itself (phase.sh): setuptools and others stop for a user without an entry. All may
# write but the group 65533, which only the steps of the source have (unprivileged.py).
chgrp 65533 /etc/passwd
chmod u=rw,g=r,o=rw /etc/passwd
# Where the steps of the source write. Git refuses a folder of another user unless it is told to read it.
install -d -m 755 -o 0 -g 0 /tf
install -d -m 755 -o 65534 -g 65533 /tf/tensorflow
! command -v git >/dev/null || git config --system --add safe.directory /tf/tensorflow

# A cachebuster is a variable that the base's makers gave every action with another value in each image, so that no
# two images share a cache. Here it gets a value that follows from what is in the image: `busted NAME VALUE`.
rc=/etc/bazel.bazelrc
value="=(\"[^\"]*\"|'[^']*'|[^[:space:]\"']*)"
busted() {
  sed -E -i "s/(--(host_)?action_env[= ]+[\"']?)$1($value)?([[:space:]\"']|\$)/\1$1=$2\5/g" "$rc"
}
busters=()
for name in ${cachebusters//,/ }; do
  if [ -f "$rc" ] && grep -Eq -- "--(host_)?action_env[= ]+[\"']?$name([=[:space:]\"']|\$)" "$rc"; then
    busters+=("$name")
    busted "$name" -
  fi
done

# Every file that no package vouches for, by its bytes: compilers and libraries from elsewhere, and what was changed
# after its package was installed, that is after the package's list was written. Not what no compiler reads, and
# nothing that is another in each image of the same content.
work=/opt/tfdock/contents sums=/opt/tfdock/contents/sums
mkdir -p "$sums"
: >"$sums/none"
linked=()
for folder in bin lib lib32 lib64 libx32 sbin; do # packages name files below these, which stand below /usr by now
  [ ! -L "/$folder" ] || linked+=("$folder")
done
awk -v "linked=$(IFS='|' && echo "${linked[*]}")" '
  { time = $1; path = substr($0, length($1) + 2) }
  NR == FNR {
    while ((getline file < path) > 0) {
      if (linked && file ~ "^/(" linked ")/") file = "/usr" file
      if (!(file in installed) || installed[file] < time) installed[file] = time
    }
    close(path)
    next
  }
  !(path in installed) || time >= installed[path] { print path }
' <(stat -c '%Y %n' /var/lib/dpkg/info/*.list) <(
  find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /run -o -path /tmp -o -path /var -o -path /tf \
    -o -path /etc -o -path /opt/tfdock -o -path /usr/share/doc -o -path /usr/share/man -o -path /usr/share/info \
    -o -path /usr/share/locale -o -path /usr/share/mime -o -name __pycache__ -o -name .git -o -name .cache \) -prune \
    -o -type f ! -name '*.pyc' ! -name '*.jsa' ! -name '*_history' ! -name '*-hsts' -printf '%T@ %p\n'
) >"$work/wanted"
# shellcheck disable=SC2016 # the inner shell expands them
tr '\n' '\0' <"$work/wanted" |
  xargs -0 -r -n 512 -P "$(nproc)" bash -c 'sha256sum -- "$@" >"$(mktemp -p "$0")"' "$sums"
{
  cat "$sums"/*
  find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /run -o -path /tmp -o -path /var -o -path /tf \
    -o -path /opt/tfdock -o -path '/etc/*' ! -path /etc/alternatives ! -path '/etc/alternatives/*' \) -prune \
    -o -type l -printf 'link %p %l\n'
  find /etc -maxdepth 2 \( -path '/etc/ld.so.conf*' -o -name '*bazelrc' \) -type f -exec sha256sum {} +
} | sort >"$work/description"

# The toolchain's identity: the same on every machine that has the same tools, whatever the image's id and its base's.
{
  echo "bazel $found"
  dpkg-query -W -f 'package ${Package} ${Version} ${Architecture}\n' | sort
  for tool in "$@"; do
    [ ! -f "$tool" ] || echo "tool $tool $(sha256sum <"$(readlink -f "$tool")" | cut -d' ' -f1)"
  done
  for name in ${busters[@]+"${busters[@]}"}; do
    echo "cachebuster $name"
  done
  echo "files $(sha256sum <"$work/description" | cut -d' ' -f1)"
} >/opt/tfdock/toolchain
rm -rf "$work"

derived=$(sha256sum </opt/tfdock/toolchain | cut -c-16)
for name in ${busters[@]+"${busters[@]}"}; do
  busted "$name" "$derived"
  echo "tfdock: $rc gives every action $name, another in each image; it is $derived now, by what is in the image"
done
