package wire

import (
	"slices"
	"strconv"
	"strings"
)

// Growth is what `kubectl cinder grow` asks of `node grow`, in a pod that cannot ask the
// API server.
type Growth struct {
	// PersistentVolume is the name of a volume that the kubelet itself mounts.
	PersistentVolume string
	// Disks are what the volume's disks may be: places, as DiskAt names them, or WWIDs.
	Disks []string
	// Pods are the UIDs of the pods that use the volume's claim.
	Pods []string
	// Bytes is the size of the PersistentVolume.
	Bytes int64
}

// The names of the flags.
const (
	FlagPersistentVolume = "persistent-volume"
	FlagDisk             = "disk"
	FlagPod              = "pod"
	FlagBytes            = "bytes"
)

// Arguments are the flags, in the only order that the admission policy of the pods allows.
func (g Growth) Arguments() []string {
	arguments := []string{"--" + FlagPersistentVolume + "=" + g.PersistentVolume, "--" + FlagBytes + "=" + strconv.FormatInt(g.Bytes, 10)}
	for _, disk := range slices.Sorted(slices.Values(g.Disks)) {
		arguments = append(arguments, "--"+FlagDisk+"="+disk)
	}
	for _, pod := range slices.Sorted(slices.Values(g.Pods)) {
		arguments = append(arguments, "--"+FlagPod+"="+pod)
	}
	return arguments
}

// DiskAt names a disk by its place: an iSCSI target or a Fibre Channel port of the storage,
// and the LUN there. The names have no letter case.
func DiskAt(target string, lun int) string {
	return strings.TrimPrefix(strings.ToLower(target), "0x") + "/" + strconv.Itoa(lun)
}

// Grown is the answer, in the termination message of the pod.
type Grown struct {
	// Device is what is mounted, and Paths are its disks.
	Device     string   `json:"device,omitempty"`
	Paths      []string `json:"paths,omitempty"`
	Filesystem string   `json:"filesystem,omitempty"`
	// UUID is the filesystem's; empty if it could not be read.
	UUID  string `json:"uuid,omitempty"`
	Bytes int64  `json:"bytes,omitempty"`
	// Error says why nothing is known to have grown.
	Error string `json:"error,omitempty"`
}
