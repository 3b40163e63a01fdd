package backends

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// knowledge is what a term knows of the volumes at one endpoint, beside the
// complete listings of the inventory.
type knowledge struct {
	// mu is the lifecycle's, and so that of every endpoint: next is written to
	// as well.
	mu *sync.Mutex
	// volumes maps a claim's UID to the volume that serves it, as far as this
	// term knows.
	volumes map[string]string
	// unsettled holds, by claim UID, since when there may be a volume that this
	// term does not know: only a listing that began later can tell.
	unsettled map[string]time.Time
	// rivals holds, by claim UID, volumes seen in listings that carry the same
	// stamp as the claim's own.
	rivals map[string]map[string]bool
	// seen holds the newest picture, by id, of volumes that this term brought
	// to attaching; the zero Volume where it is not to be trusted.
	seen map[string]cinder.Volume
	// former holds, by claim UID, where the term knew a volume before the backend
	// was led here.
	former map[string]cinder.Place
	// next is what is known at the endpoint that has taken this one's place; nil
	// while this is the current one.
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

// of returns the volume that serves a claim, or "", and since when there is
// doubt whether it is the only one; zero if there is none.
func (k *knowledge) of(uid string) (id string, doubtSince time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.volumes[uid], k.unsettled[uid]
}

// doubt records that there may be a volume of the claim that is not known.
func (k *knowledge) doubt(uid string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	// Whatever endpoint has taken this one's place may be the same Cinder by
	// another way.
	for at := k; at != nil; at = at.next {
		at.unsettled[uid] = time.Now()
	}
}

// settle records what is known of a claim's volume after all doubt is gone.
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

// forgetClaim forgets a claim's volume and all that was seen beside it.
func (k *knowledge) forgetClaim(uid, id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.volumes[uid] == id {
		delete(k.volumes, uid)
	}
	delete(k.rivals, uid)
	delete(k.seen, id)
}

// forgetVolume forgets a volume that is gone, and nothing of the claim's others.
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

// see remembers the newest picture of a volume; the zero Volume says that the
// picture at hand is not to be trusted.
func (k *knowledge) see(id string, v cinder.Volume) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.seen[id] = v
}

// picture is the newest of a volume, if there is one.
func (k *knowledge) picture(id string) (v cinder.Volume, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	v, ok = k.seen[id]
	return v, ok
}

// dropPicture forgets how a volume looked.
func (k *knowledge) dropPicture(id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.seen, id)
}

// noteRivals looks through volumes of the cluster that were read for another
// purpose for second volumes of claims in flight.
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

// rivalsOf lists what was seen beside a claim's volume.
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

// succeed takes over from another endpoint what holds at this one too; it is
// called under the lock. What is in doubt stays in doubt, and every claim that
// has a volume there, by the listing or by what was known, comes to it: this may
// be the same Cinder by another way. The place is the other endpoint's.
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
