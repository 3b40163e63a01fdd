package controlplane

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// fileLock is an exclusive lock between processes. The kernel releases it when
// its holder ends, however that ends.
type fileLock struct{ file *os.File }

// tryLock takes the lock at that path, and creates it if necessary. taken is
// false if it is in use, even in the same process.
func tryLock(path string) (lock *fileLock, taken bool, err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, false, fmt.Errorf("lock: %w", err)
	}
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	switch {
	case errors.Is(err, syscall.EWOULDBLOCK):
		return nil, false, file.Close()
	case err != nil:
		return nil, false, errors.Join(fmt.Errorf("lock %s: %w", path, err), file.Close())
	}
	return &fileLock{file}, true, nil
}

// waitLock takes the lock at that path. If it is in use, it calls onWait once
// and then retries until ctx ends.
func waitLock(ctx context.Context, path string, onWait func()) (*fileLock, error) {
	for first := true; ; first = false {
		lock, taken, err := tryLock(path)
		if err != nil || taken {
			return lock, err
		}
		if first {
			onWait()
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for the lock %s: %w", path, ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// unlock releases the lock. The file stays, since removing it would let two
// holders lock two files of the same name.
func (l *fileLock) unlock() error { return l.file.Close() }
