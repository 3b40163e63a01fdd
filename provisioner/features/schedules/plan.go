package schedules

import (
	"cmp"
	"hash/fnv"
	"slices"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/standalone-cinder/standalone-cinder/policy"
)

// protected is the volume of a claim.
type protected struct {
	Namespace, Claim string
	UID              types.UID
	// Since is when the claim was created.
	Since time.Time
}

// plan is what a schedule needs now for one volume.
type plan struct {
	// take is the name of the VolumeSnapshot to create; empty if none is due, or an earlier
	// one is not ready yet: a backend that takes none must not gather requests.
	take string
	// expired are the VolumeSnapshots to delete, the oldest first. Newer good ones exist for
	// each.
	expired []*snapshotv1.VolumeSnapshot
	// good is when the last good one was created, or the claim if there is none.
	good time.Time
	// never means that there is no good one.
	never bool
	// waits is the name of one that is not ready, and waitsSince when it was taken.
	waits      string
	waitsSince time.Time
}

// planOf plans from the VolumeSnapshots of a schedule for a volume, in any order. Those that
// are being restored stay.
func planOf(of protected, s policy.Schedule, taken []*snapshotv1.VolumeSnapshot, restored map[types.NamespacedName]bool, now time.Time) plan {
	p := plan{good: of.Since, never: true}
	turn := turnOf(of.UID, s.Every, now)
	due, name := turn.After(of.Since), nameOf(of, s.Name, turn)
	var good []*snapshotv1.VolumeSnapshot
	for _, one := range taken {
		due = due && takenAt(one).Before(turn) && one.Name != name
		switch {
		case !isReady(one):
			p.waits, p.waitsSince = one.Name, takenAt(one)
		case one.DeletionTimestamp == nil:
			good = append(good, one)
		}
	}
	if due && p.waits == "" {
		p.take = name
	}
	slices.SortFunc(good, func(a, b *snapshotv1.VolumeSnapshot) int {
		return cmp.Or(takenAt(b).Compare(takenAt(a)), cmp.Compare(b.Name, a.Name))
	})
	if len(good) > 0 {
		p.good, p.never = takenAt(good[0]), false
	}
	p.expired = slices.DeleteFunc(good[min(int(s.Keep), len(good)):], func(one *snapshotv1.VolumeSnapshot) bool {
		return restored[types.NamespacedName{Namespace: one.Namespace, Name: one.Name}]
	})
	slices.Reverse(p.expired)
	return p
}

// takenAt returns when a VolumeSnapshot was taken: its turn by the leader's clock, or its
// creation by the API server's. One of them may be ahead, and what seems to come from the
// future would keep others from being taken, or outlive them.
func takenAt(one *snapshotv1.VolumeSnapshot) time.Time {
	created := one.CreationTimestamp.Time
	turn, err := time.Parse(turnFormat, one.Name[max(0, len(one.Name)-len(turnFormat)):])
	if err != nil || created.Before(turn) {
		return created
	}
	return turn
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// lateAfter is how long after a good snapshot the next one is late. Until then it may be
// taken.
func lateAfter(s policy.Schedule) time.Duration {
	return s.Every + max(15*time.Minute, min(s.Every, time.Hour))
}

func isReady(s *snapshotv1.VolumeSnapshot) bool {
	return s.Status != nil && s.Status.ReadyToUse != nil && *s.Status.ReadyToUse
}

// turnOf returns the last turn of a volume. Volumes have theirs at different minutes, so that
// a backend takes the snapshots of a day all day.
func turnOf(claim types.UID, every time.Duration, now time.Time) time.Time {
	h := fnv.New64a()
	h.Write([]byte(claim))
	minutes := int64(every / time.Minute)
	offset := int64(h.Sum64() % uint64(minutes))
	minute := now.Unix() / 60
	return time.Unix((minute-(minute-offset)%minutes)*60, 0).UTC()
}

// turnFormat is how a turn ends a name.
const turnFormat = "-20060102-1504"

// nameOf returns the name of the VolumeSnapshot for a turn. So a turn is taken once, whatever
// process dies and however late caches are.
func nameOf(of protected, schedule string, turn time.Time) string {
	suffix := "-" + schedule + turn.UTC().Format(turnFormat)
	if len(of.Claim)+len(suffix) > validation.DNS1123SubdomainMaxLength {
		return string(of.UID) + suffix
	}
	return of.Claim + suffix
}
