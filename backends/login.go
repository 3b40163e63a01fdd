package backends

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack"
)

// login makes a client that is known to work: for Keystone by getting a token
// and the endpoint out of its catalogue, for noauth by one listing.
func login(ctx context.Context, config Config, found credentials, metrics *Metrics) (*Client, error) {
	wire := newTransport(config, found, metrics)
	client := &Client{config: config, transport: wire}
	var err error
	if found.noauth != nil {
		client.service, err = loginNoauth(ctx, config, *found.noauth, wire)
	} else {
		client.service, err = loginKeystone(ctx, config, found, wire)
	}
	if err != nil {
		wire.close()
		return nil, err
	}
	return client, nil
}

func loginKeystone(ctx context.Context, config Config, found credentials, wire http.RoundTripper) (*gophercloud.ServiceClient, error) {
	provider, err := openstack.NewClient(found.auth.IdentityEndpoint)
	if err != nil {
		return nil, &Error{Backend: config.Name, Kind: KindConfig, Message: fmt.Sprintf("auth_url %q is not an address", found.auth.IdentityEndpoint)}
	}
	provider.HTTPClient = http.Client{Transport: wire}
	provider.UserAgent.Prepend("standalone-cinder")
	if err := openstack.Authenticate(ctx, provider, found.auth); err != nil {
		return nil, translate(config.Name, "auth.login", err)
	}
	service, err := openstack.NewBlockStorageV3(provider, found.endpoint)
	if err != nil {
		region := ""
		if found.endpoint.Region != "" {
			region = fmt.Sprintf(" in region %q", found.endpoint.Region)
		}
		return nil, &Error{Backend: config.Name, Kind: KindConfig, Message: fmt.Sprintf(
			"the service catalogue has no block storage v3 endpoint%s with interface %q; check region and interface of the backend",
			region, found.endpoint.Availability)}
	}
	return service, nil
}

// hexProject is what current Cinder accepts as a project in its URLs
// (project_id_regex in cinder.conf, default [0-9a-f\-]+).
var hexProject = regexp.MustCompile(`^[0-9a-f-]+$`)

// loginNoauth finds out how this Cinder wants to be addressed. Releases before
// Xena insist on the project in the URL; current ones refuse a project there
// that is not hexadecimal with 404, but accept URLs without any.
func loginNoauth(ctx context.Context, config Config, noauth Noauth, wire http.RoundTripper) (*gophercloud.ServiceClient, error) {
	base, err := noauthBase(noauth.Endpoint)
	if err != nil {
		return nil, &Error{Backend: config.Name, Kind: KindConfig, Message: err.Error()}
	}
	provider := &gophercloud.ProviderClient{
		HTTPClient: http.Client{Transport: wire},
		TokenID:    noauth.User + ":" + noauth.Project,
	}
	provider.UseTokenLock()
	provider.SetToken(noauth.User + ":" + noauth.Project)
	provider.UserAgent.Prepend("standalone-cinder")
	// The last part of the historic program's endpoints may already be the
	// project, as in the URLs of a service catalogue.
	addresses := []string{base + noauth.Project + "/", base}
	if strings.HasSuffix(base, "/"+noauth.Project+"/") {
		addresses = []string{base}
	}
	var first error
	for _, address := range addresses {
		service := &gophercloud.ServiceClient{ProviderClient: provider, Endpoint: address, Type: "block-storage"}
		err := probe(ctx, config.Name, service)
		if err == nil {
			return service, nil
		}
		if first == nil {
			first = err
		}
		// An endpoint that is down or refuses for another reason would only
		// answer the same again.
		if !IsKind(err, KindNotFound) {
			break
		}
	}
	if IsKind(first, KindNotFound) && !hexProject.MatchString(noauth.Project) {
		return nil, &Error{Backend: config.Name, Operation: "auth.discover", Kind: KindConfig, Status: http.StatusNotFound, Message: fmt.Sprintf(
			"Cinder does not accept project %q in its URLs: give auth.noauth.project as a hexadecimal id such as "+
				"0123456789abcdef0123456789abcdef, or set project_id_regex in cinder.conf", noauth.Project)}
	}
	if IsKind(first, KindNotFound) {
		return nil, &Error{Backend: config.Name, Operation: "auth.discover", Kind: KindConfig, Status: http.StatusNotFound, Message: fmt.Sprintf(
			"no volumes API of version 3 at %s; check auth.noauth.endpoint", base)}
	}
	return nil, first
}

// probe asks for one volume, the cheapest request that needs the token.
func probe(ctx context.Context, backend string, service *gophercloud.ServiceClient) error {
	const operation = "auth.discover"
	var answer struct {
		Volumes []struct{} `json:"volumes"`
	}
	response, err := service.Get(withOperation(ctx, operation), service.ServiceURL("volumes")+"?limit=1", &answer, nil)
	if err != nil {
		return translate(backend, operation, err)
	}
	if answer.Volumes == nil {
		return &Error{Backend: backend, Operation: operation, Kind: KindConfig, Status: response.StatusCode,
			Message: "the endpoint does not answer as Cinder's volumes API does; check auth.noauth.endpoint"}
	}
	return nil
}

// noauthBase makes the v3 base out of the endpoints that configurations name:
// with v3, with the v2 of old files (gone since 2021; v3 of the same host is
// what serves there), or with no version at all.
func noauthBase(endpoint string) (string, error) {
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return "", fmt.Errorf("noauth endpoint %q is not an http or https address", endpoint)
	}
	u.RawQuery, u.Fragment, u.User = "", "", nil
	parts := strings.Split(strings.Trim(u.Path, "/"), "/")
	versioned := false
	for i, part := range parts {
		if part == "v1" || part == "v2" {
			parts[i] = "v3"
		}
		versioned = versioned || parts[i] == "v3"
	}
	if !versioned {
		parts = append(parts, "v3")
	}
	u.Path = "/" + strings.Trim(strings.Join(parts, "/"), "/") + "/"
	return u.String(), nil
}
