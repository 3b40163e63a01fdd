//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/test/demo/tour"
	"github.com/standalone-cinder/standalone-cinder/test/e2e/rig"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// storyVariable names the descriptor to which the story is told: the standard output and
// error of a test are full of what no visitor wants to read.
const storyVariable = "DEMO_STORY"

// demo is the part of the tour that needs nodes.
type demo struct {
	*kubeletCluster
	out *tour.Printer
	// text is what the first pod writes.
	text string
}

// TestDemoOnNodes is the second part of make demo NODES=2. Whatever it says, it has verified.
func TestDemoOnNodes(t *testing.T) {
	descriptor, err := strconv.Atoi(os.Getenv(storyVariable))
	if err != nil {
		t.Skip("make demo NODES=2 runs it")
	}
	// A process that outlives the test must not keep the reader waiting.
	syscall.CloseOnExec(descriptor)
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Hour, errors.New("it takes longer than an hour"))
	defer cancel()
	// An interrupt ends the machines, too.
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	ctx, abort := context.WithCancelCause(ctx)
	d := &demo{out: tour.NewPrinter(os.NewFile(uintptr(descriptor), "story"), abort)}
	defer func() {
		switch {
		case ctx.Err() != nil:
			d.out.Say("")
			d.out.Say("Stopped: %s. Cleaning up.", context.Cause(ctx))
		case t.Failed():
			d.out.Say("")
			d.out.Say("NOT AS EXPECTED. Cleaning up.")
		}
	}()
	begun := time.Now()
	d.startNodes(ctx, t)
	started := time.Now()
	pod := d.writesText(ctx, t)
	pod = d.losesNode(ctx, t, pod)
	d.growsClaim(ctx, t, pod)
	d.nodeComesBack(ctx, t)
	d.restoresSnapshot(ctx, t, pod)
	d.deletesAll(ctx, t, pod)
	d.out.Step("The end")
	d.out.Say("Starting took %.0f s, the rest %.0f s.", started.Sub(begun).Seconds(), time.Since(started).Seconds())
}

func (d *demo) startNodes(ctx context.Context, t *testing.T) {
	d.out.Step("Two nodes, and a real Cinder")
	d.out.Say("Building what runs on nodes, and booting two virtual machines without hardware acceleration: 2 minutes, or about 15 on two cores if nothing is compiled yet.")
	stop := d.out.EveryMinute("still starting")
	d.kubeletCluster = newDemoCluster(ctx, t)
	stop()
	rows := [][]string{{"NODE", "KUBELET", "CONTAINERS", "OPERATING SYSTEM", "KERNEL"}}
	nodes, err := d.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	must(t, err)
	for i := range nodes.Items {
		info := nodes.Items[i].Status.NodeInfo
		rows = append(rows, []string{nodes.Items[i].Name, info.KubeletVersion, info.ContainerRuntimeVersion, info.OSImage, info.KernelVersion})
	}
	d.out.Table(rows)
	d.out.Say("Cinder, Keystone, RabbitMQ, MariaDB and tgt run here as Debian packages them; Cinder is at %s. The program is in mode csi, with csi-attacher, csi-resizer and csi-snapshotter; its node plugin runs on both nodes, as the DaemonSet of deploy/components/csi.",
		d.env.Noauth.Endpoint)
}

// newDemoCluster returns a cluster with all that mode csi has.
func newDemoCluster(ctx context.Context, t *testing.T) *kubeletCluster {
	t.Helper()
	env, err := rig.Load(rig.EnvFile())
	must(t, err)
	c := startKubeletsWith(ctx, t, kubeletOptions{
		suite: harness.SuiteOptions{Snapshots: true, Snapshotter: true}, policy: kubeletPolicy(env), classes: []string{"files"},
	}, "node-1", "node-2")
	must(t, c.InstallSnapshots(ctx))
	snapshotter, err := c.Snapshotter(ctx, csiProvisioner)(c.socket)
	must(t, err)
	t.Cleanup(snapshotter.Stop)
	c.logs["csi-snapshotter"] = snapshotter.Log
	return c
}

// cinders is what Cinder says of a volume.
type cinders struct {
	Status      string
	Size        int
	Attachments []struct {
		Host string `json:"host_name"`
	}
}

func (d *demo) atCinder(ctx context.Context, t *testing.T, claim string) (id string, volume cinders) {
	t.Helper()
	found, err := d.Client.CoreV1().PersistentVolumeClaims("team-c").Get(ctx, claim, metav1.GetOptions{})
	must(t, err)
	id = volumeID(t, d.served(ctx, t, found))
	var answer struct{ Volume cinders }
	must(t, askProject(ctx, d.env, fmt.Sprintf("%032x", kubeletProject), "/volumes/"+id, &answer))
	return id, answer.Volume
}

