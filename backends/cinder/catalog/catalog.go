// Package catalog reads the service catalog and the project that come with a token.
package catalog

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/tokens"

	"github.com/standalone-cinder/standalone-cinder/backends/auth"
)

// volumeServices are the names under which catalogs list Cinder's v3 API, the
// official one first (OpenStack service types authority). volumev2 is a
// different API.
var volumeServices = []string{"block-storage", "volumev3", "block-store", "volume"}

// Entry identifies the service catalog entry of an endpoint.
type Entry struct{ Region, Interface string }

// Endpoint finds Cinder in the catalog that came with a token. It makes no request,
// whereas gophercloud's search makes one when a catalog names no version. It never
// guesses a region, which could silently create volumes in the wrong one.
func Endpoint(result gophercloud.AuthResult, wanted gophercloud.EndpointOpts) (address string, entry Entry, err error) {
	token, ok := result.(interface {
		ExtractServiceCatalog() (*tokens.ServiceCatalog, error)
	})
	if !ok {
		return "", Entry{}, errors.New("the answer to the login has no service catalog")
	}
	catalog, err := token.ExtractServiceCatalog()
	if err != nil || len(catalog.Entries) == 0 {
		return "", Entry{}, errors.New("the token has no service catalog: the credentials name no project and the user has no default project; name a project")
	}
	types := volumeServices
	if wanted.Type != "" && !slices.Contains(types, wanted.Type) {
		types = []string{wanted.Type}
	}
	var matching []tokens.Endpoint
	var offered, regions []string
	for _, service := range types {
		for _, entry := range catalog.Entries {
			if entry.Type != service || wanted.Name != "" && entry.Name != wanted.Name {
				continue
			}
			for _, endpoint := range entry.Endpoints {
				if unusable(endpoint.URL) != "" {
					continue
				}
				region := cmp.Or(endpoint.RegionID, endpoint.Region)
				offered = append(offered, describe(endpoint))
				if endpoint.Interface != string(wanted.Availability) ||
					wanted.Region != "" && wanted.Region != endpoint.Region && wanted.Region != endpoint.RegionID {
					continue
				}
				matching = append(matching, endpoint)
				regions = append(regions, region)
			}
		}
	}
	regions = distinct(regions)
	switch {
	case len(matching) == 0:
		found := cmp.Or(strings.Join(distinct(offered), ", "), others(catalog.Entries))
		return "", Entry{}, fmt.Errorf("the service catalog has no block storage v3 endpoint%s with interface %q%s (it has %s); check region and interface of the backend",
			inRegion(wanted.Region), wanted.Availability, ofService(wanted), found)
	case wanted.Region == "" && len(regions) > 1:
		return "", Entry{}, fmt.Errorf("the service catalog has block storage in several regions (%s); give the backend's region", strings.Join(regions, ", "))
	}
	first := matching[0]
	return withV3(first.URL), Entry{Region: cmp.Or(first.RegionID, first.Region), Interface: first.Interface}, nil
}

// KeyManager finds the address of the key manager's v1 API in the catalog that came with a
// token. It is where Cinder's endpoint is, or where the configuration says.
func KeyManager(result gophercloud.AuthResult, wanted gophercloud.EndpointOpts, cinder Entry) (string, error) {
	token, ok := result.(interface {
		ExtractServiceCatalog() (*tokens.ServiceCatalog, error)
	})
	if !ok {
		return "", errors.New("the answer to the login has no service catalog")
	}
	catalog, err := token.ExtractServiceCatalog()
	if err != nil {
		return "", errors.New("the token has no service catalog")
	}
	region, face := cmp.Or(wanted.Region, cinder.Region), cmp.Or(string(wanted.Availability), cinder.Interface, "public")
	var addresses []string
	for _, entry := range catalog.Entries {
		if entry.Type != keyManager {
			continue
		}
		for _, endpoint := range entry.Endpoints {
			if auth.IsWebAddress(endpoint.URL) && endpoint.Interface == face && (region == "" || region == endpoint.Region || region == endpoint.RegionID) {
				addresses = append(addresses, strings.TrimSuffix(strings.TrimRight(endpoint.URL, "/"), "/v1")+"/v1/")
			}
		}
	}
	switch addresses = distinct(addresses); len(addresses) {
	case 0:
		return "", fmt.Errorf("the service catalog has no %s endpoint%s with interface %q, from which the keys of encrypted volumes come; have one made, or use a fixed key (csi.encryption.fixedKeySecret)", keyManager, inRegion(region), face)
	case 1:
		return addresses[0], nil
	}
	return "", fmt.Errorf("the service catalog has several %s endpoints%s with interface %q; give the backend's region", keyManager, inRegion(region), face)
}

