package snapshot

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	grouplisters "github.com/kubernetes-csi/external-snapshotter/client/v8/listers/volumegroupsnapshot/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// array takes group snapshots beside a shelf.
type array struct {
	*groupShelf
	// lost are the UIDs of groups that a listing shows.
	lost []string
}

func (a *array) TakeGroup(ctx context.Context, spec backends.GroupSpec) (all []cinder.Snapshot, err error) {
	if err := spec.Permit(ctx); err != nil {
		return nil, err
	}
	var volumes []string
	for i, m := range spec.Members {
		volumes = append(volumes, m.Source.VolumeID)
		all = append(all, cinder.Snapshot{ID: fmt.Sprintf("snapshot-%d", i+1), VolumeID: m.Source.VolumeID, SizeGiB: 2, Status: cinder.StatusAvailable, Metadata: m.Stamp.Metadata(nil)})
	}
	return all, a.request("take %s of %s as %s by %s, csi=%t", spec.Name, strings.Join(volumes, " "), spec.Type, spec.Stamp.Description(), spec.Members[0].CSI)
}

// RemoveGroup removes two snapshots, of which the second was recorded.
func (a *array) RemoveGroup(ctx context.Context, target backends.GroupTarget) (kept []string, err error) {
	if err := target.Permit(ctx); err != nil {
		return nil, err
	}
	for i := range 2 {
		m := objects.GroupOrigin{Content: "groupsnapcontent-g1", Namespace: "team-a", Name: "db", UID: "g1"}.NewMember([]string{"volume-1", "volume-2"}[i])
		m.Cluster = "cluster-1"
		s := cinder.Snapshot{ID: fmt.Sprintf("snapshot-%d", i+1), Metadata: m.Stamp().Metadata(nil)}
		if target.MayGo == nil || !target.MayGo(s) {
			kept = append(kept, s.ID)
		}
	}
	return kept, a.request("remove group %s but %q", target.Stamp.UID, kept)
}

func (a *array) AbandonGroups(ctx context.Context, clusterUID string, isLost func(ctx context.Context, uid string) (bool, error)) (removed []string, err error) {
	for _, uid := range a.lost {
		if is, err := isLost(ctx, uid); is || err != nil {
			removed = append(removed, uid)
		}
	}
	return removed, a.request("abandon groups of %s: %q", clusterUID, removed)
}

// byArray gives a content the record of a group that the array takes.
func byArray(c *groupv1.VolumeGroupSnapshotContent) {
	c.Annotations[objects.AnnotationConsistency], c.Annotations[objects.AnnotationGroupType] = "array", "cg"
}

const takenTogether = "take groupsnapshot-g1 of volume-1 volume-2 as cg by made by standalone-cinder for VolumeGroupSnapshot g1 of cluster cluster-1, UID uid-1, csi=true"

// TestGroupOfTheArray: one request for all, with the group type that the first attempt has
// recorded. A refusal is not repeated at once.
func TestGroupOfTheArray(t *testing.T) {
	parameters := map[string]string{"consistency": "array", "groupType": "cg"}
	for name, test := range map[string]struct {
		content    func(*groupv1.VolumeGroupSnapshotContent)
		parameters map[string]string
		prepare    func(*groupBench)
		requests   []string
		message    string
		pauses     bool
		counts     int64
	}{
		"taken": {parameters: parameters, requests: []string{takenTogether, "mark snapshot-1", "mark snapshot-2"}, counts: 2},
		"begun before, and the class has changed": {content: func(c *groupv1.VolumeGroupSnapshotContent) { begun(c); byArray(c) }, parameters: map[string]string{"consistency": "none"},
			requests: []string{takenTogether, "mark snapshot-1", "mark snapshot-2"}, counts: 2},
		"volumes of several backends": {content: func(c *groupv1.VolumeGroupSnapshotContent) {
			c.Spec.Source.VolumeHandles = []string{"gold/volume-1", "silver/volume-2"}
		}, parameters: parameters, prepare: func(b *groupBench) {
			b.Backends = fakeBackends{"gold": b.shelf, "silver": b.shelf}
			b.counting.counted[Shelf{"silver", false}] = true
			p, err := policy.Parse([]byte(strings.ReplaceAll(strings.ReplaceAll(groupPolicy, "backends: [gold]", "backends: [gold, silver]"), "tenants:", "  - {name: silver, auth: {cloud: silver}}\ntenants:")), "policy.yaml", nil)
			b.must(err)
			b.policy = p
			b.volumes[1].Annotations[objects.AnnotationBackend], b.volumes[1].Spec.CSI.VolumeHandle = "silver", "silver/volume-2"
		}, message: "ParameterNotAllowed: the VolumeGroupSnapshotClass has consistency array, but the volumes are on backends gold and silver; select claims of one backend, or use a class with the consistency filesystem or none"},
		"refused": {parameters: parameters, prepare: func(b *groupBench) {
			b.shelf.fail[takenTogether] = &cinder.Error{Backend: "gold", Kind: backends.KindVolumeFailed, Message: "no"}
		}, requests: []string{takenTogether}, message: "backend gold: no", pauses: true, counts: 2},
		"an answer is lost": {parameters: parameters, prepare: func(b *groupBench) {
			b.shelf.fail[takenTogether] = &cinder.Error{Backend: "gold", Kind: cinder.KindUnavailable, Message: "no", EffectUnknown: true}
		}, requests: []string{takenTogether}, message: "backend gold: no", counts: 2},
	} {
		t.Run(name, func(t *testing.T) {
			b := newGroupBench(t, true, ofCSI(test.content))
			b.Backends = fakeBackends{"gold": &array{groupShelf: b.shelf}}
			b.counting.counted[Shelf{"gold", false}] = true
			if test.prepare != nil {
				test.prepare(b)
			}
			b.grouped.countGroup(b.groupContent())
			_, err := (Sidecar{b.Controller}).TakeGroup(t.Context(), b.volumes, "groupsnapshot-g1", test.parameters)
			if got := fmt.Sprint(err); got != test.message && (err != nil || test.message != "") {
				t.Errorf("got  %v\nwant %s", err, test.message)
			}
			b.wantRequests(test.requests...)
			if b.used() != test.counts {
				t.Errorf("%d snapshots count, want %d", b.used(), test.counts)
			}
			if why := b.grouped.pauses.why("g1"); (why != nil) != test.pauses {
				t.Errorf("it pauses because of %v", why)
			}
			if origin, _ := objects.GroupOriginOf(b.groupContent()); test.counts > 0 && (origin.Consistency != policy.ConsistentArray || origin.GroupType != "cg") {
				t.Errorf("recorded is %+v", origin)
			}
		})
	}
}

