//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	snapshotclientv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/typed/volumesnapshot/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/test/deploy"
	"github.com/standalone-cinder/standalone-cinder/test/e2e/kubelet"
	"github.com/standalone-cinder/standalone-cinder/test/e2e/rig"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// programImage is the program's image in a manifest.
var programImage = regexp.MustCompile(`image: ghcr\.io/\S+`)

func nativeNodesPolicy(env rig.Env) string {
	return fmt.Sprintf(`
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
clusterID: e2e-native
backends:
  - name: lab
    auth: {noauth: {endpoint: %[1]q, user: %[2]s, project: "%032[3]x"}}
    connector: {host: k8s-e2e, initiator: %[5]q}
  - name: paths
    auth: {noauth: {endpoint: %[1]q, user: %[2]s, project: "%032[4]x"}}
    connector: {host: k8s-e2e, initiator: %[5]q, multipath: true}
tenants:
  - name: team-c
    namespaces: [team-c]
    classes:
      - {storageClasses: [files], backends: [lab], volumeType: %[6]s, fsType: ext4}
      - {storageClasses: [paths], backends: [paths], volumeType: %[7]s, fsType: ext4}
`, env.Noauth.Endpoint, env.Noauth.User, kubeletProject, kubeletZonedProject, sharedInitiator, env.Types.ISCSI, env.Types.ISCSIMultipath)
}

// TestPodsUseNativeVolumes has two nodes with real kubelets, which mount the volumes by
// themselves: no node has a program of ours, except while kubectl cinder grow has a pod there.
func TestPodsUseNativeVolumes(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
	defer cancel()
	c := startPlainKubelets(ctx, t, harness.SuiteOptions{Snapshots: true}, "node-1", "node-2")
	for _, class := range []string{"files", "paths"} {
		must(t, c.CreateClass(ctx, class, csiProvisioner, nil))
	}
	var err error
	c.replica, err = c.StartReplica(ctx, harness.ReplicaOptions{Policy: nativeNodesPolicy(c.env), Provisioner: csiProvisioner})
	must(t, err)
	t.Cleanup(c.replica.Kill)
	c.logs = map[string]func() string{"the program": c.replica.Log}
	must(t, c.InstallSnapshots(ctx))
	// As the guide on nodes says.
	c.nodes["node-2"].run(ctx, t, `printf 'defaults {\n find_multipaths yes\n no_path_retry 12\n}\noverrides {\n no_path_retry 12\n}\n' > /etc/multipath.conf
multipathd reconfigure && sed -i 's/^node.session.timeo.replacement_timeout.*/node.session.timeo.replacement_timeout = 15/' /etc/iscsi/iscsid.conf`)

	t.Run("at once", func(t *testing.T) {
		t.Run("a filesystem moves, comes back from a snapshot, and grows", func(t *testing.T) {
			t.Parallel()
			pv := c.bound(ctx, t, harness.Claim("team-c", "data", "files", "1Gi", nil))
			c.moves(ctx, t, "writer", "data", nil)
			c.restores(ctx, t, "writer", "data", "node-1")
			c.growsByHand(ctx, t, "writer", pv, "resize2fs /dev/disk/by-path/*"+pv.Spec.ISCSI.IQN+"-lun-*")
		})
		t.Run("a raw device moves and grows", func(t *testing.T) {
			t.Parallel()
			pv := c.bound(ctx, t, harness.Claim("team-c", "raw", "files", "1Gi", func(claim *corev1.PersistentVolumeClaim) {
				block := corev1.PersistentVolumeBlock
				claim.Spec.VolumeMode = &block
			}))
			c.moves(ctx, t, "raw-writer", "raw", raw)
			c.growsByHand(ctx, t, "raw-writer", pv, "")
		})
		t.Run("a filesystem on two paths moves, loses one, and grows", func(t *testing.T) {
			t.Parallel()
			pv := c.bound(ctx, t, harness.Claim("team-c", "paths", "paths", "1Gi", nil))
			if len(pv.Spec.ISCSI.Portals) != 1 {
				t.Errorf("the PersistentVolume has the portals %q beside the first", pv.Spec.ISCSI.Portals)
			}
			c.moves(ctx, t, "paths-writer", "paths", nil)
			c.losesPath(ctx, t, "paths-writer", c.nodes["node-2"])
			c.growsByCommand(ctx, t, "paths-writer", "paths")
		})
	})
	t.Run("a StatefulSet's volume is imported", func(t *testing.T) { c.imports(ctx, t) })
	t.Run("a pod checks each node", func(t *testing.T) { c.checksNodes(ctx, t) })
	t.Run("a claim is deleted while its node flushes", func(t *testing.T) { c.deletesWhileFlushing(ctx, t) })
	t.Run("a node loses its power", func(t *testing.T) { c.losesPower(ctx, t) })
	t.Run("nothing is left", func(t *testing.T) { c.nothingLeft(ctx, t) })
	t.Run("no log has a password", func(t *testing.T) { c.noPassword(ctx, t) })
}

