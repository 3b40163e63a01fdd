package ledger

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/policy"
)

// Snapshot is what a VolumeSnapshot's snapshot, or backup, counts.
type Snapshot struct {
	IsBackup bool
	Tenant   string
	// StorageClass is the volume's.
	StorageClass string
	// GiB is its size. If Estimated, it is the volume's, because the snapshot's is not
	// known yet.
	GiB       int64
	Estimated bool
}

func (s Snapshot) usage() policy.Usage {
	return policy.SnapshotUsage(s.IsBackup, s.GiB)
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
	instead *left[snapshotEntry]
}

// snapshots are the ledger's, by the UID of their VolumeSnapshots.
type snapshots struct {
	*account
	entries map[types.UID]snapshotEntry
}

// ReserveSnapshot reserves room for the snapshot of a VolumeSnapshot that the policy
// admits. A snapshot that already counts needs no room. The error is ErrPolicyChanged if
// the decision was made under a policy that is no longer in force.
func (s *snapshots) ReserveSnapshot(uid types.UID, backend string, snapshot Snapshot, decision Decided) (denial *policy.Denial, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refresh()
	if e, known := s.entries[uid]; known {
		if e.state == recorded {
			// Its import was given up before it was known to be recorded.
			s.leave(decision.LeftBy)
		}
		return nil, nil
	}
	if decision.Revision != s.inForce.Revision() {
		return nil, ErrPolicyChanged
	}
	behind := s.leave(decision.LeftBy)
	for _, scope := range decision.Quotas {
		if denial := scope.Check(s.used(scope), snapshot.usage()); denial != nil {
			s.putBack(behind)
			return denial, nil
		}
	}
	s.put(uid, snapshotEntry{Snapshot: snapshot, backend: backend, state: reserved, instead: behind})
	return nil, nil
}

// leave removes a snapshot that another VolumeSnapshot left behind from the sums, so that
// its import needs no additional room if both belong to the same tenant.
func (s *snapshots) leave(uid types.UID) *left[snapshotEntry] {
	e, known := s.entries[uid]
	if !known || e.state != found {
		return nil
	}
	s.remove(uid)
	return &left[snapshotEntry]{uid, e}
}

// putBack counts a snapshot again for the VolumeSnapshot that left it behind.
func (s *snapshots) putBack(behind *left[snapshotEntry]) {
	if behind == nil {
		return
	}
	if _, known := s.entries[behind.by]; !known {
		s.put(behind.by, behind.entry)
	}
}

// RecordSnapshot counts a snapshot that a VolumeSnapshotContent records. Quotas do not
// apply. An estimate does not replace a known size, because the volume may have grown
// since. It returns the tenant that now has room because an estimate was too large.
func (s *snapshots) RecordSnapshot(uid types.UID, backend string, snapshot Snapshot) (tenant string, freed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refresh()
	known, ok := s.entries[uid]
	if ok && snapshot.Estimated {
		snapshot.GiB, snapshot.Estimated = known.GiB, known.Estimated
	}
	tenant, _ = s.remove(uid)
	s.put(uid, snapshotEntry{Snapshot: snapshot, backend: backend, state: recorded})
	return tenant, ok && snapshot.GiB < known.GiB
}

// FoundSnapshots counts all snapshots, or all backups, that a listing of a backend shows; a snapshot that
// counts for no tenant moves to a backend that its tenant may use, as a volume does in
// Found. It frees the room of those that existed before the listing but are not in it,
// and returns the tenants that now have room. Listed sizes replace estimates.
func (s *snapshots) FoundSnapshots(backend string, backups bool, all map[types.UID]Snapshot, began time.Time) (freed []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refresh()
	for uid, e := range s.entries {
		if _, present := all[uid]; !present && e.state == found && e.backend == backend && e.IsBackup == backups && e.since.Before(began) {
			tenant, _ := s.remove(uid)
			freed = append(freed, tenant)
		}
	}
	for uid, snapshot := range all {
		known, ok := s.entries[uid]
		if ok && (!known.byStamp || s.inForce.MayUse(known.Tenant, known.backend) || !s.inForce.MayUse(snapshot.Tenant, backend)) {
			if known.Estimated && known.backend == backend {
				if tenant, _ := s.remove(uid); snapshot.GiB < known.GiB {
					freed = append(freed, tenant)
				}
				known.GiB, known.Estimated = snapshot.GiB, snapshot.Estimated
				s.put(uid, known)
			}
			continue
		}
		s.remove(uid)
		s.put(uid, snapshotEntry{Snapshot: snapshot, backend: backend, state: found, byStamp: true})
	}
	return freed
}

// ContentGone records that no VolumeSnapshotContent names a snapshot anymore. The
// snapshot stays, and counts until a listing shows that it is gone.
func (s *snapshots) ContentGone(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e, known := s.entries[uid]; known && e.state == recorded {
		e.state, e.since = found, time.Now()
		s.entries[uid] = e
	}
}

// ReleaseSnapshot frees the room of a snapshot that is gone. It returns the tenant that
// now has room.
func (s *snapshots) ReleaseSnapshot(uid types.UID) (tenant string, freed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refresh()
	return s.remove(uid)
}

// ReleaseSnapshotReservation frees the room of a snapshot that was never begun. A
// snapshot that was left behind and was to be imported continues to count.
func (s *snapshots) ReleaseSnapshotReservation(uid types.UID) (tenant string, freed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, known := s.entries[uid]
	if !known || e.state != reserved {
		return "", false
	}
	s.refresh()
	tenant, _ = s.remove(uid)
	s.putBack(e.instead)
	return tenant, true
}

func (s *snapshots) put(uid types.UID, e snapshotEntry) {
	s.entries[uid] = e
	s.count(e, policy.Usage.Add)
}

func (s *snapshots) remove(uid types.UID) (tenant string, known bool) {
	e, known := s.entries[uid]
	if known {
		delete(s.entries, uid)
		s.count(e, policy.Usage.Sub)
	}
	return s.tenantOf(e.Tenant, e.backend, e.byStamp), known
}

func (s *snapshots) count(e snapshotEntry, change func(policy.Usage, policy.Usage) policy.Usage) {
	s.countIn(s.tenantOf(e.Tenant, e.backend, e.byStamp), e.StorageClass, e.backend, e.usage(), change)
}
