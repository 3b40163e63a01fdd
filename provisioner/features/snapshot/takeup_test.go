package snapshot

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// forDriver returns the content that an administrator, or Kubernetes' own test, makes for
// snapshot-7 with the CSI driver's name, bound to nightly.
func forDriver(change func(*snapshotv1.VolumeSnapshotContent)) *snapshotv1.VolumeSnapshotContent {
	return byHand(func(c *snapshotv1.VolumeSnapshotContent) {
		handle := "gold/snapshot-7"
		c.Annotations, c.Spec.Driver, c.Spec.Source.SnapshotHandle = nil, policy.CSIDriver, &handle
		if change != nil {
			change(c)
		}
	})
}

// takenUp returns the same content when it has the snapshot.
func takenUp(change func(*snapshotv1.VolumeSnapshotContent)) *snapshotv1.VolumeSnapshotContent {
	return forDriver(func(c *snapshotv1.VolumeSnapshotContent) {
		c.Annotations = objects.SnapshotOrigin{VolumeID: "volume-9", Backend: "gold", Place: here(), Tenant: "a", Cluster: "cluster-1", StorageClass: "fast", UID: "u1"}.Annotations()
		c.Finalizers = []string{objects.SnapshotFinalizer, objects.TakenUpFinalizer}
		c.Status = objects.SnapshotStatus(cinder.Snapshot{SizeGiB: 2}, "gold/snapshot-7")
		if change != nil {
			change(c)
		}
	})
}

// keptForDriver is the metadata of a snapshot in mode csi that VolumeSnapshot earlier left
// behind; ofTakenUp is that of one that takenUp has.
func keptForDriver() map[string]string {
	metadata := ofOther(func(*stamps.Snapshot) {})
	metadata[stamps.KeyMode] = stamps.ModeCSI
	return metadata
}

func ofTakenUp() map[string]string {
	metadata := ofOther(func(s *stamps.Snapshot) {
		s.Snapshot, s.SnapshotUID, s.Content = "nightly", "u1", "imported-snapshot-7"
	})
	metadata[stamps.KeyMode] = stamps.ModeCSI
	return metadata
}

// newDriverBench makes a Controller that serves the CSI driver, and a snapshot that was
// kept.
func newDriverBench(t *testing.T, existing ...runtime.Object) *bench {
	t.Helper()
	b := newImportBench(t, existing...)
	b.CSI = true
	b.backend.existing[0].Metadata = keptForDriver()
	return b
}

// ofVolume9 is a PersistentVolume of the snapshot's volume.
func ofVolume9(change func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	return csiVolume(func(pv *corev1.PersistentVolume) {
		pv.Annotations[objects.AnnotationVolume], pv.Spec.CSI.VolumeHandle = "volume-9", "gold/volume-9"
		if change != nil {
			change(pv)
		}
	})
}

func (b *bench) ask() error {
	b.Helper()
	b.refresh()
	_, err := (Sidecar{b.Controller}).List(b.Context(), "gold", "snapshot-7", "", false)
	return err
}

// TestKeptSnapshotOfTheDriver: the stamp says which rule counts it, its former owner is
// gone, and no content of it is called ready before it has the snapshot.
func TestKeptSnapshotOfTheDriver(t *testing.T) {
	b := newDriverBench(t, forDriver(nil), wantingIt(nil), ofVolume9(nil))
	b.backend.listed = []cinder.Snapshot{{ID: "snapshot-7", VolumeID: "volume-9", Metadata: keptForDriver()}}
	if err := b.ask(); err == nil || !strings.HasPrefix(err.Error(), "VolumeSnapshotContent imported-snapshot-7 does not have snapshot snapshot-7 yet: it gets the snapshot once VolumeSnapshot team-a/nightly names") {
		t.Errorf("the sidecar is told %v", err)
	}
	var before []*snapshotv1.VolumeSnapshotContent
	b.backend.meanwhile = func() { before = append(before, b.imported()) }
	b.must(b.syncImported())
	b.wantCalls("import snapshot-7 for imported-snapshot-7")
	b.wantEvents("Normal SnapshotImported tenant a, rule tenants[0].classes[0]: snapshot snapshot-7 (2 GiB) of backend gold, which VolumeSnapshot team-a/earlier left behind, is imported; its deletionPolicy is Delete")
	// Before the stamp, the content leads to the snapshot and cannot go without it.
	if len(before) != 1 || !objects.IsSnapshotRecorded(before[0]) || !slices.Contains(before[0].Finalizers, objects.TakenUpFinalizer) || before[0].Status != nil {
		t.Errorf("before the stamp, the content is %+v", before)
	}
	content := b.imported()
	if !objects.IsSnapshotReady(content) || *content.Status.SnapshotHandle != "gold/snapshot-7" || content.Annotations[objects.AnnotationFilesystemUUIDs] != "volume-0,volume-9" || content.Annotations[objects.AnnotationNeverFormat] != "" {
		t.Errorf("the content is %v, %+v", content.Annotations, content.Status)
	}
	if !maps.Equal(b.backend.existing[0].Metadata, ofTakenUp()) {
		t.Errorf("the snapshot has %v", b.backend.existing[0].Metadata)
	}
	b.must(b.ask())
	b.count(content)
	if used := b.Ledger.Usage(policy.TenantScope, "a").Snapshots; used != 1 {
		t.Errorf("%d snapshots count", used)
	}
	b.must(b.syncImported())
	b.wantEvents()
}

