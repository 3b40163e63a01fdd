//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/test/e2e/kubelet"
	"github.com/standalone-cinder/standalone-cinder/test/e2e/rig"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

const (
	// groupsVariable says how many groups the test of frozen filesystems takes.
	groupsVariable = "FROZEN_GROUPS"
	// killEvery is after how many groups the node plugin is killed in the middle of one. Each
	// time, the kubelet waits twice as long before it starts the plugin again.
	killEvery = 50
)

// groupsOfPods are the two claims of a pod, which writes each record to the first and then
// to the second.
type groupsOfPods struct {
	*kubeletCluster
	*snapshotclient.Clientset
	handles [2]string
}

// TestGroupsOfPodsShowOneMoment: the kubelet, the node plugin, the csi-snapshotter, the
// snapshot-controller and Cinder are real. With the nodes' filesystems frozen, the second
// volume is never ahead of the first; without, it is.
func TestGroupsOfPodsShowOneMoment(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Minute)
	defer cancel()
	groups := 6
	if text := os.Getenv(groupsVariable); text != "" {
		var err error
		groups, err = strconv.Atoi(text)
		must(t, err)
	}
	env, err := rig.Load(rig.EnvFile())
	must(t, err)
	c := startKubeletsWith(ctx, t, kubeletOptions{suite: harness.SuiteOptions{Snapshots: true, Snapshotter: true}, classes: []string{"files", "xfs"}, policy: fmt.Sprintf(`
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
clusterID: e2e-kubelet
defaults: {mode: csi}
backends:
  - {name: lab, auth: {noauth: {endpoint: %q, user: %s, project: "%032x"}}}
tenants:
  - name: team-c
    namespaces: [team-c]
    classes:
      - {storageClasses: [files], backends: [lab], volumeType: %[4]s, fsType: ext4, groups: true}
      - {storageClasses: [xfs], backends: [lab], volumeType: %[4]s, fsType: xfs, groups: true}
`, env.Noauth.Endpoint, env.Noauth.User, kubeletProject, env.Types.ISCSI)}, "node-1")
	must(t, c.InstallSnapshots(ctx))
	snapshotter, err := c.Snapshotter(ctx, csiProvisioner)(c.socket)
	must(t, err)
	t.Cleanup(snapshotter.Stop)
	c.logs["csi-snapshotter"] = snapshotter.Log
	client, err := snapshotclient.NewForConfig(c.Config)
	must(t, err)
	g := &groupsOfPods{kubeletCluster: c, Clientset: client}
	for i, class := range []string{"files", "xfs"} {
		pv := c.bound(ctx, t, harness.Claim("team-c", class, class, "1Gi", func(claim *corev1.PersistentVolumeClaim) { claim.Labels = map[string]string{"group": "both"} }))
		g.handles[i] = pv.Spec.CSI.VolumeHandle
	}
	c.create(ctx, t, c.pod("pair", "files", func(pod *corev1.Pod) {
		container := &pod.Spec.Containers[0]
		container.Args = []string{"pair", "/data", "/more"}
		container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: "more", MountPath: "/more"})
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "more", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "xfs"}}})
	}))
	c.runs(ctx, t, "pair")

	t.Run("without freezing", func(t *testing.T) {
		g.class(ctx, t, "none")
		for i := range 40 {
			if numbers := g.take(ctx, t, "none", nil); numbers[1] > numbers[0] {
				t.Logf("group %d has the second volume ahead of the first: %v", i+1, numbers)
				return
			}
		}
		t.Error("the second volume is never ahead, so the test of frozen filesystems would show nothing")
	})
	t.Run("frozen", func(t *testing.T) {
		g.class(ctx, t, "filesystem")
		began, killed := time.Now(), 0
		for i := range groups {
			var meanwhile func()
			if i%killEvery == 2 {
				killed++
				meanwhile = func() {
					time.Sleep(time.Duration(i*37%1500) * time.Millisecond)
					_, _ = c.nodes["node-1"].Run(ctx, `pkill -9 -f '^[^ ]*standalone-cinder node --'`)
				}
			}
			if numbers := g.take(ctx, t, "filesystem", meanwhile); numbers[1] > numbers[0] || numbers[0] > numbers[1]+1 {
				t.Fatalf("group %d has the records %v", i, numbers)
			}
		}
		t.Logf("%d groups in %s, with %d plugins killed; a record took up to %d ms", groups, time.Since(began).Round(time.Second), killed, g.longest(ctx, t))
	})
	t.Run("nothing is left", func(t *testing.T) { c.nothingLeft(ctx, t) })
}

