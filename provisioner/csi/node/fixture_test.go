package node

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/test/csinode"
)

const (
	nodeName = "node-1"
	stateDir = "/var/lib/standalone-cinder"
	user     = "user-1"
	// passphrase opens encrypted volumes.
	passphrase = "6d7920766f6963652069732061206b6579"
	// newPassphrase is what they get.
	newPassphrase = "616e6f7468657220766f6963652069732061206b6579"
	password      = "swordfish-1"
	gibibyte      = 1 << 30
	firstID       = "86a25cac-e84c-4ef1-816f-76fcd478cebd"
	secondID      = "0b1c5a52-3a3f-4a64-9a59-2b7e2a6f1c11"
	foreignID     = "11111111-2222-3333-4444-555555555555"
	onePortal     = "10.0.0.1:3260"
	twoPortal     = "10.0.0.2:3260"
	oneNVMe       = "10.0.0.1:4420"
	twoNVMe       = "10.0.0.2:4420"
)

// fixture is a node, its storage and the service.
type fixture struct {
	t       *testing.T
	node    *csinode.Node
	service *Service
	paths   *Paths
	log     bytes.Buffer

	mu       sync.Mutex
	observed []string
}

func (f *fixture) Step(step Step, _ time.Duration) { f.observe("step " + string(step)) }
func (f *fixture) Refused(reason string)           { f.observe("refused " + reason) }
func (f *fixture) Unlimited(reason string)         { f.observe("unlimited " + reason) }
func (f *fixture) RemovedDisk()                    { f.observe("removed a disk") }

func (f *fixture) observe(what string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.observed = append(f.observed, what)
}

func newFixture(t *testing.T) *fixture {
	f := &fixture{t: t, node: csinode.New()}
	f.add("vol-1", &csinode.Volume{Bytes: gibibyte})
	f.start()
	return f
}

// start makes a service, as when the plugin starts.
func (f *fixture) start() {
	f.t.Helper()
	service, err := New(Options{Root: f.node.Root(), Files: f.node, RBD: f.node, StateDir: stateDir, NodeName: nodeName, Observer: f, Logger: slog.New(slog.NewTextHandler(&f.log, &slog.HandlerOptions{Level: slog.Level(-10)}))})
	if err != nil {
		f.t.Fatal(err)
	}
	service.limiter.patience = 0
	f.service, f.paths = service, NewPaths(service)
}

// add exports a volume as LUN 1 of a target of its own.
func (f *fixture) add(target string, v *csinode.Volume) {
	f.node.Targets[iqn(target)] = &csinode.Target{
		Portals: []string{onePortal, twoPortal}, LUNs: map[int]*csinode.Volume{1: v}, User: user, Password: password, Down: map[string]bool{},
	}
}

func (f *fixture) target() *csinode.Target { return f.node.Targets[iqn("vol-1")] }

// volume returns what the storage now has in the place of volume vol-1.
func (f *fixture) volume() *csinode.Volume {
	if s := f.node.Subsystems[subsystem("vol-1")]; s != nil {
		return s.Namespaces[1]
	}
	if f.node.Ceph != nil {
		return f.node.Ceph.Images[cephImage].Volume
	}
	if t := f.node.FCTargets["0x"+fcTargets[0]]; t != nil {
		return t.LUNs[flatLUN]
	}
	return f.target().LUNs[1]
}

// flatLUN is the kernel's number of an array's LUN 300 with flat addressing.
const flatLUN = 16384 + 300

// fcPorts are the node's ports, each in its own fabric; fcTargets are two ports of the
// storage in each fabric.
var (
	fcPorts   = []string{"10000000c9a1b2c1", "10000000c9a1b2c2"}
	fcTargets = []string{"500a098180feeb01", "500a098190feeb01", "500a098280feeb01", "500a098290feeb01"}
)

// byFC exports a volume that has a target over Fibre Channel instead. Like real
// drivers, the driver says that each port of the node reaches all of the storage's.
func byFC(u *use, n *csinode.Node) {
	v := n.Targets[iqn(u.target)].LUNs[1]
	delete(n.Targets, iqn(u.target))
	for i, port := range fcPorts {
		n.FCHosts = append(n.FCHosts, &csinode.FCHost{Number: 5 + i, Name: "0x" + port, NodeName: "0x2" + port[1:], State: "Online"})
	}
	for i, target := range fcTargets {
		n.FCTargets["0x"+target] = &csinode.FCTarget{LUNs: map[int]*csinode.Volume{}, Zones: []string{"0x" + fcPorts[i/2]}}
	}
	n.Fabric()
	export(n, v, flatLUN)
	u.protocol, u.open, u.lun = protocolFibreChannel, true, flatLUN
	u.paths = fcWays(flatLUN)
}

