# Small parts that every bed command shares: messages, packages, processes, ports.
# Sourced by `bed`; expects BED, RUN and LOGS to be set.
# shellcheck shell=bash

say() { printf 'bed: %s\n' "$*" >&2; }
die() {
  printf 'bed: error: %s\n' "$*" >&2
  exit 1
}

is_root() { [[ $EUID -eq 0 ]]; }

# need COMMAND PACKAGE... : the command is on PATH, or its Debian packages get installed, or one clear message.
need() {
  local command=$1
  shift
  command -v "$command" >/dev/null && return 0
  if ! is_root || ! command -v apt-get >/dev/null; then
    die "\`$command\` is missing: install the Debian package(s) $* (or run this as root on Debian)"
  fi
  say "installing $*"
  (
    # Debian's packages start their services; the bed wants its own engine and registry, and no other.
    if [[ ! -e /usr/sbin/policy-rc.d ]]; then
      trap 'rm -f /usr/sbin/policy-rc.d' EXIT
      printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
      chmod +x /usr/sbin/policy-rc.d
    fi
    # The lists of a fresh machine are absent or old, and an old one asks for files that are gone.
    apt-get update -qq &&
      DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$@"
  ) >>"$LOGS/apt.log" 2>&1 </dev/null || die "apt-get install $* failed, see $LOGS/apt.log"
  hash -r
}

# The Debian mirror of this machine, from its own apt configuration whatever the format of that is.
# No host name is written down in this repository.
debian_mirror() {
  local mirror
  # shellcheck disable=SC2016  # $(ORIGIN) and the others are apt's, not the shell's
  mirror=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(LABEL)' 'Created-By: Packages' |
    awk '$2 !~ /-/ && ($3 == "Debian" || $3 == "") && !found { print $1; found = 1 }')
  # Cloud images name a file that holds the mirrors instead of a mirror.
  if [[ $mirror == mirror+file:* ]]; then
    mirror=$(awk '/^[a-z]+:/ { print $1; exit }' "${mirror#mirror+file:}")
  fi
  [[ $mirror ]] || die "this machine's apt sources name no Debian mirror"
  printf '%s\n' "${mirror%/}"
}

# A pid alone is not an identity: pids are used again. Boot, start time and pid together are.
identity() {
  local stat
  stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
  stat=${stat##*) } # the command's name may hold blanks, so count fields from behind it
  read -ra stat <<<"$stat"
  [[ ${stat[0]} != Z ]] || return 1
  printf '%s %s %s\n' "$1" "${stat[19]}" "$(</proc/sys/kernel/random/boot_id)"
}

# pid_of NAME: the pid of a service this bed started, when it is still that very process.
pid_of() {
  local pid rest
  [[ -s $RUN/$1.pid ]] && read -r pid rest <"$RUN/$1.pid" || return 1
  [[ $(identity "$pid") == "$pid $rest" ]] || return 1
  printf '%s\n' "$pid"
}

alive() { pid_of "$1" >/dev/null; }

# start NAME COMMAND... : a service of its own session, so that Ctrl-C at the caller's terminal does not reach it.
# The lock descriptors are closed for it, or it would hold the locks as long as it lives.
start() {
  local name=$1
  shift
  setsid "$@" >"$LOGS/$name.log" 2>&1 </dev/null 8>&- 9>&- &
  identity $! >"$RUN/$name.pid" || die "$name did not start, see $LOGS/$name.log"
}

# stop NAME: end that process, nothing else; SIGKILL only when it does not listen.
stop() {
  local name=$1 pid
  if pid=$(pid_of "$name"); then
    kill -TERM "$pid"
    if ! wait_for 30 gone "$name"; then
      say "$name does not stop, killing pid $pid"
      kill -KILL "$pid"
      wait_for 5 gone "$name" || die "$name (pid $pid) cannot be stopped"
    fi
    say "$name stopped"
  fi
  rm -f "$RUN/$name.pid" "$RUN/$name.keep"
}

gone() { ! alive "$1"; }

# wait_for SECONDS COMMAND... : asks every tenth of a second.
# (`return 0` and not `return`: inside a trap the latter means the status from before the trap.)
wait_for() {
  local tries=$(($1 * 10))
  shift
  while ((tries-- > 0)); do
    "$@" && return 0
    sleep 0.1
  done
  return 1
}

# serving NAME COMMAND... : waits until COMMAND says yes; a service that died is not waited for.
serving() {
  local name=$1
  shift
  wait_for 60 answered_or_dead "$name" "$@"
  alive "$name" && "$@"
}

answered_or_dead() {
  local name=$1
  shift
  "$@" || ! alive "$name"
}

# listening ADDRESS PORT. No curl on a fresh machine: bash speaks TCP well enough.
listening() { (exec 3<>"/dev/tcp/$1/$2") 2>/dev/null; }

# http_status METHOD ADDRESS PORT PATH [HEADER]
http_status() {
  (
    exec 3<>"/dev/tcp/$2/$3" || exit 1
    printf '%s %s HTTP/1.0\r\nHost: %s:%s\r\n%s\r\n\r\n' "$1" "$4" "$2" "$3" "${5:-Accept: */*}" >&3
    read -r -t 5 _ status _ <&3 && printf '%s\n' "$status"
  ) 2>/dev/null
}

# A port that answers before our service was started belongs to somebody else.
port_free() {
  ! listening "$1" "$2" || die "port $2 on $1 is taken by another program;" \
    "$([[ ${3:-} ]] && echo "choose another with $3=PORT" || echo "stop it first")"
}
