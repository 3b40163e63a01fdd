package backends

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/config/clouds"
)

// Sources says where credentials are read. Nothing of the process is changed
// to read them: neither its environment nor its working directory.
type Sources struct {
	// CloudsFile is clouds.yaml; empty searches the usual places. A
	// secure.yaml and a clouds-public.yaml beside it are merged as the
	// OpenStack clients do.
	CloudsFile string
	// BaseDir resolves relative paths of cloud configuration files.
	BaseDir string
	// Getenv reads the environment; nil means os.Getenv.
	Getenv func(string) string

	// files are those of one reading.
	files fileSet
}

func (s Sources) getenv(name string) string {
	if s.Getenv != nil {
		return s.Getenv(name)
	}
	return os.Getenv(name)
}

// credentials is what a login needs, read and complete. version changes
// whenever any byte of it changes, the certificates' contents included.
type credentials struct {
	noauth   *Noauth
	auth     gophercloud.AuthOptions
	endpoint gophercloud.EndpointOpts
	tls      *tls.Config
	version  string
}

// resolve reads the credentials of one backend. Its errors are of KindConfig
// and never quote file contents.
func (s Sources) resolve(config Config) (credentials, error) {
	if s.files == nil {
		s.files = fileSet{}
	}
	found, err := s.read(config)
	if err != nil {
		return credentials{}, &Error{Backend: config.Name, Kind: KindConfig, Message: err.Error()}
	}
	return found, nil
}

func (s Sources) read(config Config) (credentials, error) {
	switch auth := config.Auth; {
	case auth.Noauth != nil:
		return noauthCredentials(config, *auth.Noauth)
	case auth.Cloud != "":
		cloud, err := s.cloud(auth.Cloud, config.Region)
		if err != nil {
			return credentials{}, err
		}
		return s.files.keystoneCredentials(config, cloud)
	case auth.CloudConfig != "":
		path := auth.CloudConfig
		if !filepath.IsAbs(path) {
			path = filepath.Join(s.BaseDir, path)
		}
		return s.files.cloudConfigCredentials(config, path)
	case auth.Environment:
		return s.environmentCredentials(config)
	}
	return credentials{}, errors.New("no way to log in is configured; set one of auth.cloud, auth.noauth, auth.cloudConfig or auth.environment")
}

// noauthCredentials completes the account of a noauth endpoint. An endpoint
// as it stands in a service catalogue ends with the project.
func noauthCredentials(config Config, noauth Noauth) (credentials, error) {
	if noauth.Endpoint == "" {
		return credentials{}, errors.New("the noauth endpoint is empty; give Cinder's address such as http://cinder:8776/v3")
	}
	_, project, err := noauthBase(noauth.Endpoint)
	if err != nil {
		return credentials{}, err
	}
	if project != "" && noauth.Project != "" && noauth.Project != project {
		return credentials{}, fmt.Errorf("the noauth endpoint %s ends with project %q, but the project is given as %q; keep one of them",
			noauth.Endpoint, project, noauth.Project)
	}
	noauth.User = orElse(noauth.User, "admin")
	noauth.Project = orElse(noauth.Project, orElse(project, "admin"))
	if strings.ContainsAny(noauth.User+noauth.Project, ": \t\r\n/") {
		return credentials{}, errors.New("user and project of a noauth endpoint must not contain colons, slashes or blanks, since they are sent as user:project")
	}
	return credentials{noauth: &noauth, version: versionOf(config, noauth)}, nil
}

// keystoneCredentials completes an entry whose files, profile and region are
// merged already. Everything is taken from the entry and nothing from the
// process: one backend must never log in with a mixture of its own
// credentials and another's.
func (f fileSet) keystoneCredentials(config Config, cloud clouds.Cloud) (credentials, error) {
	if cloud.AuthInfo == nil || cloud.AuthInfo.AuthURL == "" {
		return credentials{}, errors.New("the credentials name no auth_url")
	}
	options, err := authOptions(cloud.AuthType, *cloud.AuthInfo)
	if err != nil {
		return credentials{}, err
	}
	tlsConfig, certificates, err := f.readCertificates(cloud)
	if err != nil {
		return credentials{}, err
	}
	availability, err := availabilityOf(orElse(config.Interface, orElse(cloud.EndpointType, cloud.Interface)))
	if err != nil {
		return credentials{}, err
	}
	found := credentials{
		auth:     options,
		tls:      tlsConfig,
		endpoint: gophercloud.EndpointOpts{Region: orElse(config.Region, cloud.RegionName), Availability: availability},
	}
	found.version = versionOf(config, cloud.AuthType, cloud.AuthInfo, found.endpoint, certificates)
	return found, nil
}

// availabilityOf reads the name of an interface in the two forms that the
// OpenStack clients know, such as internal and internalURL.
func availabilityOf(name string) (gophercloud.Availability, error) {
	switch strings.TrimSuffix(name, "URL") {
	case "", "public":
		return gophercloud.AvailabilityPublic, nil
	case "internal":
		return gophercloud.AvailabilityInternal, nil
	case "admin":
		return gophercloud.AvailabilityAdmin, nil
	}
	return "", fmt.Errorf("interface %q is none of public, internal and admin", name)
}

// versionOf is a hash over everything that shapes a client. JSON gives it a
// stable form; nothing of it is stored but the hash.
func versionOf(parts ...any) string {
	encoded, err := json.Marshal(parts)
	if err != nil {
		// Only channels, functions and cycles fail to encode; configuration
		// has none of these.
		panic(fmt.Sprintf("configuration cannot be encoded: %v", err))
	}
	sum := sha256.Sum256(encoded)
	return hex.EncodeToString(sum[:12])
}
