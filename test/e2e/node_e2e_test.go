//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/test/e2e/rig"
	"github.com/standalone-cinder/standalone-cinder/test/e2e/vm"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// csiNode is a virtual machine with the node plugin.
type csiNode struct {
	*vm.Machine
	env       rig.Env
	name      string
	initiator string
	// cuts take a portal from the node.
	cuts map[string]func()
	// cutOff takes the API server from a node with a kubelet.
	cutOff func()
	csi.NodeClient
}

const (
	pluginPath   = "/opt/standalone-cinder"
	pluginSocket = "/var/lib/kubelet/plugins/standalone-cinder.openstack.org/csi.sock"
	stateDir     = "/var/lib/standalone-cinder"
)

// startNode boots a node that reaches the storage, and starts the plugin on it.
func startNode(ctx context.Context, t *testing.T, env rig.Env, name string) *csiNode {
	t.Helper()
	n := bootNode(ctx, t, name)
	n.env = env
	for _, portal := range env.Portals {
		var err error
		n.cuts[portal], err = n.Reach(portal)
		must(t, err)
	}
	n.startPlugin(ctx, t)
	return n
}

// bootNode boots a node that has the plugin, which is not started.
func bootNode(ctx context.Context, t *testing.T, name string) *csiNode {
	t.Helper()
	program := filepath.Join(t.TempDir(), "standalone-cinder")
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", program, "../..")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	image, err := vm.Build(ctx, vm.DefaultDirectory())
	must(t, err)
	n := &csiNode{name: name, initiator: "iqn.2026-01.example:" + name, cuts: map[string]func(){}}
	n.Machine, err = vm.Start(ctx, vm.Options{Image: image, Name: name, Initiator: n.initiator})
	must(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			log, err := n.Run(context.Background(), "cat /tmp/plugin.log; dmesg | tail -40; iscsiadm -m session -P 3; lsblk; findmnt -n -l | tail -5")
			t.Logf("%v\n%s", err, log)
		}
		n.Kill()
	})
	must(t, n.Install(ctx, program, pluginPath))
	connection, err := grpc.NewClient("passthrough:///node", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return n.Dial(ctx, pluginSocket) }))
	must(t, err)
	t.Cleanup(func() { _ = connection.Close() })
	n.NodeClient = csi.NewNodeClient(connection)
	return n
}

func (n *csiNode) startPlugin(ctx context.Context, t *testing.T) {
	t.Helper()
	_, err := n.Run(ctx, fmt.Sprintf("mkdir -p /var/lib/kubelet/plugins_registry; setsid %s node --node-name %s --report=false --log-format text -v 4 >> /tmp/plugin.log 2>&1 < /dev/null & for i in $(seq 100); do test -S %s && exit 0; sleep 0.2; done; exit 1", pluginPath, n.name, pluginSocket))
	must(t, err)
}

// run runs a command on the node that must succeed.
func (n *csiNode) run(ctx context.Context, t *testing.T, line string) string {
	t.Helper()
	output, err := n.Run(ctx, line)
	must(t, err)
	return output
}

// csiVolume is a volume that is attached to a node.
type csiVolume struct {
	backend, id, attachment string
	context                 map[string]string
	secrets                 map[string]string
	// attributes are those of its PersistentVolume.
	attributes map[string]string
}

// madeAttachment is Cinder's answer to the request for an attachment.
type madeAttachment struct {
	Attachment struct {
		ID         string         `json:"id"`
		Connection map[string]any `json:"connection_info"`
	} `json:"attachment"`
}

// attachment makes an attachment of a volume to a node.
func (n *csiNode) attachment(ctx context.Context, t *testing.T, id string, multipath bool) (made madeAttachment) {
	t.Helper()
	body := map[string]any{"attachment": map[string]any{"volume_uuid": id, "connector": map[string]any{
		"host": n.name, "initiator": n.initiator, "ip": "127.0.0.1", "multipath": multipath, "platform": "x86_64", "os_type": "linux",
	}}}
	must(t, send(ctx, n.env, http.MethodPost, n.env.Noauth.Project, "/attachments", body, &made))
	t.Cleanup(func() {
		// Other tests look for what is left at Cinder. Mostly it is gone by now.
		_ = send(context.Background(), n.env, http.MethodDelete, n.env.Noauth.Project, "/attachments/"+made.Attachment.ID, nil, nil)
	})
	must(t, send(ctx, n.env, http.MethodPost, n.env.Noauth.Project, "/attachments/"+made.Attachment.ID+"/action", map[string]any{"os-complete": map[string]any{}}, nil))
	return made
}

