// Package backends is the only package that knows OpenStack.
//
// It turns a backend's configuration and credentials into a logged-in Cinder
// client (Pool), translates every foreign error once (Error), and leads a
// volume through its life in Cinder (Lifecycle): create, reserve, connect,
// complete, and all the way back. Waiting for many volumes costs one listing
// per backend and tick, however many volumes are in flight (watcher).
//
// The package knows nothing of Kubernetes: a claim reaches it as a Stamp.
package backends