// showUse shows a pod and its volume, which must be attached to a node, and to no other.
func (d *demo) showUse(ctx context.Context, t *testing.T, pod, claim, node string) {
	t.Helper()
	found, err := d.Client.CoreV1().Pods("team-c").Get(ctx, pod, metav1.GetOptions{})
	must(t, err)
	id, volume := d.atCinder(ctx, t, claim)
	// The program adds its cluster's mark to the name.
	if len(volume.Attachments) != 1 || !strings.HasPrefix(volume.Attachments[0].Host, node+".") || volume.Status != "in-use" {
		t.Fatalf("Cinder says that the volume of claim %s is %+v, want it attached to %s", claim, volume, node)
	}
	d.out.Table([][]string{
		{"POD", "PHASE", "NODE", "CLAIM", "VOLUME AT CINDER", "STATUS", "ATTACHED TO"},
		{pod, string(found.Status.Phase), found.Spec.NodeName, claim, id, volume.Status, volume.Attachments[0].Host},
	})
}

// reads waits until a pod has found the text and goes on writing.
func (d *demo) reads(ctx context.Context, t *testing.T, pod string) writer {
	t.Helper()
	w := d.writes(ctx, t, pod)
	if w.text != d.text {
		t.Fatalf("pod %s reads %q, and the first has written %q", pod, w.text, d.text)
	}
	return w
}

func (d *demo) writesText(ctx context.Context, t *testing.T) (pod string) {
	d.out.Step("A pod on node-1 writes to its claim")
	d.text = "Written on node-1 at " + time.Now().UTC().Format(time.DateTime) + " UTC, to outlive it."
	created := time.Now()
	d.claim(ctx, t, "notes", "files")
	bound := time.Since(created)
	d.deploy(ctx, t, "notes", "node-1", d.text)
	pod = d.worksOn(ctx, t, "node-1")
	d.reads(ctx, t, pod)
	d.out.Say("Claim notes of 1 GiB was bound after %.1f s, and a pod with it writes after %.0f s:", bound.Seconds(), time.Since(created).Seconds())
	d.showUse(ctx, t, pod, "notes", "node-1")
	d.out.Say("It has written a text, and goes on with numbered records that have checksums, each flushed before the next:")
	d.out.Quote(d.text)
	return pod
}

func (d *demo) losesNode(ctx context.Context, t *testing.T, first string) (second string) {
	d.out.Step("node-1 loses its power")
	before := d.told(ctx, t, first)
	lost := time.Now()
	d.nodes["node-1"].Kill()
	d.isReady(ctx, t, "node-1", corev1.ConditionUnknown)
	d.out.Say("Its machine was killed while the pod wrote record %d or a later one. %.0f s later, Kubernetes has noticed that the node is silent. It may still write, for all that anybody knows, so the volume stays where it is:",
		before.wrote+1, time.Since(lost).Seconds())
	d.showUse(ctx, t, first, "notes", "node-1")
	d.out.Say("Only an operator can know that it is off, and says so, as docs/how-to/lost-node.md has it:")
	tainted := time.Now()
	d.patchNode(ctx, t, "node-1", outOfService)
	d.out.Command("kubectl taint node node-1 node.kubernetes.io/out-of-service=nodeshutdown:NoExecute")
	second = d.worksOn(ctx, t, "node-2")
	replaced := time.Since(tainted)
	after := d.reads(ctx, t, second)
	if after.found < before.wrote {
		t.Fatalf("the pod had written %d records, and the next found %d", before.wrote, after.found)
	}
	d.out.Table([][]string{
		{fmt.Sprintf("+%.1f s", replaced.Seconds()), "the Deployment has a new pod on node-2"},
		{fmt.Sprintf("+%.1f s", time.Since(tainted).Seconds()), "that pod has the volume, has read the text, and writes:"},
	})
	d.showUse(ctx, t, second, "notes", "node-2")
	d.out.Quote(after.text)
	d.out.Say("It has found %d records, all whole: at least the %d that the first pod had reported.", after.found, before.wrote)
	return second
}

func (d *demo) growsClaim(ctx context.Context, t *testing.T, pod string) {
	d.out.Step("The claim grows, and the filesystem with it")
	before := d.told(ctx, t, pod)
	_, was := d.atCinder(ctx, t, "notes")
	asked := time.Now()
	d.grows(ctx, t, pod, "notes")
	took := time.Since(asked)
	after := d.told(ctx, t, pod)
	_, is := d.atCinder(ctx, t, "notes")
	if was.Size != 1 || is.Size != 2 {
		t.Fatalf("Cinder says that the volume of 1 GiB has %d GiB, and after it grew to 2 GiB, %d GiB", was.Size, is.Size)
	}
	d.out.Command(`kubectl patch pvc notes -n team-c -p '{"spec": {"resources": {"requests": {"storage": "2Gi"}}}}'`)
	mebibytes := func(size int64) string { return fmt.Sprintf("%d MiB", size>>20) }
	d.out.Table([][]string{
		{"", "BEFORE", fmt.Sprintf("AFTER %.0f S", took.Seconds())},
		{"claim", "1Gi", "2Gi"},
		{"volume at Cinder", fmt.Sprintf("%d GiB", was.Size), fmt.Sprintf("%d GiB", is.Size)},
		{"filesystem, as the pod sees it", mebibytes(before.size), mebibytes(after.size)},
		{"records that the pod has written", fmt.Sprint(before.wrote), fmt.Sprint(after.wrote)},
	})
}

