package stamps

import (
	"strings"
	"testing"
)

// TestGroupsAreRecognizedByTheirDescription, and by nothing less than all of it.
func TestGroupsAreRecognizedByTheirDescription(t *testing.T) {
	stamp := Group{Cluster: strings.Repeat("c", 63), ClusterUID: "3f0f0f0e-0000-4000-8000-000000000001", UID: "3f0f0f0e-0000-4000-8000-000000000002"}
	text := stamp.Description()
	if len(text) > LongestValue || OfGroup(text) != stamp {
		t.Errorf("%q (%d characters) is the stamp %+v", text, len(text), OfGroup(text))
	}
	for _, other := range []string{"", "an operator's", text[1:], strings.TrimSuffix(text, ", UID "+stamp.ClusterUID)} {
		if got := OfGroup(other); got != (Group{}) {
			t.Errorf("%q is the stamp %+v", other, got)
		}
	}
	for name, other := range map[string]Group{"another UID": {stamp.Cluster, "x", "g"}, "another cluster": {"x", stamp.ClusterUID, "g"}} {
		if stamp.SameCluster(other) || (Group{}).SameCluster(Group{}) || !stamp.SameCluster(Group{stamp.Cluster, stamp.ClusterUID, "g"}) {
			t.Errorf("%s is the same cluster", name)
		}
	}
}
