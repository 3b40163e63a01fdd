package backends

import "github.com/standalone-cinder/standalone-cinder/backends/cinder"

// The kinds of failure that the lifecycle adds to a client's.
const (
	KindVolumeFailed cinder.Kind = "VolumeFailed" // the volume went to error
	KindTimeout      cinder.Kind = "Timeout"      // a wait for a volume timed out
	KindNotOurs      cinder.Kind = "NotOurs"      // the volume's stamp does not match
	KindInUse        cinder.Kind = "InUse"        // attached elsewhere, or something depends on it
	KindHasSnapshots cinder.Kind = "HasSnapshots" // the volume has snapshots, all of them made for VolumeSnapshots of this cluster
	KindContested    cinder.Kind = "Contested"    // another party reserved the volume while it was being imported
	KindRecorded     cinder.Kind = "Recorded"     // was recorded, and is removed only with its object
	KindElsewhere    cinder.Kind = "Elsewhere"    // absent, but not at the place where it was made; Place is where the backend leads
)
