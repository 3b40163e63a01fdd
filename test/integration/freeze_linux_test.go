package integration

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/freeze"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodeuse"
)

// frozenNode is this machine with a node plugin, and two volumes whose disks are files. A
// writer puts each number into the first volume, and then into the second.
type frozenNode struct {
	*testing.T
	dir     string
	volumes []*corev1.PersistentVolume
	plugin  *exec.Cmd
	// guards counts those that were killed.
	guards  int
	written atomic.Uint64
	// longest is the longest that the writer has waited, in nanoseconds.
	longest atomic.Int64
}

func (n *frozenNode) image(i int) string { return filepath.Join(n.dir, fmt.Sprint("disk-", i)) }
func (n *frozenNode) at(i int) string    { return filepath.Join(n.dir, fmt.Sprint("staged-", i)) }

func (n *frozenNode) run(tool string, arguments ...string) string {
	n.Helper()
	output, err := exec.Command(tool, arguments...).CombinedOutput()
	if err != nil {
		n.Fatalf("%s %s: %v: %s", tool, strings.Join(arguments, " "), err, output)
	}
	return strings.TrimSpace(string(output))
}

// newFrozenNode stages two volumes, as a plugin's state files tell it.
func newFrozenNode(t *testing.T, name string, filesystems ...string) *frozenNode {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can mount")
	}
	// The path of a socket must be short.
	dir, err := os.MkdirTemp("", "frozen")
	if err != nil {
		t.Fatal(err)
	}
	n := &frozenNode{T: t, dir: dir}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.MkdirAll(filepath.Join(n.dir, "state/volumes"), 0o700), os.MkdirAll(filepath.Join(n.dir, "kubelet/plugins_registry"), 0o700),
		os.MkdirAll(filepath.Join(n.dir, "kubelet/plugins", wire.DriverName), 0o700)); err != nil {
		t.Fatal(err)
	}
	nodes, attachments := suite.Client.CoreV1().Nodes(), suite.Client.StorageV1().VolumeAttachments()
	if _, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = nodes.Delete(context.Background(), name, metav1.DeleteOptions{}) })
	for i, filesystem := range filesystems {
		id := fmt.Sprintf("86a25cac-e84c-4ef1-816f-76fcd478ceb%d", i)
		if err := errors.Join(os.WriteFile(n.image(i), nil, 0o600), os.Truncate(n.image(i), 320<<20), os.Mkdir(n.at(i), 0o700)); err != nil {
			t.Fatal(err)
		}
		n.run("mkfs."+filesystem, "-q", n.image(i))
		if output, err := exec.Command("mount", "-o", "loop", n.image(i), n.at(i)).CombinedOutput(); err != nil {
			t.Skipf("there are no loop devices: %v: %s", err, output)
		}
		t.Cleanup(func() {
			_ = exec.Command("fsfreeze", "--unfreeze", n.at(i)).Run()
			n.run("umount", n.at(i))
		})
		device := strings.TrimPrefix(n.run("findmnt", "--noheadings", "--output", "SOURCE", n.at(i)), "/dev/")
		record, _ := json.Marshal(map[string]any{"version": 1, "volume": "gold/" + id, "boot": strings.TrimSpace(string(boot)), "protocol": "iscsi",
			"stagingPath": n.at(i), "filesystem": filesystem, "device": device, "staged": true})
		if err := os.WriteFile(filepath.Join(n.dir, "state/volumes", "gold%2F"+id+".json"), record, 0o600); err != nil {
			t.Fatal(err)
		}
		pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(name, "-", i)}}
		pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: wire.DriverName, VolumeHandle: "gold/" + id}
		n.volumes = append(n.volumes, pv)
		attachment := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: pv.Name}, Spec: storagev1.VolumeAttachmentSpec{
			Attacher: wire.DriverName, NodeName: name, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv.Name},
		}}
		if _, err := attachments.Create(t.Context(), attachment, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = attachments.Delete(context.Background(), pv.Name, metav1.DeleteOptions{}) })
	}
	return n
}

