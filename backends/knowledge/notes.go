package knowledge

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// Notes are what a term knows about the volumes at one endpoint, besides the inventory's
// complete listings.
type Notes struct {
	// mu is the lifecycle's. All endpoints share it, since Doubt also writes to the notes
	// in the next field.
	mu *sync.Mutex
	// volumes maps a claim's UID to its volume, as far as this term knows.
	volumes map[string]string
	// unsettled maps a claim's UID to the time since which it may have an unknown volume:
	// only a listing that began later can rule that out.
	unsettled map[string]time.Time
	// rivals maps a claim's UID to other listed volumes with the same stamp.
	rivals map[string]map[string]bool
	// seen maps an ID to the last known state of a volume that this term brought to
	// attaching; the zero Volume if that state may be outdated.
	seen map[string]cinder.Volume
	// earlier maps a claim's UID to where this term saw its volume before the backend's
	// endpoint changed.
	earlier map[string]cinder.Place
	// next has the notes of the endpoint that replaced this one; nil while this one is
	// current.
	next *Notes
}

// NewNotes returns empty notes.
func NewNotes(mu *sync.Mutex) *Notes {
	return &Notes{
		mu:        mu,
		volumes:   map[string]string{},
		unsettled: map[string]time.Time{},
		rivals:    map[string]map[string]bool{},
		seen:      map[string]cinder.Volume{},
		earlier:   map[string]cinder.Place{},
	}
}

// Of returns a claim's volume, or "", and since when there may be others; zero if there
// can be none.
func (n *Notes) Of(uid string) (id string, doubtSince time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.volumes[uid], n.unsettled[uid]
}

// Doubt records that the claim may have an unknown volume.
func (n *Notes) Doubt(uid string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	// The endpoint that replaced this one may be the same Cinder at another address.
	for at := n; at != nil; at = at.next {
		at.unsettled[uid] = time.Now()
	}
}

// Settle records a claim's volume once all doubt is resolved.
func (n *Notes) Settle(uid, id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.unsettled, uid)
	if id == "" {
		delete(n.volumes, uid)
		return
	}
	n.volumes[uid] = id
	delete(n.earlier, uid)
}

// ForgetClaim forgets a claim's volume and all its rivals.
func (n *Notes) ForgetClaim(uid, id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.volumes[uid] == id {
		delete(n.volumes, uid)
	}
	delete(n.rivals, uid)
	delete(n.seen, id)
}

// ForgetVolume forgets a volume that is gone, but not the claim's others.
func (n *Notes) ForgetVolume(uid, id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.rivals[uid], id)
	if n.volumes[uid] == id {
		delete(n.volumes, uid)
	}
	delete(n.seen, id)
	delete(n.earlier, uid)
}

// See records the last known state of a volume; the zero Volume means that it may be
// outdated.
func (n *Notes) See(id string, v cinder.Volume) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.seen[id] = v
}

// LastSeen returns the last known state of a volume, if there is one.
func (n *Notes) LastSeen(id string) (v cinder.Volume, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	v, ok = n.seen[id]
	return v, ok
}

// ForgetSeen forgets the last known state of a volume.
func (n *Notes) ForgetSeen(id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.seen, id)
}

// NoteRivals looks for duplicates of claims in flight among volumes read for another
// purpose. owner returns the UID in a volume's stamp.
func (n *Notes) NoteRivals(page []cinder.Volume, owner func(cinder.Volume) (uid string)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, v := range page {
		uid := owner(v)
		id, known := n.volumes[uid]
		if !known || id == v.ID {
			continue
		}
		if n.rivals[uid] == nil {
			n.rivals[uid] = map[string]bool{}
		}
		n.rivals[uid][v.ID] = true
	}
}

// RivalsOf lists the rivals of a claim's volume.
func (n *Notes) RivalsOf(uid, id string) []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.DeleteFunc(slices.Sorted(maps.Keys(n.rivals[uid])), func(rival string) bool { return rival == id })
}

// DropRival forgets one rival of a claim's volume.
func (n *Notes) DropRival(uid, id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.rivals[uid], id)
}

// EarlierPlace returns where this term saw the claim's volume before the backend's
// endpoint changed.
func (n *Notes) EarlierPlace(uid string) (at cinder.Place, known bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	at, known = n.earlier[uid]
	return at, known
}

// Succeed takes over from another endpoint what is still valid at this one. The caller
// must hold the lock. Doubts remain, and every claim with a volume there, listed or
// known, gets one: this may be the same Cinder at another address. place is the other
// endpoint's.
func (n *Notes) Succeed(other *Notes, listed []string, place cinder.Place, now time.Time) {
	maps.Copy(n.unsettled, other.unsettled)
	maps.Copy(n.earlier, other.earlier)
	for _, uid := range append(listed, slices.Collect(maps.Keys(other.volumes))...) {
		n.unsettled[uid] = now
		if place.IsKnown() {
			n.earlier[uid] = place
		}
	}
	other.next = n
}
