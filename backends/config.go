// Package backends manages the life cycle of OpenStack Cinder volumes.
//
// A Pool turns a backend's configuration and credentials into a logged-in client of
// backends/cinder. A Lifecycle uses it to take a volume through its life: create,
// reserve, connect, complete, and all the way back. Waiting costs one listing per backend
// and tick, however many volumes are in flight (package watch).
//
// The package knows neither Kubernetes, since a claim reaches it as a Stamp, nor HTTP:
// the work at an endpoint is divided among owners (type owners), and each declares the
// requests that it makes.
package backends

import (
	"cmp"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/auth"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder/turns"
)

// Config is all that the package needs to know about one backend. The caller derives it
// from the policy; neither package imports the other.
type Config struct {
	// Name is unique in the policy and appears in metrics, events and errors.
	Name string
	Auth auth.Config

	// Workflow is how new volumes are connected; empty means reserve.
	Workflow  cinder.Workflow
	Connector cinder.Connector
	Limits    turns.Limits // a concurrency of 0 means the default
	Timeouts  Timeouts
}

// Timeouts bound the waits for one backend. Zero values mean the package's
// defaults.
type Timeouts struct {
	Create  time.Duration // create accepted → available
	Delete  time.Duration // DELETE accepted → gone
	Request time.Duration // one HTTP exchange
}

// Defaults for empty fields of a Config. A request may take as long as Cinder's own call
// to its volume service (rpc_response_timeout, 60 s), since os-initialize_connection
// waits for the array.
const (
	DefaultConcurrency    = 16
	DefaultCreateTimeout  = 5 * time.Minute
	DefaultDeleteTimeout  = 10 * time.Minute
	DefaultRequestTimeout = 75 * time.Second
)

func (c Config) withDefaults() Config {
	c.Limits.Concurrency = cmp.Or(c.Limits.Concurrency, DefaultConcurrency)
	c.Timeouts.Create = cmp.Or(c.Timeouts.Create, DefaultCreateTimeout)
	c.Timeouts.Delete = cmp.Or(c.Timeouts.Delete, DefaultDeleteTimeout)
	c.Timeouts.Request = cmp.Or(c.Timeouts.Request, DefaultRequestTimeout)
	return c
}

// Expect returns a backend's place as far as its configuration and credentials determine
// it without a request: completely for noauth; for Keystone, the project if the
// credentials contain its ID. Unreadable credentials yield nothing.
func Expect(sources auth.Sources, config Config) cinder.Place {
	found, err := sources.Resolve(config.Auth)
	switch {
	case err != nil:
		return cinder.Place{}
	case found.Noauth != nil:
		return cinder.NoauthPlace(*found.Noauth)
	case found.Keystone.Scope != nil:
		return cinder.Place{Project: found.Keystone.Scope.ProjectID}
	}
	return cinder.Place{}
}
