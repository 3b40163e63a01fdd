package harness

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// The real sidecars of the CSI driver.
var (
	externalAttacher = tool{
		name: "csi-attacher", variable: "EXTERNAL_ATTACHER_BINARY", module: "test/sidecars",
		packagePath: "github.com/kubernetes-csi/external-attacher/v4/cmd/csi-attacher",
	}
	externalResizer = tool{
		name: "csi-resizer", variable: "EXTERNAL_RESIZER_BINARY", module: "test/sidecars",
		packagePath: "github.com/kubernetes-csi/external-resizer/v2/cmd/csi-resizer",
	}
	externalSnapshotter = tool{
		name: "csi-snapshotter", variable: "EXTERNAL_SNAPSHOTTER_BINARY", module: "test/sidecars",
		packagePath: "github.com/kubernetes-csi/external-snapshotter/v8/cmd/csi-snapshotter",
	}
)

// Sidecar is one of them beside one replica. It is started again when it ends, as
// by a kubelet.
type Sidecar struct {
	log  string
	stop chan struct{}
	over chan struct{}
	once sync.Once
}

// restartPause is roughly the shortest time that a kubelet waits.
const restartPause = 200 * time.Millisecond

// Attacher starts the external-attacher, which the options of the suite asked for, at a
// replica's socket, with just the rights of the replica's account, as in a pod. The
// caller must stop it.
func (s *Suite) Attacher(ctx context.Context, provisioner string) func(socket string) (*Sidecar, error) {
	return s.sidecarOf(ctx, provisioner, externalAttacher, s.externalAttacher, "--worker-threads=50", "--timeout=90s", "--reconcile-sync=2s")
}

// Resizer does the same with the external-resizer.
func (s *Suite) Resizer(ctx context.Context, provisioner string) func(socket string) (*Sidecar, error) {
	return s.sidecarOf(ctx, provisioner, externalResizer, s.externalResizer, "--workers=20", "--timeout=90s", "--handle-volume-inuse-error=false")
}

// Snapshotter does the same with the csi-snapshotter.
func (s *Suite) Snapshotter(ctx context.Context, provisioner string) func(socket string) (*Sidecar, error) {
	return s.sidecarOf(ctx, provisioner, externalSnapshotter, s.externalSnapshotter, "--worker-threads=20", "--timeout=90s", "--feature-gates=CSIVolumeGroupSnapshot=true")
}

func (s *Suite) sidecarOf(ctx context.Context, provisioner string, of tool, program string, arguments ...string) func(socket string) (*Sidecar, error) {
	return func(socket string) (*Sidecar, error) {
		kubeconfig, err := s.account(ctx, provisioner)
		if err != nil {
			return nil, err
		}
		return s.startSidecar(of, program, kubeconfig, socket, arguments...)
	}
}

func (s *Suite) startSidecar(of tool, program, kubeconfig, socket string, arguments ...string) (*Sidecar, error) {
	dir, err := os.MkdirTemp(s.dir, of.name+"-")
	if err != nil {
		return nil, err
	}
	a := &Sidecar{log: filepath.Join(dir, "log"), stop: make(chan struct{}), over: make(chan struct{})}
	arguments = append([]string{"--kubeconfig", kubeconfig, "--csi-address", socket, "--leader-election=false", "--v=5",
		"--kube-api-qps=100", "--kube-api-burst=200", "--retry-interval-start=200ms", "--retry-interval-max=2s"}, arguments...)
	start := func() (*running, error) { return s.startTool(program, a.log, arguments...) }
	now, err := start()
	if err != nil {
		return nil, err
	}
	go func() {
		defer close(a.over)
		for {
			select {
			case <-a.stop:
				now.kill()
				return
			case <-now.exited:
			}
			select {
			case <-a.stop:
				return
			case <-time.After(restartPause):
			}
			again, err := start()
			if err != nil {
				return
			}
			now = again
		}
	}()
	return a, nil
}

// Stop ends it for good.
func (a *Sidecar) Stop() {
	a.once.Do(func() { close(a.stop) })
	<-a.over
}

// Log returns everything that it has printed, at its highest verbosity.
func (a *Sidecar) Log() string {
	content, err := os.ReadFile(a.log)
	if err != nil {
		return err.Error()
	}
	return string(content)
}
