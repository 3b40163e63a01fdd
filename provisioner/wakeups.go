package provisioner

import (
	"context"
	"log/slog"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/placement"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

// wakeups retries parked work when another part of the program reports a change or room
// is freed. The hub itself also does so: see parked.go, sweep.go, persistentvolumes.go
// and attempt.go. Nothing here polls or writes to the API server.
type wakeups struct {
	board        *parking.Board
	placement    *placement.Placer
	policy       func() *policy.Policy
	backends     Backends
	cachedClaims corelisters.PersistentVolumeClaimLister
	parkedClaims *parkedClaims
	followup     *Followup
	logger       *slog.Logger
}

// PolicyChanged retries everything that was denied or failed under the previous policy.
func (w *wakeups) PolicyChanged() {
	for _, name := range w.backends.Names() {
		// A claim may already have triggered the count of a new backend.
		if !w.placement.IsCounted(name) || !w.followup.hasListed(name) {
			w.placement.RequestCount(name)
		}
	}
	w.board.Publish(parking.Trigger{Kind: parking.Policy})
	w.requeueCSIClaims()
}

// requeueCSIClaims requeues claims whose StorageClasses name the CSI driver; they were
// ignored while no backend was in mode csi.
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

// Recount counts a backend again after its endpoint has changed, and retries what failed
// at the old one. Changed credentials may have triggered that retry too early, because
// only the next login shows the new endpoint.
func (w *wakeups) Recount(name string) {
	w.placement.Recount(name)
	w.board.Publish(parking.Trigger{Kind: parking.Backend, Name: name})
}

// NoteEarlier records which claims existed before the term: an earlier leader can only
// have created volumes for those. Until it is called, every claim counts as such.
func (w *wakeups) NoteEarlier(claims objects.EarlierClaims) {
	w.placement.NoteEarlier(claims)
	w.board.Publish(parking.Trigger{Kind: parking.Earlier})
}

// gatherFreedRoom is how long freed room accumulates before it is offered: one freed
// volume retries as many claims as a hundred.
const gatherFreedRoom = 200 * time.Millisecond

// offerFreedRoom retries only the claims that wait for the quotas where room was freed.
// It ends with the context.
func (w *wakeups) offerFreedRoom(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.placement.Ledger.Freed():
		}
		if !pause(ctx, gatherFreedRoom) {
			return
		}
		w.board.Publish(w.placement.TakeFreed()...)
	}
}
