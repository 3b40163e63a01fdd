// Package ledger counts the usage of tenants, class rules and backends, so that no quota
// is exceeded, even under concurrency.
package ledger

import (
	"errors"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/policy"
)

// Ledger counts what every tenant, class rule and backend uses: volumes that a
// PersistentVolume records, volumes found at Cinder that none records yet, and
// reservations for volumes that are being created. All three are kept under the UID of
// the claim that the volume was created for, so a claim counts exactly once, as does its
// volume when another claim gets it.
//
// The ledger checks and reserves room in one step, before the request to Cinder, so that
// concurrent claims cannot both take the last of it.
type Ledger struct {
	*account
	snapshots
	entries map[types.UID]entry
	// growths are those of volumes that are, or may become, larger than recorded.
	growths map[types.UID]growth
	// gone is the set of claims whose volumes disappeared in this term. A listing that
	// began before may still show them.
	gone map[types.UID]bool
	// freed is the set of scopes in which room was freed since TakeFreed; offered has a
	// value while it waits to be offered to claims.
	freed   map[Scope]bool
	offered chan struct{}
}

// entry is one volume, existing or planned.
type entry struct {
	Volume
	backend string
	state   entryState
	// byStamp means that only the stamp tells the volume's owner.
	byStamp bool
	// passedOver explains why an earlier backend was not chosen.
	passedOver []PassedOver
	// since is when a volume without a PersistentVolume was last seen, or lost its
	// PersistentVolume.
	since time.Time
	// instead is the entry that a reservation for an import replaces.
	instead *left[entry]
}

// left is a volume, or a snapshot, that a claim or VolumeSnapshot left behind.
type left[E any] struct {
	by    types.UID
	entry E
}

type entryState uint8

const (
	reserved      entryState = iota // to be created
	found                           // seen at Cinder
	recorded                        // a PersistentVolume names it
	withoutRecord                   // a PersistentVolume named it, but is gone
)

// PassedOver is a backend of the rule that was not chosen, with the reason.
type PassedOver struct {
	Backend string
	// Why is a complete sentence.
	Why string
}

// Volume is what a claim's volume counts.
type Volume struct {
	Tenant       string
	StorageClass string
	GiB          int64
	// VolumeID is the ID of the volume that is recorded, found, or to be imported.
	VolumeID string
	// Imported means that the volume existed before its claim.
	Imported bool
	// Rebound means that the volume now belongs to a claim other than its original one.
	Rebound bool
}

// Scope identifies a policy.QuotaScope within one revision of the policy.
type Scope struct {
	Kind policy.ScopeKind
	Name string
}

// New returns an empty ledger.
func New(p func() *policy.Policy) *Ledger {
	a := &account{policy: p, sums: map[Scope]policy.Usage{}, inForce: p()}
	l := &Ledger{account: a, snapshots: snapshots{a, map[types.UID]snapshotEntry{}}, entries: map[types.UID]entry{}, growths: map[types.UID]growth{}, gone: map[types.UID]bool{}, freed: map[Scope]bool{}, offered: make(chan struct{}, 1)}
	a.recount = l.countAll
	return l
}

// Decided is a decision with the policy that made it.
type Decided struct {
	policy.Decision
	Revision string
	// PassedOver explains which backends of the rule are missing from the decision.
	PassedOver []PassedOver
	// Import is the ID of the existing volume for the claim; empty for a new volume. If
	// another claim, LeftBy, left that volume behind, it counts for LeftBy until then.
	Import string
	LeftBy types.UID
}

// Only narrows a decision to some of its backends. passedOver explains why others are
// missing.
func (d Decided) Only(backends []string, passedOver []PassedOver) Decided {
	d.PassedOver = passedOver
	other := func(name string) bool { return !slices.Contains(backends, name) }
	d.Backends = slices.DeleteFunc(slices.Clone(d.Backends), other)
	d.Quotas = slices.DeleteFunc(slices.Clone(d.Quotas), func(s policy.QuotaScope) bool { return s.Kind == policy.BackendScope && other(s.Name) })
	return d
}

// Refusal reports a lack of room, and the scopes in which freed room would help.
type Refusal struct {
	*policy.Denial
	Scopes []Scope
}

// IsOfBackends reports whether only backends lack room, so that another backend may have
// some.
func (r *Refusal) IsOfBackends() bool {
	return len(r.Scopes) > 0 && r.Scopes[0].Kind == policy.BackendScope
}

