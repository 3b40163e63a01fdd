package nodecheck

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"sigs.k8s.io/yaml"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/host"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/staged"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

const (
	initiator  = "iqn.1993-08.org.debian:01:8fc5fce3dd3"
	nqn        = "nqn.2014-08.org.nvmexpress:uuid:21f1c5e1-bfd2-4b62-b629-9e820ac56553"
	goodConfig = "defaults {\n find_multipaths yes\n no_path_retry queue # until overrides\n skip_kpartx yes\n}\noverrides {\n no_path_retry 12\n}\n"
)

// prepared are the files of a node that lacks nothing. A program is a file that begins
// with #!; it must never run.
func prepared() map[string]string {
	files := map[string]string{
		"/etc/os-release":                "ID=debian\n",
		"/etc/machine-id":                "0123456789abcdef0123456789abcdef\n",
		"/etc/iscsi/initiatorname.iscsi": "## comment\nInitiatorName=" + initiator + "\n",
		"/etc/nvme/hostnqn":              nqn + "\n",
		"/etc/multipath.conf":            goodConfig,
		"/etc/lvm/lvm.conf":              "devices {\n # global_filter = [ \"a|.*|\" ]\n global_filter = [ \"a|^/dev/vd[a-c]|\",\n  \"r|.*|\" ]\n}\n",
		"/proc/cmdline":                  "root=/dev/vda1\n",
		"/proc/sys/kernel/osrelease":     "6.1.0-18-amd64\n",
		"/proc/sys/kernel/hostname":      "Node-1\n",
		"/proc/1/net/unix": "Num RefCount Protocol Flags Type St Inode Path\n" +
			"0000000000000000: 00000002 00000000 00010000 0001 01 20 @ISCSIADM_ABSTRACT_NAMESPACE\n" +
			"0000000000000000: 00000002 00000000 00010000 0001 01 21 @/org/kernel/linux/storage/multipathd@@@\n",
		"/lib/modules/6.1.0-18-amd64/modules.dep":     "kernel/drivers/scsi/iscsi_tcp.ko.xz: kernel/drivers/scsi/libiscsi.ko.xz\nkernel/drivers/nvme/host/nvme-tcp.ko:\nkernel/drivers/block/rbd.ko.zst:\nkernel/fs/nfs/nfs.ko:\n",
		"/lib/modules/6.1.0-18-amd64/modules.builtin": "kernel/drivers/md/dm-multipath.ko\nkernel/drivers/md/dm-crypt.ko\n",
		"/sys/class/fc_host/host3/port_name":          "0x500A0981892A1B01\n",
		"/sys/class/fc_host/host3/port_state":         "Online\n",
		"/sys/class/dmi/id/product_uuid":              "11111111-2222-3333-4444-555555555555\n",
		"/sys/bus/rbd/devices/none":                   "",
		"/sys/fs/cgroup/cgroup.controllers":           "cpuset cpu io memory\n",
		"/sys/module/nvme_core/parameters/multipath":  "Y\n",
	}
	for _, tool := range append(host.MountTools(), "mkfs.xfs", "iscsiadm", "multipathd", "multipath", "nvme", "lvm", "mount.nfs", "cryptsetup") {
		files["/usr/sbin/"+tool] = "#!"
	}
	return files
}

func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		at, mode := filepath.Join(dir, name), fs.FileMode(0o644)
		if content == "#!" {
			mode = 0o755
		}
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(content), mode)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

type peers struct {
	all []Peer
	err error
}

func (p peers) List(context.Context) ([]Peer, error) { return p.all, p.err }

var cluster = peers{all: []Peer{{Node: wire.Node{Name: "node-1", InitiatorName: initiator}}, {Node: wire.Node{Name: "node-2", InitiatorName: initiator + "4"}, Machine: staged.Machine{MachineID: "other"}}}}

