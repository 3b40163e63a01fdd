// Package harness runs the program as a process against a real control plane,
// with exactly the rights that deploy/ grants. Integration tests, the demo and
// the benchmark share it.
package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/standalone-cinder/standalone-cinder/test/controlplane"
)

// Namespace and ServiceAccount are those of deploy/base.
const (
	Namespace      = "standalone-cinder"
	ServiceAccount = "standalone-cinder"
)

// Suite is a cluster and a build of the program. Tests with different
// provisioner names can share one.
type Suite struct {
	Client kubernetes.Interface
	Config *rest.Config
	// Program is the path of the binary.
	Program string

	root string
	dir  string
	log  io.Writer
	// plane is nil when an existing cluster is used.
	plane *controlplane.ControlPlane
	// kubeconfig is that of the existing cluster, or of the account in deploy/base.
	kubeconfig string
	accounts   accounts
	snapshots  snapshots
	// snapshotController is the built program, if the options asked for it.
	snapshotController string
	// The built sidecars, likewise.
	externalAttacher, externalResizer, externalSnapshotter string
}

// SuiteOptions say what to start.
type SuiteOptions struct {
	// Kubeconfig uses an existing cluster, with the rights of its user,
	// instead of a local control plane.
	Kubeconfig string
	// ControlPlane configures the local one.
	ControlPlane controlplane.Options
	// Race builds the program with the race detector.
	Race bool
	// Program is the path of a binary to run instead of one that is built.
	Program string
	// Snapshots builds the snapshot-controller, too, so that no test waits for that.
	Snapshots bool
	// Attacher, Resizer and Snapshotter build the sidecars of the CSI driver, likewise.
	Attacher, Resizer, Snapshotter bool
	Log                            io.Writer
}

// StartSuite builds the program and brings up a control plane with the base
// manifests applied. The caller stops it.
func StartSuite(ctx context.Context, options SuiteOptions) (_ *Suite, err error) {
	root, err := repositoryRoot()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "standalone-cinder-suite-")
	if err != nil {
		return nil, err
	}
	s := &Suite{root: root, dir: dir, log: options.Log}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Stop())
		}
	}()
	if s.Program = options.Program; s.Program == "" {
		if err := s.build(ctx, options.Race); err != nil {
			return nil, err
		}
	}
	for _, tool := range []struct {
		wanted bool
		of     tool
		path   *string
	}{
		{options.Snapshots, snapshotController, &s.snapshotController}, {options.Attacher, externalAttacher, &s.externalAttacher},
		{options.Resizer, externalResizer, &s.externalResizer}, {options.Snapshotter, externalSnapshotter, &s.externalSnapshotter},
	} {
		if !tool.wanted {
			continue
		}
		if *tool.path, err = s.buildTool(ctx, tool.of); err != nil {
			return nil, err
		}
	}
	if options.Kubeconfig != "" {
		return s, s.useCluster(options.Kubeconfig)
	}
	options.ControlPlane.Log = options.Log
	if s.plane, err = controlplane.Start(ctx, options.ControlPlane); err != nil {
		return nil, err
	}
	s.Config = s.plane.RESTConfig()
	if s.Client, err = kubernetes.NewForConfig(s.Config); err != nil {
		return nil, err
	}
	// The Deployment itself needs nodes, but there are none; replicas run as
	// processes instead.
	if err := s.ApplyFile(ctx, filepath.Join("deploy", "base", "namespace.yaml")); err != nil {
		return nil, err
	}
	s.kubeconfig, err = s.account(ctx, defaultProvisioner)
	return s, err
}

// Run runs the program once, such as `policy check`, against the suite's
// cluster wherever KUBECONFIG appears among the arguments.
func (s *Suite) Run(ctx context.Context, arguments ...string) (exitCode int, output string, err error) {
	for i, argument := range arguments {
		if argument == "KUBECONFIG" {
			arguments[i] = s.kubeconfig
		}
	}
	combined, err := exec.CommandContext(ctx, s.Program, arguments...).CombinedOutput()
	var exited *exec.ExitError
	if errors.As(err, &exited) {
		return exited.ExitCode(), string(combined), nil
	}
	return 0, string(combined), err
}

// Administrator writes a kubeconfig of an administrator of the local control
// plane, whose API server is at another address if one is given.
func (s *Suite) Administrator(dir, address string, authority []byte) (kubeconfig string, err error) {
	if s.plane == nil {
		return "", errors.New("only the local control plane has a kubeconfig of an administrator")
	}
	if address == "" {
		return s.plane.KubeconfigPath(), nil
	}
	return kubeconfigAt(dir, s.plane.KubeconfigPath(), address, authority)
}

func (s *Suite) useCluster(kubeconfig string) (err error) {
	s.kubeconfig = kubeconfig
	if s.Config, err = clientcmd.BuildConfigFromFlags("", kubeconfig); err != nil {
		return err
	}
	s.Config.QPS, s.Config.Burst = 200, 400
	s.Client, err = kubernetes.NewForConfig(s.Config)
	return err
}

// ApplyFile applies a manifest of the repository.
func (s *Suite) ApplyFile(ctx context.Context, path string) error {
	content, err := os.ReadFile(filepath.Join(s.root, path))
	if err != nil {
		return err
	}
	return s.Apply(ctx, content)
}

// Apply applies manifests to the local control plane.
func (s *Suite) Apply(ctx context.Context, manifests ...[]byte) error {
	if s.plane == nil {
		return errors.New("manifests are applied to the local control plane only")
	}
	return s.plane.Apply(ctx, manifests...)
}

// ControlPlane returns the local control plane; nil if an existing cluster is
// used.
func (s *Suite) ControlPlane() *controlplane.ControlPlane { return s.plane }

// Stop ends everything the suite started.
func (s *Suite) Stop() error {
	var err error
	if s.snapshots.stop != nil {
		s.snapshots.stop()
	}
	if s.plane != nil {
		err = s.plane.Stop()
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}

func (s *Suite) build(ctx context.Context, race bool) error {
	s.Program = filepath.Join(s.dir, "standalone-cinder")
	arguments := []string{"build", "-tags", "grpcnotrace", "-o", s.Program}
	if race {
		arguments = append(arguments, "-race")
	}
	build := exec.CommandContext(ctx, "go", append(arguments, ".")...)
	build.Dir = s.root
	// If it is interrupted, not killed, the go command removes its temporary
	// files.
	build.Cancel = func() error { return build.Process.Signal(os.Interrupt) }
	build.WaitDelay = 10 * time.Second
	if output, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w\n%s", strings.Join(arguments, " "), err, output)
	}
	return nil
}

// repositoryRoot finds the root of the repository from this file, so that a
// test's working directory does not matter.
func repositoryRoot() (string, error) {
	_, file, _, ok := runtime.Caller(0)
	if !ok {
		return "", errors.New("the repository cannot be found: no caller information")
	}
	root := filepath.Dir(filepath.Dir(filepath.Dir(file)))
	if _, err := os.Stat(filepath.Join(root, "go.mod")); err != nil {
		return "", fmt.Errorf("the repository is not at %s: %w", root, err)
	}
	return root, nil
}

// APIServerTransport reaches the API server with the caller's identity, for a
// proxy in front of it: requests keep the credentials they came with.
func (s *Suite) APIServerTransport() (*http.Transport, error) {
	anonymous := rest.AnonymousClientConfig(s.Config)
	tls, err := rest.TLSConfigFor(anonymous)
	if err != nil {
		return nil, err
	}
	return &http.Transport{TLSClientConfig: tls, MaxIdleConnsPerHost: 256, IdleConnTimeout: 30 * time.Second}, nil
}
