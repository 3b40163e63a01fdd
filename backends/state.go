package backends

import "github.com/standalone-cinder/standalone-cinder/backends/cinder"

// step is one move in a volume's life. The next step depends on the observed
// state alone, so that interrupted and new operations share one code.
type step string

const (
	stepCreate       step = "create"
	stepAwaitCreated step = "await created"
	stepReserve      step = "reserve"
	stepConnect      step = "connect"
	stepAttach       step = "make or find the attachment"
	stepDiscard      step = "discard"
	stepAwaitGone    step = "await gone"
	stepDisconnect   step = "disconnect and detach"
	stepRelease      step = "disconnect and unreserve"
	stepDetachAll    step = "delete the attachments"
	stepDelete       step = "delete"
	stepForceDelete  step = "force delete"
	stepNone         step = "none"
	stepBlocked      step = "blocked"
)

// towardsConnected is the next step from a volume's state to a connection. An
// absent volume has no ID; one without a status exists, in a state unknown.
func towardsConnected(v cinder.Volume) step {
	if v.ID == "" {
		return stepCreate
	}
	if workflowOf(v) == cinder.WorkflowAttachment {
		switch v.Status {
		case cinder.StatusAvailable, cinder.StatusReserved, cinder.StatusAttaching, cinder.StatusInUse:
			return stepAttach
		}
	}
	switch v.Status {
	case cinder.StatusCreating, "downloading":
		return stepAwaitCreated
	case cinder.StatusAvailable:
		return stepReserve
	case cinder.StatusAttaching, cinder.StatusInUse:
		// Initializing is idempotent, also on a volume that a PersistentVolume
		// of the same claim once had in use.
		return stepConnect
	case cinder.StatusError, cinder.StatusErrorDeleting:
		return stepDiscard
	case cinder.StatusDeleting:
		return stepAwaitGone
	}
	return stepBlocked
}

// towardsGone is the next step from a volume's state to its absence.
func towardsGone(v cinder.Volume) step {
	if v.ID == "" {
		return stepNone
	}
	if workflowOf(v) == cinder.WorkflowAttachment {
		switch v.Status {
		case cinder.StatusInUse, cinder.StatusDetaching, cinder.StatusAttaching, cinder.StatusReserved:
			return stepDetachAll
		}
	}
	switch v.Status {
	case cinder.StatusCreating, "downloading":
		// Cinder does not delete a volume while a host is creating it.
		return stepAwaitCreated
	case cinder.StatusInUse, cinder.StatusDetaching:
		return stepDisconnect
	case cinder.StatusAttaching, cinder.StatusReserved:
		return stepRelease
	case cinder.StatusAvailable, cinder.StatusError, cinder.StatusErrorExtending, "error_restoring", "error_managing", "error_backing-up":
		return stepDelete
	case cinder.StatusDeleting:
		return stepAwaitGone
	case cinder.StatusErrorDeleting:
		return stepForceDelete
	}
	// maintenance, migrating, extending, retyping, backing-up, uploading, ...:
	// another operation is using the volume.
	return stepBlocked
}
