package backends

import (
	"context"
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

// Expect is as much of a backend's place as its configuration and credentials
// tell without a request: all for noauth, and for Keystone the project where the
// credentials name it by its id. What cannot be read tells nothing.
func Expect(sources auth.Sources, config Config) Place {
	found, err := sources.Resolve(config.credentials())
	switch {
	case err != nil:
		return Place{}
	case found.Noauth != nil:
		return noauthPlace(*found.Noauth)
	case found.Keystone.Scope != nil:
		return Place{Project: found.Keystone.Scope.ProjectID}
	}
	return Place{}
}

// IsKnown reports whether the place is known at all.
func (p Place) IsKnown() bool { return p.Endpoint != "" }

func (p Place) String() string {
	if p.Project == "" {
		return p.Endpoint
	}
	return fmt.Sprintf("%s (project %s)", p.Endpoint, p.Project)
}

// place is where this endpoint leads; zero before the first login.
func (e *endpoint) place() Place { return e.cinder.where() }

// Place is where the backend leads; zero before the first login of the term.
func (l *Lifecycle) Place() Place { return l.current().place() }

// absent judges Cinder's answer that a target does not exist, and is nil if the
// volume is gone. That is so only at the place where the volume was. Where no
// PersistentVolume says which that is, a place counts that has shown this term a
// volume of the cluster: credentials of another project show none.
func (e *endpoint) absent(ctx context.Context, target Target) error {
	present := e.place()
	switch {
	case target.unreferenced:
		return e.leftBehind(target.Stamp.ClaimUID)
	case target.Place.IsKnown() && target.Place == present:
		return nil
	case target.Place.IsKnown():
		return e.elsewhere("volume %s was recorded at %s, but the backend leads to %s, where it does not exist", target.VolumeID, target.Place, present)
	case e.hasShown():
		return nil
	}
	if _, err := e.inventory.all(ctx); err != nil {
		return err
	}
	if e.hasShown() {
		return nil
	}
	return e.elsewhere("volume %s does not exist at %s, but nothing says that it ever was there: its PersistentVolume does not record where it was made, "+
		"and there is no other volume of this cluster", target.VolumeID, present)
}

// leftBehind is an error if the term knew a volume of the claim at another place
// before the backend was led here.
func (e *endpoint) leftBehind(claimUID string) error {
	e.mu.Lock()
	at, known := e.former[claimUID]
	e.mu.Unlock()
	if present := e.place(); known && at != present {
		return e.elsewhere("claim UID %q has a volume at %s, but the backend leads to %s", claimUID, at, present)
	}
	return nil
}

func (e *endpoint) elsewhere(format string, arguments ...any) *Error {
	failed := e.failure(KindElsewhere, format, arguments...)
	failed.Place = e.place()
	return failed
}

// note remembers that Cinder showed a volume of this cluster here.
func (e *endpoint) note(v Volume) {
	if v.Metadata[stampCluster] == e.inventory.cluster {
		e.shown.Store(true)
	}
}

func (e *endpoint) hasShown() bool { return e.shown.Load() }
