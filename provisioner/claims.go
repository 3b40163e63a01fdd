package provisioner

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	eventrecord "k8s.io/client-go/tools/record"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/policy/admission"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/ledger"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/placement"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

// claims filters claims and parks those that cannot get a volume now. It reads caches and
// changes no volume.
type claims struct {
	identity
	*decider
	*memory
	*ending
	tasks        *tasks
	parkedClaims *parkedClaims
	reschedules  *reschedules
	claimTimes   *claimTimes
	imports      *imports
	cachedClaims corelisters.PersistentVolumeClaimLister
	cachedPVs    corelisters.PersistentVolumeLister
	recorder     eventrecord.EventRecorder
}

// ShouldProvision filters claims: Provision decides about those that belong to this
// program and to no other. A claim without an existing StorageClass is denied here,
// because the library would retry it.
func (c *claims) ShouldProvision(_ context.Context, claim *corev1.PersistentVolumeClaim) bool {
	if c.stopping() || !objects.IsServed(objects.ProvisionerOf(claim), c.name) {
		return false
	}
	defer c.cleanUpIfGone(claim)
	turn := c.parkedClaims.loop.Attempt(string(claim.UID))
	class, err := c.classes.Get(objects.ClassName(claim))
	if err != nil {
		if !c.leftToPopulator(claim) {
			c.denyWithoutClass(turn, claim)
		}
		return false
	}
	if !c.serves(class) {
		// A user wrote the annotation, or the claim is the CSI driver's while no backend
		// is in mode csi: the driver may belong to another installation.
		return false
	}
	switch {
	case c.denyGivenAway(turn, claim), c.leftToPopulator(claim):
		return false
	case c.isImport(claim):
		c.leaveToImport(claim)
		return false
	case lacksNode(claim, class):
		c.awaitNode(claim.UID)
		return false
	}
	return !c.leftToController(turn, claim, class)
}

// leftToPopulator reports whether a volume populator serves a claim. Such a claim is fine
// as it is and is never retried, since its data source never changes.
func (c *claims) leftToPopulator(claim *corev1.PersistentVolumeClaim) bool {
	if _, refused := admission.DataSourceOf(claim, nil); refused != nil && refused.Reason == policy.AwaitsPopulator {
		c.parkedClaims.leave(claim, *refused)
		return true
	}
	return false
}

// leftToController reports whether an existing PersistentVolume satisfies a claim, which
// Kubernetes then binds to it. Kubernetes looks for one before it names a provisioner, but
// a claim may have had that name from its creation.
func (c *claims) leftToController(turn *turn, claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) bool {
	if admission.ClassOf(class).WaitsForPod || c.mayHaveVolume(claim.UID) {
		return false
	}
	pv := objects.AvailableFor(c.records, claim)
	if pv == nil {
		return false
	}
	c.ledger.ReleaseReservation(claim.UID)
	c.claimTimes.restart(claim.UID)
	c.parkedClaims.loop.Leave(string(claim.UID))
	c.parkedClaims.leave(claim, policy.Denial{Reason: reasonAvailable, Message: fmt.Sprintf("PersistentVolume %s satisfies the claim, so Kubernetes binds the two", pv.Name)})
	turn.Await(parking.Trigger{Kind: parking.Volume, Name: pv.Name}, parking.Trigger{Kind: parking.Class, Name: class.Name})
	return true
}

// reasonAvailable is why a claim is left to the PersistentVolume controller.
const reasonAvailable policy.Reason = "VolumeAvailable"

// isImport reports whether a claim gets an existing Cinder volume: its author asks for
// one and no new volume was begun, or an import was begun (perhaps finished) and
// Kubernetes has not bound the claim yet. The path that reserves room for the claim first
// wins, and the other leaves it alone.
func (c *claims) isImport(claim *corev1.PersistentVolumeClaim) bool {
	if position, counts := c.ledger.PositionOf(claim.UID); counts && position.Imported {
		return true
	}
	return objects.AsksForImport(claim) && !c.mayHaveVolume(claim.UID)
}

// leaveToImport hands a claim over to the import: its author asked for an existing volume
// before a new one was begun.
func (c *claims) leaveToImport(claim *corev1.PersistentVolumeClaim) {
	if position, counts := c.ledger.PositionOf(claim.UID); counts && !position.Imported {
		c.ledger.ReleaseReservation(claim.UID)
	}
	c.parkedClaims.Forget(claim.UID)
	if c.imports.Importer != nil {
		c.imports.Consider(claim)
	}
}

