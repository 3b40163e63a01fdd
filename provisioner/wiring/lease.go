package wiring

import "strings"

// LeaseName is the provisioner's name in a form that an object's name allows.
func LeaseName(provisioner string) string { return strings.ReplaceAll(provisioner, "/", "-") }

// Identity is how a replica signs the Lease: with its pod's name, and something
// that no other process has.
func Identity(pod, unique string) string { return pod + "_" + unique }

// PodOf is the pod of a replica that signed the Lease, empty if another program
// did.
func PodOf(identity string) string {
	if i := strings.LastIndexByte(identity, '_'); i > 0 {
		return identity[:i]
	}
	return ""
}
