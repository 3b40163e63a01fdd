package contract

import (
	"net/http"
	"strings"
	"testing"
)

// newAttachment creates an attachment; more adds fields to the request.
func newAttachment(t testing.TB, c *client, id, version string, more object) answer {
	t.Helper()
	body := object{"volume_uuid": id}
	for key, value := range more {
		body[key] = value
	}
	return c.call(t, "POST", "/attachments", object{"attachment": body}, version)
}

// attachmentView returns the detailed view of an attachment.
func attachmentView(t testing.TB, c *client, id string) map[string]any {
	t.Helper()
	return c.call(t, "GET", "/attachments/"+id, nil, "3.27").want(t, http.StatusOK).object(t, "attachment")
}

func wantAttachment(t testing.TB, view map[string]any, status string, want object) {
	t.Helper()
	if view["status"] != status {
		t.Errorf("the attachment is %v, want %s", view["status"], status)
	}
	for field, value := range want {
		if view[field] != value {
			t.Errorf("%s is %#v, want %#v", field, view[field], value)
		}
	}
}

func completeAttachment(t testing.TB, c *client, id string) {
	t.Helper()
	c.call(t, "POST", "/attachments/"+id+"/action", object{"os-complete": nil}, "3.44").wantEmpty(t, http.StatusNoContent)
}

func deleteAttachment(t testing.TB, c *client, id string) {
	t.Helper()
	left := c.call(t, "DELETE", "/attachments/"+id, nil, "3.44").want(t, http.StatusOK).list(t, "attachments")
	if len(left) != 0 {
		t.Errorf("the attachments %v are left", left)
	}
}

func attachmentNotFound(id string) string {
	return "Volume attachment could not be found with filter: attachment_id = " + id + "."
}