// keyManager is Barbican's service type.
const keyManager = "key-manager"

// Fixed returns a configured Block Storage address for a project. Its path contains the
// project, as in a catalog: Cinder before Xena needs it there.
func Fixed(address, project string) string {
	if address == "" {
		return ""
	}
	address = withV3(auth.WithProject(address, project))
	if strings.HasSuffix(address, "/v3/") {
		address += url.PathEscape(project) + "/"
	}
	return address
}

// unusable returns what is wrong with an endpoint's address; empty if nothing is.
func unusable(address string) string {
	version := auth.APIVersion(address)
	switch {
	case strings.Contains(address, "$(") || strings.Contains(address, "%("):
		return "with a placeholder that Keystone did not fill in"
	case !auth.IsWebAddress(address):
		return "without an http or https address"
	case version != "" && version != "v3":
		return "of version " + version[1:]
	}
	return ""
}

// describe names an endpoint.
func describe(endpoint tokens.Endpoint) string {
	region := cmp.Or(endpoint.RegionID, endpoint.Region)
	if region == "" {
		return endpoint.Interface + " in no region"
	}
	return fmt.Sprintf("%s in %s", endpoint.Interface, region)
}

// others lists what a catalog has instead of usable endpoints: unusable ones of block
// storage, otherwise the other services.
func others(entries []tokens.CatalogEntry) string {
	var similar, types []string
	for _, entry := range entries {
		name := fmt.Sprintf("%q", entry.Type)
		types = append(types, name)
		if kind := strings.ToLower(entry.Type); !strings.HasPrefix(kind, "volume") && !strings.HasPrefix(kind, "block") {
			continue
		}
		for _, endpoint := range entry.Endpoints {
			similar = append(similar, strings.TrimSpace(fmt.Sprintf("%s %s %s", name, describe(endpoint), unusable(endpoint.URL))))
		}
		if len(entry.Endpoints) == 0 {
			similar = append(similar, name+" without endpoints")
		}
	}
	if len(similar) > 0 {
		return strings.Join(distinct(similar), ", ")
	}
	return "none, only services of the types " + strings.Join(distinct(types), ", ")
}

// ofService describes the service that the credentials select.
func ofService(wanted gophercloud.EndpointOpts) string {
	text := ""
	if wanted.Type != "" && !slices.Contains(volumeServices, wanted.Type) {
		text += fmt.Sprintf(" of type %q", wanted.Type)
	}
	if wanted.Name != "" {
		text += fmt.Sprintf(" of the name %q", wanted.Name)
	}
	return text
}

// Project returns the ID of the project that a token is scoped to, or "".
func Project(result gophercloud.AuthResult) string {
	token, ok := result.(interface {
		ExtractProject() (*tokens.Project, error)
	})
	if !ok {
		return ""
	}
	project, err := token.ExtractProject()
	if err != nil || project == nil {
		return ""
	}
	return project.ID
}

func inRegion(region string) string {
	if region == "" {
		return ""
	}
	return fmt.Sprintf(" in region %q", region)
}

// withV3 completes an address that has no version.
func withV3(address string) string {
	address = strings.TrimRight(address, "/") + "/"
	if auth.APIVersion(address) == "" {
		address += "v3/"
	}
	return address
}

func distinct(names []string) []string {
	slices.Sort(names)
	return slices.Compact(names)
}
