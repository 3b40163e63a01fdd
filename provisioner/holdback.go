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
	var why []string
	for _, over := range passedOver {
		why = append(why, over.Why)
	}
	return &denial{reason: reasonBackendUnavailable, message: strings.Join(why, "; ")}
}

// holdVolumeBack parks a deletion until the backend answers again.
func (p *Provisioner) holdVolumeBack(pv *corev1.PersistentVolume, unhealthy error, since news) {
	p.heldBack.add(pv, 0)
	if p.toldHeldBack.add(pv, repeatDenial) {
		p.Recorder.Event(pv, corev1.EventTypeWarning, reasonBackendUnavailable, unhealthy.Error())
	}
	if p.news().failed != since.failed {
		p.requeueVolumes([]*corev1.PersistentVolume{pv})
	}
}
