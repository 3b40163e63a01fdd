package contract

import (
	"net/http"
	"testing"
)

func attachCases() []testCase {
	return []testCase{
		{"attach: needs neither reservation nor connection", both, func(t *testing.T, target Target) {
			c := target.client()
			id := available(t, target, nil)
			attach(t, c, id, "node1")
			wantStatus(t, c, id, "in-use")
		}},
		{"attach: the same host again changes nothing, but is a 500 for a project member", both, func(t *testing.T, target Target) {
			c := target.client()
			id := attached(t, target)
			again := act(t, c, id, "os-attach", object{"host_name": "node1", "mountpoint": "/dev/sdb", "mode": "rw"})
			if target.noauth() {
				again.wantEmpty(t, http.StatusAccepted)
			} else {
				again.wantError(t, http.StatusInternalServerError, "computeFault",
					"The server has either erred or is incapable of performing the requested operation.")
			}
			wantStatus(t, c, id, "in-use")
			if found := attachmentsOf(t, c, id); len(found) != 1 {
				t.Errorf("it has %d attachments", len(found))
			}
		}},
		{"attach: another host is refused", both, func(t *testing.T, target Target) {
			c := target.client()
			id := attached(t, target)
			act(t, c, id, "os-attach", object{"host_name": "node2", "mountpoint": "/dev/sdb", "mode": "rw"}).
				wantBadRequest(t, "Invalid volume: volume is already attached and multiple attachments are not enabled")
			if found := attachmentsOf(t, c, id); len(found) != 1 {
				t.Errorf("it has %d attachments", len(found))
			}
		}},
		{"attach: what it demands of its parameters", both, func(t *testing.T, target Target) {
			c := target.client()
			id := available(t, target, nil)
			act(t, c, id, "os-attach", object{"mountpoint": "/dev/sdb"}).wantBadRequest(t, "Invalid input for field/attribute os-attach. "+
				"Value: {'mountpoint': '/dev/sdb'}. {'mountpoint': '/dev/sdb'} is not valid under any of the given schemas")
			act(t, c, id, "os-attach", object{"host_name": "node1", "mountpoint": "", "mode": "rw"}).
				wantBadRequest(t, "Invalid input for field/attribute mountpoint. Value: . '' is too short")
			act(t, c, id, "os-attach", object{"host_name": "node1", "mountpoint": "/dev/sdb", "mode": "zz"}).
				wantBadRequest(t, "Invalid input for field/attribute mode. Value: zz. 'zz' is not one of ['rw', 'ro']")
			wantStatus(t, c, id, "available")
		}},
		{"attach: the mode defaults to rw", both, func(t *testing.T, target Target) {
			c := target.client()
			id := available(t, target, nil)
			act(t, c, id, "os-attach", object{"host_name": "node1", "mountpoint": "/dev/sdb"}).wantEmpty(t, http.StatusAccepted)
			if mode := show(t, c, id)["metadata"].(map[string]any)["attached_mode"]; mode != "rw" {
				t.Errorf("the mode is %v", mode)
			}
		}},
		{"attach: its record shows in the attachments API, without a connection", both, func(t *testing.T, target Target) {
			c := target.client()
			id := attached(t, target)
			found := c.call(t, "GET", "/attachments/detail?volume_id="+id, nil, "3.27").want(t, http.StatusOK).list(t, "attachments")
			if len(found) != 1 || found[0]["status"] != "attached" || found[0]["attach_mode"] != "rw" || found[0]["connection_info"] != nil {
				t.Errorf("the attachments are %v", found)
			}
			view := show(t, c, id)["attachments"].([]any)[0].(map[string]any)
			if view["attachment_id"] != found[0]["id"] {
				t.Errorf("the volume names attachment %v, the list %v", view["attachment_id"], found[0]["id"])
			}
		}},
	}
}

