package provisioner

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/policy"
)

// What left the library's queue comes back when something has happened that
// could help it: this file is all of these ways. None of them polls, and none
// writes to the API server.

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
	p.reconsider(func(d denial) bool { return d.claim.Namespace == namespace })
}

// ReconsiderClass brings back the claims of a StorageClass that were turned
// away or could not find it, because it was made anew.
func (p *Provisioner) ReconsiderClass(class string) {
	p.helpedFailed.Add(1)
	p.reconsider(func(d denial) bool { return className(d.claim) == class })
	p.requeueClaims(p.failingClaims.takeIf(func(claim *corev1.PersistentVolumeClaim) bool { return className(claim) == class }))
}

// PolicyChanged brings back all that was turned away or failed under the policy
// before.
func (p *Provisioner) PolicyChanged() {
	p.claimTurns.Recheck()
	p.volumeTurns.Recheck()
	for _, name := range p.Backends.Names() {
		if !p.isCounted(name) {
			p.wantCounted(name)
		}
	}
	p.reconsider(func(denial) bool { return true })
	p.retryFailing()
}

// CredentialsChanged brings back what failed: the credentials may have been the
// reason.
func (p *Provisioner) CredentialsChanged() { p.retryFailing() }

// BackendAnswers brings back what waited for a backend, and what could go to
// it.
func (p *Provisioner) BackendAnswers() {
	p.helpedFailed.Add(1)
	p.reconsider(func(d denial) bool {
		return d.reason == reasonBackendUnavailable || d.reason == string(policy.QuotaExceeded)
	})
	p.requeueVolumes(p.heldBack.takeAll())
	p.retryFailing()
}

// news tells two moments apart: something has happened between them that could
// help what was turned away, or what failed. Whoever is about to park a claim or
// a deletion compares: what happened since the decision would be missed. Room
// that is freed helps none that failed, and undoing a failure frees some.
type news struct{ denied, failed uint64 }

func (p *Provisioner) news() news {
	return news{denied: p.helpedDenied.Load(), failed: p.helpedFailed.Load()}
}

// reconsider brings denied claims of a kind back, the eldest first.
func (p *Provisioner) reconsider(which func(denial) bool) {
	p.helpedDenied.Add(1)
	p.mu.Lock()
	var claims []*corev1.PersistentVolumeClaim
	for _, d := range p.denied {
		if which(d) {
			claims = append(claims, d.claim)
		}
	}
	p.mu.Unlock()
	p.requeueClaims(claims)
}

// retryFailing tries at once what the library would try again later.
func (p *Provisioner) retryFailing() {
	p.helpedFailed.Add(1)
	p.requeueClaims(p.failingClaims.takeAll())
	p.requeueVolumes(p.failingVolumes.takeAll())
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
func (p *Provisioner) inviteClaim(uid string) {
	if claim, ok := p.waitingClaims.take(types.UID(uid)); ok {
		p.requeueClaims([]*corev1.PersistentVolumeClaim{claim})
	}
}

// inviteVolume brings a PersistentVolume back whose turn has come.
func (p *Provisioner) inviteVolume(name string) {
	if pv, err := p.PersistentVolumes.Get(name); err == nil {
		p.requeue.Volume(pv)
	}
}
