package auth

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/gophercloud/gophercloud/v2"

	"github.com/standalone-cinder/standalone-cinder/backends/fingerprint"
)

// Config is the part of a backend's configuration that selects its credentials.
type Config struct {
	Source Source
	// Region and Interface select an endpoint of the service catalog. They override those
	// in the credentials; without either, they mean the only region and the public
	// interface.
	Region, Interface string
	// Endpoint is Block Storage's address, instead of the catalog's; it overrides the one
	// in the credentials.
	Endpoint string `json:",omitempty"`
}

// Sources are the places where credentials are read. Reading changes neither the
// process's environment nor its working directory.
type Sources struct {
	// CloudsFile is clouds.yaml; empty searches the usual places. A secure.yaml and a
	// clouds-public.yaml next to it are merged as the OpenStack clients do.
	CloudsFile string
	// Getenv reads the environment; nil means os.Getenv.
	Getenv func(string) string

	// files caches the files of one read.
	files fileSet
}

func (s Sources) getenv(name string) string {
	if s.Getenv != nil {
		return s.Getenv(name)
	}
	return os.Getenv(name)
}

// Credentials are everything a login needs.
type Credentials struct {
	Noauth   *Noauth
	Keystone gophercloud.AuthOptions
	Endpoint gophercloud.EndpointOpts
	// Override is Block Storage's address, instead of the one in the catalog. It may
	// contain %(project_id)s.
	Override string
	TLS      *tls.Config
	// Warnings describe settings that an operator may not have intended.
	Warnings []string
	// Version changes whenever any byte of the credentials changes, including the
	// contents of certificates.
	Version string
}

// Account returns a hash of what Keystone checks before it looks at the project: the
// user, the secret and Keystone's address. It is empty for noauth. Credentials with the
// same account are right or wrong together.
func (c Credentials) Account() string {
	if c.Noauth != nil {
		return ""
	}
	k := c.Keystone
	return fingerprint.Of(k.IdentityEndpoint, k.UserID, k.Username, k.DomainID, k.DomainName, k.Password, k.Passcode, k.TokenID,
		k.ApplicationCredentialID, k.ApplicationCredentialName, k.ApplicationCredentialSecret)
}

// Resolve reads the credentials of one backend. Its errors quote no value from
// a file except a single word that is not secret; see named.
func (s Sources) Resolve(config Config) (Credentials, error) {
	if s.files == nil {
		s.files = fileSet{}
	}
	switch source := config.Source; {
	case source.Noauth != nil:
		return noauthCredentials(config, *source.Noauth)
	case source.Cloud != "":
		merged, err := s.merged(source.Cloud, config.Region)
		if err != nil {
			return Credentials{}, err
		}
		return s.files.complete(config, merged)
	case source.CloudConfig != "":
		return s.fromCloudConfig(config)
	case source.Environment:
		return s.fromEnvironment(config)
	}
	return Credentials{}, errors.New("no way to log in is configured; set one of auth.cloud, auth.noauth, auth.cloudConfig or auth.environment")
}

// complete builds credentials from settings that are fully merged.
func (f fileSet) complete(config Config, merged settings) (Credentials, error) {
	cloud, err := merged.account()
	if err != nil {
		return Credentials{}, err
	}
	found, err := f.keystoneCredentials(config, cloud)
	if err != nil {
		return Credentials{}, err
	}
	found.Warnings = append(found.Warnings, slices.Concat(merged.withoutEffect(), merged.unexpanded())...)
	return found, nil
}

// noauthCredentials completes the account of a noauth endpoint. An endpoint in service
// catalog form ends with the project.
func noauthCredentials(config Config, noauth Noauth) (Credentials, error) {
	if noauth.Endpoint == "" {
		return Credentials{}, errors.New("the noauth endpoint is empty; give Cinder's address such as http://cinder:8776/v3")
	}
	_, project, err := SplitNoauth(noauth.Endpoint)
	if err != nil {
		return Credentials{}, err
	}
	if project != "" && noauth.Project != "" && noauth.Project != project {
		return Credentials{}, fmt.Errorf("the noauth endpoint %s ends with project %q, but the configured project is %q; keep one of them",
			WithoutUser(noauth.Endpoint), project, noauth.Project)
	}
	noauth.User = cmp.Or(noauth.User, "admin")
	noauth.Project = cmp.Or(noauth.Project, cmp.Or(project, "admin"))
	if strings.ContainsAny(noauth.User+noauth.Project, ": \t\r\n/") {
		return Credentials{}, errors.New("user and project of a noauth endpoint must not contain colons, slashes or blanks, since they are sent as user:project")
	}
	return Credentials{Noauth: &noauth, Version: fingerprint.Of(config, noauth)}, nil
}

