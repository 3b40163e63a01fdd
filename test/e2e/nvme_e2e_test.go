//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

const (
	nvmeHost = "nqn.2014-08.org.nvmexpress:uuid:6953a373-c3f7-4ea8-ae77-105c393012ff"
	// nvmeNQN is what the names of the subsystems begin with, as Cinder's do.
	nvmeNQN = "nqn.2014-08.org.example:"
)

// nvmeTarget has volumes of the kernel's own NVMe target, in the node itself.
type nvmeTarget struct{ *csiNode }

// startNVMe boots a node with a target.
func startNVMe(ctx context.Context, t *testing.T) nvmeTarget {
	t.Helper()
	n := nvmeTarget{bootNode(ctx, t, "node-nvme")}
	n.run(ctx, t, `mkdir -p /etc/nvme /volumes && echo `+nvmeHost+` > /etc/nvme/hostnqn
modprobe -a nvmet nvmet-tcp && mount -t configfs none /sys/kernel/config && cd /sys/kernel/config/nvmet/ports
for p in 1 2; do mkdir $p && echo tcp > $p/addr_trtype && echo ipv4 > $p/addr_adrfam && echo 127.0.0.$p > $p/addr_traddr && echo 4420 > $p/addr_trsvcid || exit 1; done`)
	n.startPlugin(ctx, t)
	return n
}

// export makes a volume's file, if there is none, and shows it as a namespace.
func (n nvmeTarget) export(ctx context.Context, t *testing.T, subsystem string, namespace int, id string) {
	t.Helper()
	n.run(ctx, t, fmt.Sprintf(`f=/volumes/%s; test -f $f || truncate -s 1G $f
cd /sys/kernel/config/nvmet; s=subsystems/%s%s
test -d $s || { mkdir $s && echo 1 > $s/attr_allow_any_host; }
d=$s/namespaces/%d; test -d $d || mkdir $d
echo -n $f > $d/device_path && echo %s > $d/device_uuid && echo 1 > $d/enable || exit 1
for p in 1 2; do test -e ports/$p/subsystems/%[3]s || ln -s /sys/kernel/config/nvmet/$s ports/$p/subsystems/%[3]s || exit 1; done`, id, nvmeNQN, subsystem, namespace, id))
}

// withdraw ends an export.
func (n nvmeTarget) withdraw(ctx context.Context, t *testing.T, subsystem string, namespace int) {
	t.Helper()
	n.run(ctx, t, fmt.Sprintf("cd /sys/kernel/config/nvmet/subsystems/%s%s/namespaces/%d && echo 0 > enable", nvmeNQN, subsystem, namespace))
}

// attached returns what a node gets from a connection that Cinder describes.
func attached(t *testing.T, id, data string) csiVolume {
	t.Helper()
	connection, err := mappers.ParseConnection([]byte(`{"driver_volume_type": "nvmeof", "data": {` + data + `}}`))
	must(t, err)
	read, err := mappers.ForNode(connection, mappers.NodeRequest{})
	must(t, err)
	c := wire.Connection{Protocol: read.Protocol, Identities: read.Identities, Bytes: 1 << 30, Attachment: id}
	for _, path := range read.Paths {
		c.Paths = append(c.Paths, wire.Path{Portal: path.Portal, Target: path.Target, LUN: path.LUN})
	}
	context, err := c.PublishContext()
	must(t, err)
	return csiVolume{backend: "lab", id: id, context: context}
}

// newer returns the newer form of Cinder's connections, with two portals, and older the
// form that its targets send by default.
func newer(subsystem string, namespace int, id string) string {
	return fmt.Sprintf(`"target_nqn": "%s%s", "vol_uuid": %q, "ns_id": %d, "portals": [["127.0.0.1", 4420, "tcp"], ["127.0.0.2", "4420", "tcp"]]`, nvmeNQN, subsystem, id, namespace)
}

