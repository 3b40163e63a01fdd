package csinode

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/host"
)

// tree returns what the kernel shows as files.
func (n *Node) tree() map[string]string {
	files := map[string]string{"/proc/sys/kernel/random/boot_id": n.Boot + "\n", "/proc/1/mountinfo": n.mountinfo(), "/proc/stat": fmt.Sprintf("cpu  1 2 3\nbtime %d\n", n.booted.Unix())}
	for _, s := range n.sessions {
		name := fmt.Sprintf("session%d", s.id)
		directory, connection := "/sys/class/iscsi_session/"+name+"/", fmt.Sprintf("/sys/class/iscsi_connection/connection%d:0/", s.id)
		address, port, _ := net.SplitHostPort(s.portal)
		files[directory+"targetname"] = s.target + "\n"
		files[directory+"initiatorname"] = s.initiator + "\n"
		files[directory+"state"] = s.state + "\n"
		files[directory+"target_id"] = "0\n"
		files[directory+"ifacename"] = s.iface + "\n"
		files[connection+"persistent_address"] = address + "\n"
		files[connection+"persistent_port"] = port + "\n"
		files[fmt.Sprintf("/sys/class/iscsi_host/host%d/device/%s/uevent", s.host, name)] = ""
		files[fmt.Sprintf("/sys/class/scsi_host/host%d/scan", s.host)] = ""
	}
	for _, d := range n.disks {
		directory := "/sys/class/scsi_device/" + d.address.String() + "/device/"
		files[directory+"type"] = "0\n"
		files[directory+"delete"], files[directory+"rescan"], files[directory+"state"] = "", "", "running\n"
		if time.Now().Before(d.shown) {
			continue
		}
		files[directory+"block/"+d.name+"/size"] = ""
		n.block(files, d.name, d.bytes)
		files["/sys/block/"+d.name+"/device/scsi_device/"+d.address.String()+"/uevent"] = ""
		for _, m := range n.maps {
			if slices.Contains(m.paths, d.name) {
				files["/sys/block/"+d.name+"/holders/"+m.name+"/uevent"] = ""
				files["/sys/block/"+m.name+"/slaves/"+d.name+"/uevent"] = ""
			}
		}
	}
	for _, m := range n.maps {
		n.block(files, m.name, m.bytes)
		files["/sys/block/"+m.name+"/dm/uuid"] = "mpath-3" + m.wwid + "\n"
		files["/sys/block/"+m.name+"/dm/name"] = m.alias + "\n"
	}
	for _, l := range n.Layers {
		n.block(files, l.Name, 1<<20)
		files["/sys/block/"+path.Join(l.On, l.Partition)+"/holders/"+l.Name+"/uevent"] = ""
		if l.ID != "" {
			files["/sys/block/"+l.Name+"/dm/uuid"], files["/sys/block/"+l.Name+"/dm/name"] = l.ID+"\n", l.Alias+"\n"
		}
	}
	n.cgroupTree(files)
	n.openedTree(files)
	n.nvmeTree(files)
	n.fcTree(files)
	n.rbdTree(files)
	return files
}

func (n *Node) block(files map[string]string, name string, bytes int64) {
	files["/sys/block/"+name+"/ro"] = map[bool]string{true: "1\n", false: "0\n"}[n.setro[name]]
	files["/sys/block/"+name+"/size"] = fmt.Sprintf("%d\n", bytes/512)
	files["/sys/block/"+name+"/dev"] = number(name) + "\n"
	files["/sys/dev/block/"+number(name)+"/uevent"] = "MAJOR=8\nDEVNAME=" + name + "\nDEVTYPE=disk\n"
}

func number(device string) string {
	sum := 0
	for _, r := range device {
		sum = sum*31 + int(r)
	}
	return fmt.Sprintf("8:%d", sum%1_000_000)
}

func (n *Node) mountinfo() string {
	var b strings.Builder
	b.WriteString("22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda1 rw\n")
	for i, m := range n.mounts {
		of, source, super := number(m.device), "/dev/"+m.device, "rw"
		if m.kind == "devtmpfs" {
			of, source = "0:5", "udev"
		}
		if m.fsReadOnly {
			super = "ro"
		}
		mode := "rw"
		if m.readOnly {
			mode = "ro"
		}
		fmt.Fprintf(&b, "%d 22 %s %s %s %s,relatime shared:%d - %s %s %s\n", i+30, of, m.root, strings.ReplaceAll(m.at, " ", `\040`), mode, i+30, m.kind, source, super)
	}
	return b.String()
}

