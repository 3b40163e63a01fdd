package contract

import (
	"net/http"
	"testing"
)

func retypeCases() []testCase {
	const needs = "Invalid volume: Retype needs volume to be in available or in-use state, not be part of an active migration or a consistency group, " +
		"requested type has to be different that the one from the volume, and for in-use volumes front-end qos specs cannot change."
	return []testCase{
		{"retype: to a type of another storage, without a migration", both, func(t *testing.T, target Target) {
			if target.Types.Multipath == "" {
				t.Skip("no type of another storage is known")
			}
			c := target.client()
			id := available(t, target, nil)
			act(t, c, id, "os-retype", object{"new_type": target.Types.Multipath, "migration_policy": "never"}).wantEmpty(t, http.StatusAccepted)
			waitStatus(t, target, c, id, "available")
			if kind := show(t, c, id)["volume_type"]; kind != target.Types.ISCSI {
				t.Errorf("the type is %v", kind)
			}
		}},
		{"retype: to a type of another storage, with a migration", both, func(t *testing.T, target Target) {
			other := needType(t, target.Types.Multipath, "CONTRACT_TYPE_ISCSI_MULTIPATH")
			c := target.client()
			id := available(t, target, object{"metadata": object{"of": "before"}})
			name := show(t, c, id)["name"].(string)
			act(t, c, id, "os-retype", object{"new_type": other, "migration_policy": "on-demand"}).wantEmpty(t, http.StatusAccepted)
			if !target.noauth() {
				// The copy is the administrators' alone.
				eventually(t, target, "waiting for the new type", func() (string, bool) {
					if all := listed(t, c, "/volumes/detail?name="+name); len(all) != 1 && all[0]["status"] != "deleting" && all[1]["status"] != "deleting" {
						t.Fatalf("a member sees %v", all)
					}
					got := status(t, c, id)
					return got, got == "available"
				})
			} else {
				var copied map[string]any
				eventually(t, target, "waiting for the copy", func() (string, bool) {
					for _, v := range listed(t, c, "/volumes/detail?name="+name) {
						if v["id"] != id && v["status"] == "available" {
							copied = v
						}
					}
					return "there is none", copied != nil
				})
				if copied["os-vol-mig-status-attr:migstat"] != "target:"+id || copied["volume_type"] != other || !same(copied["metadata"], map[string]any{"of": "before"}) {
					t.Errorf("the copy is %v", copied)
				}
				if got := show(t, c, id); got["status"] != "retyping" || got["os-vol-mig-status-attr:migstat"] != "migrating" {
					t.Errorf("meanwhile the volume is %v", got)
				}
				c.call(t, "DELETE", "/volumes/"+copied["id"].(string), nil).want(t, http.StatusBadRequest)
				c.call(t, "POST", "/volumes/"+id+"/metadata", object{"metadata": object{"of": "meanwhile"}}).want(t, http.StatusOK)
				waitStatus(t, target, c, id, "available")
				waitGone(t, target, c, "/volumes/"+copied["id"].(string))
			}
			v := show(t, c, id)
			if v["volume_type"] != other || !same(v["metadata"], map[string]any{"of": "before"}) {
				t.Errorf("the volume is %v", v)
			}
			// What it has now can be connected.
			reserve(t, c, id)
			initialize(t, c, id, connector("node1", nil))
		}},
		{"retype: a volume with snapshots is not migrated", both, func(t *testing.T, target Target) {
			other := needType(t, target.Types.Multipath, "CONTRACT_TYPE_ISCSI_MULTIPATH")
			c := target.client()
			id := available(t, target, nil)
			snapshotOf(t, target, id, nil)
			act(t, c, id, "os-retype", object{"new_type": other, "migration_policy": "on-demand"}).wantEmpty(t, http.StatusAccepted)
			waitStatus(t, target, c, id, "available")
			if kind := show(t, c, id)["volume_type"]; kind != target.Types.ISCSI {
				t.Errorf("the type is %v", kind)
			}
		}},
		{"retype: what is refused", both, func(t *testing.T, target Target) {
			c := target.client()
			id := available(t, target, nil)
			for _, test := range []struct {
				name       string
				parameters object
				want       string
			}{
				{"its own type", object{"new_type": target.Types.ISCSI, "migration_policy": "never"}, needs},
				{"no type", object{}, "Invalid input for field/attribute os-retype. Value: {}. 'new_type' is a required property"},
				{"no text", object{"new_type": 1}, "Invalid input for field/attribute new_type. Value: 1. 1 is not of type 'string'"},
				{"an unknown policy", object{"new_type": target.Types.ISCSI, "migration_policy": "x"}, "Invalid input for field/attribute migration_policy. Value: x. 'x' is not one of ['on-demand', 'never']"},
			} {
				t.Run(test.name, func(t *testing.T) { act(t, c, id, "os-retype", test.parameters).wantBadRequest(t, test.want) })
			}
			wantStatus(t, c, id, "available")
		}},
		{"retype: to or from a type for several hosts, in use", both, func(t *testing.T, target Target) {
			if target.Types.Shared == "" {
				t.Skip("no type for several hosts is known")
			}
			c := target.client()
			id := attached(t, target)
			act(t, c, id, "os-retype", object{"new_type": target.Types.Shared, "migration_policy": "never"}).wantBadRequest(t,
				"Invalid input received: Invalid volume_type passed, retypes affecting multiattach are only allowed on available volumes, "+
					"the specified volume however currently has a status of: in-use.")
			wantStatus(t, c, id, "in-use")
		}},
		{"retype: to and from a type with front-end QoS, in use", both, func(t *testing.T, target Target) {
			limited := needType(t, target.Types.Limited, "CONTRACT_TYPE_LIMITED")
			c := target.client()
			id := attached(t, target)
			act(t, c, id, "os-retype", object{"new_type": limited, "migration_policy": "never"}).wantBadRequest(t, needs)
			wantStatus(t, c, id, "in-use")
			id = available(t, target, object{"volume_type": limited})
			newAttachment(t, c, id, "3.44", object{"connector": connector("node1", nil)}).want(t, http.StatusOK)
			waitStatus(t, target, c, id, "attaching")
			act(t, c, id, "os-retype", object{"new_type": target.Types.ISCSI, "migration_policy": "never"}).wantBadRequest(t, needs)
		}},
		{"retype: refused while reserved", both, func(t *testing.T, target Target) {
			if target.Types.Multipath == "" {
				t.Skip("no other type is known")
			}
			c := target.client()
			id := available(t, target, nil)
			reserve(t, c, id)
			act(t, c, id, "os-retype", object{"new_type": target.Types.Multipath, "migration_policy": "never"}).wantBadRequest(t, needs)
		}},
	}
}
