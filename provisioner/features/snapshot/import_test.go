package snapshot

import (
	"cmp"
	"errors"
	"maps"
	"reflect"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/prometheus/client_golang/prometheus/testutil"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

const importPolicy = `
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
backends:
  - {name: gold, auth: {cloud: gold}}
tenants:
  - name: a
    namespaces: [team-a]
    quota: {snapshots: 1}
    classes:
      - {storageClasses: [fast], backends: [gold], import: {names: ["old-*"], types: [ssd]}}
      - {storageClasses: [new], backends: [gold]}
`

const notGranted = `Warning ImportedSnapshotNotFound tenant a has kept no snapshot with the ID "snapshot-7", and tenants[0].classes[0].import grants none on the backends of the rule; correct spec.source.snapshotHandle of the VolumeSnapshotContent, or the rule`

// byHand returns the content that an administrator made for snapshot-7, bound to nightly.
func byHand(change func(*snapshotv1.VolumeSnapshotContent)) *snapshotv1.VolumeSnapshotContent {
	c := objects.NewImportedSnapshotContent("snapshot-7", "team-a", "nightly", driver, "fast", snapshotv1.VolumeSnapshotContentDelete, nil)
	c.UID, c.Spec.VolumeSnapshotRef.UID = "content-7", "u1"
	if change != nil {
		change(c)
	}
	return c
}

func wantingIt(change func(*snapshotv1.VolumeSnapshot)) *snapshotv1.VolumeSnapshot {
	return nightly(func(s *snapshotv1.VolumeSnapshot) {
		content := objects.ImportedSnapshotContentName("snapshot-7")
		s.Spec = snapshotv1.VolumeSnapshotSpec{Source: snapshotv1.VolumeSnapshotSource{VolumeSnapshotContentName: &content}}
		if change != nil {
			change(s)
		}
	})
}

func newImportBench(t *testing.T, objects ...runtime.Object) *bench {
	t.Helper()
	b := newBench(t, append(objects, namespace())...)
	var err error
	b.policy, err = policy.Parse([]byte(importPolicy), "policy.yaml", nil)
	b.must(err)
	b.backend.ofVolume = cinder.Volume{ID: "volume-9", Type: "ssd"}
	b.backend.existing = []*cinder.Snapshot{{ID: "snapshot-7", Name: "old-data", VolumeID: "volume-9", Status: cinder.StatusAvailable, SizeGiB: 2, CreatedAt: time.Unix(1000, 0)}}
	return b
}

func (b *bench) syncImported() error {
	b.refresh()
	return b.syncContent(b.Context(), b.loop.Attempt(item{contentItem, "", "imported-snapshot-7"}))
}

func (b *bench) imported() *snapshotv1.VolumeSnapshotContent {
	b.Helper()
	content, err := b.client.SnapshotV1().VolumeSnapshotContents().Get(b.Context(), "imported-snapshot-7", metav1.GetOptions{})
	b.must(err)
	return content
}

func ofOther(change func(*stamps.Snapshot)) map[string]string {
	stamp := stamps.Snapshot{Cluster: "cluster-1", ClusterUID: "uid-1", Namespace: "team-a", Snapshot: "earlier", SnapshotUID: "u0", Content: "snapcontent-u0", Tenant: "a", StorageClass: "fast"}
	change(&stamp)
	metadata := stamp.Metadata(nil)
	metadata["standalone-cinder.openstack.org/recorded"] = "true"
	return metadata
}

// TestAnImportIsToldOnce: the second attempt begins before the cache shows the status that
// the first one wrote.
func TestAnImportIsToldOnce(t *testing.T) {
	b := newImportBench(t, byHand(nil), wantingIt(nil))
	b.must(b.syncImported())
	late := b.imported()
	late.Status = nil
	b.must(b.contents.Update(late))
	again := b.syncContent(b.Context(), b.loop.Attempt(item{contentItem, "", "imported-snapshot-7"}))
	if n := testutil.ToFloat64(b.Metrics.imports.WithLabelValues("success")); again != nil || n != 1 {
		t.Errorf("error %v; %v imports are counted", again, n)
	}
	if events := b.events(); len(events) != 1 {
		t.Errorf("events %q", events)
	}
}

// TestWhichSnapshotIsImported: a snapshot that the rule grants, and that nobody else
// has, is stamped and named in the content's status. In all other cases nothing changes
// anywhere.
func TestWhichSnapshotIsImported(t *testing.T) {
	earlier := objects.NewSnapshotContent(objects.SnapshotOrigin{Content: "snapcontent-u0", VolumeID: "volume-9", Backend: "gold", Place: here(), Cluster: "cluster-1",
		Namespace: "team-a", Name: "earlier", UID: "u0"}, class(nil), nil)
	going := earlier.DeepCopy()
	going.DeletionTimestamp = &metav1.Time{Time: time.Unix(1000, 0)}
	same := func(*stamps.Snapshot) {}
	for name, test := range map[string]struct {
		content  *snapshotv1.VolumeSnapshotContent
		snapshot *snapshotv1.VolumeSnapshot
		others   []runtime.Object
		change   func(s *cinder.Snapshot, v *cinder.Volume)
		imported bool
		class    string // of the rule; empty: fast
		event    string
	}{
		"granted":                     {content: byHand(nil), imported: true},
		"left behind by the tenant":   {content: byHand(nil), change: func(s *cinder.Snapshot, _ *cinder.Volume) { s.Metadata = ofOther(same) }, imported: true},
		"another has its former name": {content: byHand(nil), others: []runtime.Object{nightly(func(s *snapshotv1.VolumeSnapshot) { s.Name, s.UID = "earlier", "another" })}, change: func(s *cinder.Snapshot, _ *cinder.Volume) { s.Metadata = ofOther(same) }, imported: true},
		"made anew under the same name": {content: byHand(nil), change: func(s *cinder.Snapshot, _ *cinder.Volume) {
			s.Metadata = ofOther(func(s *stamps.Snapshot) { s.Content = "imported-snapshot-7" })
		}, imported: true},
		"of a volume of the tenant": {content: byHand(nil), change: func(_ *cinder.Snapshot, v *cinder.Volume) {
			v.Metadata = stamps.Volume{Cluster: "cluster-1", ClusterUID: "uid-1", Tenant: "a"}.Metadata(nil)
		}, imported: true},
		"of a volume of another tenant": {content: byHand(nil), change: func(_ *cinder.Snapshot, v *cinder.Volume) {
			v.Metadata = stamps.Volume{Cluster: "cluster-1", ClusterUID: "uid-1", Tenant: "b"}.Metadata(nil)
		}, event: notGranted},
		"of a volume of another cluster": {content: byHand(nil), change: func(_ *cinder.Snapshot, v *cinder.Volume) {
			v.Metadata = stamps.Volume{Cluster: "other", Tenant: "a"}.Metadata(nil)
		}, event: notGranted},
		"it does not exist": {content: byHand(nil), change: func(s *cinder.Snapshot, _ *cinder.Volume) { s.ID = "snapshot-8" }, event: notGranted},
		"another name":      {content: byHand(nil), change: func(s *cinder.Snapshot, _ *cinder.Volume) { s.Name = "secret" }, event: notGranted},
		"another type":      {content: byHand(nil), change: func(_ *cinder.Snapshot, v *cinder.Volume) { v.Type = "hdd" }, event: notGranted},
		"another tenant's": {content: byHand(nil), change: func(s *cinder.Snapshot, _ *cinder.Volume) {
			s.Metadata = ofOther(func(s *stamps.Snapshot) { s.Tenant = "b" })
		}, event: notGranted},
		"another cluster's": {content: byHand(nil), change: func(s *cinder.Snapshot, _ *cinder.Volume) {
			s.Metadata = ofOther(func(s *stamps.Snapshot) { s.Cluster = "x" })
		}, event: notGranted},
		"another cluster's, too": {content: byHand(nil), change: func(s *cinder.Snapshot, _ *cinder.Volume) {
			s.Metadata = ofOther(func(s *stamps.Snapshot) { s.ClusterUID = "x" })
		}, event: notGranted},
		"it belongs to a content": {content: byHand(nil), others: []runtime.Object{earlier}, change: func(s *cinder.Snapshot, _ *cinder.Volume) { s.Metadata = ofOther(same) },
			event: "Warning SnapshotImportRefused snapshot snapshot-7 belongs to VolumeSnapshotContent snapcontent-u0, which exists; to free the snapshot, set its deletionPolicy to Retain, and delete its VolumeSnapshot and the object"},
		"it belongs to a VolumeSnapshot": {content: byHand(nil), others: []runtime.Object{nightly(func(s *snapshotv1.VolumeSnapshot) { s.Name, s.UID = "earlier", "u0" })}, change: func(s *cinder.Snapshot, _ *cinder.Volume) { s.Metadata = ofOther(same) },
			event: "Warning SnapshotImportRefused snapshot snapshot-7 belongs to VolumeSnapshot team-a/earlier, which exists; delete it first"},
		"of an encrypted volume": {content: byHand(nil), change: func(_ *cinder.Snapshot, v *cinder.Volume) { v.Encrypted = true }, imported: true},
		"no StorageClass": {content: byHand(func(c *snapshotv1.VolumeSnapshotContent) { c.Annotations = nil }),
			event: `Warning SnapshotImportRefused tenant a has kept no snapshot with the ID "snapshot-7", and VolumeSnapshotContent imported-snapshot-7 does not say which rule grants another one; correct its spec.source.snapshotHandle, or name the StorageClass of the rule in the annotation standalone-cinder.openstack.org/storage-class`},
		"a rule without import": {content: byHand(func(c *snapshotv1.VolumeSnapshotContent) { c.Annotations[objects.AnnotationStorageClass] = "new" }),
			event: `Warning ImportNotGranted tenant a has kept no snapshot with the ID "snapshot-7", and tenants[0].classes[1] grants no others that exist at Cinder; correct spec.source.snapshotHandle of the VolumeSnapshotContent, or add import to the rule`},
		"left behind by the tenant, and the rule imports none": {content: byHand(func(c *snapshotv1.VolumeSnapshotContent) { c.Annotations[objects.AnnotationStorageClass] = "new" }),
			change: func(s *cinder.Snapshot, _ *cinder.Volume) { s.Name, s.Metadata = "snapshot-u0", ofOther(same) }, imported: true, class: "new"},
		"left behind by the tenant, and no StorageClass": {content: byHand(func(c *snapshotv1.VolumeSnapshotContent) { c.Annotations = nil }),
			change: func(s *cinder.Snapshot, _ *cinder.Volume) { s.Name, s.Metadata = "snapshot-u0", ofOther(same) }, imported: true},
		"left behind by the tenant, of a volume that has another by now": {content: byHand(nil), change: func(s *cinder.Snapshot, v *cinder.Volume) {
			s.Metadata, v.Metadata = ofOther(same), stamps.Volume{Cluster: "cluster-1", ClusterUID: "uid-1", Tenant: "b"}.Metadata(nil)
		}, imported: true},
		"left behind by another tenant, and no StorageClass": {content: byHand(func(c *snapshotv1.VolumeSnapshotContent) { c.Annotations = nil }),
			change: func(s *cinder.Snapshot, _ *cinder.Volume) {
				s.Metadata = ofOther(func(s *stamps.Snapshot) { s.Tenant, s.StorageClass = "b", "secret" })
			},
			event: `Warning SnapshotImportRefused tenant a has kept no snapshot with the ID "snapshot-7", and VolumeSnapshotContent imported-snapshot-7 does not say`},
		"left behind under a rule that is gone": {content: byHand(func(c *snapshotv1.VolumeSnapshotContent) { c.Annotations = nil }),
			change: func(s *cinder.Snapshot, _ *cinder.Volume) {
				s.Metadata = ofOther(func(s *stamps.Snapshot) { s.StorageClass = "slow" })
			},
			event: "Warning NoMatchingClass tenant a has no rule for StorageClass slow"},
		"its content names another snapshot by now": {content: byHand(nil), others: []runtime.Object{objects.NewImportedSnapshotContent("snapshot-1", "team-a", "x", driver, "fast", "Retain", nil)},
			change: func(s *cinder.Snapshot, _ *cinder.Volume) {
				s.Metadata = ofOther(func(s *stamps.Snapshot) { s.Content = "imported-snapshot-1" })
			}, imported: true},
		"its content is being deleted": {content: byHand(nil), others: []runtime.Object{going}, change: func(s *cinder.Snapshot, _ *cinder.Volume) { s.Metadata = ofOther(same) },
			event: "Warning SnapshotImportRefused snapshot snapshot-7 belongs to VolumeSnapshotContent snapcontent-u0, which is being deleted with the deletionPolicy Delete; the snapshot is free once the object is gone, unless it is deleted with it"},
		"a handle of the CSI driver": {content: byHand(func(c *snapshotv1.VolumeSnapshotContent) {
			handle := "gold/snapshot-7"
			c.Spec.Source.SnapshotHandle = &handle
		}), event: "Warning SnapshotImportRefused spec.source.snapshotHandle of VolumeSnapshotContent imported-snapshot-7: with the driver test, it is only the ID of the snapshot, snapshot-7; create the content anew, or with the driver standalone-cinder.openstack.org"},
		"restored from a backup of another's content": {content: byHand(func(c *snapshotv1.VolumeSnapshotContent) {
			c.Annotations = recorded(nil).Annotations
			c.Annotations[objects.AnnotationTenant] = "b"
		}), imported: true},
		"no rule":                    {content: byHand(func(c *snapshotv1.VolumeSnapshotContent) { c.Annotations[objects.AnnotationStorageClass] = "slow" }), event: "Warning NoMatchingClass"},
		"not bound yet":              {content: byHand(func(c *snapshotv1.VolumeSnapshotContent) { c.Spec.VolumeSnapshotRef.UID = "" })},
		"bound to another":           {content: byHand(func(c *snapshotv1.VolumeSnapshotContent) { c.Spec.VolumeSnapshotRef.UID = "u2" })},
		"the VolumeSnapshot differs": {content: byHand(nil), snapshot: nightly(nil)},
		"the VolumeSnapshot is deleted": {content: byHand(nil), snapshot: wantingIt(func(s *snapshotv1.VolumeSnapshot) {
			now := metav1.Now()
			s.DeletionTimestamp, s.Finalizers = &now, []string{"x/y"}
		})},
		"another driver's": {content: byHand(func(c *snapshotv1.VolumeSnapshotContent) { c.Spec.Driver = "other" })},
	} {
		t.Run(name, func(t *testing.T) {
			snapshot := test.snapshot
			if snapshot == nil {
				snapshot = wantingIt(nil)
			}
			b := newImportBench(t, append(test.others, test.content, snapshot)...)
			if test.change != nil {
				test.change(b.backend.existing[0], &b.backend.ofVolume)
			}
			before := maps.Clone(b.backend.existing[0].Metadata)
			err := b.syncImported()
			var why *denied
			if err != nil && !errors.As(err, &why) {
				t.Fatal(err)
			}
			content := b.imported()
			if !test.imported {
				b.wantCalls()
				if test.event == "" {
					b.wantEvents()
				} else {
					b.wantEvents(test.event, test.event)
				}
				if content.Status != nil || objects.IsSnapshotRecorded(content) || !maps.Equal(before, b.backend.existing[0].Metadata) || b.Ledger.Usage(policy.TenantScope, "a").Snapshots != 0 {
					t.Errorf("content %+v, used %+v", content, b.Ledger.Usage(policy.TenantScope, "a"))
				}
				return
			}
			b.wantCalls("import snapshot-7 for imported-snapshot-7")
			class := cmp.Or(test.class, "fast")
			rule := map[string]string{"fast": "tenants[0].classes[0]", "new": "tenants[0].classes[1]"}[class]
			leftBy := ""
			if before[stamps.KeyCluster] != "" {
				leftBy = ", which VolumeSnapshot team-a/earlier left behind,"
			}
			b.wantEvents("Normal SnapshotImported tenant a, rule " + rule + ": snapshot snapshot-7 (2 GiB) of backend gold" + leftBy + " is imported; its deletionPolicy is Delete")
			origin, err := objects.SnapshotOriginOf(content)
			b.must(err)
			want := objects.SnapshotOrigin{Content: "imported-snapshot-7", SnapshotID: "snapshot-7", VolumeID: "volume-9", Backend: "gold", Place: here(), Tenant: "a", Cluster: "cluster-1",
				StorageClass: class, Namespace: "team-a", Name: "nightly", UID: "u1"}
			if !reflect.DeepEqual(origin, want) || *content.Status.RestoreSize != 2<<30 || *content.Status.CreationTime != 1000e9 || !*content.Status.ReadyToUse || len(content.Finalizers) != 1 {
				t.Errorf("origin %+v, status %+v", origin, content.Status)
			}
			if b.Ledger.Usage(policy.TenantScope, "a").Snapshots != 1 {
				t.Errorf("used %+v", b.Ledger.Usage(policy.TenantScope, "a"))
			}
			// An imported snapshot is not imported again, even by the next leader.
			b.must(b.syncImported())
			b.wantCalls("import snapshot-7 for imported-snapshot-7")
			b.wantEvents()
		})
	}
}

func TestSnapshotThatCannotBeImportedNow(t *testing.T) {
	t.Run("the backend does not answer", func(t *testing.T) {
		b := newImportBench(t, byHand(nil), wantingIt(nil))
		b.backend.health = errors.New("backend gold does not answer")
		b.must(b.syncImported())
		b.wantEvents("Warning BackendUnavailable backend gold does not answer", "Warning BackendUnavailable backend gold does not answer")
		b.backend.health = nil
		b.Board.Publish(parking.Trigger{Kind: parking.Backend, Name: "gold"})
		if b.loop.Queue.Len() != 1 {
			t.Errorf("%d items came back", b.loop.Queue.Len())
		}
		b.must(b.syncImported())
		b.wantCalls("import snapshot-7 for imported-snapshot-7")
	})
	t.Run("it is being made", func(t *testing.T) {
		b := newImportBench(t, byHand(nil), wantingIt(nil))
		b.backend.existing[0].Status = cinder.StatusCreating
		if err := b.syncImported(); !cinder.IsKind(err, cinder.KindConflict) {
			t.Errorf("error %v", err)
		}
		const failed = "Warning SnapshotImportFailed backend gold: snapshot snapshot-7 is creating"
		b.wantEvents(failed, failed)
		if used := b.Ledger.Usage(policy.TenantScope, "a").Snapshots; used != 0 {
			t.Errorf("%d snapshots count", used)
		}
	})
	t.Run("the quota is full", func(t *testing.T) {
		b := newImportBench(t, byHand(nil), wantingIt(nil))
		b.backend.listed = []cinder.Snapshot{stamped("other", "u9", true)}
		b.must(b.syncImported())
		const full = "Warning QuotaExceeded tenant a would use 2 of 1 snapshots (tenants[0].quota.snapshots)"
		b.wantEvents(full, full)
		b.wantCalls()
		b.release("u9", b.Ledger.ReleaseSnapshot)
		if b.loop.Queue.Len() != 1 {
			t.Errorf("%d items came back", b.loop.Queue.Len())
		}
		b.must(b.syncImported())
		b.wantCalls("import snapshot-7 for imported-snapshot-7")
	})
	t.Run("the tenant left it behind, and its quota is full", func(t *testing.T) {
		b := newImportBench(t, byHand(nil), wantingIt(nil))
		left := ofOther(func(*stamps.Snapshot) {})
		b.backend.existing[0].Metadata = left
		b.backend.listed = []cinder.Snapshot{{ID: "snapshot-7", VolumeID: "volume-9", Metadata: left}}
		b.must(b.syncImported())
		b.wantCalls("import snapshot-7 for imported-snapshot-7")
		if used := b.Ledger.Usage(policy.TenantScope, "a").Snapshots; used != 1 {
			t.Errorf("%d snapshots count", used)
		}
	})
	for what, deleted := range map[string]func(b *bench) error{
		"content": func(b *bench) error {
			return b.client.SnapshotV1().VolumeSnapshotContents().Delete(b.Context(), "imported-snapshot-7", metav1.DeleteOptions{})
		},
		"VolumeSnapshot": func(b *bench) error {
			return b.client.SnapshotV1().VolumeSnapshots("team-a").Delete(b.Context(), "nightly", metav1.DeleteOptions{})
		},
	} {
		t.Run("its "+what+" is gone before the request", func(t *testing.T) {
			b := newImportBench(t, byHand(nil), wantingIt(nil))
			b.backend.meanwhile = func() { b.must(deleted(b)) }
			b.must(b.syncImported())
			b.wantCalls()
			b.wantEvents()
		})
	}
	t.Run("its content is gone before it records the snapshot", func(t *testing.T) {
		b := newImportBench(t, byHand(nil), wantingIt(nil))
		b.client.PrependReactor("patch", "volumesnapshotcontents", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewNotFound(snapshotv1.Resource("volumesnapshotcontents"), "imported-snapshot-7")
		})
		b.must(b.syncImported())
		b.wantCalls()
		b.wantEvents()
		if waiting := b.Parked().List(); len(waiting) > 0 {
			t.Errorf("waiting are %v", waiting)
		}
		if used := b.Ledger.Usage(policy.TenantScope, "a").Snapshots; used != 0 {
			t.Errorf("tenant a uses %d snapshots of its quota of 1, but nothing exists", used)
		}
	})
	t.Run("it is renamed before the request", func(t *testing.T) {
		b := newImportBench(t, byHand(nil), wantingIt(nil))
		b.backend.meanwhile = func() { b.backend.existing[0].Name = "secret" }
		var why *denied
		if err := b.syncImported(); !errors.As(err, &why) {
			t.Errorf("error %v", err)
		}
		b.wantCalls()
		b.wantEvents(notGranted, notGranted)
	})
}