// imports moves the volume of a StatefulSet to a new claim of the same name, as a migration
// from another provisioner does, and logs how long its pod is away.
func (c *kubeletCluster) imports(ctx context.Context, t *testing.T) {
	t.Helper()
	sets, claims, volumes := c.Client.AppsV1().StatefulSets("team-c"), c.Client.CoreV1().PersistentVolumeClaims("team-c"), c.Client.CoreV1().PersistentVolumes()
	labels := map[string]string{"app": "web"}
	pod := c.pod("web", "", func(pod *corev1.Pod) {
		on("node-1")(pod)
		pod.Spec.RestartPolicy, pod.Spec.Volumes = corev1.RestartPolicyAlways, nil
	})
	_, err := sets.Create(ctx, &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.StatefulSetSpec{
		Selector:             &metav1.LabelSelector{MatchLabels: labels},
		Template:             corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod.Spec},
		VolumeClaimTemplates: []corev1.PersistentVolumeClaim{*harness.Claim("team-c", "data", "files", "1Gi", nil)},
	}}, metav1.CreateOptions{})
	must(t, err)
	c.exists(ctx, t, "web-0")
	before := c.writes(ctx, t, "web-0")
	claim, err := claims.Get(ctx, "data-web-0", metav1.GetOptions{})
	must(t, err)
	pv, err := volumes.Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	must(t, err)
	scale := func(replicas int) {
		t.Helper()
		_, err := sets.Patch(ctx, "web", types.MergePatchType, fmt.Appendf(nil, `{"spec": {"replicas": %d}}`, replicas), metav1.PatchOptions{})
		must(t, err)
	}
	began := time.Now()
	scale(0)
	c.gone(ctx, t, "web-0")
	stopped := time.Now()
	_, err = volumes.Patch(ctx, pv.Name, types.MergePatchType, []byte(`{"spec": {"persistentVolumeReclaimPolicy": "Retain"}}`), metav1.PatchOptions{})
	must(t, err)
	must(t, claims.Delete(ctx, "data-web-0", metav1.DeleteOptions{}))
	must(t, harness.Eventually(ctx, func() (string, error) {
		now, err := volumes.Get(ctx, pv.Name, metav1.GetOptions{})
		if err != nil || now.Status.Phase == corev1.VolumeReleased {
			return "", err
		}
		return "the PersistentVolume is " + string(now.Status.Phase), nil
	}))
	must(t, volumes.Delete(ctx, pv.Name, metav1.DeleteOptions{}))
	// An audit would find it (OrphanSecret).
	must(t, c.Client.CoreV1().Secrets(pv.Spec.ISCSI.SecretRef.Namespace).Delete(ctx, pv.Spec.ISCSI.SecretRef.Name, metav1.DeleteOptions{}))
	kubeconfig, err := c.Administrator(t.TempDir(), "", nil)
	must(t, err)
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	must(t, os.WriteFile(policy, []byte(nativeNodesPolicy(c.env)), 0o600))
	// It is refused until the node has let go of the volume.
	must(t, harness.Eventually(ctx, func() (string, error) {
		code, output, err := c.Run(ctx, "volume", "import", "--policy", policy, "--kubeconfig", kubeconfig, "--provisioner-name", csiProvisioner, "--backend", "lab",
			"--volume", pv.Annotations[annotationVolume], "--namespace", "team-c", "--claim", "data-web-0", "--storage-class", "files", "--reclaim-policy", "Delete", "--apply")
		if code == 0 {
			return "", err
		}
		return output, err
	}))
	imported := time.Now()
	scale(1)
	c.exists(ctx, t, "web-0")
	after := c.writes(ctx, t, "web-0")
	t.Logf("the pod was away for %s: %s until it had stopped, %s for the import, %s until it wrote again",
		time.Since(began), stopped.Sub(began), imported.Sub(stopped), time.Since(imported))
	if after.found < before.wrote {
		t.Errorf("the pod wrote %d records before, and found %d after the import", before.wrote, after.found)
	}
	scale(0)
	c.gone(ctx, t, "web-0")
	must(t, sets.Delete(ctx, "web", metav1.DeleteOptions{}))
	must(t, claims.Delete(ctx, "data-web-0", metav1.DeleteOptions{}))
}

