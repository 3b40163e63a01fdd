package backends_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/auth"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
)

// groupBench is a simulated Cinder with volumes of claims, and one leader after another.
type groupBench struct {
	*testing.T
	sim     *cindersim.Simulator
	volumes []string
	*backends.Lifecycle
}

func newGroupBench(t *testing.T, options cindersim.Options, volumes int) *groupBench {
	t.Helper()
	options.Zones = []string{"nova", "other"}
	sim, err := cindersim.New(options)
	if err == nil {
		err = sim.Start()
	}
	b := &groupBench{T: t, sim: sim}
	b.must(err)
	t.Cleanup(sim.Close)
	b.newTerm()
	for i := range volumes {
		b.add(i, "iscsi", "nova")
	}
	return b
}

// newTerm forgets everything, like another leader.
func (b *groupBench) newTerm() {
	b.Helper()
	metrics := backends.NewMetrics(prometheus.NewRegistry())
	config := backends.Config{Name: "gold", Auth: auth.Config{Source: auth.Source{Noauth: &auth.Noauth{Endpoint: b.sim.NoauthEndpoint(), User: "admin", Project: cindersim.DefaultNoauthProject}}}}
	b.Lifecycle = backends.NewLifecycle(backends.LifecycleOptions{
		Config: config, Pool: backends.NewPool(backends.PoolOptions{Metrics: metrics}), Cluster: "cluster-1",
		Fence: func() error { return nil }, Term: context.Background(), Logger: slog.New(slog.DiscardHandler), Metrics: metrics, Poll: time.Millisecond,
	})
	_, err := b.Snapshots().Snapshots(b.Context()) // the place is known after a request
	b.must(err)
}

func (b *groupBench) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func claimOf(i int) stamps.Volume {
	uid := fmt.Sprintf("claim-%d", i)
	return stamps.Volume{Cluster: "cluster-1", ClusterUID: "uid-1", Namespace: "team-a", Claim: uid, ClaimUID: uid, PV: "pvc-" + uid, Tenant: "a", StorageClass: "fast"}
}

func (b *groupBench) add(i int, volumeType, zone string) {
	b.Helper()
	id, err := b.sim.AddVolume(cindersim.Volume{Name: claimOf(i).PV, Type: volumeType, Zone: zone, Metadata: claimOf(i).Metadata(nil)})
	b.must(err)
	b.volumes = append(b.volumes, id)
}

func (b *groupBench) source(i int) backends.Target {
	return backends.Target{VolumeID: b.volumes[i], Stamp: claimOf(i), Place: b.Snapshots().Place()}
}

func groupStamp() stamps.Group {
	return stamps.Group{Cluster: "cluster-1", ClusterUID: "uid-1", UID: "g1"}
}

func memberStamp(i int) stamps.Snapshot {
	uid := fmt.Sprintf("member-%d", i)
	return stamps.Snapshot{Cluster: "cluster-1", ClusterUID: "uid-1", Namespace: "team-a", Snapshot: "snapshot-" + uid, SnapshotUID: uid, Content: "snapcontent-" + uid, Tenant: "a", Group: "g1"}
}

// spec returns the group snapshot of all volumes.
func (b *groupBench) spec() backends.GroupSpec {
	spec := backends.GroupSpec{Name: "groupsnapshot-g1", Stamp: groupStamp(), Type: "consistent", Permit: func(context.Context) error { return nil }}
	for i := range b.volumes {
		spec.Members = append(spec.Members, backends.SnapshotSpec{Stamp: memberStamp(i), Source: b.source(i), Place: b.Snapshots().Place(), CSI: true})
	}
	return spec
}

// changes returns the requests since then that change anything, as often as they came.
func (b *groupBench) changes(since int) (all []string) {
	for _, e := range b.sim.Journal()[since:] {
		if e.Method != "GET" {
			all = append(all, e.Operation)
		}
	}
	return all
}