// TestImportedContentIsDeleted: only a snapshot with the stamp of the import is
// removed.
func TestImportedContentIsDeleted(t *testing.T) {
	deleted := func(change func(*snapshotv1.VolumeSnapshotContent)) *snapshotv1.VolumeSnapshotContent {
		return byHand(func(c *snapshotv1.VolumeSnapshotContent) {
			now := metav1.Now()
			c.DeletionTimestamp, c.Finalizers = &now, []string{objects.SnapshotFinalizer}
			c.Annotations = objects.SnapshotOrigin{VolumeID: "volume-9", Backend: "gold", Place: here(), Tenant: "a", Cluster: "cluster-1", StorageClass: "fast", UID: "u1"}.Annotations()
			c.Annotations[objects.AnnotationSnapshotBeingDeleted] = "yes"
			c.Status = objects.SnapshotStatus(cinder.Snapshot{SizeGiB: 2}, "snapshot-7")
			if change != nil {
				change(c)
			}
		})
	}
	const keptEvent = "Warning SnapshotKept snapshot snapshot-7 is kept at Cinder: it does not carry the stamp of an import by VolumeSnapshotContent imported-snapshot-7"
	remove := []string{"remove snapshot-7 unrecorded=false"}
	for name, test := range map[string]struct {
		content *snapshotv1.VolumeSnapshotContent
		err     error
		want    []string
		event   string
		stays   bool // the finalizer
	}{
		"the policy is Delete": {content: deleted(nil), want: remove},
		"the policy is Retain": {content: deleted(func(c *snapshotv1.VolumeSnapshotContent) {
			c.Spec.DeletionPolicy = snapshotv1.VolumeSnapshotContentRetain
		})},
		"it was not handed out": {content: deleted(func(c *snapshotv1.VolumeSnapshotContent) { c.Status = nil }), want: remove},
		"it was never stamped":  {content: deleted(nil), want: remove, err: &cinder.Error{Backend: "gold", Kind: backends.KindNotOurs, Message: "not ours"}, event: keptEvent},
		"nothing was begun": {content: deleted(func(c *snapshotv1.VolumeSnapshotContent) {
			delete(c.Annotations, objects.AnnotationVolume)
			c.Status = nil
		}), event: keptEvent},
		"the same, with Retain": {content: deleted(func(c *snapshotv1.VolumeSnapshotContent) {
			delete(c.Annotations, objects.AnnotationVolume)
			c.Status, c.Spec.DeletionPolicy = nil, snapshotv1.VolumeSnapshotContentRetain
		})},
		"of another cluster": {content: deleted(func(c *snapshotv1.VolumeSnapshotContent) { c.Annotations[objects.AnnotationCluster] = "x" }), stays: true,
			event: "Warning SnapshotFailedDelete VolumeSnapshotContent imported-snapshot-7 is of cluster"},
		"volumes depend on it": {content: deleted(nil), want: remove, err: &cinder.Error{Backend: "gold", Kind: backends.KindInUse, Message: "volumes depend on it"}, stays: true,
			event: "Warning SnapshotFailedDelete backend gold: volumes depend on it"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newImportBench(t, test.content)
			b.backend.err = test.err
			b.count(test.content)
			if err := b.syncImported(); (err != nil) != test.stays {
				t.Errorf("error %v", err)
			}
			b.wantCalls(test.want...)
			if test.event == "" {
				b.wantEvents()
			} else {
				b.wantEvents(test.event)
			}
			if left := len(b.imported().Finalizers); (left == 1) != test.stays {
				t.Errorf("%d finalizers are left", left)
			}
			// What was never the content's does not count for it any longer.
			b.count(b.imported())
			if used := b.Ledger.Usage(policy.TenantScope, "a").Snapshots; test.event == keptEvent && used != 0 {
				t.Errorf("%d snapshots count", used)
			}
		})
	}
}

