//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/test/e2e/rig"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

func csiFeaturesPolicy(env rig.Env) string {
	return fmt.Sprintf(`
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
clusterID: e2e-csi
backends:
  - name: lab
    auth: {noauth: {endpoint: %q, user: %s, project: "%032x"}}
    connector: {host: k8s-e2e, initiator: %q}
tenants:
  - name: team-c
    namespaces: [team-c]
    classes:
      - {storageClasses: [files], backends: [lab], mode: csi, volumeType: %s, volumeTypes: [other], fsType: ext4, backups: true}
      - {storageClasses: [movable], backends: [lab], mode: csi, fsType: ext4}
      - {storageClasses: [native], backends: [lab], volumeType: %s, fsType: ext4}
`, env.Noauth.Endpoint, env.Noauth.User, csiProject, sharedInitiator, env.Types.ISCSI, env.Types.ISCSI)
}

// sharedInitiator is the initiator that native volumes are exported to.
const sharedInitiator = "iqn.2026-01.example:all-nodes"

// TestClaimsInModeCSI uses all that mode csi has for a volume that a node writes to: the
// real sidecars and snapshot-controller ask the program, it asks real Cinder, and the
// node plugin does its part on a kernel of its own.
func TestClaimsInModeCSI(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	env, err := rig.Load(rig.EnvFile())
	must(t, err)
	c := startCSIWith(ctx, t, harness.SuiteOptions{Resizer: true, Snapshots: true, Snapshotter: true}, "", csiFeaturesPolicy(env), "files", "movable", "native")
	must(t, c.InstallSnapshots(ctx))
	for _, start := range []func(string) (*harness.Sidecar, error){c.Resizer(ctx, csiProvisioner), c.Snapshotter(ctx, csiProvisioner)} {
		sidecar, err := start(c.socket)
		must(t, err)
		t.Cleanup(sidecar.Stop)
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("a sidecar said:\n%s", sidecar.Log())
			}
		})
	}
	n := startNode(ctx, t, env, "node-features")
	c.join(ctx, t, n)
	t.Run("reaches the node", func(t *testing.T) { c.reaches(ctx, t, n, "files") })

	source := c.claim(ctx, t, "data", "files")
	v := c.attach(ctx, t, source, n)
	n.mount(ctx, t, v)
	n.write(ctx, t, v)

	t.Run("grows", func(t *testing.T) {
		c.patch(ctx, t, "data", `{"spec": {"resources": {"requests": {"storage": "2Gi"}}}}`)
		must(t, harness.Eventually(ctx, func() (string, error) {
			claim, err := c.Client.CoreV1().PersistentVolumeClaims("team-c").Get(ctx, "data", metav1.GetOptions{})
			if err != nil || claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage] == corev1.PersistentVolumeClaimNodeResizePending {
				return "", err
			}
			return fmt.Sprintf("the node is not asked yet: %+v", claim.Status), nil
		}))
		_, err := n.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{
			VolumeId: handle(v), VolumePath: podPath(v), StagingTargetPath: stagingPath(v),
			CapacityRange: &csi.CapacityRange{RequiredBytes: 2 << 30}, VolumeCapability: mountOf("ext4"),
		})
		must(t, err)
		n.has(ctx, t, v, 2)
	})

	t.Run("is snapshotted and restored", func(t *testing.T) { c.restores(ctx, t, n, v, "snapshot", nil) })
	t.Run("is backed up and restored", func(t *testing.T) { c.restores(ctx, t, n, v, "backup", map[string]string{"type": "backup"}) })

	t.Run("is cloned", func(t *testing.T) {
		clone := c.bound(ctx, t, harness.Claim("team-c", "clone", "files", "2Gi", cloneOf("data")))
		c.uses(ctx, t, clone, n, "after\n", 2)
	})

	t.Run("gets another type", func(t *testing.T) {
		_, err := c.Client.StorageV1().VolumeAttributesClasses().Create(ctx, &storagev1.VolumeAttributesClass{
			ObjectMeta: metav1.ObjectMeta{Name: "other"}, DriverName: wire.DriverName, Parameters: map[string]string{"type": "other"}}, metav1.CreateOptions{})
		must(t, err)
		c.patch(ctx, t, "data", `{"spec": {"volumeAttributesClassName": "other"}}`)
		must(t, harness.Eventually(ctx, func() (string, error) {
			claim, err := c.Client.CoreV1().PersistentVolumeClaims("team-c").Get(ctx, "data", metav1.GetOptions{})
			if err != nil || claim.Status.CurrentVolumeAttributesClassName != nil && *claim.Status.CurrentVolumeAttributesClassName == "other" {
				return "", err
			}
			return fmt.Sprintf("the claim has not the class yet: %+v", claim.Status.ModifyVolumeStatus), nil
		}))
		var now struct {
			Volume struct {
				Type string `json:"volume_type"`
			}
		}
		must(t, askProject(ctx, env, fmt.Sprintf("%032x", csiProject), "/volumes/"+v.id, &now))
		if now.Volume.Type != "other" {
			t.Errorf("the volume has the type %q", now.Volume.Type)
		}
	})

	before := n.counter(ctx, t, v, n.name)
	must(t, harness.Eventually(ctx, func() (string, error) {
		if n.counter(ctx, t, v, n.name) <= before {
			return "the writer is stuck", nil
		}
		return "", nil
	}))
	n.stopWriting(ctx, t)
	n.unmount(ctx, t, v)
	c.detach(ctx, t, source, n)

	dir := t.TempDir()
	policy := filepath.Join(dir, "policy.yaml")
	must(t, os.WriteFile(policy, []byte(c.policy), 0o600))
	kubeconfig, err := c.Administrator(dir, "", nil)
	must(t, err)
	operate := func(t *testing.T, want string, arguments ...string) {
		t.Helper()
		arguments = append(append([]string{"volume"}, arguments...), "--policy", policy, "--kubeconfig", kubeconfig, "--provisioner-name", csiProvisioner, "--apply")
		must(t, harness.Eventually(ctx, func() (string, error) {
			code, output, err := c.Run(ctx, arguments...)
			switch {
			case err == nil && strings.Contains(output, "is in use on node"): // its plugin has not reported yet
				return output, nil
			case err == nil && (code != 0 || !strings.Contains(output, want)):
				err = fmt.Errorf("exit code %d: %s", code, output)
			}
			return "", err
		}))
	}
	t.Run("moves to another storage", func(t *testing.T) {
		movable := c.bound(ctx, t, harness.Claim("team-c", "movable", "movable", "2Gi", cloneOf("data")))
		c.uses(ctx, t, movable, n, "after\n", 2)
		operate(t, fmt.Sprintf("now has type %q", env.Types.ISCSIMultipath), "move", "team-c/movable", "--to", env.Types.ISCSIMultipath)
		c.uses(ctx, t, movable, n, "after\n", 2)
	})

	t.Run("is swapped with another claim's", func(t *testing.T) {
		// As they were made: a kubelet knows volumes by the handles, which stay.
		var pvs []*corev1.PersistentVolume
		for _, name := range []string{"movable", "clone"} {
			claim, err := c.Client.CoreV1().PersistentVolumeClaims("team-c").Get(ctx, name, metav1.GetOptions{})
			must(t, err)
			pv, err := c.Client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
			must(t, err)
			pvs = append(pvs, pv)
		}
		v := c.attach(ctx, t, pvs[0], n)
		n.mount(ctx, t, v)
		n.run(ctx, t, "echo of movable > "+podPath(v)+"/moment; sync")
		n.unmount(ctx, t, v)
		c.detach(ctx, t, pvs[0], n)
		operate(t, "instead of", "swap", "team-c/movable", "--with", "clone")
		c.uses(ctx, t, pvs[0], n, "after\n", 2)
		c.uses(ctx, t, pvs[1], n, "of movable\n", 2)
		operate(t, "instead of", "swap", "team-c/movable", "--with", "clone", "--back")
		c.uses(ctx, t, pvs[0], n, "of movable\n", 2)
	})

	t.Run("moves from native to csi", func(t *testing.T) {
		native := c.bound(ctx, t, harness.Claim("team-c", "native", "native", "1Gi", nil))
		uuid := c.fillNative(ctx, t, native, n, "written to a native volume\n")
		moving := harness.Claim("team-c", "moved", "files", "1Gi", cloneOf("native"))
		_, err := c.CreateClaim(ctx, moving)
		must(t, err)
		_, err = c.WaitEvent(ctx, "team-c", "moved", "UnsupportedMode", "no UUID is recorded for this one")
		must(t, err)
		_, err = c.Client.CoreV1().PersistentVolumes().Patch(ctx, native.Name, types.MergePatchType,
			fmt.Appendf(nil, `{"metadata": {"annotations": {%q: %q}}}`, objects.AnnotationFilesystemUUIDs, uuid), metav1.PatchOptions{})
		must(t, err)
		c.uses(ctx, t, c.served(ctx, t, moving), n, "written to a native volume\n", 1)
	})
	n.checkNothingLeft(ctx, t)

	must(t, c.DeleteClaims(ctx, "team-c"))
	must(t, c.WaitForNoPersistentVolumes(ctx, csiProvisioner))
	var left struct{ Volumes, Snapshots, Backups []volume }
	for _, collection := range []string{"/volumes/detail", "/snapshots", "/backups"} {
		must(t, askProject(ctx, env, fmt.Sprintf("%032x", csiProject), collection, &left))
	}
	if len(left.Volumes)+len(left.Snapshots)+len(left.Backups) > 0 {
		t.Errorf("left at Cinder: %+v", left)
	}
}

