// Package keyedmutex provides one mutex per key.
package keyedmutex

import (
	"context"
	"sync"
)

// Mutex is a mutex per key. Unused keys cost nothing.
type Mutex struct {
	mu sync.Mutex
	// held has a channel for each key in use, which is closed when it is free.
	held map[string]chan struct{}
}

// New returns a Mutex whose keys are all free.
func New() *Mutex { return &Mutex{held: map[string]chan struct{}{}} }

// Acquire takes the key's lock, or returns the context's error.
func (m *Mutex) Acquire(ctx context.Context, key string) (release func(), err error) {
	for {
		m.mu.Lock()
		free, held := m.held[key]
		if !held {
			m.held[key] = make(chan struct{})
			m.mu.Unlock()
			return func() { m.release(key) }, nil
		}
		m.mu.Unlock()
		select {
		case <-free:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (m *Mutex) release(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	close(m.held[key])
	delete(m.held, key)
}
