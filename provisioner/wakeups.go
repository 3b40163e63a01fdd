package provisioner

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/work/parking"
)

// Parked claims and deletions come back when one of their triggers fires. This file
// handles freed room, and the events that other parts of the program report. The hub's
// own steps bring some back, too: see parked.go, sweep.go, persistentvolumes.go and
// attempt.go. Nothing here polls, or writes to the API server.

// Reconsider brings back the denied claims of a namespace after a change of the
// namespace that might admit them.
func (p *Provisioner) Reconsider(namespace string) {
	p.Board.Publish(parking.Trigger{Kind: parking.Namespace, Name: namespace})
}

// ReconsiderClass brings back the denied and failing claims of a StorageClass
// that was created again.
func (p *Provisioner) ReconsiderClass(class string) {
	p.Board.Publish(parking.Trigger{Kind: parking.Class, Name: class})
}

// attributesTrigger fires when a VolumeAttributesClass is created.
func attributesTrigger(name string) parking.Trigger {
	return parking.Trigger{Kind: parking.Object, Name: "volumeattributesclass " + name}
}

// ReconsiderAttributes brings back the denied claims that name a VolumeAttributesClass
// that was created.
func (p *Provisioner) ReconsiderAttributes(class string) { p.Board.Publish(attributesTrigger(class)) }

// SourceChanged brings back the claims that want the content of this one.
func (p *Provisioner) SourceChanged(namespace, claim string) {
	p.Board.Publish(p.sources.ClaimChanged(namespace, claim)...)
}

// PopulatedChanged brings back the populators' claims that are to fill this one.
func (p *Provisioner) PopulatedChanged(claim *corev1.PersistentVolumeClaim) {
	p.Board.Publish(p.sources.PopulatedChanged(claim)...)
}

// PolicyChanged brings back everything that was denied or failed under the
// previous policy.
func (p *Provisioner) PolicyChanged() {
	for _, name := range p.Backends.Names() {
		// A claim may already have caused the count of a new backend.
		if !p.placement.IsCounted(name) || !p.followup.hasListed(name) {
			p.placement.RequestCount(name)
		}
	}
	p.Board.Publish(parking.Trigger{Kind: parking.Policy})
	p.requeueCSIClaims()
}

// requeueCSIClaims brings back claims whose StorageClasses name the CSI driver, which
// were left alone while nothing was in mode csi.
func (p *Provisioner) requeueCSIClaims() {
	if !p.Policy().UsesCSI() {
		return
	}
	all, err := p.Claims.List(labels.Everything())
	if err != nil {
		p.Logger.Error("Cannot list the claims in the cache", "error", err)
		return
	}
	var keys []string
	for _, claim := range all {
		if claim.Spec.VolumeName == "" && objects.ProvisionerOf(claim) == policy.CSIDriver {
			keys = append(keys, string(claim.UID))
		}
	}
	p.parkedClaims.loop.Add(keys...)
}

// CredentialsChanged brings back what failed at the backends: the old
// credentials may have been the reason.
func (p *Provisioner) CredentialsChanged(backends []string) {
	triggers := make([]parking.Trigger, len(backends))
	for i, name := range backends {
		triggers[i] = parking.Trigger{Kind: parking.Credentials, Name: name}
	}
	p.Board.Publish(triggers...)
}

// BackendAnswers brings back what waited for a backend or failed at it, and
// claims that could go to it.
func (p *Provisioner) BackendAnswers(name string) {
	p.Board.Publish(parking.Trigger{Kind: parking.Backend, Name: name})
}

// Recount counts a backend again after its endpoint has changed, and brings back what
// failed at the old endpoint. Changed credentials may have brought that back too early,
// because only the next login shows the new endpoint.
func (p *Provisioner) Recount(name string) {
	p.placement.Recount(name)
	p.Board.Publish(parking.Trigger{Kind: parking.Backend, Name: name})
}

// NoteEarlier records which claims existed before the term. An earlier leader
// can only have created volumes for those. Before this call, every claim counts
// as an earlier one.
func (p *Provisioner) NoteEarlier(claims objects.EarlierClaims) {
	p.placement.NoteEarlier(claims)
	p.Board.Publish(parking.Trigger{Kind: parking.Earlier})
}

// NodeChanged brings back the deletions that wait for a node to release a
// volume: the node may have released it, or be gone.
func (p *Provisioner) NodeChanged(name string) {
	p.Board.Publish(parking.Trigger{Kind: parking.Node, Name: name})
}

// SnapshotChanged brings back the claims that want the content of a
// VolumeSnapshot.
func (p *Provisioner) SnapshotChanged(namespace, name string) {
	p.Board.Publish(p.sources.SnapshotChanged(namespace, name)...)
}

// gatherFreedRoom is how long freed room accumulates before it is offered, because one
// freed volume brings back as many claims as a hundred.
const gatherFreedRoom = 200 * time.Millisecond

// offerFreedRoom brings back only the claims that wait for room in the quotas
// where room was freed. It ends with the context.
func (p *Provisioner) offerFreedRoom(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.placement.Freed():
		}
		if !pause(ctx, gatherFreedRoom) {
			return
		}
		p.Board.Publish(p.placement.TakeFreed()...)
	}
}
