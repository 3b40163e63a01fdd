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

// cloudConfigEntry reads the OpenStack cloud provider's INI form, as the historic
// provisioner did: [Global] with auth-url and related keys for Keystone, or with
// use-clouds for an entry of clouds.yaml; for noauth, either cinder-endpoint in [Global],
// as its documentation said, or endpoint in [Cinder], as its code read.
func (s Sources) cloudConfigEntry(path, region string) (entry, error) {
	file, err := s.readINI(path)
	if err != nil {
		return entry{}, err
	}
	found, err := s.entryOf(file, region)
	if err != nil {
		return entry{}, fmt.Errorf("%s: %w", path, err)
	}
	found.place = path
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

func (s Sources) entryOf(f iniFile, region string) (entry, error) {
	global, cinder := f["global"], f["cinder"]
	noauthEndpoint := cmp.Or(global["cinder-endpoint"], cinder["endpoint"])
	useClouds, ok := parseFlag(cmp.Or(global["use-clouds"], "false"))
	given := f.settings()
	named := slices.ContainsFunc(slices.Collect(maps.Keys(f)), func(section string) bool { return strings.HasPrefix(section, "global ") })
	switch {
	case !ok:
		return entry{}, errors.New("use-clouds is neither true nor false")
	case noauthEndpoint != "" && (given.auth["auth_url"].text != "" || useClouds):
		return entry{}, errors.New("both auth-url and a noauth endpoint are given; keep one of them")
	case noauthEndpoint != "":
		return entry{noauth: &Noauth{
			Endpoint: noauthEndpoint,
			User:     global["username"],
			Project:  cmp.Or(global["tenant-id"], global["tenant-name"]),
		}}, nil
	case global["trustee-id"] != "" || global["trustee-password"] != "":
		return entry{}, errors.New("trustee-id and trustee-password cannot be used; give the trustee as user, with trust-id")
	case useClouds:
		if global["cloud"] == "" {
			return entry{}, errors.New("use-clouds needs a cloud: the name of an entry of clouds.yaml")
		}
		if file := global["clouds-file"]; file != "" {
			s.CloudsFile = file
		}
		chosen, err := s.merged(global["cloud"], cmp.Or(region, given.top["region_name"].text))
		if err != nil {
			return entry{}, err
		}
		given = merge(chosen, given)
	case given.auth["auth_url"].text != "":
	case named:
		return entry{}, errors.New("there are several clouds, as [Global \"name\"]; give each backend a file with the [Global] of its cloud")
	case global["secret-name"] != "":
		return entry{}, errors.New("secret-name names a Secret with the credentials, which is not read; write what it contains into [Global]")
	default:
		return entry{}, errors.New("neither auth-url nor cinder-endpoint in [Global] nor endpoint in [Cinder] is given")
	}
	given, err := withRegion(given, region)
	if err != nil {
		return entry{}, err
	}
	return given.entry()
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

// environmentEntry reads the OS_* variables, which OpenStack clients map to the keys of
// clouds.yaml, and OS_CINDER_ENDPOINT for noauth.
func (s Sources) environmentEntry(region string) (entry, error) {
	found := settings{top: map[string]setting{}}
	for _, key := range knownKeys() {
		variable := "OS_" + strings.ToUpper(key)
		if text := s.getenv(variable); text != "" {
			found.top[key] = setting{key: variable, text: text}
		}
	}
	if endpoint := s.getenv("OS_CINDER_ENDPOINT"); endpoint != "" {
		return entry{noauth: &Noauth{
			Endpoint: endpoint,
			User:     found.top["username"].text,
			Project:  cmp.Or(found.top["project_id"].text, found.top["tenant_id"].text, found.top["project_name"].text, found.top["tenant_name"].text),
		}}, nil
	}
	for _, key := range []string{"cloud", "profile", "regions"} {
		if v, given := found.top[key]; given {
			return entry{}, v.wrong("means a file, which auth.environment does not read; use auth.cloud, or unset the variable")
		}
	}
	if found.top["auth_url"].text == "" {
		return entry{}, errors.New("the environment has neither OS_AUTH_URL nor OS_CINDER_ENDPOINT")
	}
	found, err := withRegion(found, region)
	if err != nil {
		return entry{}, err
	}
	return found.entry()
}