func attachmentCases() []testCase {
	return []testCase{
		{"attachment: create, update, complete, delete", both, attachmentLife},
		{"attachment: create with a connector", both, func(t *testing.T, target Target) {
			c := target.client()
			id := available(t, target, nil)
			made := newAttachment(t, c, id, "3.44", object{"connector": connector("node1", nil)}).want(t, http.StatusOK).object(t, "attachment")
			wantAttachment(t, made, "reserved", object{"attached_at": "", "detached_at": "", "attach_mode": "null", "instance": nil, "volume_id": id})
			wantStatus(t, c, id, "attaching")
			attachment := made["id"].(string)
			wantFlatISCSI(t, made["connection_info"], id, attachment)
			view := attachmentView(t, c, attachment)
			wantAttachment(t, view, "attaching", nil)
			if !same(view["connection_info"], made["connection_info"]) {
				t.Error("the connection shown later differs from the answer's")
			}
			completeAttachment(t, c, attachment)
			wantStatus(t, c, id, "in-use")
			deleteAttachment(t, c, attachment)
			wantStatus(t, c, id, "available")
		}},
		{"attachment: the connection has the type's front-end QoS", both, func(t *testing.T, target Target) {
			kind := needType(t, target.Types.Limited, "CONTRACT_TYPE_LIMITED")
			c := target.client()
			id := available(t, target, object{"volume_type": kind})
			made := newAttachment(t, c, id, "3.44", object{"connector": connector("node1", nil)}).want(t, http.StatusOK).object(t, "attachment")
			want := map[string]any{"total_bytes_sec": "524288", "total_iops_sec": "20"}
			if got := made["connection_info"].(map[string]any)["qos_specs"]; !same(got, want) {
				t.Errorf("qos_specs is %v, want %v", got, want)
			}
			deleteAttachment(t, c, made["id"].(string))
		}},
		{"attachment: one that was never completed can be deleted", both, func(t *testing.T, target Target) {
			c := target.client()
			id := available(t, target, nil)
			made := newAttachment(t, c, id, "3.44", object{"connector": connector("node1", nil)}).want(t, http.StatusOK).object(t, "attachment")
			deleteAttachment(t, c, made["id"].(string))
			wantStatus(t, c, id, "available")
		}},
		{"attachment: the connection is that of the actions, flattened", both, func(t *testing.T, target Target) {
			c := target.client()
			id := available(t, target, nil)
			document := initialize(t, c, id, connector("node1", nil))
			made := newAttachment(t, c, id, "3.44", object{"connector": connector("node1", nil)}).want(t, http.StatusOK).object(t, "attachment")
			flat := made["connection_info"].(map[string]any)
			want := document["data"].(map[string]any)
			want["driver_volume_type"], want["attachment_id"] = document["driver_volume_type"], made["id"]
			if !same(flat, want) {
				t.Errorf("the keys and values differ from those of the action")
			}
		}},
		{"attachment: it needs 3.27, complete needs 3.44", both, func(t *testing.T, target Target) {
			c := target.client()
			id := available(t, target, nil)
			newAttachment(t, c, id, "3.26", nil).wantNotFound(t, "The resource could not be found.")
			made := newAttachment(t, c, id, "3.27", nil).want(t, http.StatusOK).object(t, "attachment")["id"].(string)
			c.call(t, "POST", "/attachments/"+made+"/action", object{"os-complete": nil}, "3.43").
				wantNotFound(t, "The resource could not be found.")
			wantStatus(t, c, id, "reserved")
		}},
		{"attachment: one at a time", both, func(t *testing.T, target Target) {
			c := target.client()
			id := available(t, target, nil)
			refused := func(status string) {
				t.Helper()
				newAttachment(t, c, id, "3.44", object{"connector": connector("node2", nil)}).wantBadRequest(t, "Invalid volume: Volume "+id+
					" status must be available or downloading to reserve, but the current status is "+status+".")
				wantStatus(t, c, id, status)
			}
			made := newAttachment(t, c, id, "3.44", nil).want(t, http.StatusOK).object(t, "attachment")["id"].(string)
			refused("reserved")
			completeAttachment(t, c, made)
			refused("in-use")
		}},
		{"attachment: a reservation by action excludes it", both, func(t *testing.T, target Target) {
			c := target.client()
			id := available(t, target, nil)
			reserve(t, c, id)
			newAttachment(t, c, id, "3.44", object{"connector": connector("node1", nil)}).wantBadRequest(t, "Invalid volume: Volume "+id+
				" status must be available or downloading to reserve, but the current status is attaching.")
			wantStatus(t, c, id, "attaching")
		}},
		{"attachment: and it excludes a reservation by action", both, func(t *testing.T, target Target) {
			c := target.client()
			id := available(t, target, nil)
			newAttachment(t, c, id, "3.44", nil).want(t, http.StatusOK)
			act(t, c, id, "os-reserve", object{}).
				wantBadRequest(t, "Invalid volume: Volume status must be available to reserve, but the status is reserved.")
		}},
		{"attachment: that of an os-attach can be deleted", both, func(t *testing.T, target Target) {
			c := target.client()
			id := attached(t, target)
			deleteAttachment(t, c, attachmentsOf(t, c, id)[0]["id"].(string))
			wantStatus(t, c, id, "available")
		}},
		{"attachment: os-detach ends one of the attachments API", both, func(t *testing.T, target Target) {
			c := target.client()
			id := available(t, target, nil)
			made := newAttachment(t, c, id, "3.44", object{"connector": connector("node1", nil)}).want(t, http.StatusOK).object(t, "attachment")["id"].(string)
			completeAttachment(t, c, made)
			detach(t, c, id)
			wantStatus(t, c, id, "available")
			c.call(t, "GET", "/attachments/"+made, nil, "3.27").wantNotFound(t, attachmentNotFound(made))
		}},
		{"attachment: read-only from 3.54 on", both, func(t *testing.T, target Target) {
			c := target.client()
			id := available(t, target, nil)
			made := newAttachment(t, c, id, "3.54", object{"connector": connector("node1", nil), "mode": "ro"}).want(t, http.StatusOK).object(t, "attachment")
			wantAttachment(t, made, "reserved", object{"attach_mode": "ro"})
			wantAttachment(t, attachmentView(t, c, made["id"].(string)), "attaching", object{"attach_mode": "ro"})
		}},
	}
}