// isTaken checks what Cinder has of the group.
func (b *groupBench) isTaken(taken []cinder.Snapshot) {
	b.Helper()
	groups, stored := b.sim.Groups(), b.sim.Snapshots()
	if len(groups) != 1 || len(groups[0].Snapshots) != 1 || len(groups[0].Volumes) != 0 || groups[0].Description != groupStamp().Description() {
		b.Errorf("Cinder has the groups %+v", groups)
	}
	if len(taken) != len(b.volumes) || len(stored) != len(b.volumes) {
		b.Fatalf("taken are %+v, Cinder has %+v", taken, stored)
	}
	for i, s := range taken {
		at := slices.IndexFunc(stored, func(one cindersim.Snapshot) bool { return one.ID == s.ID })
		if at < 0 || s.VolumeID != b.volumes[i] || !memberStamp(i).Owns(cinder.Snapshot{Metadata: stored[at].Metadata}) || stored[at].Metadata[stamps.KeyGroupSnapshot] != groups[0].Snapshots[0] || stored[at].Metadata[stamps.KeyMode] != stamps.ModeCSI {
			b.Errorf("the snapshot of volume %d is %+v, at Cinder %+v", i, s, stored)
		}
	}
}

func (b *groupBench) nothingLeft() {
	b.Helper()
	if groups, stored := b.sim.Groups(), b.sim.Snapshots(); len(groups) > 0 || len(stored) > 0 {
		b.Errorf("left are groups %+v and snapshots %+v", groups, stored)
	}
}

// TestGroupSnapshotOfVolumes: all snapshots are of one group snapshot, and the volumes are in
// the group only for its time. Whoever asks again gets the same.
func TestGroupSnapshotOfVolumes(t *testing.T) {
	b := newGroupBench(t, cindersim.Options{SnapshotDelay: time.Millisecond}, 8)
	since := len(b.sim.Journal())
	taken, err := b.Snapshots().TakeGroup(t.Context(), b.spec())
	b.must(err)
	b.isTaken(taken)
	want := []string{"group.create", "group.update", "group.update", "group_snapshot.create", "group.update", "group.update"} // six volumes each
	want = append(want, slices.Repeat([]string{"snapshot.metadata.update"}, 8)...)
	if got := b.changes(since); !slices.Equal(got, want) {
		t.Errorf("the changes are %q, want %q", got, want)
	}
	b.newTerm()
	since = len(b.sim.Journal())
	again, err := b.Snapshots().TakeGroup(t.Context(), b.spec())
	b.must(err)
	b.isTaken(again)
	if got := b.changes(since); len(got) > 0 || again[0].ID != taken[0].ID {
		t.Errorf("asked again, the changes are %q", got)
	}
}

// TestGroupSnapshotIsContinued: wherever an attempt ends, the next one of another leader ends
// with one group snapshot, and no volume in a group; or nothing is left once it is removed.
func TestGroupSnapshotIsContinued(t *testing.T) {
	for _, operation := range []string{"group.create", "group.update", "group_snapshot.create", "snapshot.metadata.update"} {
		for _, nth := range []int{1, 2} {
			for _, kind := range []cindersim.Kind{cindersim.DropBefore, cindersim.DropAfter, cindersim.RespondBefore} {
				for _, removed := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s %d %s, removed %t", operation, nth, kind, removed), func(t *testing.T) {
						t.Parallel()
						b := newGroupBench(t, cindersim.Options{SnapshotDelay: 2 * time.Millisecond}, 2)
						b.sim.Inject(cindersim.Fault{Kind: kind, Operation: operation, Nth: nth, Code: 503})
						_, err := b.Snapshots().TakeGroup(t.Context(), b.spec())
						if (err == nil) != (nth == 2 && strings.HasSuffix(operation, ".create")) {
							t.Fatalf("the first attempt: %v", err)
						}
						b.newTerm()
						if removed {
							kept, err := b.Snapshots().RemoveGroup(t.Context(), backends.GroupTarget{Stamp: groupStamp(), Place: b.Snapshots().Place()})
							if b.must(err); len(kept) > 0 {
								t.Errorf("kept are %q", kept)
							}
							b.nothingLeft()
							return
						}
						taken, err := b.Snapshots().TakeGroup(t.Context(), b.spec())
						b.must(err)
						b.isTaken(taken)
					})
				}
			}
		}
	}
}

