package snapshot

import (
	"cmp"
	"context"
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
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/ledger"
)

// csiVolume returns a volume in mode csi that is a copy of another.
func csiVolume(change func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	return volume(func(pv *corev1.PersistentVolume) {
		delete(pv.Annotations, objects.AnnotationConnector)
		pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
			Driver: policy.CSIDriver, VolumeHandle: "gold/volume-1", VolumeAttributes: map[string]string{"filesystemUUIDs": "volume-0"},
		}}
		if change != nil {
			change(pv)
		}
	})
}

// forSidecar returns the content that the snapshot-controller makes for nightly.
func forSidecar(change func(*snapshotv1.VolumeSnapshotContent)) *snapshotv1.VolumeSnapshotContent {
	return recorded(func(c *snapshotv1.VolumeSnapshotContent) {
		handle := "gold/volume-1"
		c.Annotations, c.Status, c.Spec.Driver, c.Spec.Source.VolumeHandle = nil, nil, policy.CSIDriver, &handle
		if change != nil {
			change(c)
		}
	})
}

// takenForSidecar returns the same content when its snapshot is ready and its deletion
// has been requested.
func takenForSidecar(change func(*snapshotv1.VolumeSnapshotContent)) *snapshotv1.VolumeSnapshotContent {
	return deletedContent(func(c *snapshotv1.VolumeSnapshotContent) {
		volume, snapshot := "gold/volume-1", "gold/snapshot-1"
		c.Spec.Driver, c.Spec.Source.VolumeHandle, c.Status.SnapshotHandle = policy.CSIDriver, &volume, &snapshot
		if change != nil {
			change(c)
		}
	})
}

func stampedForSidecar(change func(*cinder.Snapshot)) *cinder.Snapshot {
	s := stamped("snapshot-1", "u1", true)
	s.Metadata["standalone-cinder.openstack.org/mode"] = "csi"
	if change != nil {
		change(&s)
	}
	return &s
}