// refusalOf determines what blocks the claim: the quota of the tenant or rule, or
// otherwise the limits of all backends, any of which would help if it had room.
func refusalOf(room policy.Room) *Refusal {
	r := &Refusal{Denial: room.Denial}
	var backends []Scope
	for _, s := range room.Scopes {
		switch {
		case s.Denial == nil:
		case s.Kind == policy.BackendScope:
			backends = append(backends, Scope{s.Kind, s.Name})
		default:
			r.Scopes = append(r.Scopes, Scope{s.Kind, s.Name})
		}
	}
	if len(r.Scopes) == 0 {
		r.Scopes = backends
	}
	return r
}

// ErrPolicyChanged means that a decision was made under a policy that is no longer in
// force.
var ErrPolicyChanged = errors.New("the policy has changed since the decision")

// Position is where a claim counts.
type Position struct {
	// Tenant is empty if the claim counts for none.
	Tenant     string
	Backend    string
	PassedOver []PassedOver
	// NothingSeen means that room is reserved but no volume has been seen yet.
	NothingSeen bool
	// Imported means that the claim counts for VolumeID, which existed before.
	Imported bool
	VolumeID string
	// Rebound means that another claim has the claim's volume.
	Rebound bool
}

// Reserve reserves room for an admitted claim on the first of its backends that has room,
// by the same sum that `policy explain` shows. A claim that already counts stays on its
// backend, regardless of the current policy: its volume is, or may be, there.
//
// The error is ErrPolicyChanged if the decision was made under a policy that is no longer
// in force, because scopes may have changed.
func (l *Ledger) Reserve(claim types.UID, storageClass string, decision Decided) (backend string, passedOver []PassedOver, refused *Refusal, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known, ok := l.entries[claim]; ok {
		if known.byStamp && known.Tenant == "" {
			// Cinder has replaced the stamp of a volume restored from a backup.
			l.count(claim, known, policy.Usage.Sub)
			known.Tenant, known.StorageClass = decision.Tenant, storageClass
			l.put(claim, known)
		}
		return known.backend, known.passedOver, nil, nil
	}
	l.refresh()
	if decision.Revision != l.inForce.Revision() {
		return "", nil, nil, ErrPolicyChanged
	}
	behind := l.leave(decision)
	room := decision.Room(l.used)
	if room.Denial != nil {
		l.putBack(behind)
		return "", nil, refusalOf(room), nil
	}
	backend = room.Backends[0]
	passedOver = slices.Clone(decision.PassedOver)
	for _, s := range room.Scopes {
		if s.Kind == policy.BackendScope && s.Name == backend {
			break
		}
		if s.Denial != nil {
			passedOver = append(passedOver, PassedOver{Backend: s.Name, Why: s.Denial.Message})
		}
	}
	l.put(claim, entry{
		Volume:     Volume{Tenant: decision.Tenant, StorageClass: storageClass, GiB: decision.Volume.SizeGiB, VolumeID: decision.Import, Imported: decision.Import != ""},
		backend:    backend,
		passedOver: passedOver,
		instead:    behind,
	})
	return backend, passedOver, nil, nil
}

// leave removes an import's volume from the sums if it counts for the claim that left it
// behind, so that it does not need room twice.
func (l *Ledger) leave(decision Decided) *left[entry] {
	e, known := l.entries[decision.LeftBy]
	if decision.Import == "" || !known || e.VolumeID != decision.Import || e.state != found && e.state != withoutRecord {
		return nil
	}
	delete(l.entries, decision.LeftBy)
	l.count(decision.LeftBy, e, policy.Usage.Sub)
	return &left[entry]{decision.LeftBy, e}
}

// putBack counts a volume again for the claim that left it behind.
func (l *Ledger) putBack(behind *left[entry]) {
	if behind == nil {
		return
	}
	if _, known := l.entries[behind.by]; !known {
		l.put(behind.by, behind.entry)
	}
}

// Record counts an existing volume in place of what the claim counted before. Quotas
// do not apply, because the volume exists. Record reports whether the volume counted for
// another tenant, which now has room.
func (l *Ledger) Record(claim types.UID, volume Volume, backend string) (freed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before, known := l.entries[claim]
	if known && before.state == recorded && before.Volume == volume && before.backend == backend {
		return false
	}
	l.refresh()
	l.remove(claim)
	l.put(claim, entry{Volume: volume, backend: backend, state: recorded})
	l.dropGrowthUpTo(claim, volume.GiB)
	return l.offer(known && before.Tenant != volume.Tenant)
}

