package auth

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/config/clouds"

	"github.com/standalone-cinder/standalone-cinder/backends/fingerprint"
)

// The authentication methods that this package supports.
const (
	methodPassword    = "password"
	methodToken       = "token"
	methodApplication = "application credential"
)

// authOptions turns an auth section into one complete token request. gophercloud rejects
// redundant information, such as a domain in addition to a user's ID. Like the OpenStack
// clients, authOptions lets the more precise part win.
func authOptions(authType clouds.AuthType, info clouds.AuthInfo) (gophercloud.AuthOptions, error) {
	address, repaired := identityV3(info.AuthURL)
	if !IsWebAddress(address) {
		return gophercloud.AuthOptions{}, fmt.Errorf("%s is not an http or https address", named("auth_url", WithoutUser(info.AuthURL)))
	}
	if !utf8.ValidString(info.Password + info.ApplicationCredentialSecret + info.Token) {
		// JSON encoding would silently send a different text to Keystone.
		return gophercloud.AuthOptions{}, errors.New("the password, secret or token is not UTF-8")
	}
	if repaired {
		// The v2.0 API had one domain; v3 gives it this ID.
		info.DefaultDomain = cmp.Or(info.DefaultDomain, "default")
	}
	method, err := authMethod(authType, info)
	if err != nil {
		return gophercloud.AuthOptions{}, err
	}
	if info.SystemScope != "" {
		return gophercloud.AuthOptions{}, errors.New("system_scope cannot be used for volumes, which belong to projects; name a project instead")
	}
	options := gophercloud.AuthOptions{
		IdentityEndpoint: address,
		// A token cannot be renewed. All other credentials must be, since the program
		// outlives tokens.
		AllowReauth: method != methodToken,
	}
	// A default domain fills in for a missing one, and an ID wins over a name, as in the
	// OpenStack clients.
	user := firstDomain(domain{cmp.Or(info.UserDomainID, info.DomainID), cmp.Or(info.UserDomainName, info.DomainName)}, domain{info.DefaultDomain, ""})
	switch method {
	case methodToken:
		options.TokenID = info.Token
	case methodApplication:
		if info.ApplicationCredentialSecret == "" {
			return gophercloud.AuthOptions{}, errors.New("the application credential has no secret")
		}
		if info.TrustID != "" {
			return gophercloud.AuthOptions{}, errors.New("a trust needs a user and password, not an application credential")
		}
		options.ApplicationCredentialSecret = info.ApplicationCredentialSecret
		if options.ApplicationCredentialID = info.ApplicationCredentialID; options.ApplicationCredentialID == "" {
			options.ApplicationCredentialName = info.ApplicationCredentialName
			if err := setUser(&options, info, user); err != nil {
				return gophercloud.AuthOptions{}, err
			}
		}
	default:
		options.Password = info.Password
		if err := setUser(&options, info, user); err != nil {
			return gophercloud.AuthOptions{}, err
		}
	}
	if method == methodApplication {
		// An application credential is bound to its project; Keystone rejects another
		// scope.
		return options, nil
	}
	// If a file names only the user's domain, projects are in the same domain.
	project := firstDomain(domain{cmp.Or(info.ProjectDomainID, info.DomainID), cmp.Or(info.ProjectDomainName, info.DomainName)}, domain{info.DefaultDomain, ""}, user)
	options.Scope, err = scopeOf(info, project)
	return options, err
}

// domain is a Keystone domain by id or by name.
type domain struct{ id, name string }

// firstDomain returns the first that is set; an ID wins over a name.
func firstDomain(candidates ...domain) domain {
	for _, candidate := range candidates {
		switch {
		case candidate.id != "":
			return domain{id: candidate.id}
		case candidate.name != "":
			return candidate
		}
	}
	return domain{}
}

