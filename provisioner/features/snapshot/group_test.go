package snapshot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	grouplisters "github.com/kubernetes-csi/external-snapshotter/client/v8/listers/volumegroupsnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/test/authtest"
)

// groupShelf fakes a backend whose requests may come at once. It has what was taken, by
// the names of the snapshots.
type groupShelf struct {
	*fakeSnapshots
	mu     sync.Mutex
	taken  map[string]cinder.Snapshot
	marked map[string]bool
	// fail are the errors of requests, by their texts.
	fail map[string]error
}

func (f *groupShelf) request(format string, arguments ...any) error {
	text := fmt.Sprintf(format, arguments...)
	f.calls = append(f.calls, text)
	return f.fail[text]
}

func (f *groupShelf) TakeSnapshot(ctx context.Context, spec backends.SnapshotSpec) (cinder.Snapshot, error) {
	id := strings.Replace(spec.Source.VolumeID, "volume", "snapshot", 1)
	f.mu.Lock()
	found, exists := f.taken[spec.Name]
	f.mu.Unlock()
	if exists {
		f.mu.Lock()
		defer f.mu.Unlock()
		return found, f.request("find %s", found.ID)
	}
	if err := spec.Source.Permit(ctx, cinder.Volume{}); err != nil {
		return cinder.Snapshot{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.request("take %s of %s", id, spec.Source.VolumeID); err != nil {
		return cinder.Snapshot{}, err
	}
	s := cinder.Snapshot{ID: id, VolumeID: spec.Source.VolumeID, SizeGiB: 2, CreatedAt: time.Unix(1000, 0), Status: cinder.StatusAvailable, Metadata: spec.Stamp.Metadata(nil)}
	f.taken[spec.Name] = s
	return s, nil
}

func (f *groupShelf) MarkSnapshot(_ context.Context, s cinder.Snapshot) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.marked[s.ID] = true
	return f.request("mark %s", s.ID)
}

func (f *groupShelf) AbandonSnapshots(_ context.Context, target backends.SnapshotTarget) ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, s := range f.taken {
		if target.Stamp.Owns(s) && target.Unrecorded && stamps.WasRecorded(s) {
			return []string{s.ID}, f.request("keep %s", s.ID)
		}
		if target.Stamp.Owns(s) {
			if f.marked[s.ID] && target.Unrecorded {
				return []string{s.ID}, nil
			}
			delete(f.taken, name)
			return nil, f.request("abandon %s unrecorded=%t", s.ID, target.Unrecorded)
		}
	}
	return nil, nil
}

func (f *groupShelf) RemoveSnapshot(ctx context.Context, target backends.SnapshotTarget) error {
	if err := target.Permit(ctx); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.request("remove %s", target.SnapshotID)
}

func (f *groupShelf) FindSnapshot(_ context.Context, id string) (cinder.Snapshot, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.taken {
		if s.ID == id {
			return s, true, nil
		}
	}
	return cinder.Snapshot{}, false, nil
}

// groupBench is a bench with two claims, data and log, and the VolumeGroupSnapshot db of
// both.
type groupBench struct {
	*bench
	shelf    *groupShelf
	groups   cache.Indexer
	contents cache.Indexer
	volumes  []*corev1.PersistentVolume
}

const groupPolicy = `
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
backends:
  - {name: gold, auth: {cloud: gold}}
tenants:
  - name: a
    namespaces: [team-a]
    quota: {snapshots: 2}
    classes:
      - {storageClasses: [fast], backends: [gold], groups: true}
`

func newGroupBench(t *testing.T, isCSI bool, existing ...runtime.Object) *groupBench {
	t.Helper()
	var volumes []*corev1.PersistentVolume
	var claims []runtime.Object
	for i, name := range []string{"data", "log"} {
		pv := volume(func(pv *corev1.PersistentVolume) {
			pv.Name, pv.UID, pv.Spec.ClaimRef.Name, pv.Spec.ClaimRef.UID = "pvc-"+name, "", name, ""
			pv.Annotations[objects.AnnotationVolume] = fmt.Sprintf("volume-%d", i+1)
			if isCSI {
				pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: policy.CSIDriver, VolumeHandle: fmt.Sprintf("gold/volume-%d", i+1)}}
			}
		})
		volumes = append(volumes, pv)
		existing = append(existing, pv)
		claims = append(claims, claim(func(c *corev1.PersistentVolumeClaim) {
			c.Name, c.UID, c.Spec.VolumeName, c.Labels = name, "", pv.Name, map[string]string{"app": "db"}
		}))
	}
	existing = append(existing, claims...)
	b := &groupBench{bench: newBench(t, append(existing, namespace())...), volumes: volumes}
	p, err := policy.Parse([]byte(groupPolicy), "policy.yaml", nil)
	b.must(err)
	b.policy = p
	b.shelf = &groupShelf{fakeSnapshots: b.backend, taken: map[string]cinder.Snapshot{}, marked: map[string]bool{}, fail: map[string]error{}}
	b.Backends = fakeBackends{"gold": b.shelf}
	b.Controller.Client = fake.NewClientset(append(claims, namespace())...)
	indexer := func() cache.Indexer {
		return cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	}
	classes := indexer()
	b.groups, b.contents = indexer(), indexer()
	b.Controller.groups = &groupListers{grouplisters.NewVolumeGroupSnapshotLister(b.groups), grouplisters.NewVolumeGroupSnapshotContentLister(b.contents), grouplisters.NewVolumeGroupSnapshotClassLister(classes), nil}
	b.must(classes.Add(&groupv1.VolumeGroupSnapshotClass{ObjectMeta: metav1.ObjectMeta{Name: "together"}, Driver: driver, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete, Parameters: map[string]string{"consistency": "none"}}))
	b.seeGroups()
	return b
}

// seeGroups makes the caches current.
func (b *groupBench) seeGroups() {
	b.Helper()
	b.refresh()
	groups, err := b.client.GroupsnapshotV1().VolumeGroupSnapshots("").List(b.Context(), metav1.ListOptions{})
	b.must(err)
	contents, err := b.client.GroupsnapshotV1().VolumeGroupSnapshotContents().List(b.Context(), metav1.ListOptions{})
	b.must(err)
	var all []any
	for i := range groups.Items {
		all = append(all, &groups.Items[i])
	}
	b.must(b.groups.Replace(all, ""))
	all = nil
	for i := range contents.Items {
		all = append(all, &contents.Items[i])
	}
	b.must(b.contents.Replace(all, ""))
}

func (b *groupBench) groupContent() *groupv1.VolumeGroupSnapshotContent {
	b.Helper()
	content, err := b.grouped.groupContentAt(b.Context(), "groupsnapcontent-g1")
	b.must(err)
	return content
}

func (b *groupBench) used() int64 { return b.Ledger.Usage(policy.TenantScope, "a").Snapshots }

// wantRequests compares the requests regardless of their order.
func (b *groupBench) wantRequests(want ...string) {
	b.Helper()
	slices.Sort(want)
	if got := slices.Sorted(slices.Values(b.shelf.calls)); !slices.Equal(got, want) {
		b.Errorf("requests %q, want %q", got, want)
	}
}

func db(change func(*groupv1.VolumeGroupSnapshot)) *groupv1.VolumeGroupSnapshot {
	class := "together"
	g := &groupv1.VolumeGroupSnapshot{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "db", UID: "g1"},
		Spec: groupv1.VolumeGroupSnapshotSpec{VolumeGroupSnapshotClassName: &class, Source: groupv1.VolumeGroupSnapshotSource{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}},
		}},
	}
	if change != nil {
		change(g)
	}
	return g
}

