# The engines: the machine's own, else a private one; and a second, newer one for contract tests.
# shellcheck shell=bash

engine_answers() { docker --host "$1" version >/dev/null 2>&1; }

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
  need dockerd docker.io
  need docker docker.io # newer Debian packs the client apart: docker-cli
  need ip iproute2
  need iptables iptables
  engine_start engine dockerd
  engine_select || die "the engine started but does not answer"
  say "engine: started dockerd $(docker --host "$ENGINE_HOST" version --format '{{.Server.Version}}')" \
    "(network: $ENGINE_NETWORK)"
}

# engine_start NAME COMMAND... : a dockerd with everything of its own: socket, data, containerd and bridge.
engine_start() {
  local name=$1 network try
  shift
  network=(--bridge=none)
  # A bridge of our own: dockerd's default, docker0, belongs to the machine's engine, and any dockerd with
  # --bridge=none deletes it. Without --iptables the daemon leaves the machine's firewall alone too.
  if bridge_up "$name"; then network=(--bridge="$(bridge_name "$name")"); fi
  mkdir -p "$BED/$name/data"
  # After a kill -9 the first start may fail on what is left of the old one, and clears it away.
  for try in 1 2; do
    clear_stale_containerd "$name"
    rm -f "$RUN/$name.dockerd.pid"
    start "$name" "$@" --host "unix://$RUN/$name.sock" --data-root "$BED/$name/data" \
      --exec-root "$RUN/$name.exec" --pidfile "$RUN/$name.dockerd.pid" \
      "${network[@]}" --iptables=false --ip6tables=false --ip-masq=false
    ! serving "$name" engine_answers "unix://$RUN/$name.sock" || return 0
    say "$name: start $try failed"
  done
  stop "$name"
  bridge_down "$name"
  die "$name: dockerd does not start, see $LOGS/$name.log"
}

engine_down() {
  local name=$1
  shift
  # A dockerd that was killed leaves containers and mounts behind. It knows best how to end them.
  if ! alive "$name" && engine_remains "$name"; then
    say "$name: died and left containers or mounts behind, starting it once more to clear them away"
    engine_start "$name" "$@"
  fi
  stop "$name"
  bridge_down "$name"
  unmount_remains "$name"
}

# What dockerd leaves mounted: the network namespace of `--network host`, and, when one was killed, its data folder
# bound onto itself. (A disk that somebody mounted there shows its root, `/`, in the fourth field.)
unmount_remains() {
  awk -v data="$BED/$1/data" -v run="$RUN/$1.exec/" \
    'index($5, run) == 1 || ($5 == data && $4 != "/") { print $5 }' /proc/self/mountinfo |
    while read -r mounted; do umount "$mounted"; done
}

engine_remains() {
  grep -qsF "$RUN/$1.exec/" /proc/[0-9]*/cmdline || grep -qF " $BED/$1/data/" /proc/self/mounts
}

# dockerd trusts this file: a process that has the number by chance would be taken for its containerd.
clear_stale_containerd() {
  local file=$RUN/$1.exec/containerd/containerd.pid
  [[ -e $file ]] || return 0
  grep -qsF "$RUN/$1.exec/" "/proc/$(<"$file")/cmdline" || rm -f "$file"
}

# Names and addresses follow from the folder's name, so that two beds on one machine do not meet.
bridge_name() { printf 'tfdock%s-%.6s\n' "${1#engine}" "$BED_HASH"; }
bridge_subnet() {
  local second=29
  [[ $1 == engine ]] || second=30
  printf '172.%d.%d\n' "$second" $((16#${BED_HASH:0:2}))
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

# --- the second engine: Debian sid's docker.io, in a root of its own -------------------------------------------------

ENGINE28_ROOT=$BED/engine28/root

engine28_root() {
  [[ -e $ENGINE28_ROOT/.complete ]] && return 0
  need debootstrap debootstrap
  say "engine28: making a Debian sid root with docker.io (once)"
  bootstrap sid "$ENGINE28_ROOT" --include=docker.io,iptables,ca-certificates
  touch "$ENGINE28_ROOT/.complete"
}

engine28_up() {
  local host=unix://$RUN/engine28.sock
  if alive engine28; then
    say "engine28: $host is up"
    return 0
  fi
  is_root || die "engine28 needs root"
  need docker docker.io
  need ip iproute2
  need iptables iptables
  engine28_root
  engine_start engine28 "$HERE/in-root" "$ENGINE28_ROOT" dockerd
  say "engine28: started dockerd $(docker --host "$host" version --format '{{.Server.Version}}')"
}

engine28_down() { engine_down engine28 "$HERE/in-root" "$ENGINE28_ROOT" dockerd; }
