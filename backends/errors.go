package backends

import "github.com/standalone-cinder/standalone-cinder/backends/cinder"

// The kinds of failure that the life of a volume adds to a client's.
const (
	KindVolumeFailed cinder.Kind = "VolumeFailed" // the volume went to error
	KindTimeout      cinder.Kind = "Timeout"      // a wait of ours ran out
	KindNotOurs      cinder.Kind = "NotOurs"      // the volume's stamp does not match
	KindInUse        cinder.Kind = "InUse"        // attached elsewhere, or has snapshots
	KindRecorded     cinder.Kind = "Recorded"     // was handed to somebody, and goes with its PersistentVolume only
	KindElsewhere    cinder.Kind = "Elsewhere"    // absent, but not where it was made; Place says where the backend leads
)
