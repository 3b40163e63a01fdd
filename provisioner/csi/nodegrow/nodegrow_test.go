package nodegrow

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/host"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/test/csinode"
)

const (
	gibibyte  = 1 << 30
	iqn       = "iqn.2026-01.org.example:vol-1"
	onePortal = "10.0.0.1:3260"
	twoPortal = "10.0.0.2:3260"
	ownPort   = "10000000c9a1b2c1"
	twoPorts  = "500a098180feeb01 500a098190feeb01"
	initiator = "iqn.2026-01.org.example:shared"
	podUID    = "11111111-2222-3333-4444-555555555555"
	podMount  = "/var/lib/kubelet/pods/" + podUID + "/volumes/kubernetes.io~iscsi/pvc-1"
)

// world is a node that has a volume mounted as the kubelet does it, and the volume has grown
// at the storage.
type world struct {
	node    *csinode.Node
	volume  *csinode.Volume
	device  string
	options Options
}

func newWorld(t *testing.T) *world {
	w := &world{node: csinode.New(), volume: &csinode.Volume{Bytes: gibibyte, Filesystem: host.Ext4, UUID: "6f3d7f7c-8b0f-4b43-8d4e-3f3b9d3f6a11", FilesystemBytes: gibibyte}}
	w.options = Options{
		KubeletDir: "/var/lib/kubelet", Root: w.node.Root(), Logger: slog.New(slog.DiscardHandler), ResultFile: filepath.Join(t.TempDir(), "result"),
		Growth: wire.Growth{PersistentVolume: "pvc-1", Disks: []string{wire.DiskAt(iqn, 1)}, Pods: []string{"p2", podUID}, Bytes: 2 * gibibyte},
	}
	return w
}

// iscsi brings the volume to the node by one session for each portal.
func (w *world) iscsi(t *testing.T, portals ...string) {
	t.Helper()
	w.node.Targets[iqn] = &csinode.Target{Portals: portals, LUNs: map[int]*csinode.Volume{1: w.volume}}
	var disks []string
	for _, portal := range portals {
		_, session := w.node.LogIn(iqn, portal, initiator)
		disks = append(disks, w.node.Find(session, 1))
	}
	w.mount(t, podMount, disks)
}

// fc brings the volume to the node over two ports of the storage.
func (w *world) fc(t *testing.T) {
	t.Helper()
	w.node.FCHosts = []*csinode.FCHost{{Number: 5, Name: "0x" + ownPort, State: "Online"}}
	w.options.Disks = nil
	for _, port := range strings.Fields(twoPorts) {
		w.node.FCTargets["0x"+port] = &csinode.FCTarget{LUNs: map[int]*csinode.Volume{3: w.volume}, Zones: []string{"0x" + ownPort}}
		w.options.Disks = append(w.options.Disks, wire.DiskAt("0x"+strings.ToUpper(port), 3))
	}
	w.node.Fabric()
	w.mount(t, strings.Replace(podMount, "~iscsi", "~fc", 1), w.node.Devices())
}

// mount mounts the disk, or the map of several, and makes the volume grow.
func (w *world) mount(t *testing.T, at string, disks []string) {
	t.Helper()
	w.device = disks[0]
	if len(disks) > 1 {
		w.node.Multipathd = true
		for _, disk := range disks {
			if _, err := w.node.Run(t.Context(), host.Command{Tool: "multipathd", Arguments: []string{"add", "path", disk}}); err != nil {
				t.Fatal(err)
			}
		}
		holders, err := w.node.ReadDir("/sys/block/" + disks[0] + "/holders")
		if err != nil || len(holders) != 1 {
			t.Fatalf("%q, %v", holders, err)
		}
		w.device = holders[0]
	}
	for _, path := range []string{"/var/lib/kubelet/plugins/kubernetes.io/global", at} {
		w.node.MountByHand(w.device, path, w.volume.Filesystem)
	}
	w.volume.Bytes = 2 * gibibyte
}

// told are the programs that a run called on the node.
func (w *world) told() (tools []string) {
	for _, call := range w.node.Calls() {
		if tool, _, _ := strings.Cut(call, " "); !strings.HasPrefix(call, "multipathd add") {
			tools = append(tools, tool)
		}
	}
	return tools
}

