package auth

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// globalNames maps keys of [Global] that have another name in clouds.yaml.
var globalNames = map[string]string{
	"region":             "region_name",
	"ca_file":            "cacert",
	"cert_file":          "cert",
	"key_file":           "key",
	"tls_insecure":       "insecure",
	"os_endpoint_type":   "endpoint_type",
	"tenant_domain_id":   "project_domain_id",
	"tenant_domain_name": "project_domain_name",
}

// globalOnly lists the keys of [Global] that clouds.yaml lacks.
var globalOnly = []string{"use-clouds", "clouds-file", "cloud", "cinder-endpoint", "secret-name", "secret-namespace", "trustee-id", "trustee-password", "kubeconfig-path"}

// fromCloudConfig reads the OpenStack cloud provider's INI form, as the historic
// provisioner did: [Global] with auth-url and related keys for Keystone, or with
// use-clouds for an entry of clouds.yaml; for noauth, either cinder-endpoint in [Global],
// as its documentation said, or endpoint in [Cinder], as its code read.
func (s Sources) fromCloudConfig(config Config) (Credentials, error) {
	path := config.Source.CloudConfig
	file, err := s.readINI(path)
	if err != nil {
		return Credentials{}, err
	}
	found, err := s.fromINI(config, file)
	if err != nil {
		return Credentials{}, fmt.Errorf("%s: %w", path, err)
	}
	return found, nil
}

func (s Sources) readINI(path string) (iniFile, error) {
	content, err := s.files.read(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", path, unwrapPath(err))
	}
	file, err := parseINI(content, "global", "cinder")
	if err != nil {
		return nil, fmt.Errorf("%s:%w", path, err)
	}
	return file, nil
}

func (s Sources) fromINI(config Config, f iniFile) (Credentials, error) {
	global, cinder := f["global"], f["cinder"]
	noauthEndpoint := cmp.Or(global["cinder-endpoint"], cinder["endpoint"])
	useClouds, ok := parseFlag(cmp.Or(global["use-clouds"], "false"))
	given := f.settings()
	named := slices.ContainsFunc(slices.Collect(maps.Keys(f)), func(section string) bool { return strings.HasPrefix(section, "global ") })
	switch {
	case !ok:
		return Credentials{}, errors.New("use-clouds is neither true nor false")
	case noauthEndpoint != "" && (given.auth["auth_url"].text != "" || useClouds):
		return Credentials{}, errors.New("both auth-url and a noauth endpoint are given; keep one of them")
	case noauthEndpoint != "":
		return noauthCredentials(config, Noauth{
			Endpoint: noauthEndpoint,
			User:     global["username"],
			Project:  cmp.Or(global["tenant-id"], global["tenant-name"]),
		})
	case global["trustee-id"] != "" || global["trustee-password"] != "":
		return Credentials{}, errors.New("trustee-id and trustee-password cannot be used; give the trustee as user, with trust-id")
	case useClouds:
		if global["cloud"] == "" {
			return Credentials{}, errors.New("use-clouds needs a cloud: the name of an entry of clouds.yaml")
		}
		if file := global["clouds-file"]; file != "" {
			s.CloudsFile = file
		}
		chosen, err := s.merged(global["cloud"], cmp.Or(config.Region, given.top["region_name"].text))
		if err != nil {
			return Credentials{}, err
		}
		given = merge(chosen, given)
	case given.auth["auth_url"].text != "":
	case named:
		return Credentials{}, errors.New("there are several clouds, as [Global \"name\"]; give each backend a file with the [Global] of its cloud")
	case global["secret-name"] != "":
		return Credentials{}, errors.New("secret-name names a Secret with the credentials, which is not read; write what it contains into [Global]")
	default:
		return Credentials{}, errors.New("neither auth-url nor cinder-endpoint in [Global] nor endpoint in [Cinder] is given")
	}
	given, err := withRegion(given, config.Region)
	if err != nil {
		return Credentials{}, err
	}
	return s.files.complete(config, given)
}

// settings returns [Global] by the names of clouds.yaml.
func (f iniFile) settings() settings {
	found := settings{top: map[string]setting{}, auth: map[string]setting{}}
	for _, key := range slices.Sorted(maps.Keys(f["global"])) {
		name, text := strings.ReplaceAll(key, "-", "_"), f["global"][key]
		if slices.Contains(globalOnly, key) || text == "" {
			continue
		}
		name = cmp.Or(globalNames[name], name)
		into := found.top
		for _, account := range accountKeys {
			if slices.Contains(account.names, name) {
				// Use one name, so that it replaces that of a clouds.yaml entry.
				into, name = found.auth, account.names[0]
			}
		}
		v := setting{key: key, text: text}
		if before, given := into[name]; given && before.text != text {
			v.odd = "contradicts " + before.key + "; keep one of them"
		}
		into[name] = v
	}
	return found
}

// fromEnvironment reads the OS_* variables, or OS_CINDER_ENDPOINT for noauth.
func (s Sources) fromEnvironment(config Config) (Credentials, error) {
	if endpoint := s.getenv("OS_CINDER_ENDPOINT"); endpoint != "" {
		return noauthCredentials(config, Noauth{
			Endpoint: endpoint,
			User:     s.getenv("OS_USERNAME"),
			Project:  cmp.Or(s.getenv("OS_PROJECT_ID"), s.getenv("OS_TENANT_ID"), s.getenv("OS_PROJECT_NAME"), s.getenv("OS_TENANT_NAME")),
		})
	}
	found, err := s.environment(config.Region)
	if err != nil {
		return Credentials{}, err
	}
	return s.files.complete(config, found)
}

// environment reads the OS_* variables, which OpenStack clients map to the keys of
// clouds.yaml.
func (s Sources) environment(region string) (settings, error) {
	found := settings{top: map[string]setting{}}
	for _, key := range knownKeys() {
		variable := "OS_" + strings.ToUpper(key)
		if text := s.getenv(variable); text != "" {
			found.top[key] = setting{key: variable, text: text}
		}
	}
	for _, key := range []string{"cloud", "profile", "regions"} {
		if v, given := found.top[key]; given {
			return settings{}, v.wrong("means a file, which auth.environment does not read; use auth.cloud, or unset the variable")
		}
	}
	if found.top["auth_url"].text == "" {
		return settings{}, errors.New("the environment has neither OS_AUTH_URL nor OS_CINDER_ENDPOINT")
	}
	return withRegion(found, region)
}
