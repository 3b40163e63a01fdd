package removal_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/backends/steps"
	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodeuse"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/removal"
)

// The bounds of the world. UIDs, volumes and leaders count from 1; 0 is none.
const (
	uids    = 2
	volumes = 2
)

// volume is a volume at Cinder. Nothing exists if it has no claim's UID.
type volume struct {
	uid      uint8
	status   uint8 // index in statuses
	attached bool  // stamps.EverAttached
	data     bool  // a pod has written to it
	before   bool  // made before the policy changed
}

const (
	available = iota
	attaching
	inUse
)

var statuses = [...]cinder.Status{cinder.StatusAvailable, cinder.StatusAttaching, cinder.StatusInUse}

// kube is what the API server has, or a cache of it: the claim of the name, and the volume
// that the PersistentVolume of each UID names.
type kube struct {
	claim uint8
	bound bool
	names [uids + 1]uint8
}

// request is one to Cinder.
type request struct{ what, uid, volume uint8 }

const (
	nothing = iota
	create
	reserve
	mark
	unreserve
	detach
	remove
	save
)

// leader is a term: the step of its worker, and what it remembers.
type leader struct {
	step, uid, volume uint8
	inUse             bool     // it disconnects a volume in use
	unrecorded        bool     // it proves IsUnrecorded, not IsUnneeded
	reads             uint8    // answers that the proof has had so far
	answers           [4]uint8 // of the API server to the proof
	cache             kube
	listed            uint8   // volumes of the last listing that attempts rely on, and those made since
	fresh             bool    // there was a listing, and no create has lost its answer since
	own               uint8   // volumes whose latest change was acknowledged to this leader
	recorded          uint8   // volumes whose PersistentVolume the cache has shown
	saving            request // the PersistentVolume on its way to the API server
	late              request // on its way to Cinder
}

const (
	idle = iota
	toCreate
	toReserve
	toSave
	toRead
	toProve
	toDisconnect
	toRemove
)

// state is a state of the world. It is comparable, so that a map finds it again.
type state struct {
	now       kube
	finalizer [uids + 1]bool
	created   uint8 // claims so far
	made      uint8 // volumes so far
	at, shown [volumes + 1]volume
	lags      bool // shown is older than at
	changed   bool // the policy
	lease     uint8
	unsettled bool  // leader 2 waits for --cinder-read-lag
	mishaps   uint8 // so far
	leaders   [2]leader
}

// event is how one state becomes the next.
type event struct {
	text                string
	leader, uid, volume uint8
}

// deviations are what a model does otherwise than the program.
type deviations struct {
	readsCache, skipsClaim, skipsLaterCheck, ignoresAttached, ignoresFence, ignoresLag, adoptsByName, releasesEarly, savesLate, comparesNames, readsClaimLast, prefersOldest bool
}

// model is the world with one reclaim policy.
type model struct {
	deviations
	retain, again, policyChanges, freshCaches bool
	mishaps                                   uint8 // how many requests may be late, or not shown at once

	volumes [volumes + 1][uids + 1][len(statuses)][2]cinder.Volume
	claims  [uids + 1][2]*corev1.PersistentVolumeClaim
	pvs     [uids + 1][volumes + 1]*corev1.PersistentVolume
}

func name(uid uint8) string { return fmt.Sprintf("uid-%d", uid) }

func stampOf(uid uint8) stamps.Volume {
	return stamps.Volume{Cluster: "cluster", ClusterUID: "kube-system", Namespace: "team", Claim: "data", ClaimUID: name(uid), PV: objects.PVNameFor(name(uid))}
}

// newModel makes what the predicates read.
func newModel(m model) *model {
	policy := corev1.PersistentVolumeReclaimDelete
	if m.retain {
		policy = corev1.PersistentVolumeReclaimRetain
	}
	for uid := uint8(1); uid <= uids; uid++ {
		for bound := range m.claims[uid] {
			claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "data", UID: types.UID(name(uid))}}
			if bound == 1 {
				claim.Spec.VolumeName = objects.PVNameFor(name(uid))
			}
			m.claims[uid][bound] = claim
		}
		for id := uint8(1); id <= volumes; id++ {
			for status := range statuses {
				for marked := range 2 {
					v := cinder.Volume{ID: fmt.Sprintf("volume-%d", id), Status: statuses[status], Metadata: stampOf(uid).Metadata(nil), CreatedAt: time.Unix(int64(id), 0)}
					if marked == 1 {
						v.Metadata[cinder.MetadataReadOnly] = "False"
					}
					m.volumes[id][uid][status][marked] = v
				}
			}
			pv := objects.NewPersistentVolume(objects.Provisioned{
				Name: objects.PVNameFor(name(uid)), Claim: m.claims[uid][0], Class: &storagev1.StorageClass{ReclaimPolicy: &policy}, Cluster: "cluster", Backend: "gold",
				Connector: &cinder.Connector{}, Connected: backends.Connected{Volume: m.volumes[id][uid][attaching][0]}, Mapped: mappers.Result{},
			})
			pv.Annotations[objects.AnnotationProvisionedBy] = "test"
			m.pvs[uid][id] = pv
		}
	}
	return &m
}