// export shows a volume on all ports of the storage.
func export(n *csinode.Node, v *csinode.Volume, lun int) {
	for _, t := range n.FCTargets {
		t.LUNs[lun] = v
	}
}

func fcWays(lun int) []wire.Path {
	var paths []wire.Path
	for _, target := range fcTargets {
		paths = append(paths, wire.Path{Portal: strings.Join(fcPorts, ","), Target: target, LUN: lun})
	}
	return paths
}

func subsystem(target string) string { return "nqn.2026-01.org.example:" + target }

// byNVMe exports a volume that has a target as namespace 1 of a subsystem instead.
func byNVMe(u *use, n *csinode.Node) {
	v := n.Targets[iqn(u.target)].LUNs[1]
	delete(n.Targets, iqn(u.target))
	n.PutFile("/etc/nvme/hostnqn", csinode.HostNQN+"\n")
	v.NamespaceUUID = u.id
	n.Subsystems[subsystem(u.target)] = &csinode.Subsystem{Portals: []string{oneNVMe, twoNVMe}, Namespaces: map[int]*csinode.Volume{1: v}, Down: map[string]bool{}}
	u.protocol, u.open, u.portals, u.identities = protocolNVMeOF, true, []string{oneNVMe}, []string{"uuid." + u.id}
}

const cephImage = "volumes/volume-" + firstID

// byRBD makes a volume that has a target an image of a Ceph cluster instead.
func byRBD(u *use, n *csinode.Node) {
	v := n.Targets[iqn(u.target)].LUNs[1]
	delete(n.Targets, iqn(u.target))
	n.Ceph = &csinode.Ceph{FSID: "5ce2e2e0-0000-4000-8000-000000000001", Monitors: []string{"10.0.0.1:6789", "[2001:db8::2]:6789"}, Images: map[string]*csinode.Image{
		cephImage: {Volume: v, ID: "1a2b3c", Features: csinode.ExclusiveLock | 0x39},
	}}
	u.protocol, u.lun = protocolRBD, 0
	u.paths = cephPaths(n)
}

func cephPaths(n *csinode.Node) []wire.Path {
	var paths []wire.Path
	for _, monitor := range n.Ceph.Monitors {
		paths = append(paths, wire.Path{Portal: monitor, Target: cephImage})
	}
	return paths
}

func iqn(target string) string { return "iqn.2026-01.org.example:" + target }

// use describes how a test uses a volume.
type use struct {
	id, target string
	lun        int
	portals    []string
	filesystem string
	block      bool
	mode       csi.VolumeCapability_AccessMode_Mode
	flags      []string
	copied     []string
	imported   bool
	// origin is that of wire.Volume.Encrypted.
	origin     string
	arrayReads bool
	open       bool
	protocol   string
	bytes      int64
	password   string
	attachment string
	identities []string
	taken      bool
	shared     bool
	// swapped is the volume that is there instead of that of the handle.
	swapped *wire.SwappedVolume
	// cephUser and cephKey replace those that the cluster admits.
	cephUser, cephKey string
	// encryption is nil unless the volume is encrypted, and passphrase opens it.
	encryption *wire.Encryption
	limits     *wire.Limits
	passphrase string
	// also and former are what the leader says of a volume that gets a new passphrase.
	also, former string
	// paths replace the portals.
	paths []wire.Path
}

func plain() use {
	return use{id: firstID, target: "vol-1", lun: 1, portals: []string{onePortal}, filesystem: "ext4", bytes: gibibyte, password: password,
		protocol: "iscsi", mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER}
}

func (u use) handle() string { return "gold/" + u.id }
func (u use) staging() string {
	return "/var/lib/kubelet/plugins/kubernetes.io/csi/" + u.id + "/globalmount"
}
func (u use) pod(n int) string {
	return fmt.Sprintf("/var/lib/kubelet/pods/pod-%d/volumes/%s/mount", n, u.id)
}

func (u use) capability() *csi.VolumeCapability {
	c := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: u.mode}}
	if u.block {
		c.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	} else {
		c.AccessType = &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: u.filesystem, MountFlags: u.flags}}
	}
	return c
}