// TestGroupOfTheArrayIsRemoved as a whole, or those that may go are given up.
func TestGroupOfTheArrayIsRemoved(t *testing.T) {
	retained := func(c *groupv1.VolumeGroupSnapshotContent) {
		c.Spec.DeletionPolicy = snapshotv1.VolumeSnapshotContentRetain
	}
	kept := memberContent("volume-2", "snapshot-2")
	kept.Spec.DeletionPolicy = snapshotv1.VolumeSnapshotContentRetain
	for name, test := range map[string]struct {
		change  []func(*groupv1.VolumeGroupSnapshotContent)
		member  *snapshotv1.VolumeSnapshotContent
		request string
		counts  int64
	}{
		"deleted":                     {change: []func(*groupv1.VolumeGroupSnapshotContent){named, byArray}, request: "remove group g1 but []"},
		"deleted before it was named": {change: []func(*groupv1.VolumeGroupSnapshotContent){begun, byArray}, request: "remove group g1 but []"},
		"one is kept":                 {change: []func(*groupv1.VolumeGroupSnapshotContent){named, byArray}, member: kept, request: `remove group g1 but ["snapshot-2"]`, counts: 2},
		"kept before it was named":    {change: []func(*groupv1.VolumeGroupSnapshotContent){begun, byArray, retained}, request: `remove group g1 but ["snapshot-1" "snapshot-2"]`, counts: 2},
	} {
		t.Run(name, func(t *testing.T) {
			content := ofCSI(func(c *groupv1.VolumeGroupSnapshotContent) {
				c.Spec.Driver, c.Spec.Source.VolumeHandles = driver, []string{"volume-1", "volume-2"}
				for _, change := range append(test.change, beingDeleted) {
					change(c)
				}
			})
			existing := []runtime.Object{content}
			if test.member != nil {
				test.member.Spec.Driver = driver
				existing = append(existing, test.member)
			}
			b := newGroupBench(t, false, existing...)
			b.Backends = fakeBackends{"gold": &array{groupShelf: b.shelf}}
			b.grouped.countGroup(content)
			b.must(b.grouped.syncGroupContent(t.Context(), b.loop.Attempt(item{groupContentItem, "", "groupsnapcontent-g1"})))
			b.wantRequests(test.request)
			if b.used() != test.counts {
				t.Errorf("%d snapshots count, want %d", b.used(), test.counts)
			}
			if left := b.groupContent(); len(left.Finalizers) > 0 {
				t.Errorf("the finalizers are %q", left.Finalizers)
			}
		})
	}
}

// TestLostGroupsAreSwept, where a class may have asked for some.
func TestLostGroupsAreSwept(t *testing.T) {
	for name, test := range map[string]struct {
		class, policy string
		requests      []string
	}{
		"swept":              {"array", groupPolicy, []string{`abandon groups of uid-1: ["g0"]`}},
		"no class for any":   {"none", groupPolicy, nil},
		"no rule grants any": {"array", testPolicy, nil},
	} {
		t.Run(name, func(t *testing.T) {
			b := newGroupBench(t, true, ofCSI(nil))
			b.Backends = fakeBackends{"gold": &array{b.shelf, []string{"g0", "g1"}}}
			p, err := policy.Parse([]byte(test.policy), "policy.yaml", nil)
			b.must(err)
			b.policy = p
			classes := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
			b.must(classes.Add(&groupv1.VolumeGroupSnapshotClass{ObjectMeta: metav1.ObjectMeta{Name: "together"}, Driver: policy.CSIDriver, Parameters: map[string]string{"consistency": test.class}}))
			b.Controller.groups.classes = grouplisters.NewVolumeGroupSnapshotClassLister(classes)
			b.must(b.leftovers.sweepGroups(t.Context(), "gold"))
			if !slices.Equal(b.shelf.calls, test.requests) {
				t.Errorf("requests %q, want %q", b.shelf.calls, test.requests)
			}
		})
	}
}
