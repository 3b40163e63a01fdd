package ledger

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/policy"
)

// growth is what a volume counts beyond its recorded size. Both sizes are of the
// whole volume.
type growth struct {
	// reserved is the size that it is being extended to; 0 if it is not.
	reserved int64
	// seen is the size that Cinder has shown. It counts until the PersistentVolume
	// says so: no quota undoes it.
	seen int64
}

// usageOf is what an entry counts.
func (l *Ledger) usageOf(claim types.UID, e entry) policy.Usage {
	g := l.growths[claim]
	return policy.Usage{Volumes: 1, Gigabytes: max(e.GiB, g.reserved, g.seen)}
}

// Grow reserves room for what a recorded volume is to grow by, in the scopes of
// the decision. What it counts already needs no more room. A reservation for
// another size is replaced.
//
// The error is ErrPolicyChanged when the decision was not made under the policy
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
		if denial := s.Check(l.sums[Scope{s.Kind, s.Name}], more); denial != nil {
			return &Refusal{Denial: denial, Scopes: []Scope{{s.Kind, s.Name}}}, nil
		}
	}
	l.reserveGrowth(claim, decision.Volume.SizeGiB)
	return nil, nil
}

// HoldGrowth reserves the same whatever the quotas say: an earlier leader may have
// requested it from Cinder. The volume need not be recorded yet.
func (l *Ledger) HoldGrowth(claim types.UID, sizeGiB int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refresh()
	l.reserveGrowth(claim, max(sizeGiB, l.growths[claim].reserved))
}

// GiveUpGrowth frees what Grow and HoldGrowth reserved, and reports whether a
// volume counts less now.
func (l *Ledger) GiveUpGrowth(claim types.UID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.growths[claim].reserved == 0 {
		return false
	}
	l.refresh()
	return l.reserveGrowth(claim, 0)
}

// Grew records the size that Cinder shows of a recorded volume.
func (l *Ledger) Grew(claim types.UID, sizeGiB int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refresh()
	l.sawSize(claim, sizeGiB)
}

// sawSize records a size that Cinder shows, if it is more than is recorded.
func (l *Ledger) sawSize(claim types.UID, sizeGiB int64) {
	g := l.growths[claim]
	if e, known := l.entries[claim]; known && sizeGiB > max(e.GiB, g.seen) {
		l.refresh()
		l.grow(claim, growth{reserved: g.reserved, seen: sizeGiB})
	}
}

func (l *Ledger) reserveGrowth(claim types.UID, sizeGiB int64) (freed bool) {
	return l.grow(claim, growth{reserved: sizeGiB, seen: l.growths[claim].seen})
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

// dropGrowthUpTo forgets a growth that the PersistentVolume records now.
func (l *Ledger) dropGrowthUpTo(claim types.UID, sizeGiB int64) {
	g, growing := l.growths[claim]
	if !growing {
		return
	}
	if g.reserved <= sizeGiB {
		g.reserved = 0
	}
	if g.seen <= sizeGiB {
		g.seen = 0
	}
	l.grow(claim, g)
}
