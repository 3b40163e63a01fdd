//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/test/e2e/rig"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// lostNodePolicy has a backend that lets in only the initiator to which a volume is
// attached, one that lets in any, one of which the policy says the wrong thing, and one
// with two portals.
func lostNodePolicy(env rig.Env) string {
	backend := func(name string, project int, fencing string) string {
		return fmt.Sprintf("  - {name: %s, auth: {noauth: {endpoint: %q, user: %s, project: \"%032x\"}}, mode: csi, csi: {fencing: %s}}\n",
			name, env.Noauth.Endpoint, env.Noauth.User, project, fencing)
	}
	return `
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
clusterID: e2e-lost
backends:
` + backend("masked", 0xc62, "initiator") + backend("open", 0xc63, "export") + backend("wrong", 0xc64, "initiator") + backend("paths", 0xc65, "export") + fmt.Sprintf(`
tenants:
  - name: team-c
    namespaces: [team-c]
    classes:
      - {storageClasses: [masked], backends: [masked], volumeType: %s, fsType: ext4}
      - {storageClasses: [open], backends: [open], volumeType: %s, fsType: ext4}
      - {storageClasses: [wrong], backends: [wrong], volumeType: %s, fsType: ext4}
      - {storageClasses: [paths], backends: [paths], volumeType: %s, fsType: ext4}
`, env.Types.UnitsMasked, env.Types.Units, env.Types.Units, env.Types.ISCSIMultipath)
}

// write makes a node write a counter to a file of a volume over and over, whatever
// happens.
func (n *csiNode) write(ctx context.Context, t *testing.T, v csiVolume) {
	t.Helper()
	n.run(ctx, t, "setsid sh -c 'i=0; while :; do i=$((i+1)); echo $i | dd of="+podPath(v)+"/"+n.name+" bs=512 conv=sync,fsync,notrunc status=none; sleep 0.2; done' > /dev/null 2>&1 < /dev/null &")
	must(t, harness.Eventually(ctx, func() (string, error) {
		if n.counter(ctx, t, v, n.name) < 3 {
			return n.name + " does not write", nil
		}
		return "", nil
	}))
}

// counter returns the counter in a file that a node writes.
func (n *csiNode) counter(ctx context.Context, t *testing.T, v csiVolume, writer string) int {
	t.Helper()
	text := n.run(ctx, t, "head -c 20 "+podPath(v)+"/"+writer+" | tr -d '\\0'")
	count, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil {
		return 0
	}
	return count
}

// stopWriting ends all processes that write to volumes.
func (n *csiNode) stopWriting(ctx context.Context, t *testing.T) {
	t.Helper()
	n.run(ctx, t, "pkill -9 -f '[w]hile :; do i='; true")
}

// mount stages and publishes a volume with a filesystem.
func (n *csiNode) mount(ctx context.Context, t *testing.T, v csiVolume) {
	t.Helper()
	must(t, retry(ctx, func() error { return n.stage(ctx, t, v, "ext4") }))
	must(t, n.publish(ctx, v, "ext4"))
}

func (n *csiNode) unmount(ctx context.Context, t *testing.T, v csiVolume) {
	t.Helper()
	must(t, retry(ctx, func() error { return n.unpublish(ctx, v) }))
	must(t, retry(ctx, func() error { return n.unstage(ctx, v) }))
}

// pattern is what the only rightful user of a raw volume has written to it.
var pattern = bytes.Repeat([]byte("another volume! "), 1<<16)

const patterns = 192 // MiB, which has all that a small file of ext4 changes

// unitFile returns the file behind a volume that is attached to no node but
// this.
func unitFile(ctx context.Context, t *testing.T, env rig.Env, v csiVolume) string {
	t.Helper()
	targets, err := env.Targets(ctx)
	must(t, err)
	for _, target := range targets {
		for _, path := range target.Disks {
			if strings.Contains(path, v.id) {
				return path
			}
		}
	}
	t.Fatalf("volume %s is at no target", v.id)
	return ""
}

func fill(t *testing.T, path string) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	must(t, err)
	for range patterns {
		_, err := file.Write(pattern)
		must(t, err)
	}
	must(t, file.Close())
}

// isWhole reports whether a volume still has nothing but the pattern.
func isWhole(t *testing.T, path string) bool {
	t.Helper()
	content, err := os.Open(path)
	must(t, err)
	defer func() { _ = content.Close() }()
	chunk := make([]byte, len(pattern))
	for at := range patterns {
		_, err := io.ReadFull(content, chunk)
		must(t, err)
		if !bytes.Equal(chunk, pattern) {
			for n := range chunk {
				if chunk[n] != pattern[n] {
					t.Logf("%s differs at byte %d", path, at<<20+n)
					return false
				}
			}
		}
	}
	return true
}