func attachmentLife(t *testing.T, target Target) {
	c := target.client()
	id := available(t, target, nil)
	made := newAttachment(t, c, id, "3.27", nil).want(t, http.StatusOK).object(t, "attachment")
	attachment := made["id"].(string)
	wantAttachment(t, made, "reserved", object{"attached_at": "", "detached_at": "", "attach_mode": "null", "instance": nil, "volume_id": id})
	if !same(made["connection_info"], object{}) {
		t.Errorf("the connection is %v", made["connection_info"])
	}
	wantStatus(t, c, id, "reserved")

	body := object{"attachment": object{"connector": connector("node1", object{"mountpoint": "/dev/sdb"})}}
	first := c.call(t, "PUT", "/attachments/"+attachment, body, "3.27").want(t, http.StatusOK).object(t, "attachment")
	wantAttachment(t, first, "reserved", object{"attached_at": "", "attach_mode": "null"})
	wantFlatISCSI(t, first["connection_info"], id, attachment)
	wantStatus(t, c, id, "attaching")
	again := c.call(t, "PUT", "/attachments/"+attachment, body, "3.27").want(t, http.StatusOK).object(t, "attachment")
	wantAttachment(t, again, "attaching", object{"attach_mode": "rw"})
	if !same(first["connection_info"], again["connection_info"]) {
		t.Error("a second update gives another connection")
	}

	completeAttachment(t, c, attachment)
	completeAttachment(t, c, attachment)
	volume := show(t, c, id)
	shown := volume["attachments"].([]any)
	if volume["status"] != "in-use" || len(shown) != 1 {
		t.Fatalf("the volume is %v with %v", volume["status"], shown)
	}
	if a := shown[0].(map[string]any); a["attachment_id"] != attachment || a["device"] != "/dev/sdb" {
		t.Errorf("the volume's attachment is %v", a)
	}
	// Unlike os-attach, this leaves no mark in the volume's metadata.
	wantStrings(t, "metadata", volume["metadata"], object{})
	wantAttachment(t, attachmentView(t, c, attachment), "attached", object{"attach_mode": "rw"})
	if short := attachmentsOf(t, c, id); len(short) != 1 || short[0]["id"] != attachment || len(short[0]) != 4 {
		t.Errorf("the short list is %v", short)
	}

	deleteAttachment(t, c, attachment)
	wantStatus(t, c, id, "available")
	c.call(t, "DELETE", "/attachments/"+attachment, nil, "3.44").wantNotFound(t, attachmentNotFound(attachment))
}

// wantFlatISCSI requires an iSCSI connection in the attachments API's form.
func wantFlatISCSI(t testing.TB, got any, volume, attachment string) {
	t.Helper()
	connection, ok := got.(map[string]any)
	if !ok || connection["driver_volume_type"] != "iscsi" || connection["attachment_id"] != attachment ||
		connection["volume_id"] != volume || connection["data"] != nil || connection["auth_password"] == "" {
		t.Errorf("the connection is not of the flat form: driver_volume_type %v", connection["driver_volume_type"])
	}
}

