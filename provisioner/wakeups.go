package provisioner

import (
	"context"
	"time"

	"github.com/standalone-cinder/standalone-cinder/provisioner/ledger"
	"github.com/standalone-cinder/standalone-cinder/provisioner/parking"
)

// Parked claims and deletions come back when one of their triggers fires. This
// file has the events that other parts of the program report, and
// freed room. The hub's own steps bring some back, too: see parked.go, recount.go,
// sweep.go, persistentvolumes.go and attempt.go. Nothing here polls, or writes
// to the API server.

// Reconsider brings back the denied claims of a namespace after a change of the
// namespace that might admit them.
func (p *Provisioner) Reconsider(namespace string) {
	p.wake(parking.Trigger{Kind: parking.Namespace, Name: namespace})
}

// ReconsiderClass brings back the denied and failing claims of a StorageClass
// that was created again.
func (p *Provisioner) ReconsiderClass(class string) {
	p.wake(parking.Trigger{Kind: parking.Class, Name: class})
}

// PolicyChanged brings back everything that was denied or failed under the
// previous policy.
func (p *Provisioner) PolicyChanged() {
	p.claimTurns.Recheck()
	p.volumeTurns.Recheck()
	for _, name := range p.Backends.Names() {
		if !p.placement.isCounted(name) {
			p.placement.requestCount(name)
		}
	}
	p.wake(parking.Trigger{Kind: parking.Policy})
}

// CredentialsChanged brings back what failed at the backends: the old
// credentials may have been the reason.
func (p *Provisioner) CredentialsChanged(backends []string) {
	triggers := make([]parking.Trigger, len(backends))
	for i, name := range backends {
		triggers[i] = parking.Trigger{Kind: parking.Credentials, Name: name}
	}
	p.wake(triggers...)
}

// BackendAnswers brings back what waited for a backend or failed at it, and
// claims that could go to it.
func (p *Provisioner) BackendAnswers(name string) {
	p.wake(parking.Trigger{Kind: parking.Backend, Name: name})
}

// NodeChanged brings back the deletions that wait for a node to release a
// volume: the node may have released it, or be gone.
func (p *Provisioner) NodeChanged(name string) {
	p.wake(parking.Trigger{Kind: parking.Node, Name: name})
}

// wake requeues everything that waits for any of these triggers, oldest claims
// first.
func (p *Provisioner) wake(triggers ...parking.Trigger) {
	p.parked.wake(triggers)
	p.followup.wake(triggers)
}

// gatherFreedRoom is how long freed room gathers before it is offered: one freed
// volume brings back as many claims as a hundred.
const gatherFreedRoom = 200 * time.Millisecond

// offerFreedRoom brings back only the claims that wait for room in the quotas
// where room was freed. It ends with the context.
func (p *Provisioner) offerFreedRoom(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.placement.freed:
		}
		if !pause(ctx, gatherFreedRoom) {
			return
		}
		var triggers []parking.Trigger
		for _, s := range p.placement.takeFreed() {
			triggers = append(triggers, roomOf(s))
		}
		p.wake(triggers...)
	}
}

// roomOf is the trigger of freed room in a quota's scope.
func roomOf(s ledger.Scope) parking.Trigger {
	return parking.Trigger{Kind: parking.Room, Name: string(s.Kind) + " " + s.Name}
}

func triggersOfBackends(names []string) []parking.Trigger {
	triggers := make([]parking.Trigger, len(names))
	for i, name := range names {
		triggers[i] = parking.Trigger{Kind: parking.Backend, Name: name}
	}
	return triggers
}
