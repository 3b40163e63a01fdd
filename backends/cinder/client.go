package cinder

import (
	"fmt"
	"regexp"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/gophercloud/gophercloud/v2"

	"github.com/standalone-cinder/standalone-cinder/backends/auth"
)

// Client speaks to one Cinder endpoint as one account. Every method is one
// request (listings: one per page) and returns *Error on failure.
type Client struct {
	backend  string
	workflow Workflow // as configured
	service  *gophercloud.ServiceClient
	place    Place
	entry    CatalogEntry
	wire     *transport

	discovery singleflight.Group
	mu        sync.Mutex
	// microversion is nil until requested.
	microversion *discovered
}

// Backend is the backend's name.
func (c *Client) Backend() string { return c.backend }

// Place is where the client's volumes live.
func (c *Client) Place() Place { return c.place }

// Now is the time by Cinder's clock, as far as its answers have shown it.
func (c *Client) Now() time.Time { return c.wire.clock.now() }

// ClockAhead is how far the clock of the server was ahead of the local one in its
// last answer, to the second, without the bound of Now. It is not known if no
// answer had a date.
func (c *Client) ClockAhead() (ahead time.Duration, known bool) { return c.wire.clock.last() }

// Address is the endpoint that the client uses, without user and password.
func (c *Client) Address() string { return auth.WithoutUser(c.service.Endpoint) }

// CatalogEntry says which entry of the service catalog an endpoint comes from.
type CatalogEntry struct{ Region, Interface string }

// CatalogEntry is where the client's endpoint comes from; zero for noauth.
func (c *Client) CatalogEntry() CatalogEntry { return c.entry }

// usableID matches what may be used as an ID in an address. Cinder's
// IDs are UUIDs; other characters could make a different path.
var usableID = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z_-]*$`)

func (c *Client) checkID(operation, id string) error {
	if usableID.MatchString(id) {
		return nil
	}
	return &Error{Backend: c.backend, Operation: operation, Kind: KindInvalid, Message: fmt.Sprintf("%q is not a volume ID", id)}
}
