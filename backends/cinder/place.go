package cinder

import (
	"cmp"
	"fmt"
	"net/url"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/backends/auth"
)

// Place is where volumes live: a Block Storage endpoint and a project there. A volume's
// existence is meaningful only at a place: the same backend may point to another one
// tomorrow. The zero Place is unknown.
type Place struct {
	// Endpoint is an address in the form that NewPlace produces.
	Endpoint string
	// Project is an ID; for noauth, the project as configured.
	Project string
}

// NewPlace normalizes an address: scheme and host in lower case, the port
// unless it is the scheme's default, and the path up to the API version. User,
// password and the project after the version are dropped.
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
	place.Endpoint = scheme + "://" + host
	before, version, _ := auth.SplitVersion(u)
	for _, part := range append(before, version) {
		if part != "" {
			place.Endpoint += "/" + part
		}
	}
	return place
}

// IsKnown reports whether the place is known.
func (p Place) IsKnown() bool { return p.Endpoint != "" }

func (p Place) String() string {
	if p.Project == "" {
		return p.Endpoint
	}
	return fmt.Sprintf("%s (project %s)", p.Endpoint, p.Project)
}

// NoauthPlace returns the place of an account at a noauth endpoint, without a request. Of
// a malformed address it uses what it can.
func NoauthPlace(noauth auth.Noauth) Place {
	base, project, err := auth.SplitNoauth(noauth.Endpoint)
	if err != nil {
		base = noauth.Endpoint
	}
	return NewPlace(base, cmp.Or(project, noauth.Project))
}