// exists waits until a controller has made a pod.
func (c *kubeletCluster) exists(ctx context.Context, t *testing.T, pod string) {
	t.Helper()
	must(t, harness.Eventually(ctx, func() (string, error) {
		_, err := c.Client.CoreV1().Pods("team-c").Get(ctx, pod, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "there is no pod " + pod, nil
		}
		return "", err
	}))
}

// checksNodes has every node checked by the pod of the examples.
func (c *kubeletCluster) checksNodes(ctx context.Context, t *testing.T) {
	t.Helper()
	example, err := os.ReadFile(deploy.Path("examples", "node-check.yaml"))
	must(t, err)
	example = programImage.ReplaceAll(example, []byte("image: "+kubelet.ProgramImage))
	for name, node := range c.nodes {
		must(t, c.Apply(ctx, bytes.ReplaceAll(example, []byte("NODE"), []byte(name))))
		must(t, harness.Eventually(ctx, func() (string, error) {
			pod, err := c.Client.CoreV1().Pods("kube-system").Get(ctx, "node-check-"+name, metav1.GetOptions{})
			if err != nil || objects.IsFinished(pod) {
				return "", err
			}
			return fmt.Sprintf("the check of %s goes on: %+v", name, pod.Status), nil
		}))
		log, err := kubelet.ContainerLog(ctx, node.Machine, "kube-system", "node-check-"+name)
		must(t, err)
		t.Logf("%s:\n%s", name, log)
		for _, found := range []string{`ok +iscsi iscsiadm`, `ok +iscsi daemon iscsid`, `iscsi initiator name +` + node.initiator, `ok +other nodes`} {
			if !regexp.MustCompile(found).MatchString(log) {
				t.Errorf("the check of %s lacks %s", name, found)
			}
		}
	}
}

// restores takes a snapshot as the guide says, while a pod writes, and has another pod on a
// node read a volume that is made from it.
func (c *kubeletCluster) restores(ctx context.Context, t *testing.T, writer, claim, node string) {
	t.Helper()
	before := c.told(ctx, t, writer)
	c.snapshot(ctx, t, csiProvisioner, claim)
	c.bound(ctx, t, ofSnapshot("1Gi"))
	written := c.told(ctx, t, writer).wrote
	c.create(ctx, t, c.pod("restored", "restored", on(node)))
	if after := c.writes(ctx, t, "restored"); after.found < before.wrote || after.found > written+100 {
		t.Errorf("the pod had written %d records before the snapshot and %d after it, and %d are in the copy", before.wrote, written, after.found)
	}
	c.removePod(ctx, t, "restored")
	must(t, c.snapshots(t).VolumeSnapshots("team-c").Delete(ctx, "nightly", metav1.DeleteOptions{}))
}

func (c *kubeletCluster) snapshots(t *testing.T) snapshotclientv1.SnapshotV1Interface {
	t.Helper()
	client, err := snapshotclientv1.NewForConfig(c.Config)
	must(t, err)
	return client
}

// snapshot has a driver take the snapshot "nightly" of a claim.
func (c *kubeletCluster) snapshot(ctx context.Context, t *testing.T, driver, claim string) {
	t.Helper()
	_, err := c.snapshots(t).VolumeSnapshotClasses().Create(ctx, &snapshotv1.VolumeSnapshotClass{
		ObjectMeta: metav1.ObjectMeta{Name: "cinder", Annotations: map[string]string{"snapshot.storage.kubernetes.io/is-default-class": "true"}},
		Driver:     driver, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
	}, metav1.CreateOptions{})
	must(t, err)
	_, err = c.snapshots(t).VolumeSnapshots("team-c").Create(ctx, &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{Name: "nightly"}, Spec: snapshotv1.VolumeSnapshotSpec{Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: &claim}},
	}, metav1.CreateOptions{})
	must(t, err)
}

// ofSnapshot returns the claim "restored" to a volume that is made from the snapshot.
func ofSnapshot(size string) *corev1.PersistentVolumeClaim {
	group := snapshotv1.GroupName
	return harness.Claim("team-c", "restored", "files", size, func(claim *corev1.PersistentVolumeClaim) {
		claim.Spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: &group, Kind: "VolumeSnapshot", Name: "nightly"}
	})
}

