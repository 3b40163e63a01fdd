package harness

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	// snapshotControllerVariable names a prebuilt snapshot-controller.
	snapshotControllerVariable = "SNAPSHOT_CONTROLLER_BINARY"
	snapshotControllerModule   = "test/snapshotcontroller"
	snapshotControllerPackage  = "github.com/kubernetes-csi/external-snapshotter/v8/cmd/snapshot-controller"
	snapshotClientModule       = "github.com/kubernetes-csi/external-snapshotter/client/v8"
)

// buildSnapshotController builds the real snapshot-controller into bin/, unless the
// environment names a built one. The go command builds it once.
func (s *Suite) buildSnapshotController(ctx context.Context) (string, error) {
	if path := os.Getenv(snapshotControllerVariable); path != "" {
		return path, nil
	}
	path := filepath.Join(s.root, "bin", "snapshot-controller")
	fmt.Fprintln(s.log, "harness: building the snapshot-controller: usually 3 minutes the first time")
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", path, snapshotControllerPackage)
	build.Dir = filepath.Join(s.root, snapshotControllerModule)
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=readonly", "GOWORK=off")
	build.Cancel = func() error { return build.Process.Signal(os.Interrupt) }
	build.WaitDelay = 10 * time.Second
	if output, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the snapshot-controller: %w\n%s", err, output)
	}
	return path, nil
}

// InstallSnapshotCRDs applies the CRDs of snapshots, as the client's module has
// them, and waits until they are served.
func (s *Suite) InstallSnapshotCRDs(ctx context.Context) error {
	list := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", snapshotClientModule)
	list.Dir = s.root
	output, err := list.Output()
	if err != nil {
		return fmt.Errorf("find %s: %w", snapshotClientModule, err)
	}
	files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(output)), "config", "crd", "snapshot.storage.k8s.io_*.yaml"))
	if err != nil || len(files) != 3 {
		return fmt.Errorf("the CRDs of %s are %v: %w", snapshotClientModule, files, err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if err := s.Apply(ctx, content); err != nil {
			return err
		}
	}
	return Eventually(ctx, func() (string, error) {
		served, err := s.Client.Discovery().ServerResourcesForGroupVersion("snapshot.storage.k8s.io/v1")
		if apierrors.IsNotFound(err) || err == nil && len(served.APIResources) < 5 {
			return "the CRDs are not served yet", nil
		}
		return "", err
	})
}

// StartSnapshotController starts the real snapshot-controller, which the options
// of the suite asked for, with the rights of an administrator. It ends with the
// suite.
func (s *Suite) StartSnapshotController() error {
	command := exec.Command(s.snapshotController, "--kubeconfig", s.plane.KubeconfigPath(), "--v=4", "--retry-interval-start=200ms", "--kube-api-qps=200", "--kube-api-burst=400", "--http-endpoint=")
	log, err := os.Create(filepath.Join(s.dir, "snapshot-controller.log"))
	if err != nil {
		return err
	}
	command.Stdout, command.Stderr = log, log
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	exited := make(chan struct{})
	go func() { // Pdeathsig follows the thread that forks
		err := command.Start()
		started <- err
		if err == nil {
			_ = command.Wait()
			close(exited)
		}
	}()
	if err := <-started; err != nil {
		return err
	}
	s.stopSnapshots = func() {
		_ = command.Process.Kill()
		<-exited
	}
	return nil
}

// SnapshotControllerLog is the end of what the snapshot-controller printed.
func (s *Suite) SnapshotControllerLog() string {
	file, err := os.Open(filepath.Join(s.dir, "snapshot-controller.log"))
	if err != nil {
		return err.Error()
	}
	defer file.Close()
	content, _ := io.ReadAll(file)
	lines := bytes.Split(content, []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-60):], []byte("\n")))
}
