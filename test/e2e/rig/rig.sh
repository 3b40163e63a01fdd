#!/bin/bash
# Runs a real Cinder with Keystone, Barbican, a message queue, a database and an iSCSI
# target on this machine, for the end-to-end tests. See ../README.md.

set -euo pipefail
# Servers live in directories that "su" leaves out.
PATH=$PATH:/usr/sbin:/sbin

STARTED=${EPOCHREALTIME/[.,]/}
RIG=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
STATE=${RIG_STATE:-/tmp/standalone-cinder-e2e}
RIG_CEPH=${RIG_CEPH:-0}
RIG_DEBIAN=${RIG_DEBIAN:-}
# shellcheck disable=SC2034 # by render
DEBUG=${RIG_DEBUG:-false}
# The first five are the services' usual ports.
KEYSTONE_PORT=${RIG_KEYSTONE_PORT:-5000}
NOAUTH_PORT=${RIG_NOAUTH_PORT:-8776}
CINDER_PORT=${RIG_CINDER_PORT:-8777}
ISCSI_PORT=${RIG_ISCSI_PORT:-3260}
BARBICAN_PORT=${RIG_BARBICAN_PORT:-9311}
AMQP_PORT=${RIG_AMQP_PORT:-15670}
ERLANG_PORT=${RIG_ERLANG_PORT:-15671}
EPMD_PORT=${RIG_EPMD_PORT:-15672}
CEPH_PORT=${RIG_CEPH_PORT:-6789}
CEPH_MSGR2_PORT=${RIG_CEPH_MSGR2_PORT:-3300}
# --config-dir keeps drop-in files of /etc/cinder out.
CINDER_CONFIGURATION=(--config-file "$STATE/etc/cinder.conf" --config-dir "$STATE/etc/no-policy.d")

# shellcheck source=lib/process.sh
. "$RIG/lib/process.sh"
# shellcheck source=lib/install.sh
. "$RIG/lib/install.sh"
# shellcheck source=lib/services.sh
. "$RIG/lib/services.sh"
# shellcheck source=lib/ceph.sh
. "$RIG/lib/ceph.sh"
# shellcheck source=lib/chroot.sh
. "$RIG/lib/chroot.sh"

usage() {
  cat <<'USAGE'
usage: rig.sh install           installs the packages that are missing
       rig.sh start [--keep]    stops an earlier run and starts afresh, or with its data
       rig.sh stop              stops everything; logs and data stay
       rig.sh status            what runs, and the memory it takes
       rig.sh logs [NAME]       the end of every log, or the whole of one

The state directory is RIG_STATE (default /tmp/standalone-cinder-e2e); after a
start its file "env" says where everything is. With RIG_CEPH=1, install and start
add a Ceph cluster of one node and the volume type "rbd". With RIG_DEBIAN=trixie, all
of it runs with the programs of that Debian, in a directory that install makes.
USAGE
}

