// Package keyedmutex provides one mutex per key.
package keyedmutex

import (
	"context"
	"sync"
)

// Mutex is a mutex per key. Unused keys cost nothing.
type Mutex struct {
	mu    sync.Mutex
	locks map[string]*keyLock
}

type keyLock struct {
	token chan struct{} // contains one token while the lock is free
	users int
}

// New returns a Mutex whose keys are all free.
func New() *Mutex {
	return &Mutex{locks: map[string]*keyLock{}}
}

// Acquire takes the key's lock, or returns the context's error.
func (m *Mutex) Acquire(ctx context.Context, key string) (release func(), err error) {
	m.mu.Lock()
	lock := m.locks[key]
	if lock == nil {
		lock = &keyLock{token: make(chan struct{}, 1)}
		lock.token <- struct{}{}
		m.locks[key] = lock
	}
	lock.users++
	m.mu.Unlock()
	select {
	case <-lock.token:
		return func() {
			lock.token <- struct{}{}
			m.leave(key, lock)
		}, nil
	case <-ctx.Done():
		m.leave(key, lock)
		return nil, ctx.Err()
	}
}

func (m *Mutex) leave(key string, lock *keyLock) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if lock.users--; lock.users == 0 {
		delete(m.locks, key)
	}
}
