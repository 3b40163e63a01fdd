package wiring

import "strings"

// LeaseName returns the provisioner's name in a form that is valid as an object's name.
func LeaseName(provisioner string) string { return strings.ReplaceAll(provisioner, "/", "-") }

// Identity returns the name under which a replica holds the Lease: its pod's name, and
// something that no other process has.
func Identity(pod, unique string) string { return pod + "_" + unique }

// PodOf returns the pod of the replica that holds the Lease under this identity; empty
// if another program does.
func PodOf(identity string) string {
	if i := strings.LastIndexByte(identity, '_'); i > 0 {
		return identity[:i]
	}
	return ""
}
