//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

const (
	// cinderIQN is what the names of Cinder's targets begin with.
	cinderIQN = "iqn.2010-10.org.openstack:volume-"
	// arrayIQN is the only target of an array, which numbers units for each initiator.
	arrayIQN = "iqn.2026-01.example:array"
	// nativeInitiator is the cluster's name for native volumes.
	nativeInitiator       = "iqn.2026-01.example:cluster"
	lioUser, lioPassword  = "mallory-and-alice", "0123456789ab"
	lioFirst, lioSecond   = "127.0.0.1:3260", "127.0.0.2:3260"
	lioConfig, lioVolumes = "/sys/kernel/config/target", "/volumes"
)

// lioTarget has volumes of LIO, the kernel's own iSCSI target, in the node itself.
type lioTarget struct{ *csiNode }

func startLIO(ctx context.Context, t *testing.T) lioTarget {
	t.Helper()
	n := lioTarget{bootNode(ctx, t, "node-lio")}
	n.run(ctx, t, "modprobe -a target_core_mod target_core_file iscsi_target_mod && { mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config; } && mkdir -p "+lioVolumes)
	n.startPlugin(ctx, t)
	return n
}

// lioID returns the ID of a volume. LIO shows only the first 25 digits in the identity of
// the disk.
func lioID(n int) string { return fmt.Sprintf("%08d-9b0a-4c55-8d8e-5d1a7c0e1f2a", n) }

// store makes a volume, as an array has it.
func (n lioTarget) store(ctx context.Context, t *testing.T, id string) {
	t.Helper()
	n.run(ctx, t, fmt.Sprintf(`set -e; f=%[1]s/%[2]s; truncate -s 1G $f; d=%[3]s/core/fileio_0/%[2]s; mkdir -p $d
echo fd_dev_name=$f,fd_dev_size=$((1<<30)),fd_buffered_io=1 > $d/control; echo %[2]s > $d/wwn/vpd_unit_serial; echo 1 > $d/enable`, lioVolumes, id, lioConfig))
}

// show makes a volume a unit of a target, which it makes if there is none, and lets an
// initiator with a password use it under a number of its own.
func (n lioTarget) show(ctx context.Context, t *testing.T, id, target string, unit int, initiator string, number int) {
	t.Helper()
	n.run(ctx, t, fmt.Sprintf(`set -e; g=%[1]s/iscsi/%[2]s/tpgt_1
if ! test -d $g; then mkdir -p $g; for p in %[3]s %[4]s; do mkdir $g/np/$p; done; echo 1 > $g/attrib/authentication; echo 1 > $g/enable; fi
mkdir $g/lun/lun_%[6]d; ln -s %[1]s/core/fileio_0/%[5]s $g/lun/lun_%[6]d/unit
a=$g/acls/%[7]s; mkdir -p $a; echo -n %[9]s > $a/auth/userid; echo -n %[10]s > $a/auth/password
mkdir $a/lun_%[8]d; ln -s $g/lun/lun_%[6]d $a/lun_%[8]d/unit`, lioConfig, target, lioFirst, lioSecond, id, unit, initiator, number, lioUser, lioPassword))
}

// export makes a volume and its target, as Cinder's driver for LIO does.
func (n lioTarget) export(ctx context.Context, t *testing.T, id string, portals ...string) csiVolume {
	t.Helper()
	n.store(ctx, t, id)
	n.show(ctx, t, id, cinderIQN+id, 0, n.initiator, 0)
	return n.volume(t, id, cinderIQN+id, 0, portals...)
}

// volume returns what the plugin is told of a volume.
func (n lioTarget) volume(t *testing.T, id, target string, number int, portals ...string) csiVolume {
	t.Helper()
	c := wire.Connection{Protocol: "iscsi", Credentials: true, Bytes: 1 << 30, Attachment: id}
	for _, portal := range portals {
		c.Paths = append(c.Paths, wire.Path{Portal: portal, Target: target, LUN: number})
	}
	context, err := c.PublishContext()
	must(t, err)
	key, entry, err := wire.SecretEntry(n.name, wire.Credentials{User: lioUser, Password: lioPassword})
	must(t, err)
	return csiVolume{backend: "lab", id: id, attachment: id, context: context, secrets: map[string]string{key: string(entry)}}
}

