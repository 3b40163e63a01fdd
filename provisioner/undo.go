package provisioner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodeuse"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/removal"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/journal"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/ledger"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/requestids"
)

// claimGone undoes what this term began for a claim that was deleted or bound to
// another PersistentVolume before its volume was recorded, and what an earlier
// leader began if a listing showed its volume. After an error it must be
// retried.
func (p *Provisioner) claimGone(ctx context.Context, uid types.UID) error {
	for _, owner := range p.owners {
		owner.Forget(uid)
	}
	begun, ok := p.journal.Beginning(uid)
	if !ok {
		position, _ := p.ledger.PositionOf(uid)
		if position.Imported {
			return nil // its import ends what it began
		}
		if !p.ledger.IsFound(uid, position.Backend) {
			p.placement.GiveBack(uid)
			return nil
		}
		var err error
		if begun, err = p.foundBeginning(uid, position); err != nil {
			return err
		}
	}
	err := p.undo(ctx, uid, begun, p.cleaner.IsUnneeded)
	if removal.IsKept(err) {
		p.Logger.Info("Kept the volume of an unfinished attempt", "claimUID", uid, "backend", begun.Backend, "reason", err)
		return nil
	}
	return err
}

// foundBeginning returns the beginning of a claim that only a listing shows.
func (p *Provisioner) foundBeginning(uid types.UID, position ledger.Position) (journal.Beginning, error) {
	connector, err := p.Backends.Connector(position.Backend)
	return journal.Beginning{Backend: position.Backend, Stamp: p.stampOf(uid, position.Tenant), Connector: connector}, err
}

// stampOf returns the part of a claim's stamp that identifies its volumes.
func (p *Provisioner) stampOf(uid types.UID, tenant string) stamps.Volume {
	return stamps.Volume{Cluster: p.Cluster, ClusterUID: p.ClusterUID, ClaimUID: string(uid), PV: objects.PVNameFor(string(uid)), Tenant: tenant}
}

// undo removes the volumes and the Secrets of a claim, if it has the proof that
// it may. It removes the Secret last, because it may belong to a volume that is
// kept deliberately; removal.IsKept then reports true for the error. It stops when
// the context ends: the next leader finds what is left.
func (p *Provisioner) undo(ctx context.Context, uid types.UID, begun journal.Beginning, prove backends.Permit) error {
	ctx, requests := requestids.WithRequestIDs(ctx)
	ctx = p.OnBehalfOf(ctx, begun.Stamp.Tenant)
	volumes, err := p.Backends.Volumes(begun.Backend)
	if err != nil {
		return err
	}
	err = volumes.Abandon(ctx, begun.Stamp, begun.Connector, p.cleaner.Permit(prove))
	if removal.IsKept(err) {
		p.finish(uid)
		p.ledger.Keep(uid)
	}
	if err != nil {
		return err
	}
	p.journal.NoteUndone(uid, begun)
	// A Secret may exist without a volume.
	err = p.cleaner.RemoveSecret(ctx, begun.Stamp.PV)
	switch {
	case removal.IsKept(err):
		// The PersistentVolume was saved in the meantime, and names a volume that is gone.
		p.followup.add(completionOf(begun.Stamp.PV))
	case err != nil:
		return err
	}
	// The shared Secret goes last: others may need it, and the next leader looks for
	// it.
	shared := p.secrets.UsedBy(uid)
	p.finish(uid)
	p.placement.Release(uid)
	p.secrets.AttemptUndone(ctx, begun.Backend, shared)
	p.Logger.Info("Undid an unfinished attempt", "tenant", begun.Stamp.Tenant, "claim", strings.Trim(begun.Stamp.Namespace+"/"+begun.Stamp.Claim, "/"), "claimUID", uid,
		"persistentVolume", begun.Stamp.PV, "backend", begun.Backend, "requestID", requests.OfDelete())
	return nil
}

