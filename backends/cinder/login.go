package cinder

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack"

	"github.com/standalone-cinder/standalone-cinder/backends/auth"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder/catalog"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder/turns"
	"github.com/standalone-cinder/standalone-cinder/backends/fingerprint"
)

// The operations of a login, as named in errors and metrics.
const (
	OperationLogin    = "auth.login"
	operationDiscover = "auth.discover"
)

// Options configure a client.
type Options struct {
	// Backend is the backend's name in metrics and errors.
	Backend string
	// Workflow is how to connect new volumes; empty means reserve.
	Workflow Workflow
	// Account is shared with other clients that log in with the same credentials; nil
	// gives the client its own.
	Account *Account
	// Queue is shared with the backend's other clients; nil gives the client its own,
	// with Limits.
	Queue *turns.Queue
	// Limits need a concurrency of at least one.
	Limits turns.Limits
	// RequestTimeout bounds one HTTP exchange, from its turn on.
	RequestTimeout time.Duration
	Metrics        *Metrics
	// MayWrite is called before bytes leave for the backend; on an error they are not
	// sent. Nil always permits it. See guardedConn.
	MayWrite func() error
	// Warn reports concerns about a successful login; it may be nil.
	Warn func(backend, message string)
	// Dial makes connections; nil means the machine's network.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Base sends the requests whose turn has come; nil means the client's own
	// connections.
	Base http.RoundTripper
}

// Login returns a client that is known to work: for Keystone it gets a token and finds
// the endpoint in its catalog, for noauth it makes one listing. It ignores the context's
// caller and bounds its own time.
func Login(ctx context.Context, found auth.Credentials, options Options) (*Client, error) {
	// A login is a few requests at most.
	ctx, cancel := context.WithTimeout(turns.WithCaller(ctx, turns.Caller{}), 2*options.RequestTimeout)
	defer cancel()
	wire := newTransport(options, found)
	client := newClient(&connection{backend: options.Backend, workflow: options.Workflow, wanted: found.Endpoint, wire: wire}, turns.Admission{})
	var err error
	if found.Noauth != nil {
		client.service, err = loginNoauth(ctx, options.Backend, *found.Noauth, wire)
		options.Metrics.login(options.Backend, err)
		client.place = NoauthPlace(*found.Noauth)
	} else {
		client.service, client.entry, err = loginKeystone(ctx, options, found, wire)
		if err == nil {
			client.place = NewPlace(client.service.Endpoint, catalog.Project(client.service.GetAuthResult()))
		}
	}
	if err != nil {
		wire.close()
		return nil, err
	}
	return client, nil
}

