// Package cinder is the adapter to OpenStack: a Client talks to one Cinder endpoint with
// one account. Nothing else in the program sends requests to OpenStack.
//
// Login creates a client from credentials. Each of its methods is one exchange: it
// returns Cinder's answer in this package's types, and every failure as an *Error. The
// transport below it bounds, paces and measures the requests. The client's Admission
// (Client.With) may stop a request at the last moment.
//
// The package does not know who owns a volume or what it is for.
package cinder

import (
	"context"
	"fmt"
	"regexp"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/tokens"

	"github.com/standalone-cinder/standalone-cinder/backends/auth"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder/catalog"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder/turns"
)

// Client talks to one Cinder endpoint with one account. Every method makes one request
// (listings: one per page) and returns *Error on failure.
type Client struct {
	*requests
	volumeClient
	actionClient
	attachmentClient
	snapshotClient
	projectClient
}

// The parts of a Client, by the subject of their requests.
type (
	volumeClient     struct{ *requests }
	actionClient     struct{ *requests }
	attachmentClient struct{ *requests }
	snapshotClient   struct{ *requests }
	projectClient    struct{ *requests }
)

func newClient(of *connection, admission turns.Admission) *Client {
	r := &requests{of, admission}
	return &Client{r, volumeClient{r}, actionClient{r}, attachmentClient{r}, snapshotClient{r}, projectClient{r}}
}

// requests makes the requests of a client.
type requests struct {
	*connection
	admission turns.Admission
}

// unusable returns the error for an answer that does not show what the request did.
func (c *requests) unusable(operation, message string) error {
	return &Error{Backend: c.backend, Operation: operation, Kind: KindInternal, EffectUnknown: true, Message: message}
}

// checkAnswer returns an error unless an answer describes a volume or a snapshot.
func (c *requests) checkAnswer(operation, noun, id string, status Status, odd bool) error {
	switch {
	case odd:
		return c.unusable(operation, notDescribed)
	case !usableID.MatchString(id):
		return c.unusable(operation, fmt.Sprintf("the answer names %q, which is not a %s ID", sentence(id), noun))
	case status == "":
		// An object without a status exists. If it counted as absent, it would be created
		// again.
		return c.unusable(operation, fmt.Sprintf("the answer gives no status of %s %s", noun, sentence(id)))
	}
	return nil
}

// connection is what all clients of one login share.
type connection struct {
	backend  string
	workflow Workflow // as configured
	service  *gophercloud.ServiceClient
	place    Place
	entry    catalog.Entry
	wire     *transport

	discovery singleflight.Group
	mu        sync.Mutex
	// microversion is nil until requested.
	microversion *discovered
}

// With returns a client of the same login whose requests must pass the admission before
// they are sent.
func (c *Client) With(admission turns.Admission) *Client { return newClient(c.connection, admission) }

// outgoing returns the context for a request.
func (c *requests) outgoing(ctx context.Context, operation string) context.Context {
	return withExchange(ctx, func(e *exchange) { e.operation, e.admission = operation, c.admission })
}

// about makes a request about the object with an ID.
func (c *requests) about(ctx context.Context, operation, id string, send func(ctx context.Context) error) error {
	if err := c.checkID(operation, id); err != nil {
		return err
	}
	return translate(c.backend, operation, send(c.outgoing(ctx, operation)))
}

// post makes a request about the object with an ID and ignores the answer's content. It
// sends no microversion if minor is 0.
func (c *requests) post(ctx context.Context, operation, id string, minor int, body map[string]any, code int, under, last string) error {
	return c.about(ctx, operation, id, func(ctx context.Context) error {
		options := &gophercloud.RequestOpts{OkCodes: []int{code}}
		if minor > 0 {
			options.MoreHeaders = microversion(minor)
		}
		_, err := c.service.Post(ctx, c.service.ServiceURL(under, id, last), body, nil, options)
		return err
	})
}

// Backend returns the backend's name.
func (c *Client) Backend() string { return c.backend }

// Place returns the endpoint and project of the client's volumes.
func (c *Client) Place() Place { return c.place }

// Now returns the time by Cinder's clock, estimated from its answers.
func (c *Client) Now() time.Time { return c.wire.clock.Now() }

// ClockAhead returns how far the server's clock was ahead of the local one in its last
// answer, to the second and without Now's bound. It is unknown if no answer had a date.
func (c *Client) ClockAhead() (ahead time.Duration, known bool) { return c.wire.clock.Last() }

// Address returns the endpoint that the client uses, without user and password.
func (c *Client) Address() string { return auth.WithoutUser(c.service.Endpoint) }

// CatalogEntry returns the source of the client's endpoint; zero for noauth.
func (c *Client) CatalogEntry() catalog.Entry { return c.entry }

// usableID matches IDs that may be used in an address. Cinder's IDs are UUIDs; other
// characters could form a different path.
var usableID = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z_-]*$`)

func (c *requests) checkID(operation, id string) error {
	if usableID.MatchString(id) {
		return nil
	}
	return &Error{Backend: c.backend, Operation: operation, Kind: KindInvalid, Message: fmt.Sprintf("%q is not a volume ID", id)}
}

// Expiry is when a client's dependencies expire. A zero time means unknown or never.
type Expiry struct {
	Token time.Time
	// Keystone and Cinder are the servers' certificates, including the authorities that
	// verified them.
	Keystone, Cinder time.Time
}

// Expiry returns what the client has learned from its last answers.
func (c *Client) Expiry() Expiry {
	var found Expiry
	found.Keystone, found.Cinder = c.wire.certificates.Expiry()
	if answer, ok := c.service.GetAuthResult().(interface{ ExtractToken() (*tokens.Token, error) }); ok {
		if token, err := answer.ExtractToken(); err == nil {
			found.Token = token.ExpiresAt
		}
	}
	return found
}