func (m *model) shownAs(id uint8, v volume) cinder.Volume {
	if v.uid == 0 {
		return cinder.Volume{}
	}
	marked := 0
	if v.attached {
		marked = 1
	}
	return m.volumes[id][v.uid][v.status][marked]
}

// proof lets the real Cleaner read the API server one request at a time: it answers again
// what the leader has read so far, then one request more, and interrupts the rest.
type proof struct {
	kubernetes.Interface
	typedcore.CoreV1Interface
	m     *model
	s     *state
	l     *leader
	asked uint8
	whole bool // all of it at once
}

type (
	pvClient struct {
		typedcore.PersistentVolumeInterface
		proof *proof
	}
	claimClient struct {
		typedcore.PersistentVolumeClaimInterface
		proof *proof
	}
)

var errInterrupted, errNotThere = errors.New("interrupted"), apierrors.NewNotFound(schema.GroupResource{}, "it")

func (p *proof) CoreV1() typedcore.CoreV1Interface                      { return p }
func (p *proof) PersistentVolumes() typedcore.PersistentVolumeInterface { return pvClient{proof: p} }
func (p *proof) PersistentVolumeClaims(string) typedcore.PersistentVolumeClaimInterface {
	return claimClient{proof: p}
}
func (p *proof) Users(context.Context, nodeuse.Volume) ([]string, error) { return nil, nil }

// answer returns the answer to a request: the remembered one, or the present one.
func (p *proof) answer(present uint8) (uint8, error) {
	defer func() { p.asked++ }()
	switch {
	case p.whole:
		return present, nil
	case p.asked < p.l.reads:
		return p.l.answers[p.asked], nil
	case p.asked > p.l.reads:
		return 0, errInterrupted
	}
	p.l.answers[p.asked] = present
	return present, nil
}

func (p *proof) source() *kube {
	if p.m.readsCache {
		return &p.l.cache
	}
	return &p.s.now
}

func (p pvClient) Get(_ context.Context, of string, _ metav1.GetOptions) (*corev1.PersistentVolume, error) {
	uid := uint8(1)
	for objects.PVNameFor(name(uid)) != of {
		uid++
	}
	id, err := p.proof.answer(p.proof.source().names[uid])
	if err == nil && id == 0 {
		err = errNotThere
	}
	return p.proof.m.pvs[uid][id], err
}

func (p claimClient) Get(_ context.Context, _ string, _ metav1.GetOptions) (*corev1.PersistentVolumeClaim, error) {
	present := 2 * p.proof.source().claim
	if p.proof.source().bound {
		present++
	}
	claim, err := p.proof.answer(present)
	if err == nil && claim < 2 {
		err = errNotThere
	}
	uid := claim / 2
	if p.proof.m.comparesNames {
		uid = p.proof.l.uid
	}
	return p.proof.m.claims[uid][claim%2], err
}

// cleaner is the leader's.
func (p *proof) cleaner() removal.Cleaner {
	return removal.Cleaner{
		Client: p, ProvisionerName: "test", Cluster: "cluster", ClusterUID: "kube-system", Nodes: p,
		UseOf: func(stamps.Volume) *nodeuse.Volume { return nil },
		RecordedBy: func(v cinder.Volume) string {
			for id := uint8(1); id <= volumes; id++ {
				if v.ID == p.m.volumes[id][1][0][0].ID && (p.l.recorded&(1<<id) != 0) {
					return stamps.Of(v).PV
				}
			}
			return ""
		},
	}
}