// ofCSI returns the content that the snapshot-controller makes for db in mode csi.
func ofCSI(change func(*groupv1.VolumeGroupSnapshotContent)) *groupv1.VolumeGroupSnapshotContent {
	c := &groupv1.VolumeGroupSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{Name: "groupsnapcontent-g1", UID: "content-g1"},
		Spec: groupv1.VolumeGroupSnapshotContentSpec{
			Driver: policy.CSIDriver, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
			VolumeGroupSnapshotRef: corev1.ObjectReference{Namespace: "team-a", Name: "db", UID: "g1"},
			Source:                 groupv1.VolumeGroupSnapshotContentSource{VolumeHandles: []string{"gold/volume-1", "gold/volume-2"}},
		},
	}
	if change != nil {
		change(c)
	}
	return c
}

// begun gives a content the record that an attempt writes first.
func begun(c *groupv1.VolumeGroupSnapshotContent) {
	origin := objects.GroupOrigin{Content: c.Name, Namespace: "team-a", Name: "db", UID: "g1"}
	for i, handle := range c.Spec.Source.VolumeHandles {
		m := origin.NewMember(handle)
		m.VolumeID, m.Backend, m.Place, m.Tenant, m.Cluster, m.StorageClass = fmt.Sprintf("volume-%d", i+1), "gold", here(), "a", "cluster-1", "fast"
		origin.Members = append(origin.Members, m)
	}
	c.Annotations = origin.Annotations()
}

// named gives it the status that says what was taken.
func named(c *groupv1.VolumeGroupSnapshotContent) {
	begun(c)
	handle, ready := objects.GroupHandle("g1"), true
	c.Status = &groupv1.VolumeGroupSnapshotContentStatus{VolumeGroupSnapshotHandle: &handle, ReadyToUse: &ready}
	for i, volume := range c.Spec.Source.VolumeHandles {
		snapshot := fmt.Sprintf("snapshot-%d", i+1)
		if objects.IsCSIGroup(c) {
			snapshot = "gold/" + snapshot
		}
		c.Status.VolumeSnapshotInfoList = append(c.Status.VolumeSnapshotInfoList, groupv1.VolumeSnapshotInfo{VolumeHandle: volume, SnapshotHandle: snapshot, ReadyToUse: &ready})
	}
}

func beingDeleted(c *groupv1.VolumeGroupSnapshotContent) {
	now := metav1.Now()
	c.DeletionTimestamp, c.Finalizers = &now, []string{objects.GroupFinalizer}
	if c.Annotations == nil {
		c.Annotations = map[string]string{}
	}
	c.Annotations[objects.AnnotationGroupBeingDeleted] = "yes"
}

// memberContent returns the content that the snapshot-controller makes for one snapshot of
// the group.
func memberContent(volumeHandle, snapshotHandle string) *snapshotv1.VolumeSnapshotContent {
	m := objects.GroupOrigin{Namespace: "team-a", Name: "db", UID: "g1"}.NewMember(volumeHandle)
	c := m.NewMemberContent(ofCSI(nil), nil)
	c.UID = m.UID
	c.Spec.VolumeSnapshotRef.UID = "made-later"
	c.Annotations = map[string]string{objects.AnnotationGroupHandle: "groupsnapshot-g1"}
	c.Status = &snapshotv1.VolumeSnapshotContentStatus{SnapshotHandle: &snapshotHandle}
	return c
}

