package csinode

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/host"
)

// Has reports whether the node has a program.
func (n *Node) Has(tool string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.Multipathd && strings.HasPrefix(tool, "multipath") {
		return false
	}
	return !n.Missing[tool]
}

// Run runs a program.
func (n *Node) Run(_ context.Context, c host.Command) (string, error) {
	if n.Delay > 0 {
		time.Sleep(n.Delay)
	}
	n.mu.Lock()
	before := n.Before
	n.mu.Unlock()
	if before != nil {
		if err := before(c.String()); err != nil {
			return "", err
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.crashed {
		return "", ErrCrashed
	}
	n.calls = append(n.calls, c.String())
	arguments := c.Arguments
	if c.Secret != "" {
		arguments = append(slices.Clone(arguments), c.Secret)
	}
	output, code := "", 0
	run := func() error {
		output, code = n.tool(c.Tool, arguments, c.Input+c.Further)
		return nil
	}
	var err error
	switch {
	case c.Tool == "multipathd" && arguments[0] == "show", c.Tool == "udevadm":
		err = run()
	default:
		before := n.crashed
		err = n.change(c.String(), run)
		if n.crashed && !before && !n.applied && c.Tool == "cryptsetup" && slices.Contains(arguments, "luksFormat") {
			n.breakLUKS(arguments)
		}
		// A crash before mkfs ended leaves half of a filesystem.
		if n.crashed && !before && !n.applied && strings.HasPrefix(c.Tool, "mkfs.") {
			if v := n.volumeOf(strings.TrimPrefix(arguments[len(arguments)-1], "/dev/")); v != nil {
				// XFS begins with its superblock, and ext4 ends with it.
				if v.Unfinished = c.Tool == "mkfs.xfs"; v.Unfinished {
					v.Filesystem = host.XFS
					v.make(arguments)
				} else {
					v.Junk = true
				}
			}
		}
	}
	if err != nil {
		return "", err
	}
	if code != 0 {
		return "", &host.ToolError{Command: c.String(), Code: code, Output: output}
	}
	return output, nil
}

func (n *Node) tool(name string, arguments []string, input string) (string, int) {
	last := strings.TrimPrefix(arguments[len(arguments)-1], "/dev/")
	switch name {
	case "iscsiadm":
		return n.iscsiadm(arguments)
	case "cryptsetup":
		return n.cryptsetup(arguments, input)
	case "multipathd":
		return n.multipathd(arguments)
	case "multipath":
		return n.multipath(arguments, last)
	case "udevadm":
		return "", 0
	case "modprobe":
		if last == "rbd" {
			n.NoRBD = false
			return "", 0
		}
		if n.NoNVMe {
			return "FATAL: Module " + last + " not found", 1
		}
		n.Unloaded = false
		return "", 0
	case "mount":
		return n.mount(arguments)
	case "umount":
		if by := n.frozen[n.mountedAt(last).device]; by.guard != nil && by.at == n.Resolve(last) {
			return "target is busy", 32
		}
		if !n.unmount(last) {
			return "not mounted", 32
		}
		return "", 0
	case "mkfs.ext4", "mkfs.xfs":
		return n.mkfs(name, arguments, last)
	case "e2fsck":
		v := n.volumeOf(last)
		if v == nil || v.Filesystem == "" {
			return "Bad magic number in super-block", 8
		}
		return "", v.NeedsCheck
	case "resize2fs":
		if v := n.volumeOf(last); v != nil {
			v.FilesystemBytes = n.size(last)
			return "", 0
		}
		return "no such device", 1
	case "xfs_growfs":
		for _, m := range n.mounts {
			if v := n.volumeOf(m.device); m.at == arguments[0] && v != nil {
				v.FilesystemBytes = n.size(m.device)
				return "", 0
			}
		}
		return "is not a mounted XFS filesystem", 1
	case "dmsetup":
		for _, l := range n.Layers {
			if l.Alias == last && n.free(l) {
				return "", 0
			}
		}
		return "device or resource busy", 1
	case "blockdev":
		n.setro[last] = arguments[0] == "--setro"
		return "", 0
	}
	return "no such program in this fixture", 127
}

func (n *Node) size(device string) int64 {
	if o := n.openedOf(device); o != nil {
		return o.bytes
	}
	for _, m := range n.maps {
		if m.name == device {
			return m.bytes
		}
	}
	if h := n.headOf(device); h != nil {
		return h.bytes
	}
	if m := n.mappingOf(device); m != nil {
		return m.bytes
	}
	if d := n.diskOf(device); d != nil {
		return d.bytes
	}
	return 0
}

// options reads what iscsiadm is called with.
func options(arguments []string) map[string]string {
	found := map[string]string{}
	for i := 0; i < len(arguments); i++ {
		if strings.HasPrefix(arguments[i], "--") {
			found[arguments[i]] = "yes"
		} else if i+1 < len(arguments) {
			found[arguments[i]] = arguments[i+1]
			i++
		}
	}
	return found
}

func (n *Node) iscsiadm(arguments []string) (string, int) {
	o := options(arguments)
	if o["-m"] == "session" {
		id, _ := strconv.Atoi(o["-r"])
		for i, s := range n.sessions {
			if s.id == id {
				for _, d := range slices.Clone(n.disks) {
					if d.session == s {
						n.harm = append(n.harm, "a session was ended under disk "+d.name)
						n.delete(d)
					}
				}
				n.sessions = slices.Delete(n.sessions, i, i+1)
				return "", 0
			}
		}
		return "No session found", 21
	}
	key := o["-T"] + " " + o["-p"] + " " + o["-I"]
	record, known := n.records[key]
	switch {
	case o["-o"] == "new":
		n.records[key] = map[string]string{"node.session.scan": "auto"}
		maps.Copy(n.records[key], n.IscsidConf)
		return "New iSCSI node added", 0
	case !known:
		return "No records found", 21
	case o["-o"] == "show":
		var b strings.Builder
		for _, name := range sortedKeys(record) {
			fmt.Fprintf(&b, "%s = %s\n", name, record[name])
		}
		return b.String(), 0
	case o["-o"] == "update":
		record[o["-n"]] = o["-v"]
		return "", 0
	case o["-o"] == "delete":
		if slices.ContainsFunc(n.sessions, func(s *session) bool { return s.target == o["-T"] && s.portal == o["-p"] && s.iface == o["-I"] }) {
			return "a session is using it", 15
		}
		delete(n.records, key)
		return "", 0
	}
	t := n.Targets[o["-T"]]
	switch {
	case t == nil || !slices.Contains(t.Portals, o["-p"]) || t.Down[o["-p"]] || t.Gone:
		return "connection timed out", 8
	case slices.ContainsFunc(n.sessions, func(s *session) bool {
		return s.target == o["-T"] && s.portal == o["-p"] && s.initiator == n.initiator
	}):
		return "session exists", 15
	case record["node.session.auth.authmethod"] != "CHAP" && record["node.session.auth.username"] != "":
		return "Login failed: the target does not do CHAP", 24
	case record["node.session.auth.username_in"] != "":
		return "Login failed: the target does not authenticate itself", 24
	case t.Password != "" && (record["node.session.auth.authmethod"] != "CHAP" || record["node.session.auth.username"] != t.User || record["node.session.auth.password"] != t.Password):
		return "Login failed to authenticate with " + record["node.session.auth.password"], 24
	}
	s := n.newSession(o["-T"], o["-p"], o["-I"], n.initiator)
	if record["node.session.scan"] != "manual" {
		for lun := range t.LUNs {
			n.scan(s, lun)
		}
	}
	return "", 0
}

func (n *Node) multipathd(arguments []string) (string, int) {
	last := arguments[len(arguments)-1]
	switch strings.Join(arguments[:2], " ") {
	case "show daemon":
		if !n.Multipathd {
			return "connection refused", 1
		}
		return "pid 300 idle", 0
	case "add path":
		d := n.diskOf(last)
		if d == nil {
			return "fail", 1
		}
		if n.MapDelay == 0 {
			n.addPath(d)
			return "ok", 0
		}
		time.AfterFunc(n.MapDelay, func() {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.addPath(d)
		})
		return "ok", 0
	case "del path":
		for _, m := range n.maps {
			m.paths = slices.DeleteFunc(m.paths, func(p string) bool { return p == last })
		}
		return "ok", 0
	case "disablequeueing map":
		for _, m := range n.maps {
			m.failing = m.failing || m.alias == last
		}
		return "ok", 0
	case "resize map":
		for _, m := range n.maps {
			if m.alias != last {
				continue
			}
			m.bytes = 0
			for _, p := range m.paths {
				if size := n.size(p); m.bytes == 0 || size < m.bytes {
					m.bytes = size
				}
			}
			return "ok", 0
		}
	}
	return "fail", 1
}

func (n *Node) addPath(d *disk) {
	wwid := n.identityOf(d)
	for _, m := range n.maps {
		if slices.Contains(m.paths, d.name) {
			return
		}
		if m.wwid == wwid {
			m.paths = append(m.paths, d.name)
			return
		}
	}
	n.nextID++
	n.maps = append(n.maps, &dmap{fmt.Sprintf("dm-%d", n.nextID), fmt.Sprintf("mpath%c", 'a'+n.nextID%26), wwid, []string{d.name}, d.bytes, false})
}

func (n *Node) multipath(arguments []string, last string) (string, int) {
	if arguments[0] == "-a" {
		if d := n.diskOf(last); d != nil {
			n.wwids[n.identityOf(d)] = true
		}
		return "", 0
	}
	for i, m := range n.maps {
		if m.alias != last {
			continue
		}
		if slices.ContainsFunc(n.mounts, func(mounted *mount) bool { return mounted.device == m.name }) {
			return "map in use", 1
		}
		if n.isOpened(m.name) {
			return "map in use", 1
		}
		for _, l := range slices.Clone(n.Layers) {
			if l.On == m.name && (!strings.HasPrefix(l.ID, "part") || !n.free(l)) {
				return "map in use", 1
			}
		}
		n.maps = slices.Delete(n.maps, i, i+1)
		return "", 0
	}
	return "", 0
}

func (n *Node) mount(arguments []string) (string, int) {
	at := n.Resolve(arguments[len(arguments)-1])
	if n.Unpropagated {
		return "", 0
	}
	switch {
	case arguments[0] == "--bind":
		from := arguments[len(arguments)-2]
		if device, ok := strings.CutPrefix(from, "/dev/"); ok {
			n.mounts = append(n.mounts, &mount{device: device, root: "/" + device, at: at, kind: "devtmpfs"})
			return "", 0
		}
		for _, m := range slices.Backward(n.mounts) {
			if m.at == n.Resolve(from) {
				n.mounts = append(n.mounts, &mount{device: m.device, root: "/", at: at, kind: m.kind, fsReadOnly: m.fsReadOnly, of: m.of})
				return "", 0
			}
		}
		n.harm = append(n.harm, "a directory of the node itself was given to a pod")
		return "", 0
	case strings.HasPrefix(arguments[1], "remount,bind"):
		for _, m := range slices.Backward(n.mounts) {
			if m.at == at {
				m.readOnly = slices.Contains(strings.Split(arguments[1], ","), "ro")
				m.options = arguments[1]
				return "", 0
			}
		}
		return "not mounted", 32
	}
	kind, options, device := arguments[1], arguments[3], strings.TrimPrefix(arguments[4], "/dev/")
	v := n.volumeOf(device)
	split := strings.Split(options, ",")
	switch {
	case v == nil || v.Filesystem != kind || v.Unfinished:
		return "wrong fs type, bad option, bad superblock", 32
	case v.LUKS != nil && n.openedOf(device) == nil:
		return "unknown filesystem type 'crypto_LUKS'", 32
	case n.isOpened(device), slices.ContainsFunc(n.maps, func(m *dmap) bool { return slices.Contains(m.paths, device) }):
		return device + " already mounted or mount point busy", 32
	case kind == host.XFS && !slices.Contains(split, "nouuid") && slices.ContainsFunc(n.mounts, func(m *mount) bool {
		other := n.volumeOf(m.device)
		return other != nil && other != v && other.UUID == v.UUID
	}):
		return "filesystem has duplicate UUID", 32
	}
	readOnly := slices.Contains(split, "ro")
	n.mounts = append(n.mounts, &mount{device: device, root: "/", at: at, kind: kind, readOnly: readOnly, fsReadOnly: readOnly, options: options, of: v})
	return "", 0
}

func (n *Node) mkfs(name string, arguments []string, device string) (string, int) {
	v := n.volumeOf(device)
	if v == nil {
		return "no such device", 1
	}
	if v.Filesystem != "" && !v.Unfinished || v.Data != "" || v.LUKS != nil && n.openedOf(device) == nil {
		n.harm = append(n.harm, "a volume with data was formatted")
	}
	if name == "mkfs.xfs" && (v.Junk || v.Unfinished) && !slices.Contains(arguments, "-f") {
		return "use the -f option to force overwrite", 1
	}
	v.Filesystem, v.FilesystemBytes, v.Junk, v.Unfinished = strings.TrimPrefix(name, "mkfs."), n.size(device), false, false
	v.make(arguments)
	if n.Forgetful {
		v.UUID = "00000000-0000-0000-0000-000000000001"
	}
	return "", 0
}

// make gives the volume the UUID that mkfs was told.
func (v *Volume) make(arguments []string) {
	for i, argument := range arguments {
		if argument == "-U" {
			v.UUID = arguments[i+1]
		}
		if id, ok := strings.CutPrefix(argument, "uuid="); ok {
			v.UUID = id
		}
	}
}