// TestGroupSnapshotIsRefused: the error says why, and nothing is left.
func TestGroupSnapshotIsRefused(t *testing.T) {
	fails := func(operation string) func(*groupBench, *backends.GroupSpec) {
		return func(b *groupBench, _ *backends.GroupSpec) {
			b.sim.Inject(cindersim.Fault{Kind: cindersim.FailBackend, Operation: operation, Nth: 1})
		}
	}
	for name, test := range map[string]struct {
		options cindersim.Options
		prepare func(*groupBench, *backends.GroupSpec)
		kind    cinder.Kind
		message string
		// requested means that Cinder was asked for a group.
		requested bool
	}{
		"no storage": {options: cindersim.Options{GroupTypes: []cindersim.GroupType{{Name: "consistent", Specs: map[string]string{"consistent_group_snapshot_enabled": "<is> True"}, NoStorage: true}}},
			kind: backends.KindVolumeFailed, requested: true, message: `Cinder found no storage for a group of type "consistent" for volumes of type iscsi; use another group type, or a VolumeGroupSnapshotClass with the consistency filesystem or none; see the logs of cinder-scheduler and cinder-volume`},
		"a group type that is not consistent": {prepare: func(_ *groupBench, spec *backends.GroupSpec) { spec.Type = "plain" },
			kind: cinder.KindInvalid, message: `group type "plain" has no spec consistent_group_snapshot_enabled="<is> True", so its snapshots would not show one moment; name another in groupType of the VolumeGroupSnapshotClass`},
		"no such group type": {prepare: func(_ *groupBench, spec *backends.GroupSpec) { spec.Type = "none" }, requested: true,
			kind: cinder.KindNotFound, message: `cannot make a group of type "none" for volumes of type iscsi: backend gold: group.create: Group type with name none could not be found`},
		"no room for a group": {options: cindersim.Options{Quota: map[string]int{"groups": 0}}, requested: true,
			kind: cinder.KindOverQuota, message: "GroupLimitExceeded: Maximum number of groups allowed (0) exceeded"},
		"no room for the snapshots": {options: cindersim.Options{Quota: map[string]int{"snapshots": 1}}, requested: true,
			kind: cinder.KindOverQuota, message: "SnapshotLimitExceeded: Maximum number of snapshots allowed (1) exceeded"},
		"an old Cinder": {options: cindersim.Options{MaxMicroversion: "3.27"}, kind: cinder.KindInvalid, message: "Cinder must offer microversion 3.29, for group snapshots; it offers 3.27"},
		"forbidden": {prepare: func(b *groupBench, _ *backends.GroupSpec) {
			b.sim.Inject(cindersim.Fault{Kind: cindersim.RespondBefore, Operation: "group.create", Code: 403})
		}, requested: true, kind: cinder.KindForbidden, message: "group.create: injected fault"},
		"volumes of two zones": {prepare: func(b *groupBench, spec *backends.GroupSpec) { b.add(2, "iscsi", "other"); *spec = b.spec() },
			kind: cinder.KindInvalid, message: "are in the availability zones nova and other, and a group is in one"},
		"volumes of two storages": {prepare: func(b *groupBench, spec *backends.GroupSpec) { b.add(2, "iscsi-mp", "nova"); *spec = b.spec() }, requested: true,
			kind: backends.KindVolumeFailed, message: `Cinder found no storage for a group of type "consistent" for volumes of type iscsi, iscsi-mp`},
		"another's volume": {prepare: func(_ *groupBench, spec *backends.GroupSpec) { spec.Members[1].Source.Stamp.ClaimUID = "other" },
			kind: backends.KindNotOurs, message: "it is not touched"},
		"the storage fails to make the group":    {prepare: fails("group.create"), requested: true, kind: backends.KindVolumeFailed, message: "Cinder found no storage"},
		"the storage fails to change the group":  {prepare: fails("group.update"), requested: true, kind: backends.KindVolumeFailed, message: "Cinder may have set the status of these volumes to error, which an OpenStack administrator must repair"},
		"the storage fails to take the snapshot": {prepare: fails("group_snapshot.create"), requested: true, kind: backends.KindVolumeFailed, message: "is error; see the log of cinder-volume"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newGroupBench(t, test.options, 2)
			spec := b.spec()
			if test.prepare != nil {
				test.prepare(b, &spec)
			}
			since := len(b.sim.Journal())
			_, err := b.Snapshots().TakeGroup(t.Context(), spec)
			if !cinder.IsKind(err, test.kind) || !strings.Contains(err.Error(), test.message) {
				t.Errorf("refused with %v (%s), want %s: %s", err, cinder.KindOf(err), test.kind, test.message)
			}
			if requested := slices.Contains(b.changes(since), "group.create"); requested != test.requested {
				t.Errorf("a group was requested: %t", requested)
			}
			b.nothingLeft()
		})
	}
}

