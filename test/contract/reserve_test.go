package contract

import (
	"net/http"
	"slices"
	"strings"
	"testing"
)

func reserveCases() []testCase {
	return []testCase{
		{"reserve: the whole way there and back", both, func(t *testing.T, target Target) {
			c := target.client()
			id := available(t, target, nil)
			from := connector("node1", nil)
			reserve(t, c, id)
			wantStatus(t, c, id, "attaching")
			initialize(t, c, id, from)
			wantStatus(t, c, id, "attaching")
			attach(t, c, id, "node1")
			view := show(t, c, id)
			if view["status"] != "in-use" {
				t.Fatalf("the volume is %v", view["status"])
			}
			attachment := view["attachments"].([]any)[0].(map[string]any)
			if attachment["volume_id"] != id || attachment["id"] != id || attachment["attachment_id"] == id ||
				attachment["device"] != "/dev/sdb" || attachment["server_id"] != nil {
				t.Errorf("the attachment is %v", attachment)
			}
			terminate(t, c, id, from)
			wantStatus(t, c, id, "in-use")
			detach(t, c, id)
			view = show(t, c, id)
			if view["status"] != "available" || len(view["attachments"].([]any)) != 0 {
				t.Errorf("the volume is %v with %v", view["status"], view["attachments"])
			}
			c.call(t, "DELETE", "/volumes/"+id, nil).wantEmpty(t, http.StatusAccepted)
			waitGone(t, target, c, "/volumes/"+id)
		}},
		{"reserve: only an available volume", both, func(t *testing.T, target Target) {
			c := target.client()
			id := available(t, target, nil)
			refused := func(status string) {
				t.Helper()
				act(t, c, id, "os-reserve", object{}).
					wantBadRequest(t, "Invalid volume: Volume status must be available to reserve, but the status is "+status+".")
				wantStatus(t, c, id, status)
			}
			reserve(t, c, id)
			refused("attaching")
			attach(t, c, id, "node1")
			refused("in-use")
		}},
		{"reserve: unreserve makes it available again", both, func(t *testing.T, target Target) {
			c := target.client()
			id := available(t, target, nil)
			reserve(t, c, id)
			initialize(t, c, id, connector("node1", nil))
			act(t, c, id, "os-unreserve", object{}).wantEmpty(t, http.StatusAccepted)
			wantStatus(t, c, id, "available")
		}},
		{"reserve: terminate of a volume that was never attached unreserves it", both, func(t *testing.T, target Target) {
			c := target.client()
			id := available(t, target, nil)
			reserve(t, c, id)
			initialize(t, c, id, connector("node1", nil))
			terminate(t, c, id, connector("node1", nil))
			wantStatus(t, c, id, "available")
		}},
		{"reserve: detach of a volume that was never attached unreserves it too", both, func(t *testing.T, target Target) {
			c := target.client()
			id := available(t, target, nil)
			reserve(t, c, id)
			detach(t, c, id)
			wantStatus(t, c, id, "available")
		}},
		{"reserve: on an available volume the way back changes nothing", both, func(t *testing.T, target Target) {
			c := target.client()
			id := available(t, target, nil)
			detach(t, c, id)
			act(t, c, id, "os-unreserve", object{}).wantEmpty(t, http.StatusAccepted)
			terminate(t, c, id, connector("node1", nil))
			wantStatus(t, c, id, "available")
		}},
		{"reserve: unreserve of an attached volume changes nothing", both, func(t *testing.T, target Target) {
			c := target.client()
			id := attached(t, target)
			act(t, c, id, "os-unreserve", object{}).wantEmpty(t, http.StatusAccepted)
			wantStatus(t, c, id, "in-use")
		}},
		{"reserve: detach may come before terminate, and twice", both, func(t *testing.T, target Target) {
			c := target.client()
			id := attached(t, target)
			detach(t, c, id)
			detach(t, c, id)
			terminate(t, c, id, connector("node1", nil))
			wantStatus(t, c, id, "available")
		}},
		{"reserve: terminate takes a null connector", both, func(t *testing.T, target Target) {
			c := target.client()
			id := attached(t, target)
			act(t, c, id, "os-terminate_connection", object{"connector": nil}).wantEmpty(t, http.StatusAccepted)
			wantStatus(t, c, id, "in-use")
		}},
	}
}

