// This is a model of the proofs in package removal and of the fence. It explores every order in which
// two leaders, late requests, users, Kubernetes and Cinder can take turns. The decisions
// are the program's own: Cleaner.IsUnneeded, IsUnrecorded and Permit, backends.Preferred,
// the stamps and steps.StepToDelete. Only who asks them, and what a request does, is
// written here.
//
// The world is small: one name of a claim, whose second claim has another UID; one backend
// with two volumes, connected by the workflow reserve; two terms. A leader does one thing
// at a time. It may take up any volume at any time, whatever made the program do so. Each
// request to the API server is a step of its own, and the cache may be arbitrarily old. A
// killed or paused leader is one that takes no more steps; what it has sent may arrive
// later. Mishaps, of which there are at most two, are answers that are lost while the
// request is late or never arrives, and changes that Cinder does not show yet. Pods write
// as soon as a claim is bound, and are gone before the claim is.
// TestModelOfRemovalsIsSound visits all 1.2 million states of six such worlds.
//
// Not in the model: nodes (a pod that outlives its claim), mode csi, rebinds, imports,
// copies, snapshots, Secrets, several backends, Release, and finalizers removed by hand.
package removal_test

import (
	"context"
	"errors"
	"slices"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/backends/steps"
)

// UIDs of claims, volumes and leaders count from 1, and 0 is none. The PersistentVolume
// of a claim has its number.
const (
	uids    = 2
	volumes = 2
)

// volume is a volume at Cinder; none without a UID.
type volume struct {
	uid      uint8
	status   uint8 // index of statuses
	attached bool  // it is or was in use; see stamps.EverAttached
	data     bool  // a pod has written to it
	outdated bool  // it was requested before the policy changed
}

const (
	available = iota
	attaching
	inUse
)

var statuses = [...]cinder.Status{cinder.StatusAvailable, cinder.StatusAttaching, cinder.StatusInUse}

// kube is what the API server has, or a cache shows.
type kube struct {
	claim uint8 // the claim that has the name
	bound bool
	names [uids + 1]uint8 // the volume that each claim's PersistentVolume names
}

// request is one that is under way.
type request struct {
	kind        kind
	uid, volume uint8
}

type kind uint8

const (
	none kind = iota
	create
	reserve
	attach
	unreserve
	detach
	remove
	save
)

// leader is a term: what its worker does next, and what it remembers.
type leader struct {
	step        step
	uid, volume uint8
	inUse       bool     // the volume to remove is in use
	unrecorded  bool     // an attempt removes it, so the proof is IsUnrecorded
	reads       uint8    // answers that the proof has had from the API server
	answers     [4]uint8 // what they were
	cache       kube
	recorded    uint8   // set of volumes that a PersistentVolume in the cache has named
	listed      uint8   // set of volumes that attempts know, from a listing and since
	fresh       bool    // there was a listing, and no create has lost its answer since
	trusts      uint8   // set of volumes whose changes Cinder has acknowledged to it
	late        request // to Cinder, with a lost answer
	saving      request // to the API server
}

type step uint8

const (
	idle step = iota
	toCreate
	toReserve
	toSave
	toRead
	toProve
	toDisconnect
	toRemove
)

// state is a state of the world. It is comparable, so that it can be found again.
type state struct {
	now       kube
	finalizer [uids + 1]bool // of the PersistentVolumes
	created   uint8          // claims so far
	made      uint8          // volumes so far
	at, shown [volumes + 1]volume
	lags      bool  // Cinder shows the volumes as in shown
	mishaps   uint8 // so far
	changed   bool  // the policy
	lease     uint8
	unsettled bool // the second leader has to wait until Cinder shows what the first changed
	leaders   [2]leader
}

// model is a world, and what it does otherwise than the program.
type model struct {
	again         bool  // the claim is created again
	retain        bool  // the reclaim policy is Retain, not Delete
	policyChanges bool  // an attempt replaces the volume of an earlier one
	freshCaches   bool  // a leader's cache is never late
	mishaps       uint8 // how many there may be

	// savesLate lets a PersistentVolume be on its way to the API server while an attempt
	// replaces its volume. Then nothing but the cache prevents the removal of the volume
	// after the proof: a known gap.
	savesLate bool
	deviations
	*objectsRead
}