func TestSnapshotForASidecar(t *testing.T) {
	taken := []string{"take snapshot-u1 of volume-1", "mark snapshot-1"}
	deleted := func(c *snapshotv1.VolumeSnapshotContent) {
		now := metav1.Now()
		c.DeletionTimestamp = &now
	}
	for name, test := range map[string]struct {
		content    *snapshotv1.VolumeSnapshotContent
		volume     *corev1.PersistentVolume
		name       string
		parameters map[string]string
		prepare    func(*bench)
		kind       string
		message    string
		calls      []string
		counts     int64
	}{
		"taken":                      {content: forSidecar(nil), calls: taken, counts: 1},
		"with the sidecar's own key": {content: forSidecar(nil), parameters: map[string]string{"csi.storage.k8s.io/volumesnapshot/name": "nightly"}, calls: taken, counts: 1},
		"begun before, and the policy has changed": {content: forSidecar(func(c *snapshotv1.VolumeSnapshotContent) { c.Annotations = recorded(nil).Annotations }),
			parameters: map[string]string{"force": "x"}, calls: taken, counts: 1},
		"a class with parameters": {content: forSidecar(nil), parameters: map[string]string{"force": "x"}, kind: "Denied",
			message: `ParameterNotAllowed: parameter "force" of the VolumeSnapshotClass is not known; there are only type and incremental`},
		"no room": {content: forSidecar(nil), prepare: func(b *bench) { b.Ledger.RecordSnapshot("other", "gold", ledgerOf("a")) }, kind: "NoRoom",
			message: "QuotaExceeded: tenant a would use 2 of 1 snapshots (tenants[0].quota.snapshots)", counts: 1},
		"another tenant's volume": {content: forSidecar(nil), volume: csiVolume(func(pv *corev1.PersistentVolume) { pv.Annotations[objects.AnnotationTenant] = "b" }), kind: "Denied",
			message: "OtherTenant: namespace team-a belongs to tenant a (tenants[0]), but the volume was made for tenant b"},
		"a claim of another namespace": {content: forSidecar(nil), volume: csiVolume(func(pv *corev1.PersistentVolume) { pv.Spec.ClaimRef.Namespace = "team-b" }), kind: "Denied",
			message: "PersistentVolume pvc-c1 is not bound to a claim in namespace team-a, which has the VolumeSnapshot"},
		"a record of another tenant": {content: forSidecar(func(c *snapshotv1.VolumeSnapshotContent) {
			c.Annotations = recorded(nil).Annotations
			c.Annotations[objects.AnnotationTenant] = "b"
		}), kind: "Damaged",
			message: `VolumeSnapshotContent snapcontent-u1 records tenant "b", but its volume belongs to tenant "a"`},
		"another source": {content: forSidecar(nil), volume: csiVolume(func(pv *corev1.PersistentVolume) {
			pv.Annotations[objects.AnnotationVolume], pv.Spec.CSI.VolumeHandle = "volume-2", "gold/volume-2"
		}), kind: "AlreadyExists", message: "according to VolumeSnapshotContent snapcontent-u1, snapshot snapshot-u1 belongs to volume gold/volume-1"},
		"no content": {name: "snapshot-u2", content: forSidecar(nil), kind: "Damaged", message: "VolumeSnapshotContent snapcontent-u2 of snapshot snapshot-u2 does not exist"},
		"a name that is none": {name: "nightly", content: forSidecar(nil), kind: "Damaged",
			message: `"nightly" is not the name that the csi-snapshotter gives the snapshot of a VolumeSnapshot, snapshot- and its UID`},
		"a content of this program's own": {content: recorded(nil), kind: "Damaged", message: "VolumeSnapshotContent snapcontent-u1 is not for a new snapshot by the CSI driver; delete it"},
		"a content that is being deleted": {content: forSidecar(deleted), kind: "Damaged",
			message: "the snapshot of VolumeSnapshot team-a/nightly is not taken: its VolumeSnapshotContent is being deleted"},
		"contents that are not read yet": {content: forSidecar(nil), prepare: func(b *bench) { b.show(nil) }, kind: "Unavailable", message: "the VolumeSnapshotContents are not read yet, so it is not known what counts"},
		"a silent backend": {content: forSidecar(nil), prepare: func(b *bench) {
			b.backend.health = &cinder.Error{Backend: "gold", Kind: cinder.KindUnavailable, Message: "silent"}
		}, kind: "Unavailable", message: "backend gold: silent"},
		"an answer that is lost": {content: forSidecar(nil), prepare: func(b *bench) {
			b.counting.counted[Shelf{"gold", false}] = true
			b.backend.err = &cinder.Error{Backend: "gold", Kind: cinder.KindUnavailable, Message: "lost", EffectUnknown: true}
		}, kind: "Unavailable", message: "backend gold: lost", calls: taken[:1], counts: 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, test.content, namespace())
			pv := test.volume
			if pv == nil {
				pv = csiVolume(nil)
			}
			if test.name == "" {
				test.name = "snapshot-u1"
			}
			if test.prepare != nil {
				test.prepare(b)
			}
			if objects.IsSnapshotRecorded(test.content) {
				b.count(test.content)
			}
			before := b.Ledger.Usage(policy.TenantScope, "a").Snapshots
			got, err := (Sidecar{b.Controller}).Take(t.Context(), pv, test.name, test.parameters)
			if kind, _ := objects.FailureKind(err); kind != test.kind || fmt.Sprint(err) != cmp.Or(test.message, "<nil>") {
				t.Errorf("got  %s: %v\nwant %s: %s", kind, err, test.kind, test.message)
			}
			b.wantCalls(test.calls...)
			if counts := b.Ledger.Usage(policy.TenantScope, "a").Snapshots; counts != max(test.counts, before) {
				t.Errorf("%d snapshots count, want %d", counts, max(test.counts, before))
			}
			if err != nil {
				return
			}
			if got.ID != "snapshot-1" || got.Backend != "gold" {
				t.Errorf("taken %+v", got)
			}
			origin, err := objects.SnapshotOriginOf(b.content())
			b.must(err)
			if origin.Tenant != "a" || origin.Place != here() || origin.VolumeID != "volume-1" {
				t.Errorf("the content records %+v", origin)
			}
			if uuids := b.content().Annotations[objects.AnnotationFilesystemUUIDs]; len(test.content.Annotations) == 0 && uuids != "volume-1,volume-0" {
				t.Errorf("the content records the filesystems %q", uuids)
			}
			// What the content records counts only once.
			b.count(b.content())
			if counts := b.Ledger.Usage(policy.TenantScope, "a").Snapshots; counts != 1 {
				t.Errorf("%d snapshots count", counts)
			}
		})
	}
}