func connectionCases() []testCase {
	return []testCase{
		{"connection: initialize neither needs nor changes a status", both, func(t *testing.T, target Target) {
			c := target.client()
			id := available(t, target, nil)
			initialize(t, c, id, connector("node1", nil))
			wantStatus(t, c, id, "available")
		}},
		{"connection: the same answer every time, for every host, also while in use", both, func(t *testing.T, target Target) {
			c := target.client()
			id := available(t, target, nil)
			first := initialize(t, c, id, connector("node1", nil))
			again := initialize(t, c, id, connector("node1", nil))
			other := initialize(t, c, id, connector("node2", nil))
			attach(t, c, id, "node1")
			inUse := initialize(t, c, id, connector("node1", nil))
			for name, document := range map[string]any{"again": again, "for another host": other, "in use": inUse} {
				if !same(first, document) {
					t.Errorf("%s: the answer differs from the first", name)
				}
			}
		}},
		{"connection: CHAP credentials outlive the export", both, func(t *testing.T, target Target) {
			c := target.client()
			id := available(t, target, nil)
			from := connector("node1", nil)
			var documents []any
			for range 2 {
				reserve(t, c, id)
				documents = append(documents, initialize(t, c, id, from))
				attach(t, c, id, "node1")
				terminate(t, c, id, from)
				detach(t, c, id)
			}
			if !same(documents[0], documents[1]) {
				t.Error("the second round's connection differs from the first's")
			}
		}},
		{"connection: iscsi needs an initiator, all need a connector", both, func(t *testing.T, target Target) {
			c := target.client()
			id := available(t, target, nil)
			for _, from := range []object{connector("node1", object{"initiator": nil}), {}} {
				act(t, c, id, "os-initialize_connection", object{"connector": from}).
					wantBadRequest(t, "Invalid input received: Connector doesn't have required information: initiator")
			}
			act(t, c, id, "os-initialize_connection", object{}).wantBadRequest(t,
				"Invalid input for field/attribute os-initialize_connection. Value: {}. 'connector' is a required property")
			wantStatus(t, c, id, "available")
		}},
		{"connection: iscsi with one portal", both, func(t *testing.T, target Target) {
			c := target.client()
			id := available(t, target, nil)
			flat := initialize(t, c, id, connector("node1", object{"multipath": false}))
			if flat["driver_volume_type"] != "iscsi" {
				t.Fatalf("the driver_volume_type is %v", flat["driver_volume_type"])
			}
			data := flat["data"].(map[string]any)
			delete(data, "enforce_multipath") // Cinder 26 has it, and 21 does not
			wantKeys(t, data, "target_discovered", "target_portal", "target_iqn", "target_lun", "volume_id", "auth_method", "auth_username",
				"auth_password", "encrypted", "qos_specs", "access_mode", "cacheable")
			for key, want := range map[string]any{
				"target_discovered": false, "auth_method": "CHAP", "encrypted": false, "qos_specs": nil, "access_mode": "rw",
				"cacheable": false, "volume_id": id,
			} {
				if data[key] != want {
					t.Errorf("%s is %v, want %v", key, data[key], want)
				}
			}
			if portal, iqn := data["target_portal"].(string), data["target_iqn"].(string); strings.Count(portal, ":") != 1 || !strings.HasSuffix(iqn, id) {
				t.Errorf("the portal is %q and the IQN %q", portal, iqn)
			}
			lists := initialize(t, c, id, connector("node1", nil))["data"].(map[string]any)
			for list, single := range map[string]string{
				"target_portals": "target_portal", "target_iqns": "target_iqn", "target_luns": "target_lun",
			} {
				if !same(lists[list], []any{data[single]}) || lists[single] != data[single] {
					t.Errorf("with multipath %s is %v and %s %v", list, lists[list], single, lists[single])
				}
			}
		}},
		{"connection: iscsi with two portals names both unasked", both, func(t *testing.T, target Target) {
			kind := needType(t, target.Types.Multipath, "CONTRACT_TYPE_ISCSI_MULTIPATH")
			id := available(t, target, object{"volume_type": kind})
			data := initialize(t, target.client(), id, connector("node1", object{"multipath": false}))["data"].(map[string]any)
			portals, _ := data["target_portals"].([]any)
			iqns, _ := data["target_iqns"].([]any)
			luns, _ := data["target_luns"].([]any)
			if len(portals) != 2 || len(iqns) != 2 || len(luns) != 2 || portals[0] != data["target_portal"] || portals[0] == portals[1] ||
				iqns[0] != iqns[1] || iqns[0] != data["target_iqn"] || luns[0] != data["target_lun"] {
				t.Errorf("portals %v, IQNs %v, LUNs %v; flat %v, %v, %v", portals, iqns, luns,
					data["target_portal"], data["target_iqn"], data["target_lun"])
			}
		}},
		{"connection: rbd", both, func(t *testing.T, target Target) {
			kind := needType(t, target.Types.RBD, "CONTRACT_TYPE_RBD")
			id := available(t, target, object{"volume_type": kind})
			document := initialize(t, target.client(), id, object{})
			data := document["data"].(map[string]any)
			wantKeys(t, data, "name", "hosts", "ports", "cluster_name", "auth_enabled", "auth_username", "secret_type", "secret_uuid",
				"volume_id", "discard", "qos_specs", "access_mode", "encrypted", "cacheable")
			if document["driver_volume_type"] != "rbd" || !strings.HasSuffix(data["name"].(string), "/volume-"+id) ||
				data["secret_type"] != "ceph" || len(data["hosts"].([]any)) != len(data["ports"].([]any)) {
				t.Errorf("the connection is %v", document)
			}
		}},
		{"connection: only to an administrator does a volume attached read-only say so", both, func(t *testing.T, target Target) {
			c := target.client()
			id := available(t, target, nil)
			act(t, c, id, "os-attach", object{"host_name": "node1", "mountpoint": "/dev/sdb", "mode": "ro"}).wantEmpty(t, http.StatusAccepted)
			want := "rw"
			if target.noauth() {
				want = "ro"
			}
			if mode := initialize(t, c, id, connector("node1", nil))["data"].(map[string]any)["access_mode"]; mode != want {
				t.Errorf("the access_mode is %v, want %s", mode, want)
			}
		}},
	}
}

// wantKeys requires exactly these keys.
func wantKeys(t testing.TB, data map[string]any, want ...string) {
	t.Helper()
	var got []string
	for key := range data {
		got = append(got, key)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("the keys are %v, want %v", got, want)
	}
}