// deviations are mistakes that the exploration has to find.
type deviations struct {
	readsCache, readsClaimLast, skipsClaim, comparesNames, skipsLaterCheck, ignoresAttached,
	ignoresFence, ignoresLag, adoptsByName, prefersOldest, releasesEarly bool
}

// event is what leads from one state to the next. Its text may name the leader (%[1]d),
// the claim or PersistentVolume (%[2]d), and the volume (%[3]d).
type event struct {
	text                string
	leader, uid, volume uint8
}

// then takes the next states, one by one, with how data is lost on the way, if it is.
type then func(next *state, e event, lost string)

// step takes a copy of a state to the next.
func (then then) step(s state, e event, change func(next *state)) {
	change(&s)
	then(&s, e, "")
}

// next finds every next state.
func (m *model) next(s *state, then then) {
	m.users(s, then)
	for i := range s.lease {
		l := &s.leaders[i]
		if m.freshCaches {
			l.see(s.now)
		}
		if l.late.kind != none {
			arrived := *s
			arrived.leaders[i].late = request{}
			id, accepted, lost := arrived.arrive(l.late)
			e := event{lateTexts[l.late.kind], i + 1, l.late.uid, id}
			if !accepted {
				e.text += ", and Cinder refuses it"
			}
			then(&arrived, e, lost)
		}
		if uid, id := l.saving.uid, l.saving.volume; id != 0 {
			e := event{"the API server saves PersistentVolume %[2]d of leader %[1]d, which names volume %[3]d", i + 1, uid, id}
			if s.now.names[uid] != 0 {
				e.text = "the API server has PersistentVolume %[2]d already"
			}
			then.step(*s, e, func(next *state) {
				next.leaders[i].saving = request{}
				if s.now.names[uid] == 0 {
					next.now.names[uid], next.finalizer[uid] = id, true
				}
			})
		}
		if s.lease == i+1 && l.cache != s.now {
			then.step(*s, event{"leader %[1]d's cache catches up", i + 1, 0, 0}, func(next *state) { next.leaders[i].see(s.now) })
		}
		switch {
		case l.step != idle:
			m.work(*s, i, then)
		case m.leads(s, i):
			m.begin(*s, i, then)
		}
	}
}

var lateTexts = [...]string{
	create: "the late request for a volume of leader %[1]d arrives, which makes volume %[3]d", reserve: "the late reservation of volume %[3]d by leader %[1]d arrives",
	attach: "the late attachment of volume %[3]d by leader %[1]d arrives", unreserve: "the late unreserve of volume %[3]d by leader %[1]d arrives",
	detach: "the late detachment of volume %[3]d by leader %[1]d arrives", remove: "the late deletion of volume %[3]d by leader %[1]d arrives",
}

