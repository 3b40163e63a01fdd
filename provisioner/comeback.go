package provisioner

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/ledger"
	"github.com/standalone-cinder/standalone-cinder/provisioner/parking"
)

// What is parked comes back when something has happened that could help it:
// this file is all of these ways. None of them polls, and none writes to the API
// server.

// Requeue puts objects back in front of the library.
type Requeue struct {
	Claim  func(*corev1.PersistentVolumeClaim)
	Volume func(*corev1.PersistentVolume)
}

// OnRequeue tells the provisioner how to bring objects back to the library.
func (p *Provisioner) OnRequeue(requeue Requeue) { p.requeue = requeue }

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
			p.placement.wantCounted(name)
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
	p.helped.Note(helps)
	p.requeueClaims(p.claims.HelpedBy(helps))
	p.requeueVolumes(p.volumes.HelpedBy(helps))
	p.helpFollowups(helps)
}

// requeueClaims brings claims back as they are now.
func (p *Provisioner) requeueClaims(claims []*corev1.PersistentVolumeClaim) {
	slices.SortFunc(claims, func(a, b *corev1.PersistentVolumeClaim) int {
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	})
	for _, claim := range claims {
		if current, err := p.Claims.PersistentVolumeClaims(claim.Namespace).Get(claim.Name); err == nil && current.UID == claim.UID {
			p.requeue.Claim(current)
		}
	}
}

func (p *Provisioner) requeueVolumes(pvs []*corev1.PersistentVolume) {
	for _, pv := range pvs {
		if current, err := p.PersistentVolumes.Get(pv.Name); err == nil && current.UID == pv.UID {
			p.requeue.Volume(current)
		}
	}
}

// inviteClaim brings a claim back whose turn has come.
func (p *Provisioner) inviteClaim(uid types.UID) {
	if claim, ok := p.claims.Take(uid, parking.Waiting); ok {
		p.requeueClaims([]*corev1.PersistentVolumeClaim{claim})
	}
}

// inviteVolume brings a PersistentVolume back whose turn has come.
func (p *Provisioner) inviteVolume(name string) {
	if pv, err := p.PersistentVolumes.Get(name); err == nil {
		p.requeue.Volume(pv)
	}
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

// isPassing says of an event's reason that its message changes all the time: the
// numbers of a quota with every other claim, and what a backend failed with last
// with every request.
func isPassing(reason string) bool {
	return reason == string(policy.QuotaExceeded) || reason == reasonBackendUnavailable
}

// roomOf is the help that a quota's ledger.Scope gives.
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

// parkClaim parks a claim because of what was seen since the moment, and has it
// looked at again at once if it was helped meanwhile.
func (p *Provisioner) parkClaim(claim *corev1.PersistentVolumeClaim, why parking.Why, helps []parking.Help, since parking.Moment) {
	p.claims.Park(claim, why, helps)
	p.Metrics.deniedClaims(p.claims.Count(parking.Denied))
	if p.helped.Since(since, helps) {
		p.claims.Take(claim.UID, parking.Failing)
		p.requeueClaims([]*corev1.PersistentVolumeClaim{claim})
	}
}

// parkVolume does the same for a deletion.
func (p *Provisioner) parkVolume(pv *corev1.PersistentVolume, why parking.Why, helps []parking.Help, since parking.Moment) {
	p.volumes.Park(pv, why, helps)
	if p.helped.Since(since, helps) {
		p.volumes.Take(pv.UID)
		p.requeueVolumes([]*corev1.PersistentVolume{pv})
	}
}
