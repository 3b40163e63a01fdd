package contract

import (
	"net/http"
	"slices"
	"strings"
	"testing"
)

func createCases() []testCase {
	return []testCase{
		{"create: accepted as creating, then available", both, func(t *testing.T, target Target) {
			c := target.client()
			name := unique(t, "life")
			metadata := object{"example.org/claim": "data", "cluster": "a"}
			made := c.call(t, "POST", "/volumes", object{"volume": object{
				"name": name, "description": "made by the contract suite", "size": 1, "volume_type": target.Types.ISCSI,
				"availability_zone": nil, "metadata": metadata,
			}}).want(t, http.StatusAccepted)
			volume := made.object(t, "volume")
			id := removed(t, target, c, volume["id"].(string))
			for field, want := range map[string]any{
				"status": "creating", "size": 1.0, "name": name, "description": "made by the contract suite",
				"volume_type": target.Types.ISCSI, "updated_at": nil, "snapshot_id": nil, "source_volid": nil,
				"bootable": "false", "encrypted": false, "multiattach": false,
			} {
				if volume[field] != want {
					t.Errorf("%s is %v, want %v", field, volume[field], want)
				}
			}
			wantStrings(t, "metadata", volume["metadata"], metadata)
			links := volume["links"].([]any)
			if self := links[0].(map[string]any); self["rel"] != "self" || self["href"] != c.base+"/volumes/"+id {
				t.Errorf("the self link is %v", self)
			}
			waitStatus(t, target, c, id, "available")
			view := show(t, c, id)
			if view["os-vol-tenant-attr:tenant_id"] != target.Project || len(view["attachments"].([]any)) != 0 {
				t.Errorf("the view is %v", view)
			}
		}},
		{"create: microversions add fields", both, func(t *testing.T, target Target) {
			c := target.client()
			id := available(t, target, nil)
			old, recent := show(t, c, id), show(t, c, id, "3.65")
			for _, field := range []string{"group_id", "shared_targets", "service_uuid", "volume_type_id", "consumes_quota"} {
				if _, shown := old[field]; shown {
					t.Errorf("3.0 shows %s", field)
				}
				if _, shown := recent[field]; !shown {
					t.Errorf("3.65 lacks %s", field)
				}
			}
		}},
		{"create: a type that fails ends in error, and the messages say why", both, func(t *testing.T, target Target) {
			kind := needType(t, target.Types.Fail, "CONTRACT_TYPE_FAIL")
			c := target.client()
			id := create(t, target, c, object{"volume_type": kind})
			eventually(t, target, "waiting for error", func() (string, bool) {
				got := status(t, c, id)
				return got, got == "error"
			})
			if view := show(t, c, id); target.noauth() && view["os-vol-host-attr:host"] != nil {
				t.Errorf("it has the host %v", view["os-vol-host-attr:host"])
			}
			var texts []string
			for _, m := range c.call(t, "GET", "/messages?resource_uuid="+id, nil, "3.5").want(t, http.StatusOK).list(t, "messages") {
				texts = append(texts, m["user_message"].(string))
			}
			// They have the same second and come in any order.
			if !slices.Contains(texts, "schedule allocate volume:Could not find any available weighted backend.") {
				t.Errorf("the messages are %q", texts)
			}
			act(t, c, id, "os-reserve", object{}).
				wantBadRequest(t, "Invalid volume: Volume status must be available to reserve, but the status is error.")
			c.call(t, "DELETE", "/volumes/"+id, nil).wantEmpty(t, http.StatusAccepted)
			waitGone(t, target, c, "/volumes/"+id)
		}},
		{"create: messages need 3.3", both, func(t *testing.T, target Target) {
			target.client().call(t, "GET", "/messages", nil).wantNotFound(t, "The resource could not be found.")
		}},
		{"create: names are not unique", both, func(t *testing.T, target Target) {
			c := target.client()
			name := unique(t, "twin")
			create(t, target, c, object{"name": name})
			create(t, target, c, object{"name": name})
			if found := listed(t, c, "/volumes?name="+name); len(found) != 2 {
				t.Errorf("%d volumes have the name, want 2", len(found))
			}
		}},
		{"create: names are stripped", both, func(t *testing.T, target Target) {
			c := target.client()
			name := unique(t, "padded")
			id := create(t, target, c, object{"name": "  " + name + "  "})
			if got := show(t, c, id)["name"]; got != name {
				t.Errorf("the name is %q", got)
			}
		}},
		{"create: an absent, null or empty type is the default type", both, func(t *testing.T, target Target) {
			c := target.client()
			var kinds []any
			for _, fields := range []object{{}, {"volume_type": nil}, {"volume_type": ""}} {
				body := object{"name": unique(t, "untyped"), "size": 1}
				for key, value := range fields {
					body[key] = value
				}
				made := c.call(t, "POST", "/volumes", object{"volume": body}).want(t, http.StatusAccepted).object(t, "volume")
				removed(t, target, c, made["id"].(string))
				kinds = append(kinds, made["volume_type"])
			}
			if kinds[0] == nil || kinds[1] != kinds[0] || kinds[2] != kinds[0] {
				t.Errorf("the types are %v", kinds)
			}
		}},
		{"create: the type may be given by id", both, func(t *testing.T, target Target) {
			c := target.client()
			for _, kind := range c.call(t, "GET", "/types", nil).want(t, http.StatusOK).list(t, "volume_types") {
				if kind["name"] == target.Types.ISCSI {
					id := create(t, target, c, object{"volume_type": kind["id"]})
					if got := show(t, c, id)["volume_type"]; got != target.Types.ISCSI {
						t.Errorf("the type is %v", got)
					}
				}
			}
		}},
		{"create: a size may be a string", both, func(t *testing.T, target Target) {
			id := create(t, target, target.client(), object{"size": "1"})
			if got := show(t, target.client(), id)["size"]; got != 1.0 {
				t.Errorf("the size is %v", got)
			}
		}},
		{"create: an unknown field is ignored, but refused from 3.53 on", both, func(t *testing.T, target Target) {
			c := target.client()
			create(t, target, c, object{"bogus": 1})
			got := c.call(t, "POST", "/volumes", object{"volume": object{"bogus": 1}}, "3.53")
			got.wantBadRequest(t, "Invalid input for field/attribute volume. Value: {'bogus': 1}. Additional properties are not allowed "+
				"('bogus' was unexpected)")
		}},
		{"create: a volume can be renamed and found again", both, func(t *testing.T, target Target) {
			c := target.client()
			id := available(t, target, nil)
			name := unique(t, "renamed")
			view := c.call(t, "PUT", "/volumes/"+id, object{"volume": object{"name": name}}).want(t, http.StatusOK).object(t, "volume")
			if view["name"] != name {
				t.Errorf("the answer says %v", view["name"])
			}
			if found := listed(t, c, "/volumes?name="+name); len(found) != 1 || found[0]["id"] != id {
				t.Errorf("the list has %v", found)
			}
		}},
	}
}