// TestImportedSnapshotsCount: a new leader finds them by the listing, and no audit
// takes one for a leftover.
func TestImportedSnapshotsCount(t *testing.T) {
	b := newImportBench(t)
	imported := cinder.Snapshot{ID: "snapshot-7", VolumeID: "volume-9", Metadata: ofOther(func(s *stamps.Snapshot) { s.Content = "imported-snapshot-7" })}
	unmarked := cinder.Snapshot{ID: "snapshot-8", VolumeID: "volume-9", Metadata: ofOther(func(s *stamps.Snapshot) { s.Content, s.SnapshotUID = "by-hand", "u8" })}
	delete(unmarked.Metadata, "standalone-cinder.openstack.org/recorded")
	b.backend.listed = []cinder.Snapshot{imported, unmarked}
	b.must(b.leftovers.sweep(t.Context(), Shelf{"gold", false}, true))
	b.wantCalls()
	if used := b.Ledger.Usage(policy.TenantScope, "a").Snapshots; used != 1 {
		t.Errorf("%d snapshots count, want 1", used)
	}
}

// TestContentOfAVolumeSnapshot: when a VolumeSnapshot appears, it brings back the
// content that it names.
func TestContentOfAVolumeSnapshot(t *testing.T) {
	for want, snapshot := range map[string]*snapshotv1.VolumeSnapshot{"imported-snapshot-7": wantingIt(nil), "snapcontent-u1": nightly(nil)} {
		if got := contentOf(snapshot); got != (item{contentItem, "", want}) {
			t.Errorf("%v, want %s", got, want)
		}
	}
	b := newImportBench(t, wantingIt(nil))
	b.snapshotEvents().OnAdd(wantingIt(nil), false)
	if b.loop.Queue.Len() != 2 {
		t.Errorf("%d items are queued", b.loop.Queue.Len())
	}
}
