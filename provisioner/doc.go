// Package provisioner is where claims meet policy, Cinder and protocols.
//
// A claim's way through it: admission (does the policy grant it, and can any
// source honor it) → Provision (backend, volume, connection, mapping, Secret,
// PersistentVolume) → completion (the volume's last step to in-use, once the
// PersistentVolume is in the API server). Delete goes the way back from what
// the PersistentVolume records, never from the current policy.
//
// A Provisioner lives as long as one leader's term and holds all of the term's
// mutable state.
package provisioner
