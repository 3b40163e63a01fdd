package plugin

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/host"
)

// buffer is a log that is read while it is written.
type buffer struct {
	mu sync.Mutex
	strings.Builder
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Builder.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Builder.String()
}

func eventually(t *testing.T, what string, look func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !look(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal(what)
		}
	}
}

func dial(t *testing.T, socket string) *grpc.ClientConn {
	t.Helper()
	connection, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { connection.Close() })
	return connection
}

// TestThePluginServesAndRegisters: a kubelet restarts and empties its directory. The
// node is an empty directory.
func TestThePluginServesAndRegisters(t *testing.T) {
	dir, err := os.MkdirTemp("", "csi")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	boot := filepath.Join(dir, "proc/sys/kernel/random/boot_id")
	if err := errors.Join(os.MkdirAll(filepath.Dir(boot), 0o700), os.WriteFile(boot, []byte("boot-1\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	log := &buffer{}
	o := Options{Version: "v1", Registry: prometheus.NewRegistry(), Logger: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.Level(-10)}))}
	flags := pflag.NewFlagSet("node", pflag.ContinueOnError)
	o.AddFlags(flags)
	if err := errors.Join(flags.Parse([]string{"--host-root", dir, "--kubelet-dir", "/k", "--listen", "127.0.0.1:0", "--drain-timeout", "1s", "--report=false"}), o.Complete(func(string) string { return "node-1" })); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, o) }()

	socket := filepath.Join(dir, "k/plugins/standalone-cinder.openstack.org/csi.sock")
	registration := filepath.Join(dir, "k/plugins_registry/standalone-cinder.openstack.org-reg.sock")
	exists := func(file string) func() bool {
		return func() bool {
			_, err := os.Lstat(file)
			return err == nil
		}
	}
	eventually(t, "no socket of kubelet", exists(registration))
	eventually(t, "no socket", exists(socket))
	registered := func() {
		t.Helper()
		client := registerapi.NewRegistrationClient(dial(t, registration))
		info, err := client.GetInfo(ctx, &registerapi.InfoRequest{}, grpc.WaitForReady(true))
		if err != nil || info.Type != "CSIPlugin" || info.Name != "standalone-cinder.openstack.org" || info.Endpoint != "/k/plugins/standalone-cinder.openstack.org/csi.sock" || len(info.SupportedVersions) != 1 {
			t.Errorf("%v, %v", info, err)
		}
		for _, s := range []*registerapi.RegistrationStatus{{PluginRegistered: true}, {Error: "no initiator name"}} {
			if _, err := client.NotifyRegistrationStatus(ctx, s); err != nil {
				t.Error(err)
			}
		}
	}
	registered()
	for _, line := range []string{"kubelet registered the driver", "kubelet did not register the driver; it tries again", "no initiator name"} {
		if !strings.Contains(log.String(), line) {
			t.Errorf("the log has no %q", line)
		}
	}

	connection := dial(t, socket)
	identity := csi.NewIdentityClient(connection)
	name, err := identity.GetPluginInfo(ctx, &csi.GetPluginInfoRequest{}, grpc.WaitForReady(true))
	if err != nil || name.Name != "standalone-cinder.openstack.org" || name.VendorVersion != "v1" {
		t.Errorf("%v, %v", name, err)
	}
	if ready, err := identity.Probe(ctx, &csi.ProbeRequest{}); err != nil || !ready.GetReady().GetValue() {
		t.Errorf("%v, %v", ready, err)
	}
	nodes := csi.NewNodeClient(connection)
	if capabilities, err := nodes.NodeGetCapabilities(ctx, &csi.NodeGetCapabilitiesRequest{}); err != nil || len(capabilities.Capabilities) != 4 {
		t.Errorf("%v, %v", capabilities, err)
	}
	if _, err := nodes.NodeGetInfo(ctx, &csi.NodeGetInfoRequest{}); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "iscsiadm is not installed on the node; install open-iscsi") {
		t.Errorf("%v", err)
	}
	_, err = nodes.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{VolumeId: "gold/x", Secrets: map[string]string{"password": "swordfish"}})
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("%v", err)
	}
	if lines := log.String(); !strings.Contains(lines, "method=NodeStageVolume") || !strings.Contains(lines, "code=InvalidArgument") || strings.Contains(lines, "swordfish") {
		t.Errorf("logged %s", lines)
	}

	address, _, _ := strings.Cut(strings.SplitAfter(log.String(), "address=")[1], "\n")
	get := func(path string) (int, string) {
		t.Helper()
		response, err := http.Get("http://" + address + path)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, string(body)
	}
	if code, body := get("/healthz"); code != http.StatusOK || body != "ok\n" {
		t.Errorf("health: %d, %s", code, body)
	}
	_, metrics := get("/metrics")
	for _, line := range []string{
		`standalone_cinder_node_requests_total{code="InvalidArgument",method="NodeStageVolume"} 1`,
		`standalone_cinder_node_stale_disks_removed_total 0`, `standalone_cinder_node_staged_volumes 0`, `standalone_cinder_node_volumes_lacking_paths 0`,
	} {
		if !strings.Contains(metrics, line+"\n") {
			t.Errorf("the metrics have no %s:\n%s", line, metrics)
		}
	}

	if err := os.Remove(registration); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the plugin does not register again", exists(registration))
	registered()

	// If another process puts its socket in the same place, it stays.
	if err := errors.Join(os.Remove(socket), os.WriteFile(socket, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if code, body := get("/healthz"); code != http.StatusServiceUnavailable {
		t.Errorf("health of a plugin that the kubelet does not reach: %d, %s", code, body)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(registration); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
	if !exists(socket)() {
		t.Error("another's socket was removed")
	}
}

func TestOptionsThatCannotBe(t *testing.T) {
	for want, arguments := range map[string][]string{
		"--node-name is required, or the variable NODE_NAME":                                       {"--namespace", "n"},
		"--namespace is required, or the variable POD_NAMESPACE":                                   {"--node-name", "n"},
		`--state-dir is "x"; give an absolute path`:                                                {"--node-name", "n", "--namespace", "n", "--state-dir", "x"},
		`--csi-endpoint is "tcp://:1"; give an absolute path`:                                      {"--node-name", "n", "--namespace", "n", "--csi-endpoint", "tcp://:1"},
		"--drain-timeout is -1s; give 0s or more":                                                  {"--node-name", "n", "--report=false", "--drain-timeout", "-1s"},
		"--tool-directories is \"x\"; give an absolute path":                                       {"--node-name", "n", "--namespace", "n", "--tool-directories", "/opt/x:x"},
		"--iscsi-replacement-timeout is 1.5s; give whole seconds, or 0s for what iscsid.conf says": {"--node-name", "n", "--namespace", "n", "--iscsi-replacement-timeout", "1.5s"},
	} {
		var o Options
		flags := pflag.NewFlagSet("node", pflag.ContinueOnError)
		o.AddFlags(flags)
		if err := flags.Parse(arguments); err != nil {
			t.Fatal(err)
		}
		if err := o.Complete(func(string) string { return "" }); err == nil || err.Error() != want {
			t.Errorf("%q: %v, want %s", arguments, err, want)
		}
	}
	o := Options{NodeName: "n", Namespace: "n", Endpoint: "unix:///run/csi.sock", KubeletDir: "/k", HostRoot: "/", StateDir: "/s"}
	if err := o.Complete(nil); err != nil || o.Endpoint != "/run/csi.sock" || o.RegistrationDir != "/k/plugins_registry" {
		t.Errorf("%+v, %v", o, err)
	}
}

// TestKubeletsMountsAreFoundBehindALink: the kernel's table has paths without links.
func TestKubeletsMountsAreFoundBehindALink(t *testing.T) {
	dir := t.TempDir()
	const table = "36 35 8:16 / /data/kubelet/plugins/kubernetes.io/iscsi/iface-default/10.0.0.1:3260-iqn.x:v-lun-1 rw - ext4 /dev/sdb rw\n" +
		"37 35 0:5 /sdc /data/kubelet/plugins/kubernetes.io/fc/volumeDevices/5006-lun-2/uid rw - devtmpfs udev rw\n" +
		"38 35 8:48 / /data/kubelet/plugins/kubernetes.io/csi/standalone-cinder.openstack.org/0/globalmount rw - ext4 /dev/sdd rw\n"
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, "proc/1"), 0o700), os.MkdirAll(filepath.Join(dir, "var/lib"), 0o700), os.MkdirAll(filepath.Join(dir, "data/kubelet"), 0o700),
		os.Symlink("/data/kubelet", filepath.Join(dir, "var/lib/kubelet")), os.WriteFile(filepath.Join(dir, "proc/1/mountinfo"), []byte(table), 0o600)); err != nil {
		t.Fatal(err)
	}
	root := host.NewLocal(dir)
	found, err := kubeletMounts(host.New(root.Root(), slog.New(slog.DiscardHandler)), root.Resolve("/var/lib/kubelet"))
	if want := []string{"iscsi/10.0.0.1:3260-iqn.x:v-lun-1", "fc/5006-lun-2"}; err != nil || !slices.Equal(found, want) {
		t.Errorf("found %q (%v), want %q", found, err, want)
	}
}
