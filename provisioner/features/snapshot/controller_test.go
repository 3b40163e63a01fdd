package snapshot

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	eventrecord "k8s.io/client-go/tools/record"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/ledger"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/liveness"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

func TestWhoseSnapshotIsTaken(t *testing.T) {
	const recordedUUID = "6f3d7f7c-8b0f-4b43-8d4e-3f3b9d3f6a11"
	taken := []string{"take snapshot-u1 of volume-1", "mark snapshot-1"}
	withoutClass := nightly(func(s *snapshotv1.VolumeSnapshot) { s.Spec.VolumeSnapshotClassName = nil })
	byDefault := func(name string) *snapshotv1.VolumeSnapshotClass {
		return class(func(c *snapshotv1.VolumeSnapshotClass) {
			c.Name, c.Annotations = name, map[string]string{objects.AnnotationDefaultSnapshotClass: "true"}
		})
	}
	foreignVolume := volume(func(pv *corev1.PersistentVolume) {
		pv.Annotations = map[string]string{objects.AnnotationProvisionedBy: "other"}
	})
	pending := claim(func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimPending })
	for name, test := range map[string]struct {
		existing []runtime.Object
		taken    bool
		event    string
	}{
		"the class names this program": {[]runtime.Object{nightly(nil), class(nil), claim(nil), volume(nil)}, true, ""},
		"the filesystem is recorded": {[]runtime.Object{nightly(nil), class(nil), claim(nil), volume(func(pv *corev1.PersistentVolume) {
			pv.Annotations[objects.AnnotationFilesystemUUIDs] = recordedUUID
		})}, true, ""},
		"the default class":            {[]runtime.Object{withoutClass, byDefault("snap"), claim(nil), volume(nil)}, true, ""},
		"two default classes":          {[]runtime.Object{withoutClass, byDefault("one"), byDefault("two"), claim(nil), volume(nil)}, false, "Warning AmbiguousSnapshotClass several VolumeSnapshotClasses of test are the default: one, two"},
		"no class":                     {[]runtime.Object{withoutClass, class(nil), claim(nil), volume(nil)}, false, ""},
		"a class that does not exist":  {[]runtime.Object{nightly(nil), claim(nil), volume(nil)}, false, ""},
		"a class of another driver":    {[]runtime.Object{nightly(nil), class(func(c *snapshotv1.VolumeSnapshotClass) { c.Driver = "other" }), claim(nil), volume(nil)}, false, ""},
		"another's volume":             {[]runtime.Object{nightly(nil), class(nil), claim(nil), foreignVolume}, false, "Warning ForeignVolume the volume of claim data was not made by test"},
		"another's volume, by default": {[]runtime.Object{withoutClass, byDefault("snap"), claim(nil), foreignVolume}, false, ""},
		"no claim":                     {[]runtime.Object{nightly(nil), class(nil)}, false, "Warning ClaimNotBound claim data does not exist"},
		"no claim, by default":         {[]runtime.Object{withoutClass, byDefault("snap")}, false, ""},
		"a claim that is not bound":    {[]runtime.Object{nightly(nil), class(nil), pending}, false, "Warning ClaimNotBound claim data is not bound"},
		"a volume of another cluster":  {[]runtime.Object{nightly(nil), class(nil), claim(nil), volume(func(pv *corev1.PersistentVolume) { pv.Annotations[objects.AnnotationCluster] = "x" })}, false, "Warning ForeignVolume PersistentVolume pvc-c1 was made for cluster"},
		"a volume of another claim":    {[]runtime.Object{nightly(nil), class(nil), claim(func(c *corev1.PersistentVolumeClaim) { c.UID = "c2" }), volume(nil)}, false, "Warning ClaimNotBound PersistentVolume pvc-c1 is not bound to claim data"},
		"a volume bound to another":    {[]runtime.Object{nightly(nil), class(nil), claim(nil), volume(func(pv *corev1.PersistentVolume) { pv.Spec.ClaimRef = nil })}, false, "Warning ClaimNotBound PersistentVolume pvc-c1 is not bound to claim data"},
		"a volume in mode csi": {[]runtime.Object{nightly(nil), class(nil), claim(nil), volume(func(pv *corev1.PersistentVolume) {
			handle := pv.Annotations[objects.AnnotationBackend] + "/" + pv.Annotations[objects.AnnotationVolume]
			pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: policy.CSIDriver, VolumeHandle: handle}}
		})}, false, "Warning UnsupportedMode claim data has a volume in mode csi, whose snapshots need a VolumeSnapshotClass of driver standalone-cinder.openstack.org; delete the VolumeSnapshot, and make one of such a class"},
		"a damaged record":              {[]runtime.Object{nightly(nil), class(nil), claim(nil), volume(func(pv *corev1.PersistentVolume) { delete(pv.Annotations, objects.AnnotationBackend) })}, false, "Warning ForeignVolume PersistentVolume pvc-c1: annotation"},
		"another tenant's volume":       {[]runtime.Object{nightly(nil), class(nil), claim(nil), volume(func(pv *corev1.PersistentVolume) { pv.Annotations[objects.AnnotationTenant] = "b" })}, false, "Warning OtherTenant namespace team-a belongs to tenant a"},
		"parameters":                    {[]runtime.Object{nightly(nil), class(func(c *snapshotv1.VolumeSnapshotClass) { c.Parameters = map[string]string{"force": "x"} }), claim(nil), volume(nil)}, false, `Warning ParameterNotAllowed parameter "force"`},
		"a StorageClass without a rule": {[]runtime.Object{nightly(nil), class(nil), claim(nil), volume(func(pv *corev1.PersistentVolume) { pv.Spec.StorageClassName = "slow" })}, false, "Warning NoMatchingClass"},
		"a VolumeSnapshot being deleted": {[]runtime.Object{nightly(func(s *snapshotv1.VolumeSnapshot) {
			now := metav1.Now()
			s.DeletionTimestamp, s.Finalizers = &now, []string{"x/y"}
		}), class(nil), claim(nil), volume(nil)}, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, append(test.existing, namespace())...)
			b.must(b.syncNightly())
			if test.event == "" {
				b.wantEvents()
			} else {
				b.wantEvents(test.event)
			}
			if !test.taken {
				b.wantCalls()
				if b.content() != nil || b.Ledger.Usage(policy.TenantScope, "a").Snapshots != 0 {
					t.Errorf("content %+v, used %+v", b.content(), b.Ledger.Usage(policy.TenantScope, "a"))
				}
				// A repeated denial is not reported again.
				b.must(b.syncNightly())
				b.wantEvents()
				return
			}
			b.wantCalls(taken...)
			content := b.content()
			origin, err := objects.SnapshotOriginOf(content)
			b.must(err)
			if origin.SnapshotID != "snapshot-1" || origin.Place != here() || *content.Status.RestoreSize != 2<<30 || *content.Status.CreationTime != 1000e9 || !*content.Status.ReadyToUse {
				t.Errorf("the content is %+v with %+v", content, content.Status)
			}
			if uuid := content.Annotations[objects.AnnotationFilesystemUUIDs]; (uuid == recordedUUID) != (name == "the filesystem is recorded") {
				t.Errorf("the content records the filesystem %q", uuid)
			}
			s, err := b.client.SnapshotV1().VolumeSnapshots("team-a").Get(t.Context(), "nightly", metav1.GetOptions{})
			b.must(err)
			if s.Spec.VolumeSnapshotClassName == nil || *s.Spec.VolumeSnapshotClassName != "snap" {
				t.Errorf("the VolumeSnapshot is %+v", s.Spec)
			}
			// The snapshot is taken only once.
			b.must(b.syncNightly())
			b.wantCalls(taken...)
		})
	}
}

