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
	"strings"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/utils/v2/openstack/clientconfig"
	"sigs.k8s.io/yaml"
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

// isolatedPrefix keeps the cloud reader from filling an entry's gaps with the
// process's OS_* variables: one backend must never log in with a mixture of
// its own credentials and another's.
const isolatedPrefix = "STANDALONE_CINDER_ISOLATED_"

// resolve reads the credentials of one backend. Its errors are of KindConfig
// and never quote file contents.
func (s Sources) resolve(config Config) (credentials, error) {
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
		return keystoneCredentials(config, cloud, trustID)
	case auth.CloudConfig != "":
		path := auth.CloudConfig
		if !filepath.IsAbs(path) {
			path = filepath.Join(s.BaseDir, path)
		}
		return cloudConfigCredentials(config, path)
	case auth.Environment:
		return s.environmentCredentials(config)
	}
	return credentials{}, errors.New("no way to log in is configured; set one of auth.cloud, auth.noauth, auth.cloudConfig or auth.environment")
}

func noauthCredentials(config Config, noauth Noauth) (credentials, error) {
	noauth.User = orElse(noauth.User, "admin")
	noauth.Project = orElse(noauth.Project, "admin")
	if noauth.Endpoint == "" {
		return credentials{}, errors.New("the noauth endpoint is empty; give Cinder's address such as http://cinder:8776/v3")
	}
	if strings.ContainsAny(noauth.User+noauth.Project, ": \t\r\n") {
		return credentials{}, errors.New("user and project of a noauth endpoint must not contain colons or blanks, since they are sent as user:project")
	}
	found := credentials{noauth: &noauth}
	found.version = versionOf(config, noauth)
	return found, nil
}

func keystoneCredentials(config Config, cloud *clientconfig.Cloud, trustID string) (credentials, error) {
	if cloud.AuthInfo == nil || cloud.AuthInfo.AuthURL == "" {
		return credentials{}, errors.New("the credentials name no auth_url")
	}
	identityURL, note := identityV3(cloud.AuthInfo.AuthURL)
	cloud.AuthInfo.AuthURL = identityURL
	cloud.IdentityAPIVersion = "3"
	options, err := clientconfig.AuthOptions(&clientconfig.ClientOpts{
		Cloud:     "resolved",
		EnvPrefix: isolatedPrefix,
		YAMLOpts:  resolvedCloud{cloud: *cloud},
	})
	if err != nil {
		return credentials{}, fmt.Errorf("the credentials cannot be used%s: %w", note, err)
	}
	if trustID != "" {
		// A trust's token is scoped by the trust alone; naming a project too
		// is refused by Keystone (OS-TRUST extension).
		options.Scope = &gophercloud.AuthScope{TrustID: trustID}
		options.TenantID, options.TenantName = "", ""
	}
	// A pure token cannot be renewed; everything else can, and a token of an
	// hour must not end the program's work.
	options.AllowReauth = options.TokenID == ""
	tlsConfig, err := clientconfig.PrepareTLSConfig(isolatedPrefix, cloud)
	if err != nil {
		return credentials{}, fmt.Errorf("the certificates cannot be used: %w", err)
	}
	found := credentials{
		auth: *options,
		tls:  tlsConfig,
		endpoint: gophercloud.EndpointOpts{
			Region:       orElse(config.Region, cloud.RegionName),
			Availability: clientconfig.GetEndpointType(orElse(config.Interface, cloud.EndpointType)),
		},
	}
	files, err := contents(cloud.CACertFile, cloud.ClientCertFile, cloud.ClientKeyFile)
	if err != nil {
		return credentials{}, err
	}
	found.version = versionOf(config, cloud, trustID, files)
	return found, nil
}

// identityV3 repairs the v2.0 addresses that old configuration files name:
// Keystone serves only v3 since 2018, on the same host.
func identityV3(address string) (repaired, note string) {
	trimmed := strings.TrimRight(address, "/")
	if strings.HasSuffix(trimmed, "/v2.0") {
		return strings.TrimSuffix(trimmed, "/v2.0") + "/v3", " (auth_url names Keystone's v2.0, which is gone; v3 of the same host is used)"
	}
	return address, ""
}

