package contract

import (
	"net/http"
	"testing"
)

func deleteCases() []testCase {
	return []testCase{
		{"delete: accepted, then gone", both, func(t *testing.T, target Target) {
			c := target.client()
			id := available(t, target, nil)
			got := c.call(t, "DELETE", "/volumes/"+id, nil).wantEmpty(t, http.StatusAccepted)
			got.wantHeader(t, "Content-Type", "text/html; charset=UTF-8")
			// It may already be gone, but until then it must be deleting.
			if look := c.call(t, "GET", "/volumes/"+id, nil); look.status == http.StatusOK && look.object(t, "volume")["status"] != "deleting" {
				t.Errorf("the volume is %v", look.object(t, "volume")["status"])
			}
			waitGone(t, target, c, "/volumes/"+id)
			c.call(t, "DELETE", "/volumes/"+id, nil).wantNotFound(t, "Volume "+id+" could not be found.")
		}},
		{"delete: twice", both, func(t *testing.T, target Target) {
			c := target.client()
			id := available(t, target, nil)
			c.call(t, "DELETE", "/volumes/"+id, nil).wantEmpty(t, http.StatusAccepted)
			again := c.call(t, "DELETE", "/volumes/"+id, nil)
			switch again.status {
			case http.StatusNotFound:
			default:
				again.wantBadRequest(t, deleteRefusal)
			}
			waitGone(t, target, c, "/volumes/"+id)
		}},
		{"delete: right after the create either goes at once or is refused", both, func(t *testing.T, target Target) {
			c := target.client()
			id := create(t, target, c, nil)
			got := c.call(t, "DELETE", "/volumes/"+id, nil)
			if got.status == http.StatusAccepted {
				waitGone(t, target, c, "/volumes/"+id)
				return
			}
			got.wantBadRequest(t, deleteRefusal)
			waitStatus(t, target, c, id, "available")
		}},
		{"delete: refused while reserved, attached or set aside, also with cascade", both, func(t *testing.T, target Target) {
			c := target.client()
			id := available(t, target, nil)
			refused := func(status string) {
				t.Helper()
				wantStatus(t, c, id, status)
				for _, query := range []string{"", "?cascade=true"} {
					c.call(t, "DELETE", "/volumes/"+id+query, nil).wantBadRequest(t, deleteRefusal)
				}
				wantStatus(t, c, id, status)
			}
			reserve(t, c, id)
			refused("attaching")
			initialize(t, c, id, connector("node1", nil))
			attach(t, c, id, "node1")
			refused("in-use")
			terminate(t, c, id, connector("node1", nil))
			refused("in-use")
			detach(t, c, id)
			made := c.call(t, "POST", "/attachments", object{"attachment": object{"volume_uuid": id}}, "3.27").want(t, http.StatusOK)
			refused("reserved")
			c.call(t, "DELETE", "/attachments/"+made.object(t, "attachment")["id"].(string), nil, "3.27").want(t, http.StatusOK)
			c.call(t, "DELETE", "/volumes/"+id, nil).wantEmpty(t, http.StatusAccepted)
			waitGone(t, target, c, "/volumes/"+id)
		}},
		{"delete: an export that was never terminated does not hinder it", both, func(t *testing.T, target Target) {
			c := target.client()
			id := available(t, target, nil)
			initialize(t, c, id, connector("node1", nil))
			c.call(t, "DELETE", "/volumes/"+id, nil).wantEmpty(t, http.StatusAccepted)
			waitGone(t, target, c, "/volumes/"+id)
		}},
		{"delete: a flag that is none is a 400", both, func(t *testing.T, target Target) {
			c := target.client()
			id := available(t, target, nil)
			c.call(t, "DELETE", "/volumes/"+id+"?cascade=perhaps", nil).want(t, http.StatusBadRequest)
			wantStatus(t, c, id, "available")
		}},
	}
}

