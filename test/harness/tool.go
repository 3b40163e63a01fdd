package harness

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/standalone-cinder/standalone-cinder/test/controlplane"
)

// tool is a third-party program that tests run, built by a module of its own.
type tool struct {
	name string
	// variable is the environment variable that names a prebuilt one.
	variable            string
	module, packagePath string
}

// buildTool builds a tool into bin/, unless the environment names a built one. The go
// command builds it once.
func (s *Suite) buildTool(ctx context.Context, of tool) (string, error) {
	if path := os.Getenv(of.variable); path != "" {
		return path, nil
	}
	path := filepath.Join(s.root, "bin", of.name)
	fmt.Fprintf(s.log, "harness: building the %s: usually 3 minutes the first time\n", of.name)
	if _, err := controlplane.RunGo(ctx, filepath.Join(s.root, of.module), "build", "-trimpath", "-o", path, of.packagePath); err != nil {
		return "", fmt.Errorf("build the %s: %w", of.name, err)
	}
	return path, nil
}

// running is a tool as a process.
type running struct {
	command *exec.Cmd
	exited  chan struct{}
}

// startTool starts a tool that ends with the test.
func (s *Suite) startTool(program, log string, arguments ...string) (*running, error) {
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	r := &running{command: exec.Command(program, arguments...), exited: make(chan struct{})}
	r.command.Stdout, r.command.Stderr = file, file
	r.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	go func() { // Pdeathsig follows the thread that forks
		defer file.Close()
		err := r.command.Start()
		started <- err
		if err == nil {
			_ = r.command.Wait()
			close(r.exited)
		}
	}()
	return r, <-started
}

func (r *running) kill() {
	_ = r.command.Process.Kill()
	<-r.exited
}

// endOf returns the end of a log.
func endOf(path string) string {
	file, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer file.Close()
	content, _ := io.ReadAll(file)
	lines := bytes.Split(content, []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-60):], []byte("\n")))
}
