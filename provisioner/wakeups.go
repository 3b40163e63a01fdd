package provisioner

import (
	"context"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/copies"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/placement"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

// wakeups publishes what other parts of the program report, and freed room, so that parked
// work comes back. The hub's own steps bring some back, too: see parked.go, sweep.go,
// persistentvolumes.go and attempt.go. Nothing here polls, or writes to the API server.
type wakeups struct {
	board        *parking.Board
	sources      *copies.Resolver
	placement    *placement.Placer
	policy       func() *policy.Policy
	backends     Backends
	cachedClaims corelisters.PersistentVolumeClaimLister
	parkedClaims *parkedClaims
	followup     *Followup
	logger       *slog.Logger
}

// Reconsider brings back the denied claims of a namespace after a change of the
// namespace that might admit them.
func (w *wakeups) Reconsider(namespace string) {
	w.board.Publish(parking.Trigger{Kind: parking.Namespace, Name: namespace})
}

// ReconsiderClass brings back the denied and failing claims of a StorageClass
// that was created again.
func (w *wakeups) ReconsiderClass(class string) {
	w.board.Publish(parking.Trigger{Kind: parking.Class, Name: class})
}

// attributesTrigger fires when a VolumeAttributesClass is created.
func attributesTrigger(name string) parking.Trigger {
	return parking.Trigger{Kind: parking.Object, Name: "volumeattributesclass " + name}
}

// ReconsiderAttributes brings back the denied claims that name a VolumeAttributesClass
// that was created.
func (w *wakeups) ReconsiderAttributes(class string) { w.board.Publish(attributesTrigger(class)) }

// SourceChanged brings back the claims that want the content of this one.
func (w *wakeups) SourceChanged(namespace, claim string) {
	w.board.Publish(w.sources.ClaimChanged(namespace, claim)...)
}

// PopulatedChanged brings back the populators' claims that are to fill this one.
func (w *wakeups) PopulatedChanged(claim *corev1.PersistentVolumeClaim) {
	w.board.Publish(w.sources.PopulatedChanged(claim)...)
}

// PolicyChanged brings back everything that was denied or failed under the
// previous policy.
func (w *wakeups) PolicyChanged() {
	for _, name := range w.backends.Names() {
		// A claim may already have caused the count of a new backend.
		if !w.placement.IsCounted(name) || !w.followup.hasListed(name) {
			w.placement.RequestCount(name)
		}
	}
	w.board.Publish(parking.Trigger{Kind: parking.Policy})
	w.requeueCSIClaims()
}

// requeueCSIClaims brings back claims whose StorageClasses name the CSI driver, which
// were left alone while nothing was in mode csi.
func (w *wakeups) requeueCSIClaims() {
	if !w.policy().UsesCSI() {
		return
	}
	all, err := w.cachedClaims.List(labels.Everything())
	if err != nil {
		w.logger.Error("Cannot list the claims in the cache", "error", err)
		return
	}
	var keys []string
	for _, claim := range all {
		if claim.Spec.VolumeName == "" && objects.ProvisionerOf(claim) == policy.CSIDriver {
			keys = append(keys, string(claim.UID))
		}
	}
	w.parkedClaims.loop.Add(keys...)
}

// CredentialsChanged brings back what failed at the backends: the old
// credentials may have been the reason.
func (w *wakeups) CredentialsChanged(backends []string) {
	triggers := make([]parking.Trigger, len(backends))
	for i, name := range backends {
		triggers[i] = parking.Trigger{Kind: parking.Credentials, Name: name}
	}
	w.board.Publish(triggers...)
}

// BackendAnswers brings back what waited for a backend or failed at it, and
// claims that could go to it.
func (w *wakeups) BackendAnswers(name string) {
	w.board.Publish(parking.Trigger{Kind: parking.Backend, Name: name})
}

// Recount counts a backend again after its endpoint has changed, and brings back what
// failed at the old endpoint. Changed credentials may have brought that back too early,
// because only the next login shows the new endpoint.
func (w *wakeups) Recount(name string) {
	w.placement.Recount(name)
	w.board.Publish(parking.Trigger{Kind: parking.Backend, Name: name})
}

// NoteEarlier records which claims existed before the term. An earlier leader
// can only have created volumes for those. Before this call, every claim counts
// as an earlier one.
func (w *wakeups) NoteEarlier(claims objects.EarlierClaims) {
	w.placement.NoteEarlier(claims)
	w.board.Publish(parking.Trigger{Kind: parking.Earlier})
}

// NodeChanged brings back the deletions that wait for a node to release a
// volume: the node may have released it, or be gone.
func (w *wakeups) NodeChanged(name string) {
	w.board.Publish(parking.Trigger{Kind: parking.Node, Name: name})
}

// SnapshotChanged brings back the claims that want the content of a
// VolumeSnapshot.
func (w *wakeups) SnapshotChanged(namespace, name string) {
	w.board.Publish(w.sources.SnapshotChanged(namespace, name)...)
}

// gatherFreedRoom is how long freed room accumulates before it is offered, because one
// freed volume brings back as many claims as a hundred.
const gatherFreedRoom = 200 * time.Millisecond

// offerFreedRoom brings back only the claims that wait for room in the quotas
// where room was freed. It ends with the context.
func (w *wakeups) offerFreedRoom(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.placement.Freed():
		}
		if !pause(ctx, gatherFreedRoom) {
			return
		}
		w.board.Publish(w.placement.TakeFreed()...)
	}
}