func (d *demo) nodeComesBack(ctx context.Context, t *testing.T) {
	d.out.Step("node-1 is back")
	stop := d.out.EveryMinute("still booting")
	booted := time.Now()
	d.comesBack(ctx, t, "node-1")
	stop()
	took := time.Since(booted)
	d.nodes["node-1"].checkNothingLeft(ctx, t)
	if t.Failed() {
		t.FailNow()
	}
	d.out.Command("kubectl taint node node-1 node.kubernetes.io/out-of-service:NoExecute-")
	d.out.Say("It was booted, and is Ready after %.0f s. Nothing there has to do with the volume, which node-2 writes to.", took.Seconds())
}

func (d *demo) restoresSnapshot(ctx context.Context, t *testing.T, pod string) {
	d.out.Step("A snapshot is restored into another claim, for a pod on node-1")
	before := d.told(ctx, t, pod)
	asked := time.Now()
	d.snapshot(ctx, t, wire.DriverName, "notes")
	d.bound(ctx, t, ofSnapshot("2Gi"))
	restored := time.Since(asked)
	written := d.told(ctx, t, pod)
	d.create(ctx, t, d.pod("restored", "restored", func(pod *corev1.Pod) {
		on("node-1")(pod)
		pod.Spec.Containers[0].Args = append(pod.Spec.Containers[0].Args, "The volume was empty.")
	}))
	copied := d.reads(ctx, t, "restored")
	if copied.found < before.wrote || copied.found > written.wrote+100 {
		t.Fatalf("the pod had written %d records before the snapshot and %d after it, and the copy has %d", before.wrote, written.wrote, copied.found)
	}
	d.out.Say("VolumeSnapshot nightly was taken of claim notes while its pod wrote. Claim restored, of that snapshot, was bound %.0f s after it was asked for, and its pod runs after %.0f s:",
		restored.Seconds(), time.Since(asked).Seconds())
	d.showUse(ctx, t, "restored", "restored", "node-1")
	d.out.Quote(copied.text)
	d.out.Say("It has found %d records, all whole. The first volume has %d by now.", copied.found, d.told(ctx, t, pod).wrote)
}

// possessions are what there is, in the order of the rows that show it.
func (d *demo) possessions(ctx context.Context, t *testing.T) (rows []string, counts []int) {
	t.Helper()
	count := func(what string, n int) { rows, counts = append(rows, what), append(counts, n) }
	pvs, err := d.PersistentVolumes(ctx, csiProvisioner)
	must(t, err)
	count("PersistentVolumes", len(pvs))
	attachments, err := d.Client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	must(t, err)
	count("VolumeAttachments", len(attachments.Items))
	contents, err := d.snapshots(t).VolumeSnapshotContents().List(ctx, metav1.ListOptions{})
	must(t, err)
	count("VolumeSnapshotContents", len(contents.Items))
	var at struct {
		Volumes, Snapshots []volume
		Attachments        []attachment
	}
	for _, path := range []string{"/volumes", "/snapshots", "/attachments"} {
		must(t, askProject(ctx, d.env, fmt.Sprintf("%032x", kubeletProject), path, &at))
	}
	count("volumes at Cinder", len(at.Volumes))
	count("snapshots at Cinder", len(at.Snapshots))
	count("attachments at Cinder", len(at.Attachments))
	targets, err := d.env.Targets(ctx)
	must(t, err)
	count("iSCSI targets of tgt", len(targets))
	return rows, counts
}

func (d *demo) deletesAll(ctx context.Context, t *testing.T, pod string) {
	d.out.Step("Everything is deleted")
	names, before := d.possessions(ctx, t)
	begun := time.Now()
	d.undeploy(ctx, t, pod)
	must(t, d.snapshots(t).VolumeSnapshots("team-c").Delete(ctx, "nightly", metav1.DeleteOptions{}))
	must(t, harness.Eventually(ctx, func() (string, error) {
		contents, err := d.snapshots(t).VolumeSnapshotContents().List(ctx, metav1.ListOptions{})
		if err != nil || len(contents.Items) == 0 {
			return "", err
		}
		return "the snapshot is still there", nil
	}))
	d.nothingLeft(ctx, t)
	_, now := d.possessions(ctx, t)
	took := time.Since(begun)
	rows := [][]string{{"", "BEFORE", fmt.Sprintf("AFTER %.0f S", took.Seconds())}}
	for i, name := range names {
		rows = append(rows, []string{name, fmt.Sprint(before[i]), fmt.Sprint(now[i])})
		if before[i] == 0 || now[i] > 0 {
			t.Errorf("there were %d %s, and %d are left", before[i], name, now[i])
		}
	}
	d.noPassword(ctx, t)
	if t.Failed() {
		t.FailNow()
	}
	d.out.Command("kubectl delete deployment,pod,volumesnapshot,pvc --all -n team-c")
	d.out.Table(rows)
	d.out.Say("No node has a session, a disk or a mount left, and none of the %d passwords of CHAP is in any log of the cluster, its nodes or the program.", len(d.passwords))
}
