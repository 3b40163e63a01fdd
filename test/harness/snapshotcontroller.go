package harness

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// snapshotController is the real snapshot-controller.
var snapshotController = tool{
	name: "snapshot-controller", variable: "SNAPSHOT_CONTROLLER_BINARY", module: "test/sidecars",
	packagePath: "github.com/kubernetes-csi/external-snapshotter/v8/cmd/snapshot-controller",
}

const snapshotClientModule = "github.com/kubernetes-csi/external-snapshotter/client/v8"

const crdsPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/"

// snapshots is what a suite has installed for snapshots.
type snapshots struct {
	mutex sync.Mutex
	// stop ends the snapshot-controller; nil if there is none.
	stop func()
}

// InstallSnapshots installs the CRDs of snapshots and starts the real
// snapshot-controller, which the options of the suite asked for, with the rights of
// an administrator. Both stay until the suite ends or RemoveSnapshots is called;
// calling it again changes nothing.
func (s *Suite) InstallSnapshots(ctx context.Context) error {
	s.snapshots.mutex.Lock()
	defer s.snapshots.mutex.Unlock()
	if s.snapshots.stop != nil {
		return nil
	}
	if err := s.InstallSnapshotCRDs(ctx); err != nil {
		return err
	}
	// While its group is being deleted, it looks ever more rarely at a VolumeSnapshot, and by
	// default at last every five minutes.
	end, err := s.startTool(s.snapshotController, filepath.Join(s.dir, "snapshot-controller.log"),
		"--kubeconfig", s.plane.KubeconfigPath(), "--v=4", "--retry-interval-start=200ms", "--retry-interval-max=10s", "--kube-api-qps=200", "--kube-api-burst=400", "--http-endpoint=",
		"--feature-gates=CSIVolumeGroupSnapshot=true")
	if err != nil {
		return err
	}
	s.snapshots.stop = func() { end.kill() }
	return nil
}

// InstallSnapshotCRDs adds the CRDs of snapshots, and nothing that serves them.
func (s *Suite) InstallSnapshotCRDs(ctx context.Context) error {
	manifests, err := s.snapshotCRDs(ctx)
	if err != nil {
		return err
	}
	for _, content := range manifests {
		if err := s.Apply(ctx, content); err != nil {
			return err
		}
	}
	for _, group := range []string{"snapshot", "groupsnapshot"} {
		err := Eventually(ctx, func() (string, error) {
			served, err := s.Client.Discovery().ServerResourcesForGroupVersion(group + ".storage.k8s.io/v1")
			if apierrors.IsNotFound(err) || err == nil && len(served.APIResources) < 5 {
				return "the CRDs are not served yet", nil
			}
			return "", err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// RemoveSnapshots undoes InstallSnapshots, for a test of a cluster without the CRDs.
// No other test may use snapshots meanwhile, and what earlier ones left must have no
// finalizers, since nobody takes them off any more.
func (s *Suite) RemoveSnapshots(ctx context.Context) error {
	s.snapshots.mutex.Lock()
	defer s.snapshots.mutex.Unlock()
	if s.snapshots.stop == nil {
		return nil
	}
	s.snapshots.stop()
	s.snapshots.stop = nil
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	client := s.Client.CoreV1().RESTClient()
	manifests, err := s.snapshotCRDs(ctx)
	if err != nil {
		return err
	}
	for file := range manifests {
		// The files are named after their CRDs: GROUP_PLURAL.yaml.
		group, plural, _ := strings.Cut(strings.TrimSuffix(file, ".yaml"), "_")
		crd := crdsPath + plural + "." + group
		if err := client.Delete().AbsPath(crd).Do(ctx).Error(); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete %s: %w", crd, err)
		}
		err := Eventually(ctx, func() (string, error) {
			err := client.Get().AbsPath(crd).Do(ctx).Error()
			if apierrors.IsNotFound(err) {
				return "", nil
			}
			return crd + " is still there", err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// snapshotCRDs returns the CRDs of snapshots as the client's module has them, by
// the names of their files.
func (s *Suite) snapshotCRDs(ctx context.Context) (map[string][]byte, error) {
	list := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", snapshotClientModule)
	list.Dir = s.root
	output, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", snapshotClientModule, err)
	}
	files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(output)), "config", "crd", "*snapshot.storage.k8s.io_*.yaml"))
	if err != nil || len(files) != 6 {
		return nil, fmt.Errorf("the CRDs of %s are %v: %w", snapshotClientModule, files, err)
	}
	manifests := map[string][]byte{}
	for _, file := range files {
		if manifests[filepath.Base(file)], err = os.ReadFile(file); err != nil {
			return nil, err
		}
	}
	return manifests, nil
}

// SnapshotControllerLog returns the end of what the snapshot-controller
// printed.
func (s *Suite) SnapshotControllerLog() string {
	return endOf(filepath.Join(s.dir, "snapshot-controller.log"))
}
