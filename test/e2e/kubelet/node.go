package kubelet

import (
	"context"
	"embed"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/standalone-cinder/standalone-cinder/test/controlplane"
	"github.com/standalone-cinder/standalone-cinder/test/e2e/vm"
)

//go:embed containerd.toml kubelet.yaml network.conflist node.sh kubelet.sh
var settings embed.FS

// Memory is what a machine with a kubelet needs, in MiB.
const Memory = 1536

// Media returns a disk with what a node runs: the kubelet, its and containerd's
// settings, and the images of pods, beside those of every test. It is made in a directory,
// and root is that of the repository.
func Media(ctx context.Context, root, directory, program string, images ...Image) (disk string, err error) {
	content := filepath.Join(directory, "media")
	if err := os.MkdirAll(filepath.Join(content, "images"), 0o755); err != nil {
		return "", err
	}
	if err := os.CopyFS(content, settings); err != nil {
		return "", err
	}
	binary, err := os.ReadFile(program)
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(content, "kubelet"), binary, 0o755); err != nil {
		return "", err
	}
	scratch, err := os.MkdirTemp("", "standalone-cinder-image-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	ours, err := programs(ctx, root, scratch)
	if err != nil {
		return "", err
	}
	for number, image := range append(ours, images...) {
		archive, err := image.archive()
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(content, "images", fmt.Sprintf("%d.tar", number)), archive, 0o600); err != nil {
			return "", err
		}
	}
	disk = filepath.Join(directory, "media.disk")
	output, err := exec.CommandContext(ctx, "mkfs.ext4", "-q", "-F", "-O", "^has_journal", "-d", content, disk, mediaSize).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("make the disk of the nodes: %w: %s", err, output)
	}
	return disk, os.RemoveAll(content)
}

// mediaSize is the size of the disk's file, which is sparse.
const mediaSize = "700M"

// Start makes a machine a node, with the disk of Media. Once it returns, the kubelet
// runs, and will register the node. It reaches the API server under its address on this
// machine, and pods reach it as the Service kubernetes. verbosity is that of the kubelet's
// log. The function that it returns cuts the machine off from the API server.
func Start(ctx context.Context, m *vm.Machine, name, kubeconfig string, verbosity int) (cut func(), err error) {
	if _, err := m.Run(ctx, "ip address add "+controlplane.ServiceAddress+"/32 dev lo"); err != nil {
		return nil, err
	}
	if cut, err = Connect(m, kubeconfig); err != nil {
		return nil, err
	}
	if err := m.Install(ctx, kubeconfig, "/etc/kubernetes/kubeconfig"); err != nil {
		return nil, err
	}
	_, err = m.Run(ctx, fmt.Sprintf("echo %d > /etc/kubernetes/verbosity", verbosity))
	if err != nil {
		return nil, err
	}
	_, err = m.Run(ctx, "mkdir -p /opt/kubernetes && mount -o ro /dev/vdb /opt/kubernetes && sh /opt/kubernetes/node.sh "+name)
	return cut, err
}

// Connect lets a machine reach the API server, until the function that it returns is called.
func Connect(m *vm.Machine, kubeconfig string) (cut func(), err error) {
	config, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		return nil, err
	}
	var cuts []func()
	for _, cluster := range config.Clusters {
		server, err := url.Parse(cluster.Server)
		if err != nil {
			return nil, err
		}
		for _, inside := range []string{server.Host, net.JoinHostPort(controlplane.ServiceAddress, "443")} {
			one, err := m.ReachAt(inside, server.Host)
			if err != nil {
				return nil, err
			}
			cuts = append(cuts, one)
		}
	}
	return func() {
		for _, one := range cuts {
			one()
		}
	}, nil
}

// Restart starts the kubelet of a node again.
func Restart(ctx context.Context, m *vm.Machine, name string) error {
	_, err := m.Run(ctx, "sh /opt/kubernetes/kubelet.sh "+name)
	return err
}

// Logs returns what kubelet, containerd and all containers that are left have
// written, by the name of the file.
func Logs(ctx context.Context, m *vm.Machine) (map[string]string, error) {
	names, err := m.Run(ctx, "ls /var/log/kubelet.log /var/log/containerd.log; find /var/log/pods -type f")
	if err != nil {
		return nil, err
	}
	logs := map[string]string{}
	for name := range strings.FieldsSeq(names) {
		// The kubelet may just remove what a deleted pod has written.
		if logs[name], err = m.Run(ctx, "cat "+name+" || [ ! -e "+name+" ]"); err != nil {
			return nil, err
		}
	}
	return logs, nil
}

// ContainerLog returns what the container of a pod has written so far, on its node,
// over all its starts.
func ContainerLog(ctx context.Context, m *vm.Machine, namespace, pod string) (string, error) {
	return m.Run(ctx, fmt.Sprintf("cat /var/log/pods/%s_%s_*/*/*.log", namespace, pod))
}
