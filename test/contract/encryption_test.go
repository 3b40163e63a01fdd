package contract

import (
	"net/http"
	"strings"
	"testing"
)

func encryptionCases() []testCase {
	return []testCase{
		{"encryption: a volume of an encrypted type", both, func(t *testing.T, target Target) {
			kind := needType(t, target.Types.LUKS, "CONTRACT_TYPE_LUKS")
			c := target.client()
			id := available(t, target, object{"volume_type": kind})
			if view := show(t, c, id); view["encrypted"] != true {
				t.Errorf("encrypted is %v", view["encrypted"])
			}
			said := c.call(t, "GET", "/volumes/"+id+"/encryption", nil).want(t, http.StatusOK).object(t)
			wantKeys(t, said, "encryption_key_id", "provider", "control_location", "cipher", "key_size")
			for key, want := range map[string]any{"provider": "luks", "control_location": "front-end", "cipher": "aes-xts-plain64", "key_size": 256.0} {
				if said[key] != want {
					t.Errorf("%s is %v, want %v", key, said[key], want)
				}
			}
			if key, _ := said["encryption_key_id"].(string); len(strings.ReplaceAll(key, "-", "")) != 32 {
				t.Errorf("the key is %q", key)
			}
			made := newAttachment(t, c, id, "3.44", object{"connector": connector("node1", nil)}).want(t, http.StatusOK).object(t, "attachment")
			if connection := made["connection_info"].(map[string]any); connection["encrypted"] != true {
				t.Errorf("the connection's encrypted is %v", connection["encrypted"])
			}
			deleteAttachment(t, c, made["id"].(string))
		}},
		{"encryption: a volume without, and none", both, func(t *testing.T, target Target) {
			c := target.client()
			id := available(t, target, nil)
			said := c.call(t, "GET", "/volumes/"+id+"/encryption", nil).want(t, http.StatusOK).object(t)
			if key, present := said["encryption_key_id"]; len(said) != 1 || !present || key != nil {
				t.Errorf("it is said to be encrypted: %v", said)
			}
			c.call(t, "GET", "/volumes/"+strings.Replace(id, id[:8], "00000000", 1)+"/encryption", nil).want(t, http.StatusNotFound)
		}},
	}
}
