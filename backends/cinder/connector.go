package cinder

// Connector describes the nodes to Cinder as one initiator: every node of the
// cluster logs in under the same names, so that any of them may mount. See the
// "connector" object of os-initialize_connection in the Block Storage API
// reference.
type Connector struct {
	Host      string   `json:"host"`
	IP        string   `json:"ip,omitempty"`
	Initiator string   `json:"initiator,omitempty"`
	WWPNs     []string `json:"wwpns,omitempty"`
	NQN       string   `json:"nqn,omitempty"`
	Multipath bool     `json:"multipath"`
}

// request is the connector in the form that Cinder and its drivers expect.
// The platform keys are what os-brick sends from a Linux node.
func (c Connector) request() map[string]any {
	body := map[string]any{
		"host":            c.Host,
		"multipath":       c.Multipath,
		"platform":        "x86_64",
		"os_type":         "linux",
		"do_local_attach": false,
	}
	if c.IP != "" {
		body["ip"] = c.IP
	}
	if c.Initiator != "" {
		body["initiator"] = c.Initiator
	}
	if len(c.WWPNs) > 0 {
		body["wwpns"] = c.WWPNs
	}
	if c.NQN != "" {
		body["nqn"] = c.NQN
	}
	return body
}