func (g *groupsOfPods) class(ctx context.Context, t *testing.T, consistency string) {
	t.Helper()
	_, err := g.GroupsnapshotV1().VolumeGroupSnapshotClasses().Create(ctx, &groupv1.VolumeGroupSnapshotClass{
		ObjectMeta: metav1.ObjectMeta{Name: consistency}, Driver: wire.DriverName, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
		Parameters: map[string]string{"consistency": consistency},
	}, metav1.CreateOptions{})
	must(t, err)
}

// take takes the snapshots of both volumes, returns how many records each has, and removes
// them.
func (g *groupsOfPods) take(ctx context.Context, t *testing.T, class string, meanwhile func()) (numbers [2]int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 6*time.Minute)
	defer cancel()
	groups := g.GroupsnapshotV1().VolumeGroupSnapshots("team-c")
	_, err := groups.Create(ctx, &groupv1.VolumeGroupSnapshot{ObjectMeta: metav1.ObjectMeta{Name: "both"}, Spec: groupv1.VolumeGroupSnapshotSpec{
		VolumeGroupSnapshotClassName: &class, Source: groupv1.VolumeGroupSnapshotSource{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"group": "both"}}},
	}}, metav1.CreateOptions{})
	must(t, err)
	if meanwhile != nil {
		meanwhile()
	}
	var content *groupv1.VolumeGroupSnapshotContent
	must(t, harness.Eventually(ctx, func() (string, error) {
		group, err := groups.Get(ctx, "both", metav1.GetOptions{})
		if err != nil || group.Status == nil || group.Status.ReadyToUse == nil || !*group.Status.ReadyToUse || group.Status.BoundVolumeGroupSnapshotContentName == nil {
			return fmt.Sprintf("the group is not ready: %+v", group.Status), err
		}
		content, err = g.GroupsnapshotV1().VolumeGroupSnapshotContents().Get(ctx, *group.Status.BoundVolumeGroupSnapshotContentName, metav1.GetOptions{})
		return "", err
	}))
	for i, handle := range g.handles {
		for _, member := range content.Status.VolumeSnapshotInfoList {
			if member.VolumeHandle == handle {
				numbers[i] = g.records(t, path.Base(member.SnapshotHandle))
			}
		}
		if numbers[i] == 0 {
			t.Fatalf("the group has no records of %s: %+v", handle, content.Status)
		}
	}
	must(t, groups.Delete(ctx, "both", metav1.DeleteOptions{}))
	must(t, harness.Eventually(ctx, func() (string, error) {
		_, err := groups.Get(ctx, "both", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			_, err = g.GroupsnapshotV1().VolumeGroupSnapshotContents().Get(ctx, content.Name, metav1.GetOptions{})
		}
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return "the group, or its content, is still there", err
	}))
	return numbers
}

// records returns how many records a snapshot has. The rig keeps it in a file, of which a
// copy is mounted, since that replays a journal.
func (g *groupsOfPods) records(t *testing.T, snapshot string) int64 {
	t.Helper()
	dir := t.TempDir()
	disk, at := filepath.Join(dir, "disk"), filepath.Join(dir, "mounted")
	must(t, os.Mkdir(at, 0o700))
	for _, command := range [][]string{
		{"cp", "--sparse=always", filepath.Join(g.env.StateDirectory, "data/volumes", g.env.Types.ISCSI, "snapshot-"+snapshot), disk},
		{"mount", "-o", "loop", disk, at},
	} {
		if output, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", command, err, output)
		}
	}
	info, err := os.Stat(filepath.Join(at, "records"))
	if output, unmounted := exec.Command("umount", at).CombinedOutput(); unmounted != nil {
		t.Fatalf("umount: %v: %s", unmounted, output)
	}
	must(t, os.Remove(disk))
	must(t, err)
	return info.Size() / 512
}

var bothLine = regexp.MustCompile(`wrote \d+ of both, each within (\d+) ms`)

// longest returns the longest time that a record took, in milliseconds.
func (g *groupsOfPods) longest(ctx context.Context, t *testing.T) (longest int) {
	t.Helper()
	log, err := kubelet.ContainerLog(ctx, g.nodes["node-1"].Machine, "team-c", "pair")
	must(t, err)
	for _, line := range bothLine.FindAllStringSubmatch(log, -1) {
		ms, err := strconv.Atoi(line[1])
		must(t, err)
		longest = max(longest, ms)
	}
	return longest
}