// sum returns a checksum of the content of a volume, whether or not its zeros are stored.
func (n lioTarget) sum(ctx context.Context, t *testing.T, id string) string {
	t.Helper()
	return n.run(ctx, t, "tar --mtime=@0 --hole-detection=raw -cSf - -C "+lioVolumes+" "+id+" | md5sum")
}

// logIn logs in to the array under the name of the cluster, as a kubelet does for a native
// volume, and returns the disk.
func (n lioTarget) logIn(ctx context.Context, t *testing.T, portal string) string {
	t.Helper()
	n.run(ctx, t, fmt.Sprintf(`set -e; iscsiadm -m iface -I native -o new; iscsiadm -m iface -I native -o update -n iface.initiatorname -v %[1]s
iscsiadm -m node -T %[2]s -p %[3]s -I native -o new
for s in auth.authmethod=CHAP auth.username=%[4]s auth.password=%[5]s; do iscsiadm -m node -T %[2]s -p %[3]s -I native -o update -n node.session.${s%%%%=*} -v ${s#*=}; done
iscsiadm -m node -T %[2]s -p %[3]s -I native --login`, nativeInitiator, arrayIQN, portal, lioUser, lioPassword))
	return strings.TrimSpace(n.run(ctx, t, `for i in $(seq 50); do for s in /sys/class/iscsi_session/session*; do
  test "$(cat $s/initiatorname)" = `+nativeInitiator+` && d=$(ls $s/device/target*/*/block 2>/dev/null) && echo $d && exit 0
done; sleep 0.2; done; exit 1`))
}

func (n lioTarget) logOut(ctx context.Context, t *testing.T, portal string) {
	t.Helper()
	n.run(ctx, t, fmt.Sprintf("iscsiadm -m node -T %[1]s -p %[2]s -I native --logout && iscsiadm -m node -T %[1]s -p %[2]s -I native -o delete; iscsiadm -m iface -I native -o delete", arrayIQN, portal))
}

// writeFiles writes files of random content to a directory, and returns their checksums.
func (n *csiNode) writeFiles(ctx context.Context, t *testing.T, directory string, count int) string {
	t.Helper()
	return n.run(ctx, t, fmt.Sprintf("cd %s && for i in $(seq %d); do head -c 100000 /dev/urandom > %s-$i; done && sync -f . && sha256sum %[3]s-*", directory, count, n.name))
}

// hasFiles verifies the checksums of files.
func (n *csiNode) hasFiles(ctx context.Context, t *testing.T, directory, sums string) {
	t.Helper()
	if output, err := n.RunWith(ctx, strings.NewReader(sums), "cd "+directory+" && sha256sum --quiet -c -"); err != nil {
		t.Errorf("the files in %s: %v\n%s", directory, err, output)
	}
}

// deviceAt returns the kernel's name of the device that is mounted at a path.
func (n *csiNode) deviceAt(ctx context.Context, t *testing.T, at string) string {
	t.Helper()
	return strings.TrimPrefix(strings.TrimSpace(n.run(ctx, t, "findmnt -n -o SOURCE "+at)), "/dev/")
}

// wrap has a script of the node run instead of a program, until the function that it
// returns is called.
func (n *csiNode) wrap(ctx context.Context, t *testing.T, program, script string) (unwrap func()) {
	t.Helper()
	at := "/usr/local/sbin/" + program
	n.run(ctx, t, "cat > "+at+" <<'END'\n#!/bin/sh\n"+script+"\nEND\nchmod 755 "+at)
	return func() { n.run(ctx, t, "rm "+at) }
}

