package snapshot

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// twoShelves is a backend gold that also has backups.
type twoShelves struct {
	fakeBackends
	backups *fakeSnapshots
}

func (b twoShelves) Snapshots(of Shelf) (Snapshots, error) {
	if of.Backups {
		return b.backups, nil
	}
	return b.fakeBackends.Snapshots(of)
}

func (b twoShelves) Existing(of Shelf) (Existing, error) {
	if of.Backups {
		return b.backups, nil
	}
	return b.fakeBackends.Existing(of)
}

// newBackupBench returns a bench whose policy grants backups, with a VolumeSnapshot of a
// class for them.
func newBackupBench(t *testing.T) (*bench, *fakeSnapshots) {
	t.Helper()
	b := newBench(t, nightly(nil), class(func(c *snapshotv1.VolumeSnapshotClass) { c.Parameters = map[string]string{"type": "backup"} }), claim(nil), volume(nil), namespace())
	p, err := policy.Parse([]byte(strings.NewReplacer("snapshots: 1", "snapshots: 0, backups: 1", "backends: [gold]}", "backends: [gold], backups: true}").Replace(testPolicy)), "policy.yaml", nil)
	b.must(err)
	b.policy = p
	backups := &fakeSnapshots{place: here()}
	b.Backends = twoShelves{fakeBackends{"gold": b.backend}, backups}
	return b, backups
}

// TestBackupIsTakenWhileNobodyWaits: its kind is recorded before the first request, it
// counts as a backup, and until it is ready, nothing failed.
func TestBackupIsTakenWhileNobodyWaits(t *testing.T) {
	b, backups := newBackupBench(t)
	backups.err = nil
	b.must(b.counting.countBackend(t.Context(), Shelf{"gold", true}))
	backups.err = &cinder.Error{Backend: "gold", Kind: backends.KindPending, Message: "backup x is being made"}
	for range 2 {
		if err := b.syncNightly(); !cinder.IsKind(err, backends.KindPending) {
			t.Fatalf("the attempt ended with %v", err)
		}
	}
	if events := b.events(); !slices.Equal(events, []string{"Normal BackupPending backend gold: backup x is being made"}) {
		t.Errorf("events %q", events)
	}
	if made := b.content(); made.Annotations[objects.AnnotationBackup] != "full" || made.Status != nil {
		t.Errorf("the content is %+v", made)
	}
	if used := b.Ledger.Usage(policy.TenantScope, "a"); used != (policy.Usage{Backups: 1}) && used != (policy.Usage{Backups: 1, BackupGigabytes: used.BackupGigabytes}) {
		t.Errorf("tenant a uses %+v", used)
	}
	b.wantCalls() // none about snapshots
	backups.err = nil
	b.must(b.syncNightly())
	if !objects.IsSnapshotReady(b.content()) || !slices.Equal(b.gone, []string{"volume-1"}) {
		t.Errorf("the content is %+v; the volume's deletion was brought back for %q", b.content(), b.gone)
	}
}

// TestSnapshotOfABackupIsItsOwn: it counts as the backup, and is removed once a content
// names that.
func TestSnapshotOfABackupIsItsOwn(t *testing.T) {
	b, backups := newBackupBench(t)
	source := stamped("snapshot-7", "u1", false)
	source.Metadata[stamps.KeyForBackup] = "true"
	b.backend.listed = []cinder.Snapshot{source}
	backups.listed = []cinder.Snapshot{stamped("backup:7", "u1", true)}
	for _, s := range b.counting.shelves("gold") {
		b.must(b.counting.countBackend(t.Context(), s))
	}
	if used := b.Ledger.Usage(policy.TenantScope, "a"); used.Snapshots != 0 || used.Backups != 1 {
		t.Errorf("tenant a uses %+v", used)
	}
	for _, test := range []struct {
		handle string
		want   []string
	}{{"", nil}, {"backup:7", []string{"remove snapshot-7 unrecorded=true"}}} {
		content := &snapshotv1.VolumeSnapshotContent{
			ObjectMeta: metav1.ObjectMeta{Name: "snapcontent-u1", Annotations: map[string]string{objects.AnnotationBackup: "full"}},
			Spec:       snapshotv1.VolumeSnapshotContentSpec{Driver: driver, VolumeSnapshotRef: corev1.ObjectReference{Namespace: "team-a", Name: "nightly", UID: "u1"}},
			Status:     &snapshotv1.VolumeSnapshotContentStatus{SnapshotHandle: &test.handle},
		}
		_ = b.client.SnapshotV1().VolumeSnapshotContents().Delete(t.Context(), content.Name, metav1.DeleteOptions{})
		_, err := b.client.SnapshotV1().VolumeSnapshotContents().Create(t.Context(), content, metav1.CreateOptions{})
		b.must(err)
		b.refresh()
		b.must(b.leftovers.sweepAll(t.Context(), "gold"))
		b.wantCalls(test.want...)
	}
}