// TestGroupForASidecar: all snapshots count and are recorded before the first request, or
// none. If Cinder refuses one, the others go; if an answer is lost, they stay, and the next
// attempt goes on.
func TestGroupForASidecar(t *testing.T) {
	takes := []string{"take snapshot-1 of volume-1", "take snapshot-2 of volume-2"}
	all := append(slices.Clone(takes), "mark snapshot-1", "mark snapshot-2")
	failed := func(kind cinder.Kind, unknown bool) *cinder.Error {
		return &cinder.Error{Backend: "gold", Kind: kind, Message: "no", EffectUnknown: unknown}
	}
	for name, test := range map[string]struct {
		content    func(*groupv1.VolumeGroupSnapshotContent)
		name       string
		parameters map[string]string
		prepare    func(*groupBench)
		kind       string
		message    string
		requests   []string
		counts     int64
	}{
		"taken": {requests: all, counts: 2},
		"begun before, and the policy has changed": {content: begun, parameters: map[string]string{"consistency": "x"}, requests: all, counts: 2},
		"without a consistency":                    {parameters: map[string]string{}, kind: "Denied", message: `ParameterNotAllowed: the VolumeGroupSnapshotClass has consistency ""; it must be array (the storage takes all snapshots at one moment), filesystem (nobody writes while they are taken) or none (each is taken for itself, at about the same time)`},
		"no room for both": {prepare: func(b *groupBench) { b.Ledger.RecordSnapshot("other", "gold", ledgerOf("a")) }, kind: "NoRoom",
			message: "QuotaExceeded: tenant a would use 3 of 2 snapshots (tenants[0].quota.snapshots)", counts: 1},
		"a claim of another namespace": {prepare: func(b *groupBench) { b.volumes[1].Spec.ClaimRef.Namespace = "team-b" }, kind: "Denied",
			message: "PersistentVolume pvc-log is not bound to a claim in namespace team-a, which has the VolumeGroupSnapshot"},
		"another tenant's volume": {prepare: func(b *groupBench) { b.volumes[1].Annotations[objects.AnnotationTenant] = "b" }, kind: "Denied",
			message: "OtherTenant: namespace team-a belongs to tenant a (tenants[0]), but the volume was made for tenant b"},
		"a record of another tenant": {content: func(c *groupv1.VolumeGroupSnapshotContent) {
			begun(c)
			c.Annotations[objects.AnnotationMembers] = strings.ReplaceAll(c.Annotations[objects.AnnotationMembers], `"standalone-cinder.openstack.org/tenant":"a"`, `"standalone-cinder.openstack.org/tenant":"b"`)
		}, kind: "Damaged", message: `VolumeGroupSnapshotContent groupsnapcontent-g1 records volume volume-1 of tenant "b" for gold/volume-1, which is not what its PersistentVolume says`},
		"other volumes": {content: func(c *groupv1.VolumeGroupSnapshotContent) {
			c.Spec.Source.VolumeHandles = []string{"gold/volume-1", "gold/volume-3"}
		}, kind: "AlreadyExists", message: "according to VolumeGroupSnapshotContent groupsnapcontent-g1, group groupsnapshot-g1 does not have volume gold/volume-2"},
		"one volume twice": {content: func(c *groupv1.VolumeGroupSnapshotContent) {
			c.Spec.Source.VolumeHandles = []string{"gold/volume-1", "gold/volume-1"}
		}, prepare: func(b *groupBench) { b.volumes[1] = b.volumes[0] }, kind: "Damaged", message: "VolumeGroupSnapshotContent groupsnapcontent-g1 has volume gold/volume-1 more than once; delete it"},
		"too many volumes": {content: func(c *groupv1.VolumeGroupSnapshotContent) {
			c.Spec.Source.VolumeHandles = slices.Repeat([]string{"gold/volume-1"}, 101)
		}, kind: "Denied", message: "TooManyMembers: the VolumeGroupSnapshot selects 101 claims, and at most 100 can be in one group; select fewer"},
		"a name that is none":   {name: "db", kind: "Damaged", message: `"db" is not the name that the csi-snapshotter gives the group of a VolumeGroupSnapshot, groupsnapshot- and its UID`},
		"no content":            {name: "groupsnapshot-g2", kind: "Damaged", message: "VolumeGroupSnapshotContent groupsnapcontent-g2 of group groupsnapshot-g2 does not exist"},
		"a content for another": {content: func(c *groupv1.VolumeGroupSnapshotContent) { c.Spec.VolumeGroupSnapshotRef.UID = "g2" }, kind: "Damaged", message: "VolumeGroupSnapshotContent groupsnapcontent-g1 is not for a new group by the CSI driver; delete it"},
		"a content that is being deleted": {content: beingDeleted, kind: "Damaged",
			message: "the snapshots of VolumeGroupSnapshot team-a/db are not taken: its VolumeGroupSnapshotContent is being deleted"},
		"one goes to error": {prepare: func(b *groupBench) { b.shelf.fail[takes[1]] = failed(backends.KindVolumeFailed, false) }, kind: "", message: "backend gold: no",
			requests: append(slices.Clone(takes), "abandon snapshot-1 unrecorded=true"), counts: 2},
		"one goes to error, and another cannot be removed": {prepare: func(b *groupBench) {
			b.shelf.fail[takes[1]], b.shelf.fail["abandon snapshot-1 unrecorded=true"] = failed(backends.KindVolumeFailed, false), failed(backends.KindTimeout, false)
		}, kind: "", message: "backend gold: no; the other snapshots of the group cannot be removed now: backend gold: no",
			requests: append(slices.Clone(takes), "abandon snapshot-1 unrecorded=true"), counts: 2},
		"an answer is lost": {prepare: func(b *groupBench) { b.shelf.fail[takes[0]] = failed(cinder.KindUnavailable, true) }, message: "backend gold: no", requests: takes, counts: 2},
		"one cannot be marked": {prepare: func(b *groupBench) { b.shelf.fail["mark snapshot-2"] = failed(cinder.KindUnavailable, false) }, message: "backend gold: no",
			requests: append(slices.Clone(takes), "mark snapshot-2"), counts: 2},
		"a silent backend": {prepare: func(b *groupBench) {
			b.backend.health = &cinder.Error{Backend: "gold", Kind: cinder.KindUnavailable, Message: "silent"}
		}, message: "backend gold: silent"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newGroupBench(t, true, ofCSI(test.content))
			b.counting.counted[Shelf{"gold", false}] = true
			if test.prepare != nil {
				test.prepare(b)
			}
			b.grouped.countGroup(b.groupContent())
			if test.parameters == nil {
				test.parameters = map[string]string{"consistency": "none", "csi.storage.k8s.io/volumegroupsnapshot/name": "db"}
			}
			volumes := b.volumes
			if n := len(b.groupContent().Spec.Source.VolumeHandles); n > 2 {
				volumes = slices.Repeat(volumes[:1], n)
			}
			got, err := (Sidecar{b.Controller}).TakeGroup(t.Context(), volumes, cmp.Or(test.name, "groupsnapshot-g1"), test.parameters)
			if fmt.Sprint(err) != cmp.Or(test.message, "<nil>") {
				t.Errorf("got  %v\nwant %s", err, test.message)
			}
			if kind, _ := objects.FailureKind(err); test.kind != "" && kind != test.kind {
				t.Errorf("the failure is %s, want %s", kind, test.kind)
			}
			b.wantRequests(test.requests...)
			if b.used() != test.counts {
				t.Errorf("%d snapshots count, want %d", b.used(), test.counts)
			}
			if recorded := objects.IsGroupRecorded(b.groupContent()); recorded != (len(test.requests) > 0 || strings.HasPrefix(name, "a record")) {
				t.Errorf("the content is recorded: %t", recorded)
			}
			if origin, _ := objects.GroupOriginOf(b.groupContent()); err == nil && test.content == nil && origin.Consistency != policy.NotConsistent {
				t.Errorf("recorded is the consistency %q", origin.Consistency)
			}
			if err == nil && (len(got) != 2 || got[0].ID != "snapshot-1" || got[1].ID != "snapshot-2" || got[1].Backend != "gold" || got[0].Group != "groupsnapshot-g1") {
				t.Errorf("taken %+v", got)
			}
		})
	}
}

// TestAttemptsInVainGetRare: each takes snapshots that it must remove again, or stops pods.
func TestAttemptsInVainGetRare(t *testing.T) {
	no := &cinder.Error{Backend: "gold", Kind: cinder.KindOverQuota, Message: "no"}
	for name, test := range map[string]struct {
		consistency string
		prepare     func(*ice)
	}{
		"refused":          {"none", func(i *ice) { i.fail["take snapshot-2 of volume-2"] = no }},
		"a silent node":    {"filesystem", func(i *ice) { i.frozen = errors.New("node n1 does not answer") }},
		"not marked":       {"filesystem", func(i *ice) { i.fail["mark snapshot-2"] = no }},
		"thawed too early": {"filesystem", func(i *ice) { i.thawed = errors.New("time is up") }},
	} {
		t.Run(name, func(t *testing.T) {
			b := newGroupBench(t, true, ofCSI(nil))
			b.counting.counted[Shelf{"gold", false}] = true
			i := &ice{groupShelf: b.shelf}
			b.Freezer = i
			test.prepare(i)
			take := func() error {
				_, err := Sidecar{b.Controller}.TakeGroup(t.Context(), b.volumes, "groupsnapshot-g1", map[string]string{"consistency": test.consistency})
				return err
			}
			first := take()
			requests := len(b.shelf.calls)
			if err := take(); first == nil || err == nil || err.Error() != first.Error() || len(b.shelf.calls) != requests {
				t.Errorf("at once, it fails with %v after %v, with %d requests after %d", err, first, len(b.shelf.calls), requests)
			}
			var lengths []time.Duration
			for range 9 {
				pause := b.grouped.pauses.of["g1"]
				lengths = append(lengths, pause.length)
				pause.until = time.Now()
				b.grouped.pauses.of["g1"] = pause
				_ = take()
			}
			if lengths[0] != firstPause || lengths[1] != 2*firstPause || lengths[8] != longestPause {
				t.Errorf("the pauses are %s", lengths)
			}
			clear(b.shelf.fail)
			i.frozen, i.thawed = nil, nil
			pause := b.grouped.pauses.of["g1"]
			pause.until = time.Now()
			b.grouped.pauses.of["g1"] = pause
			if err := take(); err != nil || len(b.grouped.pauses.of) != 0 {
				t.Errorf("later, it fails with %v, and has the pauses %v", err, b.grouped.pauses.of)
			}

			pause.until = time.Now().Add(time.Hour)
			b.grouped.pauses.of["g1"] = pause
			content := b.groupContent()
			beingDeleted(content)
			_, err := b.client.GroupsnapshotV1().VolumeGroupSnapshotContents().Update(t.Context(), content, metav1.UpdateOptions{})
			b.must(err)
			// The sidecar deletes nothing before it knows that nothing is taken.
			if err := take(); err == nil || !strings.Contains(err.Error(), "is being deleted") {
				t.Errorf("the error of a group that is being deleted is %v", err)
			}
		})
	}
}

// ice freezes filesystems beside a shelf.
type ice struct {
	*groupShelf
	frozen, thawed error
	// late is a volume of which an earlier request takes a snapshot only now.
	late string
}