// users finds what users, administrators, Kubernetes and Cinder may do.
func (m *model) users(s *state, then then) {
	claim := s.now.claim
	id := s.now.names[claim]
	if claim != 0 {
		then.step(*s, event{"a user deletes claim %[2]d", 0, claim, 0}, func(next *state) { next.now.claim, next.now.bound = 0, false })
	} else if m.again && s.created < uids {
		then.step(*s, event{"a user creates the claim again, as claim %[2]d", 0, s.created + 1, 0}, func(next *state) {
			next.created++
			next.now.claim = next.created
		})
	}
	if claim != 0 && !s.now.bound && id != 0 {
		then.step(*s, event{"Kubernetes binds claim %[2]d, and a pod writes to volume %[3]d", 0, claim, id}, func(next *state) {
			next.now.bound, next.at[id].data = true, next.at[id].uid != 0
		})
	}
	for uid := uint8(1); m.retain && uid <= uids; uid++ {
		if id := s.now.names[uid]; id != 0 && claim != uid && !s.finalizer[uid] {
			then.step(*s, event{"an administrator deletes PersistentVolume %[2]d, to keep volume %[3]d", 0, uid, id}, func(next *state) { next.now.names[uid] = 0 })
		}
	}
	if s.lags {
		then.step(*s, event{text: "Cinder shows all changes"}, func(next *state) {
			next.lags, next.unsettled, next.shown = false, false, [volumes + 1]volume{}
			next.leaders[0].trusts, next.leaders[1].trusts = 0, 0
		})
	}
	if m.policyChanges && !s.changed {
		then.step(*s, event{text: "the policy changes"}, func(next *state) {
			next.changed = true
			for id := range next.at {
				next.at[id].outdated = next.at[id].uid != 0
			}
		})
	}
	for n, text := range []string{"leader 2 takes the lease", "leader 2 takes the lease, with a cache as of the beginning"} {
		if s.lease == 2 {
			break
		}
		cache := []kube{s.now, {claim: 1}}[n]
		then.step(*s, event{text: text}, func(next *state) {
			next.lease, next.unsettled = 2, s.lags && !m.ignoresLag
			next.leaders[1].see(cache)
			if !m.ignoresFence {
				// It may go on, but only up to its next request, so nothing depends on it.
				next.leaders[0] = leader{late: s.leaders[0].late, saving: s.leaders[0].saving}
			}
		})
	}
}

// arrive lets a request take effect at Cinder. It reports whether Cinder accepts it, and
// how data is lost by that, if it is.
func (s *state) arrive(r request) (id uint8, accepted bool, lost string) {
	v := &s.at[r.volume]
	switch r.kind {
	case create:
		if accepted = s.made < volumes; accepted {
			s.made++
			s.at[s.made] = volume{uid: r.uid}
			return s.made, true, ""
		}
	case reserve:
		if accepted = v.uid != 0 && v.status == available; accepted {
			v.status = attaching
		}
	case attach: // or, once the claim is gone, only mark
		if accepted = v.status == attaching || v.uid != 0 && v.uid != s.now.claim; accepted {
			v.attached = true
		}
		if v.status == attaching {
			v.status = inUse
		}
	case unreserve, detach:
		if accepted = r.kind == unreserve && v.status == attaching || r.kind == detach && v.status == inUse; accepted {
			v.status = available
		}
	case remove:
		if accepted = v.uid != 0 && v.status == available; !accepted {
			break
		}
		if v.data {
			lost = "a volume with data is removed"
		} else if s.now.claim == v.uid && s.now.names[v.uid] == r.volume {
			lost = "the recorded volume of a claim is removed"
		}
		*v = volume{}
	}
	return r.volume, accepted, lost
}

// view returns a volume as Cinder shows it to a leader, who trusts what Cinder has
// acknowledged to it.
func (s *state) view(l *leader, id uint8) volume {
	if s.lags && l.trusts&(1<<id) == 0 {
		return s.shown[id]
	}
	return s.at[id]
}

// leads reports whether the fence lets a leader change anything.
func (m *model) leads(s *state, i uint8) bool {
	return s.lease == i+1 && !s.unsettled || m.ignoresFence && s.lease > i+1
}

// see updates a leader's cache.
func (l *leader) see(now kube) {
	l.cache = now
	for _, id := range now.names {
		l.recorded |= 1 << id &^ 1
	}
}

// rest ends what a leader's worker does.
func (l *leader) rest() {
	l.step, l.uid, l.volume, l.inUse, l.unrecorded, l.reads, l.answers = idle, 0, 0, false, false, 0, [4]uint8{}
}