// attach attaches a volume to a node as the CSI controller does.
func (n *csiNode) attach(ctx context.Context, t *testing.T, id string, multipath bool) csiVolume {
	t.Helper()
	made := n.attachment(ctx, t, id, multipath)
	text := func(key string) string { value, _ := made.Attachment.Connection[key].(string); return value }
	list := func(one, many string) []any {
		if values, ok := made.Attachment.Connection[many].([]any); ok {
			return values
		}
		return []any{made.Attachment.Connection[one]}
	}
	c := wire.Connection{Protocol: text("driver_volume_type"), Credentials: true, Bytes: 1 << 30}
	portals, targets, luns := list("target_portal", "target_portals"), list("target_iqn", "target_iqns"), list("target_lun", "target_luns")
	for i := range portals {
		c.Paths = append(c.Paths, wire.Path{Portal: portals[i].(string), Target: targets[i].(string), LUN: int(luns[i].(float64))})
	}
	context, err := c.PublishContext()
	must(t, err)
	key, entry, err := wire.SecretEntry(n.name, wire.Credentials{User: text("auth_username"), Password: text("auth_password")})
	must(t, err)
	return csiVolume{backend: "lab", id: id, attachment: made.Attachment.ID, context: context, secrets: map[string]string{key: string(entry)}}
}

func (n *csiNode) detach(ctx context.Context, t *testing.T, v csiVolume) {
	t.Helper()
	var left any
	must(t, send(ctx, n.env, http.MethodDelete, n.env.Noauth.Project, "/attachments/"+v.attachment, nil, &left))
}

// extend makes Cinder extend a volume, and waits for it.
func (n *csiNode) extend(ctx context.Context, t *testing.T, id string, gibibytes int) {
	t.Helper()
	must(t, send(ctx, n.env, http.MethodPost, n.env.Noauth.Project, "/volumes/"+id+"/action", map[string]any{"os-extend": map[string]any{"new_size": gibibytes}}, nil))
	must(t, harness.Eventually(ctx, func() (string, error) {
		var now struct {
			Volume struct {
				Size   int
				Status string
			}
		}
		err := ask(ctx, n.env, "/volumes/"+id, &now)
		if now.Volume.Size == gibibytes && now.Volume.Status == "in-use" {
			return "", err
		}
		return fmt.Sprintf("volume %s is %s with %d GiB", id, now.Volume.Status, now.Volume.Size), err
	}))
}

func handle(v csiVolume) string { return wire.Handle{Backend: v.backend, ID: v.id}.String() }

func mountOf(filesystem string) *csi.VolumeCapability {
	mode := &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER}
	if filesystem == "" {
		return &csi.VolumeCapability{AccessMode: mode, AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}}
	}
	return &csi.VolumeCapability{AccessMode: mode, AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: filesystem}}}
}

func stagingPath(v csiVolume) string {
	return "/var/lib/kubelet/plugins/kubernetes.io/csi/" + v.id + "/globalmount"
}

func podPath(v csiVolume) string { return "/var/lib/kubelet/pods/1/volumes/" + v.id }

func (n *csiNode) stage(ctx context.Context, t *testing.T, v csiVolume, filesystem string) error {
	t.Helper()
	n.run(ctx, t, "mkdir -p "+stagingPath(v)+" "+filepath.Dir(podPath(v)))
	_, err := n.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{
		VolumeId: handle(v), PublishContext: v.context, StagingTargetPath: stagingPath(v), VolumeCapability: mountOf(filesystem), Secrets: v.secrets,
		VolumeContext: v.attributes,
	})
	return err
}

func (n *csiNode) publish(ctx context.Context, v csiVolume, filesystem string) error {
	_, err := n.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
		VolumeId: handle(v), PublishContext: v.context, StagingTargetPath: stagingPath(v), TargetPath: podPath(v), VolumeCapability: mountOf(filesystem),
	})
	return err
}

func (n *csiNode) unpublish(ctx context.Context, v csiVolume) error {
	_, err := n.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: handle(v), TargetPath: podPath(v)})
	return err
}

func (n *csiNode) unstage(ctx context.Context, v csiVolume) error {
	_, err := n.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: handle(v), StagingTargetPath: stagingPath(v)})
	return err
}

// checkNothingLeft makes sure that no session, disk, map, mount, record or credential
// is left on the node. What a killed plugin was writing stays until the next boot.
func (n *csiNode) checkNothingLeft(ctx context.Context, t *testing.T) {
	t.Helper()
	left := n.run(ctx, t, `ls -d /sys/class/iscsi_session/* /sys/class/nvme/* 2>/dev/null
lsblk -n -o NAME,TYPE | grep -v ^vd
find /etc/iscsi/nodes -type f 2>/dev/null
grep -E '/var/lib/kubelet/(plugins/kubernetes.io|pods)' /proc/mounts | grep -v kube-api-access
find `+stateDir+` -type f -not -name '*.lock' -not -name '.new-*' 2>/dev/null
true`)
	if left != "" {
		t.Errorf("left on the node:\n%s", left)
	}
}

