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
	return slices.DeleteFunc(keys, func(key string) bool { return !strings.HasPrefix(key, stamps.NodeRecordPrefix) })
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
