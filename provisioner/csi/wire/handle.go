package wire

import (
	"fmt"
	"strings"
)

// LongestHandle is the limit that the CSI specification sets for a string, in bytes.
const LongestHandle = 128

// Handle identifies a volume or a snapshot to the CSI driver.
type Handle struct {
	// Backend is the backend's name in the policy.
	Backend string
	// ID is Cinder's ID.
	ID string
}

// String returns the handle in the form that a PersistentVolume or a
// VolumeSnapshotContent holds.
func (h Handle) String() string { return h.Backend + "/" + h.ID }

// KubeletName is kubelet's name for a volume of a CSI driver, in the status of Nodes
// (GetUniqueVolumeName in pkg/volume/util and GetVolumeName in pkg/volume/csi of
// Kubernetes).
func KubeletName(driver, handle string) string { return "kubernetes.io/csi/" + driver + "^" + handle }

// ParseHandle reads what String writes. Its error addresses a person who wrote the
// object by hand.
func ParseHandle(text string) (Handle, error) {
	backend, id, found := strings.Cut(text, "/")
	if !found || backend == "" || id == "" || strings.ContainsAny(id, "/ ") || len(text) > LongestHandle {
		return Handle{}, fmt.Errorf("handle %.150q is not <backend>/<ID at Cinder>", text)
	}
	return Handle{backend, id}, nil
}