// TestSnapshotWithoutAClassSaysWhatItWaitsFor: it may be another program's, so no event is
// written until it names its class.
func TestSnapshotWithoutAClassSaysWhatItWaitsFor(t *testing.T) {
	snapshot := nightly(func(s *snapshotv1.VolumeSnapshot) { s.Spec.VolumeSnapshotClassName = nil })
	b := newBench(t, namespace(), snapshot, class(func(c *snapshotv1.VolumeSnapshotClass) {
		c.Annotations = map[string]string{objects.AnnotationDefaultSnapshotClass: "true"}
	}))
	b.must(b.syncNightly())
	b.wantEvents()
	parked := b.Parked().List()
	if len(parked) != 1 || parked[0].EventReason != "ClaimNotBound" || parked[0].Reason != "ClaimNotBound" || !strings.HasPrefix(parked[0].Message, "claim data does not exist") {
		t.Errorf("parked: %+v", parked)
	}
	b.must(b.client.Tracker().Update(snapshotv1.SchemeGroupVersion.WithResource("volumesnapshots"), nightly(nil), "team-a"))
	b.must(b.syncNightly())
	b.wantEvents("Warning ClaimNotBound claim data does not exist")
}

func TestSnapshotThatCannotBeTakenNow(t *testing.T) {
	existing := func() []runtime.Object {
		return []runtime.Object{nightly(nil), class(nil), claim(nil), volume(nil), namespace()}
	}
	t.Run("the backend does not answer", func(t *testing.T) {
		b := newBench(t, existing()...)
		b.backend.health = errors.New("backend gold does not answer")
		b.must(b.syncNightly())
		b.wantEvents("Warning BackendUnavailable backend gold does not answer")
		b.backend.health = nil
		b.Board.Publish(parking.Trigger{Kind: parking.Backend, Name: "gold"})
		if b.loop.Queue.Len() != 1 {
			t.Errorf("%d items came back", b.loop.Queue.Len())
		}
		b.must(b.syncNightly())
		b.wantCalls("take snapshot-u1 of volume-1", "mark snapshot-1")
	})
	t.Run("the backend points to another project", func(t *testing.T) {
		b := newBench(t, nightly(nil), class(nil), claim(nil), namespace(), volume(func(pv *corev1.PersistentVolume) {
			pv.Annotations[objects.AnnotationEndpoint], pv.Annotations[objects.AnnotationProject] = "http://cinder:8776/v3", "p0"
		}))
		const want = "volume volume-1 was recorded at http://cinder:8776/v3 (project p0), but the backend points to http://cinder:8776/v3 (project p1)"
		if err := b.syncNightly(); !cinder.IsKind(err, backends.KindElsewhere) || err.Error() != "backend gold: "+want {
			t.Errorf("error %v", err)
		}
		b.wantEvents("Warning SnapshotFailed backend gold: " + want)
		b.wantCalls()
		if b.content() != nil || b.Ledger.Usage(policy.TenantScope, "a").Snapshots != 0 {
			t.Errorf("content %+v, used %+v", b.content(), b.Ledger.Usage(policy.TenantScope, "a"))
		}
		// A volume of the same project at another address is the same volume.
		b.backend.place = cinder.NewPlace("http://other:8776/v3", "p0")
		b.must(b.syncNightly())
		b.wantCalls("take snapshot-u1 of volume-1", "mark snapshot-1")
	})
	t.Run("Cinder fails", func(t *testing.T) {
		b := newBench(t, existing()...)
		b.must(b.counting.countBackend(t.Context(), Shelf{"gold", false}))
		b.backend.err = &cinder.Error{Backend: "gold", Kind: cinder.KindOverQuota, Message: "no room"}
		if err := b.syncNightly(); !cinder.IsKind(err, cinder.KindOverQuota) {
			t.Errorf("error %v", err)
		}
		b.wantEvents("Warning SnapshotFailed")
		// The content leads to whatever may exist, and the room stays reserved.
		if content := b.content(); content == nil || content.Status != nil || b.Ledger.Usage(policy.TenantScope, "a").Snapshots != 1 {
			t.Errorf("content %+v", content)
		}
		// Another policy does not undo what was begun.
		b.policy = &policy.Policy{}
		b.backend.err = nil
		b.must(b.syncNightly())
		if objects.SnapshotHandleOf(b.content()) != "snapshot-1" {
			t.Errorf("the content is %+v", b.content())
		}
	})
	t.Run("the quota is full", func(t *testing.T) {
		b := newBench(t, existing()...)
		b.backend.listed = []cinder.Snapshot{stamped("other", "u9", true)}
		b.must(b.syncNightly())
		b.wantCalls()
		b.wantEvents("Warning QuotaExceeded tenant a would use 2 of 1 snapshots (tenants[0].quota.snapshots)")
		b.release("u9", b.Ledger.ReleaseSnapshot)
		if b.loop.Queue.Len() != 1 {
			t.Errorf("%d items came back", b.loop.Queue.Len())
		}
		b.must(b.syncNightly())
		b.wantCalls("take snapshot-u1 of volume-1", "mark snapshot-1")
	})
	for name, test := range map[string]struct {
		tenant, rule, full string
	}{
		"the tenant's number":    {tenant: "snapshots: 1", full: "tenant a would use 2 of 1 snapshots (tenants[0].quota.snapshots)"},
		"the tenant's gigabytes": {tenant: "snapshotGigabytes: 5", full: "tenant a would use 6 of 5 GiB of snapshots (tenants[0].quota.snapshotGigabytes)"},
		"the rule's number":      {rule: "snapshots: 1", full: "StorageClasses [fast] of tenant a would use 2 of 1 snapshots (tenants[0].classes[0].quota.snapshots)"},
		"the rule's gigabytes":   {rule: "snapshotGigabytes: 5", full: "StorageClasses [fast] of tenant a would use 6 of 5 GiB of snapshots (tenants[0].classes[0].quota.snapshotGigabytes)"},
		"limits on volumes only": {tenant: "volumes: 9", rule: "gigabytes: 9"},
	} {
		t.Run(name+", with a snapshot on another backend", func(t *testing.T) {
			present := existing()
			for _, object := range present {
				if pv, is := object.(*corev1.PersistentVolume); is {
					pv.Spec.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
				}
			}
			b := newBench(t, present...)
			text := strings.NewReplacer("gold, auth: {cloud: gold}}", "gold, auth: {cloud: gold}}\n  - {name: silver, auth: {cloud: silver}}",
				"snapshots: 1", test.tenant, "backends: [gold]", "backends: [gold, silver], quota: {"+test.rule+"}").Replace(testPolicy)
			var err error
			b.policy, err = policy.Parse([]byte(text), "policy.yaml", nil)
			b.must(err)
			other := stamped("other", "u9", true)
			other.SizeGiB = 5
			b.Backends.(fakeBackends)["silver"] = &fakeSnapshots{listed: []cinder.Snapshot{other}, place: here()}
			b.must(b.syncNightly())
			if test.full == "" {
				b.wantCalls("take snapshot-u1 of volume-1", "mark snapshot-1")
				return
			}
			b.wantCalls()
			b.wantEvents("Warning QuotaExceeded " + test.full)
		})
	}
	t.Run("the VolumeSnapshot is gone", func(t *testing.T) {
		b := newBench(t, existing()...)
		b.refresh()
		b.must(b.client.SnapshotV1().VolumeSnapshots("team-a").Delete(t.Context(), "nightly", metav1.DeleteOptions{}))
		b.must(b.syncSnapshot(t.Context(), b.loop.Attempt(item{snapshotItem, "team-a", "nightly"})))
		b.wantCalls()
		b.wantEvents()
		if b.content() != nil {
			t.Errorf("the content is %+v", b.content())
		}
	})
	t.Run("the content is gone before the request", func(t *testing.T) {
		b := newBench(t, existing()...)
		b.backend.meanwhile = func() {
			b.must(b.client.SnapshotV1().VolumeSnapshotContents().Delete(t.Context(), "snapcontent-u1", metav1.DeleteOptions{}))
		}
		b.must(b.syncNightly())
		b.wantCalls()
	})
	t.Run("another content has the name", func(t *testing.T) {
		b := newBench(t, append(existing(), recorded(func(c *snapshotv1.VolumeSnapshotContent) { c.Spec.Driver = "other" }))...)
		b.must(b.contents.Replace(nil, ""))
		b.must(b.syncSnapshot(t.Context(), b.loop.Attempt(item{snapshotItem, "team-a", "nightly"})))
		b.wantCalls()
		b.wantEvents("Warning SnapshotContentConflict")
	})
	for _, resource := range []string{"volumesnapshotcontents", "volumesnapshots"} {
		t.Run("the snapshot-controller writes "+resource+" meanwhile", func(t *testing.T) {
			byDefault := class(func(c *snapshotv1.VolumeSnapshotClass) {
				c.Annotations = map[string]string{objects.AnnotationDefaultSnapshotClass: "true"}
			})
			b := newBench(t, nightly(func(s *snapshotv1.VolumeSnapshot) { s.Spec.VolumeSnapshotClassName = nil }), byDefault, claim(nil), volume(nil), namespace(),
				recorded(func(c *snapshotv1.VolumeSnapshotContent) { c.Annotations, c.Finalizers, c.Status = nil, nil, nil }))
			writes := 0
			b.client.PrependReactor("patch", resource, func(clienttesting.Action) (bool, runtime.Object, error) {
				writes++
				return writes == 1, nil, apierrors.NewConflict(schema.GroupResource{Resource: resource}, "nightly", errors.New("the object has been modified"))
			})
			if err := b.syncNightly(); !apierrors.IsConflict(err) {
				t.Errorf("error %v", err)
			}
			b.wantEvents()
			b.must(b.syncNightly())
			b.wantCalls("take snapshot-u1 of volume-1", "mark snapshot-1")
			b.wantEvents()
		})
	}
	t.Run("the snapshot-controller made the content", func(t *testing.T) {
		b := newBench(t, append(existing(), recorded(func(c *snapshotv1.VolumeSnapshotContent) { c.Annotations, c.Finalizers, c.Status = nil, nil, nil }))...)
		b.must(b.syncNightly())
		b.wantCalls("take snapshot-u1 of volume-1", "mark snapshot-1")
		if origin, err := objects.SnapshotOriginOf(b.content()); err != nil || origin.Tenant != "a" || len(b.content().Finalizers) != 1 {
			t.Errorf("the content is %+v: %v", b.content(), err)
		}
	})
}

