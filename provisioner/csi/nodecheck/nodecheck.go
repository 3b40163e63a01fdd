// Package nodecheck tells, before a pod needs a volume, what a node lacks to attach
// volumes of Cinder. It shares the node plugin's requirements (package host), adds those
// of the kubelet's own mounts, and only reads.
package nodecheck

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/pflag"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/host"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

// The modes: who mounts the volumes, the kubelet or the node plugin.
const (
	native = "native"
	csi    = "csi"
)

// The protocols that can be checked.
const (
	iscsi        = "iscsi"
	multipath    = "multipath"
	fibreChannel = "fibre_channel"
	nvmeof       = "nvmeof"
	rbd          = "rbd"
	nfs          = "nfs"
	// luks is what encrypted volumes need besides their protocol.
	luks = "luks"
)

// protocols are in the order of the report.
func protocols() []string {
	return []string{iscsi, multipath, fibreChannel, nvmeof, rbd, nfs, luks}
}

// Options are the flags of `node check`.
type Options struct {
	HostRoot        string
	ToolDirectories string
	Mode            string
	// Protocols are empty for those that the node is set up for.
	Protocols  []string
	Portals    []string
	NodeName   string
	Kubeconfig string

	// Timeout bounds the whole check; zero means defaultTimeout.
	Timeout time.Duration
	// Files are the node's; nil for those at HostRoot.
	Files Files
	// Peers lists the other nodes of the cluster; nil asks the API server, if there is an
	// account for it.
	Peers Peers
	// AsRoot means that the process may read all files of the node.
	AsRoot bool
}

// AddFlags binds the options to flags, with their defaults.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.HostRoot, "host-root", "/", "where the node's root `directory` is mounted")
	flags.StringVar(&o.ToolDirectories, "tool-directories", "", "further `directories` of programs on the node, separated by colons, searched before the usual ones")
	flags.StringVar(&o.Mode, "mode", native, "`mode` of the volumes: native or csi")
	flags.StringSliceVar(&o.Protocols, "protocol", nil, "`protocol` to check: "+strings.Join(protocols(), ", ")+"; may be repeated; default is what the node is set up for")
	flags.StringSliceVar(&o.Portals, "portal", nil, "`host:port` that must answer; may be repeated")
	flags.StringVar(&o.NodeName, "node-name", "", "`name` of the Node object; default is $NODE_NAME, else the host name")
	flags.StringVar(&o.Kubeconfig, "kubeconfig", "", "kubeconfig `file` of an account that may list nodes and CSINodes; default is the pod's account")
}

// Complete fills in the defaults that depend on the environment, and reports every invalid
// option.
func (o *Options) Complete(getenv func(string) string) error {
	if o.NodeName == "" {
		o.NodeName = getenv("NODE_NAME")
	}
	var problems []error
	if o.Mode != native && o.Mode != csi {
		problems = append(problems, fmt.Errorf("--mode is %q; give native or csi", o.Mode))
	}
	for _, p := range o.Protocols {
		if !slices.Contains(protocols(), p) {
			problems = append(problems, fmt.Errorf("--protocol is %q; give one of %s", p, strings.Join(protocols(), ", ")))
		}
		if p == nfs && o.Mode == csi {
			problems = append(problems, errors.New("--protocol is nfs, whose volumes mode csi does not have; give --mode native"))
		}
		if p == luks && o.Mode == native {
			problems = append(problems, errors.New("--protocol is luks, and in mode native nobody opens encrypted volumes; give --mode csi"))
		}
	}
	for _, p := range o.Portals {
		at, port, err := net.SplitHostPort(p)
		if n, notNumber := strconv.ParseUint(port, 10, 16); err != nil || at == "" || notNumber != nil || n == 0 {
			problems = append(problems, fmt.Errorf("--portal is %q; give an address and a port, such as 192.0.2.1:3260", p))
		}
	}
	for _, directory := range append(filepath.SplitList(o.ToolDirectories), o.HostRoot) {
		if !path.IsAbs(directory) {
			problems = append(problems, fmt.Errorf("%q in --host-root or --tool-directories is not absolute; give an absolute path", directory))
		}
	}
	return errors.Join(problems...)
}

// Status says how a check ended.
type Status string

// A Warning is what harms only some volumes, or could not be checked.
const (
	OK      Status = "ok"
	Warning Status = "warning"
	Error   Status = "error"
)

// Check is a line of the report.
type Check struct {
	Status   Status `json:"status"`
	Protocol string `json:"protocol,omitempty"`
	Name     string `json:"check"`
	Found    string `json:"found"`
	// Remedy is a command, or what to change; empty if nothing is wrong.
	Remedy string `json:"remedy,omitempty"`
}