// send sends a request to Cinder. Either the leader gets no answer, and the request is
// late; or it takes effect, which Cinder may not show yet, and the leader goes on.
func (m *model) send(s state, i uint8, r request, text string, goesOn step, then then) {
	e := event{text, i + 1, r.uid, r.volume}
	l := &s.leaders[i]
	if !m.leads(&s, i) {
		l.rest()
		e.text = "the fence stops leader %[1]d"
		then(&s, e, "")
		return
	}
	if l.late.kind == none && s.mishaps < m.mishaps {
		then.step(s, event{text + ", but gets no answer", i + 1, r.uid, r.volume}, func(next *state) {
			l := &next.leaders[i]
			l.rest()
			l.late, l.fresh = r, l.fresh && r.kind != create
			next.mishaps++
		})
	}
	before := s.at
	id, accepted, lost := s.arrive(r)
	if !accepted || goesOn == idle {
		l.rest()
	} else {
		l.step, l.volume = goesOn, id
	}
	switch {
	case !accepted:
		e.text += ", which Cinder refuses"
	case r.kind == create:
		e.text, e.volume = e.text+", and gets volume %[3]d", id
		l.listed |= 1 << id
	}
	hidden := s
	if s.lags && accepted {
		l.trusts |= 1 << id
	}
	then(&s, e, lost)
	if accepted && !s.lags && s.mishaps < m.mishaps {
		hidden.mishaps++
		hidden.lags, hidden.shown, hidden.leaders[i].trusts = true, before, 1<<id
		e.text += " (not shown yet)"
		then(&hidden, e, lost)
	}
}

// begin finds what a leader may turn to.
func (m *model) begin(s state, i uint8, then then) {
	l := &s.leaders[i]
	if claim := l.cache.claim; claim != 0 && !l.cache.bound && l.cache.names[claim] == 0 {
		s := s
		s.leaders[i].uid = claim
		m.look(s, i, then)
	}
	for id := uint8(1); id <= volumes; id++ {
		v := s.view(l, id)
		if v.uid != 0 && !m.stays(m.shownAs(id, v)) {
			s := s
			s.leaders[i].step, s.leaders[i].uid, s.leaders[i].volume = toProve, v.uid, id
			m.prove(s, i, then)
		}
		if l.recorded&(1<<id) != 0 && v.uid != 0 && !v.attached && (m.retain || l.cache.claim == v.uid) {
			m.send(s, i, request{attach, v.uid, id}, "leader %[1]d brings volume %[3]d into use", idle, then)
		}
	}
	for uid, id := range l.cache.names {
		e := event{"leader %[1]d removes volume %[3]d of released PersistentVolume %[2]d", i + 1, uint8(uid), id}
		switch v := s.view(l, id); {
		case id == 0 || s.now.names[uid] != id:
		case m.retain && s.finalizer[uid] && (v.attached || m.releasesEarly):
			e.text = "leader %[1]d removes the finalizer of PersistentVolume %[2]d"
			then.step(s, e, func(next *state) { next.finalizer[uid] = false })
		case !m.retain && l.cache.claim != uint8(uid):
			then.step(s, e, func(next *state) { next.at[id], next.now.names[uid] = volume{}, 0 })
		}
	}
}

// stays reports whether the backend never removes a volume without a PersistentVolume.
func (m *model) stays(v cinder.Volume) bool {
	return stamps.IsCopy(v) || stamps.EverAttached(v) && !m.ignoresAttached
}

