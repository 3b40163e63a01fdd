package plan

import (
	"fmt"
	"time"
)

// VolumeKind is an administrator's manual action on PersistentVolumes.
type VolumeKind string

// The manual actions on PersistentVolumes.
const (
	// Keep makes a bound one keep its volume.
	Keep VolumeKind = "keep a bound PersistentVolume"
	// KeepReleased makes one that is about to be deleted keep its volume.
	KeepReleased VolumeKind = "keep a released PersistentVolume"
	// Remove deletes the object of a bound one and keeps its volume.
	Remove VolumeKind = "remove a bound PersistentVolume"
	// RemoveReleased deletes the object of a released one and keeps its volume.
	RemoveReleased VolumeKind = "remove a released PersistentVolume"
	// RemoveUnbound deletes the next object that is created, before it is bound.
	RemoveUnbound VolumeKind = "remove an unbound PersistentVolume"
	// Strip deletes the object of a bound one, whatever its reclaim policy, and
	// the finalizers that would keep it.
	Strip VolumeKind = "strip a bound PersistentVolume"
)

// VolumeStep is one action on a PersistentVolume.
type VolumeStep struct {
	At   time.Duration
	Kind VolumeKind
	// For is how long it stays that way. After that, Back changes the reclaim
	// policy of one that was kept to Delete again; the claim of one that was
	// removed is deleted.
	For  time.Duration
	Back bool
	// Pick chooses among the existing ones.
	Pick int
}

// String describes a step for people.
func (s VolumeStep) String() string {
	if s.Back {
		return fmt.Sprintf("%s, then revert (%s)", s.Kind, s.For)
	}
	return fmt.Sprintf("%s (%s)", s.Kind, s.For)
}

// Keeps reports whether the volume may outlive its claim.
func (s VolumeStep) Keeps() bool { return !s.Back && s.Kind != RemoveUnbound }

func volumeSteps(d draws, duration time.Duration) []VolumeStep {
	return series(d, time.Second, 600*time.Millisecond, 3*time.Second, duration, func(_ int, at time.Duration) (VolumeStep, time.Duration) {
		s := VolumeStep{
			At: at,
			Kind: choose(d, []choice[VolumeKind]{{6, Keep}, {5, KeepReleased}, {3, Remove}, {2, RemoveReleased},
				{3, RemoveUnbound}, {2, Strip}}),
			For:  d.between(500*time.Millisecond, 9*time.Second),
			Back: d.chance(0.6),
			Pick: d.IntN(1 << 20),
		}
		if s.Kind != Keep && s.Kind != KeepReleased {
			s.Back = false
		}
		return s, 0
	})
}