// removeDuplicate removes a volume of a claim that has, or will get, another
// one, once a PersistentVolume names the other.
func (p *Provisioner) removeDuplicate(ctx context.Context, item followup) error {
	err := p.cleaner.RemoveVolume(p.OnBehalfOf(ctx, ""), item.backend, item.volume, p.stampOf(item.claim, ""))
	switch {
	case err == nil:
		p.Logger.Warn("Removed a duplicate volume of a claim", "volume", item.volume, "backend", item.backend, "claimUID", item.claim)
	case removal.IsKept(err):
		p.Logger.Info("Kept a duplicate volume of a claim", "volume", item.volume, "backend", item.backend, "claimUID", item.claim, "reason", err)
		return nil
	}
	return err
}

// removeDuplicates queues the duplicates of a recorded volume for removal.
func (p *Provisioner) removeDuplicates(volumes Removing, recorded objects.Origin) {
	for _, id := range volumes.Duplicates(recorded.ClaimUID, recorded.VolumeID) {
		p.followup.add(removalOf(types.UID(recorded.ClaimUID), recorded.Backend, id))
	}
}

// markRecorded notes on a volume that it was recorded. Its PersistentVolume was
// removed before the volume was brought into use, and a later leader must not
// take it for one that was never recorded. A volume that is gone counts no longer: an
// earlier leader removed it, and could not tell this one.
func (p *Provisioner) markRecorded(ctx context.Context, item followup) error {
	volumes, err := p.Backends.Volumes(item.backend)
	if err != nil {
		return err
	}
	err = volumes.Mark(p.OnBehalfOf(ctx, ""), backends.Target{VolumeID: item.volume, Stamp: p.stampOf(item.claim, ""), Place: item.place})
	switch {
	case cinder.IsKind(err, cinder.KindNotFound):
		// Without a place, another project may have answered.
		if item.place.IsKnown() && p.ledger.WasRecorded(item.claim, item.volume) {
			p.placement.ReleaseUnrecorded(item.claim)
		}
		return nil
	case removal.IsKept(err):
		return nil
	}
	return err
}

// recordedBy returns the PersistentVolume that names a volume according to the cache,
// or named it earlier in this term; empty if there is none.
func (p *Provisioner) recordedBy(v cinder.Volume) string {
	if found := objects.ByVolumeID(p.Records, v.ID); len(found) > 0 {
		return found[0].Name
	}
	if stamp := stamps.Of(v); p.ledger.WasRecorded(types.UID(stamp.ClaimUID), v.ID) {
		return stamp.PV + ", which is gone"
	}
	return ""
}

// useOf returns what nodes may list for a volume whose PersistentVolume may have been
// saved; nil if this term created the volume and has not handed over a PersistentVolume
// yet.
func (p *Provisioner) useOf(stamp stamps.Volume) *nodeuse.Volume {
	begun, ok := p.journal.Beginning(types.UID(stamp.ClaimUID))
	if position, _ := p.ledger.PositionOf(types.UID(stamp.ClaimUID)); ok && (begun.HandedOver != nil || position.NothingSeen) {
		return begun.HandedOver
	}
	return &nodeuse.Volume{PV: stamp.PV, MayAttach: true}
}

// cleanUpIfGone queues a claim that was deleted or bound to another
// PersistentVolume while it was being admitted or provisioned: the event came too
// early to find what had to be undone.
func (p *Provisioner) cleanUpIfGone(claim *corev1.PersistentVolumeClaim) {
	current, err := p.Claims.PersistentVolumeClaims(claim.Namespace).Get(claim.Name)
	if apierrors.IsNotFound(err) || err == nil && (current.UID != claim.UID || objects.BoundElsewhere(current)) {
		p.followup.add(undoOf(claim.UID))
	}
}

// finish forgets a claim's attempt and the Secrets that it needed.
func (p *Provisioner) finish(claim types.UID) {
	p.journal.Finish(claim)
	p.secrets.AttemptOver(claim)
}