# The state directory gets emptied: make sure it is ours.
claim_state_directory() {
  [[ $EUID == 0 ]] || die 'must run as root: cinder-volume and tgtd need it'
  [[ $STATE =~ ^/[A-Za-z0-9_./-]+$ && ${#STATE} -le 80 ]] ||
    die "RIG_STATE must be an absolute path of at most 80 plain characters, not \"$STATE\""
  if [[ -d $STATE && ! -e $STATE/.rig && -n $(ls -A "$STATE") ]]; then
    die "$STATE exists and was not made by this rig: move it away, or set RIG_STATE"
  fi
  mkdir -p "$STATE"
  chmod 0700 "$STATE"
  : >"$STATE/.rig"
  exec 9>"$STATE/.lock"
  flock -n 9 || die "another rig.sh is working on $STATE"
}

check_ports() {
  local name names=(KEYSTONE NOAUTH CINDER ISCSI BARBICAN AMQP ERLANG EPMD)
  [[ $RIG_CEPH != 1 ]] || names+=(CEPH CEPH_MSGR2)
  for name in "${names[@]}"; do
    local variable=${name}_PORT
    if port_open "${!variable}"; then
      die "port ${!variable} is in use by another program: stop it, or set RIG_$variable"
    fi
  done
}

clean_up_after_failure() {
  trap - EXIT
  say "start failed; stopping what had been started. Logs: $STATE/log"
  stop_everything
  # A service launched this very moment does not bear the mark yet.
  mapfile -t launched < <(jobs -p)
  signal_all KILL "${launched[@]}"
}

command_start() {
  local keep=no
  case ${1:-} in
    '') ;;
    --keep) keep=yes ;;
    *) usage >&2 && exit 2 ;;
  esac
  claim_state_directory
  [[ -z $(missing_packages) ]] || die 'packages are missing: run "rig.sh install" first'
  stop_everything
  check_ports
  if [[ $keep == yes && ! -e $STATE/data/complete ]]; then
    say 'no data to keep: starting afresh'
    keep=no
  fi
  if [[ $keep == no ]]; then
    rm -rf "${STATE:?}"/{data,secrets}
    say "starting in $STATE (usually 15 to 25 s)"
  else
    say "starting in $STATE with the data of the last run (usually 8 to 15 s)"
  fi
  rm -rf "${STATE:?}"/{etc,bin,run,log,tmp,driver,env,clouds.yaml}
  trap clean_up_after_failure EXIT

  prepare_files
  say 'database, message queue and iSCSI target'
  start_queue
  [[ $keep == yes ]] || initialise_database
  start_database
  start_targets
  if [[ $keep == no ]]; then
    say 'schemas and first user (usually 8 s)'
    create_databases
    fill_databases
  fi
  if [[ $RIG_CEPH == 1 ]]; then
    say 'Ceph (usually 10 s)'
    start_ceph
  fi
  say 'Keystone, Barbican and Cinder (usually 6 s)'
  start_keystone
  start_barbican
  wait_for rabbitmq 120 port_open "$AMQP_PORT"
  start_cinder
  wait_for keystone 120 port_open "$KEYSTONE_PORT"
  [[ $keep == yes ]] || setup_cloud identity
  wait_for cinder-api-noauth 120 port_open "$NOAUTH_PORT"
  setup_cloud storage
  wait_for barbican 120 port_open "$BARBICAN_PORT"
  wait_for cinder-api-keystone 120 port_open "$CINDER_PORT"
  say 'one volume of each type, made and deleted (usually 2 s)'
  setup_cloud verify
  setup_cloud write
  : >"$STATE/data/complete"
  trap - EXIT
  say "ready: $STATE/env"
}

command_stop() {
  claim_state_directory
  stop_everything
  say "stopped; logs and data are in $STATE"
}

command_status() {
  local name state=0 pid total=0 size
  for name in "${SERVICES[@]}"; do
    # Ceph is optional: silent unless it was started.
    [[ $name != ceph-* || -e $STATE/run/$name.pid ]] || continue
    if running "$name"; then
      printf '%-20s running, process %s\n' "$name" "$(cat "$STATE/run/$name.pid")"
    else
      printf '%-20s not running\n' "$name"
      state=1
    fi
  done
  while read -r pid; do
    # Memory shared between forked processes counts once.
    size=$(awk '/^Pss:/ {print $2}' "/proc/$pid/smaps_rollup" 2>/dev/null) || continue
    total=$((total + ${size:-0}))
  done < <(marked_processes)
  printf 'memory: %d MiB\n' $((total / 1024))
  return $state
}

command_logs() {
  if [[ -n ${1:-} ]]; then
    cat "$STATE/log/$1.log"
  else
    tail -n 15 "$STATE"/log/*.log
  fi
}

main() {
  local command=${1:-}
  shift || true
  if [[ -n $RIG_DEBIAN ]]; then
    run_in_other_debian "$command" "$@"
    return
  fi
  case $command in
    install | start | stop | status | logs) "command_$command" "$@" ;;
    *) usage >&2 && exit 2 ;;
  esac
}

main "$@"