// start starts the plugin, and returns when it follows orders.
func (n *frozenNode) start(name string) {
	n.Helper()
	kubeconfig, err := suite.Administrator("", "", nil)
	if err != nil {
		n.Fatal(err)
	}
	log, err := os.OpenFile(filepath.Join(n.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		n.Fatal(err)
	}
	defer log.Close()
	n.plugin = exec.Command(suite.Program, "node", "--node-name="+name, "--namespace=standalone-cinder", "--kubeconfig="+kubeconfig,
		"--kubelet-dir="+filepath.Join(n.dir, "kubelet"), "--state-dir="+filepath.Join(n.dir, "state"), "--verbosity=4")
	n.plugin.Stdout, n.plugin.Stderr = log, log
	if err := n.plugin.Start(); err != nil {
		n.Fatal(err)
	}
}

func (n *frozenNode) kill() {
	_ = n.plugin.Process.Kill()
	_ = n.plugin.Wait()
}

// killGuards kills what has the filesystems frozen, and keeps the plugin from noticing.
func (n *frozenNode) killGuards() {
	_ = n.plugin.Process.Signal(syscall.SIGSTOP)
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range all {
		line, _ := os.ReadFile(file)
		var pid int
		if words := strings.Split(string(line), "\x00"); len(words) < 3 || words[2] != "guard" || !strings.Contains(string(line), n.dir) {
			continue
		}
		if _, err := fmt.Sscanf(file, "/proc/%d/", &pid); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			n.guards++
		}
	}
}

// write writes until the context ends. What it has written is on the disk, as a database
// wants it.
func (n *frozenNode) write(ctx context.Context) {
	var files []*os.File
	for i := range n.volumes {
		file, err := os.Create(filepath.Join(n.at(i), "number"))
		if err != nil {
			n.Error(err)
			return
		}
		defer file.Close()
		files = append(files, file)
	}
	for number := uint64(1); ctx.Err() == nil; number++ {
		began := time.Now()
		for _, file := range files {
			if _, err := file.WriteAt(binary.BigEndian.AppendUint64(nil, number), 0); err != nil {
				n.Error(err)
			}
			if err := file.Sync(); err != nil {
				n.Error(err)
			}
		}
		n.longest.Store(max(n.longest.Load(), int64(time.Since(began))))
		n.written.Store(number)
	}
}

// writes reports whether the writer goes on within a time.
func (n *frozenNode) writes(within time.Duration) bool {
	before := n.written.Load()
	for deadline := time.Now().Add(within); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if n.written.Load() > before+1 {
			return true
		}
	}
	return false
}

// snapshot copies the disks one after another, and returns the numbers in the copies.
func (n *frozenNode) snapshot() func() []uint64 {
	n.Helper()
	for i := range n.volumes {
		n.run("cp", "--sparse=always", n.image(i), n.image(i)+"-copy")
	}
	return func() (numbers []uint64) {
		for i := range n.volumes {
			at := n.at(i) + "-copy"
			n.run("mkdir", "-p", at)
			options := "loop"
			if filesystem := n.run("findmnt", "--noheadings", "--output", "FSTYPE", n.at(i)); filesystem == "xfs" {
				options += ",nouuid"
			}
			n.run("mount", "-o", options, n.image(i)+"-copy", at)
			content, err := os.ReadFile(filepath.Join(at, "number"))
			n.run("umount", at)
			if err != nil || len(content) != 8 {
				n.Fatalf("%d bytes, %v", len(content), err)
			}
			numbers = append(numbers, binary.BigEndian.Uint64(content))
		}
		return numbers
	}
}

// gate is open.
type gate struct{}

func (gate) Close(wire.Handle) bool { return true }
func (gate) Open(wire.Handle)       {}