// TestSnapshotOfAnImportedVolumeIsNeverFormatted: neither is a volume that is restored
// from it. The content of a raw volume's snapshot may not say that the volume is raw
// (sourceVolumeMode), so a claim may ask for a filesystem.
func TestSnapshotOfAnImportedVolumeIsNeverFormatted(t *testing.T) {
	block := corev1.PersistentVolumeBlock
	for name, change := range map[string]func(*corev1.PersistentVolume){
		"imported": func(pv *corev1.PersistentVolume) {
			pv.Spec.CSI.VolumeAttributes = map[string]string{"neverFormat": "true"}
		},
		"raw": func(pv *corev1.PersistentVolume) { pv.Spec.VolumeMode, pv.Spec.CSI.VolumeAttributes = &block, nil },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, forSidecar(nil), namespace())
			_, err := (Sidecar{b.Controller}).Take(t.Context(), csiVolume(change), "snapshot-u1", nil)
			b.must(err)
			if origin, err := objects.SnapshotOriginOf(b.content()); err != nil || !origin.NeverFormat {
				t.Errorf("the content records %v (%v)", b.content().Annotations, err)
			}
		})
	}
}

func ledgerOf(tenant string) ledger.Snapshot {
	return ledger.Snapshot{Tenant: tenant, StorageClass: "fast"}
}

// TestLostRecordIsWrittenAgain: others replace all annotations of a content.
func TestLostRecordIsWrittenAgain(t *testing.T) {
	b := newBench(t, forSidecar(nil), namespace())
	b.backend.meanwhile = func() {
		content := b.content()
		content.Annotations = nil
		_, err := b.client.SnapshotV1().VolumeSnapshotContents().Update(context.Background(), content, metav1.UpdateOptions{})
		b.must(err)
	}
	_, err := (Sidecar{b.Controller}).Take(t.Context(), csiVolume(nil), "snapshot-u1", nil)
	b.must(err)
	if !objects.IsSnapshotRecorded(b.content()) {
		t.Error("the content records nothing")
	}
}

// restamp gives a snapshot the stamp of another VolumeSnapshot.
func restamp(s *cinder.Snapshot, uid string) {
	s.Metadata["standalone-cinder.openstack.org/snapshot-uid"] = uid
	s.Metadata["csi.storage.k8s.io/volumesnapshotcontent/name"] = "snapcontent-" + uid
}