func TestContentIsDeleted(t *testing.T) {
	foreignDriver := func(c *snapshotv1.VolumeSnapshotContent) { c.Spec.Driver = "other" }
	retain := func(c *snapshotv1.VolumeSnapshotContent) {
		c.Spec.DeletionPolicy = snapshotv1.VolumeSnapshotContentRetain
	}
	none := func(c *snapshotv1.VolumeSnapshotContent) { c.Status = nil }
	for name, test := range map[string]struct {
		content   *snapshotv1.VolumeSnapshotContent
		snapshot  bool // the VolumeSnapshot exists and is not being deleted
		meanwhile func(c *snapshotv1.VolumeSnapshotContent)
		err       error
		place     cinder.Place
		want      []string
		event     string
		kept      bool // the finalizer
	}{
		"the policy is Delete":       {content: deletedContent(nil), want: []string{"remove snapshot-1 unrecorded=false"}},
		"the policy is Retain":       {content: deletedContent(retain)},
		"nothing is known of it yet": {content: deletedContent(none), want: []string{"abandon those of u1 unrecorded=false"}},
		"the same, with Retain":      {content: deletedContent(func(c *snapshotv1.VolumeSnapshotContent) { none(c); retain(c) }), want: []string{"abandon those of u1 unrecorded=true"}},
		"nothing was begun":          {content: deletedContent(func(c *snapshotv1.VolumeSnapshotContent) { none(c); delete(c.Annotations, objects.AnnotationVolume) })},
		"another driver's":           {content: deletedContent(foreignDriver), kept: true},
		"it is not being deleted":    {content: recorded(nil), snapshot: true, kept: true},
		"its VolumeSnapshot is there": {content: deletedContent(func(c *snapshotv1.VolumeSnapshotContent) {
			delete(c.Annotations, objects.AnnotationSnapshotBeingDeleted)
		}), snapshot: true, kept: true, event: "Warning SnapshotInUse VolumeSnapshot team-a/nightly still exists"},
		"the same, gone": {content: deletedContent(func(c *snapshotv1.VolumeSnapshotContent) {
			delete(c.Annotations, objects.AnnotationSnapshotBeingDeleted)
		}), want: []string{"remove snapshot-1 unrecorded=false"}},
		"of another cluster":        {content: deletedContent(func(c *snapshotv1.VolumeSnapshotContent) { c.Annotations[objects.AnnotationCluster] = "x" }), kept: true, event: "Warning SnapshotFailedDelete VolumeSnapshotContent snapcontent-u1 is of cluster"},
		"damaged":                   {content: deletedContent(func(c *snapshotv1.VolumeSnapshotContent) { delete(c.Annotations, objects.AnnotationEndpoint) }), kept: true, event: "Warning SnapshotFailedDelete VolumeSnapshotContent snapcontent-u1: annotation"},
		"a backend that is gone":    {content: deletedContent(func(c *snapshotv1.VolumeSnapshotContent) { c.Annotations[objects.AnnotationBackend] = "x" }), kept: true, event: "Warning SnapshotFailedDelete VolumeSnapshotContent snapcontent-u1: backend"},
		"the policy becomes Retain": {content: deletedContent(nil), meanwhile: retain, kept: true, event: "Warning DeletionStopped the snapshot of VolumeSnapshotContent snapcontent-u1 is not removed: the deletionPolicy is now Retain"},
		"the handle changes": {content: deletedContent(nil), meanwhile: func(c *snapshotv1.VolumeSnapshotContent) {
			other := "snapshot-2"
			c.Status.SnapshotHandle = &other
		}, kept: true, event: `Warning DeletionStopped the snapshot of VolumeSnapshotContent snapcontent-u1 is not removed: its VolumeSnapshotContent now names snapshot "snapshot-2"`},
		"volumes depend on it": {content: deletedContent(nil), err: &cinder.Error{Backend: "gold", Kind: backends.KindInUse, Message: "volumes depend on it"},
			want: []string{"remove snapshot-1 unrecorded=false"}, kept: true, event: "Warning SnapshotFailedDelete backend gold: volumes depend on it"},
		"it lives elsewhere": {content: deletedContent(nil), err: &cinder.Error{Backend: "gold", Kind: backends.KindElsewhere, Message: "it is not here", Place: here()},
			want: []string{"remove snapshot-1 unrecorded=false"}, kept: true, event: "Warning SnapshotFailedDelete backend gold: it is not here; its VolumeSnapshotContent stays; put the configuration"},
	} {
		t.Run(name, func(t *testing.T) {
			existing := []runtime.Object{test.content}
			if test.snapshot {
				existing = append(existing, nightly(nil))
			}
			b := newBench(t, existing...)
			b.backend.err = test.err
			b.Ledger.RecordSnapshot("u1", "gold", ledgerEntry())
			if test.meanwhile != nil {
				b.backend.meanwhile = func() {
					changed := test.content.DeepCopy()
					test.meanwhile(changed)
					b.must(b.client.Tracker().Update(snapshotv1.SchemeGroupVersion.WithResource("volumesnapshotcontents"), changed, ""))
				}
			}
			err := b.syncItsContent()
			if (err != nil) != (test.kept && test.event != "" && test.meanwhile == nil && !test.snapshot) {
				t.Errorf("error %v", err)
			}
			b.wantCalls(test.want...)
			switch {
			case test.event == "":
				b.wantEvents()
			case test.snapshot:
				b.wantEvents(test.event, test.event)
			default:
				b.wantEvents(test.event)
			}
			if content := b.content(); test.kept != (content != nil && len(content.Finalizers) == 1) {
				t.Errorf("the content is %+v", content)
			}
			removed := len(test.want) == 1 && !test.kept
			if removed != (b.Ledger.Usage(policy.TenantScope, "a").Snapshots == 0) || removed != (len(b.gone) == 1) {
				t.Errorf("used %+v, told about %q", b.Ledger.Usage(policy.TenantScope, "a"), b.gone)
			}
		})
	}
}