func TestFilesystemGrows(t *testing.T) {
	for name, test := range map[string]struct {
		arrange func(*testing.T, *world)
		paths   int
		tools   string
		kind    string
	}{
		"ext4 by iSCSI":          {func(t *testing.T, w *world) { w.iscsi(t, onePortal) }, 1, "resize2fs", "ext4"},
		"ext3":                   {func(t *testing.T, w *world) { w.volume.Filesystem = "ext3"; w.iscsi(t, onePortal) }, 1, "resize2fs", "ext3"},
		"xfs":                    {func(t *testing.T, w *world) { w.volume.Filesystem = host.XFS; w.iscsi(t, onePortal) }, 1, "xfs_growfs", "xfs"},
		"on two paths":           {func(t *testing.T, w *world) { w.iscsi(t, onePortal, twoPortal) }, 2, "multipathd resize2fs", "ext4"},
		"xfs on two paths":       {func(t *testing.T, w *world) { w.volume.Filesystem = host.XFS; w.iscsi(t, onePortal, twoPortal) }, 2, "multipathd xfs_growfs", "xfs"},
		"by Fibre Channel":       {func(t *testing.T, w *world) { w.fc(t) }, 2, "multipathd resize2fs", "ext4"},
		"larger than it must be": {func(t *testing.T, w *world) { w.iscsi(t, onePortal); w.volume.Bytes = 3 * gibibyte }, 1, "resize2fs", "ext4"},
		"also of a read-only pod": {func(t *testing.T, w *world) {
			w.iscsi(t, onePortal)
			w.again("/var/lib/kubelet/pods/p2/volumes/kubernetes.io~iscsi/pvc-1")
		}, 1, "resize2fs", "ext4"},
		"a target in other letters": {func(t *testing.T, w *world) {
			w.options.Disks = []string{wire.DiskAt(strings.ToUpper(iqn), 1)}
			w.iscsi(t, onePortal)
		}, 1, "resize2fs", "ext4"},
		"a disk with a WWID": {func(t *testing.T, w *world) {
			w.volume.Identity, w.options.Disks = "600a098038303053", []string{"3600a098038303053"}
			w.iscsi(t, onePortal)
		}, 1, "resize2fs", "ext4"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			test.arrange(t, w)
			for range 2 {
				grown, err := Run(t.Context(), w.options)
				if err != nil {
					t.Fatalf("%v\n%s", err, strings.Join(w.node.Calls(), "\n"))
				}
				if grown.Device != w.device || len(grown.Paths) != test.paths || grown.Filesystem != test.kind || grown.UUID != w.volume.UUID || grown.Bytes != w.volume.Bytes || w.volume.FilesystemBytes != w.volume.Bytes {
					t.Errorf("%+v, and the filesystem has %d bytes", grown, w.volume.FilesystemBytes)
				}
				content, err := os.ReadFile(w.options.ResultFile)
				var written wire.Grown
				if err != nil || json.Unmarshal(content, &written) != nil || fmt.Sprint(written) != fmt.Sprint(grown) {
					t.Errorf("the result is %s (%v)", content, err)
				}
			}
			// The second run found everything done.
			if tools := strings.Join(w.told(), " "); tools != test.tools {
				t.Errorf("the programs are %s, want %s", tools, test.tools)
			}
			if harm := w.node.Harm(); len(harm) > 0 {
				t.Errorf("harm: %q", harm)
			}
		})
	}
}

// again mounts the device once more, read-only.
func (w *world) again(at string) {
	w.node.MountByHand(w.device, at, w.volume.Filesystem)
	w.node.MakeReadOnly(at)
}