func (u use) stageRequest(t *testing.T) *csi.NodeStageVolumeRequest {
	t.Helper()
	c := wire.Connection{Protocol: u.protocol, Identities: u.identities, Credentials: !u.open || u.passphrase != "", ReadOnly: u.arrayReads, Bytes: u.bytes, Attachment: u.attachment, Shared: u.shared, Taken: u.taken, Encryption: u.encryption, Limits: u.limits, Volume: u.swapped}
	name := iqn(u.target)
	if u.protocol == protocolNVMeOF {
		name = subsystem(u.target)
	}
	c.Paths = slices.Clone(u.paths)
	for _, portal := range u.portals {
		if u.paths != nil {
			break
		}
		c.Paths = append(c.Paths, wire.Path{Portal: portal, Target: name, LUN: u.lun})
	}
	context, err := c.PublishContext()
	if err != nil {
		t.Fatal(err)
	}
	request := &csi.NodeStageVolumeRequest{
		VolumeId: u.handle(), StagingTargetPath: u.staging(), VolumeCapability: u.capability(), PublishContext: context,
		VolumeContext: wire.Volume{FilesystemUUIDs: u.copied, NeverFormat: u.imported, Encrypted: u.origin}.Context(),
	}
	if !u.open || u.passphrase != "" {
		login := wire.Credentials{User: user, Password: u.password}
		if u.open {
			login = wire.Credentials{}
		} else if u.protocol == protocolRBD {
			login = wire.Credentials{User: cmp.Or(u.cephUser, csinode.CephUser), Password: cmp.Or(u.cephKey, csinode.CephKey)}
		}
		login.Passphrase, login.AlsoPassphrase, login.FormerPassphrase = u.passphrase, u.also, u.former
		key, value, err := wire.SecretEntry(nodeName, login)
		if err != nil {
			t.Fatal(err)
		}
		request.Secrets = map[string]string{key: string(value)}
	}
	return request
}

func (f *fixture) stage(u use) error {
	f.t.Helper()
	_, err := f.service.NodeStageVolume(context.Background(), u.stageRequest(f.t))
	return err
}

func (f *fixture) unstage(u use) error {
	_, err := f.service.NodeUnstageVolume(context.Background(), &csi.NodeUnstageVolumeRequest{VolumeId: u.handle(), StagingTargetPath: u.staging()})
	return err
}

func (f *fixture) publish(u use, pod int, readOnly bool) error {
	f.t.Helper()
	_, err := f.service.NodePublishVolume(context.Background(), &csi.NodePublishVolumeRequest{
		PublishContext: u.stageRequest(f.t).PublishContext,
		VolumeId:       u.handle(), StagingTargetPath: u.staging(), TargetPath: u.pod(pod), VolumeCapability: u.capability(), Readonly: readOnly,
	})
	return err
}

func (f *fixture) unpublish(u use, pod int) error {
	_, err := f.service.NodeUnpublishVolume(context.Background(), &csi.NodeUnpublishVolumeRequest{VolumeId: u.handle(), TargetPath: u.pod(pod)})
	return err
}

func (f *fixture) expand(u use, bytes int64) (int64, error) {
	response, err := f.service.NodeExpandVolume(context.Background(), &csi.NodeExpandVolumeRequest{
		VolumeId: u.handle(), VolumePath: u.staging(), StagingTargetPath: u.staging(), CapacityRange: &csi.CapacityRange{RequiredBytes: bytes},
	})
	return response.GetCapacityBytes(), err
}

// must stops the test at an error.
func (f *fixture) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatalf("%v\n%s\n%s", err, strings.Join(f.node.Calls(), "\n"), f.log.String())
	}
}

// clean checks that nothing is left behind and nothing was harmed.
func (f *fixture) clean() {
	f.t.Helper()
	if left := f.node.Left(); len(left) > 0 {
		f.t.Errorf("left: %q", left)
	}
	f.unharmed()
}

func (f *fixture) unharmed() {
	f.t.Helper()
	if harm := f.node.Harm(); len(harm) > 0 {
		f.t.Errorf("harm: %q", harm)
	}
	everything := f.log.String() + strings.Join(f.node.Calls(), "\n")
	for name, content := range f.node.Files() {
		everything += name + content
	}
	if strings.Contains(everything, "swordfish") || strings.Contains(everything, passphrase) || strings.Contains(everything, newPassphrase) || strings.Contains(everything, csinode.CephKey) {
		f.t.Errorf("the password is in a log, a call or a file:\n%s", everything)
	}
}

// refuses checks the code of an error and a part of its text.
func (f *fixture) refuses(err error, code codes.Code, text string) {
	f.t.Helper()
	if status.Code(err) != code || !strings.Contains(fmt.Sprint(err), text) {
		f.t.Errorf("%v; want %s with %q", err, code, text)
	}
	if text := fmt.Sprint(err); strings.Contains(text, "swordfish") || strings.Contains(text, passphrase) || strings.Contains(text, csinode.CephKey) {
		f.t.Errorf("the password is in the error %v", err)
	}
}

// header returns how much of the volume its LUKS header takes.
func (f *fixture) header() int64 {
	if of := f.volume().LUKS; of != nil {
		return of.Payload()
	}
	return 0
}

// encrypt makes the volume one of an encrypted type.
func encrypt(u *use, luks int) {
	u.encryption, u.passphrase = &wire.Encryption{LUKS: luks, Cipher: "aes-xts-plain64", KeyBits: 256}, passphrase
}
