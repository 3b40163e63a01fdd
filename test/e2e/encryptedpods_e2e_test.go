//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/test/e2e/rig"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// TestPodsUseEncryptedVolumes has real kubelets, the DaemonSet and a leader with encrypted
// volumes: each is made for a claim, moves to the next node, grows, and is restored, and its
// key is in no log. The keys of one of Cinder's types come from Barbican, and those of the
// other are its fixed one. A rule encrypts volumes of which Cinder does not know that.
func TestPodsUseEncryptedVolumes(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
	defer cancel()
	env, err := rig.Load(rig.EnvFile())
	must(t, err)
	encrypted := []string{"luks", "luks2", "rule"}
	ceph := ""
	if env.Types.RBDLUKS != "" {
		encrypted = append(encrypted, "ceph")
		ceph = "- {storageClasses: [ceph], backends: [lab], volumeType: " + env.Types.RBDLUKS + ", fsType: ext4, mode: csi}"
	}
	c := startKubeletsWith(ctx, t, kubeletOptions{suite: harness.SuiteOptions{Snapshots: true, Snapshotter: true}, classes: encrypted, policy: fmt.Sprintf(`
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
clusterID: e2e-kubelet
backends:
  - name: lab
    auth: {noauth: {endpoint: %q, user: %s, project: "%032x"}}
    csi: {encryption: {fixedKeySecret: cinder-key}, cephSecret: ceph-cinder}
  - {name: keys, auth: {cloud: team-a}}
tenants:
  - name: team-c
    namespaces: [team-c]
    classes:
      - {storageClasses: [luks], backends: [keys], volumeType: %s, fsType: ext4, mode: csi}
      - {storageClasses: [rule], backends: [lab], volumeType: %s, fsType: ext4, mode: csi, encrypt: {keySecret: keys, entry: first}}
      - {storageClasses: [luks2], backends: [lab], volumeType: %s, fsType: xfs, mode: csi}
      %s
`, env.Noauth.Endpoint, env.Noauth.User, kubeletProject, env.Types.LUKS, env.Types.ISCSI, env.Types.LUKS2, ceph)}, "node-1", "node-2")
	c.secret(ctx, t, "cinder-key", nil, map[string]string{"fixedKey": env.FixedKey})
	key := strings.Repeat("0123456789abcdef", 4)
	c.secret(ctx, t, "keys", map[string]string{objects.LabelKeyEncryption: "true"}, map[string]string{"first": key})
	if ceph != "" {
		c.secret(ctx, t, "ceph-cinder", nil, map[string]string{"userID": "cinder", "userKey": cephKey(t, env)})
	}
	c.passwords[env.FixedKey], c.passwords[key] = true, true
	must(t, c.InstallSnapshots(ctx))
	snapshotter, err := c.Snapshotter(ctx, csiProvisioner)(c.socket)
	must(t, err)
	t.Cleanup(snapshotter.Stop)
	for _, class := range encrypted {
		t.Run(class, func(t *testing.T) {
			c.bound(ctx, t, harness.Claim("team-c", class, class, "1Gi", nil))
			c.moves(ctx, t, class+"-writer", class, nil)
			c.grows(ctx, t, class+"-writer", class)
			c.copies(ctx, t, class, class != "luks2" && class != "ceph")
		})
	}
	t.Run("nothing is left", func(t *testing.T) { c.nothingLeft(ctx, t) })
	t.Run("no log has the key", func(t *testing.T) { c.noPassword(ctx, t) })
}

// secret makes a Secret in the namespace of the program.
func (c *kubeletCluster) secret(ctx context.Context, t *testing.T, name string, labels, data map[string]string) {
	t.Helper()
	_, err := c.Client.CoreV1().Secrets(harness.Namespace).Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, StringData: data}, metav1.CreateOptions{})
	must(t, err)
}

// copies ends the writer of a class's volume, restores a snapshot of the volume, and clones
// it if Cinder can: it changes the key of a clone, but not with luks2 (_rekey_volume in
// cinder/volume/flows/manager/create_volume.py). For that, it would have to map an image of
// Ceph in this machine's kernel.
func (c *kubeletCluster) copies(ctx context.Context, t *testing.T, class string, clones bool) {
	t.Helper()
	wrote := c.told(ctx, t, class+"-writer").wrote
	c.removePod(ctx, t, class+"-writer")
	c.snapshot(ctx, t, wire.DriverName, class)
	sources := map[string]*corev1.TypedLocalObjectReference{"restored": {APIGroup: new(snapshotv1.GroupName), Kind: "VolumeSnapshot", Name: "nightly"}}
	if clones {
		sources["clone"] = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: class}
	}
	for name, source := range sources {
		c.bound(ctx, t, harness.Claim("team-c", class+"-"+name, class, "2Gi", func(claim *corev1.PersistentVolumeClaim) { claim.Spec.DataSource = source }))
		c.create(ctx, t, c.pod(class+"-"+name, class+"-"+name, on("node-1")))
	}
	for name := range sources {
		if copied := c.writes(ctx, t, class+"-"+name); copied.found < wrote {
			t.Errorf("the pod had written %d records, and %d are in the volume %s", wrote, copied.found, name)
		}
		c.removePod(ctx, t, class+"-"+name)
	}
	must(t, c.snapshots(t).VolumeSnapshots("team-c").Delete(ctx, "nightly", metav1.DeleteOptions{}))
	must(t, c.snapshots(t).VolumeSnapshotClasses().Delete(ctx, "cinder", metav1.DeleteOptions{}))
	must(t, harness.Eventually(ctx, func() (string, error) {
		contents, err := c.snapshots(t).VolumeSnapshotContents().List(ctx, metav1.ListOptions{})
		if err != nil || len(contents.Items) == 0 {
			return "", err
		}
		return fmt.Sprintf("the snapshot is still there: %+v", contents.Items[0].Status), nil
	}))
}