// TestNodeUsesVolumesOfLIO has disks of the kernel's own target, under the names of
// Cinder's driver and behind one name for all volumes.
func TestNodeUsesVolumesOfLIO(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Minute)
	defer cancel()
	n := startLIO(ctx, t)

	for i, filesystem := range []string{"ext4", "xfs", ""} {
		t.Run("a volume of "+filesystem, func(t *testing.T) {
			v := n.export(ctx, t, lioID(10+i), [][]string{{lioFirst}, {lioFirst, lioSecond}}[i%2]...)
			var sums string
			for round := range 2 {
				must(t, n.stage(ctx, t, v, filesystem))
				must(t, n.publish(ctx, v, filesystem))
				switch {
				case filesystem == "" && round == 0:
					n.run(ctx, t, "printf 'a node wrote this' | dd of="+podPath(v)+" conv=notrunc,fsync status=none")
				case filesystem == "":
					if content := n.run(ctx, t, "head -c 17 "+podPath(v)); content != "a node wrote this" {
						t.Errorf("the volume has %q", content)
					}
				case round == 0:
					sums = n.writeFiles(ctx, t, podPath(v), 3)
				default:
					n.hasFiles(ctx, t, podPath(v), sums)
				}
				must(t, n.unpublish(ctx, v))
				must(t, n.unstage(ctx, v))
				n.checkNothingLeft(ctx, t)
			}
		})
	}

	t.Run("native volumes of the same target", func(t *testing.T) { n.bothModes(ctx, t) })
	t.Run("e2fsck lasts while its disk's name goes to another volume", func(t *testing.T) { n.disksChange(ctx, t) })
	for i, filesystem := range []string{"ext4", "xfs"} {
		t.Run("mkfs is killed: "+filesystem, func(t *testing.T) { n.mkfsIsKilled(ctx, t, lioID(40+i), filesystem) })
	}
}

// bothModes has native volumes and the driver's on one node, and an array with one target.
// Whichever comes first, nothing of the other mode's volumes may be touched.
func (n lioTarget) bothModes(ctx context.Context, t *testing.T) {
	const ours, next, theirs = 20, 21, 22
	for unit, of := range []struct {
		id        int
		initiator string
		number    int
	}{{ours, n.initiator, 1}, {next, n.initiator, 2}, {theirs, nativeInitiator, 1}} {
		n.store(ctx, t, lioID(of.id))
		n.show(ctx, t, lioID(of.id), arrayIQN, unit, of.initiator, of.number)
	}
	v, other := n.volume(t, lioID(ours), arrayIQN, 1, lioFirst), n.volume(t, lioID(next), arrayIQN, 2, lioFirst)
	blank := n.sum(ctx, t, v.id)

	const native = "/mnt/native"
	disk := n.logIn(ctx, t, lioFirst)
	n.run(ctx, t, fmt.Sprintf("mkfs.ext4 -q /dev/%s && mkdir -p %s && mount /dev/%[1]s %[2]s", disk, native))
	nativeSums := n.writeFiles(ctx, t, native, 5)
	refused := func(v csiVolume) {
		t.Helper()
		if err := n.stage(ctx, t, v, "ext4"); err == nil || !strings.Contains(err.Error(), "ForeignPath: the node is also logged in to target "+arrayIQN+" under the name "+nativeInitiator) {
			t.Errorf("a volume is staged beside a native one: %v", err)
		}
	}
	refused(v)
	// At the other portal, too.
	refused(n.volume(t, lioID(ours), arrayIQN, 1, lioSecond))
	if n.sum(ctx, t, v.id) != blank {
		t.Error("the volume was written")
	}
	n.hasFiles(ctx, t, native, nativeSums)
	n.run(ctx, t, "umount "+native)
	n.logOut(ctx, t, lioFirst)
	n.checkNothingLeft(ctx, t)

	must(t, n.stage(ctx, t, v, "ext4"))
	must(t, n.publish(ctx, v, "ext4"))
	sums := n.writeFiles(ctx, t, podPath(v), 5)
	// A native pod comes all the same.
	disk = n.logIn(ctx, t, lioSecond)
	n.run(ctx, t, "mount /dev/"+disk+" "+native)
	n.hasFiles(ctx, t, native, nativeSums)
	refused(other)
	n.hasFiles(ctx, t, podPath(v), sums)
	must(t, n.unpublish(ctx, v))
	must(t, n.unstage(ctx, v))
	n.run(ctx, t, "echo 3 > /proc/sys/vm/drop_caches")
	n.hasFiles(ctx, t, native, nativeSums)
	nativeSums += n.run(ctx, t, "cd "+native+" && echo later > later && sync -f . && sha256sum later")
	n.run(ctx, t, "umount "+native)
	n.logOut(ctx, t, lioSecond)
	n.checkNothingLeft(ctx, t)

	must(t, n.stage(ctx, t, v, "ext4"))
	must(t, n.stage(ctx, t, other, "ext4"))
	n.hasFiles(ctx, t, stagingPath(v), sums)
	must(t, n.unstage(ctx, v))
	must(t, n.unstage(ctx, other))
	n.checkNothingLeft(ctx, t)
	disk = n.logIn(ctx, t, lioFirst)
	n.run(ctx, t, "mount /dev/"+disk+" "+native)
	n.hasFiles(ctx, t, native, nativeSums)
	n.run(ctx, t, "umount "+native)
	n.logOut(ctx, t, lioFirst)
}

