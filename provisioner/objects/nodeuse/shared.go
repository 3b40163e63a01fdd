package nodeuse

import (
	"context"
	"sync"
	"time"
)

// readTimeout bounds one read.
const readTimeout = 30 * time.Second

// dutyCycle bounds the share of time spent reading: a long read is followed by a pause
// that is this many times longer.
const dutyCycle = 3

// quick is the longest read that needs no pause after it.
const quick = 50 * time.Millisecond

// shared is a read that serves every caller who asked before it began.
type shared[T any] struct {
	read func(ctx context.Context) (T, error)

	mu      sync.Mutex
	next    *reading[T] // that has not begun
	running bool
}

type reading[T any] struct {
	done  chan struct{}
	value T
	err   error
}

// get returns a result read after the call.
func (s *shared[T]) get(ctx context.Context) (T, error) {
	s.mu.Lock()
	wanted := s.next
	if wanted == nil {
		wanted = &reading[T]{done: make(chan struct{})}
		s.next = wanted
	}
	if !s.running {
		s.running = true
		go s.run()
	}
	s.mu.Unlock()
	select {
	case <-wanted.done:
		return wanted.value, wanted.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

// run reads until there are no more callers.
func (s *shared[T]) run() {
	for {
		s.mu.Lock()
		current := s.next
		s.next = nil
		s.running = current != nil
		s.mu.Unlock()
		if current == nil {
			return
		}
		// The read serves many callers, so it does not end with any one of them.
		ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
		began := time.Now()
		current.value, current.err = s.read(ctx)
		cancel()
		close(current.done)
		if took := time.Since(began); took > quick {
			time.Sleep(min(dutyCycle*took, readTimeout))
		}
	}
}
