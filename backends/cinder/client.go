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
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/tokens"

	"github.com/standalone-cinder/standalone-cinder/backends/auth"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder/catalog"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder/jsonstream"
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
	backupClient
	groupClient
	groupSnapshotClient
	projectClient
	encryptionClient
}

// The parts of a Client, by the subject of their requests.
type (
	volumeClient     struct{ objects[Volume] }
	actionClient     struct{ *requests }
	attachmentClient struct{ *requests }
	snapshotClient   struct{ objects[Snapshot] }
	backupClient     struct{ objects[Snapshot] }
	projectClient    struct{ *requests }
	encryptionClient struct{ *requests }
)

func newClient(of *connection, admission turns.Admission) *Client {
	r := &requests{of, admission}
	return &Client{r, volumeClient{volumesOf(r)}, actionClient{r}, attachmentClient{r}, snapshotClient{snapshotsOf(r)}, backupClient{backupsOf(r)}, groupsOf(r), groupSnapshotsOf(r), projectClient{r}, encryptionClient{r}}
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

// wrong returns the error for the answer to a read that does not fit the request.
func (c *requests) wrong(operation, message string) error {
	return &Error{Backend: c.backend, Operation: operation, Kind: KindInternal, Message: message}
}

// connection is what all clients of one login share.
type connection struct {
	backend  string
	workflow Workflow // as configured
	service  *gophercloud.ServiceClient
	place    Place
	entry    catalog.Entry
	// wanted is what the configuration says about endpoints.
	wanted gophercloud.EndpointOpts
	wire   *transport

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

// request is one request to Cinder; empty fields are left out.
type request struct {
	operation string
	method    string // GET by default
	path      []string
	query     url.Values
	minor     int // the microversion 3.minor
	body      any
	codes     []int // of success; by default the usual ones of the method
	answer    any   // where the answer's JSON is decoded
}

func (c *requests) send(ctx context.Context, r request) error {
	options := &gophercloud.RequestOpts{JSONBody: r.body, JSONResponse: r.answer, OkCodes: r.codes, MoreHeaders: microversion(r.minor)}
	address := c.service.ServiceURL(r.path...)
	if len(r.query) > 0 {
		address += "?" + r.query.Encode()
	}
	_, err := c.service.Request(c.outgoing(ctx, r.operation), cmp.Or(r.method, http.MethodGet), address, options)
	return translate(c.backend, r.operation, err)
}

// microversion returns the header that asks for the microversion 3.minor, if that is not 0.
func microversion(minor int) map[string]string {
	if minor == 0 {
		return nil
	}
	return map[string]string{"OpenStack-API-Version": fmt.Sprintf("volume 3.%d", minor)}
}

// about sends a request about the object with an ID, which must be usable in the path.
func (c *requests) about(ctx context.Context, id string, r request) error {
	if err := c.checkID(r.operation, id); err != nil {
		return err
	}
	return c.send(ctx, r)
}

// stream reads an answer field by field. read takes the field's value from the decoder.
func (c *requests) stream(ctx context.Context, operation, address string, minor int, read func(decoder *json.Decoder, key string) error) error {
	ctx = withExchange(c.outgoing(ctx, operation), func(e *exchange) { e.page = true })
	response, err := c.service.Request(ctx, http.MethodGet, address,
		&gophercloud.RequestOpts{OkCodes: []int{http.StatusOK}, KeepResponseBody: true, MoreHeaders: microversion(minor)})
	if err != nil {
		return translate(c.backend, operation, err)
	}
	defer response.Body.Close() //nolint:errcheck // Everything that matters was read.
	decoder := json.NewDecoder(response.Body)
	return jsonstream.Fields(decoder, func(key string) error { return read(decoder, key) })
}

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
