//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// medium is a volume as a node reads and writes it.
type medium interface {
	Write(ctx context.Context, offset int64, data []byte) error
	Read(ctx context.Context, offset int64, length int) ([]byte, error)
}

// TestCopiesHoldTheBytes clones volumes in use and restores snapshots of them, on
// iSCSI and Ceph: each copy has the bytes of its moment, and what is written to
// one is not seen in another.
func TestCopiesHoldTheBytes(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	w := startWorld(ctx, t)
	must(t, w.InstallSnapshots(ctx))
	snapshots, err := snapshotclient.NewForConfig(w.Config)
	must(t, err)
	_, err = snapshots.SnapshotV1().VolumeSnapshotClasses().Create(ctx, &snapshotv1.VolumeSnapshotClass{
		ObjectMeta: metav1.ObjectMeta{Name: "cinder"}, Driver: provisioner, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
	}, metav1.CreateOptions{})
	must(t, err)

	bound := map[string]int{} // by namespace
	claim := func(s station, i int, source *corev1.TypedLocalObjectReference) {
		t.Helper()
		_, err := w.CreateClaim(ctx, harness.Claim(s.namespace, fmt.Sprintf("%s-%d", s.name, i), s.name, s.size, func(c *corev1.PersistentVolumeClaim) {
			c.Spec.DataSource = source
		}))
		must(t, err)
		bound[s.namespace]++
		_, err = w.WaitBound(ctx, s.namespace, bound[s.namespace])
		must(t, err)
	}
	group := "snapshot.storage.k8s.io"
	for _, s := range w.stations {
		if s.name != "gold" && s.name != "lab" && s.name != "ceph-reserve" {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			content := func(i int) medium {
				pv := w.volumeOf(ctx, t, s, i)
				if pv.Spec.CSI != nil {
					return cephCSIImage(t, w, pv)
				}
				return w.disk(t, pv)
			}
			pattern := func(text string) []byte { return bytes.Repeat([]byte(s.name+" "+text+";"), 64)[:512] }
			write := func(i int, text string) { must(t, content(i).Write(ctx, 1<<20, pattern(text))) }
			reads := func(i int, text string) {
				t.Helper()
				read, err := content(i).Read(ctx, 1<<20, 512)
				must(t, err)
				if !bytes.Equal(read, pattern(text)) {
					t.Errorf("claim %s-%d reads %.40q, want %.40q", s.name, i, read, pattern(text))
				}
			}
			claim(s, 0, nil)
			write(0, "first")
			_, err := snapshots.SnapshotV1().VolumeSnapshots(s.namespace).Create(ctx, &snapshotv1.VolumeSnapshot{
				ObjectMeta: metav1.ObjectMeta{Name: s.name, Namespace: s.namespace},
				Spec: snapshotv1.VolumeSnapshotSpec{
					VolumeSnapshotClassName: new("cinder"),
					Source:                  snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: new(s.name + "-0")},
				},
			}, metav1.CreateOptions{})
			must(t, err)
			must(t, harness.Eventually(ctx, func() (string, error) {
				taken, err := snapshots.SnapshotV1().VolumeSnapshots(s.namespace).Get(ctx, s.name, metav1.GetOptions{})
				if err != nil || taken.Status != nil && taken.Status.ReadyToUse != nil && *taken.Status.ReadyToUse {
					return "", err
				}
				return "the snapshot of " + s.name + " is not ready", nil
			}))
			write(0, "second")
			claim(s, 1, &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: s.name + "-0"})
			claim(s, 2, &corev1.TypedLocalObjectReference{APIGroup: &group, Kind: "VolumeSnapshot", Name: s.name})
			reads(1, "second")
			reads(2, "first")
			write(1, "third")
			reads(0, "second")
			reads(2, "first")
		})
	}
	// Ceph removes a snapshot or a volume only after the copies that share its
	// blocks; the program goes on until all is gone, whatever comes first.
	for namespace := range bound {
		must(t, snapshots.SnapshotV1().VolumeSnapshots(namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
		must(t, w.DeleteClaims(ctx, namespace))
	}
	must(t, w.WaitForNoPersistentVolumes(ctx, provisioner))
	must(t, harness.Eventually(ctx, func() (string, error) {
		contents, err := snapshots.SnapshotV1().VolumeSnapshotContents().List(ctx, metav1.ListOptions{})
		if err != nil || len(contents.Items) == 0 {
			return "", err
		}
		return fmt.Sprintf("%d VolumeSnapshotContents are left, such as %s", len(contents.Items), contents.Items[0].Name), nil
	}))
	must(t, harness.Eventually(ctx, func() (string, error) { return volumesLeft(ctx, w.env) }))
}
