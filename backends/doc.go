// Package backends leads volumes through their lives at OpenStack Cinder.
//
// It turns a backend's configuration and credentials into a logged-in client of
// backends/cinder (Pool), and with that leads a volume through its life
// (Lifecycle): create, reserve, connect, complete, and all the way back. Waiting
// for many volumes costs one listing per backend and tick, however many volumes
// are in flight (watcher).
//
// The package knows nothing of Kubernetes: a claim reaches it as a Stamp. Nor
// does it know the wire: it asks for changes through the interface Cinder.
package backends
