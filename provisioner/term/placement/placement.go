// Package placement decides where volumes go, and counts where they are, using the
// listings behind the ledger and Cinder's own quotas. It returns decisions for the caller
// to carry out.
package placement

import (
	"context"

	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/ledger"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

// Volumes is what placement needs of one backend.
type Volumes interface {
	// Volumes lists the cluster's volumes, once in a term.
	Volumes(ctx context.Context) ([]cinder.Volume, error)
	// Relist lists them again.
	Relist(ctx context.Context) ([]cinder.Volume, error)
	// KnowsNothingOf reports whether this term provably created nothing for the claim.
	KnowsNothingOf(stamp stamps.Volume) bool
	// Health returns nil while the backend answers.
	Health() error
}

// Options configure a Placer.
type Options struct {
	// Policy returns the policy in force.
	Policy func() *policy.Policy
	Ledger *ledger.Ledger
	// Backends lists every configured backend. Volumes returns an error for an
	// unconfigured name; it may reconfigure the backend, which may call Recount.
	Backends func() []string
	Volumes  func(backend string) (Volumes, error)
	// Unfinished returns the stamp of a claim's unfinished attempt.
	Unfinished func(claim types.UID) (stamp stamps.Volume, begun bool)
	// Term ends with the lease.
	Term context.Context
}

// Placer places the volumes of one term. While it holds a mutex, it calls neither a
// backend nor its caller. It signals freed room through a channel.
type Placer struct {
	Options
	*counting
	cinderQuotas
	failures
	// freed means that the ledger, or Cinder's own quotas, may have room again.
	freed signal
}

// signal has a value while something waits for its receiver.
type signal chan struct{}

func (s signal) set() {
	select {
	case s <- struct{}{}:
	default: // the receiver has not handled the last one yet
	}
}

// New returns a term's Placer.
func New(options Options) *Placer {
	freed := make(signal, 1)
	return &Placer{
		Options: options, counting: newCounting(options, freed), freed: freed,
		cinderQuotas: cinderQuotas{full: map[fullAt]fullness{}, freed: freed}, failures: failures{rounds: map[types.UID]round{}},
	}
}

// Record counts a PersistentVolume's volume and, if another tenant has it now, offers the
// freed room.
func (p *Placer) Record(uid types.UID, volume ledger.Volume, backend string) {
	if p.Ledger.Record(uid, volume, backend) {
		p.freed.set()
	}
}

// Release frees the room of a claim's volume and offers it to denied claims.
func (p *Placer) Release(uid types.UID) {
	if p.Ledger.Release(uid) {
		p.freed.set()
	}
}

// GiveBack frees room that was reserved for a volume that was never created.
func (p *Placer) GiveBack(uid types.UID) {
	if p.Ledger.ReleaseReservation(uid) {
		p.freed.set()
	}
}

// ReleaseUnrecorded frees the room of a claim that provably has no volume.
func (p *Placer) ReleaseUnrecorded(uid types.UID) {
	if p.Ledger.ReleaseUnrecorded(uid) {
		p.freed.set()
	}
}

// Freed returns a channel that has a value while freed room waits to be offered to
// claims.
func (p *Placer) Freed() <-chan struct{} { return p.freed }

// TakeFreed returns the triggers of the quotas in which room was freed since the last
// call.
func (p *Placer) TakeFreed() []parking.Trigger {
	var triggers []parking.Trigger
	for _, scope := range p.Ledger.TakeFreed() {
		triggers = append(triggers, RoomIn(scope))
	}
	for _, backend := range p.takeExpired() {
		triggers = append(triggers, RoomIn(ledger.Scope{Kind: policy.BackendScope, Name: backend}))
	}
	return triggers
}
