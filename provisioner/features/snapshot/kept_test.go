package snapshot

import (
	"slices"
	"strings"
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

// TestKeptSnapshotStillCounts: a content without a status and with the policy
// Retain keeps a marked snapshot, which uses the tenant's quota as before.
func TestKeptSnapshotStillCounts(t *testing.T) {
	content := deletedContent(func(c *snapshotv1.VolumeSnapshotContent) {
		c.Status = nil
		c.Spec.DeletionPolicy = snapshotv1.VolumeSnapshotContentRetain
	})
	b := newBench(t, namespace(), claim(nil), volume(nil), class(nil), content)
	b.backend.listed = []cinder.Snapshot{stamped("snapshot-1", "u1", true)}
	b.count(content)
	b.must(b.syncItsContent())
	b.wantCalls("abandon those of u1 unrecorded=true")
	if content := b.content(); content != nil && len(content.Finalizers) > 0 {
		t.Errorf("the content is %+v", content)
	}
	b.contentEvents().OnDelete(content)
	used := func(want int64, when string) {
		t.Helper()
		if used := b.Ledger.Usage(policy.TenantScope, "a").Snapshots; used != want {
			t.Errorf("tenant a uses %d snapshots %s, want %d", used, when, want)
		}
	}
	used(1, "after the content is gone")
	if len(b.gone) > 0 {
		t.Errorf("told that the snapshots of %q are gone", b.gone)
	}
	b.backend.listed = nil
	b.Audit(t.Context(), "gold")
	used(0, "after a listing without the snapshot")
}

// TestKeptSnapshotCountsAfterAnOutage: the term's listing is older than the snapshot.
func TestKeptSnapshotCountsAfterAnOutage(t *testing.T) {
	b := newBench(t, namespace())
	b.must(b.counting.countBackend(t.Context(), Shelf{"gold", false}))
	content := deletedContent(nil)
	b.backend.since = []cinder.Snapshot{stamped("snapshot-1", "u1", true)}
	b.count(content)
	b.contentEvents().OnDelete(content)
	b.Board.Publish(parking.Trigger{Kind: parking.Backend, Name: "gold"})
	b.must(b.counting.countBackend(t.Context(), Shelf{"gold", false}))
	if used := b.Ledger.Usage(policy.TenantScope, "a").Snapshots; used != 1 {
		t.Errorf("tenant a uses %d snapshots, and there is 1", used)
	}
}

// TestKeptSnapshotCountsWhereItsTenantMayUseTheBackend: the term began with a policy that
// did not let the tenant use the backend, and a reload brings the rule back.
func TestKeptSnapshotCountsWhereItsTenantMayUseTheBackend(t *testing.T) {
	b := newBench(t, namespace())
	used := func(want int64, when string) {
		t.Helper()
		if used := b.Ledger.Usage(policy.TenantScope, "a").Snapshots; used != want {
			t.Errorf("tenant a uses %d snapshots %s, want %d", used, when, want)
		}
	}
	inForce := b.policy
	without, err := policy.Parse([]byte(strings.NewReplacer("[gold]", "[silver]", "backends:\n", "backends:\n  - {name: silver, auth: {cloud: silver}}\n").Replace(testPolicy)), "policy.yaml", nil)
	b.must(err)
	b.policy = without
	b.backend.listed = []cinder.Snapshot{stamped("snapshot-1", "u1", true)}
	b.must(b.counting.countBackend(t.Context(), Shelf{"gold", false}))
	used(0, "while it may not use their backend")
	b.policy = inForce
	used(1, "after a reload")
	b.policy = without
	used(0, "after another reload")
}

// TestSnapshotThatAClaimIsMadeFromIsKept: the VolumeSnapshot is being deleted, but the
// snapshot-controller keeps it with a finalizer because a pending claim is restored
// from it. Its content was deleted, too, but nobody has requested the removal of the
// snapshot (there is no annotation) yet.
func TestSnapshotThatAClaimIsMadeFromIsKept(t *testing.T) {
	content := deletedContent(func(c *snapshotv1.VolumeSnapshotContent) {
		delete(c.Annotations, objects.AnnotationSnapshotBeingDeleted)
	})
	now := metav1.Now()
	b := newBench(t, namespace(), claim(nil), volume(nil), class(nil), content, nightly(func(s *snapshotv1.VolumeSnapshot) {
		s.DeletionTimestamp = &now
		s.Finalizers = []string{"snapshot.storage.kubernetes.io/volumesnapshot-as-source-protection"}
	}))
	b.must(b.syncItsContent())
	b.wantCalls()
	if events := b.events(); len(events) == 0 || !strings.Contains(events[0], "SnapshotInUse VolumeSnapshot team-a/nightly is being deleted, and still exists because of its finalizers snapshot.storage") {
		t.Errorf("events %q", events)
	}
}

// TestOrphansAreToldUntilTheyAreNamedAgain: a recorded snapshot without a content is an
// orphan; one that was never recorded is removed, and one that a content names is neither.
func TestOrphansAreToldUntilTheyAreNamedAgain(t *testing.T) {
	b := newBench(t, namespace())
	orphans := func(want ...Orphan) {
		t.Helper()
		if got := b.Audit(t.Context(), "gold"); !slices.Equal(got, want) {
			t.Errorf("the orphans are %+v, want %+v", got, want)
		}
	}
	lost := stamped("snapshot-1", "u1", true)
	b.backend.listed = []cinder.Snapshot{lost, stamped("snapshot-2", "u2", false)}
	orphan := Orphan{ID: "snapshot-1", Of: "team-a/nightly", Tenant: "a"}
	orphans(orphan)
	b.wantCalls("remove snapshot-2 unrecorded=true")
	b.backend.listed = []cinder.Snapshot{lost}
	orphans(orphan)
	content := recorded(func(c *snapshotv1.VolumeSnapshotContent) { c.Name = "by-hand" })
	_, err := b.client.SnapshotV1().VolumeSnapshotContents().Create(t.Context(), content, metav1.CreateOptions{})
	b.must(err)
	orphans()
	b.must(b.client.SnapshotV1().VolumeSnapshotContents().Delete(t.Context(), content.Name, metav1.DeleteOptions{}))
	orphans(orphan)
	b.backend.listed = nil
	orphans()
}

// TestGivenBackSnapshotIsNoOrphan: it goes with the others of its group snapshot, and until
// then nobody can import or delete it.
func TestGivenBackSnapshotIsNoOrphan(t *testing.T) {
	b := newBench(t, namespace())
	given := stamped("snapshot-1", "u1", true)
	given.Metadata[stamps.KeyGroupSnapshot], given.Metadata[stamps.KeyUnneeded] = "group-snapshot-1", "true"
	b.backend.listed = []cinder.Snapshot{given}
	if orphans := b.Audit(t.Context(), "gold"); len(orphans) > 0 {
		t.Errorf("the orphans are %+v", orphans)
	}
	if used := b.Ledger.Usage(policy.TenantScope, "a").Snapshots; used != 1 {
		t.Errorf("%d snapshots count", used)
	}
	b.wantCalls()
}
