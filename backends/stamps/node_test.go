package stamps

import (
	"maps"
	"strings"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// TestNodeRecords: keys and values have the limits of Cinder's metadata.
func TestNodeRecords(t *testing.T) {
	long := strings.Repeat("n", 253)
	text := NodeRecord{AttachmentID: "3b5a4e8e-6a3c-4c43-a5f1-7bfbd4c6ac48", Node: long}.String()
	if len(text) != LongestValue {
		t.Errorf("a record has %d characters", len(text))
	}
	reading := NodeRecord{AttachmentID: "3b5a4e8e-6a3c-4c43-a5f1-7bfbd4c6ac48", Node: long, ReadOnly: true}.String()
	if len(reading) != LongestValue {
		t.Errorf("a record of an attachment for reading has %d characters", len(reading))
	}
	v := cinder.Volume{Metadata: map[string]string{
		NodeRecordPrefix + "a": text, NodeRecordPrefix + "b": "", NodeRecordPrefix + "c": "id", NodeRecordPrefix + "d": reading, NodeRecordPrefix + "e": "id ro", "x": "y",
	}}
	records := NodeRecordsOf(v)
	if want := map[string]NodeRecord{
		"a": {AttachmentID: "3b5a4e8e-6a3c-4c43-a5f1-7bfbd4c6ac48", Node: long[:218]}, "c": {AttachmentID: "id", Node: "with the key c"},
		"d": {AttachmentID: "3b5a4e8e-6a3c-4c43-a5f1-7bfbd4c6ac48", Node: long[:215], ReadOnly: true}, "e": {AttachmentID: "id", Node: "ro"},
	}; !maps.Equal(records, want) {
		t.Errorf("records %v", records)
	}
	if NodeHost("n1", "cluster-1") == NodeHost("n1", "cluster-2") {
		t.Error("two clusters have one name for their nodes")
	}
	if n := len(NodeHost(long, "cluster-1")); n != LongestHost {
		t.Errorf("the name of a host has %d characters", n)
	}
}
