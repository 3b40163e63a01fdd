package provisioner

import (
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/mappers"
)

// retry is how an error is tried again: first after `first`, then twice as
// long each time, up to `most`. Nothing gives up.
type retry struct {
	// outcome labels the metrics; stable, in snake case.
	outcome string
	first   time.Duration
	most    time.Duration
	// atLeast is what the server asked for.
	atLeast time.Duration
}

// retryFor is the one table from the kind of an error to its retry. What only a
// person can mend is tried rarely; what passes by itself soon.
func retryFor(err error) retry {
	var refusal *mappers.Refusal
	if errors.As(err, &refusal) {
		// Each attempt makes and removes a volume.
		return retry{outcome: "refused", first: time.Minute, most: 30 * time.Minute}
	}
	if errors.Is(err, errMayBeServed) {
		// A second volume, which waits for the PersistentVolume that tells.
		return retry{outcome: "pending", first: 5 * time.Second, most: 2 * time.Minute}
	}
	var inUse *inUseError
	if errors.As(err, &inUse) {
		// Where no watch tells when the node lets go.
		return retry{outcome: "in_use", first: 10 * time.Second, most: 2 * time.Minute}
	}
	var broken *damagedError
	if errors.As(err, &broken) {
		return retry{outcome: "damaged", first: time.Minute, most: 30 * time.Minute}
	}
	var failed *backends.Error
	if !errors.As(err, &failed) {
		// The API server, or a backend that is not configured any more.
		return retry{outcome: "kubernetes", first: time.Second, most: 30 * time.Second}
	}
	r := retry{atLeast: failed.RetryAfter}
	switch failed.Kind {
	case backends.KindUnavailable, backends.KindInternal:
		// A backend that does not answer at all is the breaker's: what is tried
		// again here costs one request.
		r.outcome, r.first, r.most = "unavailable", time.Second, 30*time.Second
	case backends.KindConflict:
		r.outcome, r.first, r.most = "conflict", 2*time.Second, 30*time.Second
	case backends.KindTimeout:
		r.outcome, r.first, r.most = "timeout", 5*time.Second, time.Minute
	case backends.KindRateLimited:
		r.outcome, r.first, r.most = "rate_limited", 5*time.Second, time.Minute
	case backends.KindVolumeFailed:
		r.outcome, r.first, r.most = "volume_failed", 10*time.Second, 2*time.Minute
	case backends.KindOverQuota:
		r.outcome, r.first, r.most = "over_quota", 15*time.Second, 2*time.Minute
	case backends.KindUnauthorized, backends.KindForbidden, backends.KindConfig:
		r.outcome, r.first, r.most = "credentials", 5*time.Second, time.Minute
	case backends.KindNotFound, backends.KindInvalid:
		// A volume type or zone that does not exist, for example.
		r.outcome, r.first, r.most = "invalid", 15*time.Second, 10*time.Minute
	case backends.KindFenced:
		// The lease was not renewed for a moment, and the term goes on.
		r.outcome, r.first, r.most = "fenced", 5*time.Second, 5*time.Second
	case backends.KindInUse:
		r.outcome, r.first, r.most = "in_use", 10*time.Second, 2*time.Minute
	case backends.KindNotOurs:
		r.outcome, r.first, r.most = "not_ours", time.Minute, 30*time.Minute
	case backends.KindElsewhere:
		// A reload, and changed credentials, bring it back at once.
		r.outcome, r.first, r.most = "elsewhere", time.Minute, 30*time.Minute
	default:
		r.outcome, r.first, r.most = "other", 5*time.Second, 2*time.Minute
	}
	return r
}

// RetryLimiter gives the library's queues the delay that the error of an item
// calls for. Keys are claim UIDs and names of PersistentVolumes, which never
// collide.
type RetryLimiter struct {
	mu    sync.Mutex
	items map[string]*retryItem
}

type retryItem struct {
	retry    retry
	failures int // in a row, with the same outcome
	// explained is set while the library has not asked for the delay of the
	// last failure; unexplained counts the failures in a row that are its own.
	explained   bool
	unexplained int
	requeues    int // as the library counts them
}

// NewRetryLimiter makes an empty limiter.
func NewRetryLimiter() *RetryLimiter {
	return &RetryLimiter{items: map[string]*retryItem{}}
}

// Failed notes why an item failed; When then knows how long to wait.
func (l *RetryLimiter) Failed(key string, r retry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	item := l.item(key)
	if item.retry.outcome != r.outcome {
		item.failures = 0
	}
	item.retry = r
	item.failures++
	item.explained = true
}

// Succeeded forgets an item's failures. Those of the library stay: saving the
// fruit of a success may fail again and again.
func (l *RetryLimiter) Succeeded(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	item, ok := l.items[key]
	if !ok {
		return
	}
	if item.unexplained == 0 {
		delete(l.items, key)
		return
	}
	item.retry, item.failures, item.explained = retry{}, 0, false
}

// Gone forgets all about an item that is no more.
func (l *RetryLimiter) Gone(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.items, key)
}

// When implements workqueue.TypedRateLimiter.
func (l *RetryLimiter) When(key string) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	item := l.item(key)
	item.requeues++
	r, failures := item.retry, item.failures
	if item.explained {
		item.explained, item.unexplained = false, 0
	} else {
		// The library failed on its own, before or after this package.
		item.unexplained++
		r, failures = retryFor(nil), item.unexplained
	}
	delay := r.first
	for range min(failures-1, 20) {
		delay = min(delay*2, r.most)
	}
	delay = max(delay, r.atLeast)
	// A tenth of jitter keeps claims that failed together from coming back
	// together.
	return delay + time.Duration(rand.Int64N(int64(delay)/10+1))
}

// Forget implements workqueue.TypedRateLimiter. The library forgets whatever
// leaves its queue, also what is only parked: failures that this package
// explained are kept until Succeeded or Gone.
func (l *RetryLimiter) Forget(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	item, ok := l.items[key]
	if !ok {
		return
	}
	item.unexplained, item.requeues = 0, 0
	if item.failures == 0 {
		delete(l.items, key)
	}
}

// NumRequeues implements workqueue.TypedRateLimiter.
func (l *RetryLimiter) NumRequeues(key string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if item, ok := l.items[key]; ok {
		return item.requeues
	}
	return 0
}

func (l *RetryLimiter) item(key string) *retryItem {
	item := l.items[key]
	if item == nil {
		item = &retryItem{}
		l.items[key] = item
	}
	return item
}