// arrive lets a request take effect at Cinder, and reports whether Cinder accepts it. lost
// says whether data is lost by that.
func (s *state) arrive(r request) (id uint8, accepted bool, lost string) {
	v := &s.at[r.volume]
	switch r.what {
	case create:
		if s.made == volumes {
			return 0, false, ""
		}
		s.made++
		s.at[s.made] = volume{uid: r.uid, before: !s.changed}
		return s.made, true, ""
	case reserve:
		if accepted = v.uid != 0 && v.status == available; accepted {
			v.status = attaching
		}
	case mark:
		switch accepted = v.uid != 0 && (v.status == attaching || s.now.claim != v.uid); {
		case accepted && v.status == attaching:
			v.status, v.attached = inUse, true
		case accepted:
			v.attached = true
		}
	case unreserve, detach:
		if accepted = v.uid != 0 && (r.what == unreserve) == (v.status == attaching) && v.status != available; accepted {
			v.status = available
		}
	case remove:
		if accepted = v.uid != 0 && v.status == available; accepted {
			switch {
			case v.data:
				lost = "a volume with data is removed"
			case s.now.claim == v.uid && s.now.names[v.uid] == r.volume:
				lost = "the volume of a claim that exists is removed"
			}
			*v = volume{}
		}
	}
	return r.volume, accepted, lost
}

// view returns a volume as Cinder shows it to a leader, which remembers what Cinder has
// acknowledged to it.
func (s *state) view(l *leader, id uint8) volume {
	if s.lags && l.own&(1<<id) == 0 {
		return s.shown[id]
	}
	return s.at[id]
}

// leads reports whether the fence lets a leader's requests pass.
func (m *model) leads(s *state, i uint8) bool {
	return s.lease == i && !(i == 2 && s.unsettled) || m.ignoresFence && i < s.lease
}

// then is called with each next state.
type then func(next *state, e event, lost string)

// send sends a request to Cinder: it is answered at once; its effect is not shown yet; or
// it is late, and the leader does not know its effect. After an answer, the leader goes on
// with the given step.
func (m *model) send(s state, i uint8, r request, what string, next uint8, then then) {
	e := event{leader: i, uid: r.uid, volume: r.volume}
	l := &s.leaders[i-1]
	if !m.leads(&s, i) {
		l.rest()
		e.text = "leader %[1]d is stopped by the fence"
		then(&s, e, "")
		return
	}
	if l.late.what == nothing && s.mishaps < m.mishaps {
		late := s
		late.mishaps++
		l := &late.leaders[i-1]
		l.rest()
		l.late = r
		if r.what == create {
			l.fresh = false
		}
		e.text = what + ", but its answer is lost"
		then(&late, e, "")
	}
	before := s.at
	id, accepted, lost := s.arrive(r)
	e.text, e.volume = what, id
	if r.what == create && accepted {
		e.text += ", and gets volume %[3]d"
	}
	switch {
	case !accepted:
		l.rest()
		e.text += ", which Cinder refuses"
	case next == idle:
		l.rest()
	default:
		l.step, l.volume = next, id
	}
	if accepted {
		l.own |= 1 << id
		l.listed |= 1 << id
		if r.what == remove {
			l.listed &^= 1 << id
		}
	}
	if accepted && !s.lags && s.mishaps < m.mishaps {
		lagging := s
		lagging.mishaps++
		lagging.lags, lagging.shown = true, before
		late := e
		late.text += " (not shown yet)"
		then(&lagging, late, lost)
	}
	if !s.lags {
		s.leaders[i-1].own = 0
	}
	then(&s, e, lost)
}

// rest ends what a leader's worker does.
func (l *leader) rest() {
	l.step, l.uid, l.volume, l.inUse, l.unrecorded, l.reads, l.answers = idle, 0, 0, false, false, 0, [4]uint8{}
}

// see lets a leader's cache catch up.
func (l *leader) see(now kube) {
	l.cache = now
	for _, id := range now.names {
		l.recorded |= 1 << id
	}
	l.recorded &^= 1
}

