package csinode

import (
	"fmt"
	"slices"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/host"
)

// FCHost is a Fibre Channel port of the node.
type FCHost struct {
	Number int
	// Name and NodeName are written as sysfs does, with 0x.
	Name, NodeName string
	// State is Online, or what keeps it from being used.
	State string
}

// FCTarget is a port of the storage. Like the kernel, the node gives it a number when
// a switch shows it, and keeps that number when it goes.
type FCTarget struct {
	LUNs map[int]*Volume
	// Zones are the node's ports that the switches let it see.
	Zones []string
	// Gone makes the storage lose the port.
	Gone bool
}

// rport is the kernel's record of a port of the storage.
type rport struct {
	host, number, target int
	name, state          string
}

// Fabric makes the kernel see what has changed in the fabric: it finds ports, loses
// those that are gone together with their disks, and looks for disks on those that are
// new or back, although nobody asked it to.
func (n *Node) Fabric() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.fabric()
}

// ShowPorts makes the storage lose or get ports, or all of them if none is named, and the
// kernel see it.
func (n *Node) ShowPorts(shown bool, names ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for name, t := range n.FCTargets {
		if len(names) == 0 || slices.Contains(names, name) {
			t.Gone = !shown
		}
	}
	n.fabric()
}

func (n *Node) fabric() {
	for _, h := range n.FCHosts {
		for _, name := range sortedKeys(n.FCTargets) {
			t := n.FCTargets[name]
			visible := h.State == "Online" && slices.Contains(t.Zones, h.Name) && !t.Gone
			i := slices.IndexFunc(n.rports, func(r *rport) bool { return r.host == h.Number && r.name == name })
			if i < 0 {
				if !visible {
					continue
				}
				n.rports = append(n.rports, &rport{h.Number, len(n.rports), len(n.rports), name, "Not Present"})
				i = len(n.rports) - 1
			}
			r := n.rports[i]
			switch {
			case visible && r.state != "Online":
				r.state = "Online"
				for _, lun := range sortedKeys(t.LUNs) {
					n.scan(n.nexusOf(r), lun)
				}
			case !visible && r.state == "Online":
				r.state = "Not Present"
				for _, d := range slices.Clone(n.disks) {
					if d.session.rport == r {
						n.lose(d)
					}
				}
			}
		}
	}
}

// Block makes the kernel lose a port of the storage for a moment: it keeps the disks.
func (n *Node) Block(target string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, r := range n.rports {
		if r.name == target {
			r.state = "Blocked"
		}
	}
}

// lose does what the kernel does to a disk whose port does not come back.
func (n *Node) lose(d *disk) {
	n.disks = slices.DeleteFunc(n.disks, func(other *disk) bool { return other == d })
	for _, m := range n.maps {
		m.paths = slices.DeleteFunc(m.paths, func(p string) bool { return p == d.name })
	}
}

// nexusOf returns a remote port in the form that disks know sessions by.
func (n *Node) nexusOf(r *rport) *session {
	return &session{host: r.host, state: loggedIn, rport: r}
}

func (n *Node) fcTree(files map[string]string) {
	for _, h := range n.FCHosts {
		directory := fmt.Sprintf("/sys/class/fc_host/host%d/", h.Number)
		files[directory+"port_name"], files[directory+"node_name"], files[directory+"port_state"] = h.Name+"\n", h.NodeName+"\n", h.State+"\n"
		files[fmt.Sprintf("/sys/class/scsi_host/host%d/scan", h.Number)] = ""
		// Another node in the same zone is not storage.
		other := fmt.Sprintf("/sys/class/fc_remote_ports/rport-%d:0-99/", h.Number)
		files[other+"port_name"], files[other+"port_state"], files[other+"scsi_target_id"] = "0x10000000c9ffffff\n", "Online\n", "-1\n"
	}
	for _, r := range n.rports {
		directory := fmt.Sprintf("/sys/class/fc_remote_ports/rport-%d:0-%d/", r.host, r.number)
		files[directory+"port_name"], files[directory+"port_state"], files[directory+"scsi_target_id"] = r.name+"\n", r.state+"\n", fmt.Sprintf("%d\n", r.target)
	}
}

// scanFC scans one LUN at one number, as the kernel does for a port that is there.
func (n *Node) scanFC(number, target, lun int) {
	for _, r := range n.rports {
		if r.host == number && r.target == target && r.state == "Online" {
			n.scan(n.nexusOf(r), lun)
		}
	}
}

// addressOf returns where a session has a LUN.
func addressOf(s *session, lun int) host.Address {
	a := host.Address{Host: s.host, LUN: lun}
	if s.rport != nil {
		a.Target = s.rport.target
	}
	return a
}
