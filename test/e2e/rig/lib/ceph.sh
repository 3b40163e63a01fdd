# shellcheck shell=bash
# A Ceph cluster of one node, for volumes of the type "rbd" (RIG_CEPH=1).

# Any identifier will do; a fixed one is easy to recognize.
readonly CEPH_FSID=5ce2e2e0-0000-4000-8000-000000000001
readonly CEPH_OSD=5ce2e2e0-0000-4000-8000-0000000000d0

ceph_admin() {
  once ceph-setup ceph --conf "$STATE/etc/ceph.conf" --connect-timeout 60 "$@"
}

ceph_keyring() {
  once ceph-setup ceph-authtool --create-keyring "$1" --gen-key "${@:2}"
}

initialise_monitor() {
  local data=$STATE/data/ceph
  mkdir -p "$data"/{mon,mgr,osd}
  ceph_keyring "$data/admin.keyring" --name client.admin \
    --cap mon 'allow *' --cap mgr 'allow *' --cap osd 'allow *'
  ceph_keyring "$data/mon.keyring" --name mon. --cap mon 'allow *'
  once ceph-setup ceph-authtool "$data/mon.keyring" --import-keyring "$data/admin.keyring"
  once ceph-setup monmaptool --create --clobber --fsid "$CEPH_FSID" \
    --addv a "[v2:127.0.0.1:$CEPH_MSGR2_PORT,v1:127.0.0.1:$CEPH_PORT]" "$data/monmap"
  once ceph-setup ceph-mon --conf "$STATE/etc/ceph.conf" --id a --mkfs \
    --monmap "$data/monmap" --keyring "$data/mon.keyring"
}

initialise_storage() {
  local data=$STATE/data/ceph
  ceph_admin auth get-or-create mgr.a mon 'allow profile mgr' osd 'allow *' \
    -o "$data/mgr/keyring"
  once ceph-setup ceph-authtool --create-keyring "$data/osd/keyring" --gen-key --name osd.0
  ceph_admin osd new "$CEPH_OSD" 0
  ceph_admin auth add osd.0 mon 'allow profile osd' mgr 'allow profile osd' osd 'allow *' \
    -i "$data/osd/keyring"
  once ceph-setup ceph-osd --conf "$STATE/etc/ceph.conf" --id 0 --mkfs --osd-uuid "$CEPH_OSD"
}

initialise_pool() {
  ceph_admin osd pool create volumes 8
  once ceph-setup rbd --conf "$STATE/etc/ceph.conf" pool init volumes
  ceph_admin auth get-or-create client.cinder mon 'profile rbd' mgr 'profile rbd pool=volumes' \
    osd 'profile rbd pool=volumes' -o "$STATE/data/ceph/cinder.keyring"
}

start_ceph() {
  local fresh=no
  if [[ ! -e $STATE/data/ceph/complete ]]; then
    fresh=yes
    rm -rf "${STATE:?}/data/ceph"
    initialise_monitor
  fi
  launch ceph-mon ceph-mon --conf "$STATE/etc/ceph.conf" --id a --foreground
  wait_for ceph-mon 120 port_open "$CEPH_MSGR2_PORT"
  [[ $fresh == no ]] || initialise_storage
  launch ceph-mgr ceph-mgr --conf "$STATE/etc/ceph.conf" --id a --foreground
  launch ceph-osd ceph-osd --conf "$STATE/etc/ceph.conf" --id 0 --foreground
  wait_for ceph-osd 120 osd_is_up
  [[ $fresh == no ]] || initialise_pool
  : >"$STATE/data/ceph/complete"
}

osd_is_up() {
  ceph --conf "$STATE/etc/ceph.conf" --connect-timeout 10 osd stat --format json |
    grep -q '"num_up_osds":1'
}
