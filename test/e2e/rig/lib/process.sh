# shellcheck shell=bash
# Background processes: each in a session of its own, with a log, a file that
# holds its id, and a mark in its environment that its descendants inherit.

readonly MARK=STANDALONE_CINDER_RIG

elapsed() {
  local microseconds=$((${EPOCHREALTIME/[.,]/} - STARTED))
  printf '%d.%d' $((microseconds / 1000000)) $((microseconds / 100000 % 10))
}

say() {
  printf '[%5s s] %s\n' "$(elapsed)" "$*"
}

die() {
  printf 'rig.sh: %s\n' "$*" >&2
  exit 1
}

# become COMMAND...: replaces this (sub)shell by the command, in the rig's
# environment, so that a later stop finds it and whatever it started.
become() {
  # The lock on the state directory must not live on in a service.
  exec 9>&-
  cd "$STATE"
  export "$MARK=$STATE" PATH="$STATE/bin:$PATH" TMPDIR="$STATE/tmp" HOME="$STATE/data"
  export PYTHONPATH="$STATE/driver" PYTHONDONTWRITEBYTECODE=1
  unset http_proxy https_proxy HTTP_PROXY HTTPS_PROXY
  exec "$@"
}

# launch NAME COMMAND...: starts a service in the background.
launch() {
  local name=$1
  shift
  become setsid "$@" </dev/null >>"$STATE/log/$name.log" 2>&1 &
  printf '%s\n' $! >"$STATE/run/$name.pid"
}

# once NAME COMMAND...: runs a command to its end; its output goes to a log.
once() {
  local name=$1
  shift
  (become "$@") </dev/null >>"$STATE/log/$name.log" 2>&1 || {
    complain "$name"
    return 1
  }
}

complain() {
  printf 'rig.sh: %s failed; the end of its log (%s):\n' "$1" "$STATE/log/$1.log" >&2
  tail -n 25 "$STATE/log/$1.log" >&2 || true
}

running() {
  local pid
  pid=$(cat "$STATE/run/$1.pid" 2>/dev/null) || return 1
  is_marked "$pid"
}

is_marked() {
  grep -qzxF -- "$MARK=$STATE" "/proc/$1/environ" 2>/dev/null
}

# Process ids of everything that belongs to this state directory.
marked_processes() {
  local file
  # Processes end while they are being looked at.
  { grep -lzxF -- "$MARK=$STATE" /proc/[0-9]*/environ 2>/dev/null || true; } |
    while IFS=/ read -r _ _ file _; do
      printf '%s\n' "$file"
    done
}

# wait_for NAME SECONDS COMMAND...: waits until the command succeeds. Gives up
# when the time is over or the service NAME has died.
wait_for() {
  local name=$1 deadline=$((SECONDS + $2))
  shift 2
  until "$@" >/dev/null 2>&1; do
    # Not "running": a process bears the mark only once it has been replaced
    # by its command.
    if ! kill -0 "$(cat "$STATE/run/$name.pid")" 2>/dev/null; then
      complain "$name"
      die "$name ended before it was ready"
    fi
    if ((SECONDS >= deadline)); then
      complain "$name"
      die "$name was not ready in time"
    fi
    sleep 0.1
  done
}

port_open() {
  (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null
}

signal_all() {
  local signal=$1 pid
  shift
  for pid in "$@"; do
    kill -s "$signal" "$pid" 2>/dev/null || true
  done
}

# wait_gone SECONDS PID...: waits until none of the processes is left; fails
# after that many seconds.
wait_gone() {
  local deadline=$((SECONDS + $1)) pid
  shift
  for pid in "$@"; do
    while is_marked "$pid"; do
      ((SECONDS < deadline)) || return 1
      sleep 0.05
    done
  done
}

stop_everything() {
  local processes database
  database=$(cat "$STATE/run/mariadb.pid" 2>/dev/null) || database=none
  # tgtd ignores SIGTERM.
  if running tgtd; then
    signal_all KILL "$(cat "$STATE/run/tgtd.pid")"
  fi
  mapfile -t processes < <(marked_processes | grep -vxF -- "$database")
  signal_all TERM "${processes[@]}"
  wait_gone 5 "${processes[@]}" || true
  # The database goes last, and gets time to stop cleanly: its data may be kept.
  if running mariadb; then
    signal_all TERM "$database"
    wait_gone 20 "$database" || true
  fi
  local attempt
  for attempt in 1 2 3 4 5; do
    mapfile -t processes < <(marked_processes)
    ((${#processes[@]})) || break
    signal_all KILL "${processes[@]}"
    wait_gone 2 "${processes[@]}" || true
  done
  mapfile -t processes < <(marked_processes)
  ((${#processes[@]} == 0)) || die "these processes do not end: ${processes[*]}"
  rm -rf "${STATE:?}/run"
}
