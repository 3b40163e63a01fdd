package audit

import (
	"context"
	"errors"
	"fmt"

	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/removal"
)

// Cleaner removes what is proven unused; removal.Cleaner implements it.
type Cleaner interface {
	RemoveVolume(ctx context.Context, backend, volumeID string, stamp stamps.Volume) error
	RemoveSecret(ctx context.Context, pvName string) error
}

// Remove removes what is removable, and returns what remains and what is gone.
func Remove(ctx context.Context, cleaner Cleaner, findings []Finding) (left, removed []Finding, err error) {
	var failed []error
	for _, f := range findings {
		if !f.Removable {
			left = append(left, f)
			continue
		}
		var err error
		if f.Kind == OrphanSecret {
			err = cleaner.RemoveSecret(ctx, f.PersistentVolume)
		} else {
			err = cleaner.RemoveVolume(ctx, f.Backend, f.Volume, f.Stamp)
		}
		switch {
		case removal.IsKept(err):
			f.Removable, f.Message = false, f.Message+"; it is not removed: "+err.Error()
			left = append(left, f)
			continue
		case err != nil:
			failed = append(failed, fmt.Errorf("%s is not removed: %w", Subject(f), err))
			left = append(left, f)
			continue
		}
		removed = append(removed, f)
	}
	return left, removed, errors.Join(failed...)
}

// Subject names what a finding is about, by the name that an operator would look for
// first.
func Subject(f Finding) string {
	switch {
	case f.Secret != "":
		return "Secret " + f.Secret
	case f.Snapshot != "":
		return "snapshot " + f.Snapshot
	case f.IsUnrecorded():
		return "volume " + f.Volume + " of claim " + f.Claim
	case f.PersistentVolume != "":
		return f.PersistentVolume
	}
	return "all volumes"
}
