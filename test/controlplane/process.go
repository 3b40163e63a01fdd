package controlplane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// readyTimeout bounds the wait for one component. They need a few seconds;
	// the rest is for busy machines.
	readyTimeout = 2 * time.Minute

	// readyInterval is the time between two probes of a starting component.
	readyInterval = 50 * time.Millisecond

	// logTailBytes is how much of a log goes into an error.
	logTailBytes = 4 << 10
)

// process is one component that runs or has run.
type process struct {
	name     string
	command  *exec.Cmd
	logPath  string
	logStart int64 // where in the log this process began

	killed atomic.Bool   // whether its end was asked for
	done   chan struct{} // closed when it has ended and been reaped
	err    error         // why it ended; valid once done is closed
}

// startProcess runs binary as the named component. Its output is appended to
// <name>.log in dir, which is also its working directory.
func startProcess(binary, name, dir string, arguments []string) (*process, error) {
	logPath := filepath.Join(dir, name+".log")
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	defer log.Close()
	logStart, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}

	command := exec.Command(binary, append([]string{name}, arguments...)...)
	command.Dir = dir
	command.Stdout, command.Stderr = log, log
	command.Env = componentEnvironment()
	command.SysProcAttr = processAttributes()

	p := &process{name: name, command: command, logPath: logPath, logStart: logStart, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The signal that ends the child with its parent is sent when the
		// parent's thread ends, not the process. So the thread is kept for as
		// long as the child lives.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := command.Start()
		started <- err
		if err == nil {
			p.err = command.Wait()
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return p, nil
}

// componentEnvironment leaves out all that would change how components behave
// (ETCD_*, KUBE_* and more are read as settings), so that a test means the same
// wherever it runs.
func componentEnvironment() []string {
	var environment []string
	for _, name := range []string{"PATH", "HOME", "TMPDIR"} {
		if value, ok := os.LookupEnv(name); ok {
			environment = append(environment, name+"="+value)
		}
	}
	return environment
}

// waitReady asks probe until it returns nil. It fails when the process ends,
// when ctx does, or when the process takes much too long.
func (p *process) waitReady(ctx context.Context, probe func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	tick := time.NewTicker(readyInterval)
	defer tick.Stop()
	var last error
	for {
		attempt, cancelAttempt := context.WithTimeout(ctx, 5*time.Second)
		err := probe(attempt)
		cancelAttempt()
		if err == nil {
			return nil
		}
		// The deadline's effect on the last attempt says less than the attempt
		// before it.
		if last == nil || ctx.Err() == nil {
			last = err
		}
		select {
		case <-p.done:
			return p.exitError()
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w (%w); %s", p.name, ctx.Err(), last, p.logTail())
		case <-tick.C:
		}
	}
}

// kill ends the process without grace and waits for its end. A stopped process
// is ended too.
func (p *process) kill() {
	select {
	case <-p.done:
		// Reaped: its ID may now be another process's. And it ended by itself.
		return
	default:
	}
	p.killed.Store(true)
	// An error means that it ended in this very moment.
	_ = p.signal(syscall.SIGKILL)
	<-p.done
}

// signal goes to the process's whole group.
func (p *process) signal(signal syscall.Signal) error {
	select {
	case <-p.done:
		return p.exitError()
	default:
	}
	if err := syscall.Kill(-p.command.Process.Pid, signal); err != nil {
		return fmt.Errorf("send %v to %s: %w", signal, p.name, err)
	}
	return nil
}

// pause stops the process and returns when none of its threads runs any more.
func (p *process) pause(ctx context.Context) error {
	if err := p.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for {
		stopped, err := threadsStopped(p.command.Process.Pid)
		if err != nil {
			return fmt.Errorf("see whether %s is stopped: %w", p.name, err)
		}
		if stopped {
			return nil
		}
		select {
		case <-p.done:
			return p.exitError()
		case <-ctx.Done():
			return fmt.Errorf("%s does not stop: %w", p.name, ctx.Err())
		case <-time.After(time.Millisecond):
		}
	}
}

// crashed returns an error if the process has ended without a request.
func (p *process) crashed() error {
	select {
	case <-p.done:
		if !p.killed.Load() {
			return p.exitError()
		}
	default:
	}
	return nil
}

// logTail returns the end of the process's log since its start, worded for the
// end of an error.
func (p *process) logTail() string {
	log, err := os.Open(p.logPath)
	if err != nil {
		return fmt.Sprintf("its log cannot be read: %v", err)
	}
	defer log.Close()
	from := p.logStart
	if info, err := log.Stat(); err == nil {
		from = max(from, info.Size()-logTailBytes)
	}
	text, err := io.ReadAll(io.NewSectionReader(log, from, logTailBytes))
	if err != nil {
		return fmt.Sprintf("its log cannot be read: %v", err)
	}
	if from > p.logStart {
		// The first line is most likely not whole.
		if _, rest, found := bytes.Cut(text, []byte("\n")); found {
			text = rest
		}
	}
	if len(bytes.TrimSpace(text)) == 0 {
		return "its log is empty"
	}
	return "its log ends:\n" + strings.TrimRight(string(text), "\n")
}

// exitError means that a process has ended by itself. It contains the end of
// the log, as the log itself may be removed before the error is read.
type exitError struct {
	name    string
	reason  string
	logTail string
}

func (e *exitError) Error() string {
	return fmt.Sprintf("%s ended by itself (%s); %s", e.name, e.reason, e.logTail)
}

// exitError describes the end of the process, which must be over.
func (p *process) exitError() error {
	reason := "exit status 0"
	if p.err != nil {
		reason = p.err.Error()
	}
	return &exitError{name: p.name, reason: reason, logTail: p.logTail()}
}

// addressInUse reports whether err is the end of a process whose port was in
// use by another program.
func addressInUse(err error) bool {
	exit, ok := errors.AsType[*exitError](err)
	return ok && strings.Contains(exit.logTail, syscall.EADDRINUSE.Error())
}