func attachmentTrapCases() []testCase {
	return []testCase{
		{"attachment trap: what does not exist", both, func(t *testing.T, target Target) {
			c := target.client()
			newAttachment(t, c, missingID, "3.44", nil).wantNotFound(t, "Volume "+missingID+" could not be found.")
			path := "/attachments/" + missingID
			c.call(t, "GET", path, nil, "3.44").wantNotFound(t, attachmentNotFound(missingID))
			c.call(t, "DELETE", path, nil, "3.44").wantNotFound(t, attachmentNotFound(missingID))
			c.call(t, "POST", path+"/action", object{"os-complete": nil}, "3.44").wantNotFound(t, attachmentNotFound(missingID))
			c.call(t, "PUT", path, object{"attachment": object{"connector": connector("n", nil)}}, "3.44").
				wantNotFound(t, attachmentNotFound(missingID))
			c.call(t, "PUT", path, object{"attachment": object{}}, "3.44").
				wantBadRequest(t, "Invalid input for field/attribute attachment. Value: {}. 'connector' is a required property")
			c.call(t, "POST", path+"/action", object{"os-nope": nil}, "3.44").
				wantBadRequest(t, "There is no such action: os-nope. Verify the request body and Content-Type header and try again.")
		}},
		{"attachment trap: no instance is an absent one, not an empty or null one", both, func(t *testing.T, target Target) {
			c := target.client()
			id := available(t, target, nil)
			newAttachment(t, c, id, "3.44", object{"instance_uuid": ""}).
				wantBadRequest(t, "Invalid input for field/attribute instance_uuid. Value: . '' is not a 'uuid'")
			newAttachment(t, c, id, "3.44", object{"instance_uuid": nil}).
				wantBadRequest(t, "Invalid input for field/attribute instance_uuid. Value: None. None is not of type 'string'")
			wantStatus(t, c, id, "available")
		}},
		{"attachment trap: a connector without initiator is a 500 that leaves the volume reserved", both, func(t *testing.T, target Target) {
			c := target.client()
			id := available(t, target, nil)
			got := newAttachment(t, c, id, "3.44", object{"connector": connector("node1", object{"initiator": nil})}).
				want(t, http.StatusInternalServerError)
			if message, _ := got.object(t, "computeFault")["message"].(string); !strings.HasPrefix(message,
				"Unable to create attachment for volume (Invalid input received: Connector doesn't have required information: initiator") {
				t.Errorf("the message is %q", message)
			}
			wantStatus(t, c, id, "reserved")
			found := attachmentsOf(t, c, id)
			if len(found) != 1 || found[0]["status"] != "reserved" {
				t.Fatalf("the attachments are %v", found)
			}
			deleteAttachment(t, c, found[0]["id"].(string))
			wantStatus(t, c, id, "available")
		}},
		{"attachment trap: a volume that os-attach once attached is attached read-only", both, func(t *testing.T, target Target) {
			c := target.client()
			id := attached(t, target)
			detach(t, c, id)
			made := newAttachment(t, c, id, "3.44", object{"connector": connector("node1", nil)}).want(t, http.StatusOK).object(t, "attachment")
			wantAttachment(t, made, "reserved", object{"attach_mode": "ro"})
			if mode := made["connection_info"].(map[string]any)["access_mode"]; mode != "rw" {
				t.Errorf("the access_mode is %v", mode)
			}
		}},
		{"attachment trap: a volume in error cannot be attached", both, func(t *testing.T, target Target) {
			kind := needType(t, target.Types.Fail, "CONTRACT_TYPE_FAIL")
			c := target.client()
			id := create(t, target, c, object{"volume_type": kind})
			eventually(t, target, "waiting for error", func() (string, bool) {
				got := status(t, c, id)
				return got, got == "error"
			})
			newAttachment(t, c, id, "3.44", object{"connector": connector("node1", nil)}).wantBadRequest(t, "Invalid volume: Volume "+
				"attachments can not be created if the volume is in an error state. The Volume "+id+" currently has a status of: error ")
		}},
		{"attachment trap: terminate of a connected attachment makes the volume in-use", both, func(t *testing.T, target Target) {
			c := target.client()
			id := available(t, target, nil)
			newAttachment(t, c, id, "3.44", object{"connector": connector("node1", nil)}).want(t, http.StatusOK)
			wantStatus(t, c, id, "attaching")
			terminate(t, c, id, connector("node1", nil))
			wantStatus(t, c, id, "in-use")
		}},
		{"attachment trap: the list is filtered by volume", both, func(t *testing.T, target Target) {
			c := target.client()
			one, two := attached(t, target), attached(t, target)
			for _, id := range []string{one, two} {
				for _, a := range attachmentsOf(t, c, id) {
					if a["volume_id"] != id {
						t.Errorf("the list of %s has an attachment of %v", id, a["volume_id"])
					}
				}
			}
			if found := attachmentsOf(t, c, missingID); len(found) != 0 {
				t.Errorf("the list of no volume has %v", found)
			}
		}},
	}
}
