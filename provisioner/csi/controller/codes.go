package controller

import (
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Failure explains why something was not done that a sidecar called for.
type Failure struct {
	// Kind is one of the kinds in the table below.
	Kind string
	// Message is a sentence without secrets, because it becomes the status of a
	// VolumeAttachment and the event of a pod.
	Message string
	// EffectUnknown means that the change may have taken effect, or may yet do so.
	EffectUnknown bool
}

// Error returns the message.
func (f *Failure) Error() string { return f.Message }

// The kinds beside those of the backends.
const (
	// NodeUnknown means that no node is registered with that ID.
	NodeUnknown = "NodeUnknown"
	// DuplicateInitiator means that two nodes have the same name for arrays.
	DuplicateInitiator = "DuplicateInitiator"
	// NativeInUse means that the node uses native volumes of the volume's target.
	NativeInUse = "NativeInUse"
	// Unmappable means that no node can reach the volume by its connection.
	Unmappable = "Unmappable"
	// Denied means that the policy does not grant the volume or the snapshot.
	Denied = "Denied"
	// OutOfRange means that the policy does not grant the size.
	OutOfRange = "OutOfRange"
	// NoRoom means that a quota of the policy has no room.
	NoRoom = "NoRoom"
	// AlreadyExists means that the name is already taken.
	AlreadyExists = "AlreadyExists"
	// Damaged means that a Kubernetes object of the volume is incomplete, or belongs to
	// another program.
	Damaged = "Damaged"
	// NodeFull means that the backend's limit of volumes per node is reached.
	NodeFull = "NodeFull"
	// Unclean means that a node may still write to a volume that was taken from it.
	Unclean = "Unclean"
)

// codeOf maps the kind of a failure to the code that a sidecar gets. Sidecars treat
// Aborted, DeadlineExceeded and Unavailable as if the call might still succeed; every
// other code is final. In publish, kubelet takes ResourceExhausted to mean that the node
// is full, so it has no other meaning there.
var codeOf = map[string]codes.Code{
	"NotFound":     codes.NotFound,
	"Invalid":      codes.InvalidArgument,
	"Conflict":     codes.Aborted,
	"OverQuota":    codes.Unavailable,
	"RateLimited":  codes.Unavailable,
	"Unauthorized": codes.FailedPrecondition,
	"Forbidden":    codes.FailedPrecondition,
	"Unavailable":  codes.Unavailable,
	"Config":       codes.FailedPrecondition,
	"Fenced":       codes.Unavailable,
	"Internal":     codes.Unavailable,
	"VolumeFailed": codes.Internal,
	"Timeout":      codes.DeadlineExceeded,
	"Pending":      codes.Aborted,
	"HasBackups":   codes.FailedPrecondition,
	"NotOurs":      codes.FailedPrecondition,
	"InUse":        codes.FailedPrecondition,
	"HasSnapshots": codes.FailedPrecondition,
	"Contested":    codes.FailedPrecondition,
	"Recorded":     codes.FailedPrecondition,
	"OnOtherNode":  codes.FailedPrecondition,
	"Elsewhere":    codes.FailedPrecondition,

	NodeUnknown:        codes.NotFound,
	DuplicateInitiator: codes.FailedPrecondition,
	NativeInUse:        codes.FailedPrecondition,
	Unmappable:         codes.FailedPrecondition,
	Denied:             codes.PermissionDenied,
	OutOfRange:         codes.OutOfRange,
	NoRoom:             codes.Unavailable,
	AlreadyExists:      codes.AlreadyExists,
	Damaged:            codes.FailedPrecondition,
	Unclean:            codes.FailedPrecondition,
	NodeFull:           codes.ResourceExhausted,
}

// Knows reports whether the table has a kind.
func Knows(kind string) bool {
	_, known := codeOf[kind]
	return known
}

// answerWithoutRoom is answer for calls that need room. If a quota of the policy or of
// Cinder is full, changing the request would not help: the same call succeeds when there
// is room.
func answerWithoutRoom(err error) error {
	var failed *Failure
	if errors.As(err, &failed) && !failed.EffectUnknown && (failed.Kind == NoRoom || failed.Kind == "OverQuota") {
		return status.Error(codes.ResourceExhausted, failed.Message)
	}
	return answer(err)
}

// answer converts a failure for a sidecar. A failure that may have had an effect, or is
// of no known kind, is never final.
func answer(err error) error {
	if err == nil {
		return nil
	}
	var failed *Failure
	if !errors.As(err, &failed) {
		return status.Error(codes.Unavailable, err.Error())
	}
	code, known := codeOf[failed.Kind]
	if !known || failed.EffectUnknown {
		code = codes.Unavailable
	}
	return status.Error(code, failed.Message)
}
