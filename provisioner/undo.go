package provisioner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/removal"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/journal"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/ledger"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/placement"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/requestids"
)

// orphans removes what is no longer needed: volumes and Secrets of deleted or denied
// claims, and leftovers of late requests.
type orphans struct {
	identity
	*memory
	cleaner      removal.Cleaner
	placement    *placement.Placer
	backends     Backends
	rates        *tenantRates
	tasks        *tasks
	followup     *Followup
	parkedClaims *parkedClaims
	imports      *imports
	cachedPVs    corelisters.PersistentVolumeLister
	logger       *slog.Logger
	// owners hold something about a claim until it is gone.
	owners []forgetter
}

// forgetter drops what it holds about a claim that is gone.
type forgetter interface{ Forget(claim types.UID) }

func newOrphans(o *orphans) *orphans {
	o.tasks.handle(undo, func(ctx context.Context, item followup) error { return o.claimGone(ctx, item.claim) })
	o.tasks.handle(removeOne, o.removeDuplicate)
	o.tasks.handle(mark, o.markRecorded)
	return o
}

// claimGone undoes what this term began for a claim that was deleted or bound to another
// PersistentVolume before its volume was recorded, and what an earlier leader began if a
// listing showed its volume. It forgets no claim that the cache shows as pending. The
// caller must retry after an error.
func (o *orphans) claimGone(ctx context.Context, uid types.UID) error {
	claim := objects.ClaimByUID(o.indexedClaims, uid)
	isPending := claim != nil && claim.Spec.VolumeName == ""
	if !isPending {
		for _, owner := range o.owners {
			owner.Forget(uid)
		}
	}
	begun, ok := o.journal.Beginning(uid)
	if !ok {
		if isPending {
			// The cache showed the claim later than a listing its volume, which the claim
			// will use.
			return nil
		}
		position, _ := o.ledger.PositionOf(uid)
		if position.Imported {
			return nil // its import ends what it began
		}
		if !o.ledger.IsFound(uid, position.Backend) {
			o.ledger.ReleaseReservation(uid)
			return nil
		}
		var err error
		if begun, err = o.foundBeginning(uid, position); err != nil {
			return err
		}
	}
	err := o.undo(ctx, uid, begun, o.cleaner.IsUnneeded)
	if removal.IsKept(err) {
		o.logger.Info("Kept the volume of an unfinished attempt", "claimUID", uid, "backend", begun.Backend, "reason", err)
		return nil
	}
	return err
}

// foundBeginning returns the beginning of a claim known only from a listing.
func (o *orphans) foundBeginning(uid types.UID, position ledger.Position) (journal.Beginning, error) {
	connector, err := o.backends.Connector(position.Backend)
	return journal.Beginning{Backend: position.Backend, Stamp: o.stampOf(uid, position.Tenant), Connector: connector}, err
}

// undo removes a claim's volumes and Secrets once it has proof that it may. The Secret
// goes last, because it may belong to a volume kept on purpose; removal.IsKept then
// reports true for the error. undo stops when the context ends; the next leader finds
// what is left.
func (o *orphans) undo(ctx context.Context, uid types.UID, begun journal.Beginning, prove backends.Permit) error {
	ctx, requests := requestids.WithRequestIDs(ctx)
	ctx = o.rates.OnBehalfOf(ctx, begun.Stamp.Tenant)
	volumes, err := o.backends.Unrecorded(begun.Backend)
	if err != nil {
		return err
	}
	err = volumes.Abandon(ctx, begun.Stamp, begun.Connector, o.cleaner.Permit(prove))
	if removal.IsKept(err) {
		o.journal.Finish(uid)
		o.ledger.Keep(uid)
	}
	if err != nil {
		return err
	}
	o.journal.NoteUndone(uid, begun)
	// A Secret may exist without a volume.
	err = o.cleaner.RemoveSecret(ctx, begun.Stamp.PV)
	switch {
	case removal.IsKept(err):
		// The PersistentVolume was saved meanwhile and names a volume that is gone.
		o.tasks.add(completionOf(begun.Stamp.PV))
	case err != nil:
		return err
	}
	o.journal.Finish(uid)
	o.ledger.Release(uid)
	o.logger.Info("Undid an unfinished attempt", "tenant", begun.Stamp.Tenant, "claim", strings.Trim(begun.Stamp.Namespace+"/"+begun.Stamp.Claim, "/"), "claimUID", uid,
		"persistentVolume", begun.Stamp.PV, "backend", begun.Backend, "requestID", requests.OfDelete())
	return nil
}

// removeDuplicate removes a volume of a claim that has, or will get, another one, once a
// PersistentVolume names that other one.
func (o *orphans) removeDuplicate(ctx context.Context, item followup) error {
	err := o.cleaner.RemoveVolume(o.rates.OnBehalfOf(ctx, ""), item.backend, item.volume, o.stampOf(item.claim, ""))
	switch {
	case err == nil:
		o.logger.Warn("Removed a duplicate volume of a claim", "volume", item.volume, "backend", item.backend, "claimUID", item.claim)
	case removal.IsKept(err):
		o.logger.Info("Kept a duplicate volume of a claim", "volume", item.volume, "backend", item.backend, "claimUID", item.claim, "reason", err)
		return nil
	}
	return err
}

