# What stands beside the engine: a registry for the stand-in images, and a file server for what tests download.
# shellcheck shell=bash

REGISTRY_CONTAINER=tfdock-bed-registry-${BED_HASH:0:6}
# Chosen when it starts. 5552 is the file server's: the miniature TensorFlow names it, as the real one names its mirrors.
REGISTRY_PORTS=(5551 {5553..5599})
DOWNLOADS_PORT=5552
[[ ! -s $RUN/registry.port ]] || REGISTRY_PORT=$(<"$RUN/registry.port")

registry_answers() { [[ ${REGISTRY_PORT:-} && $(http_status GET 127.0.0.1 "$REGISTRY_PORT" /v2/) == 200 ]]; }

registry_in_container() {
  [[ -e $RUN/registry.container ]] && command -v docker >/dev/null &&
    [[ $(docker ps --quiet --filter "name=^$REGISTRY_CONTAINER\$" 2>/dev/null) ]]
}

registry_up() {
  if { alive registry || registry_in_container; } && registry_answers; then
    say "registry: 127.0.0.1:$REGISTRY_PORT is up"
    return 0
  fi
  # Another bed that starts now may take a port that was free: then the next one.
  for REGISTRY_PORT in "${REGISTRY_PORTS[@]}"; do
    ! listening 127.0.0.1 "$REGISTRY_PORT" || continue
    if registry_start; then
      say "registry: started on 127.0.0.1:$REGISTRY_PORT"
      return 0
    fi
    stop registry
  done
  die "the registry does not start, see $LOGS/registry.log"
}

# registry_start: on REGISTRY_PORT; fails where it does not run.
registry_start() {
  printf '%s\n' "$REGISTRY_PORT" >"$RUN/registry.port"
  if is_root || command -v docker-registry >/dev/null; then
    need docker-registry docker-registry
    # A folder for each recipe of the images, which all beds of this machine fill and read.
    mkdir -p "$STORE/registry-$(recipe)"
    touch "$STORE/registry-$(recipe)"
    cat >"$RUN/registry.yml" <<YAML
version: 0.1
log: {level: warn}
storage:
  filesystem: {rootdirectory: "$STORE/registry-$(recipe)"}
  delete: {enabled: true}
http: {addr: "127.0.0.1:$REGISTRY_PORT"}
YAML
    start registry docker-registry serve "$RUN/registry.yml"
    serving registry registry_answers
  else
    # Without root, the engine that pulled the base layer can pull a registry as well.
    docker rm --force "$REGISTRY_CONTAINER" >/dev/null 2>&1 || true
    docker run --detach --name "$REGISTRY_CONTAINER" --publish "127.0.0.1:$REGISTRY_PORT:5000" \
      --volume "$REGISTRY_CONTAINER:/var/lib/registry" registry:2 >"$LOGS/registry.log" 2>&1 || return 1
    touch "$RUN/registry.container"
    wait_for 60 registry_answers || die "the registry's container does not answer on port $REGISTRY_PORT"
  fi
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
downloads_answer() { [[ $(http_status HEAD 127.0.0.1 "$DOWNLOADS_PORT" /minimath-1.0.tar.gz) == 200 ]]; }

downloads_up() {
  alive downloads || downloads_answer || port_free 127.0.0.1 "$DOWNLOADS_PORT" "stop it first"
  if alive downloads; then
    say "downloads: $(downloads_url) is up"
    return 0
  fi
  need python3 python3
  start downloads "$HERE/file-server" "$REPOSITORY/tests/miniature/downloads" "$DOWNLOADS_PORT"
  serving downloads downloads_answer || die "the file server does not start, see $LOGS/downloads.log"
  say "downloads: started on $(downloads_url)"
}