func TestNothingGrowsUnlessTheDeviceIsProven(t *testing.T) {
	for name, test := range map[string]struct {
		arrange func(*testing.T, *world)
		want    string
	}{
		"not mounted": {func(t *testing.T, w *world) { w.iscsi(t, onePortal); w.node.UnmountByHand(podMount) },
			"the kubelet has not mounted it for a pod below /var/lib/kubelet/pods/; is --kubelet-dir the kubelet's --root-dir?"},
		"another PersistentVolume": {func(t *testing.T, w *world) { w.iscsi(t, onePortal); w.options.PersistentVolume = "pvc-2" }, "has not mounted it"},
		"a volume of another plugin": {func(t *testing.T, w *world) {
			w.iscsi(t, onePortal)
			w.node.UnmountByHand(podMount)
			w.node.MountByHand(w.device, strings.Replace(podMount, "~iscsi", "~csi", 1), host.Ext4)
		}, "has not mounted it"},
		"another target": {func(t *testing.T, w *world) {
			w.options.Disks = []string{"iqn.2026-01.org.example:vol-2/1"}
			w.iscsi(t, onePortal)
		},
			"which is mounted at " + podMount + ": WrongDisk: it is 3"},
		"another LUN":       {func(t *testing.T, w *world) { w.options.Disks = []string{wire.DiskAt(iqn, 11)}; w.iscsi(t, onePortal) }, "nothing was changed"},
		"another port":      {func(t *testing.T, w *world) { w.fc(t); w.options.Disks = []string{"500a098280feeb01/3"} }, "nothing was changed"},
		"one path of a map": {func(t *testing.T, w *world) { w.fc(t); w.options.Disks = w.options.Disks[:1] }, "nothing was changed"},
		"a map with another disk": {func(t *testing.T, w *world) {
			w.iscsi(t, onePortal, twoPortal)
			w.node.Targets[iqn].At = map[string]map[int]*csinode.Volume{twoPortal: {1: &csinode.Volume{Bytes: 2 * gibibyte, Identity: "600000000000000f"}}}
		}, "a path of the same device"},
		"a map with a dead path": {func(t *testing.T, w *world) {
			w.iscsi(t, onePortal, twoPortal)
			w.node.Targets[iqn].Gone = true
		}, "repair it, or take it out of the map (multipathd del path sd"},
		"two devices": {func(t *testing.T, w *world) {
			w.iscsi(t, onePortal)
			w.node.MountByHand("sdz", "/var/lib/kubelet/pods/p2/volumes/kubernetes.io~iscsi/pvc-1", host.Ext4)
		}, "is mounted at"},
		"a disk of the node itself": {func(_ *testing.T, w *world) { w.node.MountByHand("vda1", podMount, host.Ext4) }, ""},
		"read-only":                 {func(t *testing.T, w *world) { w.iscsi(t, onePortal); w.node.MakeReadOnly(podMount) }, "it is mounted read-only at " + podMount},
		"another filesystem":        {func(t *testing.T, w *world) { w.volume.Filesystem = "btrfs"; w.iscsi(t, onePortal) }, "WrongFilesystem: its filesystem is btrfs"},
		"too small at the storage":  {func(t *testing.T, w *world) { w.iscsi(t, onePortal); w.volume.Bytes = gibibyte }, "at least 2147483648 are required"},
		"a program is missing": {func(t *testing.T, w *world) { w.iscsi(t, onePortal); w.node.Missing["resize2fs"] = true },
			"MissingTool: resize2fs is not installed on the node"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				test.arrange(t, w)
				_, err := Run(t.Context(), w.options)
				if err == nil || !strings.HasPrefix(err.Error(), "PersistentVolume pvc-") || !strings.Contains(err.Error(), test.want) {
					t.Errorf("got %v, want %q", err, test.want)
				}
				if w.volume.FilesystemBytes != gibibyte || len(w.told()) > 0 || len(w.node.Harm()) > 0 {
					t.Errorf("the filesystem has %d bytes; called %q, harm %q", w.volume.FilesystemBytes, w.told(), w.node.Harm())
				}
				content, readErr := os.ReadFile(w.options.ResultFile)
				var written wire.Grown
				if readErr != nil || json.Unmarshal(content, &written) != nil || err == nil || written.Error != err.Error() || written.Device != "" {
					t.Errorf("the result is %s (%v)", content, readErr)
				}
			})
		})
	}
}

