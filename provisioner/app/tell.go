package app

import corev1 "k8s.io/api/core/v1"

// tell writes an event about the program itself. It is about the Lease, the one
// object that all replicas share, and written by the leader alone, so that
// three replicas do not say everything three times.
func (a *App) tell(eventType, reason, message string) {
	if a.term() == nil {
		return
	}
	lease := &corev1.ObjectReference{
		APIVersion: "coordination.k8s.io/v1",
		Kind:       "Lease",
		Namespace:  a.namespace,
		Name:       leaseName(a.options.ProvisionerName),
	}
	a.recorder.Event(lease, eventType, reason, message)
}

// haveManyMatters says of which events none replaces another: the program's own,
// since its Lease stands for all that it tells of, and the warnings about a
// connection, which are several for one claim.
func haveManyMatters(kind, reason string) bool {
	return kind == "Lease" || reason == "ConnectionWarning"
}