// Found counts a volume that was found at Cinder, unless its claim counts already. A
// claim that counts for no tenant moves to a backend that its tenant may use, so that the
// order in which backends are listed does not matter. Found reports whether that freed
// room at the other backend.
func (l *Ledger) Found(claim types.UID, volume Volume, backend string) (freed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refresh()
	known, ok := l.entries[claim]
	switch {
	case ok && known.byStamp && !l.inForce.MayUse(known.Tenant, known.backend) && l.inForce.MayUse(volume.Tenant, backend):
		freed = l.remove(claim)
	case ok && known.backend == backend:
		known.since = time.Now()
		l.entries[claim] = known
		if volume.VolumeID != "" && known.VolumeID == volume.VolumeID {
			l.sawSize(claim, volume.GiB)
		}
		return false
	case ok || l.gone[claim]:
		return false
	}
	l.put(claim, entry{Volume: volume, backend: backend, state: found, byStamp: true, since: time.Now()})
	return l.offer(freed)
}

// PersistentVolumeGone records that a claim's PersistentVolume is gone, but apparently
// not its volume: it was to be kept, or an operator deleted the object by hand. The
// volume counts until a listing shows that it is gone.
func (l *Ledger) PersistentVolumeGone(claim types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e, known := l.entries[claim]; known && e.state == recorded {
		e.state, e.since = withoutRecord, time.Now()
		l.entries[claim] = e
	}
}

// WasRecorded reports whether a claim counts for a volume whose PersistentVolume is gone.
func (l *Ledger) WasRecorded(claim types.UID, volumeID string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entries[claim]
	return e.state == withoutRecord && e.VolumeID == volumeID
}

// WasServedByAnother reports whether a claim counts for another volume, whose
// PersistentVolume is gone.
func (l *Ledger) WasServedByAnother(claim types.UID, volumeID string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entries[claim]
	return e.state == withoutRecord && e.VolumeID != volumeID
}

// Keep records that a claim's volume exists and stays on purpose, although no
// PersistentVolume names it. The volume counts until a listing shows that it is gone.
func (l *Ledger) Keep(claim types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e, known := l.entries[claim]; known && e.state == reserved {
		e.state, e.since, e.instead = found, time.Now(), nil
		l.entries[claim] = e
	}
}

// Freed returns a channel that has a value while freed room waits to be offered to claims.
func (l *Ledger) Freed() <-chan struct{} { return l.offered }

// Offer has claims that wait for room look again.
func (l *Ledger) Offer() {
	select {
	case l.offered <- struct{}{}:
	default: // the receiver has not handled the last one yet
	}
}

func (l *Ledger) offer(freed bool) bool {
	if freed {
		l.Offer()
	}
	return freed
}

// TakeFreed returns the scopes in which room was freed since the last call.
func (l *Ledger) TakeFreed() []Scope {
	l.mu.Lock()
	defer l.mu.Unlock()
	freed := slices.Collect(maps.Keys(l.freed))
	clear(l.freed)
	return freed
}

// ForgetGone forgets which claims' volumes disappeared. Call it only while no listing is
// under way.
func (l *Ledger) ForgetGone() {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.gone)
}

// Release frees what a claim used, and reports whether it used anything.
func (l *Ledger) Release(claim types.UID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refresh()
	l.gone[claim] = true
	defer delete(l.growths, claim)
	return l.offer(l.remove(claim))
}

// ReleaseUnrecorded frees a claim's room once it is proven to have no volume.
func (l *Ledger) ReleaseUnrecorded(claim types.UID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e, known := l.entries[claim]; !known || e.state == recorded {
		return false
	}
	l.refresh()
	defer delete(l.growths, claim)
	return l.offer(l.remove(claim))
}

// ReleaseReservation frees what a claim reserved without creating a volume.
func (l *Ledger) ReleaseReservation(claim types.UID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, known := l.entries[claim]
	if !known || e.state != reserved {
		return false
	}
	l.refresh()
	defer l.putBack(e.instead)
	return l.offer(l.remove(claim))
}