// TestWhatCopiesOfATakenUpSnapshotNeed: what its former content recorded is recovered; a
// copy is never formatted unless it is known that it may be.
func TestWhatCopiesOfATakenUpSnapshotNeed(t *testing.T) {
	block := corev1.PersistentVolumeBlock
	unstamped := func(s *cinder.Snapshot, _ *cinder.Volume) { s.Metadata = nil }
	const given = "6f3d7f7c-8b0f-4b43-8d4e-3f3b9d3f6a11"
	for name, test := range map[string]struct {
		volume  *corev1.PersistentVolume
		content *snapshotv1.VolumeSnapshotContent
		change  func(s *cinder.Snapshot, v *cinder.Volume)
		uuids   string
		never   bool
		origin  string
	}{
		"its PersistentVolume exists": {volume: ofVolume9(nil), uuids: "volume-0,volume-9"},
		"its volume is encrypted":     {volume: ofVolume9(func(pv *corev1.PersistentVolume) { pv.Spec.CSI.VolumeAttributes["encrypted"] = "uid" }), uuids: "volume-0,volume-9", origin: "uid"},
		"its encrypted volume is gone": {content: forDriver(func(c *snapshotv1.VolumeSnapshotContent) {
			c.Annotations = map[string]string{objects.AnnotationEncrypted: "uid"}
		}), change: func(_ *cinder.Snapshot, v *cinder.Volume) { v.Metadata = nil }, never: true, origin: "uid"},
		"its metadata alone says that it is encrypted": {volume: ofVolume9(nil), change: func(s *cinder.Snapshot, v *cinder.Volume) {
			s.Metadata[stamps.KeyEncryption], v.Metadata = "1 keys/a uid BwcH", map[string]string{stamps.KeyEncryption: "1 keys/a uid BwcH"}
		}, uuids: "volume-0,volume-9"},
		"its volume was imported": {volume: ofVolume9(func(pv *corev1.PersistentVolume) {
			pv.Spec.CSI.VolumeAttributes = map[string]string{"neverFormat": "true"}
		}), uuids: "volume-9", never: true},
		"its volume is raw": {volume: ofVolume9(func(pv *corev1.PersistentVolume) { pv.Spec.VolumeMode = &block }), never: true},
		"its PersistentVolume is gone": {change: func(_ *cinder.Snapshot, v *cinder.Volume) {
			v.Metadata = map[string]string{stamps.KeyMode: stamps.ModeCSI, stamps.KeyFilesystemUUIDs: given}
		}, uuids: given + ",volume-9", never: true},
		"its PersistentVolume is another cluster's": {volume: ofVolume9(func(pv *corev1.PersistentVolume) { pv.Annotations[objects.AnnotationCluster] = "x" }), never: true},
		"its volume is native":                      {volume: volume(func(pv *corev1.PersistentVolume) { pv.Annotations[objects.AnnotationVolume] = "volume-9" }), never: true},
		"its volume is native, and its filesystem is recorded": {volume: volume(func(pv *corev1.PersistentVolume) {
			pv.Annotations[objects.AnnotationVolume], pv.Annotations[objects.AnnotationFilesystemUUIDs] = "volume-9", given
		}), uuids: given, never: true},
		"somebody else took it": {volume: ofVolume9(nil), content: forDriver(func(c *snapshotv1.VolumeSnapshotContent) {
			c.Annotations = map[string]string{objects.AnnotationStorageClass: "fast"}
		}), change: unstamped, uuids: "volume-0,volume-9", never: true},
		"the content says more": {volume: ofVolume9(nil), content: forDriver(func(c *snapshotv1.VolumeSnapshotContent) {
			c.Annotations = map[string]string{objects.AnnotationFilesystemUUIDs: given, objects.AnnotationNeverFormat: "true"}
		}), uuids: given + ",volume-0,volume-9", never: true},
		"with the provisioner's name": {volume: ofVolume9(nil), content: byHand(nil), uuids: "volume-0,volume-9"},
	} {
		t.Run(name, func(t *testing.T) {
			content := test.content
			if content == nil {
				content = forDriver(nil)
			}
			existing := []runtime.Object{content, wantingIt(nil)}
			if test.volume != nil {
				existing = append(existing, test.volume)
			}
			b := newDriverBench(t, existing...)
			if test.change != nil {
				test.change(b.backend.existing[0], &b.backend.ofVolume)
			}
			b.must(b.syncImported())
			origin, err := objects.SnapshotOriginOf(b.imported())
			b.must(err)
			uuids := strings.Split(b.imported().Annotations[objects.AnnotationFilesystemUUIDs], ",")
			if got := strings.Join(uuids, ","); got != test.uuids || origin.NeverFormat != test.never || origin.Encrypted != test.origin {
				t.Errorf("filesystems %q, never formatted: %t", got, origin.NeverFormat)
			}
		})
	}
}