// httpClient never follows a redirect: that would send the token to any host that the
// answer names, and repeat a POST as a GET.
func httpClient(wire http.RoundTripper) http.Client {
	return http.Client{
		Transport:     traced{wire},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

func loginKeystone(ctx context.Context, options Options, found auth.Credentials, wire *transport) (*gophercloud.ServiceClient, catalog.Entry, error) {
	provider, err := openstack.NewClient(found.Keystone.IdentityEndpoint)
	if err != nil {
		return nil, catalog.Entry{}, &Error{Backend: options.Backend, Kind: KindConfig, Message: fmt.Sprintf("auth_url %q is not an address", auth.WithoutUser(found.Keystone.IdentityEndpoint))}
	}
	provider.HTTPClient = httpClient(wire)
	provider.UserAgent.Prepend("standalone-cinder")
	account := cmp.Or(options.Account, NewAccount())
	project := fingerprint.Of(found.Keystone.Scope)
	if err := account.login(ctx, options, project, func(ctx context.Context) error {
		return openstack.Authenticate(ctx, provider, found.Keystone)
	}); err != nil {
		return nil, catalog.Entry{}, err
	}
	if provider.Token() == "" {
		return nil, catalog.Entry{}, &Error{Backend: options.Backend, Operation: OperationLogin, Kind: KindConfig, Message: "the answer has no X-Subject-Token header: " +
			"auth_url does not point to Keystone, or a proxy removes the header"}
	}
	if renew := provider.ReauthFunc; renew != nil {
		// Every request that got a 401 waits for one renewal. It must not end with the
		// caller that happened to come first. Only a probe's shorter timeout applies.
		provider.ReauthFunc = func(caller context.Context) error {
			of := exchangeOf(caller)
			if !wire.renewals.mayHelp(of.operation) {
				return errFruitless
			}
			ctx, cancel := context.WithTimeout(WithRequestTimeout(context.Background(), of.atMost(options.RequestTimeout)), 2*options.RequestTimeout)
			defer cancel()
			err := account.login(ctx, options, project, renew)
			if err == nil {
				wire.renewals.renewed(of.operation)
			}
			return err
		}
	}
	if catalog.Project(provider.GetAuthResult()) == "" {
		// Volumes exist only in a project. Without its name, they would seem to be
		// elsewhere.
		return nil, catalog.Entry{}, &Error{Backend: options.Backend, Operation: OperationLogin, Kind: KindConfig, Message: "the token is for no project; name a project in the credentials"}
	}
	endpoint, entry, source := catalog.Fixed(found.Override, catalog.Project(provider.GetAuthResult())), catalog.Entry{}, "the configured endpoint of"
	if found.Override == "" {
		source = "its service catalog lists"
		if endpoint, entry, err = catalog.Endpoint(provider.GetAuthResult(), found.Endpoint); err != nil {
			return nil, catalog.Entry{}, &Error{Backend: options.Backend, Kind: KindConfig, Message: err.Error()}
		}
	}
	if options.Warn != nil {
		for _, warning := range found.Warnings {
			options.Warn(options.Backend, warning)
		}
		if isHTTPS(found.Keystone.IdentityEndpoint) && !isHTTPS(endpoint) {
			verb, remedy := "at", "fix the catalog, or select another interface"
			if found.Override != "" {
				verb, remedy = "is", "use an https address"
			}
			options.Warn(options.Backend, fmt.Sprintf("Keystone is reached by https, but %s block storage %s %s: tokens cross the network in plain text; %s",
				source, verb, auth.WithoutUser(endpoint), remedy))
		}
	}
	return &gophercloud.ServiceClient{ProviderClient: provider, Endpoint: endpoint, Type: "block-storage"}, entry, nil
}

func isHTTPS(address string) bool {
	u, err := url.Parse(address)
	return err == nil && strings.EqualFold(u.Scheme, "https")
}

// hexProject matches what current Cinder accepts as a project in its URLs
// (project_id_regex in cinder.conf, default [0-9a-f\-]+).
var hexProject = regexp.MustCompile(`^[0-9a-f-]+$`)

// loginNoauth determines which addresses this Cinder accepts. Releases before Xena
// require the project in the URL; current ones answer 404 to a non-hexadecimal project,
// but accept URLs without one.
func loginNoauth(ctx context.Context, backend string, noauth auth.Noauth, wire http.RoundTripper) (*gophercloud.ServiceClient, error) {
	base, project, err := auth.SplitNoauth(noauth.Endpoint)
	if err != nil {
		return nil, &Error{Backend: backend, Kind: KindConfig, Message: err.Error()}
	}
	provider := &gophercloud.ProviderClient{HTTPClient: httpClient(wire)}
	provider.UseTokenLock()
	provider.SetToken(noauth.User + ":" + noauth.Project)
	provider.UserAgent.Prepend("standalone-cinder")
	addresses := []string{base + url.PathEscape(noauth.Project) + "/", base}
	if project != "" {
		// The operator wrote the project into the address deliberately.
		addresses = addresses[:1]
	}
	for _, address := range addresses {
		service := &gophercloud.ServiceClient{ProviderClient: provider, Endpoint: address, Type: "block-storage"}
		err := probe(ctx, backend, service)
		if err == nil {
			return service, nil
		}
		// An endpoint that is down or rejects the request for another reason would only
		// give the same answer again.
		if statusOf(err) != http.StatusNotFound {
			return nil, err
		}
	}
	failed := &Error{Backend: backend, Operation: operationDiscover, Kind: KindConfig, Status: http.StatusNotFound,
		Message: fmt.Sprintf("no volumes API of version 3 at %s; check auth.noauth.endpoint", auth.WithoutUser(base))}
	if !hexProject.MatchString(noauth.Project) {
		failed.Message = fmt.Sprintf("no volumes API of version 3 at %s accepts project %q: give auth.noauth.project as a hexadecimal id such as "+
			"0123456789abcdef0123456789abcdef, set project_id_regex in cinder.conf, or check auth.noauth.endpoint", auth.WithoutUser(base), noauth.Project)
	}
	return nil, failed
}

// probe requests one volume through the listing that all waits rely on.
func probe(ctx context.Context, backend string, service *gophercloud.ServiceClient) error {
	var answer struct {
		Volumes *[]struct{} `json:"volumes"`
	}
	_, err := service.Get(withOperation(ctx, operationDiscover), service.ServiceURL("volumes", "detail")+"?limit=1", &answer, nil)
	if err != nil && !isDecoding(err) {
		return translate(backend, operationDiscover, err)
	}
	if err != nil || answer.Volumes == nil {
		return &Error{Backend: backend, Operation: operationDiscover, Kind: KindConfig, Status: http.StatusOK,
			Message: "the endpoint does not answer like Cinder's volumes API; check auth.noauth.endpoint"}
	}
	return nil
}