func check(t *testing.T, o Options) Report {
	t.Helper()
	if err := o.Complete(func(string) string { return "" }); err != nil {
		t.Fatal(err)
	}
	report, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

func (c Check) String() string {
	return fmt.Sprintf("%s %s %s: %s => %s", c.Status, c.Protocol, c.Name, c.Found, c.Remedy)
}

// TestAPreparedNodeLacksNothing also shows that a check changes nothing.
func TestAPreparedNodeLacksNothing(t *testing.T) {
	for _, mode := range []string{native, csi} {
		dir := write(t, prepared())
		before := listing(t, dir)
		report := check(t, Options{HostRoot: dir, Mode: mode, Peers: cluster, AsRoot: true})
		seen := map[string]bool{}
		for _, c := range report.Checks {
			if seen[c.Protocol] = true; c.Status != OK || c.Remedy != "" || c.Found == "" {
				t.Errorf("mode %s: %s", mode, c)
			}
		}
		for _, p := range protocols() {
			if seen[p] != (p != nfs && p != luks || p == nfs && mode == native || p == luks && mode == csi) {
				t.Errorf("mode %s: %s was checked: %t", mode, p, seen[p])
			}
		}
		if report.Node != "node-1" || report.Mode != mode || report.Errors() != 0 {
			t.Errorf("%+v", report)
		}
		if after := listing(t, dir); !maps.Equal(before, after) {
			t.Errorf("the node was changed:\n%v\n%v", before, after)
		}
	}
}

func listing(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err == nil {
			found[path] = fmt.Sprint(info.Size(), info.ModTime(), info.Mode())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestWhatANodeLacksIsNamedWithARemedy(t *testing.T) {
	const gone = "(gone)"
	config := func(text string) map[string]string { return map[string]string{"/etc/multipath.conf": text} }
	lvm := func(text string) map[string]string { return map[string]string{"/etc/lvm/lvm.conf": text} }
	for name, c := range map[string]struct {
		mode      string
		protocols []string
		files     map[string]string
		peers     Peers
		// want are all lines that are not ok, as regular expressions.
		want []string
	}{
		"a program of filesystems is missing": {files: map[string]string{"/usr/sbin/mkfs.ext4": gone, "/usr/sbin/mkfs.xfs": gone},
			want: []string{`error  ext4: not installed: mkfs.ext4 => apt-get install .*e2fsprogs`, `warning  mkfs.xfs: not installed => apt-get install xfsprogs`}},
		"open-iscsi is missing where packages are RPMs": {protocols: []string{iscsi}, mode: csi,
			files: map[string]string{"/usr/sbin/iscsiadm": gone, initiatorFile: gone, "/etc/os-release": "ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n"},
			want:  []string{`error iscsi iscsiadm: not installed => dnf install iscsi-initiator-utils`, `error iscsi initiator name: .*cannot be read.* => echo`}},
		"an unknown distribution gets both commands": {protocols: []string{nfs}, files: map[string]string{"/usr/sbin/mount.nfs": gone, "/etc/os-release": "ID=other\n"},
			want: []string{`error nfs mount.nfs: not installed => apt-get install nfs-common, or dnf install nfs-utils`}},
		"iscsid is down, and a client's socket is not a daemon's": {protocols: []string{iscsi},
			files: map[string]string{"/proc/1/net/unix": "0: 00000003 00000000 00000000 0001 03 20 @ISCSIADM_ABSTRACT_NAMESPACE\n"},
			want:  []string{`error iscsi daemon iscsid: does not run.* => systemctl enable --now iscsid`}},
		"multipathd listens at a path": {protocols: []string{multipath},
			files: map[string]string{"/proc/1/net/unix": "0: 00000002 00000000 00010000 0001 01 20 /run/multipathd.socket\n"}},
		"the initiator name has quotes": {protocols: []string{iscsi}, mode: csi, files: map[string]string{initiatorFile: "InitiatorName=\"iqn.a:b\"\n"},
			want: []string{`error iscsi initiator name: .*no iSCSI name.* => echo`}},
		"the kubelet brings its own name": {protocols: []string{iscsi}, files: map[string]string{initiatorFile: gone},
			want: []string{`warning iscsi initiator name: `}},
		"the name is from a manual":    {protocols: []string{iscsi}, files: map[string]string{initiatorFile: "InitiatorName=iqn.2001-04.com.example:storage\n"}, want: []string{`warning iscsi initiator name: .*manual`}},
		"the name lacks a unique part": {protocols: []string{iscsi}, files: map[string]string{initiatorFile: "InitiatorName=iqn.1993-08.org.debian:01:\n"}, want: []string{`warning iscsi initiator name: .*manual`}},
		"the kernel lacks modules": {protocols: []string{iscsi, nvmeof}, files: map[string]string{"/lib/modules/6.1.0-18-amd64/modules.dep": "x.ko:\n", "/etc/os-release": "ID=ubuntu\nID_LIKE=debian\n"},
			want: []string{`error iscsi module iscsi_tcp: kernel 6.1.0-18-amd64 does not have it => apt-get install linux-modules-extra`, `error nvmeof module nvme_tcp: `}},
		"the kernel's modules are not listed": {protocols: []string{nfs}, files: map[string]string{"/proc/sys/kernel/osrelease": "9.9"},
			want: []string{`warning nfs module nfs: not loaded.* unknown.* => modprobe nfs`}},
		"the kernel is too old": {protocols: []string{nvmeof}, mode: csi, files: map[string]string{"/proc/sys/kernel/osrelease": "5.4.0", "/sys/module/nvme_tcp/refcnt": "0"},
			want: []string{`error nvmeof kernel: Linux 5.4.0; 5.11 or later is needed`}},
		"NVMe multipath is off": {protocols: []string{nvmeof}, mode: csi, files: map[string]string{"/sys/module/nvme_core/parameters/multipath": "N\n"},
			want: []string{`error nvmeof kernel multipath: switched off => remove`}},
		"NVMe multipath will be off once its module is loaded": {protocols: []string{nvmeof}, mode: csi,
			files: map[string]string{"/sys/module/nvme_core/parameters/multipath": gone, "/proc/cmdline": "quiet nvme_core.multipath=N\n"},
			want:  []string{`error nvmeof kernel multipath: switched off`}},
		"the host's NQN is missing": {protocols: []string{nvmeof}, mode: csi, files: map[string]string{"/etc/nvme/hostnqn": gone}, want: []string{`error nvmeof host name: .* => apt-get install nvme-cli && nvme gen-hostnqn`}},
		"only Ceph, and its client is not loaded": {protocols: []string{rbd}, mode: csi, files: map[string]string{"/sys/bus/rbd/devices/none": gone},
			want: []string{`error rbd client: .* => modprobe rbd && echo rbd`}},
		"no Fibre Channel port is online": {protocols: []string{fibreChannel}, files: map[string]string{"/sys/class/fc_host/host3/port_state": "Linkdown"},
			want: []string{`error fibre_channel ports: .*500a0981892a1b01 is Linkdown.* => cat`}},
		"multipathd is missing, but asked for": {protocols: []string{multipath}, files: map[string]string{"/usr/sbin/multipathd": gone}, want: []string{`error multipath multipathd: not installed`}},
		"multipath is missing":                 {protocols: []string{multipath}, files: map[string]string{"/usr/sbin/multipath": gone}, want: []string{`error multipath multipath: .*has no multipath`}},
		"multipathd has no configuration":      {protocols: []string{multipath}, files: config(gone), want: []string{`warning multipath configuration: .* => printf`}},
		"multipathd's defaults are used": {protocols: []string{multipath}, files: config("# none\n"),
			want: []string{`warning multipath find_multipaths: set to nothing`, `warning multipath skip_kpartx: set to nothing`, `warning multipath no_path_retry: not set`}},
		"a device queues forever": {protocols: []string{multipath},
			files: config("defaults { \n find_multipaths \"on\"\n skip_kpartx yes }\ndevices {\n device {\n vendor X\n features \"1 queue_if_no_path\"\n }\n}\n"),
			want:  []string{`error multipath no_path_retry: queue`}},
		"one map queues in spite of overrides": {protocols: []string{multipath}, files: config(goodConfig + "multipaths {\n multipath {\n wwid 1\n no_path_retry queue\n}\n}\n"),
			want: []string{`error multipath no_path_retry: queue`}},
		"a second file overrides the first": {protocols: []string{multipath}, files: map[string]string{"/etc/multipath/conf.d/a.conf": "defaults {\n find_multipaths strict\n}\n"},
			want: []string{`warning multipath find_multipaths: set to strict`}},
		"the blacklist hides disks":    {protocols: []string{multipath}, files: config(goodConfig + "blacklist {\n devnode \"^sd[a-z]+\"\n}\n"), want: []string{`error multipath blacklist: .*devnode \^sd`}},
		"the blacklist hides all":      {protocols: []string{multipath}, files: config(goodConfig + "blacklist {\n wwid *\n}\n"), want: []string{`error multipath blacklist: .*wwid \*`}},
		"the blacklist has exceptions": {protocols: []string{multipath}, files: config(goodConfig + "blacklist {\n wwid .*\n}\nblacklist_exceptions {\n wwid \"^36001405\"\n}\n")},
		"the blacklist names one disk": {protocols: []string{multipath}, files: config(goodConfig + "blacklist {\n devnode \"^sda$\"\n}\n")},
		"the blacklist spares some":    {protocols: []string{multipath}, files: config(goodConfig + "blacklist {\n devnode \"!^(sd[a-z]|dasd[a-z])\"\n}\n")},
		"encrypted volumes cannot be opened": {protocols: []string{iscsi, luks}, mode: csi, files: map[string]string{"/usr/sbin/cryptsetup": gone, "/lib/modules/6.1.0-18-amd64/modules.builtin": "x.ko\n"},
			want: []string{`error luks cryptsetup: not installed => apt-get install cryptsetup-bin`, `error luks module dm_crypt: `}},
		"limits cannot be held, by cgroup v1": {protocols: []string{iscsi}, mode: csi, files: map[string]string{"/sys/fs/cgroup/cgroup.controllers": gone},
			want: []string{`warning  QoS of volume types: CgroupV1: the node has no cgroup v2 .* => boot with cgroup v2`}},
		"limits cannot be held, by the kernel": {protocols: []string{iscsi}, mode: csi, files: map[string]string{"/sys/fs/cgroup/cgroup.controllers": "cpu\n"},
			want: []string{`warning  QoS of volume types: NoIOController: the controllers of /sys/fs/cgroup lack io`}},
		"no limits are held for native volumes": {protocols: []string{iscsi}, files: map[string]string{"/sys/fs/cgroup/cgroup.controllers": gone}},
		"LVM has no filter":                     {protocols: []string{iscsi}, files: lvm("devices {\n}\n"), want: []string{`warning  LVM: scans disks such as /dev/sdzz`}},
		"LVM's filter lets maps through":        {protocols: []string{iscsi}, files: lvm("global_filter = [ \"r|^/dev/sd|\" ]\n"), want: []string{`warning  LVM: scans disks such as /dev/mapper/`}},
		"LVM's filter forgets NVMe":             {protocols: []string{nvmeof}, files: lvm("global_filter = [ \"r|^/dev/sd|\", 'r', \"r|mapper|\" ]\n"), want: []string{`warning  LVM: scans`}},
		"LVM uses a devices file":               {protocols: []string{iscsi}, files: map[string]string{"/etc/lvm/lvm.conf": "\t# use_devicesfile = 0\n\tuse_devicesfile = 1\n", devicesFile: "VERSION=1.1.1\n"}},
		"LVM is built to use a devices file":    {protocols: []string{iscsi}, files: map[string]string{"/etc/lvm/lvm.conf": "\t# use_devicesfile = 1\n", devicesFile: "VERSION=1.1.1\n"}},
		"LVM's devices file is missing":         {protocols: []string{iscsi}, files: lvm("use_devicesfile = 1\n"), want: []string{`warning  LVM: scans`}},
		"nothing is set up": {files: map[string]string{"/usr/sbin/iscsiadm": gone, initiatorFile: gone, "/usr/sbin/nvme": gone, "/etc/nvme/hostnqn": gone, "/usr/sbin/mount.nfs": gone,
			"/sys/class/fc_host/host3/port_name": gone, "/sys/bus/rbd/devices/none": gone}, want: []string{`error  protocols: .* => apt-get install open-iscsi`}},
		"another node has the initiator name, in mode csi": {protocols: []string{iscsi}, mode: csi, peers: peers{all: append(slices.Clone(cluster.all), Peer{Node: wire.Node{Name: "node-3", InitiatorName: strings.ToUpper(initiator)}})},
			want: []string{`error  other nodes: node node-3 has the same iSCSI name, iqn.* => drain this node`}},
		"another node is a clone": {protocols: []string{iscsi}, peers: peers{all: append(slices.Clone(cluster.all), Peer{Node: wire.Node{Name: "node-3"}, Machine: staged.Machine{MachineID: "0123456789abcdef0123456789abcdef"}})},
			want: []string{`warning  other nodes: node node-3 has the same machine ID`}},
		"the API server refuses":    {protocols: []string{iscsi}, peers: peers{err: errors.New("forbidden")}, want: []string{`warning  other nodes: not compared: forbidden`}},
		"the node has another name": {protocols: []string{iscsi}, peers: peers{all: cluster.all[1:]}, want: []string{`warning  other nodes: not compared: none of the cluster's 1 nodes is named node-1 => give --node-name`}},
	} {
		t.Run(name, func(t *testing.T) {
			files := prepared()
			maps.Copy(files, c.files)
			maps.DeleteFunc(files, func(_, content string) bool { return content == gone })
			o := Options{HostRoot: write(t, files), Mode: native, Protocols: c.protocols, Peers: cluster, AsRoot: true}
			if c.mode != "" {
				o.Mode = c.mode
			}
			if c.peers != nil {
				o.Peers = c.peers
			}
			var got []string
			for _, line := range check(t, o).Checks {
				if line.Status != OK {
					if got = append(got, line.String()); line.Remedy == "" {
						t.Errorf("no remedy: %s", line)
					}
				}
			}
			if !slices.EqualFunc(got, c.want, func(got, want string) bool { return regexp.MustCompile("^" + want).MatchString(got) }) {
				t.Errorf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
		})
	}
}

func TestANameOlderThanTheMachineMayBeCopied(t *testing.T) {
	dir := write(t, prepared())
	built := time.Now().Add(-time.Hour)
	if err := os.Chtimes(filepath.Join(dir, initiatorFile), built, built); err != nil {
		t.Fatal(err)
	}
	report := check(t, Options{HostRoot: dir, Mode: csi, Peers: cluster, AsRoot: true})
	i := slices.IndexFunc(report.Checks, func(c Check) bool { return c.Status != OK })
	if i < 0 || report.Checks[i].Status != Warning || !strings.Contains(report.Checks[i].Found, "older than /etc/machine-id") {
		t.Errorf("%v", report.Checks)
	}
}

func TestAFileThatHangsDoesNotHangTheCheck(t *testing.T) {
	files := prepared()
	delete(files, multipathFile)
	dir := write(t, files)
	if err := syscall.Mkfifo(filepath.Join(dir, multipathFile), 0o600); err != nil {
		t.Fatal(err)
	}
	started := time.Now()
	report := check(t, Options{HostRoot: dir, Mode: native, Protocols: []string{multipath}, Peers: cluster, AsRoot: true, Timeout: time.Second})
	if took := time.Since(started); took > 4*time.Second {
		t.Errorf("the check took %s", took)
	}
	if !slices.ContainsFunc(report.Checks, func(c Check) bool { return strings.Contains(c.Found, multipathFile+" could not be read in time") }) {
		t.Errorf("%v", report.Checks)
	}
}

func TestPortalsThatAnswer(t *testing.T) {
	var addresses []string
	for range 2 {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		addresses = append(addresses, listener.Addr().String())
		if len(addresses) == 1 {
			listener.Close()
		}
	}
	report := check(t, Options{HostRoot: write(t, prepared()), Mode: native, Portals: addresses, Peers: cluster, AsRoot: true})
	last := report.Checks[len(report.Checks)-2:]
	if last[0].Status != Error || !strings.Contains(last[0].Found, "nothing answers at "+addresses[0]) || last[1].Status != OK || last[1].Name != "portal "+addresses[1] {
		t.Errorf("%v", last)
	}
}

func TestTheTableHasOneLinePerCheck(t *testing.T) {
	report := Report{Checks: []Check{{Error, iscsi, "initiator name", "a\nb\x1b", "echo"}, {OK, "", "LVM", "not installed", ""}}}
	var b strings.Builder
	if err := report.WriteTable(&b); err != nil {
		t.Fatal(err)
	}
	if got, want := b.String(), "STATUS  CHECK                 FOUND; REMEDY\nerror   iscsi initiator name  a b ; remedy: echo\nok      LVM                   not installed\n"; got != want {
		t.Errorf("%q", got)
	}
}

func TestWrongOptionsAreAllNamed(t *testing.T) {
	good := Options{HostRoot: "/", Mode: csi}
	for want, change := range map[string]func(*Options){
		`--mode is "both"`:      func(o *Options) { o.Mode = "both" },
		`--protocol is "scsi"`:  func(o *Options) { o.Protocols = []string{iscsi, "scsi"} },
		`--protocol is nfs`:     func(o *Options) { o.Protocols = []string{nfs} },
		`--protocol is luks`:    func(o *Options) { o.Mode, o.Protocols = native, []string{luks} },
		`--portal is "a"`:       func(o *Options) { o.Portals = []string{"a"} },
		`--portal is "a:0"`:     func(o *Options) { o.Portals = []string{"a:0"} },
		`--portal is ":3260"`:   func(o *Options) { o.Portals = []string{":3260"} },
		`"here" in --host-root`: func(o *Options) { o.HostRoot = "here" },
	} {
		o := good
		change(&o)
		if err := o.Complete(os.Getenv); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if _, err := Run(t.Context(), Options{HostRoot: t.TempDir(), Timeout: time.Second}); err == nil || !strings.Contains(err.Error(), "mount the node's / there") {
		t.Errorf("%v", err)
	}
}

func TestTheAPIServerNamesNodesWithWhatTheirDriverRegistered(t *testing.T) {
	id, err := wire.Node{Name: "node-2", InitiatorName: initiator}.NodeID()
	if err != nil {
		t.Fatal(err)
	}
	meta := metav1.ObjectMeta{Name: "node-2"}
	client := fake.NewClientset(
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}},
		&corev1.Node{ObjectMeta: meta, Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{MachineID: "m"}}},
		&storagev1.CSINode{ObjectMeta: meta, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: "other", NodeID: "v1 x i=y"}, {Name: wire.DriverName, NodeID: id}}}},
		&storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "gone"}},
	)
	all, err := API{client}.List(t.Context())
	if err != nil || len(all) != 2 || all[0].Name != "node-1" || all[1].InitiatorName != initiator || all[1].Machine.MachineID != "m" {
		t.Errorf("%+v, %v", all, err)
	}
}

