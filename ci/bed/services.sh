# What stands beside the engine: a registry for the stand-in images, and a file server for what tests download.
# shellcheck shell=bash

REGISTRY_CONTAINER=tfdock-bed-registry-${BED_HASH:0:6}

registry_answers() { [[ $(http_status GET 127.0.0.1 "$REGISTRY_PORT" /v2/) == 200 ]]; }

registry_in_container() {
  [[ -e $RUN/registry.container ]] && command -v docker >/dev/null &&
    [[ $(docker ps --quiet --filter "name=^$REGISTRY_CONTAINER\$" 2>/dev/null) ]]
}

registry_up() {
  if { alive registry || registry_in_container; } && registry_answers; then
    say "registry: 127.0.0.1:$REGISTRY_PORT is up"
    return 0
  fi
  port_free 127.0.0.1 "$REGISTRY_PORT" TFDOCK_BED_REGISTRY_PORT
  if is_root || command -v docker-registry >/dev/null; then
    need docker-registry docker-registry
    mkdir -p "$BED/registry"
    cat >"$RUN/registry.yml" <<YAML
version: 0.1
log: {level: warn}
storage:
  filesystem: {rootdirectory: "$BED/registry"}
  delete: {enabled: true}
http: {addr: "127.0.0.1:$REGISTRY_PORT"}
YAML
    start registry docker-registry serve "$RUN/registry.yml"
    serving registry registry_answers || die "the registry does not start, see $LOGS/registry.log"
  else
    # Without root, the engine that pulled the base layer can pull a registry as well.
    docker rm --force "$REGISTRY_CONTAINER" >/dev/null 2>&1 || true
    docker run --detach --name "$REGISTRY_CONTAINER" --publish "127.0.0.1:$REGISTRY_PORT:5000" \
      --volume "$REGISTRY_CONTAINER:/var/lib/registry" registry:2 >"$LOGS/registry.log" 2>&1 ||
      die "the registry does not start, see $LOGS/registry.log"
    touch "$RUN/registry.container"
    wait_for 60 registry_answers || die "the registry's container does not answer on port $REGISTRY_PORT"
  fi
  say "registry: started on 127.0.0.1:$REGISTRY_PORT"
}

registry_down() {
  if registry_in_container; then
    docker rm --force "$REGISTRY_CONTAINER" >/dev/null
    say "registry stopped"
  fi
  rm -f "$RUN/registry.container"
  stop registry
}

downloads_url() { printf 'http://127.0.0.1:%s\n' "$DOWNLOADS_PORT"; }
downloads_answer() { [[ $(http_status HEAD 127.0.0.1 "$DOWNLOADS_PORT" /) == 200 ]]; }

downloads_up() {
  mkdir -p "$BED/downloads"
  [[ ! -d $REPOSITORY/tests/miniature/downloads ]] ||
    cp -R "$REPOSITORY/tests/miniature/downloads/." "$BED/downloads/"
  if alive downloads && downloads_answer; then
    say "downloads: $(downloads_url) is up"
    return 0
  fi
  stop downloads
  port_free 127.0.0.1 "$DOWNLOADS_PORT"
  need python3 python3
  start downloads python3 -m http.server --bind 127.0.0.1 --directory "$BED/downloads" "$DOWNLOADS_PORT"
  serving downloads downloads_answer || die "the file server does not start, see $LOGS/downloads.log"
  say "downloads: started on $(downloads_url)"
}