func (i *ice) Freeze(_ context.Context, volumes []*corev1.PersistentVolume) (func(context.Context) error, error) {
	names := []string{"freeze"}
	for _, pv := range volumes {
		names = append(names, pv.Name)
	}
	_ = i.request("%s", strings.Join(names, " "))
	if i.late != "" {
		i.has(i.late)
	}
	return func(context.Context) error {
		_ = i.request("thaw")
		return i.thawed
	}, i.frozen
}

// refusedSoon is the error of a Freezer that has stopped nobody.
type refusedSoon struct{ error }

func (refusedSoon) MayHaveStoppedPods() bool { return false }

// TestAGroupThatStopsNobodyDoesNotPause: its turn to freeze may come at any time.
func TestAGroupThatStopsNobodyDoesNotPause(t *testing.T) {
	b := newGroupBench(t, true, ofCSI(nil))
	b.counting.counted[Shelf{"gold", false}] = true
	i := &ice{groupShelf: b.shelf, frozen: refusedSoon{errors.New("other volumes are just frozen")}}
	b.Freezer = i
	for range 2 {
		if _, err := (Sidecar{b.Controller}).TakeGroup(t.Context(), b.volumes, "groupsnapshot-g1", map[string]string{"consistency": "filesystem"}); err == nil {
			t.Error("it succeeds")
		}
	}
	b.wantRequests("freeze pvc-data pvc-log", "freeze pvc-data pvc-log")
}

// has puts the snapshot of one of the group's volumes on the shelf.
func (i *ice) has(volume string) {
	m := objects.GroupOrigin{Content: "groupsnapcontent-g1", Namespace: "team-a", Name: "db", UID: "g1"}.NewMember("gold/" + volume)
	m.Cluster, m.Tenant, m.StorageClass, m.VolumeID = "cluster-1", "a", "fast", volume
	i.taken[objects.SnapshotName(m.UID)] = cinder.Snapshot{ID: strings.Replace(volume, "volume", "snapshot", 1), VolumeID: volume, Status: cinder.StatusAvailable, Metadata: m.Stamp().Metadata(nil)}
}

// TestGroupOfFrozenFilesystems: what does not show the one moment between freeze and thaw is
// removed. What an earlier attempt has taken does so only if its first snapshot, the last to be
// marked, is.
func TestGroupOfFrozenFilesystems(t *testing.T) {
	take := []string{"take snapshot-1 of volume-1", "take snapshot-2 of volume-2"}
	abandon := []string{"abandon snapshot-1 unrecorded=true", "abandon snapshot-2 unrecorded=false"}
	find := []string{"find snapshot-1", "find snapshot-2"}
	freeze, thaw, mark := "freeze pvc-data pvc-log", "thaw", []string{"mark snapshot-2", "mark snapshot-1"}
	join := func(steps ...any) (all []string) {
		for _, step := range steps {
			switch step := step.(type) {
			case string:
				all = append(all, step)
			case []string:
				all = append(all, step...)
			}
		}
		return all
	}
	for name, test := range map[string]struct {
		begun, deleted bool
		prepare        func(*ice)
		calls          []string
		message        string
	}{
		"being deleted since one is gone": {begun: true, deleted: true, prepare: func(i *ice) {
			clear(i.taken)
			i.has("volume-1")
			i.marked["snapshot-1"] = true
		}, calls: []string{"abandon snapshot-1 unrecorded=false"}, message: "the snapshots of VolumeGroupSnapshot team-a/db are not taken: its VolumeGroupSnapshotContent is being deleted"},
		"taken":                       {calls: join(freeze, take, thaw, mark)},
		"cannot be frozen":            {prepare: func(i *ice) { i.frozen = errors.New("node n1 does not answer") }, calls: join(freeze), message: "FilesystemNotFrozen: node n1 does not answer; the snapshots are taken once all filesystems can be frozen"},
		"thawed before its time":      {prepare: func(i *ice) { i.thawed = errors.New("node n1 restarted") }, calls: join(freeze, take, thaw, abandon), message: "FilesystemNotFrozen: the snapshots do not show one moment, so they are taken again: node n1 restarted"},
		"a snapshot without answer":   {prepare: func(i *ice) { i.fail[take[1]] = errors.New("EOF") }, calls: join(freeze, take, thaw, abandon[0]), message: "EOF"},
		"left by an earlier leader":   {begun: true, calls: join(abandon, freeze, take, thaw, mark)},
		"marked by an earlier leader": {begun: true, prepare: func(i *ice) { i.marked["snapshot-1"], i.marked["snapshot-2"] = true, true }, calls: join(find, mark)},
		"not all marked by an earlier leader": {begun: true, prepare: func(i *ice) { i.marked["snapshot-2"] = true },
			calls: join(abandon, freeze, take, thaw, mark)},
		"one is gone since all were marked": {begun: true, prepare: func(i *ice) {
			clear(i.taken)
			i.has("volume-1")
			i.marked["snapshot-1"] = true
		}, calls: find[:1], message: "FilesystemNotFrozen: the snapshot of volume volume-2 is gone, and another would show another moment; delete the VolumeGroupSnapshot, and make a new one"},
		"one cannot be found now": {begun: true, prepare: func(i *ice) {
			i.marked["snapshot-1"], i.fail["find snapshot-2"] = true, &cinder.Error{Backend: "gold", Kind: cinder.KindForbidden, Message: "no"}
		}, calls: find, message: "backend gold: no"},
		"a request of an earlier attempt is late": {prepare: func(i *ice) { i.late = "volume-2" }, calls: join(freeze, find[1], take[0], thaw, abandon),
			message: "FilesystemNotFrozen: snapshot snapshot-2 was taken too early, so all are taken again"},
		"one is refused": {prepare: func(i *ice) {
			i.fail[take[1]] = &cinder.Error{Backend: "gold", Kind: cinder.KindOverQuota, Message: "no"}
		}, calls: join(freeze, take, thaw, abandon[0]), message: "backend gold: no"},
	} {
		t.Run(name, func(t *testing.T) {
			content := ofCSI(nil)
			if test.begun {
				begun(content)
				content.Annotations[objects.AnnotationConsistency] = "filesystem"
			}
			if test.deleted {
				beingDeleted(content)
			}
			b := newGroupBench(t, true, content)
			b.counting.counted[Shelf{"gold", false}] = true
			i := &ice{groupShelf: b.shelf}
			b.Freezer = i
			if test.begun {
				g, err := Sidecar{b.Controller}.groupAsked(t.Context(), b.volumes, "groupsnapshot-g1")
				b.must(err)
				for _, m := range g.origin.Members {
					i.has(m.VolumeID)
				}
			}
			if test.prepare != nil {
				test.prepare(i)
			}
			_, err := Sidecar{b.Controller}.TakeGroup(t.Context(), b.volumes, "groupsnapshot-g1", map[string]string{"consistency": "filesystem"})
			if text := authtest.ErrorText(err); text != test.message {
				t.Errorf("error %q, want %q", text, test.message)
			}
			// Any other would have the sidecar let a content go without asking again.
			if kind, _ := objects.FailureKind(err); err != nil && !test.deleted && kind != "Unavailable" {
				t.Errorf("the failure is %s", kind)
			}
			// Requests of one step are made at once.
			sorted := func(calls []string) []string {
				for i := 0; i+1 < len(calls); i++ {
					for j := i; j >= 0 && calls[j][:4] != "mark" && (calls[j][:4] == calls[j+1][:4] || calls[j][:4] == "take" && calls[j+1][:4] == "find") && calls[j] > calls[j+1]; j-- {
						calls[j], calls[j+1] = calls[j+1], calls[j]
					}
				}
				return calls
			}
			if got := sorted(b.shelf.calls); !slices.Equal(got, test.calls) {
				t.Errorf("requests %q, want %q", got, test.calls)
			}
		})
	}
}