// next finds every next state.
func (m *model) next(s *state, then then) {
	m.world(s, then)
	for i := uint8(1); i <= s.lease; i++ {
		l := &s.leaders[i-1]
		if l.late.what != nothing {
			next := *s
			r := l.late
			next.leaders[i-1].late = request{}
			_, accepted, lost := next.arrive(r)
			e := event{[...]string{create: "the late request for a volume", reserve: "the late reservation of volume %[3]d", mark: "the late attachment of volume %[3]d", unreserve: "the late unreserve of volume %[3]d", detach: "the late detachment of volume %[3]d", remove: "the late deletion of volume %[3]d"}[r.what] + " of leader %[1]d arrives", i, r.uid, r.volume}
			if !accepted {
				e.text += ", and Cinder refuses it"
			}
			then(&next, e, lost)
		}
		if l.saving.what != nothing {
			next := *s
			uid, id := l.saving.uid, l.saving.volume
			next.leaders[i-1].saving = request{}
			e := event{"the API server saves PersistentVolume %[2]d of leader %[1]d, which names volume %[3]d", i, uid, id}
			if s.now.names[uid] != 0 {
				e.text = "PersistentVolume %[2]d of leader %[1]d exists already"
			} else {
				next.now.names[uid], next.finalizer[uid] = id, true
			}
			then(&next, e, "")
		}
		if s.lease == i && m.freshCaches && l.cache != s.now {
			s.leaders[i-1].see(s.now)
		} else if s.lease == i && l.cache != s.now {
			next := *s
			next.leaders[i-1].see(s.now)
			then(&next, event{text: "leader %[1]d's cache catches up", leader: i}, "")
		}
		if m.leads(s, i) || l.step != idle {
			m.work(*s, i, then)
		}
	}
}

// world finds what users, administrators, Kubernetes and Cinder do.
func (m *model) world(s *state, then then) {
	one := func(text string, uid, id uint8, change func(next *state)) {
		next := *s
		change(&next)
		then(&next, event{text: text, uid: uid, volume: id}, "")
	}
	claim := s.now.claim
	if claim != 0 {
		one("a user deletes claim %[2]d", claim, 0, func(next *state) { next.now.claim, next.now.bound = 0, false })
	}
	if claim == 0 && s.created < uids && m.again {
		one("a user creates the claim again, as claim %[2]d", s.created+1, 0, func(next *state) {
			next.created++
			next.now.claim = next.created
		})
	}
	if id := s.now.names[claim]; claim != 0 && !s.now.bound && id != 0 {
		one("Kubernetes binds claim %[2]d, and a pod writes to volume %[3]d", claim, id, func(next *state) {
			next.now.bound = true
			next.at[id].data = next.at[id].uid != 0
		})
	}
	for uid := uint8(1); m.retain && uid <= uids; uid++ {
		if id := s.now.names[uid]; id != 0 && claim != uid && !s.finalizer[uid] {
			one("an administrator deletes PersistentVolume %[2]d, to keep volume %[3]d", uid, id, func(next *state) { next.now.names[uid] = 0 })
		}
	}
	if s.lags {
		one("Cinder shows all changes", 0, 0, func(next *state) {
			next.lags, next.unsettled, next.shown = false, false, [volumes + 1]volume{}
			for i := range next.leaders {
				next.leaders[i].own = 0
			}
		})
	}
	if m.policyChanges && !s.changed {
		one("the policy changes", 0, 0, func(next *state) { next.changed = true })
	}
	if s.lease == 1 {
		take := func(next *state) {
			next.lease, next.unsettled = 2, s.lags && !m.ignoresLag
			next.leaders[1].see(next.leaders[1].cache)
		}
		one("leader 2 takes the lease, with a cache as of the beginning", 0, 0, func(next *state) {
			next.leaders[1].cache = kube{claim: 1}
			take(next)
		})
		one("leader 2 takes the lease", 0, 0, func(next *state) {
			next.leaders[1].cache = s.now
			take(next)
		})
	}
}