// authMethod chooses one authentication method. Without an auth_type, it is the most
// specific one that the credentials allow.
func authMethod(authType clouds.AuthType, info clouds.AuthInfo) (string, error) {
	application := info.ApplicationCredentialID != "" || info.ApplicationCredentialName != ""
	switch authType {
	case "":
		switch {
		case info.Token != "":
			return methodToken, nil
		case application:
			return methodApplication, nil
		case info.Password != "":
			return methodPassword, nil
		}
		return "", errors.New("the credentials have no password, application credential or token")
	case clouds.AuthPassword, clouds.AuthV3Password, clouds.AuthV2Password:
		if info.Password == "" {
			return "", errors.New("the credentials have no password")
		}
		return methodPassword, nil
	case clouds.AuthToken, clouds.AuthV3Token, clouds.AuthV2Token:
		if info.Token == "" {
			return "", errors.New("the credentials have no token")
		}
		return methodToken, nil
	case clouds.AuthV3ApplicationCredential:
		if !application {
			return "", errors.New("the credentials have no application_credential_id or application_credential_name")
		}
		return methodApplication, nil
	}
	return "", fmt.Errorf("%s is not supported; use password, v3applicationcredential or token", named("auth_type", string(authType)))
}

func setUser(options *gophercloud.AuthOptions, info clouds.AuthInfo, of domain) error {
	switch {
	case info.UserID != "":
		options.UserID = info.UserID
	case info.Username == "":
		return errors.New("the credentials name no user; give username or user_id")
	case of == domain{}:
		return fmt.Errorf("the credentials do not say to which domain %s belongs; give user_domain_id or user_domain_name", named("user", info.Username))
	default:
		options.Username, options.DomainID, options.DomainName = info.Username, of.id, of.name
	}
	return nil
}

// scopeOf returns the scope of the requested token. A trust determines the scope of its
// token; Keystone rejects an additional project (OS-TRUST extension). The scope is never
// a domain alone: volumes belong to projects.
func scopeOf(info clouds.AuthInfo, of domain) (*gophercloud.AuthScope, error) {
	switch {
	case info.TrustID != "":
		return &gophercloud.AuthScope{TrustID: info.TrustID}, nil
	case info.ProjectID != "":
		return &gophercloud.AuthScope{ProjectID: info.ProjectID}, nil
	case info.ProjectName == "":
		return &gophercloud.AuthScope{}, nil
	case of == domain{}:
		return nil, fmt.Errorf("the credentials do not say to which domain %s belongs; give project_domain_id or project_domain_name, or project_id", named("project", info.ProjectName))
	}
	return &gophercloud.AuthScope{ProjectName: info.ProjectName, DomainID: of.id, DomainName: of.name}, nil
}

// identityV3 adds the version to an identity address, which avoids discovery: its links
// may name a host that only Keystone can reach. Old files name v2.0, which Keystone
// stopped serving in 2018; v3 is on the same host.
func identityV3(address string) (v3 string, repaired bool) {
	base := strings.TrimRight(address, "/")
	for _, old := range []string{"/v2.0", "/v2"} {
		if trimmed, ok := strings.CutSuffix(base, old); ok {
			return trimmed + "/v3/", true
		}
	}
	return strings.TrimSuffix(base, "/v3") + "/v3/", false
}

// IsWebAddress reports whether the address is a complete http or https URL.
func IsWebAddress(address string) bool {
	u, err := url.Parse(address)
	return err == nil && u.Host != "" && (u.Scheme == "http" || u.Scheme == "https")
}

// ServesV3 reports whether a Cinder address is for the v3 API or for all versions.
func ServesV3(address string) bool {
	version := APIVersion(address)
	return IsWebAddress(address) && (version == "" || version == "v3")
}

// WithProject fills a project's ID into an address in the form of a service catalog
// template.
func WithProject(address, project string) string {
	for _, placeholder := range []string{"%(project_id)s", "%(tenant_id)s", "$(project_id)s", "$(tenant_id)s"} {
		address = strings.ReplaceAll(address, placeholder, project)
	}
	return address
}

