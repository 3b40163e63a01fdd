package nodecheck

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/host"
)

// setUp returns the protocols of which the node has something.
func (c *checker) setUp() []string {
	ports, _ := (&host.FibreChannel{SCSI: c.scsi}).FCPorts()
	disks := c.host.Has("iscsiadm") || c.exists(initiatorFile) || len(ports) > 0
	has := map[string]bool{
		iscsi:        c.host.Has("iscsiadm") || c.exists(initiatorFile),
		multipath:    disks && (c.host.Has("multipathd") || len(ports) > 0),
		fibreChannel: len(ports) > 0,
		nvmeof:       c.host.Has("nvme") || c.exists("/etc/nvme/hostnqn"),
		rbd:          host.NewRBD(c.host, nil).Has() == nil,
		nfs:          c.o.Mode == native && c.host.Has("mount.nfs"),
		luks:         c.o.Mode == csi && host.NewCrypt(c.host).Has() == nil,
	}
	return slices.DeleteFunc(protocols(), func(p string) bool { return !has[p] })
}

func (c *checker) checkProtocol() {
	switch c.protocol {
	case iscsi:
		c.iscsi()
	case multipath:
		c.multipath()
	case fibreChannel:
		c.fibreChannel()
	case nvmeof:
		c.nvme()
	case rbd:
		c.kernel(5, 3)
		c.module("rbd")
		if c.o.Mode == csi && slices.Equal(c.o.Protocols, []string{rbd}) {
			// The plugin registers with Ceph alone only if the module is already there.
			c.result("client", "loaded", host.NewRBD(c.host, nil).Has(), Error, "modprobe rbd && echo rbd > /etc/modules-load.d/rbd.conf")
		}
	case nfs:
		c.tool("mount.nfs", Error, "nfs-common", "nfs-utils")
		c.module("nfs")
	case luks:
		c.tool("cryptsetup", Error, "cryptsetup-bin", "cryptsetup")
		c.module("dm_crypt")
	}
}

// filesystems checks the programs that make and mount them.
func (c *checker) filesystems() {
	var lacking []string
	for _, tool := range host.MountTools() {
		if !c.host.Has(tool) {
			lacking = append(lacking, tool)
		}
	}
	if len(lacking) > 0 {
		c.fail("ext4", "not installed: "+strings.Join(lacking, ", "), c.install("mount util-linux e2fsprogs", "util-linux e2fsprogs"))
	} else {
		c.ok("ext4", "all programs are installed")
	}
	c.tool("mkfs.xfs", Warning, "xfsprogs", "xfsprogs")
}

const initiatorFile = "/etc/iscsi/initiatorname.iscsi"

// fromTexts matches names that are in manuals, or without the part that generators add.
var fromTexts = regexp.MustCompile(`(?i)^iqn\.\d{4}-\d\d\.(?:com|org|net)\.example\b|^iqn\.[^:]*$|:$`)

func (c *checker) iscsi() {
	if c.tool("iscsiadm", Error, "open-iscsi", "iscsi-initiator-utils") {
		c.daemon("iscsid", "@ISCSIADM_ABSTRACT_NAMESPACE")
	}
	c.module("iscsi_tcp")
	name, err := (&host.ISCSI{SCSI: c.scsi}).InitiatorName()
	c.names.InitiatorName = name
	remedy := `echo "InitiatorName=$(iscsi-iname)" > ` + initiatorFile + " && systemctl restart iscsid"
	switch {
	case err != nil:
		// The kubelet's sessions have the name of the PersistentVolume.
		status := Warning
		if c.o.Mode == csi {
			status = Error
		}
		c.add(status, "initiator name", err.Error(), ifMissing(err, remedy))
	case fromTexts.MatchString(name):
		c.warn("initiator name", name+", a name from a manual, which other machines may have, too", remedy)
	default:
		c.unlessCopied("initiator name", name, initiatorFile, remedy)
	}
}

// unlessCopied warns of a name that is older than the machine: a machine that is made from
// an image makes its machine ID when it first starts. In mode native, others bring the name.
func (c *checker) unlessCopied(what, name, file, remedy string) {
	named, err := c.root.Modified(file)
	started, other := c.root.Modified("/etc/machine-id")
	if c.o.Mode == csi && err == nil && other == nil && named.Before(started.Add(-time.Minute)) {
		c.warn(what, fmt.Sprintf("%s, but %s is older than /etc/machine-id, as on machines made from one image, which share it", name, file), remedy)
		return
	}
	c.ok(what, name)
}

func (c *checker) multipath() {
	// Without it, volumes have one path.
	status := Warning
	if slices.Contains(c.o.Protocols, multipath) {
		status = Error
	}
	if !c.tool("multipathd", status, "multipath-tools", "device-mapper-multipath") {
		return
	}
	c.result("multipath", "installed", c.scsi.NeedMultipath(), Error, c.install("multipath-tools", "device-mapper-multipath"))
	c.daemon("multipathd", "@/org/kernel/linux/storage/multipathd", "/run/multipathd.socket")
	c.module("dm_multipath")
	c.multipathConf()
}

func (c *checker) fibreChannel() {
	ports, err := (&host.FibreChannel{SCSI: c.scsi}).FCPortsOnline()
	var names []string
	for _, port := range ports {
		names = append(names, port.Name)
	}
	c.names.PortNames = names
	c.result("ports", strings.Join(names, ", "), err, Error, "cat /sys/class/fc_host/*/port_state; lspci -k | grep -A3 Fibre")
}

func (c *checker) nvme() {
	if c.o.Mode == csi {
		c.kernel(5, 11)
	} else {
		// A CSI driver of somebody else mounts such volumes.
		c.tool("nvme", Error, "nvme-cli", "nvme-cli")
	}
	c.module("nvme_tcp")
	h := &host.NVMe{Host: c.host}
	names, err := h.ReadNames()
	remedy := "nvme gen-hostnqn > /etc/nvme/hostnqn && sed 's/.*uuid://' /etc/nvme/hostnqn > /etc/nvme/hostid"
	if c.names.HostNQN = names.NQN; err != nil {
		c.fail("host name", err.Error(), ifMissing(err, c.install("nvme-cli", "nvme-cli")+" && "+remedy))
	} else {
		c.unlessCopied("host name", names.NQN, "/etc/nvme/hostnqn", remedy)
	}
	if c.o.Mode == native {
		return
	}
	merges := h.NativeMultipath()
	if merges == "N" || merges == "" && strings.Contains(c.text("/proc/cmdline"), "nvme_core.multipath=N") {
		c.fail("kernel multipath", "switched off", "remove nvme_core.multipath=N from the kernel's command line, and reboot")
	} else {
		c.ok("kernel multipath", "not switched off")
	}
}
