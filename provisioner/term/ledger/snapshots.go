package ledger

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/policy"
)

// Snapshot is what a VolumeSnapshot's snapshot counts.
type Snapshot struct {
	Tenant string
	// StorageClass is the volume's.
	StorageClass string
	// GiB is its size. If Estimated, it is the volume's, because the snapshot's is not
	// known yet.
	GiB       int64
	Estimated bool
}

func (s Snapshot) usage() policy.Usage {
	return policy.Usage{Snapshots: 1, SnapshotGigabytes: s.GiB}
}

// snapshotEntry is a snapshot, existing or planned. It counts exactly once, by the UID of
// its VolumeSnapshot.
type snapshotEntry struct {
	Snapshot
	backend string
	state   entryState
	// byStamp means that only the stamp tells the snapshot's owner.
	byStamp bool
	// since is when the last known VolumeSnapshotContent that named it was deleted.
	since time.Time
	// instead is the snapshot that was left behind. It counts again if this reservation
	// is released.
	instead *leftSnapshot
}

// leftSnapshot is a snapshot that counts for a deleted VolumeSnapshot.
type leftSnapshot struct {
	uid   types.UID
	entry snapshotEntry
}

// ReserveSnapshot reserves room for the snapshot of a VolumeSnapshot that the policy
// admits. A snapshot that already counts needs no room. The error is ErrPolicyChanged if
// the decision was made under a policy that is no longer in force.
func (l *Ledger) ReserveSnapshot(uid types.UID, backend string, s Snapshot, decision Decided) (denial *policy.Denial, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refresh()
	if e, known := l.snapshots[uid]; known {
		if e.state == recorded {
			// Its import was given up before it was known to be recorded.
			l.leaveSnapshot(decision.LeftBy)
		}
		return nil, nil
	}
	if decision.Revision != l.inForce.Revision() {
		return nil, ErrPolicyChanged
	}
	left := l.leaveSnapshot(decision.LeftBy)
	for _, scope := range decision.Quotas {
		if denial := scope.Check(l.sums[Scope{scope.Kind, scope.Name}], s.usage()); denial != nil {
			l.putSnapshotBack(left)
			return denial, nil
		}
	}
	l.putSnapshot(uid, snapshotEntry{Snapshot: s, backend: backend, state: reserved, instead: left})
	return nil, nil
}

// leaveSnapshot removes a snapshot that another VolumeSnapshot left behind from the sums,
// so that its import needs no additional room if both belong to the same tenant.
func (l *Ledger) leaveSnapshot(uid types.UID) *leftSnapshot {
	e, known := l.snapshots[uid]
	if !known || e.state != found {
		return nil
	}
	l.removeSnapshot(uid)
	return &leftSnapshot{uid, e}
}

// putSnapshotBack counts a snapshot again for the VolumeSnapshot that left it behind.
func (l *Ledger) putSnapshotBack(left *leftSnapshot) {
	if left == nil {
		return
	}
	if _, known := l.snapshots[left.uid]; !known {
		l.putSnapshot(left.uid, left.entry)
	}
}

// RecordSnapshot counts a snapshot that a VolumeSnapshotContent records. Quotas do not
// apply. An estimate does not replace a known size, because the volume may have grown
// since. It returns the tenant that now has room because an estimate was too large.
func (l *Ledger) RecordSnapshot(uid types.UID, backend string, s Snapshot) (tenant string, freed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refresh()
	known, ok := l.snapshots[uid]
	if ok && s.Estimated {
		s.GiB, s.Estimated = known.GiB, known.Estimated
	}
	tenant, _ = l.removeSnapshot(uid)
	l.putSnapshot(uid, snapshotEntry{Snapshot: s, backend: backend, state: recorded})
	return tenant, ok && s.GiB < known.GiB
}

// FoundSnapshots counts all snapshots that a listing of a backend shows; a snapshot that
// counts for no tenant moves to a backend that its tenant may use, as a volume does in
// Found. It frees the room of those that existed before the listing but are not in it,
// and returns the tenants that now have room. Listed sizes replace estimates.
func (l *Ledger) FoundSnapshots(backend string, all map[types.UID]Snapshot, began time.Time) (freed []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refresh()
	for uid, e := range l.snapshots {
		if _, present := all[uid]; !present && e.state == found && e.backend == backend && e.since.Before(began) {
			tenant, _ := l.removeSnapshot(uid)
			freed = append(freed, tenant)
		}
	}
	for uid, s := range all {
		known, ok := l.snapshots[uid]
		if ok && (!l.countsForNoTenant(known.Tenant, known.backend, known.byStamp) || !l.inForce.MayUse(s.Tenant, backend)) {
			if known.Estimated && known.backend == backend {
				if tenant, _ := l.removeSnapshot(uid); s.GiB < known.GiB {
					freed = append(freed, tenant)
				}
				known.GiB, known.Estimated = s.GiB, s.Estimated
				l.putSnapshot(uid, known)
			}
			continue
		}
		l.removeSnapshot(uid)
		l.putSnapshot(uid, snapshotEntry{Snapshot: s, backend: backend, state: found, byStamp: true})
	}
	return freed
}

// ContentGone records that no VolumeSnapshotContent names a snapshot anymore. The
// snapshot stays, and counts until a listing shows that it is gone.
func (l *Ledger) ContentGone(uid types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e, known := l.snapshots[uid]; known && e.state == recorded {
		e.state, e.since = found, time.Now()
		l.snapshots[uid] = e
	}
}

// ReleaseSnapshot frees the room of a snapshot that is gone. It returns the tenant that
// now has room.
func (l *Ledger) ReleaseSnapshot(uid types.UID) (tenant string, freed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refresh()
	return l.removeSnapshot(uid)
}

// ReleaseSnapshotReservation frees the room of a snapshot that was never begun. A
// snapshot that was left behind and was to be imported continues to count.
func (l *Ledger) ReleaseSnapshotReservation(uid types.UID) (tenant string, freed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, known := l.snapshots[uid]
	if !known || e.state != reserved {
		return "", false
	}
	l.refresh()
	tenant, _ = l.removeSnapshot(uid)
	l.putSnapshotBack(e.instead)
	return tenant, true
}

func (l *Ledger) putSnapshot(uid types.UID, e snapshotEntry) {
	l.snapshots[uid] = e
	l.countSnapshot(e, policy.Usage.Add)
}

func (l *Ledger) removeSnapshot(uid types.UID) (tenant string, known bool) {
	e, known := l.snapshots[uid]
	if known {
		delete(l.snapshots, uid)
		l.countSnapshot(e, policy.Usage.Sub)
	}
	return l.tenantOfSnapshot(e), known
}

func (l *Ledger) countSnapshot(e snapshotEntry, change func(policy.Usage, policy.Usage) policy.Usage) {
	l.countIn(l.tenantOfSnapshot(e), e.StorageClass, e.backend, e.usage(), change)
}

// tenantOfSnapshot returns the tenant that a snapshot counts for, or "".
func (l *Ledger) tenantOfSnapshot(e snapshotEntry) string {
	if l.countsForNoTenant(e.Tenant, e.backend, e.byStamp) {
		return ""
	}
	return e.Tenant
}
