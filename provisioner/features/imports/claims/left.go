package claims

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodeuse"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/secrets"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/retry"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker"
)

// doLeft ends what was begun for a claim that is gone, when its turn comes. After a
// failure, the key comes back.
func (c *Controller) doLeft(ctx context.Context, at *turn, claim types.UID) worker.Outcome {
	c.mu.Lock()
	left, ok := c.left[claim]
	c.mu.Unlock()
	if !ok || !at.Begin(left.tenant, left.backend) {
		return worker.Outcome{}
	}
	err := c.endLeft(c.OnBehalfOf(ctx, left.tenant), claim, left)
	if err != nil {
		if ctx.Err() == nil {
			c.Logger.Warn("Cannot clean up the import of a deleted claim yet; will retry", "claimUID", claim, "backend", left.backend, "volume", left.volume, "error", err)
		}
		return worker.Outcome{Retry: new(retry.For(err))}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.left, claim)
	return worker.Outcome{Done: true}
}

// endLeft disconnects a volume that was reserved for a claim that is gone before a
// PersistentVolume recorded it, and nothing else: the volume and its stamp stay.
func (c *Controller) endLeft(ctx context.Context, claim types.UID, left leftover) error {
	if _, taken := c.busy.LoadOrStore(left.volume, true); taken {
		return errChanged
	}
	defer c.busy.Delete(left.volume)
	volumes, err := c.Volumes(left.backend)
	if err != nil {
		return err
	}
	if c.Room.Ledger.WasRecorded(claim, left.volume) {
		return nil // its PersistentVolume is gone, and the volume was left behind as it is
	}
	pvName := objects.ImportedPVName(left.volume)
	stamp := stamps.Volume{Cluster: c.Cluster, ClusterUID: c.ClusterUID, ClaimUID: string(claim), PV: pvName}
	v, _, err := volumes.Look(ctx, backends.Target{VolumeID: left.volume, Place: left.place, Stamp: stamp})
	switch {
	case err != nil:
		return err
	case !stamp.Owns(v): // or it is gone
		c.Room.Ledger.ReleaseReservation(claim)
		c.Room.Ledger.ReleaseUnrecorded(claim)
		return nil
	}
	_, err = c.Client.CoreV1().PersistentVolumes().Get(ctx, pvName, metav1.GetOptions{})
	switch {
	case err == nil:
		return nil // it is recorded, and counts as recorded
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("cannot tell whether PersistentVolume %s exists: %w", pvName, err)
	}
	exists, err := objects.ClaimOf(ctx, c.Client, stamps.Of(v))
	if err != nil || exists != nil {
		return err
	}
	if v.Status == cinder.StatusInUse {
		return nil // it was recorded once, and left behind
	}
	users, err := c.Nodes.Users(ctx, nodeuse.Volume{PV: pvName, ID: v.ID, MayAttach: true})
	if err != nil || len(users) > 0 {
		// A node can use only a volume that was once recorded. It stays connected.
		return err
	}
	connector, err := c.Connector(left.backend)
	if err != nil {
		return err
	}
	if !c.isContested(v) {
		if err := volumes.CancelImport(ctx, backends.Target{VolumeID: v.ID, Stamp: stamp, Connector: connector}); err != nil && !cinder.IsKind(err, backends.KindInUse) {
			return err
		}
	}
	// The volume keeps the stamp, and counts for its tenant.
	c.Room.Ledger.Keep(claim)
	if err := secrets.DeleteOwn(ctx, c.Client, c.Namespace, pvName); err != nil {
		return err
	}
	c.Logger.Info("Cleaned up the import of a deleted claim; its volume is kept", "claimUID", claim, "backend", left.backend, "volume", v.ID)
	return nil
}
