// Package cindersim is a Keystone v3 and Cinder v3 simulator for tests,
// benchmarks and demonstrations.
//
// It serves three endpoints over one state: Cinder with auth_strategy=noauth,
// Cinder behind Keystone, and Keystone itself. Status codes, error sentences,
// headers, the volume state machine and the traps of the real services (inexact
// list filters, an empty 204 without a noauth token, terminate that also
// unreserves, os-detach that makes any unattached volume available) follow
// Cinder 21.3.1 (Zed) and Keystone 22 as recorded; the recordings that prove it
// are replayed by this package's tests, and the contract suite runs the same
// cases against the simulator and against a real Cinder.
//
// State changes that Cinder performs asynchronously (create, delete, extend,
// snapshots) are kept as a queue of due events which is settled on the next
// access, so the simulator owns no goroutine beyond its HTTP servers and works
// with any clock.
//
// In addition to the services there are three instruments: faults by operation
// ([Simulator.Inject]), a journal of every request ([Simulator.Journal]) and
// access to the state that bypasses the API ([Simulator.Volumes],
// [Simulator.AddVolume], [Simulator.SetVolumeStatus]).
//
// What needs nothing of the state is in the packages below: keystone; the routes
// of Cinder's API and the fields of its bodies; the volume types and their
// drivers; Python's text, the database's collation and random IDs.
//
// The command cmd/cindersim serves a simulator for trying a client by hand.
package cindersim
