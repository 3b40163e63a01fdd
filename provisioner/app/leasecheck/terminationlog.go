package leasecheck

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"
)

// TerminationLogOf returns the file whose content the kubelet puts into the status of a
// container that has ended, as its message. It is empty unless the process is the first of
// its PID namespace, which ends with it. Others, as with hostPID, shareProcessNamespace or a
// shell that started them, may outlive their container.
func TerminationLogOf(pid int) string {
	if pid != 1 {
		return ""
	}
	return "/dev/termination-log"
}

// TerminationLog says in its container's status, once that has ended, which process has
// ended, and whether that process led and Cinder's reads showed everything that was ever
// changed there. Then the next leader need not wait for them.
type TerminationLog struct {
	identity string
	readLag  time.Duration

	mu   sync.Mutex
	file *os.File // nil: nobody reads it
	// leads and underWay say whether the process leads, and how many of its changes are
	// under way.
	leads    bool
	underWay int
	// settled is when reads show every change that has ended; shown means that the file
	// says so.
	settled time.Time
	shown   bool
	timer   *time.Timer
}

// OpenTerminationLog writes the name of a process into its container's termination log.
// Without the file, nothing is ever written.
func OpenTerminationLog(path, identity string, readLag time.Duration) (*TerminationLog, error) {
	l := &TerminationLog{identity: identity, readLag: readLag}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	if err != nil {
		return l, err
	}
	if _, err := file.WriteString(identity); err != nil {
		return l, errors.Join(err, file.Close())
	}
	l.file = file
	return l, nil
}

// settledMark follows the name of a process whose changes were all shown by Cinder's
// reads. Leaders with other flags expect other reads.
func settledMark(readLag time.Duration) string {
	return fmt.Sprintf(" settled after %s", readLag)
}

// Lead begins a term. An earlier leader can have changed something until the given time.
func (l *TerminationLog) Lead(changed time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leads = true
	l.settleAfter(changed)
}

// Follow ends a term: from now on, others may change something.
func (l *TerminationLog) Follow() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leads = false
	return l.unsettle()
}

// Change begins a change at Cinder, which must not be sent after an error. It ends when
// the answer is there, or will never come.
func (l *TerminationLog) Change() (ended func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.unsettle(); err != nil {
		return nil, err
	}
	l.underWay++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.underWay--
		l.settleAfter(time.Now())
	}, nil
}

// minRest spares the disk: each time that the log says something else, it is flushed.
const minRest = time.Second

// settleAfter waits until reads show what was changed until the given time. Nobody waits
// for reads that do not lag.
func (l *TerminationLog) settleAfter(changed time.Time) {
	if at := changed.Add(max(l.readLag, minRest)); at.After(l.settled) {
		l.settled = at
	}
	if l.file == nil || l.readLag == 0 || !l.leads || l.underWay > 0 {
		return
	}
	if l.timer == nil {
		l.timer = time.AfterFunc(time.Until(l.settled), l.settle)
	} else {
		l.timer.Reset(time.Until(l.settled))
	}
}

// settle says that reads show every change, if they do. Each state of the file is reached
// by a single system call, so a kill leaves none in between.
func (l *TerminationLog) settle() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.shown || !l.leads || l.underWay > 0 || time.Now().Before(l.settled) {
		return
	}
	_, err := l.file.WriteAt([]byte(settledMark(l.readLag)), int64(len(l.identity)))
	// After an error, part of it may be there.
	l.shown = true
	if err != nil {
		_ = l.unsettle()
	}
}

// unsettle takes that back. It must be on the disk before anything is changed, in case the
// node loses its power: then the kubelet reports what the disk has.
func (l *TerminationLog) unsettle() error {
	if !l.shown {
		return nil
	}
	if err := errors.Join(l.file.Truncate(int64(len(l.identity))), l.file.Sync()); err != nil {
		return fmt.Errorf("the termination log still says that this process changes nothing: %w", err)
	}
	l.shown = false
	return nil
}
