#!/bin/sh
# The first process of the machine: what a node has beside the kernel, and a
# server for the test's commands.
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev 2>/dev/null
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs run /run
mount -t tmpfs tmp /tmp
mkdir -p /run/sshd /run/lock /run/udev

/lib/systemd/systemd-udevd --daemon
udevadm trigger
udevadm settle
ip link set lo up
for device in /sys/class/net/e*; do
  device=${device##*/}
  ip link set "$device" up
  ip addr add 10.0.2.15/24 dev "$device"
  ip route add default via 10.0.2.2
done

# The machine's own names come with the kernel's command line.
for word in $(cat /proc/cmdline); do
  case $word in
    node.name=*) hostname "${word#*=}" ;;
    node.initiator=*) echo "InitiatorName=${word#*=}" > /etc/iscsi/initiatorname.iscsi ;;
  esac
done
modprobe -a iscsi_tcp dm_multipath dm_crypt ext4 xfs
iscsid
multipathd
/usr/sbin/sshd -o GatewayPorts=clientspecified
echo "the node is ready" > /dev/console
while :; do sleep 1000; done
