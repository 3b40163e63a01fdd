#!/bin/sh
# Makes the machine a node, as its systemd and its administrator would: containerd with
# the images, then the kubelet.
set -e
name=$1
mount --make-rshared /
mountpoint -q /sys/fs/cgroup || mount -t cgroup2 cgroup2 /sys/fs/cgroup
modprobe -a overlay veth loop
tr -d - < /proc/sys/kernel/random/uuid > /etc/machine-id
# An emulated processor is slow: Go's scheduler would interrupt every goroutine, and its
# memory is cheaper than its collector.
export GODEBUG=asyncpreemptoff=1 GOGC=400
# LUKS headers that an administrator's node makes would take this one minutes to open, more
# than the kubelet waits for.
mv /usr/sbin/cryptsetup /usr/sbin/cryptsetup-itself
cat > /usr/sbin/cryptsetup << 'END'
#!/bin/sh
case " $* " in *' luksFormat '* | *' luksAddKey '*) exec /usr/sbin/cryptsetup-itself "$@" --iter-time 10 ;; esac
exec /usr/sbin/cryptsetup-itself "$@"
END
chmod 755 /usr/sbin/cryptsetup
mkdir -p /etc/cni/net.d
cp /opt/kubernetes/network.conflist /etc/cni/net.d
setsid containerd --config /opt/kubernetes/containerd.toml > /var/log/containerd.log 2>&1 < /dev/null &
for i in $(seq 300); do ctr version > /dev/null 2>&1 && break; sleep 0.2; done
for image in /opt/kubernetes/images/*; do
  ctr -n k8s.io images import "$image"
done
sh /opt/kubernetes/kubelet.sh "$name"
