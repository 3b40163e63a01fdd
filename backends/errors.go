package backends

import (
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/watch"
)

// The kinds of failure that the lifecycle adds to the client's.
const (
	KindVolumeFailed cinder.Kind = "VolumeFailed"     // the volume went to error
	KindTimeout                  = watch.KindTimeout  // a wait for a volume timed out
	KindNotShown                 = watch.KindNotShown // Cinder acknowledged it but does not show it yet
	KindNotOurs      cinder.Kind = "NotOurs"          // the volume's stamp does not match
	KindInUse        cinder.Kind = "InUse"            // attached elsewhere, or something depends on it
	KindHasSnapshots cinder.Kind = "HasSnapshots"     // the volume has snapshots, all of them made for VolumeSnapshots of this cluster
	KindContested    cinder.Kind = "Contested"        // another party reserved the volume while it was being imported
	KindRecorded     cinder.Kind = "Recorded"         // the volume was recorded, so it is removed only with its object
	KindRestored     cinder.Kind = "Restored"         // the object was re-created, and no user asked for the deletion; see stamps.IsRestored
	KindOnOtherNode  cinder.Kind = "OnOtherNode"      // another node has the volume, and only one may
	KindPending      cinder.Kind = "Pending"          // Cinder is making or restoring a backup, which may take hours
	KindHasBackups   cinder.Kind = "HasBackups"       // incremental backups depend on the backup
	KindElsewhere    cinder.Kind = "Elsewhere"        // absent, but not where it was created; Place is where the backend points now
)

// NotMadeError means that Cinder accepted the request for a claim's volume but failed to
// create it, for lack of room or another reason. The failed volume was removed.
type NotMadeError struct {
	// Zone is the availability zone that was requested.
	Zone string
	// Reason is Cinder's reason.
	Reason string
	// Failure is the complete failure.
	Failure *cinder.Error
}

// Error returns the failure's text.
func (e *NotMadeError) Error() string { return e.Failure.Error() }

// Unwrap returns the failure.
func (e *NotMadeError) Unwrap() error { return e.Failure }
