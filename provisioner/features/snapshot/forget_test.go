package snapshot

import (
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// TestReservationOfADeletedSnapshotIsFreed: the VolumeSnapshot is deleted while its
// attempt reads the namespace. So the reservation comes after the deletion event, and
// the class cannot be written.
func TestReservationOfADeletedSnapshotIsFreed(t *testing.T) {
	b := newBench(t, namespace(), claim(nil), volume(nil), class(func(c *snapshotv1.VolumeSnapshotClass) {
		c.Annotations = map[string]string{objects.AnnotationDefaultSnapshotClass: "true"}
	}), nightly(func(s *snapshotv1.VolumeSnapshot) { s.Spec.VolumeSnapshotClassName = nil }))
	b.Controller.Client.(interface {
		PrependReactor(verb, resource string, reaction clienttesting.ReactionFunc)
	}).PrependReactor("get", "namespaces", func(clienttesting.Action) (bool, runtime.Object, error) {
		live, err := b.client.SnapshotV1().VolumeSnapshots("team-a").Get(b.Context(), "nightly", metav1.GetOptions{})
		b.must(err)
		b.must(b.client.SnapshotV1().VolumeSnapshots("team-a").Delete(b.Context(), "nightly", metav1.DeleteOptions{}))
		b.must(b.snapshots.Delete(live))
		b.snapshotEvents().OnDelete(live)
		return false, nil, nil
	})
	b.must(b.syncNightly())
	b.wantCalls()
	if used := b.Ledger.Usage(policy.TenantScope, "a").Snapshots; used != 0 {
		t.Errorf("tenant a uses %d snapshots of its quota of 1, but nothing exists", used)
	}
	// Nothing waits for an object that will never come back.
	if waiting := b.Parked().List(); len(waiting) > 0 {
		t.Errorf("waiting are %v", waiting)
	}
}

// TestRemovedContentsAreForgotten: a term remembers removed contents only until the
// objects are gone.
func TestRemovedContentsAreForgotten(t *testing.T) {
	content := deletedContent(nil)
	b := newBench(t, namespace(), claim(nil), volume(nil), class(nil), content)
	b.must(b.syncItsContent())
	if !b.isRemoved(content) {
		t.Error("an update of the content would count its snapshot again")
	}
	b.contentEvents().OnDelete(content)
	if len(b.removed) != 0 {
		t.Errorf("remembered are %v", b.removed)
	}
}

// TestKeptSnapshotsAreForgotten: a report about a snapshot is remembered only while its
// backend lists the snapshot.
func TestKeptSnapshotsAreForgotten(t *testing.T) {
	b := newBench(t)
	b.backend.listed = []cinder.Snapshot{stamped("snapshot-1", "u1", true), stamped("snapshot-2", "u2", true)}
	b.must(b.leftovers.sweep(t.Context(), Shelf{"gold", false}, true))
	b.leftovers.kept["snapshot-3"] = kept{on: Shelf{"silver", false}}
	b.backend.listed = b.backend.listed[1:]
	b.must(b.leftovers.sweep(t.Context(), Shelf{"gold", false}, true))
	if len(b.leftovers.kept) != 2 || b.leftovers.kept["snapshot-2"].on != (Shelf{"gold", false}) || b.leftovers.kept["snapshot-3"].on != (Shelf{"silver", false}) {
		t.Errorf("remembered are %+v", b.leftovers.kept)
	}
}
