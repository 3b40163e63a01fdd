#!/bin/bash
# make demo NODES=2 runs this: the tour, and then its second part, in which pods on two virtual
# nodes use volumes of a real Cinder. The rig and the nodes are those of test/e2e.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

log=bin/demo-nodes.log
rig=test/e2e/rig/rig.sh

refuse() {
  printf 'demo: %s\n' "$*" >&2
  exit 2
}

[[ ${1:-} == 2 ]] || refuse "NODES=${1:-} is not possible: NODES=2 has two nodes, and without NODES there are none"
[[ $# == 1 ]] || refuse 'NODES=2 has a cluster of its own: leave out KUBECONFIG'
[[ $(. /etc/os-release && printf '%s %s' "$ID" "${VERSION_ID:-}") == 'debian 12' ]] || refuse 'NODES=2 needs Debian 12, whose Cinder it installs; try it in a virtual machine'
[[ $EUID == 0 ]] || refuse 'NODES=2 needs root, to install packages with apt and to run Cinder'

cat <<'NEEDS'
The tour on simulated Cinder comes first. It goes on with pods on two virtual nodes and real Cinder.

   This needs Debian 12, root, two cores, 6 GB of memory and 15 GB of disk. It installs Cinder,
   Keystone, RabbitMQ, MariaDB, tgt, QEMU and debootstrap with apt, and they stay: 230 MB to download,
   1.3 GB on disk. The nodes' image and Go's modules are another 350 MB to download. On two cores, it
   takes 8 minutes, and about half an hour more the first time, to compile Kubernetes.

NEEDS
mkdir -p bin
{
  command -v qemu-system-x86_64 && command -v debootstrap || {
    echo 'Installing QEMU and debootstrap: a minute.' >&3
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends qemu-system-x86 debootstrap
  }
} 3>&1 >"$log" 2>&1 || refuse "apt failed; see $log"
trap '"$rig" stop >>"$log" 2>&1' EXIT
# What runs gets the signal, too, and cleans up first.
trap 'echo "demo: stopped" >&2; exit 130' INT TERM HUP
echo 'Installing what is missing of Cinder, and starting it: half a minute, or two the first time.'
export RIG_CEPH=0
if ! { "$rig" install && "$rig" start; } >>"$log" 2>&1; then
  tail -3 "$log"
  refuse "Cinder does not start; see $log"
fi
set -a
# shellcheck disable=SC1090,SC1091 # the rig writes it
. "${RIG_STATE:-/tmp/standalone-cinder-e2e}/env"
set +a
echo

go=${GO:-go}
"$go" run ./test/demo

printf '\nThe tour goes on: pods on two nodes write to volumes of a real Cinder.\n'
# The story comes by a descriptor of its own. What the test writes is for those who look for a
# fault. A test that was skipped succeeds, too.
if ! DEMO_STORY=3 "$go" test -count=1 -timeout 65m -tags e2e -run '^TestDemoOnNodes$' -v ./test/e2e 3>&1 >>"$log" 2>&1 ||
  ! grep -q '^--- PASS: TestDemoOnNodes ' "$log"; then
  grep -m 3 '_test\.go:[0-9]*:' "$log" | cut -c -500 || tail -5 "$log"
  echo "demo: failed; $log says more" >&2
  exit 1
fi
trap - EXIT
"$rig" stop >>"$log" 2>&1
echo '   The machines are gone, and Cinder is stopped. Its packages are still installed.'
