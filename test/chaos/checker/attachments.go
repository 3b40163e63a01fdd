package checker

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
)

// What a volume of mode csi says about itself.
const (
	stampMode      = policy.StampPrefix + "mode"
	stampMarked    = policy.StampPrefix + "attached"
	nodeRecord     = "standalone-cinder-node-"
	modeCSI        = "csi"
	statusAttached = "attached"
)

// IsOnNodes reports whether a volume is of mode csi: its nodes get it one by one.
func IsOnNodes(v cindersim.Volume) bool { return v.Metadata[stampMode] == modeCSI }

// Attachment is a VolumeAttachment.
type Attachment struct {
	UID, Name, PV, VolumeID, Node string
	// Attached is its status: from then on the node may write to the volume.
	Attached bool
	// Asked means that its deletion was requested.
	Asked bool
	// Error is what the driver last said about it.
	Error string
}

func (a Attachment) finding(kind Kind, format string, arguments ...any) Finding {
	return Finding{kind, "VolumeAttachment " + a.Name, fmt.Sprintf(format, arguments...), a.VolumeID, strings.TrimPrefix(a.PV, "pvc-")}
}

// hasNode reports whether Cinder shows a completed attachment of a node.
func hasNode(v cindersim.Volume, node string) bool {
	return slices.ContainsFunc(v.Attachments, func(a cindersim.Attachment) bool { return a.Status == statusAttached && nodeOf(a) == node })
}

// nodeOf returns the node that an attachment was made for.
func nodeOf(a cindersim.Attachment) string {
	node, _, _ := strings.Cut(a.Host, ".")
	return node
}

// lookAtAttachments checks what must be true at every moment: a node that was told
// that it has a volume has it, and no other node has it, until the detachment is
// requested.
func (c *Course) lookAtAttachments(s Sample, volumes map[string]cindersim.Volume) {
	holders := map[string]Attachment{}
	for _, a := range s.Attachments {
		v, there := volumes[a.VolumeID]
		if !a.Attached || !there || s.AttachmentAsked(a.UID) {
			continue
		}
		if other, taken := holders[a.VolumeID]; taken {
			c.Note(a.finding(DoubledAttachment, "node %s was told that it has %s, and so was node %s", a.Node, describe(v), other.Node))
		}
		holders[a.VolumeID] = a
		if !hasNode(v, a.Node) {
			c.Note(a.finding(LostAttachment, "node %s was told that it has %s, and Cinder attaches it to %q", a.Node, describe(v), nodesOf(v)))
		}
	}
	for _, v := range s.Volumes {
		if _, foreign := s.Foreign[v.ID]; foreign || !IsOnNodes(v) {
			continue
		}
		if nodes := nodesOf(v); len(nodes) > 1 {
			c.Note(Finding{DoubledAttachment, describe(v), fmt.Sprintf("Cinder attaches it to %q", nodes), v.ID, v.Metadata[StampClaimUID]})
		}
	}
}

// nodesOf returns the nodes that Cinder attaches a volume to.
func nodesOf(v cindersim.Volume) []string {
	var nodes []string
	for _, a := range v.Attachments {
		if a.Status == statusAttached {
			nodes = append(nodes, nodeOf(a))
		}
	}
	slices.Sort(nodes)
	return nodes
}

// checkAttachments compares the VolumeAttachments with what Cinder and the volumes'
// records show.
func (e ending) checkAttachments() []Finding {
	var findings []Finding
	wanted := map[string]map[string]bool{}
	for _, a := range e.Attachments {
		v, there := e.volumes[a.VolumeID]
		switch {
		case a.Asked:
			findings = append(findings, a.finding(e.on(a.Node, Stuck), "is deleted and does not go: %s", a.Error))
			continue
		case !a.Attached:
			findings = append(findings, a.finding(e.on(a.Node, Stuck), "is not attached: %s", a.Error))
		case !there:
			findings = append(findings, a.finding(LostAttachment, "%s", e.stateOf(a.VolumeID)))
		case !hasNode(v, a.Node):
			findings = append(findings, a.finding(LostAttachment, "Cinder attaches %s to %q", describe(v), nodesOf(v)))
		}
		if wanted[a.VolumeID] == nil {
			wanted[a.VolumeID] = map[string]bool{}
		}
		wanted[a.VolumeID][a.Node] = true
	}
	for _, v := range e.Volumes {
		if !e.isOurs(v) || !IsOnNodes(v) {
			continue
		}
		report := func(kind Kind, format string, arguments ...any) {
			findings = append(findings, Finding{kind, describe(v), fmt.Sprintf(format, arguments...), v.ID, v.Metadata[StampClaimUID]})
		}
		had := map[string]bool{}
		for _, a := range v.Attachments {
			node := nodeOf(a)
			switch {
			case !wanted[v.ID][node]:
				report(e.on(node, LeakedAttachment), "attachment %s of node %q (%s), and no VolumeAttachment wants it", a.ID, node, a.Status)
			case had[node] || len(had) > 0:
				report(DoubledAttachment, "attachment %s of node %q (%s) is not the only one", a.ID, node, a.Status)
			}
			had[node] = true
		}
		for _, key := range slices.Sorted(maps.Keys(v.Metadata)) {
			id, node, _ := strings.Cut(v.Metadata[key], " ")
			if strings.HasPrefix(key, nodeRecord) && id != "" && !wanted[v.ID][node] {
				report(e.on(node, LeakedAttachment), "a record of attachment %s of node %q, and no VolumeAttachment wants it", id, node)
			}
		}
	}
	return findings
}

// unfinishedOnNodes returns what is missing for a volume of mode csi to be
// attached.
func unfinishedOnNodes(v cindersim.Volume) string {
	switch {
	case !IsOnNodes(v):
		return "is not of mode csi"
	case v.Metadata[stampMarked] != "true":
		return "is not marked as recorded"
	case v.Status != available && !isInUse(v):
		return "cannot be attached"
	}
	return ""
}

// mustBeKept checks the volume of a CSI PersistentVolume that is still wanted.
func (c *Course) mustBeKept(pv PV, volumes map[string]cindersim.Volume, because string) (found Finding, wrong bool) {
	found = Finding{WronglyDeleted, "PersistentVolume " + pv.Name, "", pv.VolumeID, pv.ClaimUID}
	v, there := volumes[pv.VolumeID]
	switch {
	case !there:
		found.Text = fmt.Sprintf("volume %s is gone; %s", pv.VolumeID, because)
	case slices.Contains([]string{available, "reserved", attaching, "detaching"}, v.Status) || isInUse(v):
		return Finding{}, false
	default:
		found.Text = fmt.Sprintf("%s; %s", describe(v), because)
	}
	return found, true
}
