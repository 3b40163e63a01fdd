package backends

import (
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/auth"
)

// Config is all that the package needs to know of one backend. It is made from
// the policy by the caller; the two packages do not import each other.
type Config struct {
	// Name is unique in the policy and appears in metrics, events and errors.
	Name string
	Auth auth.Source
	// Region and Interface select an endpoint of the service catalog;
	// empty means the only region and the public interface. Values found
	// with the credentials (region_name, interface) serve as defaults.
	Region    string
	Interface string

	// Workflow is how new volumes are connected; empty means reserve.
	Workflow  Workflow
	Connector Connector
	Limits    Limits
	Timeouts  Timeouts
}

// Workflow is the sequence of requests that connects a volume. A volume keeps
// the one it was made with; its stamp tells which.
type Workflow string

const (
	// WorkflowReserve uses the volume actions os-reserve,
	// os-initialize_connection and os-attach.
	WorkflowReserve Workflow = "reserve"
	// WorkflowAttachment uses the attachments API (microversion 3.44).
	WorkflowAttachment Workflow = "attachment"
	// WorkflowAuto takes the attachments API where the endpoint has it.
	WorkflowAuto Workflow = "auto"
)

// Limits bound what the program asks of one backend at a time.
type Limits struct {
	// Concurrency is the number of requests under way at once; 0 means the
	// package's default.
	Concurrency int
	// RequestsPerSecond is 0 when requests are not paced.
	RequestsPerSecond float64
}

// Timeouts bound the waiting for one backend. Zero values mean the package's
// defaults.
type Timeouts struct {
	Create  time.Duration // create accepted → available
	Delete  time.Duration // DELETE accepted → gone
	Request time.Duration // one HTTP exchange
}

// Defaults for what a Config leaves open. A request may take as long as
// Cinder's own call to its volume service (rpc_response_timeout, 60 s), since
// os-initialize_connection waits for the array.
const (
	DefaultConcurrency    = 16
	DefaultCreateTimeout  = 5 * time.Minute
	DefaultDeleteTimeout  = 10 * time.Minute
	DefaultRequestTimeout = 75 * time.Second
)

// credentials is what matters to them.
func (c Config) credentials() auth.Config {
	return auth.Config{Source: c.Auth, Region: c.Region, Interface: c.Interface}
}

func (c Config) withDefaults() Config {
	if c.Limits.Concurrency <= 0 {
		c.Limits.Concurrency = DefaultConcurrency
	}
	if c.Timeouts.Create <= 0 {
		c.Timeouts.Create = DefaultCreateTimeout
	}
	if c.Timeouts.Delete <= 0 {
		c.Timeouts.Delete = DefaultDeleteTimeout
	}
	if c.Timeouts.Request <= 0 {
		c.Timeouts.Request = DefaultRequestTimeout
	}
	return c
}

// Connector describes the nodes to Cinder as one initiator: every node of the
// cluster logs in under the same names, so that any of them may mount.
// See the "connector" object of os-initialize_connection in the Block Storage
// API reference.
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