// restores has a snapshot taken of the claim "data", whose volume a node uses, by a class of
// these parameters, restores it beside the volume, and removes the snapshot.
func (c csiCluster) restores(ctx context.Context, t *testing.T, n *csiNode, v csiVolume, name string, parameters map[string]string) {
	t.Helper()
	snapshots, err := snapshotclient.NewForConfig(c.Config)
	must(t, err)
	_, err = snapshots.SnapshotV1().VolumeSnapshotClasses().Create(ctx, &snapshotv1.VolumeSnapshotClass{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Driver: wire.DriverName, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete, Parameters: parameters,
	}, metav1.CreateOptions{})
	must(t, err)
	n.run(ctx, t, "echo before > "+podPath(v)+"/moment; sync")
	_, err = snapshots.SnapshotV1().VolumeSnapshots("team-c").Create(ctx, &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: snapshotv1.VolumeSnapshotSpec{
			VolumeSnapshotClassName: &name, Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: new("data")},
		},
	}, metav1.CreateOptions{})
	must(t, err)
	must(t, harness.Eventually(ctx, func() (string, error) {
		taken, err := snapshots.SnapshotV1().VolumeSnapshots("team-c").Get(ctx, name, metav1.GetOptions{})
		if err != nil || taken.Status != nil && taken.Status.ReadyToUse != nil && *taken.Status.ReadyToUse {
			return "", err
		}
		return fmt.Sprintf("the snapshot is not ready: %+v", taken.Status), nil
	}))
	n.run(ctx, t, "echo after > "+podPath(v)+"/moment; sync")
	group := snapshotv1.GroupName
	restored := c.bound(ctx, t, harness.Claim("team-c", "restored-from-"+name, "files", "3Gi", func(claim *corev1.PersistentVolumeClaim) {
		claim.Spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: &group, Kind: "VolumeSnapshot", Name: name}
	}))
	c.uses(ctx, t, restored, n, "before\n", 3)
	must(t, snapshots.SnapshotV1().VolumeSnapshots("team-c").Delete(ctx, name, metav1.DeleteOptions{}))
	must(t, harness.Eventually(ctx, func() (string, error) {
		contents, err := snapshots.SnapshotV1().VolumeSnapshotContents().List(ctx, metav1.ListOptions{})
		if err != nil || len(contents.Items) == 0 {
			return "", err
		}
		return fmt.Sprintf("the snapshot is still there: %+v", contents.Items[0].Status), nil
	}))
}