// TestGroupsOfASidecarAreRemoved: all, or none if somebody keeps one of them by another
// content; but one whose own content says Retain stays alone.
func TestGroupsOfASidecarAreRemoved(t *testing.T) {
	removes := []string{"remove snapshot-1", "remove snapshot-2"}
	deletedGroup := func(c *groupv1.VolumeGroupSnapshotContent) { named(c); beingDeleted(c) }
	for name, test := range map[string]struct {
		content  func(*groupv1.VolumeGroupSnapshotContent)
		handle   string
		members  []runtime.Object
		prepare  func(*groupBench)
		message  string
		requests []string
		counts   int64
	}{
		"removed":      {content: deletedGroup, members: []runtime.Object{memberContent("gold/volume-1", "gold/snapshot-1")}, requests: removes},
		"still wanted": {content: named, message: "VolumeGroupSnapshotContent groupsnapcontent-g1 does not ask for the deletion of its snapshots: it is not being deleted", counts: 2},
		"to be retained": {content: func(c *groupv1.VolumeGroupSnapshotContent) {
			deletedGroup(c)
			c.Spec.DeletionPolicy = snapshotv1.VolumeSnapshotContentRetain
		}, message: "VolumeGroupSnapshotContent groupsnapcontent-g1 does not ask for the deletion of its snapshots: its deletionPolicy is Retain", counts: 2},
		"another content names one": {content: deletedGroup, members: []runtime.Object{&snapshotv1.VolumeSnapshotContent{
			ObjectMeta: metav1.ObjectMeta{Name: "by-hand"}, Spec: snapshotv1.VolumeSnapshotContentSpec{Driver: policy.CSIDriver, Source: snapshotv1.VolumeSnapshotContentSource{SnapshotHandle: new("gold/snapshot-2")}},
		}}, message: "VolumeSnapshotContents by-hand and snapcontent-" + string(objects.MemberUID("g1", "gold/volume-2")) + " both name snapshot snapshot-2; it is kept as long as one of them does", counts: 2},
		"one is retained": {content: deletedGroup, members: []runtime.Object{func() *snapshotv1.VolumeSnapshotContent {
			c := memberContent("gold/volume-2", "gold/snapshot-2")
			c.Spec.DeletionPolicy = snapshotv1.VolumeSnapshotContentRetain
			return c
		}()}, requests: removes[:1], counts: 1},
		"one is retained by now, and the cache is late": {content: deletedGroup, members: []runtime.Object{memberContent("gold/volume-2", "gold/snapshot-2")}, prepare: func(b *groupBench) {
			c := memberContent("gold/volume-2", "gold/snapshot-2")
			c.Spec.DeletionPolicy = snapshotv1.VolumeSnapshotContentRetain
			b.must(b.client.Tracker().Update(snapshotv1.SchemeGroupVersion.WithResource("volumesnapshotcontents"), c, ""))
		}, requests: removes[:1], counts: 1},
		"one is in use": {content: deletedGroup, prepare: func(b *groupBench) {
			b.shelf.fail[removes[1]] = &cinder.Error{Backend: "gold", Kind: backends.KindInUse, Message: "volumes depend on it"}
		}, message: "backend gold: volumes depend on it", requests: removes, counts: 1},
		"without a record": {content: func(c *groupv1.VolumeGroupSnapshotContent) {
			deletedGroup(c)
			delete(c.Annotations, objects.AnnotationMembers)
		}, message: "VolumeGroupSnapshotContent groupsnapcontent-g1: annotation standalone-cinder.openstack.org/members is missing, or the content is not for a new group; nothing is deleted until it is fixed"},
		"another group's record": {content: func(c *groupv1.VolumeGroupSnapshotContent) {
			deletedGroup(c)
			c.Annotations[objects.AnnotationMembers] = strings.ReplaceAll(c.Annotations[objects.AnnotationMembers], string(objects.MemberUID("g1", "gold/volume-1")), "other")
		}, message: "VolumeGroupSnapshotContent groupsnapcontent-g1: annotation standalone-cinder.openstack.org/members was not written for this group; nothing is deleted until it is fixed"},
		"another cluster's": {content: func(c *groupv1.VolumeGroupSnapshotContent) {
			deletedGroup(c)
			c.Annotations[objects.AnnotationMembers] = strings.ReplaceAll(c.Annotations[objects.AnnotationMembers], "cluster-1", "cluster-2")
		}, message: `VolumeGroupSnapshotContent groupsnapcontent-g1 is of cluster "cluster-2", but this is "cluster-1": the snapshots belong to the other cluster`},
		"made by hand for existing snapshots": {content: func(c *groupv1.VolumeGroupSnapshotContent) {
			c.Spec.Source = groupv1.VolumeGroupSnapshotContentSource{GroupSnapshotHandles: &groupv1.GroupSnapshotHandles{VolumeGroupSnapshotHandle: "groupsnapshot-g1", VolumeSnapshotHandles: []string{"gold/snapshot-1"}}}
			beingDeleted(c)
		}},
		"a handle that is none":        {content: deletedGroup, handle: "x", counts: 2},
		"a handle that no content has": {content: deletedGroup, handle: "groupsnapshot-g2", message: `no VolumeGroupSnapshotContent asks for the deletion of group "groupsnapshot-g2"`, counts: 2},
	} {
		t.Run(name, func(t *testing.T) {
			b := newGroupBench(t, true, append(test.members, ofCSI(test.content))...)
			b.grouped.countGroup(b.groupContent())
			if test.prepare != nil {
				test.prepare(b)
			}
			err := (Sidecar{b.Controller}).RemoveGroup(t.Context(), cmp.Or(test.handle, "groupsnapshot-g1"))
			if fmt.Sprint(err) != cmp.Or(test.message, "<nil>") {
				t.Errorf("got  %v\nwant %s", err, test.message)
			}
			b.wantRequests(test.requests...)
			if b.used() != test.counts {
				t.Errorf("%d snapshots count, want %d", b.used(), test.counts)
			}
			if err == nil {
				// The objects, which are still there, no longer count, and a repetition does nothing.
				b.grouped.countGroup(b.groupContent())
				b.must((Sidecar{b.Controller}).RemoveGroup(t.Context(), cmp.Or(test.handle, "groupsnapshot-g1")))
				b.wantRequests(test.requests...)
				if b.used() != test.counts {
					t.Errorf("then %d snapshots count, want %d", b.used(), test.counts)
				}
			}
		})
	}
}