func TestSnapshotRemovalForASidecar(t *testing.T) {
	removed := []string{"remove snapshot-1 unrecorded=false"}
	for name, test := range map[string]struct {
		contents []runtime.Object
		snapshot *cinder.Snapshot
		fail     error
		kind     string
		message  string
		calls    []string
		events   []string
		counts   int64
	}{
		"removed":          {contents: []runtime.Object{takenForSidecar(nil)}, snapshot: stampedForSidecar(nil), calls: removed},
		"gone":             {contents: []runtime.Object{takenForSidecar(nil)}, calls: removed},
		"gone for good":    {},
		"without a record": {contents: []runtime.Object{takenForSidecar(func(c *snapshotv1.VolumeSnapshotContent) { c.Annotations = nil })}, snapshot: stampedForSidecar(nil), calls: removed},
		"the stamp of another": {contents: []runtime.Object{takenForSidecar(nil)}, snapshot: stampedForSidecar(func(s *cinder.Snapshot) { restamp(s, "u9") }), kind: "NotOurs",
			message: "backend gold: snapshot snapshot-1 does not carry the stamp", events: []string{"Warning SnapshotFailedDelete backend gold: snapshot snapshot-1 does not carry"}, counts: 1, calls: removed},
		"the stamp of another, without a record": {contents: []runtime.Object{takenForSidecar(func(c *snapshotv1.VolumeSnapshotContent) { c.Annotations = nil })},
			snapshot: stampedForSidecar(func(s *cinder.Snapshot) { restamp(s, "u9") }), kind: "NotOurs",
			message: "snapshot snapshot-1 carries the stamp of a VolumeSnapshot other than that of VolumeSnapshotContent snapcontent-u1; it is not touched",
			events:  []string{"Warning SnapshotFailedDelete snapshot snapshot-1 carries the stamp of a VolumeSnapshot other than that of VolumeSnapshotContent snapcontent-u1; it is not touched"}},
		"no content asks for it": {snapshot: stampedForSidecar(nil), kind: "Damaged",
			message: "no VolumeSnapshotContent asks for the deletion of snapshot snapshot-1"},
		"its content is not being deleted": {contents: []runtime.Object{takenForSidecar(func(c *snapshotv1.VolumeSnapshotContent) { c.DeletionTimestamp = nil })}, snapshot: stampedForSidecar(nil), kind: "Damaged",
			message: "VolumeSnapshotContent snapcontent-u1 does not ask for the deletion of snapshot snapshot-1: it is not being deleted", counts: 1},
		"it is to be kept": {contents: []runtime.Object{takenForSidecar(func(c *snapshotv1.VolumeSnapshotContent) {
			c.Spec.DeletionPolicy = snapshotv1.VolumeSnapshotContentRetain
		})}, snapshot: stampedForSidecar(nil), kind: "Damaged",
			message: "VolumeSnapshotContent snapcontent-u1 does not ask for the deletion of snapshot snapshot-1: its deletionPolicy is Retain", counts: 1},
		"another content names it": {contents: []runtime.Object{takenForSidecar(nil), takenForSidecar(func(c *snapshotv1.VolumeSnapshotContent) {
			c.Name, c.UID, c.DeletionTimestamp = "zz-again", "content-2", nil
		})}, snapshot: stampedForSidecar(nil), kind: "InUse", message: "VolumeSnapshotContents snapcontent-u1 and zz-again both name snapshot snapshot-1; it is kept as long as one of them does", counts: 1},
		"somebody else's": {contents: []runtime.Object{takenForSidecar(nil)}, snapshot: stampedForSidecar(func(s *cinder.Snapshot) { s.Metadata = nil }), kind: "NotOurs",
			message: "snapshot snapshot-1 does not carry the stamp of this cluster's CSI driver; it is not touched",
			events:  []string{"Warning SnapshotFailedDelete snapshot snapshot-1 does not carry"}, counts: 1},
		"a native volume's": {contents: []runtime.Object{takenForSidecar(nil)}, snapshot: stampedForSidecar(func(s *cinder.Snapshot) { delete(s.Metadata, "standalone-cinder.openstack.org/mode") }), kind: "NotOurs",
			message: "snapshot snapshot-1 does not carry the stamp of this cluster's CSI driver; it is not touched",
			events:  []string{"Warning SnapshotFailedDelete snapshot snapshot-1 does not carry"}, counts: 1},
		"volumes depend on it": {contents: []runtime.Object{takenForSidecar(nil), nightly(nil)}, snapshot: stampedForSidecar(nil), fail: &cinder.Error{Backend: "gold", Kind: backends.KindInUse, Message: "volumes depend on it"},
			kind: "InUse", message: "backend gold: volumes depend on it", calls: removed,
			events: []string{"Warning SnapshotFailedDelete backend gold: volumes depend on it", "Warning SnapshotFailedDelete backend gold: volumes depend on it"}, counts: 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, append(test.contents, namespace())...)
			for _, object := range test.contents {
				if content, ok := object.(*snapshotv1.VolumeSnapshotContent); ok {
					b.count(content)
				}
			}
			if test.snapshot != nil {
				b.backend.existing = []*cinder.Snapshot{test.snapshot}
			}
			b.backend.failRemoval = test.fail
			for range 2 {
				err := (Sidecar{b.Controller}).Remove(t.Context(), "gold", "snapshot-1")
				if kind, _ := objects.FailureKind(err); kind != test.kind || fmt.Sprint(err) != cmp.Or(test.message, "<nil>") {
					t.Errorf("got  %s: %v\nwant %s: %s", kind, err, test.kind, test.message)
				}
				if len(test.calls) > 0 {
					b.wantCalls(test.calls...)
					b.backend.calls = nil
				} else {
					b.wantCalls()
				}
			}
			b.wantEvents(test.events...)
			if counts := b.Ledger.Usage(policy.TenantScope, "a").Snapshots; counts != test.counts {
				t.Errorf("%d snapshots count, want %d", counts, test.counts)
			}
		})
	}
}