// undoMisplaced removes what was created for a tenant other than the claim's
// present one, or on a backend that its rule does not name: the namespace's
// labels or the policy have changed, or the stamp is forged. No PersistentVolume
// records it yet.
func (a *attempt) undoMisplaced(ctx context.Context) error {
	if !a.isMisplaced() {
		return nil
	}
	return a.undoBegun(ctx)
}

func (a *attempt) isMisplaced() bool {
	position, ok := a.p.ledger.PositionOf(a.claim.UID)
	return ok && (position.Tenant != a.decision.Tenant || !slices.Contains(a.p.placement.RuleBackends(a.decision), position.Backend))
}

// undoBegun removes what was created for the claim, and frees its room.
func (a *attempt) undoBegun(ctx context.Context) error {
	position, ok := a.p.ledger.PositionOf(a.claim.UID)
	if !ok {
		return nil
	}
	begun, ok := a.p.journal.Beginning(a.claim.UID)
	if !ok && position.NothingSeen {
		a.p.placement.GiveBack(a.claim.UID)
		return nil
	}
	if !ok {
		connector, err := a.p.Backends.Connector(position.Backend)
		if err != nil {
			return err
		}
		begun = journal.Beginning{Backend: position.Backend, Connector: connector, Stamp: a.p.stampOf(a.claim.UID, position.Tenant)}
	}
	a.backend = begun.Backend
	return a.undo(ctx, begun)
}

// undoRefused undoes the attempt after a connection that cannot be mapped. A
// volume that cannot be mounted must not stay and use quota.
func (a *attempt) undoRefused(ctx context.Context, refusal error) error {
	var refused *mappers.Refusal
	if !errors.As(refusal, &refused) {
		return refusal
	}
	return a.undoMade(ctx, objects.RefusalError(a.backend, refused))
}

// undoMade undoes the attempt because of a volume that must not stay.
func (a *attempt) undoMade(ctx context.Context, cause error) error {
	err := a.undo(ctx, journal.Beginning{Backend: a.backend, Stamp: a.stamp, Connector: a.connector})
	if err != nil {
		return fmt.Errorf("%w (its volume cannot be removed yet: %s)", cause, err.Error())
	}
	return cause
}

// releaseIfNothing frees the room of an attempt that provably left no volume, so
// that a claim that Cinder rejects does not use quota between attempts.
func (a *attempt) releaseIfNothing(ctx context.Context, volumes Connecting) {
	// A listing does not show what Cinder is still about to create.
	if exists, err := volumes.HasVolumeOf(ctx, a.stamp); err == nil && !exists && volumes.KnowsNothingOf(a.stamp) {
		a.p.finish(a.claim.UID)
		a.p.placement.ReleaseUnrecorded(a.claim.UID)
	}
}

// undoIfGone undoes a failed attempt at once if its claim is gone. Otherwise the
// next attempt continues from what was done.
func (a *attempt) undoIfGone(ctx context.Context, cause error) error {
	if !errors.Is(a.stillWanted(), errClaimGone) || a.p.stopping() {
		return cause
	}
	begun := journal.Beginning{Backend: a.backend, Stamp: a.stamp, Connector: a.connector}
	err := a.undo(ctx, begun)
	if err != nil && !removal.IsKept(err) {
		// The library forgets the claim; the follow-up does not (cleanUpIfGone).
		a.p.journal.Begin(a.claim.UID, begun)
		return fmt.Errorf("claim %s/%s was deleted while it was being provisioned, and its volume cannot be removed yet: %w", a.claim.Namespace, a.claim.Name, err)
	}
	return errClaimGone
}

// undo removes what was created for the claim. The caller knows that the claim
// does not need it, so the proof is only that it is unrecorded.
func (a *attempt) undo(ctx context.Context, begun journal.Beginning) error {
	return a.p.undo(ctx, a.claim.UID, begun, a.p.cleaner.IsUnrecorded)
}
