package backends

import (
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/watch"
)

// The kinds of failure that the lifecycle adds to a client's.
const (
	KindVolumeFailed cinder.Kind = "VolumeFailed"     // the volume went to error
	KindTimeout                  = watch.KindTimeout  // a wait for a volume timed out
	KindNotShown                 = watch.KindNotShown // Cinder acknowledged it, and does not show it yet
	KindNotOurs      cinder.Kind = "NotOurs"          // the volume's stamp does not match
	KindInUse        cinder.Kind = "InUse"            // attached elsewhere, or something depends on it
	KindHasSnapshots cinder.Kind = "HasSnapshots"     // the volume has snapshots, all of them made for VolumeSnapshots of this cluster
	KindContested    cinder.Kind = "Contested"        // another party reserved the volume while it was being imported
	KindRecorded     cinder.Kind = "Recorded"         // the volume was recorded, and is removed only with its object
	KindRestored     cinder.Kind = "Restored"         // the object was applied again, and nobody asked for the deletion; see stamps.IsRestored
	KindOnOtherNode  cinder.Kind = "OnOtherNode"      // another node has the volume, which only one may have; see OnOtherNodeError
	KindElsewhere    cinder.Kind = "Elsewhere"        // absent, but not at the place where it was made; Place is where the backend leads
)

// NotMadeError means that Cinder accepted the request for a claim's volume but
// could not make it, for lack of room or for any other reason. The volume that it
// left was removed.
type NotMadeError struct {
	// Zone is the availability zone that was requested.
	Zone string
	// Reason is the reason that Cinder gives.
	Reason string
	// Failure is the failure in full.
	Failure *cinder.Error
}

// Error returns the failure's text.
func (e *NotMadeError) Error() string { return e.Failure.Error() }

// Unwrap returns the failure.
func (e *NotMadeError) Unwrap() error { return e.Failure }