// TestWhatTheSidecarIsToldAboutAContent: it writes the answer into the status of the
// content, whichever it asked for. A tenant can read that in its VolumeSnapshot.
func TestWhatTheSidecarIsToldAboutAContent(t *testing.T) {
	second := func(change func(*snapshotv1.VolumeSnapshotContent)) *snapshotv1.VolumeSnapshotContent {
		return forDriver(func(c *snapshotv1.VolumeSnapshotContent) {
			c.Name, c.UID, c.Spec.VolumeSnapshotRef = "second", "content-8", corev1.ObjectReference{Namespace: "team-a", Name: "weekly", UID: "u8"}
			if change != nil {
				change(c)
			}
		})
	}
	stamped := func(b *bench) { b.backend.existing[0].Metadata = ofTakenUp() }
	for name, test := range map[string]struct {
		contents []runtime.Object
		prepare  func(*bench)
		kind     string
		message  string
	}{
		"it has the snapshot": {contents: []runtime.Object{takenUp(nil)}, prepare: stamped},
		"no content names it": {},
		"it is new": {contents: []runtime.Object{forDriver(nil)}, kind: "Conflict",
			message: "VolumeSnapshotContent imported-snapshot-7 does not have snapshot snapshot-7 yet: it gets the snapshot once VolumeSnapshot team-a/nightly names the content, and the policy grants it"},
		"it only records the snapshot": {contents: []runtime.Object{takenUp(nil)}, kind: "Conflict", message: "VolumeSnapshotContent imported-snapshot-7 does not have"},
		"it is denied": {contents: []runtime.Object{forDriver(nil), wantingIt(nil)}, prepare: func(b *bench) {
			b.backend.existing[0].Metadata = ofOther(func(s *stamps.Snapshot) { s.Tenant = "b" })
			_ = b.syncImported()
		}, kind: "Denied", message: `SnapshotImportRefused: tenant a has kept no snapshot with the ID "snapshot-7", and VolumeSnapshotContent imported-snapshot-7 does not say which rule grants another one; correct its spec.source.snapshotHandle, or name the StorageClass of the rule in the annotation standalone-cinder.openstack.org/storage-class`},
		"another has it":                       {contents: []runtime.Object{takenUp(nil), second(nil)}, prepare: stamped, kind: "Conflict", message: "VolumeSnapshotContent second does not have snapshot snapshot-7 yet"},
		"another has it, and that is deleted":  {contents: []runtime.Object{takenUp(nil), second(deletedNow)}, prepare: stamped},
		"another has it, with the other name":  {contents: []runtime.Object{takenUp(nil), second(func(c *snapshotv1.VolumeSnapshotContent) { c.Spec.Driver = driver })}, prepare: stamped},
		"a new snapshot's content has it":      {contents: []runtime.Object{takenForSidecar(func(c *snapshotv1.VolumeSnapshotContent) { c.DeletionTimestamp = nil })}},
		"it has it for another VolumeSnapshot": {contents: []runtime.Object{takenUp(func(c *snapshotv1.VolumeSnapshotContent) { c.Spec.VolumeSnapshotRef.UID = "u2" })}, prepare: stamped, kind: "Conflict", message: "VolumeSnapshotContent imported-snapshot-7 does not have"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newDriverBench(t, test.contents...)
			if test.prepare != nil {
				test.prepare(b)
			}
			b.refresh()
			all, err := (Sidecar{b.Controller}).List(t.Context(), "gold", "snapshot-7", "", false)
			if test.message == "" {
				if err != nil || len(all) != 1 {
					t.Errorf("listed %v, error %v", all, err)
				}
				return
			}
			if kind, _ := objects.FailureKind(err); kind != test.kind || err == nil || !strings.HasPrefix(err.Error(), test.message) {
				t.Errorf("%s: %v, want %s: %s", kind, err, test.kind, test.message)
			}
		})
	}
}

// TestTheSidecarAsksBeforeTheCacheShowsTheContent: its own cache may be faster.
func TestTheSidecarAsksBeforeTheCacheShowsTheContent(t *testing.T) {
	b := newDriverBench(t)
	_, err := b.client.SnapshotV1().VolumeSnapshotContents().Create(t.Context(), forDriver(nil), metav1.CreateOptions{})
	b.must(err)
	if all, err := (Sidecar{b.Controller}).List(t.Context(), "gold", "snapshot-7", "", false); err == nil {
		t.Errorf("listed %v", all)
	}
}

func deletedNow(c *snapshotv1.VolumeSnapshotContent) {
	now := metav1.Now()
	c.DeletionTimestamp, c.Finalizers = &now, []string{objects.SnapshotFinalizer}
}