// partition returns how long a node is stopped: with 3 minutes, sessions and timers
// of all sides have long run out.
func partition() time.Duration {
	if testing.Short() {
		return 20 * time.Second
	}
	return 3 * time.Minute
}

// losesDisks has a map without paths hold back what a filesystem has not written, as many
// arrays' manuals want it. The volume is unmounted, written by another node, and comes
// back: nothing old may arrive.
func (c csiCluster) losesDisks(ctx context.Context, t *testing.T, env rig.Env, lost, other *csiNode, late bool) {
	pv := c.claim(ctx, t, fmt.Sprintf("queued-%t", late), "paths")
	lost.run(ctx, t, "printf 'overrides {\\n no_path_retry queue\\n}\\n' > /etc/multipath.conf && multipathd reconfigure")
	v := c.attach(ctx, t, pv, lost)
	lost.mount(ctx, t, v)
	sums := lost.writeFiles(ctx, t, podPath(v), 5)
	device := lost.deviceAt(ctx, t, stagingPath(v))
	lost.run(ctx, t, "multipath -ll | grep queue_if_no_path")
	disks := strings.Fields(lost.run(ctx, t, "ls /sys/block/$(basename $(readlink -f /dev/"+device+"))/slaves"))
	if len(disks) != 2 {
		t.Fatalf("%s has the disks %q", device, disks)
	}
	// Both nodes write to the blocks of this file.
	const overwrite = "head -c 100000 /dev/urandom | dd of=shared bs=100000 iflag=fullblock conv=notrunc status=none"
	lost.run(ctx, t, "cd "+podPath(v)+" && head -c 100000 /dev/zero > shared && sync -f .")
	// The kernel writes little of this by itself.
	lost.run(ctx, t, "sysctl -q vm.dirty_writeback_centisecs=0 vm.dirty_expire_centisecs=600000 vm.dirty_background_ratio=80 vm.dirty_ratio=90; cd "+podPath(v)+" && head -c 40000000 /dev/urandom > unwritten && "+overwrite)
	c.use(ctx, t, lost)
	must(t, retry(ctx, func() error { return lost.unpublish(ctx, v) }))

	vanish := func() {
		for _, disk := range disks {
			lost.run(ctx, t, "echo 1 > /sys/block/"+disk+"/device/delete; for i in $(seq 600); do test -e /sys/block/"+disk+" || exit 0; sleep 0.1; done; exit 1")
		}
	}
	if late {
		for _, portal := range env.Portals {
			lost.cuts[portal]()
		}
		ended := make(chan error, 1)
		go func() { ended <- lost.unstage(ctx, v) }()
		lost.run(ctx, t, "for i in $(seq 900); do grep -q '^State:.D' /proc/$(pgrep -x umount)/status 2>/dev/null && exit 0; sleep 0.2; done; exit 1")
		vanish()
		if err := <-ended; err == nil {
			t.Error("a volume whose umount hangs is unstaged")
		} else {
			t.Log(err)
		}
		c.use(ctx, t, lost)
		c.detach(ctx, t, pv, lost)
		c.ask(ctx, t, pv, other)
		c.says(ctx, t, pv, other, "is still staged on node "+lost.name)
	} else {
		vanish()
		c.giveUp(ctx, t, pv, lost)
		c.ask(ctx, t, pv, other)
	}
	must(t, retry(ctx, func() error { return lost.unstage(ctx, v) }))
	lost.checkNothingLeft(ctx, t)
	c.use(ctx, t, lost)

	there := c.attached(ctx, t, pv, other)
	other.mount(ctx, t, there)
	other.hasFiles(ctx, t, podPath(there), sums)
	sums += other.writeFiles(ctx, t, podPath(there), 60)
	sums += other.run(ctx, t, "cd "+podPath(there)+" && "+overwrite+" && sync -f . && sha256sum shared")
	if late {
		for _, portal := range env.Portals {
			var err error
			lost.cuts[portal], err = lost.Reach(portal)
			must(t, err)
		}
	}
	lost.run(ctx, t, "iscsiadm -m session --rescan; sysctl -q vm.dirty_writeback_centisecs=500 vm.dirty_expire_centisecs=3000 vm.dirty_background_ratio=10 vm.dirty_ratio=20; sync; true")
	other.unmount(ctx, t, there)
	c.detach(ctx, t, pv, other)

	back := c.attach(ctx, t, pv, lost)
	lost.mount(ctx, t, back)
	lost.hasFiles(ctx, t, podPath(back), sums)
	sums += lost.run(ctx, t, "cd "+podPath(back)+" && echo later > later && sync -f . && sha256sum later")
	lost.unmount(ctx, t, back)
	lost.checkNothingLeft(ctx, t)
	c.use(ctx, t, lost)
	c.detach(ctx, t, pv, lost)

	there = c.attach(ctx, t, pv, other)
	other.mount(ctx, t, there)
	other.hasFiles(ctx, t, podPath(there), sums)
	other.unmount(ctx, t, there)
	c.detach(ctx, t, pv, other)
	lost.run(ctx, t, "rm /etc/multipath.conf && multipathd reconfigure")
}

