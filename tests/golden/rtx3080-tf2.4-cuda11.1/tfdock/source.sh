#!/bin/bash
# source.sh git URL REF COMMIT LOCKED | source.sh archive URL SHA256: put TensorFlow's source into /tf/tensorflow, and print
# the commit or the sum that was found. Nothing of the source runs.
set -euo pipefail
exec 3>&1 >&2

cd /tf/tensorflow
case $1 in
git)
  url=$2 ref=$3 commit=$4 locked=$5
  git init -q
  # Object names are abbreviated by the size of the repository unless told otherwise, and end up in the wheel.
  git config core.abbrev 12
  git config advice.detachedHead false
  # As a tag first: `git describe`, which stamps the version into the wheel, needs the tag's own name.
  tag=refs/tags/$ref found=
  if git fetch -q --depth 1 -- "$url" "$tag:$tag" || { tag= && git fetch -q --depth 1 -- "$url" "$ref"; }; then
    found=$(git rev-parse 'FETCH_HEAD^{commit}')
  elif [ -z "$locked" ]; then
    echo "tfdock: cannot fetch $ref from $url" >&2
    exit 68
  fi
  if [ -n "$locked" ] && [ "$found" != "$commit" ]; then
    echo "tfdock: $ref is ${found:-not there}; fetching the locked commit $commit" >&2
    if ! git fetch -q --depth 1 -- "$url" "$commit"; then
      echo "tfdock: cannot fetch $commit from $url" >&2
      exit 68
    fi
    # The version stamp was made with the tag.
    if [ -n "$tag" ] || [ -z "$found" ]; then git update-ref "refs/tags/$ref" FETCH_HEAD; fi
    found=$(git rev-parse 'FETCH_HEAD^{commit}')
  fi
  git checkout -q --detach FETCH_HEAD
  if [ -n "$commit" ] && [ "$found" != "$commit" ]; then
    echo "tfdock: $ref is $found, but $commit was expected: the tag has moved" >&2
    exit 65
  fi
  ;;
archive)
  url=$2 sha256=$3
  if ! curl -fsSL --retry 3 --connect-timeout 30 --speed-limit 1024 --speed-time 60 -o /tmp/source "$url"; then
    echo "tfdock: cannot download $url" >&2
    exit 68
  fi
  found=$(sha256sum </tmp/source | cut -d' ' -f1)
  if [ "$found" != "$sha256" ]; then
    echo "tfdock: $url has the sha256 $found, but $sha256 was expected" >&2
    exit 65
  fi
  case $url in
  *.zip) unzip -q /tmp/source -d /tmp/unpacked && mv /tmp/unpacked/*/* /tmp/unpacked/*/.[!.]* . ;;
  *) tar -xf /tmp/source --strip-components=1 ;;
  esac
  rm -rf /tmp/source /tmp/unpacked
  ;;
esac
echo "$found" >&3
