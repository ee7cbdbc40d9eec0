# The engines: the machine's own, else a private one; and the variants that tests start: newer, stricter, other ones.
# shellcheck shell=bash

# Each engine: its name, what starts it (a function below), variables, and options of dockerd. The first is the bed's own,
# the second one of the same kind for a second process that tests.
ENGINES=(
  "engine private_dockerd"
  "second private_dockerd"
  "docker28 sid_dockerd"
  "docker28-containerd sid_dockerd DOCKER_MIN_API_VERSION=1.44 --feature=containerd-snapshotter=true"
  # Its containers' root must get to its data, and nobody else's root gets through /root.
  "docker28-userns sid_dockerd --userns-remap=default --data-root=/docker-data"
  "rootless rootless_dockerd"
  "podman podman_service"
)
VARIANTS=("${ENGINES[@]:1}")
VARIANTS=("${VARIANTS[@]%% *}")

engine_answers() { timeout 10 docker --host "$1" version >/dev/null 2>&1; }

# The machine's own engine is good enough when it has the base layer or can pull it; then nothing is started.
machine_engine() {
  local host
  command -v docker >/dev/null || return 1
  for host in "${DOCKER_HOST:-}" unix:///var/run/docker.sock; do
    [[ $host && $host != "unix://$RUN/"* ]] || continue
    engine_answers "$host" || continue
    docker --host "$host" image inspect "$HUB_BASE" >/dev/null 2>&1 ||
      timeout 120 docker --host "$host" pull -q "$HUB_BASE" >/dev/null 2>&1 || continue
    printf '%s\n' "$host"
    return 0
  done
  return 1
}

# engine_select: sets ENGINE_HOST and ENGINE_NETWORK.
engine_select() {
  if alive engine; then
    ENGINE_HOST=unix://$RUN/engine.sock
  elif ! ENGINE_HOST=$(machine_engine); then
    ENGINE_HOST=
    return 1
  fi
  network_select "$ENGINE_HOST"
}

# For the bed's own image builds. `host` where the engine runs without a bridge.
network_select() {
  ENGINE_NETWORK=host
  [[ ! $(docker --host "$1" network ls --quiet --filter name='^bridge$') ]] || ENGINE_NETWORK=bridge
}

engine_up() {
  if engine_select; then
    say "engine: $ENGINE_HOST is up (network: $ENGINE_NETWORK)"
    return 0
  fi
  is_root || die "no container engine answers, or it cannot pull $HUB_BASE." \
    "Install Docker and join its group, or run this as root on Debian to start a private one"
  engine_start engine
  engine_select || die "the engine started but does not answer"
  say "engine: network: $ENGINE_NETWORK"
}

# variant_up NAME: a second engine, beside the bed's own.
variant_up() {
  if alive "$1"; then
    say "$1: $(host_of "$1") is up"
    return 0
  fi
  is_root || die "$1 needs root"
  engine_start "$1"
}

# Only root can reach the others; the user of the rootless engine has a folder for its socket.
host_of() {
  case $1 in
    rootless) printf 'unix://%s/rootless/docker.sock\n' "$RUN" ;;
    *) printf 'unix://%s/%s.sock\n' "$RUN" "$1" ;;
  esac
}

# engine_start NAME: with everything of its own: socket, data and bridge.
engine_start() {
  local name=$1 words
  for words in "${ENGINES[@]}"; do [[ $words != "$name "* ]] || break; done
  read -ra words <<<"$words"
  need docker docker.io # newer Debian packs the client apart: docker-cli
  mkdir -p "$BED/$name/data"
  engine_clear "$name"
  remove "$RUN/$name.exec"
  "${words[1]}" "$name" "${words[@]:2}"
  if serving "$name" engine_answers "$(host_of "$name")"; then
    say "$name: started $(docker --host "$(host_of "$name")" version --format '{{.Server.Version}}')"
    return 0
  fi
  engine_down "$name"
  die "$name does not start, see $LOGS/$name.log: $(tail -n 1 "$LOGS/$name.log")"
}

private_dockerd() {
  need dockerd docker.io
  start_dockerd "$1" -- "${@:2}"
}

# Debian sid's docker.io, in a root of its own that sees this machine's files.
sid_dockerd() {
  need debootstrap debootstrap
  stored sid-docker28 fill_sid_docker28
  start_dockerd "$1" "$HERE/in-root" "$STORED" "$BED/$1" -- "${@:2}"
}

fill_sid_docker28() {
  bootstrap sid "$1" --include=docker.io,iptables,ca-certificates
  chroot "$1" dockerd --version | grep -q ' 28\.' || die "Debian sid has no Docker 28 any more: $(chroot "$1" dockerd --version)"
}

