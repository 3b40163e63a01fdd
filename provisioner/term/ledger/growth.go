package ledger

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/policy"
)

// growth is what a volume counts beyond its recorded size. Both sizes are of the whole
// volume.
type growth struct {
	// reserved is the size that it is being extended to, or 0.
	reserved int64
	// requested means that the growth may have been requested from Cinder.
	requested bool
	// seen is the size that Cinder has shown. It counts until the PersistentVolume
	// records it, because no quota can undo it.
	seen int64
}

// usageOf returns what an entry counts.
func (l *Ledger) usageOf(claim types.UID, e entry) policy.Usage {
	g := l.growths[claim]
	return policy.Usage{Volumes: 1, Gigabytes: max(e.GiB, g.reserved, g.seen)}
}

// Grow reserves room for the growth of a recorded volume, in the scopes of the decision.
// What the volume already counts needs no more room. A reservation for another size is
// replaced, unless Cinder may be making a larger one.
//
// The error is ErrPolicyChanged if the decision was made under a policy that is no longer
// in force.
func (l *Ledger) Grow(claim types.UID, decision Decided) (*Refusal, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refresh()
	if decision.Revision != l.inForce.Revision() {
		return nil, ErrPolicyChanged
	}
	e := l.entries[claim]
	more := policy.Usage{Gigabytes: max(decision.Volume.SizeGiB-l.usageOf(claim, e).Gigabytes, 0)}
	for _, s := range decision.Quotas {
		if denial := s.Check(l.used(s), more); denial != nil {
			return &Refusal{Denial: denial, Scopes: []Scope{{s.Kind, s.Name}}}, nil
		}
	}
	g := l.growths[claim]
	if !g.requested {
		g.reserved = 0
	}
	g.reserved = max(g.reserved, decision.Volume.SizeGiB)
	l.grow(claim, g)
	return nil, nil
}

// HoldGrowth reserves, until SettleGrowth, the room for a growth that may have been
// requested from Cinder, regardless of quotas. The volume need not be recorded yet.
func (l *Ledger) HoldGrowth(claim types.UID, sizeGiB int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refresh()
	g := l.growths[claim]
	g.reserved, g.requested = max(sizeGiB, g.reserved), true
	l.grow(claim, g)
}

// IsGrowing reports whether a growth is reserved.
func (l *Ledger) IsGrowing(claim types.UID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.growths[claim].reserved > 0
}

// GiveUpGrowth frees what Grow reserved, unless the growth may have been requested from
// Cinder. It reports whether nothing is reserved now.
func (l *Ledger) GiveUpGrowth(claim types.UID) (over bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	g := l.growths[claim]
	if g.requested || g.reserved == 0 {
		return !g.requested
	}
	l.refresh()
	g.reserved = 0
	l.offer(l.grow(claim, g))
	return true
}

// SettleGrowth ends a growth when nothing extends the volume anymore. The volume counts
// with the size that Cinder shows; 0 means that Cinder shows no larger one than before.
func (l *Ledger) SettleGrowth(claim types.UID, sizeGiB int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refresh()
	g := l.growths[claim]
	g.reserved, g.requested = 0, false
	if e, known := l.entries[claim]; known && sizeGiB > e.GiB {
		g.seen = max(g.seen, sizeGiB)
	}
	l.offer(l.grow(claim, g))
}

// sawSize records a size shown by Cinder if it exceeds the recorded one.
func (l *Ledger) sawSize(claim types.UID, sizeGiB int64) {
	g := l.growths[claim]
	if e, known := l.entries[claim]; known && sizeGiB > max(e.GiB, g.seen) {
		l.refresh()
		g.seen = sizeGiB
		l.grow(claim, g)
	}
}

// grow replaces what a volume counts beyond its recorded size.
func (l *Ledger) grow(claim types.UID, to growth) (freed bool) {
	e, known := l.entries[claim]
	before := l.usageOf(claim, e)
	if known {
		l.count(claim, e, policy.Usage.Sub)
	}
	if l.growths[claim] = to; to == (growth{}) {
		delete(l.growths, claim)
	}
	if known {
		l.count(claim, e, policy.Usage.Add)
	}
	if freed = known && l.usageOf(claim, e).Gigabytes < before.Gigabytes; freed {
		l.noteFreed(e)
	}
	return freed
}

// dropGrowthUpTo forgets a growth that the PersistentVolume has since recorded.
func (l *Ledger) dropGrowthUpTo(claim types.UID, sizeGiB int64) {
	g, growing := l.growths[claim]
	if !growing {
		return
	}
	if g.reserved <= sizeGiB {
		g.reserved, g.requested = 0, false
	}
	if g.seen <= sizeGiB {
		g.seen = 0
	}
	l.grow(claim, g)
}
