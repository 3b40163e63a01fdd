// Package keyedmutex provides one mutex per key.
package keyedmutex

import (
	"context"
	"sync"
)

// Mutex is a mutex per key. Unused keys cost nothing.
type Mutex struct {
	mu sync.Mutex
	// last has a channel for each key in use, which closes when the last one to have asked
	// for the lock is done with it.
	last map[string]chan struct{}
}

// New returns a Mutex whose keys are all free.
func New() *Mutex { return &Mutex{last: map[string]chan struct{}{}} }

// Acquire takes the key's lock, in the order of the calls, or returns the context's error.
// The caller must call the function that it returns once.
func (m *Mutex) Acquire(ctx context.Context, key string) (func(), error) {
	done := make(chan struct{})
	m.mu.Lock()
	before := m.last[key]
	m.last[key] = done
	m.mu.Unlock()
	release := func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.last[key] == done {
			delete(m.last, key)
		}
		close(done)
	}
	if before == nil {
		return release, nil
	}
	select {
	case <-before:
		return release, nil
	case <-ctx.Done():
		// Those who came later still wait for those who came before.
		go func() {
			<-before
			release()
		}()
		return nil, ctx.Err()
	}
}