// TestAbsenceElsewhereIsNoDeletion: a backend was pointed to another project after the
// snapshot was taken, and its content may have lost its record. csi-snapshotter drops
// the content of a snapshot that it believes to be deleted.
func TestAbsenceElsewhereIsNoDeletion(t *testing.T) {
	there := cinder.NewPlace("http://cinder:8776/v3", "p2")
	volumeAt := func(name string, place cinder.Place) *corev1.PersistentVolume {
		return csiVolume(func(pv *corev1.PersistentVolume) {
			pv.Name = name
			maps.Copy(pv.Annotations, objects.PlaceAnnotations(place))
		})
	}
	const (
		elsewhere = "backend gold: snapshot snapshot-1 was recorded elsewhere; its VolumeSnapshotContent stays; "
		damaged   = "VolumeSnapshotContent snapcontent-u1: annotation " + objects.AnnotationVolume + " is missing; nothing is deleted until it is fixed; " +
			"snapshot snapshot-1 does not exist at http://cinder:8776/v3 (project p2), but it may have been taken elsewhere; "
		remedy = "put the configuration and credentials of backend gold back to what they were, or, if the snapshot is certainly gone, run: " +
			"kubectl annotate volumesnapshotcontent snapcontent-u1 --overwrite " + objects.AnnotationEndpoint + "=http://cinder:8776/v3 " + objects.AnnotationProject + "=p2"
	)
	for name, test := range map[string]struct {
		record  map[string]string
		volumes []runtime.Object
		change  func(*snapshotv1.VolumeSnapshotContent)
		kind    string
		message string
	}{
		"recorded": {record: recorded(nil).Annotations, volumes: []runtime.Object{volumeAt("pvc-c1", there)}, kind: "Elsewhere", message: elsewhere + remedy},
		"without a record, but the volume was made elsewhere": {volumes: []runtime.Object{volumeAt("pvc-c1", here())}, kind: "Elsewhere", message: elsewhere + remedy},
		"without a record, but the volume was made here":      {volumes: []runtime.Object{volumeAt("pvc-c1", there)}},
		"without a record and a PersistentVolume":             {kind: "Damaged", message: damaged + remedy},
		"without a record, and the PersistentVolume has none": {volumes: []runtime.Object{csiVolume(nil)}, kind: "Damaged", message: damaged + remedy},
		"without a record, and with two PersistentVolumes":    {volumes: []runtime.Object{volumeAt("pvc-c1", there), volumeAt("copy", there)}, kind: "Damaged", message: damaged + remedy},
		"without the record of an import": {volumes: []runtime.Object{volumeAt("pvc-c1", there)}, change: func(c *snapshotv1.VolumeSnapshotContent) {
			c.Spec.Source = snapshotv1.VolumeSnapshotContentSource{SnapshotHandle: c.Status.SnapshotHandle}
		}, kind: "Damaged", message: damaged + remedy},
		"without a record, after the remedy": {record: objects.PlaceAnnotations(there)},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, append(test.volumes, namespace(), takenForSidecar(func(c *snapshotv1.VolumeSnapshotContent) {
				c.Annotations = test.record
				if test.change != nil {
					test.change(c)
				}
			}))...)
			b.backend.place = there
			b.Ledger.RecordSnapshot("u1", "gold", ledgerOf("a"))
			err := (Sidecar{b.Controller}).Remove(t.Context(), "gold", "snapshot-1")
			if kind, _ := objects.FailureKind(err); kind != test.kind || fmt.Sprint(err) != cmp.Or(test.message, "<nil>") {
				t.Errorf("got  %s: %v\nwant %s: %s", kind, err, test.kind, test.message)
			}
			// A snapshot that may exist counts.
			if counts := b.Ledger.Usage(policy.TenantScope, "a").Snapshots; (counts == 1) != (err != nil) {
				t.Errorf("%d snapshots count after %v", counts, err)
			}
			if err == nil {
				b.wantEvents()
			} else {
				b.wantEvents("Warning SnapshotFailedDelete " + test.message)
			}
		})
	}
}

// TestContentsOfAnotherInstallationDoNotCount: all installations use the same driver
// name.
func TestContentsOfAnotherInstallationDoNotCount(t *testing.T) {
	for cluster, want := range map[string]int64{"": 1, takenForSidecar(nil).Annotations[objects.AnnotationCluster]: 1, "another": 0} {
		b := newBench(t, namespace())
		b.count(takenForSidecar(func(c *snapshotv1.VolumeSnapshotContent) { c.Annotations[objects.AnnotationCluster] = cluster }))
		if counts := b.Ledger.Usage(policy.TenantScope, "a").Snapshots; counts != want {
			t.Errorf("cluster %q: %d snapshots count, want %d", cluster, counts, want)
		}
	}
}

