package controlplane

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// script returns a program for startProcess that runs that shell code.
func script(t *testing.T, code string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "component")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+code+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func startScript(t *testing.T, code string) *process {
	t.Helper()
	p, err := startProcess(script(t, code), "component", t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	return p
}

func never(context.Context) error { return errors.New("not yet") }

func TestProcessThatEndsByItselfIsReportedWithItsLog(t *testing.T) {
	p := startScript(t, "echo cannot go on; exit 3")
	err := p.waitReady(t.Context(), never)
	const want = "component ended by itself (exit status 3); its log ends:\ncannot go on"
	if err == nil || err.Error() != want {
		t.Errorf("waitReady:\n got %v\nwant %s", err, want)
	}
	if err := p.crashed(); err == nil || err.Error() != want {
		t.Errorf("crashed:\n got %v\nwant %s", err, want)
	}
}

func TestProcessThatIsKilledHasNotCrashed(t *testing.T) {
	p := startScript(t, "exec sleep 600")
	if err := p.crashed(); err != nil {
		t.Errorf("while it runs: %v", err)
	}
	p.kill()
	p.kill()
	if err := p.crashed(); err != nil {
		t.Errorf("after kill: %v", err)
	}
}

func TestKillEndsWhatTheProcessStartedAndWhatIsPaused(t *testing.T) {
	p := startScript(t, "sleep 600 & echo $!; wait")
	var child string
	err := p.waitReady(t.Context(), func(context.Context) error {
		text, err := os.ReadFile(p.logPath)
		child = strings.TrimSpace(string(text))
		if err == nil && child == "" {
			err = errors.New("no child yet")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	p.kill()
	waitEnded(t, child)
}

// waitEnded waits until no process of that id runs. One that has ended and was
// not reaped does not count: whose business that is depends on where the test
// runs.
func waitEnded(t *testing.T, pid string) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for running(t, pid) {
		if time.Now().After(deadline) {
			t.Fatalf("process %s still runs", pid)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func running(t *testing.T, pid string) bool {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("needs /proc")
	}
	stat, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return false
	}
	if err != nil {
		t.Fatal(err)
	}
	// The state follows the name, which is in parentheses and may hold any
	// character.
	_, after, found := strings.Cut(string(stat[strings.LastIndexByte(string(stat), ')'):]), " ")
	if !found {
		t.Fatalf("stat of process %s: %s", pid, stat)
	}
	return !strings.HasPrefix(after, "Z") && !strings.HasPrefix(after, "X")
}

func TestPauseReturnsWhenNothingRunsAnyMore(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux shows whether a thread runs")
	}
	p := startScript(t, "while :; do :; done")
	for range 200 {
		if err := p.pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		stopped, err := threadsStopped(p.command.Process.Pid)
		if err != nil || !stopped {
			t.Fatalf("after pause: stopped %t, %v", stopped, err)
		}
		// Pausing what is paused is no error.
		if err := p.pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := p.signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
	}
}

func TestWaitReadyEndsWithItsContextAndSaysWhatWasMissing(t *testing.T) {
	p := startScript(t, "echo starting; exec sleep 600")
	ctx, cancel := context.WithCancel(t.Context())
	err := p.waitReady(ctx, func(context.Context) error {
		cancel()
		return errors.New("no answer")
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want one that wraps context.Canceled", err)
	}
	for _, want := range []string{"component is not ready: ", "(no answer)"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want one with %q", err, want)
		}
	}
}

func TestProcessEnvironmentHoldsNoSettings(t *testing.T) {
	t.Setenv("ETCD_DATA_DIR", "/nowhere")
	t.Setenv("KUBE_FEATURE_Sample", "true")
	p := startScript(t, "env; echo done; exec sleep 600")
	if err := p.waitReady(t.Context(), func(context.Context) error {
		text, err := os.ReadFile(p.logPath)
		if err == nil && !strings.Contains(string(text), "done") {
			err = errors.New("not done")
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(p.logPath)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ETCD_", "KUBE_"} {
		if strings.Contains(string(text), name) {
			t.Errorf("the environment has %s*:\n%s", name, text)
		}
	}
	if !strings.Contains(string(text), "PATH=") {
		t.Errorf("the environment has no PATH:\n%s", text)
	}
}

func TestLogTailIsOfTheLatestProcessAndBounded(t *testing.T) {
	dir := t.TempDir()
	first, err := startProcess(script(t, "echo first"), "component", dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	<-first.done
	// About three times as much as is shown.
	second, err := startProcess(script(t, "i=0; while [ $i -lt 1000 ]; do echo line number $i; i=$((i+1)); done"), "component", dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	<-second.done
	third, err := startProcess(script(t, "true"), "component", dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	<-third.done

	tail := second.logTail()
	if !strings.HasPrefix(tail, "its log ends:\nline number ") || !strings.HasSuffix(tail, "\nline number 999") {
		t.Errorf("the tail is not whole lines up to the last:\n%s", tail)
	}
	if len(tail) > logTailBytes+100 {
		t.Errorf("the tail has %d bytes", len(tail))
	}
	if got, want := third.logTail(), "its log is empty"; got != want {
		t.Errorf("tail of a silent process: got %q, want %q", got, want)
	}
}

func TestStartProcessNamesWhatCannotBeStarted(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	_, err := startProcess(missing, "etcd", t.TempDir(), nil)
	want := "start etcd: fork/exec " + missing + ": no such file or directory"
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestPortTakenInBetweenIsReplaced(t *testing.T) {
	program := script(t, "echo listen tcp 127.0.0.1:$2: bind: address already in use; exit 1")
	dir := t.TempDir()
	var tried int
	err := withFreePorts(1, func(ports []int) error {
		tried++
		if tried == 3 {
			return nil
		}
		p, err := startProcess(program, "etcd", dir, nil)
		if err != nil {
			return err
		}
		return p.waitReady(t.Context(), never)
	})
	if err != nil || tried != 3 {
		t.Errorf("after %d tries: %v, want success at the third", tried, err)
	}
}

func TestPortsThatAreAlwaysTakenAreGivenUp(t *testing.T) {
	program := script(t, "echo address already in use; exit 1")
	dir := t.TempDir()
	var tried int
	err := withFreePorts(1, func([]int) error {
		tried++
		p, err := startProcess(program, "etcd", dir, nil)
		if err != nil {
			return err
		}
		return p.waitReady(t.Context(), never)
	})
	if err == nil || !strings.HasPrefix(err.Error(), "free ports were taken in between 5 times: etcd ended by itself") {
		t.Errorf("got %v", err)
	}
	if tried != startTries {
		t.Errorf("tried %d times, want %d", tried, startTries)
	}
}

func TestOtherFailuresAreNotTriedOnAnotherPort(t *testing.T) {
	broken := errors.New("broken")
	var tried int
	err := withFreePorts(2, func(ports []int) error {
		tried++
		if len(ports) != 2 {
			t.Errorf("got %d ports, want 2", len(ports))
		}
		return broken
	})
	if !errors.Is(err, broken) || tried != 1 {
		t.Errorf("after %d tries: %v", tried, err)
	}
}