// TestContentThatTheSidecarHasLetGo: the sidecar asks for the deletion only of what the
// status names, and the program may die before it writes that.
func TestContentThatTheSidecarHasLetGo(t *testing.T) {
	letGo := func(change func(*snapshotv1.VolumeSnapshotContent)) *snapshotv1.VolumeSnapshotContent {
		return takenUp(func(c *snapshotv1.VolumeSnapshotContent) {
			deletedNow(c)
			c.Finalizers, c.Status = []string{objects.TakenUpFinalizer}, nil
			c.Annotations[objects.AnnotationSnapshotBeingDeleted] = "yes"
			if change != nil {
				change(c)
			}
		})
	}
	for name, test := range map[string]struct {
		content *snapshotv1.VolumeSnapshotContent
		kept    bool // the snapshot is still the kept one
		removed bool // the sidecar has asked for it
		calls   []string
		event   string
		stays   bool
	}{
		"it has the snapshot": {content: letGo(nil), calls: []string{"remove snapshot-7 unrecorded=false"}},
		"it has it, and its record is lost": {content: letGo(func(c *snapshotv1.VolumeSnapshotContent) {
			c.Annotations = map[string]string{objects.AnnotationSnapshotBeingDeleted: "yes"}
		}), calls: []string{"remove snapshot-7 unrecorded=false"}},
		"the policy is Retain":       {content: letGo(func(c *snapshotv1.VolumeSnapshotContent) { c.Spec.DeletionPolicy = "Retain" })},
		"it was never stamped":       {content: letGo(nil), kept: true, calls: []string{"remove snapshot-7 unrecorded=false"}, event: "Warning SnapshotKept snapshot snapshot-7 is kept at Cinder"},
		"the sidecar has removed it": {content: letGo(nil), removed: true, calls: []string{"remove snapshot-7 unrecorded=false"}},
		"the sidecar is at work": {content: letGo(func(c *snapshotv1.VolumeSnapshotContent) {
			c.Finalizers = append(c.Finalizers, objects.SnapshotFinalizer)
		}), stays: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newDriverBench(t, test.content)
			if !test.kept {
				b.backend.existing[0].Metadata = ofTakenUp()
			}
			if test.removed {
				b.refresh()
				b.must((Sidecar{b.Controller}).Remove(t.Context(), "gold", "snapshot-7"))
			}
			b.must(b.syncImported())
			b.wantCalls(test.calls...)
			if test.event == "" {
				b.wantEvents()
			} else {
				b.wantEvents(test.event)
			}
			if left := len(b.imported().Finalizers); (left > 0) != test.stays {
				t.Errorf("%d finalizers are left", left)
			}
		})
	}
}

// TestImportWaitsForItsFinalizer: the snapshot-controller has replaced those of the
// content with what it had read.
func TestImportWaitsForItsFinalizer(t *testing.T) {
	b := newDriverBench(t, forDriver(nil), wantingIt(nil))
	b.backend.meanwhile = func() {
		content := b.imported()
		content.Finalizers = []string{objects.SnapshotFinalizer}
		_, err := b.client.SnapshotV1().VolumeSnapshotContents().Update(t.Context(), content, metav1.UpdateOptions{})
		b.must(err)
	}
	b.must(b.syncImported())
	b.wantCalls()
	if stamps.OfSnapshot(*b.backend.existing[0]).SnapshotUID != "u0" || objects.IsSnapshotReady(b.imported()) {
		t.Error("the snapshot was imported")
	}
	b.backend.meanwhile = nil
	b.must(b.syncImported())
	b.wantCalls("import snapshot-7 for imported-snapshot-7")
}

