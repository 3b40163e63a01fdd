package cinder

import (
	"fmt"
	"regexp"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/gophercloud/gophercloud/v2"
)

// Client speaks to one Cinder endpoint as one account. Every method is one
// request (listings: one per page) and returns *Error on failure.
type Client struct {
	backend  string
	workflow Workflow // as configured
	service  *gophercloud.ServiceClient
	place    Place
	// now is the time by Cinder's clock.
	now func() time.Time

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
func (c *Client) Now() time.Time { return c.now() }

// usableID matches what may be used as an ID in an address. Cinder's
// IDs are UUIDs; other characters could make a different path.
var usableID = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z_-]*$`)

func (c *Client) checkID(operation, id string) error {
	if usableID.MatchString(id) {
		return nil
	}
	return &Error{Backend: c.backend, Operation: operation, Kind: KindInvalid, Message: fmt.Sprintf("%q is not a volume ID", id)}
}
