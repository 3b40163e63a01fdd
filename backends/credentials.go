package backends

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/utils/v2/openstack/clientconfig"
	"go.yaml.in/yaml/v3"
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
		cloud, trustID, err := s.cloud(auth.Cloud, config.Region)
		if err != nil {
			return credentials{}, err
		}
		return s.files.keystoneCredentials(config, cloud, trustID)
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
func (f fileSet) keystoneCredentials(config Config, cloud *clientconfig.Cloud, trustID string) (credentials, error) {
	if cloud.AuthInfo == nil || cloud.AuthInfo.AuthURL == "" {
		return credentials{}, errors.New("the credentials name no auth_url")
	}
	options, err := authOptions(cloud.AuthType, *cloud.AuthInfo, trustID)
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
	found.version = versionOf(config, cloud.AuthType, cloud.AuthInfo, trustID, found.endpoint, certificates)
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

// cloud reads one entry of clouds.yaml with its profile, region overrides and
// secure.yaml merged, and the trust, which the cloud reader does not know.
func (s Sources) cloud(name, region string) (*clientconfig.Cloud, string, error) {
	path, err := s.cloudsFile()
	if err != nil {
		return nil, "", err
	}
	files := cloudFiles{path: path, files: s.files}
	clouds, err := files.LoadCloudsYAML()
	if err != nil {
		return nil, "", err
	}
	if _, ok := clouds[name]; !ok {
		return nil, "", fmt.Errorf("%s has no cloud %q; it has %s", path, name, quotedNames(clouds))
	}
	cloud, err := files.merged(name, region)
	if err != nil {
		return nil, "", fmt.Errorf("%s: cloud %q: %w", path, name, err)
	}
	// An entry that lists regions and is asked for none of them means, with
	// the OpenStack clients, its region_name or the first of the list.
	if region == "" && len(cloud.Regions) > 0 {
		region = orElse(cloud.RegionName, cloud.Regions[0].Name)
		if cloud, err = files.merged(name, region); err != nil {
			return nil, "", fmt.Errorf("%s: cloud %q: %w", path, name, err)
		}
	}
	cloud.RegionName = orElse(region, cloud.RegionName)
	if cloud.Verify, err = files.verify(name, region); err != nil {
		return nil, "", err
	}
	trustID, err := files.trustID(name)
	return cloud, trustID, err
}

// merged is the entry as the cloud reader merges it.
func (f cloudFiles) merged(name, region string) (*clientconfig.Cloud, error) {
	return clientconfig.GetCloudFromYAML(&clientconfig.ClientOpts{Cloud: name, RegionName: region, YAMLOpts: f})
}

// verify is the entry's `verify` from the most specific place that sets it.
// The cloud reader's own merging takes false for "not set" and would let a
// general true win over a specific false.
func (f cloudFiles) verify(name, region string) (*bool, error) {
	clouds, err := f.LoadCloudsYAML()
	if err != nil {
		return nil, err
	}
	secure, err := f.LoadSecureCloudsYAML()
	if err != nil {
		return nil, err
	}
	public, err := f.LoadPublicCloudsYAML()
	if err != nil {
		return nil, err
	}
	cloud := clouds[name]
	entries := []clientconfig.Cloud{secure[name], cloud, public[orElse(cloud.Profile, cloud.Cloud)]}
	for _, entry := range entries {
		for _, candidate := range entry.Regions {
			if candidate.Name == region && candidate.Values.Verify != nil {
				return candidate.Values.Verify, nil
			}
		}
	}
	for _, entry := range entries {
		if entry.Verify != nil {
			return entry.Verify, nil
		}
	}
	return nil, nil
}

// cloudsFile finds clouds.yaml as the OpenStack clients do: the variable
// OS_CLIENT_CONFIG_FILE, the working directory, the user's and the system's
// configuration directory.
func (s Sources) cloudsFile() (string, error) {
	if s.CloudsFile != "" {
		return s.CloudsFile, nil
	}
	if path := s.getenv("OS_CLIENT_CONFIG_FILE"); path != "" {
		return path, nil
	}
	candidates := []string{"clouds.yaml", "clouds.yml"}
	if dir, err := os.UserConfigDir(); err == nil {
		candidates = append(candidates, filepath.Join(dir, "openstack", "clouds.yaml"), filepath.Join(dir, "openstack", "clouds.yml"))
	}
	candidates = append(candidates, "/etc/openstack/clouds.yaml", "/etc/openstack/clouds.yml")
	for _, candidate := range candidates {
		if _, err := os.Stat(candidate); err == nil {
			return candidate, nil
		}
	}
	return "", fmt.Errorf("no clouds.yaml was found (looked at %s); name one with --clouds-file", strings.Join(candidates, ", "))
}

// cloudFiles reads clouds.yaml and the files beside it.
type cloudFiles struct {
	path  string
	files fileSet
}

func (f cloudFiles) LoadCloudsYAML() (map[string]clientconfig.Cloud, error) {
	var document clientconfig.Clouds
	if err := f.files.readYAML(f.path, &document); err != nil {
		return nil, err
	}
	return document.Clouds, nil
}

func (f cloudFiles) LoadSecureCloudsYAML() (map[string]clientconfig.Cloud, error) {
	var document clientconfig.Clouds
	err := f.files.readYAML(f.beside("secure.yaml"), &document)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return document.Clouds, err
}

func (f cloudFiles) LoadPublicCloudsYAML() (map[string]clientconfig.Cloud, error) {
	var document clientconfig.PublicClouds
	err := f.files.readYAML(f.beside("clouds-public.yaml"), &document)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return document.Clouds, err
}

// trustID is the entry's trust_id, from secure.yaml before clouds.yaml.
func (f cloudFiles) trustID(name string) (string, error) {
	for _, path := range []string{f.beside("secure.yaml"), f.path} {
		var document struct {
			Clouds map[string]struct {
				Auth struct {
					TrustID string `yaml:"trust_id"`
				} `yaml:"auth"`
			} `yaml:"clouds"`
		}
		if err := f.files.readYAML(path, &document); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		if trustID := document.Clouds[name].Auth.TrustID; trustID != "" {
			return trustID, nil
		}
	}
	return "", nil
}

// beside is the path of a file in the same directory.
func (f cloudFiles) beside(name string) string { return filepath.Join(filepath.Dir(f.path), name) }

// yamlLine finds the line number in a YAML parser's message, the only part of
// it that is safe to show: the rest may quote a password.
var yamlLine = regexp.MustCompile(`line (\d+)`)

func (f fileSet) readYAML(path string, into any) error {
	content, err := f.read(path)
	if err != nil {
		return fmt.Errorf("cannot read %s: %w", path, unwrapPath(err))
	}
	if err := yaml.Unmarshal(content, into); err != nil {
		if line := yamlLine.FindStringSubmatch(err.Error()); line != nil {
			return fmt.Errorf("%s:%s: not the YAML of a clouds file", path, line[1])
		}
		return fmt.Errorf("%s: not the YAML of a clouds file", path)
	}
	return nil
}

// unwrapPath drops the path that os errors repeat.
func unwrapPath(err error) error {
	var pathError *fs.PathError
	if errors.As(err, &pathError) {
		return pathError.Err
	}
	return err
}

func quotedNames(clouds map[string]clientconfig.Cloud) string {
	if len(clouds) == 0 {
		return "none"
	}
	names := make([]string, 0, len(clouds))
	for name := range clouds {
		names = append(names, fmt.Sprintf("%q", name))
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
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
