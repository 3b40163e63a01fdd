package controlplane

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// KubeletVariable names the environment variable that names a prebuilt kubelet.
const KubeletVariable = "KUBELET_BINARY"

// KubeletMinor is the minor of Kubernetes of which there is a kubelet. It works with
// a control plane of that minor or a newer one.
const KubeletMinor = "1.36"

// Kubelet returns the path of the kubelet, bin/kubelet-1.36 under the root of the
// repository, which is compiled from that minor's module. If the environment has
// KUBELET_BINARY, then that is the path.
func Kubelet(ctx context.Context, log io.Writer) (path string, err error) {
	if path := os.Getenv(KubeletVariable); path != "" {
		return executable(KubeletVariable, path)
	}
	root, err := repositoryRoot()
	if err != nil {
		return "", fmt.Errorf("the kubelet: %w", err)
	}
	source := filepath.Join(root, sourceDir, KubeletMinor)
	_, version, err := sourceKey(source)
	if err != nil {
		return "", fmt.Errorf("the kubelet: %w", err)
	}
	path = filepath.Join(root, "bin", "kubelet-"+KubeletMinor)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", fmt.Errorf("the kubelet: %w", err)
	}
	lock, err := waitLock(ctx, path+".lock", func() {
		fmt.Fprintf(log, "controlplane: waiting for another process that builds bin/kubelet-%s\n", KubeletMinor)
	})
	if err != nil {
		return "", err
	}
	defer lock.unlock()
	fmt.Fprintf(log, "controlplane: building the kubelet %s into bin/kubelet-%s, unless it is there: some minutes the first time\n", version, KubeletMinor)
	// The go command itself notices whether what is there was built from these
	// sources.
	if _, err := RunGo(ctx, source, buildArguments(version, path, "./kubelet")...); err != nil {
		return "", fmt.Errorf("the kubelet: %w", err)
	}
	return path, nil
}
