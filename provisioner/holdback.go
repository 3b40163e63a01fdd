package provisioner

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// reasonBackendUnavailable is the event's reason when a claim or a deletion
// waits for a backend that does not answer.
const reasonBackendUnavailable = "BackendUnavailable"

// health is nil while a backend is worth asking.
func (p *Provisioner) health(name string) error {
	volumes, err := p.Backends.Volumes(name)
	if err != nil {
		// Not configured, which is another trouble and told as such.
		return nil
	}
	return volumes.Health()
}

// unavailable is what a claim is told that no backend can take now.
func unavailable(passedOver []PassedOver) *denial {
	turned := &denial{reason: reasonBackendUnavailable}
	var why []string
	for _, over := range passedOver {
		why = append(why, over.Why)
		turned.waitsFor = append(turned.waitsFor, over.Backend)
	}
	turned.message = strings.Join(why, "; ")
	return turned
}

// holdClaimBack parks a claim until its backend answers again. What was begun
// for it stays.
func (p *Provisioner) holdClaimBack(claim *corev1.PersistentVolumeClaim, backend string, unhealthy error) {
	p.deny(claim, *unavailable([]PassedOver{{backend, unhealthy.Error()}}))
}

// missedAnswer brings a claim back that was parked just when a backend that it
// waits for answered again: nobody would come for it any more.
func (p *Provisioner) missedAnswer(claim *corev1.PersistentVolumeClaim, turned denial) {
	for _, name := range turned.waitsFor {
		if p.health(name) == nil {
			p.requeueClaims([]*corev1.PersistentVolumeClaim{claim})
			return
		}
	}
}

// holdVolumeBack parks a deletion until the backend answers again.
func (p *Provisioner) holdVolumeBack(pv *corev1.PersistentVolume, backend string, unhealthy error) {
	if !p.heldBack.add(pv, repeatDenial) {
		return
	}
	p.Recorder.Event(pv, corev1.EventTypeWarning, reasonBackendUnavailable, unhealthy.Error())
	if p.health(backend) == nil {
		p.requeueVolumes([]*corev1.PersistentVolume{pv})
	}
}
