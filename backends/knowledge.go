package backends

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// knowledge is what a term knows about the volumes at one endpoint, besides the
// inventory's complete listings.
type knowledge struct {
	// mu is the lifecycle's, shared by all endpoints, since next is written
	// too.
	mu *sync.Mutex
	// volumes maps a claim's UID to the volume that serves it, as far as this
	// term knows.
	volumes map[string]string
	// unsettled maps a claim's UID to the time since which it may have a volume
	// unknown to this term: only a listing that began later can show that.
	unsettled map[string]time.Time
	// rivals maps a claim's UID to volumes seen in listings with the same stamp
	// as the claim's volume.
	rivals map[string]map[string]bool
	// seen maps an ID to the last known state of a volume that this term
	// brought to attaching; the zero Volume if that state may be outdated.
	seen map[string]cinder.Volume
	// former maps a claim's UID to the place where the term knew its volume
	// before the backend led here.
	former map[string]cinder.Place
	// next is the knowledge at the endpoint that replaced this one; nil while
	// this is the current one.
	next *knowledge
}

func newKnowledge(mu *sync.Mutex) *knowledge {
	return &knowledge{
		mu:        mu,
		volumes:   map[string]string{},
		unsettled: map[string]time.Time{},
		rivals:    map[string]map[string]bool{},
		seen:      map[string]cinder.Volume{},
		former:    map[string]cinder.Place{},
	}
}

// of returns the volume that serves a claim, or "", and since when there may be
// others; zero if there can be none.
func (k *knowledge) of(uid string) (id string, doubtSince time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.volumes[uid], k.unsettled[uid]
}

// doubt records that the claim may have an unknown volume.
func (k *knowledge) doubt(uid string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	// The endpoint that replaced this one may be the same Cinder at another
	// address.
	for at := k; at != nil; at = at.next {
		at.unsettled[uid] = time.Now()
	}
}

// settle records a claim's volume once all doubt is resolved.
func (k *knowledge) settle(uid, id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.unsettled, uid)
	if id == "" {
		delete(k.volumes, uid)
		return
	}
	k.volumes[uid] = id
	delete(k.former, uid)
}

// forgetClaim forgets a claim's volume and all its rivals.
func (k *knowledge) forgetClaim(uid, id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.volumes[uid] == id {
		delete(k.volumes, uid)
	}
	delete(k.rivals, uid)
	delete(k.seen, id)
}

// forgetVolume forgets a volume that is gone, but not the claim's others.
func (k *knowledge) forgetVolume(uid, id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.dropRivalLocked(uid, id)
	if k.volumes[uid] == id {
		delete(k.volumes, uid)
	}
	delete(k.seen, id)
	delete(k.former, uid)
}

// see records the last known state of a volume; the zero Volume means that the
// known state may be outdated.
func (k *knowledge) see(id string, v cinder.Volume) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.seen[id] = v
}

// picture is the last known state of a volume, if there is one.
func (k *knowledge) picture(id string) (v cinder.Volume, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	v, ok = k.seen[id]
	return v, ok
}

// dropPicture forgets the last known state of a volume.
func (k *knowledge) dropPicture(id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.seen, id)
}

// noteRivals searches volumes of the cluster that were read for another purpose
// for duplicates of claims in flight.
func (k *knowledge) noteRivals(page []cinder.Volume, cluster string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, v := range page {
		if v.Metadata[stampCluster] != cluster {
			continue
		}
		uid := v.Metadata[stampClaimUID]
		id, known := k.volumes[uid]
		if !known || id == v.ID {
			continue
		}
		if k.rivals[uid] == nil {
			k.rivals[uid] = map[string]bool{}
		}
		k.rivals[uid][v.ID] = true
	}
}

// rivalsOf lists the rivals of a claim's volume.
func (k *knowledge) rivalsOf(uid, id string) []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.DeleteFunc(slices.Sorted(maps.Keys(k.rivals[uid])), func(rival string) bool { return rival == id })
}

func (k *knowledge) dropRival(uid, id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.dropRivalLocked(uid, id)
}

func (k *knowledge) dropRivalLocked(uid, id string) {
	delete(k.rivals[uid], id)
	if len(k.rivals[uid]) == 0 {
		delete(k.rivals, uid)
	}
}

// formerPlace is where the term knew a volume of the claim before.
func (k *knowledge) formerPlace(uid string) (at cinder.Place, known bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	at, known = k.former[uid]
	return at, known
}

// succeed takes over from another endpoint what is also valid at this one; it
// is called with the lock. Doubts remain, and every claim with a volume there,
// listed or known, gets one: this may be the same Cinder at another address.
// place is the other endpoint's.
func (k *knowledge) succeed(other *knowledge, listed []string, place cinder.Place, now time.Time) {
	maps.Copy(k.unsettled, other.unsettled)
	maps.Copy(k.former, other.former)
	for _, uid := range append(listed, slices.Collect(maps.Keys(other.volumes))...) {
		k.unsettled[uid] = now
		if place.IsKnown() {
			k.former[uid] = place
		}
	}
	other.next = k
}
