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
    # One at a time on this machine. The lists of a fresh one are absent or old, and an old one asks for files that are gone.
    exec 6>>"$STORE/apt.lock"
    flock --timeout 1800 6 &&
      timeout 600 apt-get update -qq &&
      DEBIAN_FRONTEND=noninteractive timeout 1800 apt-get install -qq -y --no-install-recommends "$@"
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

# remove PATH... : with all below, but nothing of another file system; and nothing at all where something is mounted.
remove() {
  local path
  for path in "$@"; do
    [[ -e $path ]] || continue
    ! mounted "$path" || die "$path: something is mounted there, see \`findmnt\`; unmount it first"
    rm -rf --one-file-system "$path"
  done
}
mounted() {
  awk -v path="$1" '$5 == path || index($5, path "/") == 1 { found = 1 } END { exit !found }' /proc/self/mountinfo
}

# stored NAME FUNCTION ARGUMENT... : sets STORED to a folder of the machine's store. If no clone has done so yet,
# `FUNCTION FOLDER ARGUMENT...` fills it. Its name has a hash of both, so that another recipe is another folder.
stored() {
  local name=$1 fill=$2 hash
  shift 2
  hash=$({ declare -f "$fill" && printf '%s\n' "$@"; } | sha256sum)
  STORED=$STORE/$name-${hash:0:12}
  if [[ ! -e $STORED ]]; then
    exec 6>>"$STORE/lock"
    flock --timeout 3600 6 || die "another bed holds $STORE/lock for an hour"
    if [[ ! -e $STORED ]]; then
      say "fetching $name (once for this machine)"
      remove "$STORED.part"
      mkdir "$STORED.part"
      "$fill" "$STORED.part" "$@"
      mv -T "$STORED.part" "$STORED"
    fi
    exec 6>&-
  fi
  touch "$STORED" # `sweep` removes what nobody has used for long
}

# room GIB FOLDER: ends the call if there is less on that folder's disk.
room() {
  local free
  free=$(df --output=avail -B1M "$2" | tail -n 1)
  ((free >= $1 * 1024)) || die "$((free / 1024)) GB are free on the disk of $2, and up to $1 GB are needed." \
    "\`make clean\` removes what earlier runs left"
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
  setsid "$@" >"$LOGS/$name.log" 2>&1 </dev/null 6>&- 7>&- 8>&- 9>&- &
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
  rm -f "$RUN/$name.pid"
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
  # On a busy machine one answer may be late.
  alive "$name" && wait_for 5 "$@"
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

# port_free ADDRESS PORT WHAT: a port that answers before our service was started belongs to somebody else.
port_free() {
  ! listening "$1" "$2" || die "port $2 on $1 is taken by another program: $(ss -Hltnp "sport = :$2" | sed 's/.* //'); $3"
}