// byHand makes a group with the volumes, with a request of its own.
func (b *groupBench) byHand(description string, volumes ...string) string {
	b.Helper()
	config := backends.Config{Name: "gold", Auth: auth.Config{Source: auth.Source{Noauth: &auth.Noauth{Endpoint: b.sim.NoauthEndpoint(), User: "admin", Project: cindersim.DefaultNoauthProject}}}}
	client, err := backends.NewPool(backends.PoolOptions{Metrics: backends.NewMetrics(prometheus.NewRegistry())}).Client(b.Context(), config)
	b.must(err)
	g, err := client.CreateGroup(b.Context(), cinder.NewGroup{Name: "by hand", Description: description, Type: "consistent", VolumeTypes: []string{"iscsi"}})
	b.must(err)
	for g.Status != cinder.StatusAvailable || len(g.Volumes) < len(volumes) {
		if g.Status == cinder.StatusAvailable {
			b.must(client.AddToGroup(b.Context(), g.ID, volumes))
		}
		g, err = client.Group(b.Context(), g.ID)
		b.must(err)
	}
	return g.ID
}

// TestGroupsOfOthersAreNotTouched: a volume that is in one is refused, and its claim's
// deletion says so.
func TestGroupsOfOthersAreNotTouched(t *testing.T) {
	b := newGroupBench(t, cindersim.Options{}, 2)
	other := b.byHand("an operator's", b.volumes[1])
	remedy := fmt.Sprintf("cinder --os-volume-api-version 3.13 group-update --remove-volumes %s %s", b.volumes[1], other)
	_, err := b.Snapshots().TakeGroup(t.Context(), b.spec())
	if !cinder.IsKind(err, backends.KindNotOurs) || !strings.Contains(err.Error(), remedy) {
		t.Errorf("the group snapshot: %v", err)
	}
	err = b.Remove(t.Context(), b.source(1))
	if !cinder.IsKind(err, backends.KindNotOurs) || !strings.Contains(err.Error(), remedy) {
		t.Errorf("the deletion: %v", err)
	}
	lost := func(context.Context, string) (bool, error) { return true, nil }
	if removed, err := b.Snapshots().AbandonGroups(t.Context(), "uid-1", lost); err != nil || len(removed) > 0 {
		t.Errorf("abandoned are %q (%v)", removed, err)
	}
	if groups := b.sim.Groups(); len(groups) != 1 || !slices.Equal(groups[0].Volumes, []string{b.volumes[1]}) {
		t.Errorf("Cinder has the groups %+v", groups)
	}
}

// TestVolumesOfTwoGroupSnapshotsTakeTurns: a volume is in one group at a time.
func TestVolumesOfTwoGroupSnapshotsTakeTurns(t *testing.T) {
	b := newGroupBench(t, cindersim.Options{}, 2)
	b.byHand(stamps.Group{Cluster: "cluster-1", ClusterUID: "uid-1", UID: "g2"}.Description(), b.volumes[1])
	if _, err := b.Snapshots().TakeGroup(t.Context(), b.spec()); !cinder.IsKind(err, cinder.KindConflict) || !strings.Contains(err.Error(), "of another VolumeGroupSnapshot, whose snapshots are being taken") {
		t.Errorf("the group snapshot: %v", err)
	}
}

