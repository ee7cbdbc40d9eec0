# The world: namespaces of processes and of mounts in which all of a bed lives, commands too. A keeper, its first
# process, ends it when nobody uses it any more: whatever kills a command, its engines, containers, mounts and small
# disks are gone. Where the engine is the machine's own, the keeper stops what the bed has started instead.
# shellcheck shell=bash

# What commands in a world write by the way; the folder ends with it.
TEMPORARY=/tmp/tfdock-${BED_HASH:0:8}

# Every user holds this lock, shared, as long as it lives: the kernel drops it with the process. The keeper waits for it.
hold() {
  exec 8>>"$RUN/users"
  flock --shared --nonblock 8 && return 0
  say "waiting for the end of the last bed"
  flock --shared --timeout 300 8 || die "the last bed does not end, see $LOGS/world.log"
}

# Held while something is started or stopped.
lock() {
  exec 9>>"$RUN/lock"
  flock --nonblock 9 && return 0
  say "waiting for another bed call"
  flock --timeout 1800 9 || die "another bed call does not end; it holds $RUN/lock"
}
unlock() { exec 9>&-; }

inside() { [[ ${TFDOCK_BED_WORLD:-} == "$BED" ]]; }

# world_up: for those who hold both locks.
world_up() {
  local wrapper=()
  # A keeper that has dropped its lock is about to end.
  [[ ! -e $RUN/ending ]] || wait_for 60 gone world || die "the last bed does not end, see $LOGS/world.log"
  ! alive world || return 0
  rm -f "$RUN"/*.{pid,container} "$RUN"/{first,ending}
  remove "$TEMPORARY" "$RUN"/*.exec
  if is_root && ! machine_engine >/dev/null; then
    wrapper=(unshare --mount --propagation slave --pid --fork --kill-child --mount-proc --)
  fi
  start world "${wrapper[@]}" "$HERE/bed" keeper
  ((${#wrapper[@]} == 0)) || wait_for 30 first_process || die "no namespaces here, see $LOGS/world.log"
}

# The keeper's pid as this machine sees it: the one child of `unshare`.
first_process() {
  local pid
  pid=$(pid_of world) && pid=$(child_of "$pid") && printf '%s\n' "$pid" >"$RUN/first"
}

child_of() {
  local children
  children=$(<"/proc/$1/task/$1/children") && [[ $children ]] && printf '%s\n' "${children%% *}"
} 2>/dev/null

command_keeper() {
  # Engines have mount namespaces of their own, which must see what tests mount.
  [[ $$ != 1 ]] || mount --make-rshared /
  exec 8>>"$RUN/users"
  flock --exclusive 8
  touch "$RUN/ending"
  # First the commands that outlived their `bed run`, and the engines that they have started.
  grep -lsF "TMPDIR=$TEMPORARY" /proc/[0-9]*/environ | cut -d/ -f3 | xargs --no-run-if-empty kill -KILL || true
  down
  awk -v below="$TEMPORARY/" 'index($5, below) == 1 { print $5 }' /proc/self/mountinfo | tac | xargs -r umount --lazy
  remove "$TEMPORARY"
}

# within COMMAND... : runs it in the world, and returns its status. A signal to this call reaches the command.
within() {
  local child status=0 told=1 enter=()
  [[ ! -e $RUN/first ]] || enter=(nsenter --target "$(<"$RUN/first")" --mount --pid --)
  exec 7<&0
  (
    # nsenter must not die before the command.
    trap '' INT TERM HUP
    exec "${enter[@]}" env --default-signal=INT,TERM,HUP,QUIT --chdir="$PWD" TFDOCK_BED_WORLD="$BED" "$@"
  ) <&7 7<&- 8>&- 9>&- &
  child=$!
  trap 'told=1; tell INT "$child"' INT
  trap 'told=1; tell TERM "$child"' TERM HUP
  # `wait` returns early at every signal; the command's end is what counts.
  while [[ $told ]]; do
    told=
    wait "$child" && status=0 || status=$?
  done
  trap - INT TERM HUP
  return "$status"
}

# tell SIGNAL PID: Ctrl-C at a terminal has reached a command of the foreground group already, a `kill -INT` has not.
tell() {
  local stat pid=$2
  stat=$(<"/proc/$$/stat")
  read -ra stat <<<"${stat##*) }"
  [[ $1 != INT || ${stat[2]} != "${stat[5]}" ]] || return 0
  [[ ! -e $RUN/first ]] || pid=$(child_of "$pid") || return 0
  kill "-$1" "$pid" 2>/dev/null || true
}

# leave: the last user waits until all is down.
leave() {
  local try
  exec 8>&- 9>&-
  for try in {1..20}; do
    alive world || return 0
    flock --shared --nonblock "$RUN/users" true || break
    sleep 0.1
  done
  ((try == 20)) || wait_for 120 gone world || say "the bed does not end, see $LOGS/world.log"
}