// TestDeletionOfAContentOfTheDriver: the sidecar asks for the deletion of what the status
// names. It deletes what the content has, and lets go of what it never had.
func TestDeletionOfAContentOfTheDriver(t *testing.T) {
	const kept = "Warning SnapshotKept snapshot snapshot-7 is kept at Cinder: it does not carry the stamp of an import by VolumeSnapshotContent imported-snapshot-7"
	removed := []string{"remove snapshot-7 unrecorded=false"}
	readyOnly := func(c *snapshotv1.VolumeSnapshotContent) { deletedNow(c); c.Annotations = nil }
	for name, test := range map[string]struct {
		content *snapshotv1.VolumeSnapshotContent
		has     bool // the content has the snapshot
		calls   []string
		events  []string
		// cleared means that the program itself takes the snapshot out of the status.
		cleared bool
	}{
		"it has the snapshot":                       {content: takenUp(deletedNow), has: true, calls: removed},
		"it has it, and its record is lost":         {content: takenUp(readyOnly), has: true, calls: removed},
		"it only records the snapshot":              {content: takenUp(deletedNow), events: []string{kept}, cleared: true},
		"an earlier version said that it was ready": {content: takenUp(readyOnly), events: []string{kept}, cleared: true},
		"the same, with Retain":                     {content: takenUp(func(c *snapshotv1.VolumeSnapshotContent) { readyOnly(c); c.Spec.DeletionPolicy = "Retain" }), cleared: true},
		"its record is a copy of that of another one": {content: takenUp(func(c *snapshotv1.VolumeSnapshotContent) {
			deletedNow(c)
			c.Annotations[objects.AnnotationSnapshotUID] = "u0"
		}), events: []string{kept}, cleared: true},
	} {
		t.Run(name, func(t *testing.T) {
			fresh := func() *bench {
				b := newDriverBench(t, test.content.DeepCopy())
				if test.has {
					b.backend.existing[0].Metadata = ofTakenUp()
				}
				return b
			}
			b := fresh()
			before := maps.Clone(b.backend.existing[0].Metadata)
			if test.content.Spec.DeletionPolicy == snapshotv1.VolumeSnapshotContentDelete {
				b.must((Sidecar{b.Controller}).Remove(t.Context(), "gold", "snapshot-7"))
				b.wantCalls(test.calls...)
				b.wantEvents(test.events...)
				if !maps.Equal(before, b.backend.existing[0].Metadata) {
					t.Errorf("the snapshot has %v", b.backend.existing[0].Metadata)
				}
				b = fresh()
			}
			b.must(b.syncImported())
			b.wantCalls()
			b.wantEvents(test.events...)
			if content := b.imported(); (content.Status.SnapshotHandle == nil) != test.cleared || len(content.Finalizers) != 1 {
				t.Errorf("the content is %+v, %+v", content.ObjectMeta, content.Status)
			}
		})
	}
}

// TestDeletionThatNobodyRequests: a VolumeSnapshot that is deleted before the
// snapshot-controller has protected it is gone at once, and that controller then asks no
// sidecar for the deletion of its content.
func TestDeletionThatNobodyRequests(t *testing.T) {
	for name, test := range map[string]struct {
		existing []runtime.Object
		marked   bool
		event    string
	}{
		"the VolumeSnapshot is gone":  {marked: true},
		"another one has its name":    {existing: []runtime.Object{wantingIt(func(s *snapshotv1.VolumeSnapshot) { s.UID = "u2" })}, marked: true},
		"the VolumeSnapshot is there": {existing: []runtime.Object{wantingIt(nil)}, event: "Warning SnapshotInUse VolumeSnapshot team-a/nightly still exists; delete it, too"},
		"the VolumeSnapshot is ending": {existing: []runtime.Object{wantingIt(func(s *snapshotv1.VolumeSnapshot) {
			now := metav1.Now()
			s.DeletionTimestamp, s.Finalizers = &now, []string{"x/y"}
		})}, event: "Warning SnapshotInUse VolumeSnapshot team-a/nightly is being deleted"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newDriverBench(t, append(test.existing, forDriver(deletedNow))...)
			b.must(b.syncImported())
			if _, marked := b.imported().Annotations[objects.AnnotationSnapshotBeingDeleted]; marked != test.marked {
				t.Errorf("the deletion is requested: %t", marked)
			}
			if test.event == "" {
				b.wantEvents()
			} else {
				b.wantEvents(test.event, test.event)
			}
		})
	}
}

// TestLostRecordOfAnImportedContent: the snapshot-controller has replaced the annotations
// while it requested the deletion.
func TestLostRecordOfAnImportedContent(t *testing.T) {
	for name, test := range map[string]struct {
		policy snapshotv1.DeletionPolicy
		of     func(*stamps.Snapshot)
		calls  []string
	}{
		"the policy is Delete": {policy: snapshotv1.VolumeSnapshotContentDelete, calls: []string{"remove snapshot-7 unrecorded=false"}},
		"the policy is Retain": {policy: snapshotv1.VolumeSnapshotContentRetain},
		"another has it":       {policy: snapshotv1.VolumeSnapshotContentDelete, of: func(s *stamps.Snapshot) { s.Content = "second" }},
	} {
		t.Run(name, func(t *testing.T) {
			b := newImportBench(t, byHand(func(c *snapshotv1.VolumeSnapshotContent) {
				deletedNow(c)
				c.Annotations, c.Spec.DeletionPolicy = map[string]string{objects.AnnotationSnapshotBeingDeleted: "yes"}, test.policy
			}))
			b.backend.existing[0].Metadata = ofOther(func(s *stamps.Snapshot) {
				s.Snapshot, s.SnapshotUID, s.Content = "nightly", "u1", "imported-snapshot-7"
				if test.of != nil {
					test.of(s)
				}
			})
			b.must(b.syncImported())
			b.wantCalls(test.calls...)
			if left := len(b.imported().Finalizers); left != 0 {
				t.Errorf("%d finalizers are left", left)
			}
		})
	}
}