// disksChange takes the disk of a volume away while e2fsck checks it, and gives its name to
// the disk of another volume.
func (n lioTarget) disksChange(ctx context.Context, t *testing.T) {
	v, other := n.export(ctx, t, lioID(30), lioFirst), n.export(ctx, t, lioID(31), lioFirst)
	sums := map[string]string{}
	for _, of := range []csiVolume{v, other} {
		must(t, n.stage(ctx, t, of, "ext4"))
		sums[of.id] = n.writeFiles(ctx, t, stagingPath(of), 5)
		must(t, n.unstage(ctx, of))
	}
	unwrap := n.wrap(ctx, t, "e2fsck", `/usr/sbin/e2fsck "$@"; code=$?
if mkdir /run/checking 2>/dev/null; then while test ! -e /run/checked; do sleep 0.1; done; fi
exit $code`)
	staged := make(chan error, 1)
	n.run(ctx, t, "mkdir -p "+stagingPath(v))
	go func() { staged <- n.stage(ctx, t, v, "ext4") }()
	n.run(ctx, t, "for i in $(seq 600); do test -d /run/checking && exit 0; sleep 0.2; done; exit 1")
	name := strings.TrimSpace(n.run(ctx, t, "ls /sys/class/iscsi_session/*/device/target*/*/block"))
	n.run(ctx, t, "echo 1 > /sys/block/"+name+"/device/delete; for i in $(seq 50); do test -e /sys/block/"+name+" || exit 0; sleep 0.1; done; exit 1")
	must(t, n.stage(ctx, t, other, "ext4"))
	if got := n.deviceAt(ctx, t, stagingPath(other)); got != name {
		t.Errorf("the other volume has the disk %s; this test needs %s", got, name)
	}
	n.run(ctx, t, "touch /run/checked")
	if err := <-staged; err == nil {
		t.Error("a volume whose disk went is staged")
	} else {
		t.Log(err)
	}
	if at := n.run(ctx, t, "grep -F "+stagingPath(v)+" /proc/mounts; true"); at != "" {
		t.Errorf("mounted: %s", at)
	}
	unwrap()
	must(t, n.publish(ctx, other, "ext4"))
	n.hasFiles(ctx, t, podPath(other), sums[other.id])
	must(t, retry(ctx, func() error { return n.stage(ctx, t, v, "ext4") }))
	n.hasFiles(ctx, t, stagingPath(v), sums[v.id])
	if both := n.deviceAt(ctx, t, stagingPath(v)); both == name {
		t.Errorf("both volumes have the disk %s", both)
	}
	sums[v.id] += n.run(ctx, t, "cd "+stagingPath(v)+" && echo later > later && sync -f . && sha256sum later")
	must(t, n.unpublish(ctx, other))
	for _, of := range []csiVolume{v, other} {
		must(t, n.unstage(ctx, of))
	}
	n.checkNothingLeft(ctx, t)
	for _, of := range []csiVolume{v, other} {
		must(t, n.stage(ctx, t, of, "ext4"))
		n.hasFiles(ctx, t, stagingPath(of), sums[of.id])
		must(t, n.unstage(ctx, of))
	}
	n.checkNothingLeft(ctx, t)
}

// killPoints is at how many points of its run mkfs is killed.
func killPoints() int {
	if testing.Short() {
		return 4
	}
	return 20
}