// work finds the next steps of a leader's worker.
func (m *model) work(s state, i uint8, then then) {
	l := &s.leaders[i-1]
	switch l.step {
	case idle:
		m.begin(s, i, then)
	case toCreate:
		m.send(s, i, request{create, l.uid, 0}, "leader %[1]d asks for a volume for claim %[2]d", toReserve, then)
	case toReserve:
		m.send(s, i, request{reserve, l.uid, l.volume}, "leader %[1]d reserves volume %[3]d", toSave, then)
	case toSave:
		e := event{"leader %[1]d sends PersistentVolume %[2]d, which names volume %[3]d", i, l.uid, l.volume}
		if l.saving.what == nothing && m.leads(&s, i) {
			l.saving = request{save, l.uid, l.volume}
		} else {
			e.text = "leader %[1]d does not send the PersistentVolume"
		}
		l.rest()
		then(&s, e, "")
	case toRead:
		e := event{"leader %[1]d reads volume %[3]d, to remove it", i, 0, l.volume}
		v := s.view(l, l.volume)
		shown := m.shownAs(l.volume, v)
		if v.uid == 0 || m.neverRemoved(shown) {
			e.text = "leader %[1]d finds that volume %[3]d stays, or is gone"
			l.listed &^= 1 << l.volume
			l.rest()
		} else {
			l.uid, l.step = v.uid, toProve
		}
		then(&s, e, "")
	case toProve:
		m.prove(s, i, then)
	case toDisconnect, toRemove:
		if err := m.permit(&s, l, true)(context.Background(), m.volumes[l.volume][l.uid][0][0]); err != nil && !m.skipsLaterCheck {
			e := event{"leader %[1]d keeps volume %[3]d: " + err.Error(), i, l.uid, l.volume}
			l.rest()
			then(&s, e, "")
			return
		}
		switch {
		case l.step == toRemove:
			m.send(s, i, request{remove, l.uid, l.volume}, "leader %[1]d deletes volume %[3]d", idle, then)
		case l.inUse:
			m.send(s, i, request{detach, l.uid, l.volume}, "leader %[1]d detaches volume %[3]d", toRemove, then)
		default:
			m.send(s, i, request{unreserve, l.uid, l.volume}, "leader %[1]d unreserves volume %[3]d", toRemove, then)
		}
	}
}

func (m *model) neverRemoved(v cinder.Volume) bool {
	return stamps.IsCopy(v) || stamps.EverAttached(v) && !m.ignoresAttached
}

// begin finds what a leader may turn to.
func (m *model) begin(s state, i uint8, then then) {
	one := func(text string, uid, id uint8, change func(next *state, l *leader)) {
		next := s
		change(&next, &next.leaders[i-1])
		then(&next, event{text, i, uid, id}, "")
	}
	l := &s.leaders[i-1]
	if claim := l.cache.claim; claim != 0 && !l.cache.bound && l.cache.names[claim] == 0 {
		next := s
		next.leaders[i-1].uid = claim
		m.look(next, i, then)
	}
	for id := uint8(1); id <= volumes; id++ {
		v := s.view(l, id)
		if v.uid == 0 {
			continue
		}
		bit := uint8(1) << id
		if !m.neverRemoved(m.shownAs(id, v)) {
			next := s
			l := &next.leaders[i-1]
			l.step, l.uid, l.volume = toProve, v.uid, id
			m.prove(next, i, then)
		}
		if l.recorded&bit != 0 && !v.attached && (m.retain || l.cache.claim == v.uid) {
			m.send(s, i, request{mark, v.uid, id}, "leader %[1]d attaches volume %[3]d", idle, then)
		}
		if m.retain && l.cache.names[v.uid] == id && s.finalizer[v.uid] && (v.attached || m.releasesEarly) {
			one("leader %[1]d removes the finalizer of PersistentVolume %[2]d", v.uid, id, func(next *state, _ *leader) { next.finalizer[v.uid] = false })
		}
	}
	for uid := uint8(1); !m.retain && uid <= uids; uid++ {
		if id := l.cache.names[uid]; id != 0 && l.cache.claim != uid && s.now.names[uid] == id {
			one("leader %[1]d removes volume %[3]d of released PersistentVolume %[2]d", uid, id, func(next *state, l *leader) {
				next.at[id], next.now.names[uid] = volume{}, 0
			})
		}
	}
}