// TestVolumeLeftInAGroupIsDeleted, by whatever attempt left it there.
func TestVolumeLeftInAGroupIsDeleted(t *testing.T) {
	b := newGroupBench(t, cindersim.Options{}, 2)
	b.byHand(groupStamp().Description(), b.volumes[0], b.volumes[1])
	b.must(b.Remove(t.Context(), b.source(0)))
	if groups := b.sim.Groups(); len(groups) != 1 || !slices.Equal(groups[0].Volumes, []string{b.volumes[1]}) {
		t.Errorf("Cinder has the groups %+v", groups)
	}
}

// TestLateGroupsAreRemoved: of two groups of one VolumeGroupSnapshot, one stays.
func TestLateGroupsAreRemoved(t *testing.T) {
	b := newGroupBench(t, cindersim.Options{}, 2)
	taken, err := b.Snapshots().TakeGroup(t.Context(), b.spec())
	b.must(err)
	b.byHand(groupStamp().Description(), b.volumes[0])
	again, err := b.Snapshots().TakeGroup(t.Context(), b.spec())
	b.must(err)
	if b.isTaken(again); again[0].ID != taken[0].ID {
		t.Errorf("taken is %s, and again %s", taken[0].ID, again[0].ID)
	}
}

// TestGroupSnapshotGoesAsAWhole: a snapshot that nobody needs any more counts as deleted, and
// the last one takes all with it.
func TestGroupSnapshotGoesAsAWhole(t *testing.T) {
	b := newGroupBench(t, cindersim.Options{}, 3)
	taken, err := b.Snapshots().TakeGroup(t.Context(), b.spec())
	b.must(err)
	for _, s := range taken {
		b.must(b.Snapshots().MarkSnapshot(t.Context(), s))
	}
	b.newTerm()
	target := backends.GroupTarget{Stamp: groupStamp(), Place: b.Snapshots().Place()}
	if kept, err := b.Snapshots().RemoveGroup(t.Context(), target); err != nil || len(kept) != 3 {
		t.Errorf("what was handed out goes without its content's word: kept are %q (%v)", kept, err)
	}
	target.MayGo = func(s cinder.Snapshot) bool { return s.ID == taken[0].ID }
	if kept, err := b.Snapshots().RemoveGroup(t.Context(), target); err != nil || len(kept) != 2 {
		t.Errorf("kept are %q (%v)", kept, err)
	}
	if _, found, err := b.Snapshots().FindSnapshot(t.Context(), taken[0].ID); found || err != nil {
		t.Errorf("the first one is found: %t (%v)", found, err)
	}
	_, err = b.Snapshots().ImportSnapshot(t.Context(), backends.SnapshotImport{
		SnapshotID: taken[0].ID, Stamp: memberStamp(0), CSI: true, Place: target.Place, Granted: func(cinder.Snapshot) error { return nil }, Permit: func(context.Context) error { return nil },
	})
	if !cinder.IsKind(err, backends.KindNotOurs) {
		t.Errorf("the first one can be imported: %v", err)
	}
	err = b.Remove(t.Context(), b.source(0))
	if !cinder.IsKind(err, backends.KindHasSnapshots) || !strings.Contains(err.Error(), "which Cinder deletes only with the others of group snapshot") {
		t.Errorf("its volume's deletion: %v", err)
	}
	for i := range []int{0, 1} {
		b.must(b.Snapshots().RemoveSnapshot(t.Context(), backends.SnapshotTarget{SnapshotID: taken[i+1].ID, Stamp: memberStamp(i + 1), Place: target.Place}))
		if left := len(b.sim.Snapshots()); left != []int{3, 0}[i] {
			t.Errorf("after the removal of %d, %d are left", i+2, left)
		}
	}
	b.nothingLeft()
}