// TestThePodOfTheExampleChecks reads the arguments as the command does.
func TestThePodOfTheExampleChecks(t *testing.T) {
	content, err := os.ReadFile("../../../deploy/examples/node-check.yaml")
	if err != nil {
		t.Fatal(err)
	}
	documents := strings.Split(string(content), "\n---\n")
	var pod corev1.Pod
	if err := yaml.UnmarshalStrict([]byte(documents[len(documents)-1]), &pod); err != nil {
		t.Fatal(err)
	}
	var o Options
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	o.AddFlags(flags)
	container := pod.Spec.Containers[0]
	if err := errors.Join(flags.Parse(container.Args[2:]), o.Complete(os.Getenv)); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(container.Args[:2], []string{"node", "check"}) || o.HostRoot != container.VolumeMounts[0].MountPath || o.NodeName != pod.Spec.NodeName || !pod.Spec.HostNetwork {
		t.Errorf("%+v", pod.Spec)
	}
}

// unreadable is a node one of whose files may not be read.
type unreadable struct {
	Files
	file string
}

func (u unreadable) ReadFile(path string) ([]byte, error) {
	if path == u.file {
		return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrPermission}
	}
	return u.Files.ReadFile(path)
}

// TestNoRemedyReplacesAFileThatIsThere: what cannot be read may be what storage knows the
// node by, or how its disks are found.
func TestNoRemedyReplacesAFileThatIsThere(t *testing.T) {
	for file, protocol := range map[string]string{multipathFile: multipath, initiatorFile: iscsi, "/etc/nvme/hostnqn": nvmeof} {
		dir := write(t, prepared())
		report := check(t, Options{HostRoot: dir, Files: unreadable{host.NewLocal(dir), file}, Mode: csi, Protocols: []string{protocol}, Peers: cluster})
		seen := false
		for _, c := range report.Checks {
			if strings.Contains(c.Found, "permission denied") {
				seen = true
				if strings.Contains(c.Remedy, ">") || !strings.Contains(c.Remedy, "as root") {
					t.Errorf("%s", c)
				}
			}
		}
		if !seen {
			t.Errorf("%s: %v", file, report.Checks)
		}
	}
}