// TestSnapshotsOfAGroupGetItsRecord: from then on, they are like any others, except that
// none is deleted alone.
func TestSnapshotsOfAGroupGetItsRecord(t *testing.T) {
	b := newGroupBench(t, true, ofCSI(named), memberContent("gold/volume-2", "gold/snapshot-2"))
	b.Controller.CSI = true
	sync := func() {
		t.Helper()
		b.seeGroups()
		b.must(b.syncContent(t.Context(), b.loop.Attempt(item{contentItem, "", memberContent("gold/volume-2", "").Name})))
	}
	sync()
	content, err := b.client.SnapshotV1().VolumeSnapshotContents().Get(t.Context(), memberContent("gold/volume-2", "").Name, metav1.GetOptions{})
	b.must(err)
	origin, err := objects.SnapshotOriginOf(content)
	if err != nil || origin.VolumeID != "volume-2" || origin.SnapshotID != "snapshot-2" || origin.UID != objects.MemberUID("g1", "gold/volume-2") || origin.Group != "g1" || origin.Tenant != "a" {
		t.Errorf("the content records %+v (%v)", origin, err)
	}
	sync() // nothing is left to do
	stamp := b.stampOf(origin)
	b.shelf.taken["x"] = cinder.Snapshot{ID: "snapshot-2", VolumeID: "volume-2", Status: cinder.StatusAvailable, Metadata: stamp.Metadata(map[string]string{stamps.KeyMode: stamps.ModeCSI, stamps.KeyRecorded: "true"})}
	now := metav1.Now()
	content.DeletionTimestamp = &now
	_, err = b.client.SnapshotV1().VolumeSnapshotContents().Update(t.Context(), content, metav1.UpdateOptions{})
	b.must(err)
	b.seeGroups()
	if err := (Sidecar{b.Controller}).Remove(t.Context(), "gold", "snapshot-2"); fmt.Sprint(err) != "snapshot snapshot-2 belongs to VolumeGroupSnapshot g1; it is deleted with that" {
		t.Errorf("its deletion ended with %v", err)
	}
	b.wantRequests()
}

// TestSnapshotsOfAGroupThatNothingLeadsToAreRemoved: as long as the group's content exists,
// it may still name them.
func TestSnapshotsOfAGroupThatNothingLeadsToAreRemoved(t *testing.T) {
	for name, test := range map[string]struct {
		content *groupv1.VolumeGroupSnapshotContent
		// late means that the cache does not show the content yet.
		late, recorded bool
		removed        bool
	}{
		"the content may come to name it":                  {content: ofCSI(begun)},
		"the content may come to name it, says the server": {content: ofCSI(begun), late: true},
		"the content names it":                             {content: ofCSI(named)},
		"the content names another": {content: ofCSI(func(c *groupv1.VolumeGroupSnapshotContent) {
			named(c)
			c.Status.VolumeSnapshotInfoList[0].SnapshotHandle = "gold/snapshot-9"
		}), removed: true},
		"there is no content": {removed: true},
		"it was ready once":   {recorded: true},
	} {
		t.Run(name, func(t *testing.T) {
			var existing []runtime.Object
			if test.content != nil {
				existing = append(existing, test.content)
			}
			b := newGroupBench(t, true, existing...)
			if test.late {
				b.must(b.contents.Replace(nil, ""))
			}
			m := objects.GroupOrigin{Namespace: "team-a", Name: "db", UID: "g1"}.NewMember("gold/volume-1")
			m.Tenant, m.Cluster, m.StorageClass = "a", "cluster-1", "fast"
			left := cinder.Snapshot{ID: "snapshot-1", VolumeID: "volume-1", Metadata: b.stampOf(m.SnapshotOrigin).Metadata(nil)}
			if test.recorded {
				left.Metadata[stamps.KeyRecorded] = "true"
			}
			b.backend.listed = []cinder.Snapshot{left}
			b.must(b.leftovers.sweepAll(t.Context(), "gold"))
			if test.removed {
				b.wantRequests("remove snapshot-1")
			} else {
				b.wantRequests()
			}
		})
	}
}

// TestGroupOfNativeVolumes: what the snapshot-controller does not make, the program makes,
// before it says that the group is ready.
func TestGroupOfNativeVolumes(t *testing.T) {
	for name, test := range map[string]struct {
		group   func(*groupv1.VolumeGroupSnapshot)
		prepare func(*groupBench)
		event   string
		taken   bool
	}{
		"taken":              {taken: true},
		"a class of another": {group: func(g *groupv1.VolumeGroupSnapshot) { g.Spec.VolumeGroupSnapshotClassName = new("other") }},
		"no class":           {group: func(g *groupv1.VolumeGroupSnapshot) { g.Spec.VolumeGroupSnapshotClassName = nil }},
		"no claims": {group: func(g *groupv1.VolumeGroupSnapshot) {
			g.Spec.Source.Selector.MatchLabels = map[string]string{"app": "web"}
		}, event: "Warning ClaimNotBound spec.source.selector selects no claim"},
		"a volume of another program": {prepare: func(b *groupBench) { b.volumes[1].Annotations[objects.AnnotationProvisionedBy] = "other" },
			event: "Warning ForeignVolume the volume of claim log was not made by test"},
		"no room for both": {prepare: func(b *groupBench) { b.Ledger.RecordSnapshot("other", "gold", ledgerOf("a")) }, event: "Warning QuotaExceeded tenant a would use 3 of 2 snapshots"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newGroupBench(t, false, db(test.group))
			b.counting.counted[Shelf{"gold", false}] = true
			if test.prepare != nil {
				test.prepare(b)
			}
			before := b.used()
			sync := func() error {
				b.seeGroups()
				return b.grouped.syncGroup(t.Context(), b.loop.Attempt(item{groupItem, "team-a", "db"}))
			}
			if err := sync(); err != nil && test.taken {
				t.Fatal(err)
			}
			if test.event == "" {
				b.wantEvents()
			} else {
				b.wantEvents(test.event)
			}
			if !test.taken {
				b.wantRequests()
				if b.used() != before || b.groupContent() != nil {
					t.Errorf("%d snapshots count; the content is %+v", b.used(), b.groupContent())
				}
				return
			}
			want := []string{"take snapshot-1 of volume-1", "take snapshot-2 of volume-2", "mark snapshot-1", "mark snapshot-2"}
			b.wantRequests(want...)
			content := b.groupContent()
			origin, err := objects.GroupOriginOf(content)
			if err != nil || objects.GroupHandleOf(content) != "groupsnapshot-g1" || len(origin.Members) != 2 || origin.Members[1].SnapshotID != "snapshot-2" || content.Status.CreationTime.Unix() != 1000 || b.used() != 2 {
				t.Errorf("the content records %+v (%v), %+v; %d count", origin, err, content.Status, b.used())
			}
			for _, m := range origin.Members {
				member, err := b.client.SnapshotV1().VolumeSnapshotContents().Get(t.Context(), m.Content, metav1.GetOptions{})
				b.must(err)
				if !objects.IsSnapshotRecorded(member) || objects.GroupOf(member) != "g1" || !slices.Contains(member.Finalizers, objects.SnapshotFinalizer) {
					t.Errorf("the member's content is %+v", member)
				}
				s, err := b.client.SnapshotV1().VolumeSnapshots("team-a").Get(t.Context(), m.Name, metav1.GetOptions{})
				b.must(err)
				if claim := *s.Spec.Source.PersistentVolumeClaimName; "pvc-"+claim != b.volumes[slices.IndexFunc(b.volumes, func(pv *corev1.PersistentVolume) bool { return pv.Annotations[objects.AnnotationVolume] == m.VolumeID })].Name {
					t.Errorf("the VolumeSnapshot of %s is of claim %s", m.VolumeID, claim)
				}
				// It is not taken once more.
				b.must(b.syncSnapshot(t.Context(), b.loop.Attempt(item{snapshotItem, "team-a", m.Name})))
			}
			b.must(sync())
			b.wantRequests(want...)
		})
	}
}

