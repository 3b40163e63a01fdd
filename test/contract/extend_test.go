package contract

import (
	"net/http"
	"testing"
)

func extendCases() []testCase {
	return []testCase{
		{"extend: an available volume", both, func(t *testing.T, target Target) {
			c := target.client()
			id := available(t, target, nil)
			act(t, c, id, "os-extend", object{"new_size": 2}).wantEmpty(t, http.StatusAccepted)
			if now := show(t, c, id); now["status"] == "extending" && now["size"] != 1.0 {
				t.Errorf("while it is extending its size is %v", now["size"])
			}
			waitStatus(t, target, c, id, "available")
			if size := show(t, c, id)["size"]; size != 2.0 {
				t.Errorf("the size is %v", size)
			}
		}},
		{"extend: sizes that are refused", both, func(t *testing.T, target Target) {
			c := target.client()
			id := available(t, target, object{"size": 2})
			for _, test := range []struct {
				name       string
				parameters object
				want       string
			}{
				{"the same", object{"new_size": 2}, "Invalid input received: New size for extend must be greater than current size. (current: 2, extended: 2)."},
				{"smaller", object{"new_size": 1}, "Invalid input received: New size for extend must be greater than current size. (current: 2, extended: 1)."},
				{"no number", object{"new_size": "x"}, "Invalid input for field/attribute new_size. Value: x. 'x' does not match '^[0-9]+$'"},
				{"zero", object{"new_size": 0}, "Invalid input for field/attribute new_size. Value: 0. 0 is less than the minimum of 1"},
				{"none", object{}, "Invalid input for field/attribute os-extend. Value: {}. 'new_size' is a required property"},
			} {
				t.Run(test.name, func(t *testing.T) { act(t, c, id, "os-extend", test.parameters).wantBadRequest(t, test.want) })
			}
			wantStatus(t, c, id, "available")
		}},
		{"extend: refused while reserved, at any microversion", both, func(t *testing.T, target Target) {
			c := target.client()
			id := available(t, target, nil)
			reserve(t, c, id)
			for _, version := range []string{"3.0", "3.42"} {
				act(t, c, id, "os-extend", object{"new_size": 2}, version).wantBadRequest(t,
					"Invalid volume: Volume "+id+" status must be '{'status': 'available'}' to extend, currently attaching.")
			}
		}},
		{"extend: an attached volume from 3.42 on", both, func(t *testing.T, target Target) {
			c := target.client()
			id := attached(t, target)
			act(t, c, id, "os-extend", object{"new_size": 2}, "3.41").wantBadRequest(t,
				"Invalid volume: Volume "+id+" status must be '{'status': 'available'}' to extend, currently in-use.")
			act(t, c, id, "os-extend", object{"new_size": 2}, "3.42").wantEmpty(t, http.StatusAccepted)
			waitStatus(t, target, c, id, "in-use")
			view := show(t, c, id)
			if view["size"] != 2.0 || len(view["attachments"].([]any)) != 1 {
				t.Errorf("the size is %v, the attachments %v", view["size"], view["attachments"])
			}
		}},
	}
}