// mkfsIsKilled has mkfs killed at points of its run, from its beginning to its end. The
// volume is usable afterwards, and then never formatted again.
func (n lioTarget) mkfsIsKilled(ctx context.Context, t *testing.T, id, filesystem string) {
	v := n.export(ctx, t, id, lioFirst)
	program := filepath.Join(t.TempDir(), "killat")
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", program, "../killpoint/killat")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	must(t, n.Install(ctx, program, "/opt/killat"))
	killed := func(point int) (stopped int, ended bool) {
		t.Helper()
		unwrap := n.wrap(ctx, t, "mkfs."+filesystem, fmt.Sprintf(`echo %d > /run/point; exec /opt/killat /run/point /run/stopped /usr/sbin/mkfs.%s "$@"`, point, filesystem))
		n.run(ctx, t, "rm -f /run/stopped")
		err := n.stage(ctx, t, v, filesystem)
		unwrap()
		if _, scanErr := fmt.Sscan(n.run(ctx, t, "cat /run/stopped"), &stopped, &ended); scanErr != nil || ended != (err == nil) {
			t.Fatalf("%v, %v", err, scanErr)
		}
		return stopped, ended
	}
	blank := func() { n.run(ctx, t, "truncate -s 0 "+lioVolumes+"/"+id+"; truncate -s 1G "+lioVolumes+"/"+id) }
	all, ended := killed(1 << 30)
	if !ended || all < 100 {
		t.Fatalf("mkfs.%s ended: %t, after %d stops", filesystem, ended, all)
	}
	must(t, n.unstage(ctx, v))
	remains := 0
	for point := range killPoints() {
		blank()
		at := max(all*(point+1)/killPoints()-1, 1)
		killed(at)
		n.checkNothingMounted(ctx, t)
		if n.run(ctx, t, "cmp -n 2097152 /dev/zero "+lioVolumes+"/"+id+" > /dev/null && echo zero; true") == "" {
			remains++
		}
		must(t, retry(ctx, func() error { return n.stage(ctx, t, v, filesystem) }))
		must(t, n.publish(ctx, v, filesystem))
		sums := n.writeFiles(ctx, t, podPath(v), 2)
		must(t, n.unpublish(ctx, v))
		must(t, n.unstage(ctx, v))
		// A volume with data is not formatted, whatever the node remembers.
		unwrap := n.wrap(ctx, t, "mkfs."+filesystem, "echo formatted >> /run/formatted; exit 1")
		must(t, n.stage(ctx, t, v, filesystem))
		n.hasFiles(ctx, t, stagingPath(v), sums)
		must(t, n.unstage(ctx, v))
		unwrap()
		n.run(ctx, t, "test ! -e /run/formatted")
		n.checkNothingLeft(ctx, t)
	}
	t.Logf("mkfs.%s stops %d times; of %d kills, %d left something", filesystem, all, killPoints(), remains)

	// Neither a filesystem of another volume nor what is none is formatted.
	for what, line := range map[string]string{
		"another volume's": fmt.Sprintf("mkfs.%s -q %s", filesystem, map[string]string{"ext4": "-F -U 11111111-2222-4333-8444-555555555555", "xfs": "-f -m uuid=11111111-2222-4333-8444-555555555555"}[filesystem]),
		"unknown":          "echo somebody wrote this | dd conv=notrunc status=none seek=100 of=",
	} {
		blank()
		n.run(ctx, t, line+map[bool]string{true: " ", false: ""}[!strings.HasSuffix(line, "=")]+lioVolumes+"/"+id)
		before := n.sum(ctx, t, id)
		if err := n.stage(ctx, t, v, filesystem); err == nil {
			t.Errorf("%s content is formatted", what)
		}
		if n.sum(ctx, t, id) != before {
			t.Errorf("%s content was changed", what)
		}
		n.checkNothingLeft(ctx, t)
	}
}

// checkNothingMounted makes sure that nothing of a volume is mounted.
func (n *csiNode) checkNothingMounted(ctx context.Context, t *testing.T) {
	t.Helper()
	if at := n.run(ctx, t, "grep -E '/var/lib/kubelet/(plugins/kubernetes.io|pods)' /proc/mounts; true"); at != "" {
		t.Errorf("mounted: %s", at)
	}
}
