package contract

import (
	"net/http"
	"testing"
)

// snapshotOf makes a snapshot, waits until it is available and ensures its
// removal.
func snapshotOf(t *testing.T, target Target, volume string, more object) string {
	t.Helper()
	c := target.client()
	body := object{"volume_id": volume, "name": unique(t, "snapshot")}
	for key, value := range more {
		body[key] = value
	}
	made := c.call(t, "POST", "/snapshots", object{"snapshot": body}).want(t, http.StatusAccepted).object(t, "snapshot")
	if made["status"] != "creating" || made["volume_id"] != volume {
		t.Errorf("the snapshot is made as %v", made)
	}
	id := made["id"].(string)
	t.Cleanup(func() {
		eventually(t, target, "removing a snapshot", func() (string, bool) {
			got := c.call(t, "DELETE", "/snapshots/"+id, nil)
			return string(got.raw), got.status == http.StatusNotFound
		})
	})
	eventually(t, target, "waiting for a snapshot", func() (string, bool) {
		status, _ := c.call(t, "GET", "/snapshots/"+id, nil).want(t, http.StatusOK).object(t, "snapshot")["status"].(string)
		return status, status == "available"
	})
	return id
}

func snapshotCases() []testCase {
	return []testCase{
		{"snapshot: made, listed, deleted", both, func(t *testing.T, target Target) {
			c := target.client()
			volume := available(t, target, nil)
			name := unique(t, "snapshot")
			id := snapshotOf(t, target, volume, object{"name": name, "metadata": object{"k": "v"}})
			view := c.call(t, "GET", "/snapshots/"+id, nil).want(t, http.StatusOK).object(t, "snapshot")
			if view["name"] != name || view["size"] != 1.0 || view["volume_id"] != volume ||
				view["os-extended-snapshot-attributes:project_id"] != target.Project {
				t.Errorf("the snapshot is %v", view)
			}
			wantStrings(t, "metadata", view["metadata"], object{"k": "v"})
			for _, path := range []string{"/snapshots/detail?volume_id=" + volume, "/snapshots?name=" + name} {
				found := c.call(t, "GET", path, nil).want(t, http.StatusOK).list(t, "snapshots")
				if len(found) != 1 || found[0]["id"] != id {
					t.Errorf("%s lists %v", path, found)
				}
			}
			c.call(t, "DELETE", "/snapshots/"+id, nil).wantEmpty(t, http.StatusAccepted)
			waitGone(t, target, c, "/snapshots/"+id)
			c.call(t, "DELETE", "/snapshots/"+id, nil).wantNotFound(t, "Snapshot "+id+" could not be found.")
		}},
		{"snapshot: it keeps its volume from being deleted, unless by cascade", both, func(t *testing.T, target Target) {
			c := target.client()
			volume := available(t, target, nil)
			id := snapshotOf(t, target, volume, nil)
			c.call(t, "DELETE", "/volumes/"+volume, nil).wantBadRequest(t, deleteRefusal)
			wantStatus(t, c, volume, "available")
			c.call(t, "DELETE", "/volumes/"+volume+"?cascade=true", nil).wantEmpty(t, http.StatusAccepted)
			waitGone(t, target, c, "/volumes/"+volume)
			c.call(t, "GET", "/snapshots/"+id, nil).wantNotFound(t, "Snapshot "+id+" could not be found.")
		}},
		{"snapshot: of an attached volume only by force", both, func(t *testing.T, target Target) {
			c := target.client()
			volume := attached(t, target)
			c.call(t, "POST", "/snapshots", object{"snapshot": object{"volume_id": volume, "name": unique(t, "refused")}}).wantBadRequest(t,
				"Invalid volume: Volume "+volume+" status must be available, but current status is: in-use.")
			snapshotOf(t, target, volume, object{"force": true})
			wantStatus(t, c, volume, "in-use")
		}},
		{"snapshot: a volume from it inherits size and type", both, func(t *testing.T, target Target) {
			c := target.client()
			volume := available(t, target, object{"size": 2})
			id := snapshotOf(t, target, volume, nil)
			body := object{"volume": object{"name": unique(t, "restored"), "snapshot_id": id}}
			made := c.call(t, "POST", "/volumes", body).want(t, http.StatusAccepted).object(t, "volume")
			restored := removed(t, target, c, made["id"].(string))
			if made["size"] != 2.0 || made["volume_type"] != target.Types.ISCSI || made["snapshot_id"] != id {
				t.Errorf("the volume is %v", made)
			}
			waitStatus(t, target, c, restored, "available")
			refused(t, target, object{"snapshot_id": id, "size": 1}).wantBadRequest(t, "Invalid input received: Volume size '1'GB cannot be "+
				"smaller than the snapshot size 2GB. They must be >= original snapshot size.")
		}},
		{"snapshot: a clone is at least as large as its source", both, func(t *testing.T, target Target) {
			c := target.client()
			source := available(t, target, object{"size": 2})
			clone := create(t, target, c, object{"source_volid": source, "size": 3})
			waitStatus(t, target, c, clone, "available")
			if view := show(t, c, clone); view["source_volid"] != source || view["size"] != 3.0 {
				t.Errorf("the clone is %v", view)
			}
			wantStatus(t, c, source, "available")
			refused(t, target, object{"source_volid": source, "size": 1}).wantBadRequest(t, "Invalid input received: Volume size '1'GB "+
				"cannot be smaller than original volume size  2GB. They must be >= original volume size.")
		}},
		{"snapshot: of a volume that does not exist", both, func(t *testing.T, target Target) {
			target.client().call(t, "POST", "/snapshots", object{"snapshot": object{"volume_id": missingID}}).
				wantNotFound(t, "Volume "+missingID+" could not be found.")
		}},
	}
}