// TestGroupSnapshotWaitsForWhoeverUsesItsSnapshots: Cinder deletes a group snapshot whatever the
// states of its snapshots are, even while a volume is reverted to one.
func TestGroupSnapshotWaitsForWhoeverUsesItsSnapshots(t *testing.T) {
	for _, status := range []string{"backing-up", "restoring"} {
		t.Run(status, func(t *testing.T) {
			b := newGroupBench(t, cindersim.Options{}, 2)
			taken, err := b.Snapshots().TakeGroup(t.Context(), b.spec())
			b.must(err)
			b.must(b.sim.SetSnapshotStatus(taken[1].ID, status))
			remove := func() error {
				_, err := b.Snapshots().RemoveGroup(t.Context(), backends.GroupTarget{Stamp: groupStamp(), Place: b.Snapshots().Place()})
				return err
			}
			if err := remove(); !cinder.IsKind(err, cinder.KindConflict) || !strings.Contains(err.Error(), status) || len(b.sim.Snapshots()) != 2 {
				t.Errorf("removed with %v, left are %+v", err, b.sim.Snapshots())
			}
			err = b.Snapshots().RemoveSnapshot(t.Context(), backends.SnapshotTarget{SnapshotID: taken[0].ID, Stamp: memberStamp(0), Place: b.Snapshots().Place()})
			if !cinder.IsKind(err, cinder.KindConflict) || len(b.sim.Snapshots()) != 2 {
				t.Errorf("the other removed with %v, left are %+v", err, b.sim.Snapshots())
			}
			b.must(b.sim.SetSnapshotStatus(taken[1].ID, "available"))
			b.must(remove())
			b.nothingLeft()
		})
	}
}

// TestGroupSnapshotThatCinderDeletedInPart: the storage has deleted some of its snapshots, which
// Cinder then shows as deleted (_delete_group_snapshot_generic in cinder/volume/manager.py), and
// failed at others. Another request deletes the rest.
func TestGroupSnapshotThatCinderDeletedInPart(t *testing.T) {
	for _, status := range []string{"deleted", "error", "error_deleting"} {
		t.Run(status, func(t *testing.T) {
			b := newGroupBench(t, cindersim.Options{}, 2)
			taken, err := b.Snapshots().TakeGroup(t.Context(), b.spec())
			b.must(err)
			for _, s := range taken {
				b.must(b.Snapshots().MarkSnapshot(t.Context(), s))
			}
			b.must(b.sim.SetSnapshotStatus(taken[0].ID, status))
			b.must(b.sim.SetSnapshotStatus(taken[1].ID, "error"))
			for i, s := range taken {
				b.must(b.Snapshots().RemoveSnapshot(t.Context(), backends.SnapshotTarget{SnapshotID: s.ID, Stamp: memberStamp(i), Place: b.Snapshots().Place()}))
			}
			b.nothingLeft()
		})
	}
}

// TestVolumesOfASnapshotWithoutAStampAreBeingCopied: the snapshots of a group get the records of
// their volumes' keys later, and until then the volumes must keep what opens the snapshots.
func TestVolumesOfASnapshotWithoutAStampAreBeingCopied(t *testing.T) {
	b := newGroupBench(t, cindersim.Options{}, 2)
	for i, id := range b.volumes {
		metadata := claimOf(i).Metadata(stamps.AttachedMark())
		metadata[stamps.KeyEncryption], metadata[stamps.KeyMode] = "record", stamps.ModeCSI
		b.must(b.sim.SetVolumeMetadata(id, metadata))
	}
	b.sim.Inject(cindersim.Fault{Kind: cindersim.DropBefore, Operation: "snapshot.metadata.update", Nth: 1})
	take := func() error {
		_, err := b.Snapshots().TakeGroup(t.Context(), b.spec())
		return err
	}
	if err := take(); err == nil {
		t.Error("no request was dropped")
	}
	b.newTerm()
	copied := func() (n int) {
		found, err := backends.Keys{Lifecycle: b.Lifecycle}.Volumes(t.Context())
		b.must(err)
		for _, v := range found {
			if v.IsBeingCopied {
				n++
			}
		}
		return n
	}
	if n := copied(); n != 2 {
		t.Errorf("%d volumes are being copied", n)
	}
	b.must(take())
	if n := copied(); n != 0 {
		t.Errorf("then %d volumes are being copied", n)
	}
}