func older(subsystem string, namespace int) string {
	return fmt.Sprintf(`"nqn": "%s%s", "target_portal": "127.0.0.1", "target_port": 4420, "transport_type": "tcp", "ns_id": %d`, nvmeNQN, subsystem, namespace)
}

func nvmeID(n int) string { return fmt.Sprintf("86a25cac-e84c-4ef1-816f-%012d", n) }

// sum returns a checksum of the content of a volume's file, without the holes.
func (n nvmeTarget) sum(ctx context.Context, t *testing.T, id string) string {
	t.Helper()
	return n.run(ctx, t, "tar --mtime=@0 -cSf - -C /volumes "+id+" | md5sum")
}

func TestNodeUsesVolumesByNVMe(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	n := startNVMe(ctx, t)

	info, err := n.NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
	must(t, err)
	if told, err := wire.ParseNodeID(info.NodeId); err != nil || told.HostNQN != nvmeHost || told.InitiatorName != n.initiator {
		t.Errorf("the node says that it is %+v, %v", told, err)
	}

	for i, filesystem := range []string{"ext4", "xfs", ""} {
		t.Run("a volume of "+filesystem, func(t *testing.T) {
			id, subsystem := nvmeID(10+i), fmt.Sprintf("plain-%d", i)
			v := attached(t, id, newer(subsystem, 1, id))
			if i == 1 {
				v = attached(t, id, older(subsystem, 1))
			}
			file := podPath(v)
			if filesystem != "" {
				file += "/data"
			}
			for round := range 2 {
				n.export(ctx, t, subsystem, 1, id)
				must(t, n.stage(ctx, t, v, filesystem))
				must(t, n.stage(ctx, t, v, filesystem)) // kubelet repeats calls
				must(t, n.publish(ctx, v, filesystem))
				must(t, n.publish(ctx, v, filesystem))
				if round == 0 {
					n.run(ctx, t, "printf 'a node wrote this' | dd of="+file+" conv=notrunc,fsync status=none; sync")
				}
				if content := n.run(ctx, t, "head -c 17 "+file); content != "a node wrote this" {
					t.Errorf("round %d: the volume has %q", round, content)
				}
				must(t, n.unpublish(ctx, v))
				must(t, n.unpublish(ctx, v))
				must(t, n.unstage(ctx, v))
				must(t, n.unstage(ctx, v))
				n.checkNothingLeft(ctx, t)
				n.withdraw(ctx, t, subsystem, 1)
			}
		})
	}

	t.Run("volumes of one subsystem", func(t *testing.T) {
		first, second := attached(t, nvmeID(20), newer("shared", 1, nvmeID(20))), attached(t, nvmeID(21), newer("shared", 2, nvmeID(21)))
		n.export(ctx, t, "shared", 1, first.id)
		n.export(ctx, t, "shared", 2, second.id)
		must(t, n.stage(ctx, t, first, "ext4"))
		must(t, n.stage(ctx, t, second, "xfs"))
		must(t, n.publish(ctx, second, "xfs"))
		must(t, n.unstage(ctx, first))
		n.run(ctx, t, "echo still there > "+podPath(second)+"/data; sync")
		must(t, n.unpublish(ctx, second))
		must(t, n.unstage(ctx, second))
		n.checkNothingLeft(ctx, t)
	})

	t.Run("a wrong namespace", func(t *testing.T) {
		n.export(ctx, t, "wrong", 1, nvmeID(30))
		before := n.sum(ctx, t, nvmeID(30))
		other := attached(t, nvmeID(31), newer("wrong", 1, nvmeID(31)))
		if err := n.stage(ctx, t, other, "ext4"); err == nil || !strings.Contains(err.Error(), "WrongDisk: namespace 1 of "+nvmeNQN+"wrong is uuid."+nvmeID(30)) {
			t.Errorf("another volume's namespace is staged: %v", err)
		}
		n.checkNothingLeft(ctx, t)
		if after := n.sum(ctx, t, nvmeID(30)); after != before {
			t.Error("another volume was written")
		}
		right := attached(t, nvmeID(30), newer("wrong", 1, nvmeID(30)))
		must(t, n.stage(ctx, t, right, "ext4"))
		must(t, n.unstage(ctx, right))
		// The older form says no more than the number.
		other = attached(t, nvmeID(31), older("wrong", 1))
		if err := n.stage(ctx, t, other, "ext4"); err == nil || !strings.Contains(err.Error(), "WrongVolume: ") || !strings.Contains(err.Error(), nvmeID(30)) {
			t.Errorf("a volume with the filesystem of another is staged: %v", err)
		}
		n.checkNothingLeft(ctx, t)
	})

	for i, filesystem := range []string{"ext4", "xfs", ""} {
		t.Run("a volume of "+filesystem+" grows while it is used", func(t *testing.T) {
			id, subsystem := nvmeID(40+i), fmt.Sprintf("grows-%d", i)
			n.export(ctx, t, subsystem, 1, id)
			v := attached(t, id, newer(subsystem, 1, id))
			must(t, n.stage(ctx, t, v, filesystem))
			must(t, n.publish(ctx, v, filesystem))
			written := make(chan error, 1)
			go func() {
				into := podPath(v) + "/$i"
				if filesystem == "" {
					into = podPath(v) + " seek=$i"
				}
				_, err := n.Run(ctx, "for i in $(seq 40); do head -c 262144 /dev/zero | tr '\\0' x | dd of="+into+" bs=262144 iflag=fullblock conv=notrunc,fsync status=none || exit 1; done")
				written <- err
			}()
			time.Sleep(time.Second)
			n.run(ctx, t, "truncate -s 2G /volumes/"+id)
			grown, err := n.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{
				VolumeId: handle(v), VolumePath: podPath(v), StagingTargetPath: stagingPath(v),
				CapacityRange: &csi.CapacityRange{RequiredBytes: 2 << 30}, VolumeCapability: mountOf(filesystem),
			})
			must(t, err)
			must(t, <-written)
			size := "blockdev --getsize64 " + podPath(v)
			if filesystem != "" {
				size = "df -B1 --output=size " + podPath(v) + " | tail -1"
			}
			var bytes int64
			if _, err := fmt.Sscan(n.run(ctx, t, size), &bytes); err != nil || bytes < 19<<30/10 || grown.CapacityBytes != 2<<30 {
				t.Errorf("it has %d bytes, says %d, %v", bytes, grown.CapacityBytes, err)
			}
			stats, err := n.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: handle(v), VolumePath: podPath(v)})
			if err != nil || len(stats.Usage) == 0 || stats.Usage[0].Total < 19<<30/10 {
				t.Errorf("statistics %v, %v", stats, err)
			}
			must(t, n.unpublish(ctx, v))
			must(t, n.unstage(ctx, v))
			n.checkNothingLeft(ctx, t)
		})
	}

	t.Run("two portals, one of which is cut", func(t *testing.T) {
		id := nvmeID(50)
		n.export(ctx, t, "paths", 1, id)
		v := attached(t, id, newer("paths", 1, id))
		must(t, n.stage(ctx, t, v, "ext4"))
		must(t, n.publish(ctx, v, "ext4"))
		written := make(chan error, 1)
		go func() {
			_, err := n.Run(ctx, "for i in $(seq 40); do head -c 262144 /dev/zero | tr '\\0' x | dd of="+podPath(v)+"/$i conv=fsync status=none || exit 1; done")
			written <- err
		}()
		link := "/sys/kernel/config/nvmet/ports/1/subsystems/paths"
		n.run(ctx, t, "rm "+link)
		must(t, <-written)
		n.run(ctx, t, "ln -s /sys/kernel/config/nvmet/subsystems/"+nvmeNQN+"paths "+link)
		n.run(ctx, t, "for i in $(seq 60); do test $(cat /sys/class/nvme/*/state | grep -c live) = 2 && exit 0; sleep 1; done; exit 1")
		must(t, n.unpublish(ctx, v))
		must(t, n.unstage(ctx, v))
		must(t, n.stage(ctx, t, v, "ext4"))
		if sizes := n.run(ctx, t, "cat "+stagingPath(v)+"/[0-9]* | tr -d x | wc -c; cat "+stagingPath(v)+"/[0-9]* | wc -c"); sizes != "0\n10485760\n" {
			t.Errorf("what was written during the cut: %q", sizes)
		}
		must(t, n.unstage(ctx, v))
		n.checkNothingLeft(ctx, t)
	})

	t.Run("a namespace that the storage gives to another volume", func(t *testing.T) {
		id, other := nvmeID(60), nvmeID(61)
		n.export(ctx, t, "reused", 1, id)
		v := attached(t, id, newer("reused", 1, id))
		must(t, n.stage(ctx, t, v, "ext4"))
		must(t, n.publish(ctx, v, "ext4"))
		n.run(ctx, t, "sysctl -q vm.dirty_writeback_centisecs=60000 vm.dirty_expire_centisecs=60000; echo unwritten > "+podPath(v)+"/late")
		n.withdraw(ctx, t, "reused", 1)
		n.export(ctx, t, "reused", 1, other)
		before := n.sum(ctx, t, other)
		next := attached(t, other, newer("reused", 1, other))
		if err := n.stage(ctx, t, next, "ext4"); err == nil {
			t.Error("a volume is staged where another one is")
		}
		must(t, n.unpublish(ctx, v))
		must(t, n.unstage(ctx, v))
		n.checkNothingLeft(ctx, t)
		if n.sum(ctx, t, other) != before {
			t.Error("another volume was written")
		}
		must(t, n.stage(ctx, t, next, "ext4"))
		must(t, n.unstage(ctx, next))
		n.checkNothingLeft(ctx, t)
	})

	t.Run("a volume that was attached again while it was staged", func(t *testing.T) {
		id := nvmeID(70)
		n.export(ctx, t, "again", 1, id)
		v := attached(t, id, newer("again", 1, id))
		must(t, n.stage(ctx, t, v, "ext4"))
		must(t, n.publish(ctx, v, "ext4"))
		n.run(ctx, t, "sync")
		before := n.sum(ctx, t, id)
		n.run(ctx, t, "sysctl -q vm.dirty_writeback_centisecs=60000 vm.dirty_expire_centisecs=60000; echo unwritten > "+podPath(v)+"/late")
		again := attached(t, id, newer("again", 1, id))
		again.context["attachment"] = "another"
		if err := n.stage(ctx, t, again, "ext4"); err == nil || !strings.Contains(err.Error(), "was detached from the node while it was staged") {
			t.Errorf("it is used on: %v", err)
		}
		must(t, n.unpublish(ctx, v))
		must(t, n.unstage(ctx, v))
		n.checkNothingLeft(ctx, t)
		if n.sum(ctx, t, id) != before {
			t.Error("what the node still had was written")
		}
		must(t, n.stage(ctx, t, again, "ext4"))
		must(t, n.unstage(ctx, again))
		n.checkNothingLeft(ctx, t)
	})

	t.Run("a plugin that is killed", func(t *testing.T) {
		id := nvmeID(80)
		n.export(ctx, t, "killed", 1, id)
		v := attached(t, id, newer("killed", 1, id))
		for i := range kills(12) {
			what := map[bool]func() error{true: func() error { return n.stage(ctx, t, v, "ext4") }, false: func() error { return n.unstage(ctx, v) }}[i%2 == 0]
			ended := make(chan error, 1)
			go func() { ended <- what() }()
			time.Sleep(time.Duration(50+150*i) * time.Millisecond)
			n.run(ctx, t, "pkill -9 -x standalone-cind; true")
			if err := <-ended; err != nil && !isForLater(err) {
				t.Errorf("kill %d: %v", i, err)
			}
			n.startPlugin(ctx, t)
			must(t, retry(ctx, what))
		}
		n.checkNothingLeft(ctx, t)
	})
}