func TestListingForASidecar(t *testing.T) {
	b := newBench(t, namespace())
	other := stampedForSidecar(func(s *cinder.Snapshot) { s.ID, s.VolumeID = "snapshot-0", "volume-2" })
	native := stamped("snapshot-2", "u2", true)
	b.backend.listed = []cinder.Snapshot{*stampedForSidecar(nil), *other, native, {ID: "foreign"}}
	b.backend.existing = []*cinder.Snapshot{stampedForSidecar(nil), &native}
	for name, test := range map[string]struct {
		backend, id, volume string
		want                []string
	}{
		"all":                 {want: []string{"gold/snapshot-0", "gold/snapshot-1"}},
		"of a volume":         {backend: "gold", volume: "volume-1", want: []string{"gold/snapshot-1"}},
		"one":                 {backend: "gold", id: "snapshot-1", want: []string{"gold/snapshot-1"}},
		"one that is gone":    {backend: "gold", id: "snapshot-9"},
		"a native volume's":   {backend: "gold", id: "snapshot-2"},
		"of no known backend": {backend: "silver", id: "snapshot-1"},
	} {
		all, err := (Sidecar{b.Controller}).List(t.Context(), test.backend, test.id, test.volume, false)
		b.must(err)
		var got []string
		for _, s := range all {
			got = append(got, s.Backend+"/"+s.ID)
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: listed %q, want %q", name, got, test.want)
		}
	}
	b.backend.err = errors.New("silent")
	if all, err := (Sidecar{b.Controller}).List(t.Context(), "", "", "", false); err == nil {
		t.Errorf("an incomplete listing gave %v", all)
	}
}

// TestLeftoversOfASidecar: a snapshot whose content is gone is removed, but never one
// that a content of the driver names or may be given.
func TestLeftoversOfASidecar(t *testing.T) {
	unrecorded := func(s *cinder.Snapshot) { delete(s.Metadata, "standalone-cinder.openstack.org/recorded") }
	for name, test := range map[string]struct {
		existing []runtime.Object
		change   func(*cinder.Snapshot)
		calls    []string
	}{
		"nothing leads to it":               {change: unrecorded, calls: []string{"remove snapshot-1 unrecorded=true"}},
		"it was ready once":                 {},
		"its content names it":              {existing: []runtime.Object{takenForSidecar(nil)}, change: unrecorded},
		"its content may still be given it": {existing: []runtime.Object{forSidecar(nil)}, change: unrecorded},
		"its VolumeSnapshot is there":       {existing: []runtime.Object{nightly(nil)}, change: unrecorded},
		"its content names another by handle": {existing: []runtime.Object{takenForSidecar(func(c *snapshotv1.VolumeSnapshotContent) {
			other := "gold/snapshot-7"
			c.Status.SnapshotHandle = &other
		})}, change: unrecorded, calls: []string{"remove snapshot-1 unrecorded=true"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, append(test.existing, namespace())...)
			b.backend.listed = []cinder.Snapshot{*stampedForSidecar(test.change)}
			b.must(b.leftovers.sweep(t.Context(), Shelf{"gold", false}, true))
			b.wantCalls(test.calls...)
		})
	}
}

// TestContentThatEndsWithoutASnapshotCountsNoLonger: if its call has failed for good,
// the sidecar deletes a content without another call.
func TestContentThatEndsWithoutASnapshotCountsNoLonger(t *testing.T) {
	for name, test := range map[string]struct {
		listed []cinder.Snapshot
		calls  []string
	}{
		"nothing was made":   {},
		"something was made": {listed: []cinder.Snapshot{*stampedForSidecar(func(s *cinder.Snapshot) { delete(s.Metadata, "standalone-cinder.openstack.org/recorded") })}, calls: []string{"remove snapshot-1 unrecorded=true"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, namespace())
			content := takenForSidecar(func(c *snapshotv1.VolumeSnapshotContent) { c.DeletionTimestamp, c.Status = nil, nil })
			events := b.contentEvents()
			events.OnAdd(content, false)
			if counts := b.Ledger.Usage(policy.TenantScope, "a").Snapshots; counts != 1 {
				t.Errorf("%d snapshots count", counts)
			}
			events.OnDelete(content)
			b.backend.listed = test.listed
			b.drain()
			b.wantCalls(test.calls...)
			if counts := b.Ledger.Usage(policy.TenantScope, "a").Snapshots; counts != 0 || b.backend.listings != 1 {
				t.Errorf("%d snapshots count, %d listings", counts, b.backend.listings)
			}
		})
	}
}