// TestLeftoverBackupsDoNotWaitForOneAnother: one may be in the making for hours, and another
// have dependents for days.
func TestLeftoverBackupsDoNotWaitForOneAnother(t *testing.T) {
	for _, kind := range []cinder.Kind{backends.KindPending, backends.KindHasBackups, cinder.KindConflict} {
		t.Run(string(kind), func(t *testing.T) {
			b, backups := newBackupBench(t)
			backups.listed = []cinder.Snapshot{stamped("backup:7", "u7", false), stamped("backup:8", "u8", false)}
			backups.failRemoval = &cinder.Error{Backend: "gold", Kind: kind, Message: "not now"}
			err := b.leftovers.sweep(t.Context(), Shelf{"gold", true}, true)
			if retried := err != nil; retried != (kind == cinder.KindConflict) {
				t.Errorf("the sweep ended with %v", err)
			}
			if want := []string{"remove backup:7 unrecorded=true", "remove backup:8 unrecorded=true"}; !slices.Equal(backups.calls, want) {
				t.Errorf("requests %q", backups.calls)
			}
		})
	}
}

// TestBackupsAreImportedAsBackups: the rule must grant them, they have a quota of their own,
// and their deletion is one of a backup. What nodes encrypt has no record of its key.
func TestBackupsAreImportedAsBackups(t *testing.T) {
	for name, test := range map[string]struct {
		rule  string
		key   string
		event string
	}{
		"granted":                  {rule: ", backups: true"},
		"granted, of no volume":    {rule: ", backups: true", key: "gone"},
		"the rule grants none":     {event: "Warning BackupNotGranted tenants[0].classes[0] grants no backups"},
		"nodes encrypt its volume": {rule: ", backups: true", key: "x", event: "Warning SnapshotImportRefused snapshot backup:7 is of an encrypted volume, and such backups cannot be imported"},
		"Cinder encrypts it":       {rule: ", backups: true", key: "cinder", event: "Warning SnapshotImportRefused snapshot backup:7 is of an encrypted volume, and such backups cannot be imported"},
	} {
		t.Run(name, func(t *testing.T) {
			handle := "backup:7"
			b := newImportBench(t, byHand(func(c *snapshotv1.VolumeSnapshotContent) { c.Spec.Source.SnapshotHandle = &handle }), wantingIt(nil))
			p, err := policy.Parse([]byte(strings.NewReplacer("snapshots: 1", "snapshots: 0, backups: 1", "types: [ssd]}", "types: [ssd]}"+test.rule).Replace(importPolicy)), "policy.yaml", nil)
			b.must(err)
			b.policy = p
			backups := &fakeSnapshots{place: here(), ofVolume: b.backend.ofVolume, existing: b.backend.existing}
			backups.existing[0].ID, b.backend.existing = handle, nil
			switch test.key {
			case "":
			case "gone":
				backups.ofVolume = cinder.Volume{}
				backups.existing[0].Metadata = ofOther(func(*stamps.Snapshot) {})
			case "cinder":
				backups.ofVolume.Encrypted = true
			default:
				backups.ofVolume.Metadata = map[string]string{stamps.KeyEncryption: test.key}
			}
			b.Backends = twoShelves{fakeBackends{"gold": b.backend}, backups}
			var why *denied
			if err := b.syncImported(); err != nil && !errors.As(err, &why) {
				t.Fatal(err)
			}
			used := b.Ledger.Usage(policy.TenantScope, "a")
			if test.event != "" {
				b.wantEvents(test.event, test.event)
				if len(backups.calls) > 0 || used != (policy.Usage{}) {
					t.Errorf("requests %q, used %+v", backups.calls, used)
				}
				return
			}
			if made := b.imported(); made.Annotations[objects.AnnotationBackup] != "full" || !objects.IsSnapshotReady(made) || used != (policy.Usage{Backups: 1, BackupGigabytes: 2}) {
				t.Errorf("the content is %+v; used %+v", made, used)
			}
		})
	}
}

// TestNoBackupsAreAskedForWithoutAny: Cinder may have no backup service, or not let the
// account see backups.
func TestNoBackupsAreAskedForWithoutAny(t *testing.T) {
	b, backups := newBackupBench(t)
	backups.err = fmt.Errorf("not allowed")
	if got := len(b.counting.shelves("gold")); got != 2 {
		t.Errorf("%d shelves by the rule", got)
	}
	if got := len(b.counting.shelves("silver")); got != 1 {
		t.Errorf("%d shelves of a backend that the rule does not name", got)
	}
	without, err := policy.Parse([]byte(testPolicy), "policy.yaml", nil)
	b.must(err)
	b.policy = without
	b.must(b.leftovers.sweepAll(t.Context(), "gold"))
	b.must(b.contents.Add(&snapshotv1.VolumeSnapshotContent{ObjectMeta: metav1.ObjectMeta{Name: "x", Annotations: map[string]string{objects.AnnotationBackup: "full", objects.AnnotationBackend: "gold"}}}))
	if got := len(b.counting.shelves("gold")); got != 2 {
		t.Errorf("%d shelves by a content", got)
	}
}
