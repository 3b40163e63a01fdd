# shellcheck shell=bash
# Installing the Debian packages that the rig is made of.

readonly PACKAGES=(
  cinder-api cinder-scheduler cinder-volume cinder-backup
  keystone barbican-api uwsgi-core uwsgi-plugin-python3
  rabbitmq-server mariadb-server mariadb-client
  tgt cryptsetup-bin libiscsi-bin qemu-utils qemu-block-extra
  python3-requests procps dmidecode
)
readonly CEPH_PACKAGES=(ceph-mon ceph-mgr ceph-osd ceph-common python3-rbd python3-rados)

wanted_packages() {
  printf '%s\n' "${PACKAGES[@]}"
  if [[ $RIG_CEPH == 1 ]]; then
    printf '%s\n' "${CEPH_PACKAGES[@]}"
  fi
}

missing_packages() {
  local package
  while read -r package; do
    # shellcheck disable=SC2016 # the format is dpkg-query's, not the shell's
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] ||
      printf '%s\n' "$package"
  done < <(wanted_packages)
}

# Packages start their services when they are installed, unless this file says
# no. The rig starts its own, under its own configuration.
readonly SERVICE_POLICY=/usr/sbin/policy-rc.d

refuse_service_starts() {
  if [[ -x $SERVICE_POLICY ]]; then
    local status=0
    "$SERVICE_POLICY" tgt start >/dev/null 2>&1 || status=$?
    if ((status == 101)); then
      return
    fi
  fi
  if [[ -e $SERVICE_POLICY ]]; then
    mv "$SERVICE_POLICY" "$SERVICE_POLICY.before-rig"
  fi
  trap restore_service_starts EXIT
  printf '#!/bin/sh\nexit 101\n' >"$SERVICE_POLICY"
  chmod 0755 "$SERVICE_POLICY"
}

restore_service_starts() {
  rm -f "$SERVICE_POLICY"
  if [[ -e $SERVICE_POLICY.before-rig ]]; then
    mv "$SERVICE_POLICY.before-rig" "$SERVICE_POLICY"
  fi
}

command_install() {
  local missing
  mapfile -t missing < <(missing_packages)
  if ((${#missing[@]} == 0)); then
    say 'packages: all installed'
    return
  fi
  local release
  release=$(. /etc/os-release && printf '%s %s' "$ID" "${VERSION_ID:-}")
  [[ $release == 'debian 12' || $release == 'debian 13' ]] ||
    die "this rig is written for Debian 12 (Cinder 21, Keystone 22) and 13 (26, 27); this machine runs $release"
  say "packages: installing ${missing[*]} and what they need (usually 75 s)"
  refuse_service_starts
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -q
  apt-get install -q -y --no-install-recommends "${missing[@]}"
  say 'packages: installed'
}