// TestAContentWithoutVolumesIsDamaged: its CRD allows one by hand.
func TestAContentWithoutVolumesIsDamaged(t *testing.T) {
	b := newGroupBench(t, false, db(nil), ofCSI(func(c *groupv1.VolumeGroupSnapshotContent) {
		c.Spec.Driver, c.Spec.Source.VolumeHandles = driver, []string{}
		c.Annotations = map[string]string{objects.AnnotationMembers: "{}"}
	}))
	b.seeGroups()
	err := b.grouped.syncGroup(t.Context(), b.loop.Attempt(item{groupItem, "team-a", "db"}))
	if want := "VolumeGroupSnapshotContent groupsnapcontent-g1: spec.source.volumeHandles is empty; nothing is deleted until it is fixed"; authtest.ErrorText(err) != want {
		t.Errorf("the error is %v", err)
	}
	b.wantRequests()
}

// TestContentOfANativeGroup: what a sidecar would do when it is deleted.
func TestContentOfANativeGroup(t *testing.T) {
	native := func(change ...func(*groupv1.VolumeGroupSnapshotContent)) *groupv1.VolumeGroupSnapshotContent {
		return ofCSI(func(c *groupv1.VolumeGroupSnapshotContent) {
			c.Spec.Driver, c.Spec.Source.VolumeHandles = driver, []string{"volume-1", "volume-2"}
			for _, one := range change {
				one(c)
			}
		})
	}
	retained := func(c *groupv1.VolumeGroupSnapshotContent) {
		c.Spec.DeletionPolicy = snapshotv1.VolumeSnapshotContentRetain
	}
	byHand := func(c *groupv1.VolumeGroupSnapshotContent) {
		c.Spec.Source = groupv1.VolumeGroupSnapshotContentSource{GroupSnapshotHandles: &groupv1.GroupSnapshotHandles{VolumeGroupSnapshotHandle: "by-hand", VolumeSnapshotHandles: []string{"snapshot-1"}}}
	}
	for name, test := range map[string]struct {
		content  *groupv1.VolumeGroupSnapshotContent
		existing []runtime.Object
		requests []string
		event    string
		// released means that the finalizer is gone; deleted, that the program has asked for
		// the deletion.
		released, deleted bool
		handle            string
		// marked means that one snapshot of the group was taken and marked; counts is what
		// counts then at the end.
		marked bool
		counts int64
	}{
		"deleted":                          {content: native(named, beingDeleted), requests: []string{"remove snapshot-1", "remove snapshot-2"}, released: true},
		"retained":                         {content: native(named, beingDeleted, retained), released: true},
		"deleted before anything was done": {content: native(beingDeleted), released: true},
		"retained before it named any":     {content: native(begun, beingDeleted, retained), marked: true, requests: []string{"keep snapshot-1"}, released: true, counts: 1},
		"deleted before it named any":      {content: native(begun, beingDeleted), marked: true, requests: []string{"abandon snapshot-1 unrecorded=false"}, released: true},
		"its group still exists": {content: native(named, beingDeleted, func(c *groupv1.VolumeGroupSnapshotContent) {
			delete(c.Annotations, objects.AnnotationGroupBeingDeleted)
		}),
			existing: []runtime.Object{db(nil)}, event: "Warning SnapshotInUse VolumeGroupSnapshot team-a/db still exists; delete it, too"},
		"its group went before it was known":     {content: native(begun), deleted: true},
		"its group is there":                     {content: native(begun), existing: []runtime.Object{db(nil)}},
		"its group went, and it names snapshots": {content: native(named), event: "Warning SnapshotKept its VolumeGroupSnapshot team-a/db (UID g1) is gone"},
		"for existing snapshots that nobody has": {content: native(byHand), event: `Warning GroupMemberMissing namespace team-a has no snapshot "snapshot-1", which VolumeGroupSnapshotContent groupsnapcontent-g1 names`},
		"for an existing snapshot":               {content: native(byHand), existing: []runtime.Object{recorded(nil)}, handle: "by-hand"},
		"for an existing snapshot, deleted":      {content: native(byHand, beingDeleted), existing: []runtime.Object{recorded(nil)}, released: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newGroupBench(t, false, append(test.existing, test.content)...)
			if test.marked {
				m := objects.GroupOrigin{Namespace: "team-a", Name: "db", UID: "g1"}.NewMember("volume-1")
				m.Tenant, m.Cluster, m.StorageClass = "a", "cluster-1", "fast"
				b.shelf.taken["x"] = cinder.Snapshot{ID: "snapshot-1", VolumeID: "volume-1", Metadata: b.stampOf(m.SnapshotOrigin).Metadata(nil)}
				b.shelf.taken["x"].Metadata[stamps.KeyRecorded] = "true"
				b.grouped.countGroup(test.content)
			}
			err := b.grouped.syncGroupContent(t.Context(), b.loop.Attempt(item{groupContentItem, "", "groupsnapcontent-g1"}))
			if err != nil && test.event == "" {
				t.Error(err)
			}
			b.wantRequests(test.requests...)
			if test.marked && b.used() != test.counts {
				t.Errorf("%d snapshots count, want %d", b.used(), test.counts)
			}
			if events := b.events(); test.event == "" && len(events) > 0 || test.event != "" && (len(events) == 0 || !strings.HasPrefix(events[0], test.event)) {
				t.Errorf("events %q, want %q", events, test.event)
			}
			content := b.groupContent()
			if test.deleted != (content == nil) {
				t.Fatalf("the content is %+v", content)
			}
			if content != nil && (len(content.Finalizers) == 0) != (test.released || len(test.content.Finalizers) == 0) {
				t.Errorf("the finalizers are %q", content.Finalizers)
			}
			if content != nil && test.handle != "" && objects.GroupHandleOf(content) != test.handle {
				t.Errorf("the status is %+v", content.Status)
			}
		})
	}
}

// TestMembersThatWereNeverBoundGo: the snapshot-controller deletes only the contents that it has
// bound. That of one cannot be deleted at first.
func TestMembersThatWereNeverBoundGo(t *testing.T) {
	group := ofCSI(func(c *groupv1.VolumeGroupSnapshotContent) {
		c.Spec.Driver, c.Spec.Source.VolumeHandles = driver, []string{"volume-1", "volume-2"}
		begun(c)
		beingDeleted(c)
	})
	origin, err := objects.GroupOriginOf(group)
	if err != nil {
		t.Fatal(err)
	}
	objectsThere := []runtime.Object{group}
	for _, m := range origin.Members {
		objectsThere = append(objectsThere, m.NewMemberContent(group, nil))
	}
	b := newGroupBench(t, false, objectsThere...)
	failures := 1
	b.client.PrependReactor("delete", "volumesnapshotcontents", func(clienttesting.Action) (bool, runtime.Object, error) {
		failures--
		return failures >= 0, nil, apierrors.NewTimeoutError("etcdserver: request timed out", 0)
	})
	for range 3 {
		_ = b.grouped.syncGroupContent(t.Context(), b.loop.Attempt(item{groupContentItem, "", "groupsnapcontent-g1"}))
		b.seeGroups()
	}
	left, err := b.client.SnapshotV1().VolumeSnapshotContents().List(t.Context(), metav1.ListOptions{})
	b.must(err)
	if content := b.groupContent(); len(left.Items) > 0 || content != nil && len(content.Finalizers) > 0 {
		t.Errorf("there are %+v of %+v", left.Items, content)
	}
}