// look finds the volume of the claim that a leader works on.
func (m *model) look(s state, i uint8, then then) {
	l := &s.leaders[i-1]
	e := event{leader: i, uid: l.uid}
	if !l.fresh {
		l.listed, l.fresh = 0, true
		for id := uint8(1); id <= volumes; id++ {
			if s.view(l, id).uid != 0 {
				l.listed |= 1 << id
			}
		}
	}
	var found []cinder.Volume
	ids := map[string]uint8{}
	for id := uint8(1); id <= volumes; id++ {
		if v := m.shownAs(id, s.view(l, id)); l.listed&(1<<id) != 0 && v.ID != "" && (stampOf(l.uid).Owns(v) || m.adoptsByName) {
			found = append(found, v)
			ids[v.ID] = id
		}
	}
	switch {
	case len(found) == 0:
		l.step, e.text = toCreate, "leader %[1]d finds no volume of claim %[2]d"
	case len(found) > 1:
		chosen := backends.Preferred(found)
		if m.prefersOldest {
			chosen = found[0]
		}
		other := found[slices.IndexFunc(found, func(v cinder.Volume) bool { return v.ID != chosen.ID })]
		l.step, l.volume, l.unrecorded = toRead, ids[other.ID], true
		e.text, e.volume = "leader %[1]d finds a duplicate of claim %[2]d, volume %[3]d", ids[other.ID]
	default:
		l.volume = ids[found[0].ID]
		e.text, e.volume = "leader %[1]d adopts volume %[3]d for claim %[2]d", l.volume
		v := s.view(l, l.volume)
		switch {
		case v.before && s.changed && !m.savesLate && s.isSaving(l.uid):
			e.text = "leader %[1]d waits for a PersistentVolume of claim %[2]d"
			l.rest()
		case v.before && s.changed:
			l.step, l.unrecorded = toRead, true
			e.text = "leader %[1]d finds volume %[3]d of claim %[2]d, which the policy no longer wants"
		case v.status == available:
			l.step = toReserve
		default:
			l.step = toSave
		}
	}
	then(&s, e, "")
}

// permit is the leader's real permit. Once the proof has succeeded, the permit does not
// repeat it.
func (m *model) permit(s *state, l *leader, proven bool) backends.Permit {
	p := &proof{m: m, s: s, l: l}
	cleaner := p.cleaner()
	prove := cleaner.IsUnneeded
	switch {
	case l.unrecorded || m.skipsClaim:
		prove = cleaner.IsUnrecorded
	case m.readsClaimLast:
		prove = func(ctx context.Context, v cinder.Volume) error {
			if err := cleaner.IsUnrecorded(ctx, v); err != nil {
				return err
			}
			claim, err := objects.ClaimOf(ctx, cleaner.Client, stamps.Of(v))
			if err == nil && claim != nil {
				err = removal.ErrMayBeServed
			}
			return err
		}
	}
	permit := cleaner.Permit(func(ctx context.Context, v cinder.Volume) error {
		if proven {
			return nil
		}
		return prove(ctx, v)
	})
	if proven {
		_ = permit(context.Background(), m.volumes[l.volume][l.uid][0][0])
	}
	return permit
}

func (m *model) prove(s state, i uint8, then then) {
	l := &s.leaders[i-1]
	e := event{leader: i, uid: l.uid, volume: l.volume}
	v := s.view(l, l.volume)
	if v.uid == 0 {
		v = volume{uid: l.uid}
	}
	err := m.permit(&s, l, false)(context.Background(), m.shownAs(l.volume, v))
	switch {
	case errors.Is(err, errInterrupted):
		l.reads++
		e.text = "leader %[1]d reads the API server about volume %[3]d"
	case err != nil:
		l.rest()
		e.text = "leader %[1]d keeps volume %[3]d: " + err.Error()
	default:
		l.reads, l.answers, l.step = 0, [4]uint8{}, toRemove
		if steps.StepToDelete(m.shownAs(l.volume, v), cinder.WorkflowReserve) != steps.Delete {
			l.step, l.inUse = toDisconnect, v.status == inUse
		}
		e.text = "leader %[1]d has the proof that volume %[3]d is not needed"
	}
	then(&s, e, "")
}

// explored is what an exploration found.
type explored struct {
	states, transitions int
	fault               string
	trace               []string
}

// way is how a state was reached first.
type way struct {
	from  int32
	event event
}

// explore visits every state, those with the shortest way first, until it finds a fault.
func (m *model) explore(limit int) (found explored) {
	begin := state{now: kube{claim: 1}, created: 1, lease: 1}
	begin.leaders[0].cache = begin.now
	ways, seen, last := []way{{from: -1}}, map[state]struct{}{begin: {}}, []state{begin}
	for first := 0; len(last) > 0 && found.fault == "" && len(ways) < limit; {
		var frontier []state
		for n := range last {
			m.next(&last[n], func(next *state, e event, lost string) {
				found.transitions++
				if found.fault != "" {
					return
				}
				if next.lease == 2 && !m.ignoresFence {
					// It may go on, but only up to its next request, so nothing depends on it.
					next.leaders[0] = leader{late: next.leaders[0].late, saving: next.leaders[0].saving}
				}
				if _, known := seen[*next]; known && lost == "" {
					return
				}
				seen[*next] = struct{}{}
				frontier, ways = append(frontier, *next), append(ways, way{int32(first + n), e})
				if found.fault = lost; lost == "" {
					found.fault = m.fault(next)
				}
			})
			if found.fault != "" {
				break
			}
		}
		first, last = first+len(last), frontier
	}
	found.states = len(ways)
	for at := int32(len(ways) - 1); found.fault != "" && at > 0; at = ways[at].from {
		found.trace = append(found.trace, ways[at].event.String())
	}
	slices.Reverse(found.trace)
	return found
}