// look finds the volume of the claim that a leader works on.
func (m *model) look(s state, i uint8, then then) {
	l := &s.leaders[i]
	if !l.fresh {
		l.listed, l.fresh = 1<<(volumes+1)-1, true
		for id := range uint8(volumes + 1) {
			if s.view(l, id).uid == 0 {
				l.listed &^= 1 << id
			}
		}
	}
	var found []cinder.Volume
	for id := uint8(1); id <= volumes; id++ {
		if v := m.shownAs(id, s.view(l, id)); l.listed&(1<<id) != 0 && v.ID != "" && (stampOf(l.uid).Owns(v) || m.adoptsByName) {
			found = append(found, v)
		}
	}
	e := event{"leader %[1]d finds no volume of claim %[2]d", i + 1, l.uid, 0}
	switch {
	case len(found) == 0:
		l.step = toCreate
	case len(found) > 1:
		kept := backends.Preferred(found)
		if m.prefersOldest {
			kept = found[0]
		}
		found = slices.DeleteFunc(found, func(v cinder.Volume) bool { return v.ID == kept.ID })
		e.text = "leader %[1]d finds a duplicate of claim %[2]d, volume %[3]d"
		l.step, l.unrecorded = toRead, true
	default:
		e.text = "leader %[1]d finds volume %[3]d for claim %[2]d"
	}
	if len(found) > 0 {
		l.volume = numberOf(found[0])
		e.volume = l.volume
	}
	isSaving := func(l leader) bool { return l.saving.volume == e.volume }
	switch v := s.view(l, l.volume); {
	case l.step != idle:
	case v.outdated && !m.savesLate && slices.ContainsFunc(s.leaders[:], isSaving):
		return // as if nothing had been late
	case v.outdated:
		l.step, l.unrecorded = toRead, true
		e.text += ", which the policy no longer requests"
	case v.status == available:
		l.step = toReserve
	default:
		l.step = toSave
	}
	then(&s, e, "")
}

// work finds the next steps of what a leader has begun.
func (m *model) work(s state, i uint8, then then) {
	l := &s.leaders[i]
	e := event{leader: i + 1, uid: l.uid, volume: l.volume}
	send := func(kind kind, text string, goesOn step) {
		m.send(s, i, request{kind, l.uid, l.volume}, text, goesOn, then)
	}
	switch l.step {
	case toCreate:
		send(create, "leader %[1]d requests a volume for claim %[2]d", toReserve)
	case toReserve:
		send(reserve, "leader %[1]d reserves volume %[3]d", toSave)
	case toSave:
		e.text = "leader %[1]d does not send PersistentVolume %[2]d"
		if l.saving.kind == none && m.leads(&s, i) {
			e.text = "leader %[1]d sends PersistentVolume %[2]d, which names volume %[3]d"
			l.saving = request{save, l.uid, l.volume}
		}
		l.rest()
		then(&s, e, "")
	case toRead:
		e.text = "leader %[1]d reads volume %[3]d"
		if v := m.shownAs(l.volume, s.view(l, l.volume)); v.ID == "" || m.stays(v) {
			l.listed &^= 1 << l.volume
			l.rest()
		} else {
			l.step = toProve
		}
		then(&s, e, "")
	case toProve:
		m.prove(s, i, then)
	case toDisconnect, toRemove:
		// The proof is some steps old, and the permit is asked again just before the request.
		if err := m.permit(&s, l, true)(context.Background(), m.shownAs(l.volume, volume{uid: l.uid})); err != nil && !m.skipsLaterCheck {
			e.text = "leader %[1]d stops: " + err.Error()
			l.rest()
			then(&s, e, "")
		} else if l.step == toRemove {
			send(remove, "leader %[1]d deletes volume %[3]d", idle)
		} else if l.inUse {
			send(detach, "leader %[1]d detaches volume %[3]d", toRemove)
		} else {
			send(unreserve, "leader %[1]d unreserves volume %[3]d", toRemove)
		}
	}
}

// prove takes the proof one request to the API server further.
func (m *model) prove(s state, i uint8, then then) {
	l := &s.leaders[i]
	e := event{"leader %[1]d has the proof that volume %[3]d is not needed", i + 1, l.uid, l.volume}
	v := s.view(l, l.volume)
	v.uid = l.uid // as it was read, even if it is gone
	err := m.permit(&s, l, false)(context.Background(), m.shownAs(l.volume, v))
	switch {
	case errors.Is(err, errInterrupted):
		e.text = "leader %[1]d reads from the API server, to remove volume %[3]d"
		l.reads++
	case err != nil:
		e.text = "leader %[1]d stops: " + err.Error()
		l.rest()
	default:
		l.step, l.inUse, l.reads, l.answers = toDisconnect, v.status == inUse, 0, [4]uint8{}
		if steps.StepToDelete(m.shownAs(l.volume, v), cinder.WorkflowReserve) == steps.Delete {
			l.step = toRemove
		}
	}
	then(&s, e, "")
}
