package wire

// Copied is the answer of `node copy`, in the termination message of the pod that `volume
// move` starts.
type Copied struct {
	// Files are all entries of directories; 0 for raw block volumes.
	Files int64 `json:"files,omitempty"`
	// Bytes are what was compared, without holes of files.
	Bytes int64 `json:"bytes,omitempty"`
	// Error says why the copy is not known to be complete.
	Error string `json:"error,omitempty"`
}

// The paths of both volumes in that pod.
const (
	CopyFrom = "/from"
	CopyTo   = "/to"
)
