package app

import (
	"context"
	"errors"
	"sync"

	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// ownLock gives up a lease only while it is held. client-go's elector releases
// what it believes to hold without a look at who does: a leader that was paused,
// and resumes after another has been elected, would give up the other's lease.
type ownLock struct {
	resourcelock.LeaseLock

	mu sync.Mutex
	// holder is who held the lease when it was read last.
	holder string
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
		return errors.New("the lease is another's by now")
	}
	return l.LeaseLock.Update(ctx, record)
}