// kills returns how often a plugin is killed, each time later.
func kills(all int) int {
	if testing.Short() {
		// Even, since staging and unstaging take turns and nothing may be left.
		return all / 5 * 2
	}
	return all
}

func TestNodeUsesVolumes(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	env, err := rig.Load(rig.EnvFile())
	must(t, err)
	n := startNode(ctx, t, env, "node-1")

	info, err := n.NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
	must(t, err)
	if told, err := wire.ParseNodeID(info.NodeId); err != nil || told.Name != "node-1" || told.InitiatorName != n.initiator {
		t.Errorf("the node says that it is %+v, %v", told, err)
	}

	for _, filesystem := range []string{"ext4", "xfs", ""} {
		t.Run("a volume of "+filesystem, func(t *testing.T) {
			id, err := createVolume(ctx, env, "node-"+filesystem, env.Types.ISCSI)
			must(t, err)
			v := n.attach(ctx, t, id, false)
			file := podPath(v)
			if filesystem != "" {
				file += "/data"
			}
			for round := range 2 {
				must(t, n.stage(ctx, t, v, filesystem))
				must(t, n.stage(ctx, t, v, filesystem)) // kubelet repeats calls
				must(t, n.publish(ctx, v, filesystem))
				must(t, n.publish(ctx, v, filesystem))
				if round == 0 {
					n.run(ctx, t, "printf 'a node wrote this' | dd of="+file+" conv=notrunc,fsync status=none; sync")
				}
				if content := n.run(ctx, t, "head -c 17 "+file); content != "a node wrote this" {
					t.Errorf("round %d: the volume has %q", round, content)
				}
				must(t, n.unpublish(ctx, v))
				must(t, n.unpublish(ctx, v))
				must(t, n.unstage(ctx, v))
				must(t, n.unstage(ctx, v))
				n.checkNothingLeft(ctx, t)
				// Another attachment is another export.
				n.detach(ctx, t, v)
				v = n.attach(ctx, t, id, false)
			}
			n.detach(ctx, t, v)
		})
	}

	t.Run("a wrong password", func(t *testing.T) {
		id, err := createVolume(ctx, env, "node-password", env.Types.ISCSI)
		must(t, err)
		v := n.attach(ctx, t, id, false)
		right := v.secrets
		key, entry, err := wire.SecretEntry(n.name, wire.Credentials{User: "somebody", Password: "quitewrong12"})
		must(t, err)
		v.secrets = map[string]string{key: string(entry)}
		err = n.stage(ctx, t, v, "ext4")
		if status.Code(err) != codes.Unauthenticated && status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "refuses the login") || strings.Contains(err.Error(), "quitewrong12") {
			t.Errorf("the error is %v", err)
		}
		n.checkNothingLeft(ctx, t)
		if log := n.run(ctx, t, "cat /tmp/plugin.log"); strings.Contains(log, "quitewrong12") {
			t.Error("the log has the password")
		}
		v.secrets = right
		must(t, n.stage(ctx, t, v, "ext4"))
		must(t, n.unstage(ctx, v))
		n.checkNothingLeft(ctx, t)
		n.detach(ctx, t, v)
	})

	t.Run("another volume's content", func(t *testing.T) {
		id, err := createVolume(ctx, env, "node-foreign", env.Types.ISCSI)
		must(t, err)
		v := n.attach(ctx, t, id, false)
		must(t, n.stage(ctx, t, v, "ext4"))
		must(t, n.unstage(ctx, v))
		other := v
		other.id = "11111111-2222-4333-8444-555555555555"
		err = n.stage(ctx, t, other, "ext4")
		if err == nil || !strings.Contains(err.Error(), id) {
			t.Errorf("a volume with the filesystem of another is staged: %v", err)
		}
		n.checkNothingLeft(ctx, t)
		n.detach(ctx, t, v)
	})

	t.Run("two portals, one of which is cut", func(t *testing.T) {
		id, err := createVolume(ctx, env, "node-multipath", env.Types.ISCSIMultipath)
		must(t, err)
		v := n.attach(ctx, t, id, true)
		must(t, n.stage(ctx, t, v, "ext4"))
		if maps := n.run(ctx, t, "multipath -ll | grep -c 'active ready'"); strings.TrimSpace(maps) != "2" {
			t.Errorf("%s paths", maps)
		}
		must(t, n.publish(ctx, v, "ext4"))
		written := make(chan error, 1)
		go func() {
			_, err := n.Run(ctx, "for i in $(seq 40); do head -c 262144 /dev/zero | tr '\\0' x | dd of="+podPath(v)+"/$i conv=fsync status=none || exit 1; done")
			written <- err
		}()
		n.cuts[env.Portals[0]]()
		must(t, <-written)
		_, err = n.Reach(env.Portals[0])
		must(t, err)
		must(t, harness.Eventually(ctx, func() (string, error) {
			maps, err := n.Run(ctx, "multipath -ll | grep -c 'active ready' || true")
			if strings.TrimSpace(maps) == "2" {
				return "", err
			}
			return "the path did not come back", err
		}))
		must(t, n.unpublish(ctx, v))
		must(t, n.unstage(ctx, v))
		must(t, n.stage(ctx, t, v, "ext4"))
		if sizes := n.run(ctx, t, "cat "+stagingPath(v)+"/[0-9]* | tr -d x | wc -c; cat "+stagingPath(v)+"/[0-9]* | wc -c"); sizes != "0\n10485760\n" {
			t.Errorf("what was written during the cut: %q", sizes)
		}
		must(t, n.unstage(ctx, v))
		n.checkNothingLeft(ctx, t)
		n.detach(ctx, t, v)
	})

	for _, filesystem := range []string{"ext4", "xfs", ""} {
		t.Run("a volume of "+filesystem+" grows while it is used", func(t *testing.T) {
			id, err := createVolume(ctx, env, "node-grows", env.Types.ISCSI)
			must(t, err)
			v := n.attach(ctx, t, id, false)
			must(t, n.stage(ctx, t, v, filesystem))
			must(t, n.publish(ctx, v, filesystem))
			n.extend(ctx, t, id, 2)
			grown, err := n.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{
				VolumeId: handle(v), VolumePath: podPath(v), StagingTargetPath: stagingPath(v),
				CapacityRange: &csi.CapacityRange{RequiredBytes: 2 << 30}, VolumeCapability: mountOf(filesystem),
			})
			must(t, err)
			size := "blockdev --getsize64 " + podPath(v)
			if filesystem != "" {
				size = "df -B1 --output=size " + podPath(v) + " | tail -1"
			}
			var bytes int64
			if _, err := fmt.Sscan(n.run(ctx, t, size), &bytes); err != nil || bytes < 19<<30/10 || grown.CapacityBytes != 0 && grown.CapacityBytes != 2<<30 {
				t.Errorf("it has %d bytes, says %d, %v", bytes, grown.CapacityBytes, err)
			}
			must(t, n.unpublish(ctx, v))
			must(t, n.unstage(ctx, v))
			n.checkNothingLeft(ctx, t)
			n.detach(ctx, t, v)
		})
	}

	t.Run("a plugin that is killed", func(t *testing.T) {
		id, err := createVolume(ctx, env, "node-killed", env.Types.ISCSI)
		must(t, err)
		v := n.attach(ctx, t, id, false)
		must(t, n.stage(ctx, t, v, "ext4"))
		must(t, n.unstage(ctx, v))
		n.survivesKills(ctx, t, v, 350*time.Millisecond)
		n.detach(ctx, t, v)
	})
}

