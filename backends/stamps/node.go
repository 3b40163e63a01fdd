package stamps

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// NodeRecord is a volume's record of an attachment handed out to a node, in mode csi.
type NodeRecord struct {
	AttachmentID string
	// Node is the node's name, or its beginning if the name is very long.
	Node string
	// ReadOnly means that the node got a read-only attachment.
	ReadOnly bool
}

// forReading ends the record of a read-only attachment. Node names contain no spaces.
const forReading = " ro"

// String returns the record in the form of the volume's metadata.
func (r NodeRecord) String() string {
	text, end := r.AttachmentID+" "+r.Node, ""
	if r.ReadOnly {
		end = forReading
	}
	return text[:min(len(text), LongestValue-len(end))] + end
}

// NodeRecords are a volume's records by the keys of their nodes.
type NodeRecords map[string]NodeRecord

// Name reports whether one of the records names an attachment.
func (r NodeRecords) Name(attachmentID string) bool {
	for _, record := range r {
		if record.AttachmentID == attachmentID {
			return true
		}
	}
	return false
}

// NodeRecordsOf returns a volume's records, except cleared ones.
func NodeRecordsOf(v cinder.Volume) NodeRecords {
	records := NodeRecords{}
	for key, value := range v.Metadata {
		if of, found := strings.CutPrefix(key, NodeRecordPrefix); found && value != "" {
			id, node, _ := strings.Cut(value, " ")
			node, readOnly := strings.CutSuffix(node, forReading)
			records[of] = NodeRecord{AttachmentID: id, Node: cmp.Or(node, "with the key "+of), ReadOnly: readOnly}
		}
	}
	return records
}

// LongestHost is the length of the longest host name that Cinder stores.
const LongestHost = 255

// NodeHost returns the name by which Cinder and arrays know a node. It includes the
// cluster, because two clusters may have nodes of the same name.
func NodeHost(node, cluster string) string {
	suffix := NodeHostSuffix(cluster)
	return node[:min(len(node), LongestHost-len(suffix))] + suffix
}

// NodeHostSuffix ends the names of a cluster's nodes at Cinder.
func NodeHostSuffix(cluster string) string {
	sum := sha256.Sum256([]byte(cluster))
	return "." + hex.EncodeToString(sum[:4])
}