// TestRefusedImportLeavesNoRecord: the snapshot got another stamp after the content had
// recorded it. The next leader may find it like that.
func TestRefusedImportLeavesNoRecord(t *testing.T) {
	others := ofOther(func(s *stamps.Snapshot) { s.Snapshot, s.SnapshotUID, s.Content = "weekly", "u8", "second" })
	unchanged := func(t *testing.T, b *bench) {
		t.Helper()
		content := b.imported()
		if objects.IsSnapshotRecorded(content) || content.Annotations[objects.AnnotationTenant] != "" || objects.SnapshotHandleOf(content) != "" || slices.Contains(content.Finalizers, objects.TakenUpFinalizer) || !maps.Equal(b.backend.existing[0].Metadata, others) {
			t.Errorf("the content is %v, %+v; the snapshot has %v", content.Annotations, content.Status, b.backend.existing[0].Metadata)
		}
		if used := b.Ledger.Usage(policy.TenantScope, "a").Snapshots; used != 0 {
			t.Errorf("%d snapshots count", used)
		}
	}
	second := byHand(func(c *snapshotv1.VolumeSnapshotContent) { c.Name, c.UID = "second", "content-8" })
	t.Run("during the import", func(t *testing.T) {
		b := newDriverBench(t, forDriver(nil), wantingIt(nil), second)
		b.backend.err = nil
		b.backend.meanwhile = func() {
			b.backend.existing[0].Metadata = others
			b.backend.failImport = &cinder.Error{Backend: "gold", Kind: backends.KindNotOurs, Message: "stamped for somebody else"}
		}
		if err := b.syncImported(); err == nil {
			t.Error("no error")
		}
		unchanged(t, b)
	})
	t.Run("before a change of the leader", func(t *testing.T) {
		begun := takenUp(func(c *snapshotv1.VolumeSnapshotContent) { ready := false; c.Status.ReadyToUse = &ready })
		b := newDriverBench(t, begun, wantingIt(nil), second)
		b.backend.existing[0].Metadata = others
		b.count(begun)
		if err := b.syncImported(); err == nil || !strings.Contains(err.Error(), "snapshot snapshot-7 belongs to VolumeSnapshotContent second, which exists") {
			t.Errorf("error %v", err)
		}
		unchanged(t, b)
	})
	t.Run("but it is the content's", func(t *testing.T) {
		begun := takenUp(func(c *snapshotv1.VolumeSnapshotContent) { ready := false; c.Status.ReadyToUse = &ready })
		b := newDriverBench(t, begun, wantingIt(nil))
		b.backend.existing[0].Metadata = ofTakenUp()
		b.backend.existing[0].Status = cinder.StatusError // which no new import may be
		if err := b.syncImported(); err == nil {
			t.Error("no error")
		}
		if !objects.IsSnapshotRecorded(b.imported()) {
			t.Error("the record is gone")
		}
	})
}

// TestStampedSnapshotIsHandedOutWhateverThePolicySays: a leader died after the stamp, or
// the sidecar has overwritten the status. The policy decided before the stamp.
func TestStampedSnapshotIsHandedOutWhateverThePolicySays(t *testing.T) {
	for name, content := range map[string]*snapshotv1.VolumeSnapshotContent{
		"the sidecar has written an error": takenUp(func(c *snapshotv1.VolumeSnapshotContent) {
			ready, message := false, "not yet"
			c.Status = &snapshotv1.VolumeSnapshotContentStatus{ReadyToUse: &ready, Error: &snapshotv1.VolumeSnapshotError{Message: &message}}
		}),
		"nothing is written": takenUp(func(c *snapshotv1.VolumeSnapshotContent) { c.Status = nil }),
	} {
		t.Run(name, func(t *testing.T) {
			b := newDriverBench(t, content, wantingIt(nil))
			b.policy = policyWithout(t)
			b.backend.existing[0].Metadata = ofTakenUp()
			b.must(b.syncImported())
			b.wantCalls()
			if content := b.imported(); !objects.IsSnapshotReady(content) || *content.Status.SnapshotHandle != "gold/snapshot-7" || content.Status.Error != nil {
				t.Errorf("the status is %+v", content.Status)
			}
		})
	}
}