// TestDeletionConflictsAreNotReported: the next attempt reads what the snapshot-controller
// wrote.
func TestDeletionConflictsAreNotReported(t *testing.T) {
	b := newBench(t, deletedContent(nil))
	writes := 0
	b.client.PrependReactor("patch", "volumesnapshotcontents", func(clienttesting.Action) (bool, runtime.Object, error) {
		writes++
		return writes == 1, nil, apierrors.NewConflict(schema.GroupResource{Resource: "volumesnapshotcontents"}, "snapcontent-u1", errors.New("the object has been modified"))
	})
	if err := b.syncItsContent(); !apierrors.IsConflict(err) {
		t.Errorf("error %v", err)
	}
	b.must(b.syncItsContent())
	b.wantEvents()
}

// TestContentWithoutVolumeSnapshot: a content that may come from a backup is left
// alone.
func TestContentWithoutVolumeSnapshot(t *testing.T) {
	begun := func() *snapshotv1.VolumeSnapshotContent {
		return recorded(func(c *snapshotv1.VolumeSnapshotContent) { c.Status = nil })
	}
	for name, test := range map[string]struct {
		content  *snapshotv1.VolumeSnapshotContent
		listed   []cinder.Snapshot
		existing []runtime.Object
		deleted  bool
		event    string
	}{
		"nothing was taken":                   {content: begun(), deleted: true},
		"what was taken was never handed out": {content: begun(), listed: []cinder.Snapshot{stamped("snapshot-1", "u1", false)}, deleted: true},
		"what was taken was ready once":       {content: begun(), listed: []cinder.Snapshot{stamped("snapshot-1", "u1", true)}, event: "Warning SnapshotKept its VolumeSnapshot is gone"},
		"it names a snapshot":                 {content: recorded(nil), event: "Warning SnapshotKept its VolumeSnapshot team-a/nightly (UID u1) is gone, but nothing asked for the deletion of snapshot snapshot-1; to keep the snapshot"},
		"it names a snapshot, and is retained": {content: recorded(func(c *snapshotv1.VolumeSnapshotContent) {
			c.Spec.DeletionPolicy = snapshotv1.VolumeSnapshotContentRetain
		})},
		"its VolumeSnapshot exists":           {content: begun(), existing: []runtime.Object{nightly(nil)}},
		"another VolumeSnapshot has the name": {content: begun(), existing: []runtime.Object{nightly(func(s *snapshotv1.VolumeSnapshot) { s.UID = "u2" })}, deleted: true},
		"the snapshot-controller has made it": {content: recorded(func(c *snapshotv1.VolumeSnapshotContent) { c.Status, c.Annotations = nil, nil })},
		"an imported snapshot": {content: recorded(func(c *snapshotv1.VolumeSnapshotContent) {
			handle := "snapshot-1"
			c.Spec.Source = snapshotv1.VolumeSnapshotContentSource{SnapshotHandle: &handle}
		}), event: "Warning SnapshotKept its VolumeSnapshot team-a/nightly (UID u1) is gone, but nothing asked for the deletion of snapshot snapshot-1"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, append(test.existing, test.content)...)
			b.backend.listed = test.listed
			b.must(b.syncItsContent())
			b.wantCalls()
			if test.event == "" {
				b.wantEvents()
			} else {
				b.wantEvents(test.event)
			}
			if (b.content() == nil) != test.deleted {
				t.Errorf("the content is %+v", b.content())
			}
		})
	}
}

