package cinder

import (
	"cmp"
	"fmt"
	"net/url"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/backends/auth"
)

// Place is where volumes live: a Block Storage endpoint and a project there.
// That a volume does not exist can only be said of a place: the same backend
// may lead to another one tomorrow. The zero Place is one that is not known.
type Place struct {
	// Endpoint is an address in the form that NewPlace gives it.
	Endpoint string
	// Project is its id; for noauth the project as it is configured.
	Project string
}

// NewPlace brings an address into one form: scheme and host in lower case, the
// port unless it is the scheme's own, and the path up to the version of the API.
// User, password and the project behind the version are left out.
func NewPlace(endpoint, project string) Place {
	place := Place{Endpoint: endpoint, Project: project}
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" {
		place.Endpoint = auth.WithoutUser(endpoint)
		return place
	}
	scheme, host := strings.ToLower(u.Scheme), strings.ToLower(u.Host)
	own := map[string]string{"http": ":80", "https": ":443"}[scheme]
	if own != "" {
		host = strings.TrimSuffix(host, own)
	}
	path := ""
	for part := range strings.SplitSeq(u.Path, "/") {
		if part == "" {
			continue
		}
		path += "/" + part
		if part == "v1" || part == "v2" || part == "v3" {
			break
		}
	}
	place.Endpoint = scheme + "://" + host + path
	return place
}

// IsKnown reports whether the place is known at all.
func (p Place) IsKnown() bool { return p.Endpoint != "" }

func (p Place) String() string {
	if p.Project == "" {
		return p.Endpoint
	}
	return fmt.Sprintf("%s (project %s)", p.Endpoint, p.Project)
}

// NoauthPlace is where an account of a noauth endpoint leads. Its form is
// settled without a request; a malformed address gives what is left of it.
func NoauthPlace(noauth auth.Noauth) Place {
	base, project, err := auth.SplitNoauth(noauth.Endpoint)
	if err != nil {
		base = noauth.Endpoint
	}
	return NewPlace(base, cmp.Or(project, noauth.Project))
}
