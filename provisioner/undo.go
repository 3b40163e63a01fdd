package provisioner

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/provisioner/ledger"
	"github.com/standalone-cinder/standalone-cinder/provisioner/nodeuse"
	"github.com/standalone-cinder/standalone-cinder/provisioner/proof"
	"github.com/standalone-cinder/standalone-cinder/provisioner/record"
)

// claimGone undoes what was made for a claim that was deleted, or bound to
// another PersistentVolume, before its own was recorded: by this term, or by an
// earlier one as far as its volumes were found. The error says that it must be
// tried again.
func (p *Provisioner) claimGone(ctx context.Context, uid types.UID) error {
	p.parked.claimGone(uid)
	p.limiter.Gone(string(uid))
	// A turn ends with the work, which may be waiting for Cinder.
	p.claimTurns.Leave(uid)
	p.journal.claimGone(uid)
	begun, ok := p.journal.beginning(uid)
	if !ok {
		position, _ := p.placement.PositionOf(uid)
		if !p.placement.IsFound(uid, position.Backend) {
			p.placement.giveBack(uid)
			return nil
		}
		var err error
		if begun, err = p.foundBeginning(uid, position); err != nil {
			return err
		}
	}
	err := p.undo(ctx, uid, begun, p.cleaner.NobodyNeeds)
	if proof.IsKept(err) {
		p.Logger.Info("What was begun for a claim stays", "claimUID", uid, "backend", begun.backend, "reason", err)
		return nil
	}
	return err
}

// foundBeginning is the beginning of a claim of which only a listing tells.
func (p *Provisioner) foundBeginning(uid types.UID, position ledger.Position) (beginning, error) {
	connector, err := p.Backends.Connector(position.Backend)
	return beginning{backend: position.Backend, stamp: p.stampOf(uid, position.Tenant), connector: connector}, err
}

// stampOf is as much of a claim's stamp as tells its volumes from others.
func (p *Provisioner) stampOf(uid types.UID, tenant string) backends.Stamp {
	return backends.Stamp{Cluster: p.Cluster, ClusterUID: p.ClusterUID, ClaimUID: string(uid), PV: record.PVNameFor(string(uid)), Tenant: tenant}
}

// undo removes the volumes and the Secret of a claim, as far as it is proven
// that they may go. The Secret goes last: it may belong to a volume that stays on
// purpose, of which the error then tells (IsKept). It waits no longer than the
// context: what is left is found by the next leader.
func (p *Provisioner) undo(ctx context.Context, uid types.UID, begun beginning, prove backends.Permit) error {
	ctx = p.onBehalfOf(ctx, begun.stamp.Tenant)
	volumes, err := p.Backends.Volumes(begun.backend)
	if err != nil {
		return err
	}
	err = volumes.Abandon(ctx, begun.stamp, begun.connector, p.cleaner.Permit(prove))
	if proof.IsKept(err) {
		p.finish(uid)
		p.placement.Keep(uid)
	}
	if err != nil {
		return err
	}
	p.journal.noteUndone(uid, begun)
	// There may be a Secret without a volume.
	err = p.cleaner.RemoveSecret(ctx, begun.stamp.PV)
	switch {
	case proof.IsKept(err):
		// The PersistentVolume was saved meanwhile, and names a volume that is gone.
		p.followup.add(followup{pv: begun.stamp.PV})
	case err != nil:
		return err
	}
	// A shared one last: others may need it, and who leads next looks for it.
	shared := p.secrets.UsedBy(uid)
	p.finish(uid)
	p.placement.release(uid)
	p.secrets.AttemptUndone(ctx, begun.backend, shared)
	p.Logger.Info("Undid what was begun for a claim", "claimUID", uid, "backend", begun.backend)
	return nil
}

// removeDuplicate removes a volume of a claim that has another, or is to be given
// one on another backend: as soon as a PersistentVolume says which it is.
func (p *Provisioner) removeDuplicate(ctx context.Context, item followup) error {
	err := p.cleaner.RemoveVolume(p.onBehalfOf(ctx, ""), item.backend, item.volume, p.stampOf(item.claim, ""))
	switch {
	case err == nil:
		p.Logger.Warn("Removed a second volume of one claim", "volume", item.volume, "backend", item.backend, "claimUID", item.claim)
	case proof.IsKept(err):
		p.Logger.Info("A second volume of one claim stays", "volume", item.volume, "backend", item.backend, "claimUID", item.claim, "reason", err)
		return nil
	}
	return err
}

// removeDuplicates has the volumes removed that were seen beside a recorded one.
func (p *Provisioner) removeDuplicates(volumes Removing, recorded record.Origin) {
	for _, id := range volumes.Duplicates(recorded.ClaimUID, recorded.VolumeID) {
		p.followup.add(followup{claim: types.UID(recorded.ClaimUID), backend: recorded.Backend, volume: id})
	}
}

// markRecorded writes on a volume that it was recorded: its PersistentVolume
// went before the volume was brought into use, and no later leader must take it
// for one that nobody was ever given.
func (p *Provisioner) markRecorded(ctx context.Context, item followup) error {
	volumes, err := p.Backends.Volumes(item.backend)
	if err != nil {
		return err
	}
	err = volumes.Mark(p.onBehalfOf(ctx, ""), backends.Target{VolumeID: item.volume, Stamp: p.stampOf(item.claim, ""), Place: item.place})
	if backends.IsKind(err, backends.KindNotFound) || proof.IsKept(err) {
		return nil
	}
	return err
}

// recordedBy is the PersistentVolume that names a volume, as far as the cache
// tells, or did so earlier in this term; empty if there is none.
func (p *Provisioner) recordedBy(v backends.Volume) string {
	if found, err := p.Records.ByIndex(record.ByVolume, v.ID); err == nil && len(found) > 0 {
		return found[0].(*corev1.PersistentVolume).Name
	}
	if stamp := backends.StampOf(v); p.placement.WasRecorded(types.UID(stamp.ClaimUID), v.ID) {
		return stamp.PV + ", which is gone"
	}
	return ""
}

// useOf is as what nodes may use a volume of a claim whose PersistentVolume may
// have been saved; nil if this term made the volume and had nothing saved yet.
func (p *Provisioner) useOf(stamp backends.Stamp) *nodeuse.Volume {
	begun, ok := p.journal.beginning(types.UID(stamp.ClaimUID))
	if position, _ := p.placement.PositionOf(types.UID(stamp.ClaimUID)); ok && (begun.handedOver != nil || position.NothingSeen) {
		return begun.handedOver
	}
	return &nodeuse.Volume{PV: stamp.PV, MayAttach: true}
}

// cleanUpIfGone gives back what an attempt took for a claim that was deleted, or
// bound to another PersistentVolume, while it was looked at: the event came too
// early to find anything.
func (p *Provisioner) cleanUpIfGone(claim *corev1.PersistentVolumeClaim) {
	current, err := p.Claims.PersistentVolumeClaims(claim.Namespace).Get(claim.Name)
	if apierrors.IsNotFound(err) || err == nil && (current.UID != claim.UID || record.BoundElsewhere(current)) {
		p.followup.add(followup{claim: claim.UID})
	}
}

// finish forgets what was begun for a claim, and the Secrets that it needed.
func (p *Provisioner) finish(claim types.UID) {
	p.journal.finish(claim)
	p.secrets.AttemptOver(claim)
}
