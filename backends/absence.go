package backends

import (
	"context"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// place is where this endpoint leads; zero before the first login.
func (e *endpoint) place() cinder.Place { return e.session.where() }

// Place is where the backend leads; zero before the first login of the term.
func (l *Lifecycle) Place() cinder.Place { return l.current().place() }

// absent judges Cinder's answer that a target does not exist, and is nil if the
// volume is gone. That is so only at the place where the volume was. Where no
// PersistentVolume says which that is, a place counts that has shown this term a
// volume of the cluster: credentials of another project show none.
func (e *endpoint) absent(ctx context.Context, target Target) error {
	present := e.place()
	switch {
	case target.unreferenced:
		return e.leftBehind(target.Stamp.ClaimUID)
	case target.Place.IsKnown() && target.Place == present:
		return nil
	case target.Place.IsKnown():
		return e.elsewhere("volume %s was recorded at %s, but the backend leads to %s, where it does not exist", target.VolumeID, target.Place, present)
	case e.hasShown():
		return nil
	}
	if _, err := e.inventory.all(ctx); err != nil {
		return err
	}
	if e.hasShown() {
		return nil
	}
	return e.elsewhere("volume %s does not exist at %s, but nothing says that it ever was there: its PersistentVolume does not record where it was made, "+
		"and there is no other volume of this cluster", target.VolumeID, present)
}

// leftBehind is an error if the term knew a volume of the claim at another place
// before the backend was led here.
func (e *endpoint) leftBehind(claimUID string) error {
	e.mu.Lock()
	at, known := e.former[claimUID]
	e.mu.Unlock()
	if present := e.place(); known && at != present {
		return e.elsewhere("claim UID %q has a volume at %s, but the backend leads to %s", claimUID, at, present)
	}
	return nil
}

func (e *endpoint) elsewhere(format string, arguments ...any) *cinder.Error {
	failed := e.failure(KindElsewhere, format, arguments...)
	failed.Place = e.place()
	return failed
}

// note remembers that Cinder showed a volume of this cluster here.
func (e *endpoint) note(v cinder.Volume) {
	if v.Metadata[stampCluster] == e.inventory.cluster {
		e.shown.Store(true)
	}
}

func (e *endpoint) hasShown() bool { return e.shown.Load() }