# start_dockerd NAME WRAPPER... -- VARIABLE... OPTION...
start_dockerd() {
  local name=$1 network=(--bridge=none) wrapper=() variables=()
  shift
  while [[ $1 != -- ]]; do wrapper+=("$1") && shift; done
  shift
  while [[ ${1:-} == *=* && $1 != --* ]]; do variables+=("$1") && shift; done
  need ip iproute2
  need iptables iptables
  # A bridge of our own: dockerd's default, docker0, belongs to the machine's engine, and any dockerd with
  # --bridge=none deletes it. Without --iptables the daemon leaves the machine's firewall alone too.
  if bridge_up "$name"; then network=(--bridge="$(bridge_name "$name")"); fi
  rm -f "$RUN/$name.dockerd.pid"
  start "$name" "${wrapper[@]}" env "${variables[@]}" dockerd --host "$(host_of "$name")" \
    --data-root "$BED/$name/data" --exec-root "$RUN/$name.exec" --pidfile "$RUN/$name.dockerd.pid" \
    "${network[@]}" --iptables=false --ip6tables=false --ip-masq=false "$@"
}

# Docker without root. It reaches our registry and file server through ports of its own network.
rootless_dockerd() {
  need dockerd docker.io
  need rootlesskit rootlesskit
  need slirp4netns slirp4netns
  need newuidmap uidmap
  need socat socat
  need setpriv util-linux
  start "$1" "$HERE/rootless" "$BED/$1/data" "$RUN/$1" "$REGISTRY_PORT" "$DOWNLOADS_PORT"
}

# podman's service speaks Docker's protocol. Its settings are its own, so the machine's podman keeps its containers.
podman_service() {
  need podman podman
  need runc runc
  need catatonit catatonit
  cat >"$RUN/$1.conf" <<TOML
[containers]
init_path = "$(command -v catatonit)"
[engine]
runtime = "$HERE/runc-within-limits"
cgroup_manager = "cgroupfs"
events_logger = "file"
tmp_dir = "$RUN/$1.tmp"
static_dir = "$BED/$1/static"
volume_path = "$BED/$1/volumes"
TOML
  cat >"$RUN/$1.registries" <<TOML
unqualified-search-registries = ["docker.io"]
[[registry]]
location = "127.0.0.1"
insecure = true
TOML
  # Its conmon writes a file into the folder it is started in.
  start "$1" env --chdir="$RUN" CONTAINERS_CONF="$RUN/$1.conf" CONTAINERS_REGISTRIES_CONF="$RUN/$1.registries" \
    podman --root "$BED/$1/data" --runroot "$RUN/$1.exec" system service --time=0 "$(host_of "$1")"
}

engine_down() {
  local name=$1
  # podman has no daemon whose end would stop its containers.
  if [[ $name == podman ]] && alive podman; then
    docker --host "$(host_of podman)" ps --all --quiet | xargs --no-run-if-empty \
      docker --host "$(host_of podman)" rm --force >/dev/null
  fi
  stop "$name"
  engine_clear "$name"
  bridge_down "$name"
  # Images come again from the registry in seconds. The few of a demo stay, those of a suite are gigabytes.
  if [[ $name != engine ]] || (($(megabytes "$BED/$name") > KEPT)); then remove "$BED/$name"; fi
}
KEPT=1500
megabytes() { [[ ! -e $1 ]] && echo 0 || du -sm "$1" | cut -f1; }

# engine_clear NAME: what an engine leaves that was killed, and what each leaves mounted, in this world.
engine_clear() {
  local name=$1 pid
  for pid in $(grep -lsF -e "$RUN/$name.exec/" -e "$BED/$name/data/" /proc/[0-9]*/cmdline | cut -d/ -f3); do
    kill -KILL "$pid" 2>/dev/null || true
  done
  awk -v data="$BED/$name/data" -v run="$RUN/$name.exec/" \
    'index($5, run) == 1 || index($5, data "/") == 1 || $5 == data { print $5 }' /proc/self/mountinfo |
    tac | xargs --no-run-if-empty umount --lazy
}

# Names and addresses follow from the folder's name, so that two beds on one machine do not meet.
bridge_name() { printf 'tfdock%s-%.6s\n' "$(bridge_number "$1")" "$BED_HASH"; }
bridge_subnet() { printf '172.%d.%d\n' $((29 - 0$(bridge_number "$1"))) $((16#${BED_HASH:0:2})); }
bridge_number() {
  local number
  for number in "${!ENGINES[@]}"; do
    [[ ${ENGINES[number]} != "$1 "* ]] || printf '%s\n' "${number#0}"
  done
}

bridge_up() {
  local name subnet
  name=$(bridge_name "$1")
  subnet=$(bridge_subnet "$1")
  [[ ! -e /sys/class/net/$name ]] || return 0
  if ip link add name "$name" type bridge && ip address add "$subnet.1/24" dev "$name" &&
    ip link set "$name" up && bridge_rules -I "$name" "$subnet.0/24"; then
    return 0
  fi 2>>"$LOGS/bridge.log"
  bridge_down "$1"
  say "$1: no bridge network on this machine, see $LOGS/bridge.log"
  return 1
}

bridge_rules() {
  iptables --wait -t nat "$1" POSTROUTING -s "$3" ! -o "$2" -j MASQUERADE &&
    iptables --wait "$1" FORWARD -i "$2" -j ACCEPT &&
    iptables --wait "$1" FORWARD -o "$2" -j ACCEPT
}

bridge_down() {
  local name
  name=$(bridge_name "$1")
  [[ -e /sys/class/net/$name ]] || return 0
  bridge_rules -D "$name" "$(bridge_subnet "$1").0/24" 2>/dev/null || true
  ip link delete "$name"
}
