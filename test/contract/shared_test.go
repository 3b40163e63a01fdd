package contract

import (
	"net/http"
	"testing"
)

// sharedVolume returns an available volume that several hosts may attach.
func sharedVolume(t testing.TB, target Target) string {
	t.Helper()
	c := target.client()
	id := available(t, target, object{"volume_type": needType(t, target.Types.Shared, "CONTRACT_TYPE_SHARED")})
	if view := show(t, c, id); view["multiattach"] != true {
		t.Fatalf("multiattach is %v", view["multiattach"])
	}
	return id
}

// sharedCases cover volumes of types with multiattach, on which late or
// repeated requests have an effect that Cinder rejects on other volumes.
func sharedCases() []testCase {
	return []testCase{
		{"shared: a reservation while it is in use, and its end", both, func(t *testing.T, target Target) {
			c := target.client()
			id := sharedVolume(t, target)
			reserve(t, c, id)
			initialize(t, c, id, connector("node1", nil))
			attach(t, c, id, "node1")
			wantStatus(t, c, id, "in-use")
			reserve(t, c, id)
			wantStatus(t, c, id, "attaching")
			act(t, c, id, "os-unreserve", object{}).wantEmpty(t, http.StatusAccepted)
			wantStatus(t, c, id, "in-use")
			terminate(t, c, id, connector("node1", nil))
			detach(t, c, id)
			wantStatus(t, c, id, "available")
		}},
		{"shared: two hosts by os-attach, detached one by one", both, func(t *testing.T, target Target) {
			c := target.client()
			id := sharedVolume(t, target)
			attach(t, c, id, "node1")
			attach(t, c, id, "node2")
			found := attachmentsOf(t, c, id)
			if len(found) != 2 {
				t.Fatalf("it has %d attachments", len(found))
			}
			for i, want := range []string{"in-use", "available"} {
				act(t, c, id, "os-detach", object{"attachment_id": found[i]["id"]}).wantEmpty(t, http.StatusAccepted)
				wantStatus(t, c, id, want)
			}
		}},
		{"shared: a second attachment while it is in use", both, func(t *testing.T, target Target) {
			c := target.client()
			id := sharedVolume(t, target)
			first := newAttachment(t, c, id, "3.44", object{"connector": connector("node1", nil)}).want(t, http.StatusOK).object(t, "attachment")["id"].(string)
			newAttachment(t, c, id, "3.44", object{"connector": connector("node2", nil)}).wantBadRequest(t, "Invalid volume: Volume "+id+
				" status must be available or in-use or downloading to reserve, but the current status is attaching.")
			completeAttachment(t, c, first)
			second := newAttachment(t, c, id, "3.44", object{"connector": connector("node2", nil)}).want(t, http.StatusOK).object(t, "attachment")["id"].(string)
			wantStatus(t, c, id, "attaching")
			if left := c.call(t, "DELETE", "/attachments/"+second, nil, "3.44").want(t, http.StatusOK).list(t, "attachments"); len(left) != 1 {
				t.Errorf("%d attachments are left", len(left))
			}
			wantStatus(t, c, id, "in-use")
			deleteAttachment(t, c, first)
			wantStatus(t, c, id, "available")
		}},
	}
}
