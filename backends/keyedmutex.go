package backends

import (
	"context"
	"sync"
)

// keyedMutex is a mutex per key. A key nobody holds or waits for costs
// nothing.
type keyedMutex struct {
	mu   sync.Mutex
	held map[string]*keyLock
}

type keyLock struct {
	token chan struct{} // holds one token while the lock is free
	users int
}

func newKeyedMutex() *keyedMutex {
	return &keyedMutex{held: map[string]*keyLock{}}
}

// acquire takes the lock of the key, or returns the context's error.
func (m *keyedMutex) acquire(ctx context.Context, key string) (release func(), err error) {
	m.mu.Lock()
	lock := m.held[key]
	if lock == nil {
		lock = &keyLock{token: make(chan struct{}, 1)}
		lock.token <- struct{}{}
		m.held[key] = lock
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

func (m *keyedMutex) leave(key string, lock *keyLock) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if lock.users--; lock.users == 0 {
		delete(m.held, key)
	}
}
