package checker

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Write is where the kernel of a machine that is on writes a volume.
type Write struct {
	// Node is the machine, and Volume the ID of the volume that it has mounted.
	Node, Volume string
	// Address is the place on the array that it writes to, and Behind the ID of the volume
	// that the array shows it there now; empty if the array shows it none.
	Address, Behind string
}

// Report is what a node's plugin says that it has staged.
type Report struct {
	Node string
	// There means that there is a Node object.
	There bool
	// Volumes are the IDs of the volumes.
	Volumes []string
}

// Pod is a pod that is meant to run on a machine.
type Pod struct {
	Claim, ClaimUID, VolumeID, Node string
	// Runs means that it has its volume.
	Runs bool
}

// lookAtWrites finds volumes that two nodes may write to, and nodes that write to another
// volume than they have mounted. All writes are of one moment.
func (c *Course) lookAtWrites(writes []Write) {
	writers := map[string][]string{}
	for _, w := range writes {
		switch w.Behind {
		case "":
			// The array keeps it out.
		case w.Volume:
			writers[w.Volume] = append(writers[w.Volume], w.Node)
		default:
			c.Note(Finding{WrongContent, "node " + w.Node, fmt.Sprintf("it has volume %s mounted, and writes to %s, where volume %s is by now", w.Volume, w.Address, w.Behind), w.Volume, ""})
		}
	}
	for volume, nodes := range writers {
		slices.Sort(nodes)
		if nodes = slices.Compact(nodes); len(nodes) > 1 {
			c.Note(Finding{TwoWriters, "volume " + volume, fmt.Sprintf("it is mounted on %s, and the array lets all of them write", strings.Join(nodes, " and ")), volume, ""})
		}
	}
}

// isMachine reports whether a node really stages its volumes.
func (s State) isMachine(node string) bool { return slices.Contains(s.Machines, node) }

// on returns how a finding about a node is counted: what a machine holds, or waits for, is
// held for ever.
func (s State) on(node string, kind Kind) Kind {
	if s.isMachine(node) {
		return HeldForEver
	}
	return kind
}

// checkMachines finds what is held for ever although all machines are back: pods without
// their volumes, nodes that have what nothing wants there, and reports of what is gone.
func (e ending) checkMachines() []Finding {
	var findings []Finding
	wanted := map[[2]string]bool{}
	for _, a := range e.Attachments {
		wanted[[2]string{a.Node, a.VolumeID}] = wanted[[2]string{a.Node, a.VolumeID}] || !a.Asked
	}
	held := func(object, volume, uid, format string, arguments ...any) {
		findings = append(findings, Finding{HeldForEver, object, fmt.Sprintf(format, arguments...), volume, uid})
	}
	for _, r := range e.Reports {
		for _, volume := range r.Volumes {
			v, there := e.volumes[volume]
			switch {
			case !r.There:
				held("node "+r.Node, volume, "", "its report names volume %s, and its Node is gone", volume)
			case !there:
				held("node "+r.Node, volume, "", "its report names volume %s, which is gone", volume)
			case !wanted[[2]string{r.Node, volume}]:
				held("node "+r.Node, volume, v.Metadata[StampClaimUID], "its report names %s, which nothing attaches to it, and bars it from all others", describe(v))
			}
		}
	}
	for _, w := range e.Writes {
		if !wanted[[2]string{w.Node, w.Volume}] {
			held("node "+w.Node, w.Volume, "", "it has volume %s mounted, which nothing attaches to it", w.Volume)
		}
	}
	for _, p := range e.Pods {
		if !p.Runs {
			held("claim "+p.Claim, p.VolumeID, p.ClaimUID, "its pod on node %s does not get volume %s", p.Node, cmp.Or(p.VolumeID, "of the claim"))
		}
	}
	return findings
}