// wantStrings requires an object of strings.
func wantStrings(t testing.TB, what string, got any, want object) {
	t.Helper()
	entries, ok := got.(map[string]any)
	if !ok || len(entries) != len(want) {
		t.Errorf("%s is %v, want %v", what, got, want)
		return
	}
	for key, value := range want {
		if entries[key] != value {
			t.Errorf("%s is %v, want %v", what, got, want)
			return
		}
	}
}

func invalidCases() []testCase {
	return []testCase{
		{"invalid: sizes", both, func(t *testing.T, target Target) {
			const malformed = "The server could not comply with the request since it is either malformed or otherwise incorrect."
			for _, test := range []struct {
				name string
				size any
				want string
			}{
				{"zero", 0, "Invalid input for field/attribute size. Value: 0. 0 is less than the minimum of 1"},
				{"negative", -1, "Invalid input for field/attribute size. Value: -1. -1 is less than the minimum of 1"},
				{"a word", "abc", "Invalid input for field/attribute size. Value: abc. 'abc' does not match '^[0-9]+$'"},
				{"a fraction", 1.5, "Invalid input for field/attribute size. Value: 1.5. 1.5 is not of type 'integer', 'string', 'null'"},
				{"a fraction as a string", "1.5", "Invalid input for field/attribute size. Value: 1.5. '1.5' does not match '^[0-9]+$'"},
				{"true", true, "Invalid input for field/attribute size. Value: True. True is not of type 'integer', 'string', 'null'"},
				{"too large", 1000000000000, "Invalid input for field/attribute size. Value: 1000000000000. " +
					"1000000000000 is greater than the maximum of 2147483647"},
				{"null", nil, malformed},
			} {
				t.Run(test.name, func(t *testing.T) { refused(t, target, object{"size": test.size}).wantBadRequest(t, test.want) })
			}
			body := object{"volume": object{"name": unique(t, "sizeless")}}
			target.client().call(t, "POST", "/volumes", body).wantBadRequest(t, malformed)
		}},
		{"invalid: type, zone, name and metadata", both, func(t *testing.T, target Target) {
			long := strings.Repeat("x", 256)
			refused(t, target, object{"volume_type": "no-such-type"}).wantNotFound(t, "Volume type with name no-such-type could not be found.")
			refused(t, target, object{"availability_zone": "no-such-zone"}).wantBadRequest(t, "Availability zone 'no-such-zone' is invalid.")
			refused(t, target, object{"name": long}).wantBadRequest(t, "Invalid input received: name has 256 characters, more than 255.")
			refused(t, target, object{"metadata": object{"k": long}}).
				wantBadRequest(t, "Invalid input for field/attribute k. Value: "+long+". '"+long+"' is too long")
			refused(t, target, object{"metadata": object{"k": 1}}).
				wantBadRequest(t, "Invalid input for field/attribute k. Value: 1. 1 is not of type 'string'")
			refused(t, target, object{"metadata": object{"k~": "v"}}).wantBadRequest(t, "Invalid input for field/attribute metadata. "+
				"Value: {'k~': 'v'}. 'k~' does not match any of the regexes: '^[a-zA-Z0-9-_:. /]{1,255}$'")
		}},
		{"invalid: sources that do not exist", both, func(t *testing.T, target Target) {
			refused(t, target, object{"source_volid": missingID}).wantNotFound(t, "Volume "+missingID+" could not be found.")
			refused(t, target, object{"snapshot_id": missingID}).wantNotFound(t, "Snapshot "+missingID+" could not be found.")
		}},
		{"invalid: bodies", both, func(t *testing.T, target Target) {
			c := target.client()
			c.call(t, "POST", "/volumes", raw("{nope")).wantBadRequest(t, "Malformed request body")
			c.call(t, "POST", "/volumes", raw("")).wantError(t, http.StatusInternalServerError, "computeFault",
				"The server has either erred or is incapable of performing the requested operation.")
			c.call(t, "POST", "/volumes", object{"bogus": object{}}).want(t, http.StatusBadRequest)
		}},
		{"invalid: volumes that do not exist", both, func(t *testing.T, target Target) {
			c := target.client()
			missing := "Volume " + missingID + " could not be found."
			c.call(t, "GET", "/volumes/"+missingID, nil).wantNotFound(t, missing)
			c.call(t, "GET", "/volumes/not-a-uuid", nil).wantNotFound(t, "Volume not-a-uuid could not be found.")
			c.call(t, "DELETE", "/volumes/"+missingID, nil).wantNotFound(t, missing)
			c.call(t, "PUT", "/volumes/"+missingID, object{"volume": object{"name": "x"}}).wantNotFound(t, missing)
			c.call(t, "GET", "/volumes/"+missingID+"/metadata", nil).wantNotFound(t, missing)
			for action, parameters := range map[string]object{
				"os-reserve": {}, "os-unreserve": {}, "os-detach": {}, "os-extend": {"new_size": 2},
				"os-attach":                {"host_name": "node1", "mountpoint": "/dev/sdb"},
				"os-initialize_connection": {"connector": connector("node1", nil)},
				"os-terminate_connection":  {"connector": connector("node1", nil)},
			} {
				act(t, c, missingID, action, parameters).wantNotFound(t, missing)
			}
		}},
		{"invalid: actions", both, func(t *testing.T, target Target) {
			c := target.client()
			id := available(t, target, nil)
			act(t, c, id, "os-nope", object{}).
				wantBadRequest(t, "There is no such action: os-nope. Verify the request body and Content-Type header and try again.")
			c.call(t, "POST", "/volumes/"+id+"/action", object{"os-reserve": object{}, "os-unreserve": object{}}).
				wantBadRequest(t, "Malformed request body")
			c.call(t, "POST", "/volumes/"+id+"/action", raw("{nope")).wantBadRequest(t, "Malformed request body")
			wantStatus(t, c, id, "available")
		}},
	}
}

// refused requests a volume that Cinder must reject, and removes it if Cinder
// creates it.
func refused(t testing.TB, target Target, fields object) answer {
	t.Helper()
	body := object{"name": unique(t, "refused"), "size": 1, "volume_type": target.Types.ISCSI}
	for key, value := range fields {
		body[key] = value
	}
	got := target.client().call(t, "POST", "/volumes", object{"volume": body})
	if got.status == http.StatusAccepted {
		removed(t, target, target.client(), got.object(t, "volume")["id"].(string))
	}
	return got
}
