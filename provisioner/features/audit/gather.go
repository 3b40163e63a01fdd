package audit

import (
	"context"
	"sync"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// ListEach lists all backends concurrently, so that a slow one does not delay the
// others.
func ListEach(names []string, list func(name string) ([]cinder.Volume, cinder.Place, error)) map[string]Listing {
	var mu sync.Mutex
	var group sync.WaitGroup
	listings := map[string]Listing{}
	for _, name := range names {
		group.Go(func() {
			volumes, at, err := list(name)
			mu.Lock()
			defer mu.Unlock()
			listings[name] = Listing{Volumes: volumes, Place: at, Unstamped: map[string]bool{}, Err: err}
		})
	}
	group.Wait()
	return listings
}

// Finder reads one volume by its ID.
type Finder func(ctx context.Context, backend, volumeID string) (v cinder.Volume, found bool, err error)

// ConfirmMissing reads every recorded volume that its backend's listing does not show,
// because it may have lost its stamp, or be younger than the listing.
func ConfirmMissing(ctx context.Context, find Finder, listings map[string]Listing, records objects.Records) {
	listed := map[string]bool{}
	for _, listing := range listings {
		for _, v := range listing.Volumes {
			listed[v.ID] = true
		}
	}
	for _, recorded := range records.Volumes {
		listing, ok := listings[recorded.Backend]
		if !ok || listing.Err != nil || listed[recorded.VolumeID] || recorded.Damage != nil {
			continue
		}
		v, found, err := find(ctx, recorded.Backend, recorded.VolumeID)
		switch {
		case err != nil:
			listing.Err = err
		case found && recorded.Stamp().Owns(v):
			listing.Volumes = append(listing.Volumes, v)
		case found:
			listing.Unstamped[recorded.VolumeID] = true
		}
		listings[recorded.Backend] = listing
	}
}