func (e event) String() string {
	text := fmt.Sprintf(e.text, e.leader, e.uid, e.volume)
	text, _, _ = strings.Cut(text, "%!(EXTRA")
	return text
}

// fault returns what is wrong with a state.
func (m *model) fault(s *state) string {
	for uid := uint8(1); uid <= uids; uid++ {
		recorded := uint8(0)
		exists := s.now.claim == uid
		if id := s.now.names[uid]; id != 0 {
			if v := s.at[id]; v.uid == uid && exists {
				recorded |= 1 << id
			} else if v.uid != 0 && v.uid != uid {
				return "a PersistentVolume names a volume that was made for another claim"
			}
		}
		for id := uint8(1); id <= volumes; id++ {
			if v := s.at[id]; v.uid == uid && (v.attached && exists || v.data) {
				recorded |= 1 << id
			}
		}
		if recorded&(recorded-1) != 0 {
			return "a claim has two recorded volumes"
		}
	}
	return m.leftBehind(s)
}

// leftBehind has a leader with nothing to do and a fresh cache prove what it may remove.
func (m *model) leftBehind(s *state) string {
	for id := uint8(1); id <= volumes; id++ {
		v := s.at[id]
		if v.uid == 0 || v.attached || s.now.names[v.uid] == id || s.now.claim == v.uid && s.now.names[v.uid] == 0 {
			continue
		}
		p := &proof{m: m, s: s, l: &leader{uid: v.uid, cache: s.now}, whole: true}
		if err := p.cleaner().IsUnneeded(context.Background(), m.shownAs(id, v)); err != nil && !m.readsCache {
			return "an unneeded volume is never removed: " + err.Error()
		}
	}
	return ""
}

func TestModel(t *testing.T) {
	for name, m := range map[string]model{
		"delete1":         {again: true, mishaps: 1},
		"retain1":         {retain: true, again: true, mishaps: 1},
		"delete2":         {mishaps: 2},
		"retain2":         {retain: true, mishaps: 2},
		"early":           {retain: true, mishaps: 1, deviations: deviations{releasesEarly: true}},
		"policy1":         {mishaps: 1, policyChanges: true, deviations: deviations{savesLate: false}},
		"policysaves":     {mishaps: 1, policyChanges: true, deviations: deviations{savesLate: true}},
		"readsCache":      {retain: true, again: true, mishaps: 1, deviations: deviations{readsCache: true}},
		"skipsClaim":      {retain: true, again: true, mishaps: 1, deviations: deviations{skipsClaim: true}},
		"ignoresAttached": {retain: true, again: true, mishaps: 1, deviations: deviations{ignoresAttached: true}},
		"ignoresFence":    {retain: true, again: true, mishaps: 1, deviations: deviations{ignoresFence: true}},
		"ignoresLag":      {retain: true, again: true, mishaps: 1, deviations: deviations{ignoresLag: true}},
		"adoptsByName":    {retain: true, again: true, mishaps: 1, deviations: deviations{adoptsByName: true}},
		"comparesNames":   {retain: true, again: true, mishaps: 1, deviations: deviations{comparesNames: true}},
		"readsClaimLast":  {retain: true, again: true, mishaps: 1, deviations: deviations{readsClaimLast: true}},
		"prefersOldest":   {retain: true, again: true, mishaps: 1, deviations: deviations{prefersOldest: true}},
		"fresh":           {policyChanges: true, freshCaches: true, deviations: deviations{savesLate: true}},
		"fresh skips":     {policyChanges: true, freshCaches: true, deviations: deviations{savesLate: true, skipsLaterCheck: true}},
	} {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			found := newModel(m).explore(3_000_000)
			t.Logf("%d states, %d transitions, %s, %d steps, %q\n%s", found.states, found.transitions, time.Since(began), len(found.trace), found.fault, strings.Join(found.trace, "\n"))
		})
	}
}

func (s *state) isSaving(uid uint8) bool {
	return slices.ContainsFunc(s.leaders[:], func(l leader) bool { return l.saving.uid == uid })
}
