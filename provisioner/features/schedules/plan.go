package schedules

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/standalone-cinder/standalone-cinder/policy"
)

// target is what schedules take snapshots of.
type target struct {
	namespace string
	// claim and uid are a claim's.
	claim string
	uid   types.UID
	// group, without a claim, is the value of the label that all claims of the group have.
	group string
}

func (t target) isGroup() bool { return t.group != "" }

func (t target) String() string {
	if t.isGroup() {
		return fmt.Sprintf("group %s in namespace %s", t.group, t.namespace)
	}
	return fmt.Sprintf("claim %s/%s", t.namespace, t.claim)
}

// seed is what the turns of a target are drawn from.
func (t target) seed() string {
	if t.isGroup() {
		return t.namespace + "/" + t.group
	}
	return string(t.uid)
}

// protected is a target with its schedules.
type protected struct {
	target
	tenant    string
	schedules []policy.Schedule
	// since is when its first claim was created.
	since time.Time
	// claims are the claim, or those of the group that have one of the schedules.
	claims []*corev1.PersistentVolumeClaim
}

// series are the snapshots that one schedule takes of one target.
type series struct {
	target
	schedule string
}

// shot is a VolumeSnapshot or VolumeGroupSnapshot that a schedule made.
type shot struct {
	series
	name, version   string
	uid             types.UID
	created         time.Time
	ready, deleting bool
	// lost means that one of its volumes is gone, so that it will not become ready.
	lost bool
	// holds are the claim, or the volumes, that it has copies of; empty if they are not known.
	holds []string
	// copies are the names of the VolumeSnapshots from which claims are made.
	copies []string
}

// isReplacedBy reports whether so many newer ones have all that it has. A group may have lost
// claims since, or its claims others of the same names.
func (s *shot) isReplacedBy(newer []*shot, times int64) bool {
	if len(s.holds) == 0 {
		return false
	}
	for _, other := range newer {
		if !slices.ContainsFunc(s.holds, func(one string) bool { return !slices.Contains(other.holds, one) }) {
			if times--; times == 0 {
				return true
			}
		}
	}
	return false
}

// plan is what a schedule needs now for one target.
type plan struct {
	// take is the name of the snapshot to create; empty if none is due, or an earlier one is
	// not ready yet: a backend that takes none must not gather requests.
	take string
	// expired are the snapshots to delete, the oldest first. Newer good ones exist for each.
	expired []*shot
	// good is when the last good one was created, or the claim if there is none.
	good time.Time
	// never means that there is no good one.
	never bool
	// waits is the name of one that is not ready, and waitsSince when it was taken.
	waits      string
	waitsSince time.Time
}

// planOf plans from the snapshots of a series, in any order. Those that are being restored
// stay.
func planOf(of *protected, s policy.Schedule, taken []*shot, restored map[types.NamespacedName]bool, now time.Time) plan {
	p := plan{good: of.since, never: true}
	turn := turnOf(of.seed(), s.Every, now)
	due, name := turn.After(of.since), nameOf(of.target, s.Name, turn)
	var good []*shot
	for _, one := range taken {
		due = due && one.takenAt().Before(turn) && one.name != name
		switch {
		case !one.ready && one.lost:
		case !one.ready:
			p.waits, p.waitsSince = one.name, one.takenAt()
		case !one.deleting:
			good = append(good, one)
		}
	}
	if due && p.waits == "" {
		p.take = name
	}
	slices.SortFunc(good, func(a, b *shot) int {
		return cmp.Or(b.takenAt().Compare(a.takenAt()), cmp.Compare(b.name, a.name))
	})
	if len(good) > 0 {
		p.good, p.never = good[0].takenAt(), false
	}
	stay := min(int(s.Keep), len(good))
	for i, one := range slices.Backward(good[stay:]) {
		isRestored := slices.ContainsFunc(one.copies, func(name string) bool {
			return restored[types.NamespacedName{Namespace: one.namespace, Name: name}]
		})
		if !isRestored && one.isReplacedBy(good[:stay+i], s.Keep) {
			p.expired = append(p.expired, one)
		}
	}
	return p
}

// takenAt returns when a snapshot was taken: its turn by the leader's clock, or its creation
// by the API server's. One of them may be ahead, and what seems to come from the future would
// keep others from being taken, or outlive them.
func (s *shot) takenAt() time.Time {
	turn, err := time.Parse(turnFormat, s.name[max(0, len(s.name)-len(turnFormat)):])
	if err != nil || s.created.Before(turn) {
		return s.created
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

// turnOf returns the last turn of a target. They have theirs at different minutes, so that a
// backend takes the snapshots of a day all day.
func turnOf(seed string, every time.Duration, now time.Time) time.Time {
	h := fnv.New64a()
	h.Write([]byte(seed))
	minutes := int64(every / time.Minute)
	offset := int64(h.Sum64() % uint64(minutes))
	minute := now.Unix() / 60
	return time.Unix((minute-(minute-offset)%minutes)*60, 0).UTC()
}

// turnFormat is how a turn ends a name.
const turnFormat = "-20060102-1504"

// nameOf returns the name of the snapshot for a turn. So a turn is taken once, whatever
// process dies and however late caches are.
func nameOf(of target, schedule string, turn time.Time) string {
	suffix := "-" + schedule + turn.UTC().Format(turnFormat)
	name, instead := of.claim, string(of.uid)
	if of.isGroup() {
		// Names allow less than labels.
		name, instead = of.group, fmt.Sprintf("group-%x", sha256.Sum256([]byte(of.group)))[:20]
	}
	if len(validation.IsDNS1123Subdomain(name+suffix)) > 0 {
		return instead + suffix
	}
	return name + suffix
}
