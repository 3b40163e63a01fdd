package backends

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
)

// nodeKeysOf lists the keys of nodes in a volume's metadata.
func nodeKeysOf(v cinder.Volume) []string {
	keys := slices.Sorted(maps.Keys(v.Metadata))
	return slices.DeleteFunc(keys, func(key string) bool {
		return !strings.HasPrefix(key, stamps.NodeRecordPrefix) && !strings.HasPrefix(key, stamps.EarlierNodeRecordPrefix)
	})
}

// TestAVolumeHasAsManyKeysAsNodesHaveIt: more would make the listing of its backend larger
// than any answer may be.
func TestAVolumeHasAsManyKeysAsNodesHaveIt(t *testing.T) {
	memory := newMemoryCinder()
	id := memory.add(forNodes())
	volumes := memory.term(t)
	for i := range 200 {
		node := fmt.Sprint("n", i)
		_, err := volumes.Publish(t.Context(), claimTarget(1, id), toNode(node))
		success(t, err)
		if keys := nodeKeysOf(memory.present()[id]); !slices.Equal(keys, []string{stamps.NodeRecordPrefix + "key-of-" + node}) {
			t.Fatalf("on node %s, the volume has the keys %q", node, keys)
		}
		success(t, volumes.Unpublish(t.Context(), claimTarget(1, id), UnpublishRequest{Node: node, Key: "key-of-" + node, Attached: true}))
		if keys := nodeKeysOf(memory.present()[id]); len(keys) > 0 {
			t.Fatalf("detached from node %s, the volume has the keys %q", node, keys)
		}
	}
}

// TestDeletionOfARecordWhoseAnswerIsLost: the repeated request finds no key any more.
func TestDeletionOfARecordWhoseAnswerIsLost(t *testing.T) {
	memory := newMemoryCinder()
	id := memory.add(forNodes())
	_, err := memory.term(t).Publish(t.Context(), claimTarget(1, id), toNode("n1"))
	success(t, err)
	memory.fault = failOnce("metadata.delete", lost)
	from := UnpublishRequest{Node: "n1", Key: "key-of-n1", Attached: true}
	for range 2 {
		err = memory.term(t).Unpublish(t.Context(), claimTarget(1, id), from)
	}
	success(t, err)
	if v := memory.present()[id]; len(nodeKeysOf(v)) > 0 || v.Status != cinder.StatusAvailable {
		t.Errorf("the volume is %s, with the keys %q", v.Status, nodeKeysOf(v))
	}
}

// TestRecordsOfEarlierReleases: they are read, replaced when their node is attached, and
// emptied when it is detached. A leader of such a release may come back in between; what it
// wrote counts.
func TestRecordsOfEarlierReleases(t *testing.T) {
	const earlier, ours = stamps.EarlierNodeRecordPrefix + "key-of-n1", stamps.NodeRecordPrefix + "key-of-n1"
	for name, test := range map[string]struct {
		// given are the records, as they name the node's attachment or one that is gone.
		given map[string]string
		// attached are the keys after the volume was attached to the node again, and
		// detached those after it was detached. Values are left out if they are empty.
		attached, detached []string
	}{
		"its record":                           {map[string]string{earlier: "it"}, []string{earlier}, nil},
		"its record, and an older one of ours": {map[string]string{earlier: "it", ours: "gone"}, []string{earlier, ours}, nil},
		"an outdated one":                      {map[string]string{earlier: "gone"}, []string{ours}, nil},
		"an empty one, and ours":               {map[string]string{earlier: "", ours: "it"}, []string{ours}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			memory := newMemoryCinder()
			id := memory.add(forNodes())
			attachment, _, err := memory.client().CreateAttachment(t.Context(), id, toNode("n1").Connector, false)
			success(t, err)
			outdated := !slices.Contains(slices.Collect(maps.Values(test.given)), "it")
			if outdated {
				success(t, memory.client().DeleteAttachment(t.Context(), attachment))
			} else {
				success(t, memory.client().CompleteAttachment(t.Context(), attachment))
			}
			for key, value := range test.given {
				switch value {
				case "it":
					value = stamps.NodeRecord{AttachmentID: attachment, Node: "n1"}.String()
				case "gone":
					value = "gone n1"
				}
				success(t, memory.client().UpdateMetadata(t.Context(), id, map[string]string{key: value}))
			}
			filled := func() (keys []string) {
				v := memory.present()[id]
				return slices.DeleteFunc(nodeKeysOf(v), func(key string) bool { return v.Metadata[key] == "" })
			}
			published, err := memory.term(t).Publish(t.Context(), claimTarget(1, id), toNode("n1"))
			success(t, err)
			if again := published.AttachmentID == attachment; again == outdated {
				t.Errorf("attachment %s was handed out, not %s", published.AttachmentID, attachment)
			}
			slices.Sort(test.attached)
			if keys := filled(); !slices.Equal(keys, test.attached) {
				t.Errorf("attached, the records are %q, want %q", keys, test.attached)
			}
			if of := stamps.NodeRecordsOf(memory.present()[id])["key-of-n1"]; of.AttachmentID != published.AttachmentID {
				t.Errorf("the record is %+v", of)
			}
			success(t, memory.term(t).Unpublish(t.Context(), claimTarget(1, id), UnpublishRequest{Node: "n1", Key: "key-of-n1", Attached: true}))
			if keys := filled(); !slices.Equal(keys, test.detached) {
				t.Errorf("detached, the records are %q", keys)
			}
			if v := memory.present()[id]; v.Status != cinder.StatusAvailable || slices.Contains(nodeKeysOf(v), ours) {
				t.Errorf("the volume is %s, with the keys %q", v.Status, nodeKeysOf(v))
			}
		})
	}
}