// resolvedCloud hands one cloud entry, already in memory, to the reader.
type resolvedCloud struct{ cloud clientconfig.Cloud }

func (r resolvedCloud) LoadCloudsYAML() (map[string]clientconfig.Cloud, error) {
	cloud := r.cloud
	auth := *cloud.AuthInfo
	cloud.AuthInfo = &auth
	// Profile and regions were merged when the entry was read.
	cloud.Profile, cloud.Cloud, cloud.Regions = "", "", nil
	return map[string]clientconfig.Cloud{"resolved": cloud}, nil
}

func (resolvedCloud) LoadSecureCloudsYAML() (map[string]clientconfig.Cloud, error) { return nil, nil }
func (resolvedCloud) LoadPublicCloudsYAML() (map[string]clientconfig.Cloud, error) { return nil, nil }

// cloud reads one entry of clouds.yaml with its profile, region overrides and
// secure.yaml merged, and the trust, which the cloud reader does not know.
func (s Sources) cloud(name, region string) (*clientconfig.Cloud, string, error) {
	path, err := s.cloudsFile()
	if err != nil {
		return nil, "", err
	}
	files := cloudFiles{path: path}
	clouds, err := files.LoadCloudsYAML()
	if err != nil {
		return nil, "", err
	}
	if _, ok := clouds[name]; !ok {
		return nil, "", fmt.Errorf("%s has no cloud %q; it has %s", path, name, quotedNames(clouds))
	}
	cloud, err := clientconfig.GetCloudFromYAML(&clientconfig.ClientOpts{
		Cloud:      name,
		RegionName: region,
		EnvPrefix:  isolatedPrefix,
		YAMLOpts:   files,
	})
	if err != nil {
		return nil, "", fmt.Errorf("%s: cloud %q: %w", path, name, err)
	}
	trustID, err := files.trustID(name)
	if err != nil {
		return nil, "", err
	}
	return cloud, trustID, nil
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
type cloudFiles struct{ path string }

func (f cloudFiles) LoadCloudsYAML() (map[string]clientconfig.Cloud, error) {
	var document clientconfig.Clouds
	if err := readYAML(f.path, &document); err != nil {
		return nil, err
	}
	return document.Clouds, nil
}

func (f cloudFiles) LoadSecureCloudsYAML() (map[string]clientconfig.Cloud, error) {
	var document clientconfig.Clouds
	err := readYAML(filepath.Join(filepath.Dir(f.path), "secure.yaml"), &document)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return document.Clouds, err
}

func (f cloudFiles) LoadPublicCloudsYAML() (map[string]clientconfig.Cloud, error) {
	var document clientconfig.PublicClouds
	err := readYAML(filepath.Join(filepath.Dir(f.path), "clouds-public.yaml"), &document)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return document.Clouds, err
}

func (f cloudFiles) trustID(name string) (string, error) {
	var document struct {
		Clouds map[string]struct {
			Auth struct {
				TrustID string `json:"trust_id"`
			} `json:"auth"`
		} `json:"clouds"`
	}
	if err := readYAML(f.path, &document); err != nil {
		return "", err
	}
	return document.Clouds[name].Auth.TrustID, nil
}

// yamlLine finds the line number in a YAML parser's message, the only part of
// it that is safe to show: the rest may quote a password.
var yamlLine = regexp.MustCompile(`line (\d+)`)

func readYAML(path string, into any) error {
	content, err := os.ReadFile(path)
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
	return strings.Join(sorted(names), ", ")
}

// contents reads certificate files, so that a renewed certificate under the
// same name counts as a change.
func contents(paths ...string) (map[string]string, error) {
	read := map[string]string{}
	for _, path := range paths {
		if path == "" {
			continue
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("cannot read certificate %s: %w", path, unwrapPath(err))
		}
		read[path] = string(content)
	}
	return read, nil
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
