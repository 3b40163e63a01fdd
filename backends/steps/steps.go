// Package steps determines the next step in a volume's life.
package steps

import "github.com/standalone-cinder/standalone-cinder/backends/cinder"

// Step is one move in a volume's life. It depends only on the observed state, so that
// interrupted and new operations share the same code.
type Step string

// The steps.
const (
	Create       Step = "create"
	AwaitCreated Step = "await created"
	Reserve      Step = "reserve"
	Connect      Step = "connect"
	Attach       Step = "make or find the attachment"
	Discard      Step = "discard"
	AwaitGone    Step = "await gone"
	Disconnect   Step = "disconnect and detach"
	Release      Step = "disconnect and unreserve"
	DetachAll    Step = "delete the attachments"
	Delete       Step = "delete"
	ForceDelete  Step = "force delete"
	None         Step = "none"
	Blocked      Step = "blocked"
)

// StepToConnect returns the next step from a volume's state to a connection, by the
// volume's workflow. An absent volume has no ID; one without a status exists, in an
// unknown state.
func StepToConnect(v cinder.Volume, workflow cinder.Workflow) Step {
	if v.ID == "" {
		return Create
	}
	if workflow == cinder.WorkflowAttachment {
		switch v.Status {
		case cinder.StatusAvailable, cinder.StatusReserved, cinder.StatusAttaching, cinder.StatusInUse:
			return Attach
		}
	}
	switch v.Status {
	case cinder.StatusCreating, "downloading":
		return AwaitCreated
	case cinder.StatusAvailable:
		return Reserve
	case cinder.StatusAttaching, cinder.StatusInUse:
		// Initializing is idempotent, even on a volume that a PersistentVolume
		// of the same claim once had in use.
		return Connect
	case cinder.StatusError, cinder.StatusErrorDeleting, cinder.StatusErrorRestoring:
		return Discard
	case cinder.StatusDeleting:
		return AwaitGone
	}
	return Blocked
}

// StepToAttachable returns the next step from a volume's state to a volume that the CSI
// driver can attach; None if it can already. A volume attached to nodes was fully
// created: a PersistentVolume of the same claim once named it.
func StepToAttachable(v cinder.Volume) Step {
	switch v.Status {
	case cinder.StatusAvailable, cinder.StatusReserved, cinder.StatusAttaching, cinder.StatusInUse, cinder.StatusDetaching:
		return None
	}
	return StepToConnect(v, cinder.WorkflowAttachment)
}

// StepToDelete returns the next step from a volume's state to its absence.
func StepToDelete(v cinder.Volume, workflow cinder.Workflow) Step {
	if v.ID == "" {
		return None
	}
	if workflow == cinder.WorkflowAttachment {
		switch v.Status {
		case cinder.StatusInUse, cinder.StatusDetaching, cinder.StatusAttaching, cinder.StatusReserved:
			return DetachAll
		}
	}
	switch v.Status {
	case cinder.StatusCreating, "downloading":
		// Cinder does not delete a volume while a host is creating it.
		return AwaitCreated
	case cinder.StatusInUse, cinder.StatusDetaching:
		return Disconnect
	case cinder.StatusAttaching, cinder.StatusReserved:
		return Release
	case cinder.StatusAvailable, cinder.StatusError, cinder.StatusErrorExtending, cinder.StatusErrorRestoring, "error_managing", "error_backing-up":
		return Delete
	case cinder.StatusDeleting:
		return AwaitGone
	case cinder.StatusErrorDeleting:
		return ForceDelete
	}
	// maintenance, migrating, extending, retyping, backing-up, uploading, ...:
	// another operation is using the volume.
	return Blocked
}
