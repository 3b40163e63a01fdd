# shellcheck shell=bash
# Another release of Debian, whose Cinder is newer: it lives in a directory, in which the
# rig runs itself. The state directory has the same path inside and outside.

readonly OTHER_ROOT=$STATE-$RIG_DEBIAN

run_in_other_debian() {
  [[ $EUID == 0 ]] || die 'must run as root: it changes to another root directory'
  [[ $RIG_DEBIAN =~ ^[a-z]+$ ]] || die "RIG_DEBIAN must be the name of a release, such as trixie, not \"$RIG_DEBIAN\""
  if [[ ! -e $OTHER_ROOT/complete ]]; then
    [[ ${1:-} == install ]] || die "there is no $RIG_DEBIAN in $OTHER_ROOT: run \"rig.sh install\" first"
    command -v debootstrap >/dev/null || die 'debootstrap is missing: install it with apt'
    say "Debian $RIG_DEBIAN in $OTHER_ROOT (usually 90 s)"
    leave_other_debian
    rm -rf "$OTHER_ROOT"
    debootstrap --variant=minbase --include=ca-certificates "$RIG_DEBIAN" "$OTHER_ROOT"
    : >"$OTHER_ROOT/complete"
  fi
  mkdir -p "$STATE" "$OTHER_ROOT$STATE" "$OTHER_ROOT/rig"
  local directory
  for directory in /proc /sys /dev "$STATE"; do
    mountpoint -q "$OTHER_ROOT$directory" || mount --rbind "$directory" "$OTHER_ROOT$directory"
    mount --make-rslave "$OTHER_ROOT$directory"
  done
  mountpoint -q "$OTHER_ROOT/rig" || mount --bind "$RIG" "$OTHER_ROOT/rig"
  local status=0
  RIG_DEBIAN='' chroot "$OTHER_ROOT" /rig/rig.sh "$@" || status=$?
  [[ ${1:-} != stop ]] || leave_other_debian
  return "$status"
}

leave_other_debian() {
  local directory
  for directory in /rig "$STATE" /dev /sys /proc; do
    ! mountpoint -q "$OTHER_ROOT$directory" || umount --recursive --lazy "$OTHER_ROOT$directory"
  done
}