func detachCases() []testCase {
	return []testCase{
		{"detach: by attachment id", both, func(t *testing.T, target Target) {
			c := target.client()
			id := attached(t, target)
			attachment := attachmentsOf(t, c, id)[0]["id"]
			act(t, c, id, "os-detach", object{"attachment_id": attachment}).wantEmpty(t, http.StatusAccepted)
			wantStatus(t, c, id, "available")
		}},
		{"detach: an attachment id that does not exist is a conflict", both, func(t *testing.T, target Target) {
			c := target.client()
			id := attached(t, target)
			act(t, c, id, "os-detach", object{"attachment_id": missingID}).wantError(t, http.StatusConflict, "conflictingRequest",
				"ConflictNovaUsingAttachment: Detach volume from instance  using the Compute API")
			wantStatus(t, c, id, "in-use")
		}},
		{"detach: an attachment of another volume is refused", both, func(t *testing.T, target Target) {
			c := target.client()
			id, other := attached(t, target), attached(t, target)
			foreign := attachmentsOf(t, c, other)[0]["id"]
			act(t, c, id, "os-detach", object{"attachment_id": foreign}).
				wantBadRequest(t, "Invalid input received: Mismatched volume and attachment")
			wantStatus(t, c, id, "in-use")
			wantStatus(t, c, other, "in-use")
		}},
		{"detach: begin and roll back", both, func(t *testing.T, target Target) {
			c := target.client()
			id := available(t, target, nil)
			act(t, c, id, "os-begin_detaching", object{}).wantBadRequest(t,
				"Invalid volume: Unable to detach volume. Volume status must be 'in-use' and attach_status must be 'attached' to detach.")
			attach(t, c, id, "node1")
			act(t, c, id, "os-begin_detaching", object{}).wantEmpty(t, http.StatusAccepted)
			wantStatus(t, c, id, "detaching")
			c.call(t, "DELETE", "/volumes/"+id, nil).wantBadRequest(t, deleteRefusal)
			act(t, c, id, "os-roll_detaching", object{}).wantEmpty(t, http.StatusAccepted)
			wantStatus(t, c, id, "in-use")
			act(t, c, id, "os-begin_detaching", object{}).wantEmpty(t, http.StatusAccepted)
			detach(t, c, id)
			wantStatus(t, c, id, "available")
		}},
	}
}

// together makes a call n times at once and counts the statuses.
func together(t *testing.T, n int, call func(i int) answer) map[int]int {
	t.Helper()
	answers := make(chan answer, n)
	start := make(chan struct{})
	for i := range n {
		go func() {
			<-start
			answers <- call(i)
		}()
	}
	close(start)
	counts := make(map[int]int)
	for range n {
		counts[(<-answers).status]++
	}
	return counts
}

func raceCases() []testCase {
	return []testCase{
		{"race: of eight reservations one succeeds", both, func(t *testing.T, target Target) {
			c := target.client()
			id := available(t, target, nil)
			counts := together(t, 8, func(int) answer { return act(t, c, id, "os-reserve", object{}) })
			if counts[http.StatusAccepted] != 1 || counts[http.StatusBadRequest] != 7 {
				t.Errorf("the statuses are %v", counts)
			}
			wantStatus(t, c, id, "attaching")
		}},
		{"race: of eight attachments one succeeds", both, func(t *testing.T, target Target) {
			c := target.client()
			id := available(t, target, nil)
			counts := together(t, 8, func(int) answer {
				return c.call(t, "POST", "/attachments", object{"attachment": object{"volume_uuid": id}}, "3.27")
			})
			if counts[http.StatusOK] != 1 || counts[http.StatusBadRequest] != 7 {
				t.Errorf("the statuses are %v", counts)
			}
			wantStatus(t, c, id, "reserved")
		}},
		{"race: of eight hosts' os-attach several may succeed, and then a plain os-detach cannot", both, func(t *testing.T, target Target) {
			c := target.client()
			id := available(t, target, nil)
			counts := together(t, 8, func(i int) answer {
				return act(t, c, id, "os-attach", object{"host_name": string(rune('a' + i)), "mountpoint": "/dev/sdb", "mode": "rw"})
			})
			accepted := counts[http.StatusAccepted]
			if accepted == 0 || accepted+counts[http.StatusBadRequest] != 8 {
				t.Fatalf("the statuses are %v", counts)
			}
			found := attachmentsOf(t, c, id)
			if len(found) != accepted {
				t.Errorf("%d attachments succeeded, %d exist", accepted, len(found))
			}
			if len(found) > 1 {
				conflict := "ConflictNovaUsingAttachment: Detach volume from instance  using the Compute API"
				act(t, c, id, "os-detach", object{}).wantError(t, http.StatusConflict, "conflictingRequest", conflict)
				act(t, c, id, "os-terminate_connection", object{"connector": connector("a", nil)}).
					wantError(t, http.StatusConflict, "conflictingRequest", conflict)
			}
			for _, a := range found {
				act(t, c, id, "os-detach", object{"attachment_id": a["id"]}).wantEmpty(t, http.StatusAccepted)
			}
			wantStatus(t, c, id, "available")
		}},
		{"race: of eight creates of one name all succeed", both, func(t *testing.T, target Target) {
			c := target.client()
			name := unique(t, "race")
			counts := together(t, 8, func(int) answer {
				got := c.call(t, "POST", "/volumes", object{"volume": object{"name": name, "size": 1, "volume_type": target.Types.ISCSI}})
				if volume, ok := got.body["volume"].(map[string]any); ok {
					removed(t, target, c, volume["id"].(string))
				}
				return got
			})
			if counts[http.StatusAccepted] != 8 {
				t.Errorf("the statuses are %v", counts)
			}
			if found := listed(t, c, "/volumes?name="+name); len(found) != 8 {
				t.Errorf("%d volumes have the name", len(found))
			}
		}},
	}
}