// TestMultipathConfIsReadAsMultipathdReadsIt follows libmultipath's parser: a section needs
// no brace, what follows one on its line is ignored, and so is a closing one that does not
// begin its line.
func TestMultipathConfIsReadAsMultipathdReadsIt(t *testing.T) {
	for text, want := range map[string][]setting{
		"defaults {\n a yes\n}\noverrides {\n}\n":            {{"defaults", "a", "yes"}},
		"defaults\n{\n a yes\n}\n":                           {{"defaults", "a", "yes"}},
		"defaults { a yes }\nb on\n}\n":                      {{"defaults", "b", "on"}},
		"defaults {\n a yes }\n b on\n}\n":                   {{"defaults", "a", "yes"}, {"defaults", "b", "on"}},
		"defaults {\n a yes#no\n b yes!no\n ! c\n # d\n}":    {{"defaults", "a", "yes"}, {"defaults", "b", "yes"}},
		"blacklist {\n wwid \"a\"\"b # c\" d\n}\n":           {{"blacklist", "wwid", "a\"b # c"}},
		"blacklist {\n protocol \"scsi:fcp\"\n devnode x\n}": {{"blacklist", "protocol", "scsi:fcp"}, {"blacklist", "devnode", "x"}},
		"overrides {\n protocol {\n type x\n }\n a 1\n}":     {{"overrides/protocol", "type", "x"}, {"overrides", "a", "1"}},
		"a \"open\n}\n}\nb 1 2\n":                            {{"", "a", "open"}, {"", "b", "1"}},
		"\"\n{\n\x00\n":                                      nil,
	} {
		if got := settingsOf(text); !slices.Equal(got, want) {
			t.Errorf("%q:\n%q\nwant\n%q", text, got, want)
		}
	}
}

