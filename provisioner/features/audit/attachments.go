package audit

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// An attachment of a volume of the CSI driver is made while a VolumeAttachment asks for
// it, and ends before the VolumeAttachment does. If Cinder shows an attachment both
// before and after the VolumeAttachments were read, it also existed in between; if no
// VolumeAttachment asked for it then, nobody needs it. So volumes with doubtful
// attachments are read once more, and calls under way cause no findings.

// ConfirmAttachments reads those volumes again whose attachments differ from what the
// cluster's VolumeAttachments ask for.
func ConfirmAttachments(ctx context.Context, find Finder, listings map[string]Listing, records objects.Records) {
	volumes := map[place]*cinder.Volume{}
	for name, listing := range listings {
		listing.Again = nil // of an earlier comparison
		listings[name] = listing
		if listing.Err == nil {
			for i := range listing.Volumes {
				if v := &listing.Volumes[i]; stamps.IsCSI(*v) {
					volumes[place{name, v.ID}] = v
				}
			}
		}
	}
	for _, r := range records.Volumes {
		v, listed := volumes[place{r.Backend, r.VolumeID}]
		if !listed || r.Damage != nil || !r.CSI || !r.Stamp().Owns(*v) {
			continue
		}
		wanted := records.Attachments[r.PVName]
		if len(leaked(*v, wanted)) == 0 && len(missing(*v, wanted)) == 0 {
			continue
		}
		again, found, err := find(ctx, r.Backend, r.VolumeID)
		if err != nil || !found {
			continue // the next audit judges it
		}
		listing := listings[r.Backend]
		if listing.Again == nil {
			listing.Again = map[string]cinder.Volume{}
		}
		listing.Again[r.VolumeID] = again
		listings[r.Backend] = listing
	}
}

// leak is an attachment or a record of a volume for a node without a VolumeAttachment.
type leak struct {
	attachment string
	// node is empty if no record says which node has the attachment. gone means that
	// only the record is left.
	node string
	gone bool
}

// leaked lists the leaks for which no VolumeAttachment asks, in order.
func leaked(v cinder.Volume, wanted []objects.Attachment) []leak {
	var leaks []leak
	records := stamps.NodeRecordsOf(v)
	recorded := map[string]bool{}
	for _, key := range slices.Sorted(maps.Keys(records)) {
		r := records[key]
		recorded[r.AttachmentID] = true
		if !slices.ContainsFunc(wanted, func(a objects.Attachment) bool { return a.NodeKey == key }) {
			leaks = append(leaks, leak{attachment: r.AttachmentID, node: r.Node, gone: !has(v, r.AttachmentID)})
		}
	}
	// Any VolumeAttachment without a record may have one of the attachments without a
	// record.
	unrecorded := 0
	for _, a := range wanted {
		if _, found := records[a.NodeKey]; !found {
			unrecorded++
		}
	}
	for _, a := range v.Attachments {
		if recorded[a.ID] || a.ServerID != "" {
			continue
		}
		if unrecorded--; unrecorded < 0 {
			leaks = append(leaks, leak{attachment: a.ID})
		}
	}
	return leaks
}

// missing lists the VolumeAttachments that are attached but have nothing at Cinder. An
// attachment without a record may belong to any of them.
func missing(v cinder.Volume, wanted []objects.Attachment) []objects.Attachment {
	var without []objects.Attachment
	records := stamps.NodeRecordsOf(v)
	unrecorded := len(v.Attachments)
	for _, r := range records {
		if has(v, r.AttachmentID) {
			unrecorded--
		}
	}
	for _, a := range wanted {
		if !a.Attached || a.Ends || has(v, records[a.NodeKey].AttachmentID) {
			continue
		}
		if _, found := records[a.NodeKey]; !found && unrecorded > 0 {
			unrecorded--
			continue
		}
		without = append(without, a)
	}
	return without
}

func has(v cinder.Volume, attachment string) bool {
	return slices.ContainsFunc(v.Attachments, func(a cinder.Attachment) bool { return a.ID == attachment })
}

// attachments judges the attachments of a recorded volume of the CSI driver.
func (c *comparison) attachments(r objects.Volume, before cinder.Volume) {
	now, doubted := c.Backends[r.Backend].Again[r.VolumeID]
	if !doubted {
		return
	}
	wanted := c.Records.Attachments[r.PVName]
	f := Finding{Backend: r.Backend, Volume: r.VolumeID, PersistentVolume: r.PVName, Tenant: r.Tenant}
	var may, left []string
	earlier := leaked(before, wanted)
	for _, l := range leaked(now, wanted) {
		if !slices.ContainsFunc(earlier, func(e leak) bool { return e.attachment == l.attachment }) {
			continue
		}
		switch {
		case l.gone:
			left = append(left, fmt.Sprintf("%s to node %s", l.attachment, l.node))
		case l.node == "":
			may = append(may, fmt.Sprintf("a node that no record names (attachment %s)", l.attachment))
		default:
			may = append(may, fmt.Sprintf("node %s (attachment %s)", l.node, l.attachment))
		}
	}
	if len(may) > 0 {
		f.Kind = LeakedAttachment
		f.Message = fmt.Sprintf("no VolumeAttachment asks for it on %s, which may still write to it", strings.Join(may, " and "))
		c.add(f)
	} else if len(left) > 0 {
		f.Kind = LeakedAttachment
		f.Message = fmt.Sprintf("it records attachment %s, which no VolumeAttachment asks for, and which no longer exists; the next attachment clears the record", strings.Join(left, " and "))
		c.add(f)
	}
	without := missing(now, wanted)
	for _, a := range missing(before, wanted) {
		if !c.young(a.CreatedAt) && slices.ContainsFunc(without, func(w objects.Attachment) bool { return w.Name == a.Name }) {
			f.Kind = MissingAttachment
			f.Message = fmt.Sprintf("VolumeAttachment %s says that it is attached to node %s, but it is not: a pod there cannot reach it", a.Name, a.Node)
			c.add(f)
		}
	}
}
