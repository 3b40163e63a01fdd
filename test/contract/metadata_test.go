package contract

import (
	"encoding/json"
	"net/http"
	"testing"
)

// same compares decoded JSON.
func same(a, b any) bool {
	first, errFirst := json.Marshal(a)
	second, errSecond := json.Marshal(b)
	return errFirst == nil && errSecond == nil && string(first) == string(second)
}

func metadataCases() []testCase {
	return []testCase{
		{"metadata: POST merges, PUT replaces", both, func(t *testing.T, target Target) {
			c := target.client()
			id := available(t, target, object{"metadata": object{"cluster": "a", "keep": "1"}})
			path := "/volumes/" + id + "/metadata"
			wantStrings(t, "GET", c.call(t, "GET", path, nil).want(t, http.StatusOK).body["metadata"], object{"cluster": "a", "keep": "1"})
			merged := c.call(t, "POST", path, object{"metadata": object{"cluster": "b", "added": "x"}}).want(t, http.StatusOK)
			wantStrings(t, "POST", merged.body["metadata"], object{"cluster": "b", "keep": "1", "added": "x"})
			replaced := c.call(t, "PUT", path, object{"metadata": object{"only": "this", "tmp": "y"}}).want(t, http.StatusOK)
			wantStrings(t, "PUT", replaced.body["metadata"], object{"only": "this", "tmp": "y"})
			wantStrings(t, "the volume", show(t, c, id)["metadata"], object{"only": "this", "tmp": "y"})
		}},
		{"metadata: single keys", both, func(t *testing.T, target Target) {
			c := target.client()
			id := available(t, target, object{"metadata": object{"only": "this", "tmp": "y"}})
			path := "/volumes/" + id + "/metadata/"
			set := c.call(t, "PUT", path+"only", object{"meta": object{"only": "that"}}).want(t, http.StatusOK)
			wantStrings(t, "PUT", set.body["meta"], object{"only": "that"})
			wantStrings(t, "GET", c.call(t, "GET", path+"only", nil).want(t, http.StatusOK).body["meta"], object{"only": "that"})
			c.call(t, "DELETE", path+"tmp", nil).wantEmpty(t, http.StatusOK)
			c.call(t, "DELETE", path+"tmp", nil).wantNotFound(t, "Volume "+id+" has no metadata with key tmp.")
			c.call(t, "PUT", path+"only", object{"meta": object{"other": "x"}}).wantBadRequest(t, "Request body and URI mismatch")
			wantStrings(t, "the volume", show(t, c, id)["metadata"], object{"only": "that"})
		}},
		{"metadata: an update of the volume replaces it too", both, func(t *testing.T, target Target) {
			c := target.client()
			id := available(t, target, object{"metadata": object{"old": "1"}})
			c.call(t, "PUT", "/volumes/"+id, object{"volume": object{"metadata": object{"new": "2"}}}).want(t, http.StatusOK)
			wantStrings(t, "the volume", show(t, c, id)["metadata"], object{"new": "2"})
		}},
		{"metadata: os-attach adds entries to the view that only os-detach takes away, one of them", both, func(t *testing.T, target Target) {
			c := target.client()
			id := available(t, target, object{"metadata": object{"mine": "1"}})
			attach(t, c, id, "node1")
			wantStrings(t, "attached", show(t, c, id)["metadata"], object{"mine": "1", "readonly": "False", "attached_mode": "rw"})
			path := "/volumes/" + id + "/metadata"
			wantStrings(t, "the metadata alone", c.call(t, "GET", path, nil).want(t, http.StatusOK).body["metadata"], object{"mine": "1"})
			c.call(t, "PUT", path, object{"metadata": object{"mine": "2"}}).want(t, http.StatusOK)
			wantStrings(t, "replaced", show(t, c, id)["metadata"], object{"mine": "2", "readonly": "False", "attached_mode": "rw"})
			detach(t, c, id)
			wantStrings(t, "detached", show(t, c, id)["metadata"], object{"mine": "2", "readonly": "False"})
		}},
	}
}