// TestAFilterInOneLineIsRead: LVM's language has no lines.
func TestAFilterInOneLineIsRead(t *testing.T) {
	for text, want := range map[string]Status{
		`devices { global_filter = [ "r|.*|" ] }`:                         OK,
		`devices { scan = "/dev" global_filter = "r|.*|" }`:               OK,
		"devices {\n global_filter = [ 'a|^/dev/vda|', 'r|.*|' ]\n}":      OK,
		`devices { # global_filter = [ "r|.*|" ]` + "\n}":                 Warning,
		`devices { my_global_filter = [ "r|.*|" ] }`:                      Warning,
		"devices {\n\tuse_devicesfile=1 # use_devicesfile = 0\n}":         OK,
		"devices {\n\tglobal_filter = [ \"a|.*|\" ] # [ \"r|.*|\" ]\n}\n": Warning,
	} {
		files := prepared()
		files["/etc/lvm/lvm.conf"], files[devicesFile] = text, "VERSION=1.1.1\n"
		if !strings.Contains(text, "devicesfile") {
			delete(files, devicesFile)
		}
		report := check(t, Options{HostRoot: write(t, files), Mode: native, Protocols: []string{iscsi}, Peers: cluster, AsRoot: true})
		i := slices.IndexFunc(report.Checks, func(c Check) bool { return c.Name == "LVM" })
		if report.Checks[i].Status != want {
			t.Errorf("%q: %s", text, report.Checks[i])
		}
	}
}
