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
}

// New returns a term's Placer.
func New(options Options) *Placer {
	return &Placer{
		Options: options, counting: newCounting(options),
		cinderQuotas: cinderQuotas{full: map[fullAt]fullness{}, ledger: options.Ledger}, failures: failures{rounds: map[types.UID]round{}},
	}
}

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
