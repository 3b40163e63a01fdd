package provisioner

import (
	"context"
	"time"

	"github.com/standalone-cinder/standalone-cinder/provisioner/ledger"
	"github.com/standalone-cinder/standalone-cinder/provisioner/parking"
)

// What is parked comes back when something has happened that could help it:
// this file is all of these ways. None of them polls, and none writes to the API
// server.

// Reconsider brings back the claims of a namespace that were turned away,
// because something about the namespace changed that might admit them.
func (p *Provisioner) Reconsider(namespace string) {
	p.help(parking.Help{Kind: parking.Namespace, Name: namespace})
}

// ReconsiderClass brings back the claims of a StorageClass that were turned
// away or fail, because it was made anew.
func (p *Provisioner) ReconsiderClass(class string) {
	p.help(parking.Help{Kind: parking.Class, Name: class})
}

// PolicyChanged brings back all that was turned away or failed under the policy
// before.
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

// CredentialsChanged brings back what failed at the backends: the credentials may
// have been the reason.
func (p *Provisioner) CredentialsChanged(backends []string) {
	helps := make([]parking.Help, len(backends))
	for i, name := range backends {
		helps[i] = parking.Help{Kind: parking.Credentials, Name: name}
	}
	p.help(helps...)
}

// BackendAnswers brings back what waited for a backend, or failed at it, and
// what could go to it.
func (p *Provisioner) BackendAnswers(name string) {
	p.help(parking.Help{Kind: parking.Backend, Name: name})
}

// NodeChanged brings back the deletions that wait for a node to let a volume go:
// it may have, or is gone.
func (p *Provisioner) NodeChanged(name string) { p.help(parking.Help{Kind: parking.Node, Name: name}) }

// help brings back what has been helped, the eldest first.
func (p *Provisioner) help(helps ...parking.Help) {
	p.parked.help(helps)
	p.followup.help(helps)
}

// gatherFreedRoom is how long freed room is gathered before the claims that
// want it are looked at: they are as many for one volume as for a hundred.
const gatherFreedRoom = 200 * time.Millisecond

// offerFreedRoom brings the claims back that wait for room in just those quotas
// in which some was freed. It ends with the context.
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

// roomOf is the help that room in a quota's scope gives.
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
