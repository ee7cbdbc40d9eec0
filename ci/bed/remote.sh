# Servers that Bazel's remote caches and executors are tried against. The bed only makes them ready: tests start their own.
# shellcheck shell=bash

# The server and what it forgets to ask for: its SQLAlchemy wants a driver for PostgreSQL.
BUILDGRID=(buildgrid==0.4.4 psycopg2-binary)

# nginx_programs: nginx, which can be an HTTP cache; prints its path. Debian's package is not started.
nginx_programs() {
  need nginx nginx-light
  command -v nginx
}

# postgres_image: an image of PostgreSQL in the bed's engine; prints its name.
postgres_image() {
  engine_select || die "the bed is not up: run \`$0 up\`"
  export DOCKER_HOST=$ENGINE_HOST
  base_layer
  docker_build tfdock-bed/postgres:bookworm postgres
  printf '%s\n' tfdock-bed/postgres:bookworm
}

# buildgrid_programs: BuildGrid in an environment of its own; prints its Python, for `-m buildgrid.server.app.cli`.
buildgrid_programs() {
  local folder=$BED/buildgrid
  if [[ ! -d $folder ]]; then
    need python3 python3
    say "fetching BuildGrid"
    rm -rf "$folder.part"
    python3 -m venv "$folder.part"
    "$folder.part/bin/python" -m pip install --quiet --disable-pip-version-check "${BUILDGRID[@]}" \
      >>"$LOGS/buildgrid.log" 2>&1 </dev/null || die "pip could not fetch ${BUILDGRID[*]}, see $LOGS/buildgrid.log"
    mv "$folder.part" "$folder"
  fi
  printf '%s\n' "$folder/bin/python"
}

# buildbox_programs: the worker of remote execution, out of Debian sid with all its libraries; prints the folder.
# `<folder>/run PROGRAM` runs one in any Linux. Without buildbox-fuse casd stages files itself.
buildbox_programs() {
  local folder=$BED/buildbox archive
  if [[ ! -d $folder ]]; then
    say "fetching buildbox"
    rm -rf "$folder.part"
    mkdir -p "$folder.part/archives/partial"
    private_apt "deb [signed-by=$KEYRING] $(debian_mirror) sid main"
    : >"$folder.part/status"
    # As if nothing were installed: every library comes along.
    apt-get "${APT_OPTIONS[@]}" -o Dir::State::status="$folder.part/status" -o Dir::Cache::archives="$folder.part/archives" \
      install --yes --no-install-recommends --download-only buildbox >>"$LOGS/apt.log" 2>&1 ||
      die "apt-get install buildbox failed, see $LOGS/apt.log"
    for archive in "$folder.part"/archives/*.deb; do dpkg-deb --extract "$archive" "$folder.part"; done
    rm -rf "$folder.part"/{archives,status,etc,usr/share} "$folder.part/usr/bin/buildbox-fuse"
    cat >"$folder.part/run" <<'TEXT'
#!/bin/sh
# run PROGRAM ARGUMENT… : a program of this folder with its own libraries and dynamic loader.
here=$(cd "$(dirname "$0")" && pwd)
program=$1
shift
exec "$here/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2" --library-path "$here/usr/lib/x86_64-linux-gnu" \
  --argv0 "$program" "$here/usr/bin/$program" "$@"
TEXT
    chmod 0755 "$folder.part/run"
    mv "$folder.part" "$folder"
  fi
  printf '%s\n' "$folder"
}