func TestOptionsAreChecked(t *testing.T) {
	err := (&Options{HostRoot: "host", KubeletDir: "/var/lib/kubelet", ToolDirectories: "/opt/bin:bin", Growth: wire.Growth{PersistentVolume: "a/b"}}).Complete()
	var problems []string
	for line := range strings.Lines(fmt.Sprint(err)) {
		problems = append(problems, line)
	}
	if len(problems) != 6 {
		t.Errorf("got %q", problems)
	}
	arguments := wire.Growth{PersistentVolume: "pvc-1", Disks: []string{"b/1", "a/1"}, Pods: []string{"u2", "u1"}, Bytes: 1}.Arguments()
	if want := []string{"--persistent-volume=pvc-1", "--bytes=1", "--disk=a/1", "--disk=b/1", "--pod=u1", "--pod=u2"}; !slices.Equal(arguments, want) {
		t.Errorf("the arguments are %q", arguments)
	}
}

// TestATenantsServerIsNotTheVolume: a pod of another tenant has an inline iSCSI volume (which
// Pod Security baseline allows) whose name is the PersistentVolume's, at a server of the
// tenant that gives its target the same name.
func TestATenantsServerIsNotTheVolume(t *testing.T) {
	w := newWorld(t)
	const tenants = "10.6.6.6:3260"
	rogue := &csinode.Volume{Bytes: gibibyte, Filesystem: host.Ext4, FilesystemBytes: gibibyte, Identity: "600000000000066f"}
	w.node.Targets[iqn] = &csinode.Target{
		Portals: []string{onePortal, tenants}, LUNs: map[int]*csinode.Volume{1: w.volume},
		At: map[string]map[int]*csinode.Volume{tenants: {1: rogue}},
	}
	_, session := w.node.LogIn(iqn, tenants, initiator)
	w.node.MountByHand(w.node.Find(session, 1), "/var/lib/kubelet/pods/tenants-pod/volumes/kubernetes.io~iscsi/pvc-1", host.Ext4)
	rogue.Bytes = 2 * gibibyte
	grown, err := Run(t.Context(), w.options)
	if err == nil {
		t.Errorf("it says %+v, and the volume's filesystem has %d bytes", grown, w.volume.FilesystemBytes)
	}
}

// TestATenantsMountDoesNotStopGrowth: the same with a volume of its own, beside the true mount.
func TestATenantsMountDoesNotStopGrowth(t *testing.T) {
	w := newWorld(t)
	w.iscsi(t, onePortal)
	const other = "iqn.2026-01.org.example:tenant"
	w.node.Targets[other] = &csinode.Target{Portals: []string{"10.6.6.6:3260"}, LUNs: map[int]*csinode.Volume{1: {Bytes: gibibyte, Filesystem: host.Ext4, UUID: "6f3d7f7c-8b0f-4b43-8d4e-3f3b9d3f6a11", FilesystemBytes: gibibyte}}}
	_, session := w.node.LogIn(other, "10.6.6.6:3260", initiator)
	w.node.MountByHand(w.node.Find(session, 1), "/var/lib/kubelet/pods/tenants-pod/volumes/kubernetes.io~iscsi/pvc-1", host.Ext4)
	if grown, err := Run(t.Context(), w.options); err != nil || w.volume.FilesystemBytes != 2*gibibyte {
		t.Errorf("%+v, %v", grown, err)
	}
}

// TestTheMountIsGoneBeforeTheGrowth: the kubelet unmounts the volume while its map grows.
func TestTheMountIsGoneBeforeTheGrowth(t *testing.T) {
	w := newWorld(t)
	w.iscsi(t, onePortal, twoPortal)
	w.node.Before = func(command string) error {
		if strings.HasPrefix(command, "multipathd resize") {
			w.node.Before = nil
			w.node.UnmountByHand(podMount)
		}
		return nil
	}
	grown, err := Run(t.Context(), w.options)
	if err == nil || !strings.Contains(err.Error(), "is no longer mounted at "+podMount) || w.volume.FilesystemBytes != gibibyte {
		t.Errorf("%+v, %v; the filesystem has %d bytes", grown, err, w.volume.FilesystemBytes)
	}
}
