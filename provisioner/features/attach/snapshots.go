package attach

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/controller"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

// Snapshots takes, removes and lists snapshots of CSI volumes, within policy and
// quotas. If an error has the method FailureKind, that tells the controller the kind of
// the failure.
type Snapshots interface {
	Take(ctx context.Context, pv *corev1.PersistentVolume, name string, parameters map[string]string) (controller.Snapshot, error)
	Remove(ctx context.Context, snapshot wire.Handle) error
	List(ctx context.Context, wanted controller.Listing) ([]controller.Snapshot, error)
	GroupSnapshots
}

// GroupSnapshots does that for groups of volumes.
type GroupSnapshots interface {
	TakeGroup(ctx context.Context, volumes []*corev1.PersistentVolume, name string, parameters map[string]string) ([]controller.Snapshot, error)
	RemoveGroup(ctx context.Context, handle string) error
	GroupStatus(ctx context.Context, handle string) ([]controller.Snapshot, error)
}

// TakeSnapshot implements controller.Engine.
func (e *Engine) TakeSnapshot(ctx context.Context, volume wire.Handle, name string, parameters map[string]string) (controller.Snapshot, error) {
	of, err := changeable(e, volume)
	if err != nil {
		return controller.Snapshot{}, failure(err)
	}
	taken, err := e.Snapshots.Take(ctx, of.pv, name, parameters)
	return taken, failure(err)
}

// RemoveSnapshot implements controller.Engine.
func (e *Engine) RemoveSnapshot(ctx context.Context, snapshot wire.Handle) error {
	return failure(e.Snapshots.Remove(ctx, snapshot))
}

// ListSnapshots implements controller.Engine.
func (e *Engine) ListSnapshots(ctx context.Context, wanted controller.Listing) ([]controller.Snapshot, error) {
	all, err := e.Snapshots.List(ctx, wanted)
	return all, failure(err)
}

// Groups passes on the sidecar's requests for groups.
type Groups struct{ engine *Engine }

// GroupsOf returns the Groups of an Engine.
func GroupsOf(e *Engine) Groups { return Groups{e} }

// TakeGroup implements controller.Grouper.
func (g Groups) TakeGroup(ctx context.Context, volumes []wire.Handle, name string, parameters map[string]string) ([]controller.Snapshot, error) {
	var of []*corev1.PersistentVolume
	for _, volume := range volumes {
		one, err := changeable(g.engine, volume)
		if err != nil {
			return nil, failure(err)
		}
		of = append(of, one.pv)
	}
	taken, err := g.engine.Snapshots.TakeGroup(ctx, of, name, parameters)
	return taken, failure(err)
}

// RemoveGroup implements controller.Grouper.
func (g Groups) RemoveGroup(ctx context.Context, handle string) error {
	return failure(g.engine.Snapshots.RemoveGroup(ctx, handle))
}

// GroupStatus implements controller.Grouper.
func (g Groups) GroupStatus(ctx context.Context, handle string) ([]controller.Snapshot, error) {
	all, err := g.engine.Snapshots.GroupStatus(ctx, handle)
	return all, failure(err)
}