// SplitVersion divides an address's path at the version of Cinder's API. A project may
// come after it. Without a version, everything comes before.
func SplitVersion(address *url.URL) (before []string, version string, after []string) {
	parts := strings.FieldsFunc(address.Path, func(r rune) bool { return r == '/' })
	for i, part := range parts {
		if part == "v1" || part == "v2" || part == "v3" {
			return parts[:i], part, parts[i+1:]
		}
	}
	return parts, "", nil
}

// APIVersion returns the version of Cinder's API in an address, or "".
func APIVersion(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	_, version, _ := SplitVersion(u)
	return version
}

// WithoutUser removes user and password from an address before it is shown. In a
// malformed address, they may contain slashes.
func WithoutUser(address string) string {
	scheme, rest, found := strings.Cut(address, "://")
	if !found {
		return address[strings.LastIndex(address, "@")+1:]
	}
	authority := rest
	if IsWebAddress(address) {
		authority, _, _ = strings.Cut(rest, "/")
	}
	return scheme + "://" + rest[strings.LastIndex(authority, "@")+1:]
}

// readCertificates reads an entry's TLS settings once, so that the version is computed
// from exactly what is used, even if a file changes in between.
func (f fileSet) readCertificates(cloud account) (*tls.Config, map[string]string, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	read := map[string]string{}
	if cloud.CACertFile != "" {
		content, err := f.certificateText(cloud.CACertFile)
		if err != nil {
			return nil, nil, err
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(content) {
			return nil, nil, fmt.Errorf("the CA certificate%s is not a PEM certificate", in(cloud.CACertFile))
		}
		read["ca"] = fingerprint.Of(content)
	}
	if cloud.ClientCertFile != "" {
		certificate, err := f.certificateText(cloud.ClientCertFile)
		if err != nil {
			return nil, nil, err
		}
		// One file may contain both, as with the OpenStack clients.
		key := certificate
		if cloud.ClientKeyFile != "" {
			if key, err = f.certificateText(cloud.ClientKeyFile); err != nil {
				return nil, nil, err
			}
		}
		pair, err := tls.X509KeyPair(certificate, key)
		if err != nil {
			return nil, nil, fmt.Errorf("the client certificate%s is unusable: %w", in(cloud.ClientCertFile), err)
		}
		config.Certificates = []tls.Certificate{pair}
		read["certificate"], read["key"] = fingerprint.Of(certificate), fingerprint.Of(key)
	} else if cloud.ClientKeyFile != "" {
		return nil, nil, errors.New("there is a client key without a client certificate")
	}
	if cloud.Verify != nil && !*cloud.Verify {
		config.InsecureSkipVerify = true
		read["verify"] = "false"
	}
	return config, read, nil
}

// inlinePEM reports whether a value is the certificate itself, even a damaged one, rather
// than a path. It may be a private key and must not be shown.
func inlinePEM(value string) bool {
	return strings.Contains(value, "\n") || strings.Contains(value, "----") || strings.Contains(value, "BEGIN ")
}

// in names the file of a certificate in an error.
func in(value string) string {
	if !oneWord(value) || inlinePEM(value) {
		return ""
	}
	return " in " + value
}

// named returns how an error refers to a key of a file: the key, with its value if that
// is one word. A longer value may have swallowed the following lines and a secret in
// them, for example if an editing slip removed the colon from the next line.
func named(key, value string) string {
	if !oneWord(value) {
		return key
	}
	return fmt.Sprintf("%s %q", key, value)
}

func oneWord(value string) bool {
	return !strings.ContainsFunc(value, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) })
}

// certificateText returns the content of a certificate given as text or as a path, which
// may begin with ~.
func (f fileSet) certificateText(value string) ([]byte, error) {
	if inlinePEM(value) {
		return []byte(value), nil
	}
	path := value
	if rest, ok := strings.CutPrefix(path, "~/"); ok {
		home, err := os.UserHomeDir()
		if err != nil {
			return nil, fmt.Errorf("cannot read the certificate%s: %w", in(value), err)
		}
		path = filepath.Join(home, rest)
	}
	content, err := f.read(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read the certificate%s: %w", in(value), unwrapPath(err))
	}
	return content, nil
}