func TestLeftovers(t *testing.T) {
	foreign := stamped("snapshot-1", "u1", false)
	foreign.Metadata["standalone-cinder.openstack.org/kube-system-uid"] = "other"
	inconsistent := stamped("snapshot-1", "u1", false)
	inconsistent.Metadata["csi.storage.k8s.io/volumesnapshotcontent/name"] = "snapcontent-u2"
	for name, test := range map[string]struct {
		found    cinder.Snapshot
		existing []runtime.Object
		removed  bool
	}{
		"nothing leads to it":                       {found: stamped("snapshot-1", "u1", false), removed: true},
		"it was ready once":                         {found: stamped("snapshot-1", "u1", true)},
		"its VolumeSnapshot exists":                 {found: stamped("snapshot-1", "u1", false), existing: []runtime.Object{nightly(nil)}},
		"another VolumeSnapshot has the name":       {found: stamped("snapshot-1", "u1", false), existing: []runtime.Object{nightly(func(s *snapshotv1.VolumeSnapshot) { s.UID = "u2" })}, removed: true},
		"its content names it":                      {found: stamped("snapshot-1", "u1", false), existing: []runtime.Object{recorded(nil)}},
		"its content names another":                 {found: stamped("snapshot-2", "u1", false), existing: []runtime.Object{recorded(nil)}, removed: true},
		"its content names none yet":                {found: stamped("snapshot-1", "u1", false), existing: []runtime.Object{recorded(func(c *snapshotv1.VolumeSnapshotContent) { c.Status = nil })}},
		"another content names it":                  {found: stamped("snapshot-1", "u1", false), existing: []runtime.Object{recorded(func(c *snapshotv1.VolumeSnapshotContent) { c.Name, c.Spec.Driver = "other", "other" })}},
		"a cluster with the same clusterID made it": {found: foreign},
		"its stamp contradicts itself":              {found: inconsistent},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, test.existing...)
			b.backend.listed = []cinder.Snapshot{test.found}
			for range 2 {
				b.must(b.leftovers.sweep(t.Context(), Shelf{"gold", false}, true))
			}
			if !test.removed {
				b.wantCalls()
				return
			}
			want := "remove " + test.found.ID + " unrecorded=true"
			b.wantCalls(want, want)
		})
	}
}

