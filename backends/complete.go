package backends

import (
	"context"
	"errors"
	"time"
)

// Complete takes the last step, to in-use. The caller has seen the
// PersistentVolume in the API server. A volume that this term connected costs
// one request; one that an earlier term connected is looked up in the listing
// that serves them all. One that does not exist is a failure of KindNotFound, or
// of KindElsewhere where that proves nothing.
func (l *Lifecycle) Complete(ctx context.Context, target Target, readOnly bool) error {
	release, err := l.locks.acquire(ctx, target.key())
	if err != nil {
		return err
	}
	defer release()
	e := l.current()
	err = e.attach(ctx, target, readOnly)
	if IsKind(err, KindNotFound) {
		if elsewhere := e.absent(ctx, target); elsewhere != nil {
			return elsewhere
		}
	}
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.seen, target.VolumeID)
	return nil
}

// Mark writes on a volume that it was recorded, without bringing it into use:
// its PersistentVolume is gone again. Nobody then takes it for one that was
// never handed to anybody.
func (l *Lifecycle) Mark(ctx context.Context, target Target) error {
	release, err := l.locks.acquire(ctx, target.key())
	if err != nil {
		return err
	}
	defer release()
	e := l.current()
	v, err := e.get(ctx, target.VolumeID)
	if IsKind(err, KindNotFound) {
		if elsewhere := e.absent(ctx, target); elsewhere != nil {
			return elsewhere
		}
	}
	switch {
	case err != nil:
		return err
	case !target.owns(v):
		return e.notOurs(v, target)
	case v.EverAttached():
		return nil
	}
	return e.cinder.change(ctx, func(ctx context.Context, cinder api) error { return cinder.MarkAttached(ctx, v.ID) })
}

func (e *endpoint) attach(ctx context.Context, target Target, readOnly bool) error {
	v, err := e.lastSeen(ctx, target)
	if err != nil {
		return err
	}
	for looked := false; ; looked = true {
		if !target.owns(v) {
			return e.notOurs(v, target)
		}
		var failed error
		tried := false
		switch v.Status {
		case StatusInUse:
			return e.attachedElsewhere(v, target)
		case StatusAttaching:
			tried = true
			failed = e.bringIntoUse(ctx, v, target, readOnly)
			if failed == nil {
				return nil
			}
		default:
			failed = e.failure(KindConflict, "volume %s is %s where attaching was expected", v.ID, v.Status)
		}
		if looked {
			return failed
		}
		// Either what was known is out of date, or the answer was lost after
		// the effect. Repeating os-attach would not tell: Cinder answers a
		// project's member with 500 when the host is attached already.
		e.see(target.VolumeID, Volume{})
		if v, err = e.get(ctx, target.VolumeID); err != nil {
			return errors.Join(failed, err)
		}
		if tried && v.Status == StatusAttaching {
			e.see(target.VolumeID, v)
			return failed
		}
	}
}

// bringIntoUse takes the step from attaching to in-use.
func (e *endpoint) bringIntoUse(ctx context.Context, v Volume, target Target, readOnly bool) error {
	if v.workflow() == WorkflowAttachment {
		return e.completeAttachment(ctx, v)
	}
	return e.cinder.change(ctx, func(ctx context.Context, cinder api) error {
		return cinder.Attach(ctx, v.ID, target.Connector.Host, readOnly)
	})
}

// see remembers the newest picture of a volume; the zero Volume says that the
// picture at hand is not to be trusted.
func (e *endpoint) see(id string, v Volume) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.seen[id] = v
}

// lastSeen returns the newest picture of a volume that is at hand, or looks.
func (e *endpoint) lastSeen(ctx context.Context, target Target) (Volume, error) {
	e.mu.Lock()
	v, ok := e.seen[target.VolumeID]
	e.mu.Unlock()
	if ok && v.ID != "" {
		return v, nil
	}
	if !ok {
		found, err := e.inventory.find(ctx, target.Stamp, time.Time{})
		if err != nil {
			return Volume{}, err
		}
		for _, v := range found {
			if v.ID == target.VolumeID {
				return v, nil
			}
		}
	}
	return e.get(ctx, target.VolumeID)
}

// Holds reports whether the backend has a volume of the claim, in whatever
// state. It costs requests only when the answer is not known in this term.
func (l *Lifecycle) Holds(ctx context.Context, stamp Stamp) (bool, error) {
	return l.current().holds(ctx, stamp)
}

func (e *endpoint) holds(ctx context.Context, stamp Stamp) (bool, error) {
	e.mu.Lock()
	_, known := e.volumes[stamp.ClaimUID]
	since := e.unsettled[stamp.ClaimUID]
	e.mu.Unlock()
	if known {
		return true, nil
	}
	found, err := e.inventory.find(ctx, stamp, since)
	return len(found) > 0, err
}

// Has reports whether a volume of that id exists at the backend, whoever's it
// is. It serves PersistentVolumes that do not say where their volume is.
func (l *Lifecycle) Has(ctx context.Context, id string) (bool, error) {
	_, found, err := l.Find(ctx, id)
	return found, err
}

// Find reads a volume by its id, whoever's it is.
func (l *Lifecycle) Find(ctx context.Context, id string) (v Volume, found bool, err error) {
	v, err = l.current().get(ctx, id)
	if IsKind(err, KindNotFound) {
		return Volume{}, false, nil
	}
	return v, err == nil, err
}

// Volumes lists the cluster's volumes as of the last complete listing of this
// term. It costs requests only the first time.
func (l *Lifecycle) Volumes(ctx context.Context) ([]Volume, error) {
	return l.current().inventory.all(ctx)
}

// Relist lists the cluster's volumes anew. What it shows beside the volumes of
// claims under way is noted, and removed when they are completed.
func (l *Lifecycle) Relist(ctx context.Context) ([]Volume, error) {
	e := l.current()
	all, err := e.inventory.allAfter(ctx, time.Now())
	if err == nil {
		e.observe(all)
	}
	return all, err
}

// LastDoubt is when this term last asked for a volume without learning what
// became of the request, or the backend came to lead elsewhere; zero if neither
// happened. A network may deliver such a request late, after the claim got
// another volume, and at another place something may have been left.
func (l *Lifecycle) LastDoubt() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lastDoubt
}
