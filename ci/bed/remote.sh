# Servers that Bazel's remote caches and executors are tried against. The bed only makes them ready: tests start their own.
# shellcheck shell=bash

# The server and what it forgets to ask for: its SQLAlchemy wants a driver for PostgreSQL.
BUILDGRID=(buildgrid==0.4.4 psycopg2-binary)

# nginx_programs: nginx, which can be an HTTP cache; prints its path. Debian's package is not started.
nginx_programs() {
  need nginx nginx-light
  command -v nginx
}

# `bed postgres`: an image of PostgreSQL in the engine of DOCKER_HOST, otherwise the bed's; prints its name.
command_postgres() {
  lock
  engine_select || die "the bed is not up: run \`$0 up\`"
  export DOCKER_HOST=${DOCKER_HOST:-$ENGINE_HOST}
  network_select "$DOCKER_HOST"
  base_layer
  docker_build tfdock-bed/postgres:bookworm postgres
  printf '%s\n' tfdock-bed/postgres:bookworm
}

# buildgrid_programs: BuildGrid in an environment of its own; prints its Python, for `-m buildgrid.server.app.cli`.
buildgrid_programs() {
  need python3 python3
  stored buildgrid fill_buildgrid "${BUILDGRID[@]}"
  printf '%s\n' "$STORED/bin/python"
}

fill_buildgrid() {
  python3 -m venv "$1"
  fetched "${*:2}" "$1/bin/python" -m pip install --quiet --disable-pip-version-check "${@:2}"
}

# buildbox_programs: the worker of remote execution, out of Debian sid with all its libraries; prints the folder.
# `<folder>/run PROGRAM` runs one in any Linux. Without buildbox-fuse casd stages files itself.
buildbox_programs() {
  stored buildbox fill_buildbox
  printf '%s\n' "$STORED"
}

fill_buildbox() {
  local archive
  private_apt "$1" sid main
  mkdir -p "$1/archives/partial"
  : >"$1/status"
  # As if nothing were installed: every library comes along.
  fetched buildbox apt-get "${APT_OPTIONS[@]}" -o Dir::State::status="$1/status" -o Dir::Cache::archives="$1/archives" \
    install --yes --no-install-recommends --download-only buildbox
  for archive in "$1"/archives/*.deb; do dpkg-deb --extract "$archive" "$1"; done
  rm -rf "$1"/{apt,archives,status,etc,usr/share} "$1/usr/bin/buildbox-fuse"
  cat >"$1/run" <<'TEXT'
#!/bin/sh
# run PROGRAM ARGUMENT… : a program of this folder with its own libraries and dynamic loader.
here=$(cd "$(dirname "$0")" && pwd)
program=$1
shift
exec "$here/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2" --library-path "$here/usr/lib/x86_64-linux-gnu" \
  --argv0 "$program" "$here/usr/bin/$program" "$@"
TEXT
  chmod 0755 "$1/run"
}