// growsByHand asks for 2 GiB, and does on the second node, where the pod writes, what the
// guide says; onNode is what grows the filesystem there, or nothing for a device.
func (c *kubeletCluster) growsByHand(ctx context.Context, t *testing.T, pod string, pv *corev1.PersistentVolume, onNode string) {
	t.Helper()
	claim := pv.Spec.ClaimRef.Name
	c.patch(ctx, t, claim, `{"spec": {"resources": {"requests": {"storage": "2Gi"}}}}`)
	if onNode == "" {
		c.becomes(ctx, t, claim, "2Gi")
	} else {
		c.becomes(ctx, t, claim, "1Gi", string(corev1.PersistentVolumeClaimFileSystemResizePending))
	}
	// tgt breaks the sessions of a volume that is extended, and meanwhile a rescan finds nothing.
	must(t, harness.Eventually(ctx, func() (string, error) {
		sizes, err := c.nodes["node-2"].Run(ctx, "iscsiadm -m node -T "+pv.Spec.ISCSI.IQN+" -R > /dev/null; for disk in /dev/disk/by-path/*"+pv.Spec.ISCSI.IQN+"-lun-*; do blockdev --getsize64 $disk; done")
		if err != nil || strings.Count(sizes, "2147483648") == len(pv.Spec.ISCSI.Portals)+1 {
			return "", err
		}
		return "the disks have " + sizes, nil
	}))
	if onNode != "" {
		c.nodes["node-2"].run(ctx, t, onNode)
		c.patch(ctx, t, claim, `{"metadata": {"annotations": {"standalone-cinder.openstack.org/filesystem-grown": "2Gi"}}}`)
		c.becomes(ctx, t, claim, "2Gi")
	}
	c.sees2GiB(ctx, t, pod)
}

// growsByCommand asks for 2 GiB, and has the command do the rest.
func (c *kubeletCluster) growsByCommand(ctx context.Context, t *testing.T, pod, claim string) {
	t.Helper()
	component, err := os.ReadFile(deploy.Path("components", "node-grow", "nodegrow.yaml"))
	must(t, err)
	if len(programImage.FindAll(component, -1)) != 1 {
		t.Fatal("the component has not one image")
	}
	must(t, c.Apply(ctx, programImage.ReplaceAll(component, []byte("image: "+kubelet.ProgramImage))))
	c.patch(ctx, t, claim, `{"spec": {"resources": {"requests": {"storage": "2Gi"}}}}`)
	c.becomes(ctx, t, claim, "1Gi", string(corev1.PersistentVolumeClaimFileSystemResizePending))
	kubeconfig, err := c.Administrator(t.TempDir(), "", nil)
	must(t, err)
	// It is refused until the API server knows the PodTemplate, and while the sessions are
	// broken, as tgt leaves them for a moment.
	must(t, harness.Eventually(ctx, func() (string, error) {
		command := exec.CommandContext(ctx, c.Program, "grow", claim, "-n", "team-c", "--kubeconfig", kubeconfig)
		command.Args[0] = "kubectl-cinder"
		output, err := command.CombinedOutput()
		t.Logf("kubectl cinder grow: %v\n%s", err, output)
		if err != nil {
			return string(output), nil
		}
		for _, text := range []string{"grew the ext4 filesystem on dm-", "of node node-2 to 2Gi", "claim team-c/" + claim + " has 2Gi"} {
			if !strings.Contains(string(output), text) {
				t.Errorf("the output lacks %q", text)
			}
		}
		return "", nil
	}))
	c.becomes(ctx, t, claim, "2Gi")
	c.sees2GiB(ctx, t, pod)
	left, err := c.Client.CoreV1().Pods(deploy.GrowNamespace).List(ctx, metav1.ListOptions{})
	if err != nil || len(left.Items) > 0 {
		t.Errorf("%d pods of the command are left (%v)", len(left.Items), err)
	}
}

// becomes waits until a claim has a capacity, and these conditions.
func (c *kubeletCluster) becomes(ctx context.Context, t *testing.T, claim, capacity string, conditions ...string) {
	t.Helper()
	must(t, harness.Eventually(ctx, func() (string, error) {
		now, err := c.Client.CoreV1().PersistentVolumeClaims("team-c").Get(ctx, claim, metav1.GetOptions{})
		if err != nil || now.Status.Capacity.Storage().String() == capacity && fmt.Sprint(harness.Conditions(now)) == fmt.Sprint(conditions) {
			return "", err
		}
		return fmt.Sprintf("claim %s: %+v", claim, now.Status), nil
	}))
}

func (c *kubeletCluster) sees2GiB(ctx context.Context, t *testing.T, pod string) {
	t.Helper()
	must(t, harness.Eventually(ctx, func() (string, error) {
		if w := c.told(ctx, t, pod); w.size < 19<<30/10 {
			return fmt.Sprintf("the volume has %d bytes", w.size), nil
		}
		return "", nil
	}))
}