// TestLostNodes: two nodes, an array that gives the number of a detached volume to the
// next one, and all that may happen to the first node while it writes.
func TestLostNodes(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Minute+2*partition())
	defer cancel()
	env, err := rig.Load(rig.EnvFile())
	must(t, err)
	c := startCSI(ctx, t, lostNodePolicy(env), "masked", "open", "wrong", "paths")
	lost, other := startNode(ctx, t, env, "node-lost"), startNode(ctx, t, env, "node-other")
	c.join(ctx, t, lost)
	c.join(ctx, t, other)

	t.Run("the array keeps a partitioned node out, and the volume moves at once", func(t *testing.T) {
		moving, next := c.claim(ctx, t, "moving", "masked"), c.claim(ctx, t, "next", "masked")
		v := c.attach(ctx, t, moving, lost)
		lost.mount(ctx, t, v)
		lost.write(ctx, t, v)
		c.use(ctx, t, lost)
		must(t, lost.Pause())
		back := time.After(partition())
		c.detach(ctx, t, moving, lost)
		there := c.attach(ctx, t, moving, other)
		other.mount(ctx, t, there)
		last := other.counter(ctx, t, there, lost.name)
		other.write(ctx, t, there)

		// The number of the volume is free on the lost node's target. The node gets
		// nothing until it has let go of the old disk.
		c.ask(ctx, t, next, lost)
		c.says(ctx, t, next, lost, lost.name, volumeID(t, moving))
		<-back
		must(t, lost.Resume())
		time.Sleep(10 * time.Second) // What it still has to write, it writes now.
		if got := other.counter(ctx, t, there, lost.name); last == 0 || got != last {
			t.Errorf("the lost node's counter was %d, and is %d", last, got)
		}
		other.stopWriting(ctx, t)
		wrote := other.counter(ctx, t, there, other.name)
		other.unmount(ctx, t, there)
		other.mount(ctx, t, there)
		if mine, theirs := other.counter(ctx, t, there, other.name), other.counter(ctx, t, there, lost.name); mine != wrote || theirs != last {
			t.Errorf("the counters are %d and %d, want %d and %d", mine, theirs, wrote, last)
		}
		other.unmount(ctx, t, there)
		c.detach(ctx, t, moving, other)

		lost.stopWriting(ctx, t)
		lost.unmount(ctx, t, v)
		lost.checkNothingLeft(ctx, t)
		c.use(ctx, t, lost)
		fresh := c.attached(ctx, t, next, lost)
		file := unitFile(ctx, t, env, fresh)
		lost.mount(ctx, t, fresh)
		lost.unmount(ctx, t, fresh)
		fill(t, file)
		if !isWhole(t, file) {
			t.Error("the pattern is not there")
		}
		c.detach(ctx, t, next, lost)
	})

	for _, class := range []string{"open", "wrong"} {
		guarded := class == "open"
		t.Run("the array lets a partitioned node in: "+class, func(t *testing.T) {
			held, victim := c.claim(ctx, t, "held-"+class, class), c.claim(ctx, t, "victim-"+class, class)
			v := c.attach(ctx, t, held, lost)
			lost.mount(ctx, t, v)
			lost.write(ctx, t, v)
			c.use(ctx, t, lost)
			must(t, lost.Pause())
			var back <-chan time.Time
			if guarded {
				back = time.After(partition())
			}
			c.giveUp(ctx, t, held, lost)
			if guarded {
				c.detached(ctx, t, held, lost)
				c.ask(ctx, t, held, other)
				c.says(ctx, t, held, other, "is still staged on node "+lost.name, "out-of-service")
			} else {
				c.detached(ctx, t, held, lost)
			}
			theirs := c.attach(ctx, t, victim, other)
			file := unitFile(ctx, t, env, theirs)
			fill(t, file)
			if guarded {
				<-back
			}
			must(t, lost.Resume())
			time.Sleep(15 * time.Second)
			if whole := isWhole(t, file); whole != guarded {
				t.Errorf("another volume is whole: %t; with the right policy: %t", whole, guarded)
			}
			lost.stopWriting(ctx, t)
			if guarded {
				last := lost.counter(ctx, t, v, lost.name)
				lost.unmount(ctx, t, v)
				c.use(ctx, t, lost)
				there := c.attached(ctx, t, held, other)
				other.mount(ctx, t, there)
				if got := other.counter(ctx, t, there, lost.name); got != last {
					t.Errorf("the counter was %d, and is %d", last, got)
				}
				other.unmount(ctx, t, there)
				c.detach(ctx, t, held, other)
			} else {
				// Its mount is of another volume's bytes now.
				lost.run(ctx, t, "umount -l "+podPath(v)+" "+stagingPath(v)+"; true")
				must(t, retry(ctx, func() error { return lost.unpublish(ctx, v) }))
				must(t, retry(ctx, func() error { return lost.unstage(ctx, v) }))
				c.use(ctx, t, lost)
			}
			c.detach(ctx, t, victim, other)
			lost.checkNothingLeft(ctx, t)
		})
	}

	t.Run("a disk that kubelet forgot", func(t *testing.T) {
		forgotten, next := c.claim(ctx, t, "forgotten", "masked"), c.claim(ctx, t, "after", "masked")
		v := c.attach(ctx, t, forgotten, lost)
		lost.mount(ctx, t, v)
		// The kernel would zero inode tables for minutes; against that, only kubelet's
		// word helps.
		lost.run(ctx, t, "mount -o remount,noinit_itable "+stagingPath(v)+"; sync")
		c.detach(ctx, t, forgotten, lost)
		fresh := c.attach(ctx, t, next, lost)
		file := unitFile(ctx, t, env, fresh)
		fill(t, file)
		err := lost.stage(ctx, t, fresh, "")
		if err == nil || !strings.Contains(err.Error(), v.id) {
			t.Errorf("a volume is staged over the disk of %s: %v", v.id, err)
		}
		if !isWhole(t, file) {
			t.Error("the forgotten mount has changed another volume")
		}
		must(t, retry(ctx, func() error { return lost.unpublish(ctx, v) }))
		must(t, retry(ctx, func() error { return lost.unstage(ctx, v) }))
		if !isWhole(t, file) {
			t.Error("the end of the forgotten mount has changed another volume")
		}
		must(t, retry(ctx, func() error { return lost.stage(ctx, t, fresh, "") }))
		must(t, retry(ctx, func() error { return lost.unstage(ctx, fresh) }))
		if !isWhole(t, file) {
			t.Error("staging a raw volume has changed it")
		}
		c.detach(ctx, t, next, lost)
		lost.checkNothingLeft(ctx, t)
	})

	for _, when := range []string{"before the volume is unmounted", "while the volume is unmounted"} {
		t.Run("a map that queues loses its disks "+when, func(t *testing.T) {
			c.losesDisks(ctx, t, env, lost, other, strings.HasPrefix(when, "while"))
		})
	}

	t.Run("a power failure, and an administrator's word", func(t *testing.T) {
		pv := c.claim(ctx, t, "powered", "open")
		v := c.attach(ctx, t, pv, lost)
		lost.mount(ctx, t, v)
		lost.write(ctx, t, v)
		c.use(ctx, t, lost)
		last := lost.counter(ctx, t, v, lost.name)
		lost.Kill()
		c.detach(ctx, t, pv, lost)
		c.ask(ctx, t, pv, other)
		c.says(ctx, t, pv, other, "is still staged on node "+lost.name, "out-of-service")
		tainted := time.Now()
		node, err := c.Client.CoreV1().Nodes().Get(ctx, lost.name, metav1.GetOptions{})
		must(t, err)
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: corev1.TaintNodeOutOfService, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute})
		_, err = c.Client.CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{})
		must(t, err)
		there := c.attached(ctx, t, pv, other)
		other.mount(ctx, t, there)
		took := time.Since(tainted)
		t.Logf("the volume is mounted on the other node %.1f s after the taint", took.Seconds())
		if took > time.Minute {
			t.Errorf("the volume is mounted on the other node after %s", took)
		}
		if got := other.counter(ctx, t, there, lost.name); got < last {
			t.Errorf("the counter is %d, and was %d before", got, last)
		}
		other.unmount(ctx, t, there)
		c.detach(ctx, t, pv, other)
	})

	must(t, c.DeleteClaims(ctx, "team-c"))
	must(t, c.WaitForNoPersistentVolumes(ctx, csiProvisioner))
}