// TestMembersOfAGroupThatIsGoneGo: an attempt that waited while its group was deleted writes
// them all the same.
func TestMembersOfAGroupThatIsGoneGo(t *testing.T) {
	group := ofCSI(func(c *groupv1.VolumeGroupSnapshotContent) {
		c.Spec.Driver, c.Spec.Source.VolumeHandles = driver, []string{"volume-1", "volume-2"}
		begun(c)
	})
	origin, err := objects.GroupOriginOf(group)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		groupExists bool
		change      func(*snapshotv1.VolumeSnapshotContent)
		stays       int
	}{
		"the group is gone":                      {stays: 0},
		"the group exists":                       {groupExists: true, stays: 1},
		"the snapshot-controller has bound them": {change: func(c *snapshotv1.VolumeSnapshotContent) { c.Spec.VolumeSnapshotRef.UID = "s1" }, stays: 1},
		"they are to be retained": {change: func(c *snapshotv1.VolumeSnapshotContent) {
			c.Spec.DeletionPolicy = snapshotv1.VolumeSnapshotContentRetain
		}, stays: 1},
		"somebody made them for existing snapshots": {change: func(c *snapshotv1.VolumeSnapshotContent) {
			c.Spec.Source = snapshotv1.VolumeSnapshotContentSource{SnapshotHandle: new("snapshot-1")}
		}, stays: 1},
		"they are the CSI driver's": {change: func(c *snapshotv1.VolumeSnapshotContent) { c.Spec.Driver = policy.CSIDriver }, stays: 1},
	} {
		t.Run(name, func(t *testing.T) {
			member := origin.Members[0].NewMemberContent(group, nil)
			if c.change != nil {
				c.change(member)
			}
			there := []runtime.Object{member}
			if c.groupExists {
				there = append(there, group)
			}
			b := newGroupBench(t, false, there...)
			b.must(b.syncContent(t.Context(), b.loop.Attempt(item{contentItem, "", member.Name})))
			left, err := b.client.SnapshotV1().VolumeSnapshotContents().List(t.Context(), metav1.ListOptions{})
			b.must(err)
			if len(left.Items) != c.stays {
				t.Errorf("there are %d contents, want %d", len(left.Items), c.stays)
			}
			b.wantRequests()
		})
	}
}

// TestExistingSnapshotsOfAGroup: only their tenant may have them, and nothing tells others
// whether they exist.
func TestExistingSnapshotsOfAGroup(t *testing.T) {
	of := func(change func(m *objects.Member, s *cinder.Snapshot)) func(*groupBench) {
		return func(b *groupBench) {
			m := objects.GroupOrigin{Namespace: "team-a", Name: "db", UID: "g0"}.NewMember("gold/volume-1")
			m.Tenant, m.Cluster, m.StorageClass = "a", "cluster-1", "fast"
			s := cinder.Snapshot{ID: "snapshot-1", VolumeID: "volume-1", Status: cinder.StatusAvailable}
			if change != nil {
				change(&m, &s)
			}
			mark := map[string]string{stamps.KeyMode: stamps.ModeCSI}
			s.Metadata = b.stampOf(m.SnapshotOrigin).Metadata(mark)
			s.Metadata[stamps.KeyRecorded] = "true"
			b.shelf.taken["x"] = s
		}
	}
	for name, test := range map[string]struct {
		prepare func(*groupBench)
		handle  string
		ready   bool
	}{
		"kept by the tenant":           {prepare: of(nil), ready: true},
		"kept by another tenant":       {prepare: of(func(m *objects.Member, _ *cinder.Snapshot) { m.Tenant = "b" })},
		"of another cluster":           {prepare: of(func(m *objects.Member, _ *cinder.Snapshot) { m.Cluster = "cluster-2" })},
		"not ready":                    {prepare: of(func(_ *objects.Member, s *cinder.Snapshot) { s.Status = cinder.StatusCreating })},
		"gone":                         {prepare: func(*groupBench) {}},
		"a handle of another driver":   {prepare: of(nil), handle: "snapshot-1"},
		"a backend that is not theirs": {prepare: of(nil), handle: "silver/snapshot-1"},
	} {
		t.Run(name, func(t *testing.T) {
			handle := cmp.Or(test.handle, "gold/snapshot-1")
			b := newGroupBench(t, true, ofCSI(func(c *groupv1.VolumeGroupSnapshotContent) {
				c.Spec.Source = groupv1.VolumeGroupSnapshotContentSource{GroupSnapshotHandles: &groupv1.GroupSnapshotHandles{VolumeGroupSnapshotHandle: "by-hand", VolumeSnapshotHandles: []string{handle}}}
			}))
			test.prepare(b)
			got, err := (Sidecar{b.Controller}).GroupStatus(t.Context(), "by-hand")
			if test.ready {
				if err != nil || len(got) != 1 || got[0].ID != "snapshot-1" || got[0].Backend != "gold" {
					t.Errorf("got %+v, %v", got, err)
				}
				return
			}
			if want := fmt.Sprintf("namespace team-a has no snapshot %q, which VolumeGroupSnapshotContent groupsnapcontent-g1 names: its tenant has not kept one with this handle, and no VolumeSnapshot has it", handle); fmt.Sprint(err) != want {
				t.Errorf("got  %v\nwant %s", err, want)
			}
		})
	}
}

// TestSnapshotsDoNotWaitForTheRightToReadGroups: a new version runs with the roles of an
// earlier one, and gets its own later.
func TestSnapshotsDoNotWaitForTheRightToReadGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		client := fake.NewClientset()
		served := &metav1.APIResourceList{GroupVersion: groupv1.SchemeGroupVersion.String()}
		for _, name := range ofGroups().names {
			served.APIResources = append(served.APIResources, metav1.APIResource{Name: name})
		}
		client.Resources = []*metav1.APIResourceList{served}
		b.Controller.Client = client
		var permitted atomic.Bool
		b.client.PrependReactor("list", "volumegroupsnapshotclasses", func(clienttesting.Action) (bool, runtime.Object, error) {
			return !permitted.Load(), nil, apierrors.NewForbidden(groupv1.Resource("volumegroupsnapshotclasses"), "", errors.New("no"))
		})
		ctx, end := context.WithCancel(t.Context())
		var group sync.WaitGroup
		if !b.grouped.startGroups(ctx, &group) || b.groupsShown() != nil {
			t.Error("groups are served although they cannot be read")
		}
		permitted.Store(true)
		time.Sleep(lookForRights + time.Second)
		if b.groupsShown() == nil {
			t.Error("groups are not served although they can be read now")
		}
		end()
		group.Wait()
		b.loop.Queue.ShutDown()
	})
}

// TestCachedGroupsAreBounded: of what tenants write, nothing of unbounded size is kept.
func TestCachedGroupsAreBounded(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	group := db(func(g *groupv1.VolumeGroupSnapshot) {
		g.Labels, g.Annotations = map[string]string{"a": long}, map[string]string{"b": long}
		g.Spec.Source.Selector.MatchLabels["c"] = long
		g.Spec.VolumeGroupSnapshotClassName = &long
		g.Status = &groupv1.VolumeGroupSnapshotStatus{BoundVolumeGroupSnapshotContentName: &long}
	})
	kept, err := trimmedGroup(group)
	if err != nil {
		t.Fatal(err)
	}
	if size := len(fmt.Sprintf("%+v %s", kept, *kept.(*groupv1.VolumeGroupSnapshot).Spec.VolumeGroupSnapshotClassName)); size > 4096 {
		t.Errorf("%d bytes are kept", size)
	}
	if kept.(*groupv1.VolumeGroupSnapshot).Spec.Source.Selector == nil {
		t.Error("it is not known any more that the group has a selector")
	}
}