// SCSI answers as a disk.
func (n *Node) SCSI(_ context.Context, name string, command []byte, length int) ([]byte, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.crashed {
		return nil, ErrCrashed
	}
	d := n.diskOf(name)
	if d == nil {
		return nil, syscall.ENOENT
	}
	if d.early > 0 {
		d.early--
		return nil, syscall.ENXIO
	}
	if d.offline || !n.answers(d.session) {
		return nil, syscall.EIO
	}
	v := n.live(d)
	answer := make([]byte, length)
	if command[0] == 0x9e {
		if v == nil {
			return nil, syscall.EIO
		}
		binary.BigEndian.PutUint64(answer, uint64(v.Bytes/512-1))
		binary.BigEndian.PutUint32(answer[8:], 512)
		return answer, nil
	}
	answer[1] = command[2]
	if v == nil {
		answer[0] = 0x7f
		return answer, nil
	}
	value := []byte(v.Serial)
	if value == nil || v.Serial == "" {
		value = []byte("beaf11")
	}
	if command[2] == 0x83 {
		// A port's name comes first, and must not be taken for the disk's.
		value = []byte{0x01, 0x13, 0, 8, 9, 9, 9, 9, 9, 9, 9, 9}
		naa, err := hex.DecodeString(n.identityOf(d))
		if err != nil {
			return nil, err
		}
		value = append(value, 0x01, 0x03, 0, byte(len(naa)))
		value = append(value, naa...)
		// Like Linux's own target, name the port and the target in the end.
		for kind, name := range map[byte]string{0x98: d.session.target + ",t,0x0001", 0xa8: d.session.target} {
			value = append(value, 0x53, kind, 0, byte(len(name)))
			value = append(value, name...)
		}
	}
	binary.BigEndian.PutUint16(answer[2:], uint16(len(value)))
	return answer[:min(4+copy(answer[4:], value), int(binary.BigEndian.Uint16(command[3:])))], nil
}

// ReadDevice reads content.
func (n *Node) ReadDevice(_ context.Context, device string, offset int64, length int) ([]byte, error) {
	n.mu.Lock()
	content, err := n.readDevice(device, offset, length)
	after := n.AfterRead
	n.mu.Unlock()
	if after != nil {
		after(device)
	}
	return content, err
}

func (n *Node) readDevice(device string, offset int64, length int) ([]byte, error) {
	if n.crashed {
		return nil, ErrCrashed
	}
	n.use(device, "reading")
	v := n.volumeOf(device)
	if v == nil {
		return nil, syscall.EIO
	}
	o := n.openedOf(device)
	switch {
	case o == nil && v.LUKS != nil:
		return n.once(fmt.Sprint(offset, length, *v.LUKS, v.written()), func() []byte { return v.outside(offset, length) }), nil
	case o != nil && (v.LUKS == nil || v.LUKS.UUID != o.of.UUID || !v.written()):
		return bytes.Repeat([]byte{0xa5}, length), nil // it decrypts to noise
	case offset == 0 && v.LUKS == nil && v.Torn:
		return bytes.Repeat([]byte{0x5a}, length), nil
	case offset > 0 && !v.Junk:
		return n.once(fmt.Sprint(length), func() []byte { return make([]byte, length) }), nil
	}
	return n.once(fmt.Sprint(length, v.Filesystem, v.UUID, v.FilesystemBytes, v.Unfinished, v.Junk), func() []byte { return v.Content(length) }), nil
}

// once makes the same content only once, as tests read megabytes again and again. Nobody
// writes to it.
func (n *Node) once(what string, content func() []byte) []byte {
	if n.contents == nil {
		n.contents = map[string][]byte{}
	}
	if _, known := n.contents[what]; !known {
		n.contents[what] = content()
	}
	return n.contents[what]
}

// Content returns the beginning of a volume.
func (v *Volume) Content(length int) []byte {
	content := make([]byte, length)
	id, _ := hex.DecodeString(strings.ReplaceAll(v.UUID, "-", ""))
	switch {
	case v.Filesystem == host.XFS:
		copy(content, "XFSB")
		binary.BigEndian.PutUint32(content[4:], 4096)
		binary.BigEndian.PutUint64(content[8:], uint64(v.FilesystemBytes/4096))
		copy(content[32:], id)
		if v.Unfinished {
			content[126] = 1
		}
	case v.Filesystem != "":
		super := content[1024:]
		binary.LittleEndian.PutUint16(super[0x38:], 0xef53)
		binary.LittleEndian.PutUint32(super[0x4:], uint32(v.FilesystemBytes/4096))
		binary.LittleEndian.PutUint32(super[0x18:], 2)
		binary.LittleEndian.PutUint32(super[0x5c:], 0x4)
		binary.LittleEndian.PutUint32(super[0x60:], map[string]uint32{host.Ext4: 0x40}[v.Filesystem])
		copy(super[0x68:], id)
	case v.Junk:
		content[length-1] = 1
	}
	return content
}