func TestResourcesMustAllBeServed(t *testing.T) {
	for _, served := range [][]string{nil, {"volumesnapshots"}, {"volumesnapshots", "volumesnapshotclasses", "volumesnapshotcontents"}} {
		b := newBench(t)
		client := fake.NewClientset()
		list := &metav1.APIResourceList{GroupVersion: snapshotv1.SchemeGroupVersion.String()}
		for _, name := range served {
			list.APIResources = append(list.APIResources, metav1.APIResource{Name: name})
		}
		if served != nil {
			client.Resources = []*metav1.APIResourceList{list}
		}
		b.Client = client
		missing, err := ofSnapshots().missing(b.Client)
		b.must(err)
		if len(missing) != 3-len(served) {
			t.Errorf("served are %v, missing %v", served, missing)
		}
	}
}

// TestResourcesAreAwaitedWithoutRequests: requests begin when the CRD of
// VolumeSnapshots appears, and go on until the API server serves all resources.
func TestResourcesAreAwaitedWithoutRequests(t *testing.T) {
	b := newBench(t)
	b.LookAgain = time.Millisecond
	var asked atomic.Int32
	var served atomic.Pointer[[]*metav1.APIResourceList]
	served.Store(&[]*metav1.APIResourceList{})
	client := fake.NewClientset()
	client.PrependReactor("get", "resource", func(clienttesting.Action) (bool, runtime.Object, error) {
		asked.Add(1)
		client.Resources = *served.Load()
		return false, nil, nil
	})
	crds := newDefinitions()
	b.Client, b.Definitions = client, crds
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	found := make(chan bool)
	go func() { found <- b.awaitResources(ctx, ofSnapshots()) }()
	time.Sleep(100 * time.Millisecond)
	if n := asked.Load(); n != 1 {
		t.Errorf("the API server was asked %d times while there is no CRD, want once", n)
	}
	crd := &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"},
		ObjectMeta: metav1.ObjectMeta{Name: "volumesnapshots.snapshot.storage.k8s.io"},
	}
	b.must(crds.Tracker().Create(definitions, crd, ""))
	for asked.Load() < 5 {
		time.Sleep(time.Millisecond)
	}
	select {
	case <-found:
		t.Fatal("it did not wait for the resources")
	default:
	}
	list := &metav1.APIResourceList{GroupVersion: snapshotv1.SchemeGroupVersion.String()}
	for _, name := range ofSnapshots().names {
		list.APIResources = append(list.APIResources, metav1.APIResource{Name: name})
	}
	served.Store(&[]*metav1.APIResourceList{list})
	if !<-found {
		t.Error("it did not see the resources")
	}
}

func ledgerEntry() ledger.Snapshot { return ledger.Snapshot{Tenant: "a", StorageClass: "fast"} }

// TestRunEnds: Run ends with the context at any time, with or without the resources.
func TestRunEnds(t *testing.T) {
	for name, served := range map[string][]string{"absent": nil, "served": ofSnapshots().names} {
		t.Run(name, func(t *testing.T) {
			for range 50 {
				b := newBench(t)
				client := fake.NewClientset()
				list := &metav1.APIResourceList{GroupVersion: snapshotv1.SchemeGroupVersion.String()}
				for _, name := range served {
					list.APIResources = append(list.APIResources, metav1.APIResource{Name: name})
				}
				client.Resources = []*metav1.APIResourceList{list}
				b.Client = client
				b.show(nil)
				b.Options.MaxWorkTime = liveness.Always(time.Hour)
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan struct{})
				go func() { b.Controller.Run(ctx); close(done) }()
				if served != nil {
					for b.shown() == nil {
						time.Sleep(time.Millisecond)
					}
				}
				cancel()
				<-done
			}
		})
	}
}

// TestContentThatCannotBeDeletedHasNoAdvice: the event SnapshotKept says that deleting
// the content deletes the snapshot. If an operator does so, that must be what happens.
func TestContentThatCannotBeDeletedHasNoAdvice(t *testing.T) {
	for name, change := range map[string]func(*snapshotv1.VolumeSnapshotContent){
		"copied from another cluster": func(c *snapshotv1.VolumeSnapshotContent) { c.Annotations[objects.AnnotationCluster] = "x" },
		"damaged":                     func(c *snapshotv1.VolumeSnapshotContent) { delete(c.Annotations, objects.AnnotationEndpoint) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, recorded(change))
			_ = b.syncItsContent()
			advised := slices.ContainsFunc(b.events(), func(event string) bool {
				return strings.Contains(event, "to delete it, delete this VolumeSnapshotContent")
			})
			// The operator deletes it.
			content := b.content()
			now := metav1.Now()
			content.DeletionTimestamp = &now
			b.must(b.client.Tracker().Update(snapshotv1.SchemeGroupVersion.WithResource("volumesnapshotcontents"), content, ""))
			err := b.syncItsContent()
			if advised && (err != nil || len(b.content().Finalizers) > 0 || len(b.backend.calls) == 0) {
				t.Errorf("the event advised the deletion, but then: error %v, finalizers %q, requests %q", err, b.content().Finalizers, b.backend.calls)
			}
		})
	}
}