// TestVolumesThatCannotJoinCostNoGroup: the storage would make one for each attempt.
func TestVolumesThatCannotJoinCostNoGroup(t *testing.T) {
	for _, status := range []string{"error_extending", "maintenance", "retyping", "error"} {
		b := newGroupBench(t, cindersim.Options{}, 2)
		b.must(b.sim.SetVolumeStatus(b.volumes[1], status))
		since := len(b.sim.Journal())
		_, err := b.Snapshots().TakeGroup(t.Context(), b.spec())
		if changes := b.changes(since); !cinder.IsKind(err, cinder.KindConflict) || !strings.Contains(err.Error(), status) || len(changes) > 0 {
			t.Errorf("a volume that is %s: %v, after %q", status, err, changes)
		}
	}
}

// TestLostGroupsAreAbandoned, unless a snapshot was handed out, or something leads to them.
func TestLostGroupsAreAbandoned(t *testing.T) {
	for name, test := range map[string]struct {
		marked, leads bool
		clusterUID    string
		left          int
	}{
		"lost":               {clusterUID: "uid-1"},
		"handed out":         {clusterUID: "uid-1", marked: true, left: 1},
		"of a content":       {clusterUID: "uid-1", leads: true, left: 1},
		"of another cluster": {clusterUID: "uid-2", left: 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := newGroupBench(t, cindersim.Options{}, 2)
			taken, err := b.Snapshots().TakeGroup(t.Context(), b.spec())
			b.must(err)
			if test.marked {
				b.must(b.Snapshots().MarkSnapshot(t.Context(), taken[1]))
			}
			b.newTerm()
			removed, err := b.Snapshots().AbandonGroups(t.Context(), test.clusterUID, func(_ context.Context, uid string) (bool, error) { return !test.leads && uid == "g1", nil })
			if err != nil || len(removed) != 1-test.left || len(b.sim.Groups()) != test.left {
				t.Errorf("removed are %q (%v), left %+v", removed, err, b.sim.Groups())
			}
		})
	}
}

// TestOneLostGroupThatStaysStopsNoOther: whether its storage fails, or nobody can tell whether
// it is lost.
func TestOneLostGroupThatStaysStopsNoOther(t *testing.T) {
	for name, test := range map[string]struct {
		fault cindersim.Fault
		asked error
	}{
		"its storage fails":   {fault: cindersim.Fault{Kind: cindersim.FailBackend, Operation: "group.delete", Nth: 1}},
		"nobody can tell":     {asked: errors.New("invalid name")},
		"its request is lost": {fault: cindersim.Fault{Kind: cindersim.RespondBefore, Operation: "group.delete", Nth: 1, Code: 503}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newGroupBench(t, cindersim.Options{}, 1)
			for _, uid := range []string{"g1", "g2", "g3"} {
				b.byHand(stamps.Group{Cluster: "cluster-1", ClusterUID: "uid-1", UID: uid}.Description())
			}
			if test.fault.Operation != "" {
				b.sim.Inject(test.fault)
			}
			removed, err := b.Snapshots().AbandonGroups(t.Context(), "uid-1", func(_ context.Context, uid string) (bool, error) {
				if uid == "g2" {
					return true, test.asked
				}
				return true, nil
			})
			if err == nil || len(removed) != 2 || len(b.sim.Groups()) != 1 {
				t.Errorf("removed are %q (%v), left %+v", removed, err, b.sim.Groups())
			}
		})
	}
}

// TestGroupSnapshotNeedsAPermit before its group, before its volumes join, and before it is
// taken.
func TestGroupSnapshotNeedsAPermit(t *testing.T) {
	b := newGroupBench(t, cindersim.Options{}, 2)
	no := errors.New("the content is being deleted")
	for permitted, want := range [][]string{nil, {"group.create"}, {"group.update"}} {
		asked := 0
		spec := b.spec()
		spec.Permit = func(context.Context) error {
			if asked++; asked > 2*min(permitted, 1) { // each request asks twice
				return no
			}
			return nil
		}
		since := len(b.sim.Journal())
		if _, err := b.Snapshots().TakeGroup(t.Context(), spec); !errors.Is(err, no) {
			t.Errorf("permitted %d: %v", permitted, err)
		}
		if got := b.changes(since); !slices.Equal(got, want) {
			t.Errorf("permitted %d, the changes are %q, want %q", permitted, got, want)
		}
	}
}