// survivesKills kills the plugin while it stages and unstages a volume, each time later.
func (n *csiNode) survivesKills(ctx context.Context, t *testing.T, v csiVolume, later time.Duration) {
	t.Helper()
	for i := range kills(10) {
		what := map[bool]func() error{true: func() error { return n.stage(ctx, t, v, "ext4") }, false: func() error { return n.unstage(ctx, v) }}[i%2 == 0]
		ended := make(chan error, 1)
		go func() { ended <- what() }()
		time.Sleep(100*time.Millisecond + time.Duration(i)*later)
		n.run(ctx, t, "pkill -9 -x standalone-cind; true")
		if err := <-ended; err != nil && !isForLater(err) {
			t.Errorf("kill %d: %v", i, err)
		}
		n.startPlugin(ctx, t)
		must(t, retry(ctx, what))
	}
	n.checkNothingLeft(ctx, t)
}

// isForLater reports whether kubelet would repeat a call: the plugin is not there, or
// something of a killed one, such as a tool that it ran, still has the volume.
func isForLater(err error) bool {
	return status.Code(err) == codes.Unavailable || status.Code(err) == codes.Aborted
}

// retry repeats a call as kubelet does.
func retry(ctx context.Context, call func() error) error {
	for {
		err := call()
		if !isForLater(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-time.After(time.Second):
		}
	}
}
