package snapshot

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

// together is an attempt at a group whose snapshots are one group snapshot of Cinder.
type together struct{ *grouping }

// mayBeTaken returns an error unless one array can have all volumes, if it must.
func (g together) mayBeTaken() error {
	for _, t := range g.members {
		if one, other := g.members[0].origin.Backend, t.origin.Backend; g.origin.Consistency == policy.ConsistentArray && one != other {
			return &denied{reason: string(policy.ParameterNotAllowed), again: true, message: fmt.Sprintf(
				"the VolumeGroupSnapshotClass has consistency %s, but the volumes are on backends %s and %s; select claims of one backend, or use a class with the consistency %s or %s",
				policy.ConsistentArray, one, other, policy.ConsistentFilesystem, policy.NotConsistent)}
		}
	}
	return nil
}

// take has the array take the snapshots of all members at one moment. If Cinder
// refuses for good, nothing is left there.
func (g together) take(ctx context.Context) ([]cinder.Snapshot, error) {
	started, first := time.Now(), g.members[0].origin
	backend, err := g.Backends.Groups(first.Backend)
	if err != nil {
		return nil, err
	}
	if unhealthy := g.Backends.Health(first.Backend); unhealthy != nil {
		return nil, unhealthy
	}
	spec := backends.GroupSpec{
		Name: objects.GroupHandle(g.origin.UID), Stamp: g.stamp(), Type: g.origin.GroupType,
		Permit: func(ctx context.Context) error { return g.stillWanted(ctx, cinder.Volume{}) },
	}
	for _, t := range g.members {
		member := t.spec(nil)
		member.CSI = g.csi
		spec.Members = append(spec.Members, member)
	}
	taken, err := backend.TakeGroup(g.Caller(ctx, first.Tenant), spec)
	if changed := new(changedError); !errors.As(err, &changed) {
		for range g.members {
			g.Metrics.took(first.Backend, outcomeOf(err), time.Since(started))
		}
	}
	if refused(err) {
		err = g.pauses.begin(g.origin.UID, err)
	}
	return taken, err
}

// stamp returns the stamp of the group.
func (g together) stamp() stamps.Group {
	return stamps.Group{Cluster: g.Cluster, ClusterUID: g.ClusterUID, UID: string(g.origin.UID)}
}

// remove removes the group snapshot that has the snapshots of all members. As long as
// one of them is retained, it stays, and the others with it, which then belong to nobody.
func (g together) remove(ctx context.Context, retained []bool) error {
	started, first := time.Now(), g.members[0].origin
	backend, err := g.Backends.Groups(first.Backend)
	if err != nil {
		return err
	}
	if unhealthy := g.Backends.Health(first.Backend); unhealthy != nil {
		return unhealthy
	}
	target := backends.GroupTarget{Stamp: g.stamp(), Place: first.Place, Permit: g.stillDeleted}
	if objects.GroupHandleOf(g.content) != "" || g.content.Spec.DeletionPolicy == snapshotv1.VolumeSnapshotContentDelete {
		target.MayGo = func(s cinder.Snapshot) bool {
			i := slices.IndexFunc(g.members, func(t *taking) bool { return t.stamp().Owns(s) })
			return i >= 0 && !retained[i] && (g.members[i].origin.SnapshotID == "" || g.members[i].origin.SnapshotID == s.ID)
		}
	}
	kept, err := backend.RemoveGroup(g.Caller(ctx, first.Tenant), target)
	for range g.members {
		g.Metrics.deleted(first.Backend, outcomeOf(err), time.Since(started))
	}
	if err != nil || target.MayGo == nil && len(kept) > 0 {
		return objects.WithSnapshotRemedy(err, first)
	}
	for _, t := range g.members {
		if len(kept) == 0 { // otherwise Cinder still has all
			g.release(t.origin.UID, g.Ledger.ReleaseSnapshot)
			g.Board.Publish(parking.Trigger{Kind: parking.Snapshots, Name: t.origin.VolumeID})
		}
	}
	g.noteGroupRemoved()
	g.Logger.Info("Deleted a group snapshot", "tenant", first.Tenant, "group", g.origin.Namespace+"/"+g.origin.Name, "groupUID", g.origin.UID, "backend", first.Backend,
		"retained", len(kept), "durationSeconds", time.Since(started).Seconds())
	return nil
}