func cloneOf(claim string) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) {
		c.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: claim}
	}
}

func (c csiCluster) patch(ctx context.Context, t *testing.T, claim, text string) {
	t.Helper()
	_, err := c.Client.CoreV1().PersistentVolumeClaims("team-c").Patch(ctx, claim, types.MergePatchType, []byte(text), metav1.PatchOptions{})
	must(t, err)
}

// uses takes a copy to a node beside its source, and compares what it has.
func (c csiCluster) uses(ctx context.Context, t *testing.T, pv *corev1.PersistentVolume, n *csiNode, moment string, gibibytes int64) {
	t.Helper()
	v := c.attach(ctx, t, pv, n)
	n.mount(ctx, t, v)
	if content := n.run(ctx, t, "cat "+podPath(v)+"/moment"); content != moment {
		t.Errorf("the file has %q, want %q", content, moment)
	}
	n.has(ctx, t, v, gibibytes)
	n.unmount(ctx, t, v)
	c.detach(ctx, t, pv, n)
}

// has compares the size of a filesystem, which its own tables make smaller.
func (n *csiNode) has(ctx context.Context, t *testing.T, v csiVolume, gibibytes int64) {
	t.Helper()
	var bytes int64
	if _, err := fmt.Sscan(n.run(ctx, t, "df -B1 --output=size "+podPath(v)+" | tail -1"), &bytes); err != nil || bytes > gibibytes<<30 || bytes < gibibytes<<30*9/10 {
		t.Errorf("the filesystem has %d bytes of %d GiB (%v)", bytes, gibibytes, err)
	}
}

