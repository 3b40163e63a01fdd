package contract

import (
	"context"
	"strings"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
)

// lifecycleGroup: two volumes get a group snapshot, which
// another leader finds again, and which goes with its last snapshot.
func lifecycleGroup(t *testing.T, target Target) {
	if target.Types.Group == "" {
		t.Skip("no such group type is known (CONTRACT_GROUP_TYPE)")
	}
	a, b := newActor(t, target, cinder.WorkflowAuto), newActor(t, target, cinder.WorkflowAuto)
	a.spec.CSI, b.spec.CSI = true, true
	one, other := a.connect(), b.connect()
	stamp := stamps.Group{Cluster: "contract", ClusterUID: "uid", UID: strings.TrimPrefix(a.spec.Name, "pvc-")}
	spec := backends.GroupSpec{Name: "groupsnapshot-" + stamp.UID, Stamp: stamp, Type: target.Types.Group, Permit: func(context.Context) error { return nil }}
	for _, of := range []struct {
		*actor
		backends.Connected
	}{{a, one}, {b, other}} {
		uid := "member-" + of.spec.Name
		spec.Members = append(spec.Members, backends.SnapshotSpec{
			Source: of.of(of.Volume), Place: one.Place,
			Stamp: stamps.Snapshot{Cluster: "contract", ClusterUID: "uid", Namespace: "ns", Snapshot: uid, SnapshotUID: uid, Content: "snapcontent-" + uid, Tenant: "tenant", Group: stamp.UID},
		})
	}
	removal := backends.GroupTarget{Stamp: stamp, Place: one.Place, MayGo: func(cinder.Snapshot) bool { return true }}
	t.Cleanup(func() {
		if _, err := a.Snapshots().RemoveGroup(context.Background(), removal); err != nil {
			t.Errorf("cannot clean up: %v", err)
		}
	})
	taken, err := a.Snapshots().TakeGroup(a.ctx, spec)
	a.must(err)
	for _, s := range taken {
		a.must(a.Snapshots().MarkSnapshot(a.ctx, s))
	}
	a.newTerm()
	again, err := a.Snapshots().TakeGroup(a.ctx, spec)
	a.must(err)
	if len(again) != 2 || again[0].ID != taken[0].ID || again[1].ID != taken[1].ID || stamps.GroupSnapshotOf(again[0]) == "" || stamps.GroupSnapshotOf(again[0]) != stamps.GroupSnapshotOf(again[1]) || !stamps.WasRecorded(again[1]) {
		t.Errorf("taken are %+v, and again %+v", taken, again)
	}
	if removed, err := a.Snapshots().AbandonGroups(a.ctx, "uid", func(_ context.Context, uid string) (bool, error) { return uid == stamp.UID, nil }); err != nil || len(removed) > 0 {
		t.Errorf("abandoned are %q (%v)", removed, err)
	}
	if err := a.Remove(a.ctx, a.of(one.Volume)); !cinder.IsKind(err, backends.KindHasSnapshots) {
		t.Errorf("the volume's deletion: %v", err)
	}
	for i, s := range taken {
		a.must(a.Snapshots().RemoveSnapshot(a.ctx, backends.SnapshotTarget{SnapshotID: s.ID, Stamp: spec.Members[i].Stamp, Place: one.Place}))
	}
	for _, s := range taken {
		if _, found, err := a.Snapshots().FindSnapshot(a.ctx, s.ID); found || err != nil {
			t.Errorf("snapshot %s is there: %t (%v)", s.ID, found, err)
		}
	}
	kept, err := a.Snapshots().RemoveGroup(a.ctx, removal)
	if a.must(err); len(kept) > 0 {
		t.Errorf("kept are %q", kept)
	}
	a.must(a.Remove(a.ctx, a.of(one.Volume)))
}
