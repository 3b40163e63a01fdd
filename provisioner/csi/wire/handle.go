package wire

import (
	"fmt"
	"strings"
)

// LongestHandle is the CSI specification's limit of a string, in bytes.
const LongestHandle = 128

// Handle names a volume or a snapshot to the CSI driver.
type Handle struct {
	// Backend is the backend's name in the policy.
	Backend string
	// ID is Cinder's ID.
	ID string
}

// String returns the handle as a PersistentVolume or a VolumeSnapshotContent has it.
func (h Handle) String() string { return h.Backend + "/" + h.ID }

// ParseHandle reads what String writes. Its error is for the person who wrote the object
// by hand.
func ParseHandle(text string) (Handle, error) {
	backend, id, found := strings.Cut(text, "/")
	if !found || backend == "" || id == "" || strings.ContainsAny(id, "/ ") || len(text) > LongestHandle {
		return Handle{}, fmt.Errorf("handle %.150q is not <backend>/<ID at Cinder>", text)
	}
	return Handle{backend, id}, nil
}
