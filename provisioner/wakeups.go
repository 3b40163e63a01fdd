package provisioner

import (
	"context"
	"time"

	"github.com/standalone-cinder/standalone-cinder/provisioner/ledger"
	"github.com/standalone-cinder/standalone-cinder/provisioner/parking"
)

// Parked claims and deletions come back when something happens that could help
// them. This file has the events that other parts of the program report, and
// freed room. The hub's own steps bring some back, too: see parked.go, recount.go,
// sweep.go, persistentvolumes.go and attempt.go. Nothing here polls, or writes
// to the API server.

// Reconsider brings back the denied claims of a namespace after a change of the
// namespace that might admit them.
func (p *Provisioner) Reconsider(namespace string) {
	p.help(parking.Help{Kind: parking.Namespace, Name: namespace})
}

// ReconsiderClass brings back the denied and failing claims of a StorageClass
// that was created again.
func (p *Provisioner) ReconsiderClass(class string) {
	p.help(parking.Help{Kind: parking.Class, Name: class})
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
	p.help(parking.Help{Kind: parking.Policy})
}

// CredentialsChanged brings back what failed at the backends: the old
// credentials may have been the reason.
func (p *Provisioner) CredentialsChanged(backends []string) {
	helps := make([]parking.Help, len(backends))
	for i, name := range backends {
		helps[i] = parking.Help{Kind: parking.Credentials, Name: name}
	}
	p.help(helps...)
}

// BackendAnswers brings back what waited for a backend or failed at it, and
// claims that could go to it.
func (p *Provisioner) BackendAnswers(name string) {
	p.help(parking.Help{Kind: parking.Backend, Name: name})
}

// NodeChanged brings back the deletions that wait for a node to release a
// volume: the node may have released it, or be gone.
func (p *Provisioner) NodeChanged(name string) { p.help(parking.Help{Kind: parking.Node, Name: name}) }

// help brings back what the helps may help, the oldest claims first.
func (p *Provisioner) help(helps ...parking.Help) {
	p.parked.help(helps)
	p.followup.help(helps)
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
		select {
		case <-ctx.Done():
			return
		case <-time.After(gatherFreedRoom):
		}
		var helps []parking.Help
		for _, s := range p.placement.takeFreed() {
			helps = append(helps, roomOf(s))
		}
		p.help(helps...)
	}
}

// roomOf is the help of freed room in a quota's scope.
func roomOf(s ledger.Scope) parking.Help {
	return parking.Help{Kind: parking.Room, Name: string(s.Kind) + " " + s.Name}
}

func backendHelps(names []string) []parking.Help {
	helps := make([]parking.Help, len(names))
	for i, name := range names {
		helps[i] = parking.Help{Kind: parking.Backend, Name: name}
	}
	return helps
}
