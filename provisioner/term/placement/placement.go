// Package placement decides where volumes go, and counts where they are, using the
// listings behind the ledger and Cinder's own quotas. It returns decisions for the caller
// to carry out.
package placement

import (
	"context"
	"sync"

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
	counting *counting
	freed    chan struct{}

	mu sync.Mutex
	// full is where Cinder's own quotas lack room. expired lists the backends whose entry
	// in full has expired since the last TakeFreed.
	full    map[fullAt]fullness
	expired []string
	// rounds are the rounds of claims for which Cinder could not make a volume.
	rounds map[types.UID]round
}

// New returns a term's Placer.
func New(options Options) *Placer {
	return &Placer{Options: options, counting: newCounting(), freed: make(chan struct{}, 1), full: map[fullAt]fullness{}, rounds: map[types.UID]round{}}
}

// Record counts a PersistentVolume's volume and, if another tenant has it now, offers the
// freed room.
func (p *Placer) Record(uid types.UID, volume ledger.Volume, backend string) {
	if p.Ledger.Record(uid, volume, backend) {
		p.roomFreed()
	}
}

// Release frees the room of a claim's volume and offers it to denied claims.
func (p *Placer) Release(uid types.UID) {
	if p.Ledger.Release(uid) {
		p.roomFreed()
	}
}

// GiveBack frees room that was reserved for a volume that was never created.
func (p *Placer) GiveBack(uid types.UID) {
	if p.Ledger.ReleaseReservation(uid) {
		p.roomFreed()
	}
}

// ReleaseUnrecorded frees the room of a claim that provably has no volume.
func (p *Placer) ReleaseUnrecorded(uid types.UID) {
	if p.Ledger.ReleaseUnrecorded(uid) {
		p.roomFreed()
	}
}

// roomFreed signals that the ledger has freed room.
func (p *Placer) roomFreed() {
	select {
	case p.freed <- struct{}{}:
	default: // the signal is already set
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
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, backend := range p.expired {
		triggers = append(triggers, RoomIn(ledger.Scope{Kind: policy.BackendScope, Name: backend}))
	}
	p.expired = nil
	return triggers
}