// keystoneCredentials completes an entry whose files, profile and region are already
// merged. Everything comes from the entry and nothing from the process: a backend must
// never log in with a mixture of its own and another backend's credentials.
func (f fileSet) keystoneCredentials(config Config, cloud account) (Credentials, error) {
	if cloud.AuthInfo == nil || cloud.AuthInfo.AuthURL == "" {
		return Credentials{}, errors.New("the credentials name no auth_url")
	}
	options, err := authOptions(cloud.AuthType, *cloud.AuthInfo)
	if err != nil {
		return Credentials{}, err
	}
	tlsConfig, certificates, err := f.readCertificates(cloud)
	if err != nil {
		return Credentials{}, err
	}
	availability, err := availabilityOf(cmp.Or(config.Interface, cmp.Or(cloud.EndpointType, cloud.Interface)))
	if err != nil {
		return Credentials{}, err
	}
	found := Credentials{
		Keystone: options,
		TLS:      tlsConfig,
		Endpoint: gophercloud.EndpointOpts{Type: cloud.ServiceType, Name: cloud.ServiceName, Region: cmp.Or(cloud.ServiceRegion, config.Region, cloud.RegionName), Availability: availability},
		Override: cmp.Or(config.Endpoint, cloud.Endpoint),
	}
	if found.Override != "" && !ServesV3(WithProject(found.Override, "0")) {
		return Credentials{}, fmt.Errorf("%s is not an http or https address of Block Storage's version 3", named("the endpoint", WithoutUser(found.Override)))
	}
	if options.Scope != nil && *options.Scope == (gophercloud.AuthScope{}) {
		// Keystone would use the user's default project, which can change unnoticed.
		return Credentials{}, errors.New("the credentials name no project; give project_id, or project_name and its domain")
	}
	if tlsConfig.InsecureSkipVerify {
		found.Warnings = append(found.Warnings, "the servers' certificates are not verified (verify: false): anyone on the network can steal the password and the tokens; name the authority in cacert instead")
	}
	found.Version = fingerprint.Of(config, cloud.AuthType, cloud.AuthInfo, found.Endpoint, found.Override, certificates)
	return found, nil
}

// availabilityOf reads an interface's name in both forms that the OpenStack clients
// accept, such as internal and internalURL.
func availabilityOf(name string) (gophercloud.Availability, error) {
	switch strings.TrimSuffix(name, "URL") {
	case "", "public":
		return gophercloud.AvailabilityPublic, nil
	case "internal":
		return gophercloud.AvailabilityInternal, nil
	case "admin":
		return gophercloud.AvailabilityAdmin, nil
	}
	return "", fmt.Errorf("%s is not public, internal or admin", named("interface", name))
}

// Source is where the credentials of a backend come from. Exactly one field is
// set.
type Source struct {
	// Cloud names an entry of clouds.yaml.
	Cloud string
	// CloudConfig is the path of an INI file in the form of the OpenStack cloud
	// provider, as the historic provisioner read it.
	CloudConfig string
	// Environment reads the process's OS_* variables.
	Environment bool
	// Noauth is an endpoint whose auth_strategy is noauth.
	Noauth *Noauth
}

// Noauth is an endpoint of a Cinder without authentication. User and Project
// default to "admin".
type Noauth struct {
	Endpoint string
	User     string
	Project  string
}

// SplitNoauth derives the v3 base from a configured endpoint: one with v3, with the v2 of
// old files (removed in 2021; v3 is on the same host), or without a version. An address
// in service catalog form also has the project after the version.
func SplitNoauth(endpoint string) (base, project string, err error) {
	u, err := url.Parse(endpoint)
	if err != nil || !IsWebAddress(endpoint) {
		return "", "", fmt.Errorf("noauth endpoint %q is not an http or https address", WithoutUser(endpoint))
	}
	before, _, after := SplitVersion(u)
	if len(after) > 1 {
		return "", "", fmt.Errorf("noauth endpoint %s has extra text after the version and project; give Cinder's address such as http://cinder:8776/v3", WithoutUser(endpoint))
	}
	u.RawQuery, u.Fragment = "", ""
	u.Path = "/" + strings.Join(append(before, "v3"), "/") + "/"
	return u.String(), strings.Join(after, ""), nil
}