// markRecorded marks a volume as recorded. Its PersistentVolume was removed before the
// volume was brought into use, and a later leader must not take the volume for one that
// was never recorded. A volume that is gone no longer counts: an earlier leader removed
// it and could not tell this one.
func (o *orphans) markRecorded(ctx context.Context, item followup) error {
	volumes, err := o.backends.Recorded(item.backend)
	if err != nil {
		return err
	}
	err = volumes.Mark(o.rates.OnBehalfOf(ctx, ""), backends.Target{VolumeID: item.volume, Stamp: o.stampOf(item.claim, ""), Place: item.place})
	switch {
	case cinder.IsKind(err, cinder.KindNotFound):
		// Without an endpoint, another project may have answered.
		if item.place.IsKnown() && o.ledger.WasRecorded(item.claim, item.volume) {
			o.ledger.ReleaseUnrecorded(item.claim)
		}
		return nil
	case removal.IsKept(err):
		return nil
	}
	return err
}

// undoMisplaced removes what was created for another tenant than the claim's current one,
// or on a backend outside its rule: the namespace's labels or the policy have changed, or
// the stamp is forged. No PersistentVolume records it yet.
func (a *attempt) undoMisplaced(ctx context.Context) error {
	if !a.isMisplaced() {
		return nil
	}
	return a.undoBegun(ctx)
}

func (a *attempt) isMisplaced() bool {
	position, ok := a.ledger.PositionOf(a.claim.UID)
	return ok && (position.Tenant != a.decision.Tenant || !slices.Contains(a.placement.RuleBackends(a.decision), position.Backend))
}

// undoBegun removes what was created for the claim, and frees its room.
func (a *attempt) undoBegun(ctx context.Context) error {
	position, ok := a.ledger.PositionOf(a.claim.UID)
	if !ok {
		return nil
	}
	begun, ok := a.journal.Beginning(a.claim.UID)
	if !ok && position.NothingSeen {
		a.ledger.ReleaseReservation(a.claim.UID)
		return nil
	}
	if !ok {
		connector, err := a.backends.Connector(position.Backend)
		if err != nil {
			return err
		}
		begun = journal.Beginning{Backend: position.Backend, Connector: connector, Stamp: a.stampOf(a.claim.UID, position.Tenant)}
	}
	a.backend = begun.Backend
	return a.undo(ctx, begun)
}

// undoRefused undoes the attempt if the connection cannot be mapped: a volume that cannot
// be mounted must not occupy quota.
func (a *attempt) undoRefused(ctx context.Context, refusal error) error {
	var refused *mappers.Refusal
	if !errors.As(refusal, &refused) {
		return refusal
	}
	return a.undoMade(ctx, objects.RefusalError(a.backend, refused))
}

// undoMade undoes the attempt for a volume that must not stay.
func (a *attempt) undoMade(ctx context.Context, cause error) error {
	err := a.undo(ctx, journal.Beginning{Backend: a.backend, Stamp: a.stamp, Connector: a.connector})
	if err != nil {
		return fmt.Errorf("%w (its volume cannot be removed yet: %s)", cause, err.Error())
	}
	return cause
}

// releaseIfNothing frees the room of an attempt that provably left no volume, so that a
// claim that Cinder rejects occupies no quota between attempts.
func (a *attempt) releaseIfNothing(ctx context.Context) {
	volumes, err := a.backends.Listing(a.backend)
	if err != nil {
		return
	}
	// A listing does not show what Cinder is still about to create.
	if exists, err := volumes.HasVolumeOf(ctx, a.stamp); err == nil && !exists && volumes.KnowsNothingOf(a.stamp) {
		a.journal.Finish(a.claim.UID)
		a.ledger.ReleaseUnrecorded(a.claim.UID)
	}
}

// undoIfGone undoes a failed attempt at once if its claim is gone. Otherwise the next
// attempt continues where this one stopped.
func (a *attempt) undoIfGone(ctx context.Context, cause error) error {
	if !errors.Is(a.stillWanted(), errClaimGone) || a.stopping() {
		return cause
	}
	begun := journal.Beginning{Backend: a.backend, Stamp: a.stamp, Connector: a.connector}
	err := a.undo(ctx, begun)
	if err != nil && !removal.IsKept(err) {
		// The library forgets the claim; the follow-up does not (cleanUpIfGone).
		a.journal.Begin(a.claim.UID, begun)
		return fmt.Errorf("claim %s/%s was deleted while it was being provisioned, and its volume cannot be removed yet: %w", a.claim.Namespace, a.claim.Name, err)
	}
	return errClaimGone
}

// undo removes what was created for the claim. The caller knows that the claim does not
// need it, so it only proves that no PersistentVolume records it.
func (a *attempt) undo(ctx context.Context, begun journal.Beginning) error {
	return a.orphans.undo(ctx, a.claim.UID, begun, a.orphans.cleaner.IsUnrecorded)
}
