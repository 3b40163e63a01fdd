package app

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// ownLock gives up a lease only while it is held. client-go's elector releases
// what it believes to hold without a look at who does: a leader that was paused,
// and resumes after another has been elected, would give up the other's lease.
//
// It also knows how long the lease is held for certain. The elector counts from
// the answer to a renewal, and whoever waits for the lease from the renewal
// itself: a leader that was paused between the two would believe in a lease that
// another has taken.
type ownLock struct {
	resourcelock.LeaseLock

	mu sync.Mutex
	// holder is who held the lease when it was read last.
	holder string
	// renewed is when the last renewal that succeeded was asked for.
	renewed time.Time
	// now is the clock; nil is time.Now.
	now func() time.Time
}

// holdsFor reports whether the lease was renewed at most so long ago. Both of the
// machine's clocks must say so: the monotonic one stands still while a virtual
// machine is suspended, and the other may be set back.
func (l *ownLock) holdsFor(validity time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.renewed.IsZero() {
		return false
	}
	now := l.clock()
	return now.Sub(l.renewed) <= validity && now.Round(0).Sub(l.renewed.Round(0)) <= validity
}

func (l *ownLock) clock() time.Time {
	if l.now != nil {
		return l.now()
	}
	return time.Now()
}

// Get implements resourcelock.Interface.
func (l *ownLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.LeaseLock.Get(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.holder = ""
	if err == nil {
		l.holder = record.HolderIdentity
	}
	return record, raw, err
}

// Update implements resourcelock.Interface. The elector reads the lease before
// it releases it, and the API server refuses the update if it has changed since.
func (l *ownLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	l.mu.Lock()
	holder := l.holder
	l.mu.Unlock()
	if record.HolderIdentity == "" && holder != l.Identity() {
		return errors.New("another replica holds the lease")
	}
	return l.renew(record, func() error { return l.LeaseLock.Update(ctx, record) })
}

// Create implements resourcelock.Interface.
func (l *ownLock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.renew(record, func() error { return l.LeaseLock.Create(ctx, record) })
}

func (l *ownLock) renew(record resourcelock.LeaderElectionRecord, write func() error) error {
	asked := l.clock()
	err := write()
	if err == nil && record.HolderIdentity == l.Identity() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.renewed = asked
	}
	return err
}
