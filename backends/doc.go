// Package backends manages the life cycle of OpenStack Cinder volumes.
//
// A Pool turns a backend's configuration and credentials into a logged-in
// client of backends/cinder. With it, a Lifecycle takes a volume through its
// life: create, reserve, connect, complete, and all the way back. Waiting costs
// one listing per backend and tick, however many volumes are in flight
// (watcher).
//
// The package does not know Kubernetes: a claim reaches it as a Stamp. Nor does
// it know HTTP: it requests changes through the interface Cinder.
package backends