// PositionOf reports whether a claim counts, and where.
func (l *Ledger) PositionOf(claim types.UID) (Position, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refresh()
	e, ok := l.entries[claim]
	return Position{Tenant: l.tenantOf(e.Tenant, e.backend, e.byStamp), Backend: e.backend, PassedOver: e.passedOver, NothingSeen: e.state == reserved, Imported: e.Imported, VolumeID: e.VolumeID, Rebound: e.Rebound}, ok
}

// IsFound reports whether a claim counts only because of a volume found on the backend.
func (l *Ledger) IsFound(claim types.UID, backend string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, ok := l.entries[claim]
	return ok && e.state == found && e.backend == backend
}

// UnrecordedOn lists the claims that count only because of a volume on the backend that
// no PersistentVolume names and that was seen after the given time.
func (l *Ledger) UnrecordedOn(backend string, after time.Time) []types.UID {
	l.mu.Lock()
	defer l.mu.Unlock()
	var claims []types.UID
	for claim, e := range l.entries {
		if (e.state == found || e.state == withoutRecord) && e.backend == backend && e.since.After(after) {
			claims = append(claims, claim)
		}
	}
	return claims
}

// CountsOn reports whether any volume counts on a backend, of the policy or not.
func (l *Ledger) CountsOn(backend string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.entries {
		if e.backend == backend {
			return true
		}
	}
	return false
}

// HasRoom reports whether a claim that uses nothing yet would fit.
func (l *Ledger) HasRoom(decision Decided) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refresh()
	return decision.Revision == l.inForce.Revision() && decision.Room(l.used).Denial == nil
}

// Usage returns the usage of a scope of the policy in force.
func (l *Ledger) Usage(kind policy.ScopeKind, name string) policy.Usage {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refresh()
	return l.sums[Scope{kind, name}]
}

// Census is a snapshot of everything that counts.
type Census struct {
	// Sums is the usage of every non-empty scope of the policy in force.
	Sums map[Scope]policy.Usage
	// Shares is each tenant's usage of each backend.
	Shares map[Share]policy.Usage
	// Kept is the part of Shares whose PersistentVolumes are gone.
	Kept map[Share]policy.Usage
}

// Share is a tenant's part of a backend.
type Share struct{ Tenant, Backend string }

// Census counts everything once.
func (l *Ledger) Census() Census {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refresh()
	c := Census{Sums: maps.Clone(l.sums), Shares: map[Share]policy.Usage{}, Kept: map[Share]policy.Usage{}}
	for claim, e := range l.entries {
		share := Share{l.tenantOf(e.Tenant, e.backend, e.byStamp), e.backend}
		c.Shares[share] = c.Shares[share].Add(l.usageOf(claim, e))
		if e.state == withoutRecord {
			c.Kept[share] = c.Kept[share].Add(l.usageOf(claim, e))
		}
	}
	for _, e := range l.snapshots.entries {
		share := Share{l.tenantOf(e.Tenant, e.backend, e.byStamp), e.backend}
		c.Shares[share] = c.Shares[share].Add(e.usage())
	}
	return c
}

func (l *Ledger) put(claim types.UID, e entry) {
	l.entries[claim] = e
	l.count(claim, e, policy.Usage.Add)
}

func (l *Ledger) remove(claim types.UID) bool {
	e, known := l.entries[claim]
	if known {
		delete(l.entries, claim)
		l.count(claim, e, policy.Usage.Sub)
		l.noteFreed(e)
	}
	return known
}

// noteFreed records that an entry counts less, or no longer counts.
func (l *Ledger) noteFreed(e entry) {
	for _, s := range l.inForce.QuotaScopes(l.tenantOf(e.Tenant, e.backend, e.byStamp), e.StorageClass, e.backend) {
		l.freed[Scope{s.Kind, s.Name}] = true
	}
}

func (l *Ledger) count(claim types.UID, e entry, change func(policy.Usage, policy.Usage) policy.Usage) {
	l.countIn(l.tenantOf(e.Tenant, e.backend, e.byStamp), e.StorageClass, e.backend, l.usageOf(claim, e), change)
}

func (l *Ledger) countAll() {
	for claim, e := range l.entries {
		l.count(claim, e, policy.Usage.Add)
	}
	for _, e := range l.snapshots.entries {
		l.snapshots.count(e, policy.Usage.Add)
	}
}
