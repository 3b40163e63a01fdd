package auth

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/gophercloud/gophercloud/v2/openstack/config/clouds"
)

// cloudConfigEntry reads the INI form of the OpenStack cloud provider,
// like the historic provisioner: [Global] with auth-url and its companions for
// Keystone; for noauth either cinder-endpoint in [Global], as its documentation
// said, or endpoint in [Cinder], as its code read.
func (f fileSet) cloudConfigEntry(path string) (entry, error) {
	content, err := f.read(path)
	if err != nil {
		return entry{}, fmt.Errorf("cannot read %s: %w", path, unwrapPath(err))
	}
	file, err := parseINI(content, "global", "cinder")
	if err != nil {
		return entry{}, fmt.Errorf("%s:%w", path, err)
	}
	found, err := file.entry()
	if err != nil {
		return entry{}, fmt.Errorf("%s: %w", path, err)
	}
	found.place = path
	return found, nil
}

func (f iniFile) entry() (entry, error) {
	global, cinder := f["global"], f["cinder"]
	noauthEndpoint := cmp.Or(global["cinder-endpoint"], cinder["endpoint"])
	authURL := global["auth-url"]
	switch {
	case noauthEndpoint != "" && authURL != "":
		return entry{}, errors.New("both auth-url and a noauth endpoint are given; keep one of them")
	case noauthEndpoint != "":
		return entry{noauth: &Noauth{
			Endpoint: noauthEndpoint,
			User:     global["username"],
			Project:  cmp.Or(global["tenant-id"], global["tenant-name"]),
		}}, nil
	case authURL == "":
		return entry{}, errors.New("neither auth-url nor cinder-endpoint in [Global] nor endpoint in [Cinder] is given")
	}
	cloud := clouds.Cloud{
		RegionName:     global["region"],
		CACertFile:     global["ca-file"],
		ClientCertFile: global["cert-file"],
		ClientKeyFile:  global["key-file"],
		AuthInfo: &clouds.AuthInfo{
			AuthURL:                     authURL,
			Username:                    global["username"],
			UserID:                      global["user-id"],
			Password:                    global["password"],
			ProjectID:                   global["tenant-id"],
			ProjectName:                 global["tenant-name"],
			DomainID:                    global["domain-id"],
			DomainName:                  global["domain-name"],
			UserDomainID:                global["user-domain-id"],
			UserDomainName:              global["user-domain-name"],
			ProjectDomainID:             global["tenant-domain-id"],
			ProjectDomainName:           global["tenant-domain-name"],
			ApplicationCredentialID:     global["application-credential-id"],
			ApplicationCredentialName:   global["application-credential-name"],
			ApplicationCredentialSecret: global["application-credential-secret"],
			TrustID:                     global["trust-id"],
		},
	}
	if global["tls-insecure"] == "true" {
		verify := false
		cloud.Verify = &verify
	}
	return entry{cloud: &cloud}, nil
}

// environmentEntry reads the OS_* variables that the OpenStack clients
// and the historic provisioner read, and OS_CINDER_ENDPOINT for noauth.
func (s Sources) environmentEntry() (entry, error) {
	first := func(names ...string) string {
		for _, name := range names {
			if value := s.getenv(name); value != "" {
				return value
			}
		}
		return ""
	}
	if endpoint := first("OS_CINDER_ENDPOINT"); endpoint != "" {
		return entry{noauth: &Noauth{
			Endpoint: endpoint,
			User:     first("OS_USERNAME"),
			Project:  first("OS_PROJECT_ID", "OS_TENANT_ID", "OS_PROJECT_NAME", "OS_TENANT_NAME"),
		}}, nil
	}
	authURL := first("OS_AUTH_URL")
	if authURL == "" {
		return entry{}, errors.New("the environment has neither OS_AUTH_URL nor OS_CINDER_ENDPOINT")
	}
	cloud := clouds.Cloud{
		AuthType:       clouds.AuthType(first("OS_AUTH_TYPE")),
		RegionName:     first("OS_REGION_NAME"),
		EndpointType:   first("OS_ENDPOINT_TYPE", "OS_INTERFACE"),
		CACertFile:     first("OS_CACERT"),
		ClientCertFile: first("OS_CERT"),
		ClientKeyFile:  first("OS_KEY"),
		AuthInfo: &clouds.AuthInfo{
			AuthURL:                     authURL,
			Token:                       first("OS_TOKEN", "OS_AUTH_TOKEN"),
			Username:                    first("OS_USERNAME"),
			UserID:                      first("OS_USER_ID", "OS_USERID"),
			Password:                    first("OS_PASSWORD"),
			ProjectID:                   first("OS_PROJECT_ID", "OS_TENANT_ID"),
			ProjectName:                 first("OS_PROJECT_NAME", "OS_TENANT_NAME"),
			DomainID:                    first("OS_DOMAIN_ID"),
			DomainName:                  first("OS_DOMAIN_NAME"),
			UserDomainID:                first("OS_USER_DOMAIN_ID"),
			UserDomainName:              first("OS_USER_DOMAIN_NAME"),
			ProjectDomainID:             first("OS_PROJECT_DOMAIN_ID"),
			ProjectDomainName:           first("OS_PROJECT_DOMAIN_NAME"),
			DefaultDomain:               first("OS_DEFAULT_DOMAIN"),
			ApplicationCredentialID:     first("OS_APPLICATION_CREDENTIAL_ID"),
			ApplicationCredentialName:   first("OS_APPLICATION_CREDENTIAL_NAME"),
			ApplicationCredentialSecret: first("OS_APPLICATION_CREDENTIAL_SECRET"),
			SystemScope:                 first("OS_SYSTEM_SCOPE"),
			TrustID:                     first("OS_TRUST_ID"),
		},
	}
	if insecure := first("OS_INSECURE"); insecure == "true" || insecure == "1" {
		verify := false
		cloud.Verify = &verify
	}
	return entry{cloud: &cloud}, nil
}