// RequeueClaim queues a claim that is not imported after all.
func (c *claims) RequeueClaim(claim *corev1.PersistentVolumeClaim) {
	c.parkedClaims.requeue(claim.UID)
}

// denyWithoutClass denies a claim whose StorageClass is not cached. The claim is retried
// when the class appears. No request is made for it, because any user who may create
// claims could create such claims in a loop.
func (c *claims) denyWithoutClass(turn *turn, claim *corev1.PersistentVolumeClaim) {
	name := objects.ClassName(claim)
	message := "the claim names no StorageClass; replace it with a claim that does"
	if name != "" {
		message = fmt.Sprintf("StorageClass %q does not exist; create it, or replace the claim with one that names another", name)
	}
	c.deny(turn, claim, placement.Denial{Reason: "StorageClassNotFound", Message: message})
}

// choose chooses the backend of a claim, which may leave another backend.
func (c *claims) choose(ctx context.Context, claim *corev1.PersistentVolumeClaim, class string, d ledger.Decided) (placement.Choice, error) {
	if c.placement.MayLeave(claim, d) {
		c.journal.Finish(claim.UID)
		c.ledger.ReleaseReservation(claim.UID)
	}
	return c.placement.Choose(ctx, claim, class, d)
}

// backendFor returns the backend that a claim's turn counts against.
func (c *claims) backendFor(uid types.UID, d ledger.Decided) string {
	if position, ok := c.ledger.PositionOf(uid); ok {
		return position.Backend
	}
	return d.Backends[0]
}

// deny parks a claim and reports the reason: once per reason, and again before the event
// expires.
func (c *claims) deny(turn *turn, claim *corev1.PersistentVolumeClaim, denied placement.Denial) {
	if _, begun := c.journal.Beginning(claim.UID); !begun {
		// An earlier decision may have reserved room.
		c.ledger.ReleaseReservation(claim.UID)
	}
	if denied.Reason != placement.ReasonBackendUnavailable {
		// Time spent denied by the policy does not count as our latency.
		c.claimTimes.restart(claim.UID)
	}
	c.placement.Forget(claim.UID)
	c.parkedClaims.loop.Leave(string(claim.UID))
	c.parkedClaims.report(claim, denied.Reason, denied.Message)
	always := []parking.Trigger{{Kind: parking.Policy}, {Kind: parking.Namespace, Name: claim.Namespace}, {Kind: parking.Class, Name: objects.ClassName(claim)}}
	if named := admission.AttributesOf(claim); named != nil {
		always = append(always, parking.Trigger{Kind: parking.Attributes, Name: named.Name})
	}
	c.parkedClaims.park(turn, claim, denied.State(), append(always, denied.Triggers...))
}

// cleanUpIfGone queues a claim that was deleted or bound to another PersistentVolume
// during the attempt: its event came too early to find anything to undo.
func (c *claims) cleanUpIfGone(claim *corev1.PersistentVolumeClaim) {
	current, err := c.cachedClaims.PersistentVolumeClaims(claim.Namespace).Get(claim.Name)
	if apierrors.IsNotFound(err) || err == nil && (current.UID != claim.UID || objects.BoundElsewhere(current)) {
		c.tasks.add(undoOf(claim.UID))
	}
}

// denyGivenAway denies a claim whose own volume now belongs to another claim, since that
// volume never comes back. It reports whether it did.
func (c *claims) denyGivenAway(turn *turn, claim *corev1.PersistentVolumeClaim) (denied bool) {
	position, _ := c.ledger.PositionOf(claim.UID)
	if pv, err := c.cachedPVs.Get(objects.PVNameOf(claim)); err == nil && c.isMine(pv) && pv.Spec.ClaimRef != nil {
		other := pv.Spec.ClaimRef.UID
		position.Rebound = position.Rebound || other != "" && other != claim.UID
	}
	if position.Rebound {
		c.deny(turn, claim, placement.Denial{Reason: reasonGivenAway, Message: "the volume that was made for this claim has been given to another claim; delete this claim, and create a new one if you need a volume"})
	}
	return position.Rebound
}