// overrideCases cover what only an administrator may do; in noauth mode every
// user may.
func overrideCases() []testCase {
	const forceRefusal = "Invalid volume: Volume  must not be migrating, attached, belong to a group, have snapshots, awaiting a " +
		"transfer, or be disassociated from snapshots after volume transfer."
	return []testCase{
		{"override: force does not delete an attached volume", both, func(t *testing.T, target Target) {
			admin := target.admin(t)
			id := attached(t, target)
			admin.call(t, "DELETE", "/volumes/"+id+"?force=true", nil, "3.23").wantBadRequest(t, forceRefusal)
			act(t, admin, id, "os-force_delete", object{}).wantBadRequest(t, forceRefusal)
			wantStatus(t, target.client(), id, "in-use")
		}},
		{"override: force deletes in any other status", both, func(t *testing.T, target Target) {
			admin := target.admin(t)
			id := available(t, target, nil)
			reserve(t, target.client(), id)
			act(t, admin, id, "os-force_delete", object{}).wantEmpty(t, http.StatusAccepted)
			waitGone(t, target, target.client(), "/volumes/"+id)
		}},
		{"override: a status can be reset, error_deleting then needs force", both, func(t *testing.T, target Target) {
			admin, c := target.admin(t), target.client()
			id := available(t, target, nil)
			act(t, admin, id, "os-reset_status", object{"status": "error"}).wantEmpty(t, http.StatusAccepted)
			wantStatus(t, c, id, "error")
			act(t, admin, id, "os-reset_status", object{"status": "error_deleting"}).wantEmpty(t, http.StatusAccepted)
			c.call(t, "DELETE", "/volumes/"+id, nil).wantBadRequest(t, deleteRefusal)
			act(t, admin, id, "os-force_delete", object{}).wantEmpty(t, http.StatusAccepted)
			waitGone(t, target, c, "/volumes/"+id)
		}},
		{"override: in-use cannot be set without an attachment", both, func(t *testing.T, target Target) {
			admin := target.admin(t)
			id := available(t, target, nil)
			act(t, admin, id, "os-reset_status", object{"status": "in-use"}).
				wantBadRequest(t, "Cannot reset-state to in-use because volume does not have any attachments.")
			act(t, admin, id, "os-reset_status", object{"status": "bogus"}).want(t, http.StatusBadRequest)
			act(t, admin, id, "os-reset_status", object{}).want(t, http.StatusBadRequest)
			wantStatus(t, target.client(), id, "available")
		}},
		{"override: reset to detached forgets the attachments", both, func(t *testing.T, target Target) {
			admin, c := target.admin(t), target.client()
			id := attached(t, target)
			act(t, admin, id, "os-reset_status", object{"status": "available", "attach_status": "detached"}).wantEmpty(t, http.StatusAccepted)
			wantStatus(t, c, id, "available")
			if found := attachmentsOf(t, c, id); len(found) != 0 {
				t.Errorf("it has %d attachments", len(found))
			}
		}},
		{"override: force_detach", both, func(t *testing.T, target Target) {
			admin, c := target.admin(t), target.client()
			id := attached(t, target)
			act(t, admin, id, "os-force_detach", object{"attachment_id": nil, "connector": connector("node1", nil)}).wantEmpty(t, http.StatusAccepted)
			wantStatus(t, c, id, "available")
		}},
		{"override: a read-only volume is attached read-only or not at all", both, func(t *testing.T, target Target) {
			c := target.client()
			id := available(t, target, nil)
			act(t, c, id, "os-update_readonly_flag", object{"readonly": true}).wantEmpty(t, http.StatusAccepted)
			act(t, c, id, "os-attach", object{"host_name": "node1", "mountpoint": "/dev/sdb", "mode": "rw"}).
				wantBadRequest(t, "Invalid attaching mode 'rw' for volume "+id+".")
			act(t, c, id, "os-attach", object{"host_name": "node1", "mountpoint": "/dev/sdb", "mode": "ro"}).wantEmpty(t, http.StatusAccepted)
			act(t, c, id, "os-update_readonly_flag", object{"readonly": false}).wantBadRequest(t,
				"Invalid volume: Volume "+id+" status must be available to update readonly flag, but current status is: in-use.")
		}},
	}
}