// TestContentThatWasJustRetainedIsNotReported: an operator sets the policy Retain, and
// then the VolumeSnapshot is deleted, but the cache of contents still shows the earlier
// policy.
func TestContentThatWasJustRetainedIsNotReported(t *testing.T) {
	b := newBench(t, recorded(nil))
	retained := b.content()
	retained.Spec.DeletionPolicy = snapshotv1.VolumeSnapshotContentRetain
	retained.Annotations[objects.AnnotationSnapshotBeingDeleted] = "yes"
	b.must(b.client.Tracker().Update(snapshotv1.SchemeGroupVersion.WithResource("volumesnapshotcontents"), retained, ""))
	b.must(b.syncContent(t.Context(), b.loop.Attempt(item{contentItem, "", "snapcontent-u1"})))
	b.wantEvents()
}

// TestAnotherVolumeSnapshotOfTheNameIsToldNothing: a new VolumeSnapshot of the same
// name, perhaps of the namespace's next tenant, has nothing to do with the content.
func TestAnotherVolumeSnapshotOfTheNameIsToldNothing(t *testing.T) {
	for name, content := range map[string]*snapshotv1.VolumeSnapshotContent{"kept": recorded(nil), "its deletion fails": deletedContent(nil)} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, content, nightly(func(s *snapshotv1.VolumeSnapshot) { s.UID = "u2" }))
			b.backend.err = errors.New("the array is on fire")
			existing := &objectRecorder{}
			b.Recorder = existing
			_ = b.syncItsContent()
			if len(existing.about) != 1 || existing.about[0] != content.UID {
				t.Errorf("told were %q, want the content alone", existing.about)
			}
		})
	}
}

type objectRecorder struct {
	eventrecord.FakeRecorder
	about []types.UID
}

func (r *objectRecorder) Event(object runtime.Object, _, _, _ string) {
	r.about = append(r.about, object.(metav1.Object).GetUID())
}

// TestContentThatNobodyDeletesFailsNoDeletion: no deletion fails while the API server
// does not answer.
func TestContentThatNobodyDeletesFailsNoDeletion(t *testing.T) {
	for _, resource := range []string{"volumesnapshots", "volumesnapshotcontents"} {
		t.Run(resource, func(t *testing.T) {
			b := newBench(t, recorded(nil))
			b.client.PrependReactor("get", resource, func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, nil, errors.New("the API server restarts")
			})
			if err := b.syncItsContent(); err == nil {
				t.Error("it is not tried again")
			}
			for _, event := range b.events() {
				if strings.Contains(event, "SnapshotFailedDelete") {
					t.Errorf("event %q of a content that is not being deleted", event)
				}
			}
		})
	}
}

// TestKeptContentWaitsForNoPolicy: no policy changes what happens to it.
func TestKeptContentWaitsForNoPolicy(t *testing.T) {
	b := newBench(t, recorded(nil))
	b.must(b.syncItsContent())
	b.Board.Publish(parking.Trigger{Kind: parking.Policy})
	if n := b.loop.Queue.Len(); n > 0 {
		t.Errorf("another policy brings back %d kept contents", n)
	}
}

// TestResourcesAreFoundWithoutTheRightToFollowTheirDefinition: the program may be newer
// than its ClusterRole.
func TestResourcesAreFoundWithoutTheRightToFollowTheirDefinition(t *testing.T) {
	b := newBench(t)
	var asked atomic.Int32
	client := fake.NewClientset()
	client.PrependReactor("get", "resource", func(clienttesting.Action) (bool, runtime.Object, error) {
		if asked.Add(1) > 1 {
			list := &metav1.APIResourceList{GroupVersion: snapshotv1.SchemeGroupVersion.String()}
			for _, name := range ofSnapshots().names {
				list.APIResources = append(list.APIResources, metav1.APIResource{Name: name})
			}
			client.Resources = []*metav1.APIResourceList{list}
		}
		return false, nil, nil
	})
	crds := newDefinitions()
	crds.PrependReactor("list", definitions.Resource, func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(definitions.GroupResource(), "", nil)
	})
	b.Client, b.Definitions = client, crds
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if !b.awaitResources(ctx, ofSnapshots()) {
		t.Errorf("the resources were not found; the API server was asked %d times", asked.Load())
	}
}

// TestContentThatChangesIsHeard: a claim may have been denied because the content did
// not record its filesystem, and an administrator may now have recorded it.
func TestContentThatChangesIsHeard(t *testing.T) {
	b := newBench(t)
	before := b.Board.Now()
	b.contentEvents().OnUpdate(recorded(nil), recorded(nil))
	if !b.Board.Since(before, []parking.Trigger{parking.SourceSnapshot("team-a", "nightly")}) {
		t.Error("claims that copy the VolumeSnapshot do not hear of it")
	}
}

// hanging does not answer until it is told to.
type hanging struct {
	*fakeSnapshots
	answer chan struct{}
}

func (h hanging) RelistSnapshots(context.Context) ([]cinder.Snapshot, error) {
	<-h.answer
	return nil, nil
}