// TestContentsThatEndTogetherShareAListing: if a tenant deletes many VolumeSnapshots at
// once, Cinder is not listed for each.
func TestContentsThatEndTogetherShareAListing(t *testing.T) {
	b := newBench(t, namespace())
	events := b.contentEvents()
	for i := range 20 {
		uid := types.UID(fmt.Sprintf("u%d", i))
		content := takenForSidecar(func(c *snapshotv1.VolumeSnapshotContent) {
			c.DeletionTimestamp, c.Status, c.UID, c.Name, c.Spec.VolumeSnapshotRef.UID = nil, nil, "content-"+uid, objects.SnapshotContentName(uid), uid
		})
		events.OnAdd(content, false)
		events.OnDelete(content)
	}
	b.drain()
	if counts := b.Ledger.Usage(policy.TenantScope, "a").Snapshots; counts != 0 || b.backend.listings != 1 {
		t.Errorf("%d snapshots count, %d listings", counts, b.backend.listings)
	}
}

// TestADeletionIsRepeatedWithoutARecord: csi-snapshotter missed the first answer, and
// nothing records any more where the snapshot was.
func TestADeletionIsRepeatedWithoutARecord(t *testing.T) {
	b := newBench(t, namespace(), takenForSidecar(func(c *snapshotv1.VolumeSnapshotContent) { c.Annotations = nil }))
	b.backend.existing = []*cinder.Snapshot{stampedForSidecar(nil)}
	b.must((Sidecar{b.Controller}).Remove(t.Context(), "gold", "snapshot-1"))
	b.backend.existing = nil // Cinder has removed it
	b.must((Sidecar{b.Controller}).Remove(t.Context(), "gold", "snapshot-1"))
}

// TestALateCacheProvesNoDeletion: the backend leads elsewhere, or the content is another
// installation's, and the cache does not show the content yet. csi-snapshotter drops the
// content of a snapshot that it believes to be deleted.
func TestALateCacheProvesNoDeletion(t *testing.T) {
	content := takenForSidecar(nil)
	b := newBench(t, namespace(), content)
	b.must(b.contents.Delete(content))
	err := (Sidecar{b.Controller}).Remove(t.Context(), "gold", "snapshot-1")
	if err == nil || !strings.Contains(err.Error(), "VolumeSnapshotContent "+content.Name+" names snapshot snapshot-1, but the cache does not show it yet") {
		t.Errorf("error %v", err)
	}
	b.must(b.client.SnapshotV1().VolumeSnapshotContents().Delete(t.Context(), content.Name, metav1.DeleteOptions{}))
	b.must((Sidecar{b.Controller}).Remove(t.Context(), "gold", "snapshot-1"))
	b.wantCalls()
}

// TestABackendThatCannotBeListedIsNotTriedAgain: it is not in the policy, or the content
// that ended belongs to another installation of the driver.
func TestABackendThatCannotBeListedIsNotTriedAgain(t *testing.T) {
	for name, test := range map[string]struct{ backend, cluster string }{
		"not in the policy":           {"gone", "cluster-1"},
		"another installation's":      {"gone", "cluster-2"},
		"without a name":              {"", "cluster-1"},
		"of the same name, elsewhere": {"gold", "cluster-2"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, namespace())
			content := recorded(func(c *snapshotv1.VolumeSnapshotContent) {
				c.Status, c.Spec.Driver = nil, takenForSidecar(nil).Spec.Driver
				c.Annotations[objects.AnnotationBackend], c.Annotations[objects.AnnotationCluster] = test.backend, test.cluster
			})
			b.contentEvents().OnAdd(content, false)
			b.contentEvents().OnDelete(content)
			b.drain()
			if n := b.loop.Queue.NumRequeues(item{backendItem, "", test.backend}); n > 0 || b.backend.listings > 0 {
				t.Errorf("it is queued again (%d), and %d listings were read", n, b.backend.listings)
			}
		})
	}
}