func policyWithout(t *testing.T) *policy.Policy {
	t.Helper()
	p, err := policy.Parse([]byte(strings.Replace(importPolicy, "[team-a]", "[team-z]", 1)), "policy.yaml", nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestCopiedRecordDoesNotCount: backup programs copy all annotations of a content to those
// that they make, and those name other VolumeSnapshots.
func TestCopiedRecordDoesNotCount(t *testing.T) {
	for name, test := range map[string]struct {
		content *snapshotv1.VolumeSnapshotContent
		want    int64
	}{
		"its own record":                 {takenUp(nil), 1},
		"that of another VolumeSnapshot": {takenUp(func(c *snapshotv1.VolumeSnapshotContent) { c.Annotations[objects.AnnotationSnapshotUID] = "u0" }), 0},
		"that of an earlier version":     {takenUp(func(c *snapshotv1.VolumeSnapshotContent) { delete(c.Annotations, objects.AnnotationSnapshotUID) }), 0},
		"not bound yet":                  {takenUp(func(c *snapshotv1.VolumeSnapshotContent) { c.Spec.VolumeSnapshotRef.UID = "" }), 0},
		"a native one's":                 {takenUp(func(c *snapshotv1.VolumeSnapshotContent) { c.Spec.Driver = driver }), 1},
		"an earlier version's native one": {takenUp(func(c *snapshotv1.VolumeSnapshotContent) {
			c.Spec.Driver = driver
			delete(c.Annotations, objects.AnnotationSnapshotUID)
		}), 1},
		"a copy of that": {takenUp(func(c *snapshotv1.VolumeSnapshotContent) {
			c.Spec.Driver, c.Status = driver, nil
			delete(c.Annotations, objects.AnnotationSnapshotUID)
		}), 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := newDriverBench(t)
			b.contentEvents().OnAdd(test.content, false)
			if used := b.Ledger.Usage(policy.TenantScope, "a").Snapshots; used != test.want {
				t.Errorf("%d snapshots count, want %d", used, test.want)
			}
		})
	}
}

// TestContentThatAnEarlierVersionCalledReady: until it has the snapshot, its status says
// that it has not.
func TestContentThatAnEarlierVersionCalledReady(t *testing.T) {
	ready := takenUp(func(c *snapshotv1.VolumeSnapshotContent) { c.Annotations = nil })
	t.Run("and the policy grants it", func(t *testing.T) {
		b := newDriverBench(t, ready.DeepCopy(), wantingIt(nil))
		b.must(b.syncImported())
		b.wantCalls("import snapshot-7 for imported-snapshot-7")
	})
	t.Run("and the policy does not grant it", func(t *testing.T) {
		b := newDriverBench(t, ready.DeepCopy(), wantingIt(nil))
		b.backend.existing[0].Metadata = ofOther(func(s *stamps.Snapshot) { s.Tenant = "b" })
		var why *denied
		if err := b.syncImported(); !errors.As(err, &why) {
			t.Errorf("error %v", err)
		}
		b.wantCalls()
		if content := b.imported(); objects.IsSnapshotReady(content) || content.Status.SnapshotHandle != nil {
			t.Errorf("the status is %+v", content.Status)
		}
	})
}

// TestSnapshotOfAnotherTenant: a tenant that restores any snapshot takes it over, and it
// counts there alone.
func TestSnapshotOfAnotherTenant(t *testing.T) {
	b := newDriverBench(t, forDriver(nil), wantingIt(nil))
	var err error
	b.policy, err = policy.Parse([]byte(strings.Replace(importPolicy, "    quota: {snapshots: 1}\n", "    quota: {snapshots: 1, gigabytes: 1}\n    restoreAnySnapshot: true\n", 1)+
		"  - name: b\n    namespaces: [team-b]\n    classes: [{storageClasses: [slow], backends: [gold]}]\n"), "policy.yaml", nil)
	b.must(err)
	left := ofOther(func(s *stamps.Snapshot) { s.Tenant = "b" })
	b.backend.existing[0].Metadata = left
	b.backend.listed = []cinder.Snapshot{{ID: "snapshot-7", VolumeID: "volume-9", Metadata: maps.Clone(left)}}
	b.must(b.syncImported())
	b.wantCalls("import snapshot-7 for imported-snapshot-7")
	if tenant := b.backend.existing[0].Metadata[stamps.KeyTenant]; tenant != "a" {
		t.Errorf("the snapshot is of tenant %s", tenant)
	}
	if a, b := b.Ledger.Usage(policy.TenantScope, "a").Snapshots, b.Ledger.Usage(policy.TenantScope, "b").Snapshots; a != 1 || b != 0 {
		t.Errorf("tenant a has %d snapshots, tenant b %d", a, b)
	}
	b.must(b.client.SnapshotV1().VolumeSnapshotContents().Delete(t.Context(), "imported-snapshot-7", metav1.DeleteOptions{}))
}

// TestSnapshotThatBecomesFree: the content and the VolumeSnapshot that have it bring the
// import back when they are gone.
func TestSnapshotThatBecomesFree(t *testing.T) {
	earlier := objects.NewSnapshotContent(objects.SnapshotOrigin{Content: "snapcontent-u0", VolumeID: "volume-9", Backend: "gold", Place: here(), Cluster: "cluster-1",
		Namespace: "team-a", Name: "earlier", UID: "u0"}, class(nil), nil)
	snapshot := nightly(func(s *snapshotv1.VolumeSnapshot) { s.Name, s.UID = "earlier", "u0" })
	for name, test := range map[string]struct {
		object runtime.Object
		gone   func(*bench)
	}{
		"of a content":        {earlier, func(b *bench) { b.contentEvents().OnDelete(earlier) }},
		"of a VolumeSnapshot": {snapshot, func(b *bench) { b.snapshotEvents().OnDelete(snapshot) }},
	} {
		t.Run(name, func(t *testing.T) {
			b := newDriverBench(t, forDriver(nil), wantingIt(nil), test.object)
			var why *denied
			if err := b.syncImported(); !errors.As(err, &why) {
				t.Fatalf("error %v", err)
			}
			test.gone(b)
			var queued []string
			for b.loop.Queue.Len() > 0 {
				next, _ := b.loop.Queue.Get()
				queued = append(queued, fmt.Sprint(next.kind, " ", next.name))
				b.loop.Queue.Done(next)
			}
			if !slices.Contains(queued, "VolumeSnapshotContent imported-snapshot-7") {
				t.Errorf("queued are %q", queued)
			}
		})
	}
}

// TestContentsOfTheDriverNeedTheDriver: without sidecars, another installation may be the
// driver's.
func TestContentsOfTheDriverNeedTheDriver(t *testing.T) {
	b := newDriverBench(t, forDriver(nil), wantingIt(nil))
	b.CSI = false
	b.contentEvents().OnAdd(forDriver(nil), false)
	if b.loop.Queue.Len() != 0 {
		t.Errorf("%d items are queued", b.loop.Queue.Len())
	}
	b.must(b.syncImported())
	b.wantCalls()
	b.wantEvents()
}

// TestRecordThatIsGivenUpCountsNoLonger: an event with the record may come after that.
func TestRecordThatIsGivenUpCountsNoLonger(t *testing.T) {
	b := newDriverBench(t)
	begun, plain := takenUp(nil), forDriver(nil)
	events := b.contentEvents()
	events.OnAdd(plain, false)
	events.OnUpdate(plain, begun)
	if used := b.Ledger.Usage(policy.TenantScope, "a").Snapshots; used != 1 {
		t.Errorf("%d snapshots count", used)
	}
	events.OnUpdate(begun, plain)
	b.drain()
	if used := b.Ledger.Usage(policy.TenantScope, "a").Snapshots; used != 0 || b.backend.listings != 1 {
		t.Errorf("%d snapshots count, %d listings", used, b.backend.listings)
	}
}

// TestSnapshotThatTwoContentsNameIsKept: whichever of them is deleted, until the other is
// gone.
func TestSnapshotThatTwoContentsNameIsKept(t *testing.T) {
	second := byHand(func(c *snapshotv1.VolumeSnapshotContent) { c.Name, c.UID = "second", "content-8" })
	b := newImportBench(t, second, byHand(func(c *snapshotv1.VolumeSnapshotContent) {
		deletedNow(c)
		c.Annotations, c.Status = takenUp(nil).Annotations, objects.SnapshotStatus(cinder.Snapshot{SizeGiB: 2}, "snapshot-7")
		c.Annotations[objects.AnnotationSnapshotBeingDeleted] = "yes"
	}))
	b.backend.existing[0].Metadata = ofOther(func(s *stamps.Snapshot) { s.SnapshotUID, s.Content = "u1", "imported-snapshot-7" })
	var why *denied
	if err := b.syncImported(); !errors.As(err, &why) {
		t.Errorf("error %v", err)
	}
	b.wantCalls()
	b.wantEvents("Warning SnapshotFailedDelete VolumeSnapshotContents imported-snapshot-7 and second both name snapshot snapshot-7; it is kept as long as one of them does")
	b.must(b.client.SnapshotV1().VolumeSnapshotContents().Delete(t.Context(), "second", metav1.DeleteOptions{}))
	b.contentEvents().OnDelete(second)
	b.refresh()
	b.drain()
	b.wantCalls("remove snapshot-7 unrecorded=false")
}

// TestTheSidecarIsNotToldAboutAnotherTenantsContent: the sidecar does not say for which
// content it asks, and writes the answer into the status that the content's tenant reads.
func TestTheSidecarIsNotToldAboutAnotherTenantsContent(t *testing.T) {
	other := forDriver(func(c *snapshotv1.VolumeSnapshotContent) {
		c.Name, c.UID = "a-content-of-b", "content-b"
		c.Spec.VolumeSnapshotRef.Namespace, c.Spec.VolumeSnapshotRef.Name, c.Spec.VolumeSnapshotRef.UID = "team-b", "secret-plan", "u-b"
	})
	for name, mine := range map[string]*snapshotv1.VolumeSnapshotContent{"without the snapshot": forDriver(nil), "with it": takenUp(nil)} {
		t.Run(name, func(t *testing.T) {
			b := newDriverBench(t, other.DeepCopy(), mine, wantingIt(nil), ofVolume9(nil))
			if name == "with it" {
				b.backend.existing[0].Metadata = ofTakenUp()
			}
			b.parked.IsNews("u-b", "ImportNotGranted", "tenant b has kept no snapshot with the ID \"snapshot-7\"", false)
			err := b.ask()
			if err == nil || strings.Contains(err.Error(), "tenant b") || strings.Contains(err.Error(), "secret-plan") {
				t.Errorf("the sidecar, which may ask for tenant a's content, is told %v", err)
			}
		})
	}
}
