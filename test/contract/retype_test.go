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