// Report is the answer of a check.
type Report struct {
	Node   string  `json:"node"`
	Mode   string  `json:"mode"`
	Checks []Check `json:"checks"`
}

// Errors counts the checks that failed.
func (r Report) Errors() (n int) {
	for _, c := range r.Checks {
		if c.Status == Error {
			n++
		}
	}
	return n
}

// WriteTable writes the report for a terminal.
func (r Report) WriteTable(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "STATUS\tCHECK\tFOUND; REMEDY")
	for _, c := range r.Checks {
		found := c.Found
		if c.Remedy != "" {
			found += "; remedy: " + c.Remedy
		}
		fmt.Fprintf(table, "%s\t%s\t%s\n", c.Status, strings.TrimSpace(c.Protocol+" "+c.Name), printable(found))
	}
	return table.Flush()
}

// printable keeps what files and programs of the node say from breaking the table.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) {
			return ' '
		}
		return r
	}, text)
}

// checker makes one report.
type checker struct {
	o        Options
	root     reader
	host     *host.Host
	scsi     *host.SCSI
	distro   string
	protocol string
	names    wire.Node
	report   Report
}

const defaultTimeout = time.Minute

// Run checks the node. It fails if there is no node at HostRoot.
func Run(ctx context.Context, o Options) (Report, error) {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(o.Timeout, defaultTimeout))
	defer cancel()
	local := host.NewLocal(o.HostRoot, filepath.SplitList(o.ToolDirectories)...)
	if o.Files == nil {
		o.Files = local
	}
	root := reader{o.Files, local, ctx}
	if _, err := root.ReadDir("/proc/1"); err != nil {
		return Report{}, fmt.Errorf("--host-root %s is not the root directory of a node, or lacks its /proc; mount the node's / there: %w", o.HostRoot, err)
	}
	h := host.New(host.Root{Files: root, Devices: devices{local}, Tools: root, Network: local}, slog.New(slog.DiscardHandler))
	c := &checker{o: o, root: root, host: h, scsi: &host.SCSI{Host: h}}
	c.distro = c.distribution()
	if c.o.NodeName == "" {
		c.o.NodeName = strings.ToLower(c.text("/proc/sys/kernel/hostname"))
	}
	c.names.Name, c.report.Node, c.report.Mode = c.o.NodeName, c.o.NodeName, o.Mode
	if !o.AsRoot {
		c.warn("account", "not root, which alone can read all files of the node; what it cannot read is reported as missing", "sudo standalone-cinder node check")
	}
	c.filesystems()
	chosen := o.Protocols
	if len(chosen) == 0 {
		chosen = c.setUp()
	}
	for _, protocol := range protocols() {
		if c.protocol = protocol; slices.Contains(chosen, protocol) {
			c.checkProtocol()
		}
	}
	c.protocol = ""
	if len(chosen) == 0 {
		c.fail("protocols", "the node is set up for none", c.install("open-iscsi", "iscsi-initiator-utils"))
	}
	c.lvm(chosen)
	if o.Mode == csi {
		c.result("QoS of volume types", "the kernel can hold it for each pod", host.CheckLimits(root), Warning, "boot with cgroup v2 (systemd.unified_cgroup_hierarchy=1) and a kernel with CONFIG_BLK_DEV_THROTTLING")
	}
	c.others(ctx)
	c.portals(ctx)
	return c.report, nil
}

func (c *checker) add(status Status, name, found, remedy string) {
	c.report.Checks = append(c.report.Checks, Check{status, c.protocol, name, found, remedy})
}

func (c *checker) ok(name, found string)           { c.add(OK, name, found, "") }
func (c *checker) warn(name, found, remedy string) { c.add(Warning, name, found, remedy) }
func (c *checker) fail(name, found, remedy string) { c.add(Error, name, found, remedy) }

// result adds what an error says, or else what was found.
func (c *checker) result(name, found string, err error, otherwise Status, remedy string) bool {
	if err != nil {
		c.add(otherwise, name, err.Error(), remedy)
		return false
	}
	c.ok(name, found)
	return true
}

// portals dials all portals at once: each may take as long as its limit.
func (c *checker) portals(ctx context.Context) {
	errs := make([]chan error, len(c.o.Portals))
	for i, portal := range c.o.Portals {
		errs[i] = make(chan error, 1)
		go func() { errs[i] <- c.host.Dial(ctx, portal) }()
	}
	for i, portal := range c.o.Portals {
		at, port, _ := net.SplitHostPort(portal)
		c.result("portal "+portal, "answers", <-errs[i], Error, fmt.Sprintf("ip route get %s; nc -vz %s %s", at, at, port))
	}
}