// losesPath cuts one of two portals from a node while a pod writes there, and gives it back.
func (c *kubeletCluster) losesPath(ctx context.Context, t *testing.T, pod string, n *csiNode) {
	t.Helper()
	paths := func(state string, want int) {
		t.Helper()
		must(t, harness.Eventually(ctx, func() (string, error) {
			shown, err := n.Run(ctx, "multipath -ll")
			if err != nil || strings.Count(shown, state) == want {
				return "", err
			}
			return fmt.Sprintf("want %d paths %q:\n%s", want, state, shown), nil
		}))
	}
	paths("active ready", 2)
	portal := c.env.Portals[1]
	n.cuts[portal]()
	paths("failed faulty", 1)
	before := c.told(ctx, t, pod)
	must(t, harness.Eventually(ctx, func() (string, error) {
		if now := c.told(ctx, t, pod); now.wrote < before.wrote+50 {
			return fmt.Sprintf("the pod is stuck at %+v", now), nil
		}
		return "", nil
	}))
	var err error
	n.cuts[portal], err = n.Reach(portal)
	must(t, err)
	paths("active ready", 2)
}

// deletesWhileFlushing removes a pod and its claim while the node has much to write, and the
// storage does not answer. Cinder must not be asked to disconnect the volume before the node
// has logged out: the rest of the data would have nowhere to go.
func (c *kubeletCluster) deletesWhileFlushing(ctx context.Context, t *testing.T) {
	n := c.nodes["node-1"]
	pv := c.bound(ctx, t, harness.Claim("team-c", "flushed", "files", "1Gi", nil))
	c.create(ctx, t, c.pod("flushed", "flushed", func(pod *corev1.Pod) {
		on(n.name)(pod)
		pod.Spec.Containers[0].Args = []string{"pause"} // It must not wait for the storage, too.
	}))
	c.runs(ctx, t, "flushed")
	path := "/volumes/" + pv.Annotations[annotationVolume]
	project := fmt.Sprintf("%032x", kubeletProject)
	session := "iscsiadm -m session | grep -F " + pv.Spec.ISCSI.IQN
	n.run(ctx, t, "dmesg --clear; sysctl -q vm.dirty_writeback_centisecs=0 vm.dirty_expire_centisecs=600000 vm.dirty_background_ratio=80 vm.dirty_ratio=90")
	n.run(ctx, t, "yes | head -c 10000000 > $(grep -F "+pv.Name+" /proc/mounts | cut -d' ' -f2 | head -1)/unwritten")

	for _, portal := range c.env.Portals {
		n.cuts[portal]()
	}
	must(t, c.Client.CoreV1().PersistentVolumeClaims("team-c").Delete(ctx, "flushed", metav1.DeleteOptions{}))
	c.removePod(ctx, t, "flushed")
	must(t, harness.Eventually(ctx, func() (string, error) {
		now, err := c.Client.CoreV1().PersistentVolumes().Get(ctx, pv.Name, metav1.GetOptions{})
		if err != nil || now.Status.Phase == corev1.VolumeReleased {
			return "", err
		}
		return "the PersistentVolume is " + string(now.Status.Phase), nil
	}))
	n.run(ctx, t, session)
	for end := time.Now().Add(15 * time.Second); time.Now().Before(end); time.Sleep(time.Second) {
		var now struct{ Volume volume }
		must(t, askProject(ctx, c.env, project, path, &now))
		targets, err := c.env.Targets(ctx)
		must(t, err)
		exported := false
		for _, target := range targets {
			exported = exported || target.IQN == pv.Spec.ISCSI.IQN
		}
		if now.Volume.Status != "in-use" || !exported {
			t.Fatalf("the volume is %s (exported: %t), and its node has not let go of it", now.Volume.Status, exported)
		}
	}
	n.run(ctx, t, session)

	for _, portal := range c.env.Portals {
		var err error
		n.cuts[portal], err = n.Reach(portal)
		must(t, err)
	}
	must(t, harness.Eventually(ctx, func() (string, error) {
		_, err := c.Client.CoreV1().PersistentVolumes().Get(ctx, pv.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return "the PersistentVolume is still there", err
	}))
	n.run(ctx, t, "! "+session)
	if lost := n.run(ctx, t, "dmesg | grep -iE 'I/O error|EXT4-fs (error|warning)|recovery timed out' || true"); lost != "" {
		t.Errorf("the node could not write everything:\n%s", lost)
	}
	n.run(ctx, t, "sysctl -q vm.dirty_writeback_centisecs=500 vm.dirty_expire_centisecs=3000 vm.dirty_background_ratio=10 vm.dirty_ratio=20")
}