// TestSnapshotsOfFrozenVolumesShowOneMoment with a real kernel: the second volume is never
// ahead of the first, although a writer writes all the time; without freezing, it is. Now
// and then the plugin is killed, alone or with what has the filesystems frozen.
//
//tier:outage
func TestSnapshotsOfFrozenVolumesShowOneMoment(t *testing.T) {
	const name, groups = "frozennode", 200
	n := newFrozenNode(t, name, "ext4", "xfs")
	n.start(name)
	defer func() {
		n.kill()
		if log, err := os.ReadFile(filepath.Join(n.dir, "log")); err == nil && t.Failed() {
			t.Logf("%s", log)
		}
	}()
	ctx, stop := context.WithCancel(t.Context())
	var writing sync.WaitGroup
	writing.Go(func() { n.write(ctx) })
	defer writing.Wait()
	defer stop()
	for deadline := time.Now().Add(10 * time.Second); !n.writes(time.Second); {
		if time.Now().After(deadline) {
			t.Fatal("nothing is written")
		}
	}

	ahead := 0
	for range 10 {
		if numbers := n.snapshot()(); numbers[1] > numbers[0] {
			ahead++
		}
	}
	if ahead == 0 {
		t.Error("the second volume is never ahead although nothing is frozen, so this test shows nothing")
	}

	f := freeze.New(freeze.Options{Client: suite.Client, Namespace: "standalone-cinder", Uses: nodeuse.New(nodeuse.Options{Client: suite.Client}), Gate: gate{}, AtMost: 5 * time.Second, Logger: slog.New(slog.DiscardHandler)})
	random := rand.New(rand.NewPCG(1, 2))
	taken, lost, killed := 0, 0, 0
	n.longest.Store(0)
	for group := range groups {
		killing := make(chan struct{})
		kill := group%40 == 18 || group%40 == 19
		if kill {
			killed++
			go func() {
				defer close(killing)
				time.Sleep(time.Duration(random.IntN(400)) * time.Millisecond)
				if group%2 == 1 {
					n.killGuards()
				}
				n.kill()
			}()
		}
		if group == groups/2 {
			// A leader that was killed asks for no thaw.
			short := f.Options
			short.AtMost = 2 * time.Second
			if _, err := freeze.New(short).Freeze(t.Context(), n.volumes); err != nil || n.writes(time.Second) || !n.writes(5*time.Second) {
				t.Errorf("nothing is thawed without a leader, or nothing was frozen: %v", err)
			}
		}
		thaw, err := f.Freeze(t.Context(), n.volumes)
		var read func() []uint64
		if err == nil {
			read = n.snapshot()
			err = thaw(t.Context())
		}
		if kill {
			<-killing
			if group%2 != 1 && !n.writes(5*time.Second) {
				t.Errorf("group %d: without the plugin, nothing is thawed", group)
			}
			n.start(name)
			if !n.writes(20 * time.Second) {
				t.Errorf("group %d: after the plugin was killed, nothing is thawed", group)
			}
		}
		switch {
		case err == nil:
			taken++
			if numbers := read(); numbers[1] > numbers[0] || numbers[0] > numbers[1]+1 {
				t.Errorf("group %d: the numbers are %v", group, numbers)
			}
		case kill:
			lost++
			t.Logf("killed: %v", err)
			time.Sleep(2 * time.Second) // The next plugin must have begun to follow.
			n.longest.Store(0)
		default:
			t.Errorf("group %d: %v", group, err)
		}
		if t.Failed() {
			return
		}
	}
	t.Logf("%d of %d groups taken, %d of %d lost with a plugin that was killed (%d with its guard); %d of 10 without freezing were inconsistent; after the last kill, the writer waited at most %s",
		taken, groups, lost, killed, n.guards, ahead, time.Duration(n.longest.Load()).Round(time.Millisecond))
	if !n.writes(10 * time.Second) {
		t.Error("something is left frozen")
	}
}