// TestBackendsThatHangLeaveWorkersToOthers: some contents end with a listing of their
// backend. If there are more of them than workers, and the listings hang, a snapshot on
// another backend is taken nevertheless.
func TestBackendsThatHangLeaveWorkersToOthers(t *testing.T) {
	const contents = 20
	for name, test := range map[string]struct {
		driver string
		// end brings a content to its end, and left returns how many have not got there.
		end  func(*bench, *snapshotv1.VolumeSnapshotContent)
		left func(*bench) int
	}{
		"the sidecar deletes contents without a status": {policy.CSIDriver, func(b *bench, content *snapshotv1.VolumeSnapshotContent) {
			b.contentEvents().OnAdd(content, false)
			b.contentEvents().OnDelete(content)
		}, func(b *bench) int {
			var counted int
			for share, usage := range b.Ledger.Census().Shares {
				if share.Tenant == "other" {
					counted += int(usage.Snapshots)
				}
			}
			return counted
		}},
		"contents are written when their VolumeSnapshots are gone": {driver, func(b *bench, content *snapshotv1.VolumeSnapshotContent) {
			_, err := b.client.SnapshotV1().VolumeSnapshotContents().Create(b.Context(), content, metav1.CreateOptions{})
			b.must(err)
			b.must(b.contents.Add(content))
			b.contentEvents().OnAdd(content, false)
		}, func(b *bench) int {
			all, err := b.client.SnapshotV1().VolumeSnapshotContents().List(b.Context(), metav1.ListOptions{})
			b.must(err)
			return len(slices.DeleteFunc(all.Items, func(c snapshotv1.VolumeSnapshotContent) bool { return c.Name == "snapcontent-u1" }))
		}},
	} {
		for _, hang := range []int{1, contents} {
			t.Run(fmt.Sprintf("%s, on %d backends", name, hang), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := newBench(t, namespace(), claim(nil), volume(nil), class(nil), nightly(nil))
					defer b.loop.Queue.ShutDown()
					silent, all := hanging{&fakeSnapshots{place: here()}, make(chan struct{})}, fakeBackends{"gold": b.backend}
					b.Backends = all
					for i := range contents {
						uid, backend := types.UID(fmt.Sprintf("gone-%d", i)), fmt.Sprintf("silver-%d", i%hang)
						all[backend] = silent
						test.end(b, recorded(func(c *snapshotv1.VolumeSnapshotContent) {
							c.Name, c.UID, c.Status, c.Spec.Driver = objects.SnapshotContentName(uid), "content-"+uid, nil, test.driver
							c.Spec.VolumeSnapshotRef.UID, c.Spec.VolumeSnapshotRef.Name = uid, string(uid)
							c.Annotations[objects.AnnotationBackend], c.Annotations[objects.AnnotationTenant] = backend, "other"
						}))
					}
					b.enqueue(item{snapshotItem, "team-a", "nightly"})
					time.Sleep(time.Nanosecond) // only a listing that begins later frees room
					for range b.Workers {
						go func() {
							for b.loop.Next(b.Context()) {
							}
						}()
					}
					synctest.Wait()
					b.wantCalls("take snapshot-u1 of volume-1", "mark snapshot-1")
					if left := test.left(b); left != contents {
						t.Errorf("%d contents wait for their backends", left)
					}
					close(silent.answer)
					synctest.Wait()
					held, waiting := b.loop.Turns.Count()
					if left := test.left(b); left+held+waiting+b.loop.Queue.Len() > 0 {
						t.Errorf("%d contents have not ended; %d items have a turn, %d wait for one, and %d are in the queue", left, held, waiting, b.loop.Queue.Len())
					}
				})
			})
		}
	}
}

// TestAContentThatNeedsNoTurnLeavesItsLane: it waited for one when its VolumeSnapshot
// appeared.
func TestAContentThatNeedsNoTurnLeavesItsLane(t *testing.T) {
	b := newBench(t, namespace())
	content := recorded(func(c *snapshotv1.VolumeSnapshotContent) { c.Status = nil })
	_, err := b.client.SnapshotV1().VolumeSnapshotContents().Create(b.Context(), content, metav1.CreateOptions{})
	b.must(err)
	b.must(b.contents.Add(content))
	busy := 0
	of := func(n int) item { return item{snapshotItem, "x", fmt.Sprint(n)} }
	for b.loop.Turns.Begin(of(busy), "a", "gold") {
		busy++
	}
	b.loop.Turns.Leave(of(busy))
	own := item{contentItem, "", content.Name}
	b.refresh()
	b.loop.Try(b.Context(), own)
	if _, waiting := b.loop.Turns.Count(); waiting != 1 {
		t.Fatalf("%d wait", waiting)
	}
	_, err = b.client.SnapshotV1().VolumeSnapshots("team-a").Create(b.Context(), nightly(nil), metav1.CreateOptions{})
	b.must(err)
	b.refresh()
	b.loop.Try(b.Context(), own)
	if _, waiting := b.loop.Turns.Count(); waiting != 0 {
		t.Errorf("%d wait for a turn that they do not need", waiting)
	}
}

// TestSizeOfASnapshot: the status of its content has it. Before, nobody knows more than the
// size of the volume, which may have grown in the meantime.
func TestSizeOfASnapshot(t *testing.T) {
	b := newBench(t, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv", Annotations: map[string]string{objects.AnnotationVolume: "v1"}},
		Spec:       corev1.PersistentVolumeSpec{Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("70Gi")}},
	})
	const gib = int64(1) << 30
	for name, c := range map[string]struct {
		volume string
		status *snapshotv1.VolumeSnapshotContentStatus
		want   ledger.Snapshot
	}{
		"in the status":          {"v1", &snapshotv1.VolumeSnapshotContentStatus{RestoreSize: new(40 * gib)}, ledger.Snapshot{GiB: 40}},
		"not in whole GiB":       {"v1", &snapshotv1.VolumeSnapshotContentStatus{RestoreSize: new(40*gib + 1)}, ledger.Snapshot{GiB: 41}},
		"not known yet":          {"v1", &snapshotv1.VolumeSnapshotContentStatus{}, ledger.Snapshot{GiB: 70, Estimated: true}},
		"without a status":       {"v1", nil, ledger.Snapshot{GiB: 70, Estimated: true}},
		"and the volume is gone": {"v2", nil, ledger.Snapshot{Estimated: true}},
	} {
		if got := b.usageOf(objects.SnapshotOrigin{VolumeID: c.volume}, c.status); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}
