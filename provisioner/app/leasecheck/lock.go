package leasecheck

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// Lock releases a lease only while this replica holds it. client-go's elector releases
// the lease that it believes it holds, without checking the holder: a leader that was
// paused, and resumes after another was elected, would release the other's lease.
//
// Lock also knows until when the lease is certainly held. The elector counts from the
// answer to a renewal, but candidates count from the renewal itself: a leader that was
// paused between the two would believe in a lease that another replica has taken.
type Lock struct {
	resourcelock.LeaseLock
	// Timeout bounds every request. Without it, a server that keeps telling the client
	// to retry later would keep a candidate's elector from turning.
	Timeout time.Duration
	// Turns is called whenever the elector turns: before and after every request.
	Turns func()
	// EndOf returns what is known of the end of the process with this identity. A lease
	// whose holder has certainly ended counts as released; nil means that nothing is known.
	EndOf func(identity string) End
	// Longest is the longest duration of a lease that this process has seen; zero if it
	// has seen none.
	Longest time.Duration

	mu sync.Mutex
	// holder is the lease's holder when it was last read.
	holder string
	// settled means that reads show everything that this holder changed.
	settled bool
	// renewed is when the last successful renewal was sent.
	renewed time.Time
	// lastChange is when an earlier leader can have changed something for the last time.
	lastChange time.Time
	// now is the clock; nil is time.Now.
	now func() time.Time
}

// StillLeading is the fence before every change at Cinder. The elector notices that its
// lease has ended only when it is scheduled. A process that was paused compares clocks
// here before it changes anything.
func (l *Lock) StillLeading(termCtx context.Context, isLeader func() bool, validity time.Duration) error {
	if termCtx.Err() != nil || !isLeader() {
		return errors.New("this replica no longer leads")
	}
	if !l.holdsFor(validity) {
		return errors.New("the lease expired without being renewed")
	}
	return nil
}

// holdsFor reports whether the lease was renewed at most this long ago. Both of
// the machine's clocks must agree: the monotonic clock stops while a virtual
// machine is suspended, and the wall clock may be set back.
func (l *Lock) holdsFor(validity time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.renewed.IsZero() {
		return false
	}
	now := l.clock()
	return now.Sub(l.renewed) <= validity && now.Round(0).Sub(l.renewed.Round(0)) <= validity
}

func (l *Lock) clock() time.Time {
	if l.now != nil {
		return l.now()
	}
	return time.Now()
}

// Get implements resourcelock.Interface.
func (l *Lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	ctx, done := l.request(ctx)
	defer done()
	record, raw, err := l.LeaseLock.Get(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.holder, l.settled = "", false
	if err == nil {
		l.holder = record.HolderIdentity
		l.saw(*record)
		if l.EndOf != nil {
			if end := l.EndOf(record.HolderIdentity); end.Proven {
				record.HolderIdentity, l.settled = "", end.Settled
			}
		}
	}
	return record, raw, err
}

// Update implements resourcelock.Interface. The elector reads the lease before it
// releases it, and the API server refuses the update if the lease has changed since.
func (l *Lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	l.mu.Lock()
	holder := l.holder
	l.mu.Unlock()
	if record.HolderIdentity == "" && holder != l.Identity() {
		return errors.New("another replica holds the lease")
	}
	ctx, done := l.request(ctx)
	defer done()
	return l.renew(record, 0, func() error { return l.LeaseLock.Update(ctx, record) })
}

// Create implements resourcelock.Interface. If there was a lease before, it was deleted,
// and its holder may not have noticed.
func (l *Lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	ctx, done := l.request(ctx)
	defer done()
	return l.renew(record, l.Longest, func() error { return l.LeaseLock.Create(ctx, record) })
}

// LastChange returns when an earlier leader can have changed something for the last time:
// when this replica took the lease, or later if the lease had been deleted, or so long ago
// that nothing depends on it, if this is the first lease or the last leader's end showed
// that. How long a silent leader has been unable to change anything
// depends on the flags that it ran with, so its silence does not count.
func (l *Lock) LastChange() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lastChange
}

// saw notes the duration of a lease.
func (l *Lock) saw(record resourcelock.LeaderElectionRecord) {
	l.Longest = max(l.Longest, time.Duration(record.LeaseDurationSeconds)*time.Second)
}

// request begins a request of the elector.
func (l *Lock) request(ctx context.Context) (bounded context.Context, done func()) {
	l.Turns()
	bounded, cancel := context.WithTimeout(ctx, l.Timeout)
	return bounded, func() {
		cancel()
		l.Turns()
	}
}

// renew writes the lease. An earlier leader may change something for the given time
// after that.
func (l *Lock) renew(record resourcelock.LeaderElectionRecord, earlier time.Duration, write func() error) error {
	asked := l.clock()
	err := write()
	if err == nil && record.HolderIdentity == l.Identity() {
		l.mu.Lock()
		defer l.mu.Unlock()
		switch {
		case l.Longest == 0, l.renewed.IsZero() && l.settled:
			l.lastChange = time.Unix(0, 0)
		case l.renewed.IsZero():
			l.lastChange = l.clock().Add(earlier)
		}
		l.renewed = asked
		l.saw(record)
	}
	return err
}
