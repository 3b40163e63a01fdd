package app

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/wiring"
)

// tell writes an event about the program itself. The event is about the Lease,
// the one object that all replicas share, and only the leader writes it, so
// that three replicas do not report everything three times.
func (a *App) tell(eventType, reason, message string) {
	if a.term() == nil {
		return
	}
	lease := &corev1.ObjectReference{
		APIVersion: "coordination.k8s.io/v1",
		Kind:       "Lease",
		Namespace:  a.namespace,
		Name:       wiring.LeaseName(a.options.ProvisionerName),
	}
	a.recorder.Event(lease, eventType, reason, message)
}

// haveManyMatters reports which events must not replace each other: the
// program's own, since its Lease stands for everything it reports, and the
// warnings about a connection, since one claim may have several.
func haveManyMatters(kind, reason string) bool {
	return kind == "Lease" || reason == "ConnectionWarning"
}