// fillNative makes a filesystem on a native volume, as a kubelet does, and returns its
// UUID.
func (c csiCluster) fillNative(ctx context.Context, t *testing.T, pv *corev1.PersistentVolume, n *csiNode, moment string) (uuid string) {
	t.Helper()
	iscsi := pv.Spec.ISCSI
	secret, err := c.Client.CoreV1().Secrets(iscsi.SecretRef.Namespace).Get(ctx, iscsi.SecretRef.Name, metav1.GetOptions{})
	must(t, err)
	session := fmt.Sprintf("iscsiadm -m node -T %s -p %s", iscsi.IQN, iscsi.TargetPortal)
	n.run(ctx, t, fmt.Sprintf(`set -e
%[1]s -o new
%[1]s -o update -n node.session.auth.authmethod -v CHAP
%[1]s -o update -n node.session.auth.username -v %[2]s
%[1]s -o update -n node.session.auth.password -v %[3]s
%[1]s -l`, session, secret.Data["node.session.auth.username"], secret.Data["node.session.auth.password"]))
	uuid = strings.TrimSpace(n.run(ctx, t, fmt.Sprintf(`set -e
for i in $(seq 50); do disk=$(iscsiadm -m session -P 3 | sed -n 's/.*Attached scsi disk \(sd[a-z]*\).*State: running.*/\1/p'); test -n "$disk" && break; sleep 0.2; done
# tgt gives a new volume the WWID of a former one, which multipathd may know.
sleep 2
device=/dev/$disk
for map in /sys/block/$disk/holders/*; do if [ -e "$map" ]; then device=/dev/$(basename $map); fi; done
mkfs.ext4 -q -F $device
mount $device /mnt
printf %%s '%s' > /mnt/moment
umount /mnt
blkid -p -o value -s UUID $device
multipath -F >/dev/null 2>&1 || true`, moment)))
	n.run(ctx, t, session+" -u && "+session+" -o delete")
	return uuid
}
