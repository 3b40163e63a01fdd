package auth

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/gophercloud/gophercloud/v2/openstack/config/clouds"
)

// settings are what one source says about a cloud: an entry of clouds.yaml, a profile, a
// region's values, a section of cloud.conf or the OS_* variables. All of them have the
// same keys, here with underscores, and are read by the same rules.
type settings struct {
	// auth has the keys of the mapping named auth, top the others. The account's keys may
	// be in either.
	top, auth map[string]setting
	regions   []regionEntry
}

// regionEntry is an element of the list of regions.
type regionEntry struct {
	name   string
	values settings
}

// setting is one value.
type setting struct {
	key  string // as written
	at   string // file and line
	text string
	list []string // the elements of a list of texts
	// odd explains why the value is not text; empty if it is.
	odd  string
	null bool // absent or null
}

// account is a complete entry: profile, secure.yaml and region are merged.
type account struct {
	clouds.Cloud
	// Endpoint is Block Storage's address, instead of the catalog's.
	Endpoint string
	// The rest selects Block Storage in the catalog.
	ServiceRegion string
	ServiceType   string
	ServiceName   string
}

// blockStorage lists the service names that prefix Cinder-only keys, in the order in
// which the OpenStack clients try them.
var blockStorage = []string{"block_storage", "volumev3", "volumev2", "volume", "block_store"}

// accountKeys are the keys of the account, each with its aliases.
var accountKeys = []struct {
	names []string
	field func(*clouds.AuthInfo) *string
}{
	{[]string{"auth_url"}, func(i *clouds.AuthInfo) *string { return &i.AuthURL }},
	{[]string{"token", "auth_token"}, func(i *clouds.AuthInfo) *string { return &i.Token }},
	{[]string{"username", "user_name"}, func(i *clouds.AuthInfo) *string { return &i.Username }},
	{[]string{"user_id", "userid"}, func(i *clouds.AuthInfo) *string { return &i.UserID }},
	{[]string{"password"}, func(i *clouds.AuthInfo) *string { return &i.Password }},
	{[]string{"application_credential_id"}, func(i *clouds.AuthInfo) *string { return &i.ApplicationCredentialID }},
	{[]string{"application_credential_name"}, func(i *clouds.AuthInfo) *string { return &i.ApplicationCredentialName }},
	{[]string{"application_credential_secret"}, func(i *clouds.AuthInfo) *string { return &i.ApplicationCredentialSecret }},
	{[]string{"system_scope"}, func(i *clouds.AuthInfo) *string { return &i.SystemScope }},
	{[]string{"project_name", "tenant_name"}, func(i *clouds.AuthInfo) *string { return &i.ProjectName }},
	{[]string{"project_id", "tenant_id"}, func(i *clouds.AuthInfo) *string { return &i.ProjectID }},
	{[]string{"user_domain_name"}, func(i *clouds.AuthInfo) *string { return &i.UserDomainName }},
	{[]string{"user_domain_id"}, func(i *clouds.AuthInfo) *string { return &i.UserDomainID }},
	{[]string{"project_domain_name"}, func(i *clouds.AuthInfo) *string { return &i.ProjectDomainName }},
	{[]string{"project_domain_id"}, func(i *clouds.AuthInfo) *string { return &i.ProjectDomainID }},
	{[]string{"domain_name"}, func(i *clouds.AuthInfo) *string { return &i.DomainName }},
	{[]string{"domain_id"}, func(i *clouds.AuthInfo) *string { return &i.DomainID }},
	{[]string{"default_domain"}, func(i *clouds.AuthInfo) *string { return &i.DefaultDomain }},
	{[]string{"trust_id"}, func(i *clouds.AuthInfo) *string { return &i.TrustID }},
}

// otherKeys are the recognized keys outside auth.
var otherKeys = []string{"profile", "cloud", "auth", "auth_type", "auth_plugin", "region_name", "regions", "endpoint_type", "interface",
	"verify", "insecure", "cacert", "cert", "key", "identity_api_version", "passcode", "default_domain_id", "default_domain_name", "allow_reauth"}

// serviceKeys follow a service name of Cinder.
var serviceKeys = []string{"region_name", "interface", "endpoint_type", "endpoint_override", "endpoint", "service_type", "service_name"}

// tuning are the keys with which other clients choose versions and pacing. The program
// has its own settings for these, so the keys are only reported.
var tuning = map[string]string{
	"api_version":          "the program speaks version 3 of Cinder's API",
	"default_microversion": "the program chooses the microversion that each request needs",
	"connect_retries":      "the program repeats requests by its own rules",
	"status_code_retries":  "the program repeats requests by its own rules",
	"rate_limit":           "give limits.requestsPerSecond in the policy",
	"concurrency":          "give limits.concurrency in the policy",
	"timeout":              "give timeouts.request in the policy",
	"vendor_hook":          "code of other clients is not run",
}

// tuningOf explains why a key has no effect here, although other clients honor it for
// Block Storage.
func tuningOf(key string) string {
	if strings.HasSuffix(key, "timeout") {
		return tuning["timeout"] // for any service
	}
	for _, service := range blockStorage {
		if rest, ok := strings.CutPrefix(key, service+"_"); ok {
			return tuning[rest]
		}
	}
	switch key {
	case "api_version", "default_microversion": // of no service
		return ""
	}
	return tuning[key]
}

// withoutEffect lists the keys that have no effect here, although other clients honor
// them for Block Storage.
func (s settings) withoutEffect() []string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(s.top)) {
		if why := tuningOf(key); why != "" && !(strings.HasSuffix(key, "_api_version") && s.top[key].text == "3") {
			all = append(all, s.top[key].wrong("has no effect: "+why).Error())
		}
	}
	return all
}

// variable is how files for a shell or a template name a variable.
var variable = regexp.MustCompile(`^\$(\{\w+\}|[A-Z][A-Z0-9_]+)$`)

// unexpanded lists the values that are only a variable's name. A password may be one.
func (s settings) unexpanded() []string {
	var all []string
	for _, values := range []map[string]setting{s.top, s.auth} {
		for _, key := range slices.Sorted(maps.Keys(values)) {
			if v := values[key]; variable.MatchString(v.text) {
				all = append(all, v.wrong("looks like a variable that nothing has replaced; write its value instead").Error())
			}
		}
	}
	return all
}

// knownKeys lists the keys that are read.
func knownKeys() []string {
	known := slices.Clone(otherKeys)
	for _, one := range accountKeys {
		known = append(known, one.names...)
	}
	for _, service := range blockStorage {
		known = append(known, "has_"+service)
		for key := range tuning {
			known = append(known, service+"_"+key)
		}
		for _, key := range serviceKeys {
			known = append(known, service+"_"+key)
		}
	}
	known = append(known, "api_timeout")
	known = slices.AppendSeq(known, maps.Keys(tuning))
	slices.Sort(known)
	return known
}

// merge overlays general settings with specific ones. The more specific source decides,
// even with an empty value. Lists of regions are joined, the specific ones first.
func merge(general, specific settings) settings {
	merged := settings{top: map[string]setting{}, auth: map[string]setting{}, regions: slices.Concat(specific.regions, general.regions)}
	for _, source := range []settings{general, specific} {
		maps.Copy(merged.top, source.top)
		maps.Copy(merged.auth, source.auth)
	}
	for key, before := range general.auth {
		// In auth, the OpenStack clients prefer one spelling, regardless of the file.
		if v, given := specific.auth[key]; given && v.at != "" && v.key != before.key && v.text != "" && before.text != "" && v.text != before.text {
			v.odd = fmt.Sprintf("has another value at %s, where it is %s; write both in the same way", before.at, before.key)
			merged.auth[key] = v
		}
	}
	return merged
}

// account reads settings that are fully merged.
func (s settings) account() (account, error) {
	r := reader{settings: s}
	info := clouds.AuthInfo{}
	known := map[string]bool{"allow_reauth": true, "default_domain_id": true, "default_domain_name": true}
	for _, one := range accountKeys {
		*one.field(&info) = r.agreed(one.names...)
		for _, name := range one.names {
			known[name] = true
		}
	}
	for _, key := range slices.Sorted(maps.Keys(s.auth)) {
		if v := s.auth[key]; !known[key] && r.err == nil {
			r.err = &UnknownAuthKeyError{Key: v.key, Known: slices.Sorted(maps.Keys(known)), at: v}
		}
	}
	if v, given := s.top["passcode"]; given && v.text != "" {
		r.fail(v, "cannot be used: a program cannot log in with passcodes")
	}
	// These two fill in for a missing part, unlike default_domain, which only gophercloud
	// knows and uses if there is no domain at all.
	if id := r.agreed("default_domain_id"); id != "" {
		info.UserDomainID, info.ProjectDomainID = cmp.Or(info.UserDomainID, info.DomainID, id), cmp.Or(info.ProjectDomainID, info.DomainID, id)
	}
	if name := r.agreed("default_domain_name"); name != "" {
		info.UserDomainName, info.ProjectDomainName = cmp.Or(info.UserDomainName, info.DomainName, name), cmp.Or(info.ProjectDomainName, info.DomainName, name)
	}
	info.AuthURL = r.expand("auth_url", info.AuthURL)
	found := account{
		Cloud: clouds.Cloud{
			AuthInfo:           &info,
			Profile:            r.first("profile"),
			Cloud:              r.first("cloud"),
			AuthType:           clouds.AuthType(r.agreed("auth_type", "auth_plugin")),
			IdentityAPIVersion: r.top("identity_api_version").text,
			VolumeAPIVersion:   r.top("volume_api_version").text,
			RegionName:         r.expand("region_name", r.first("region_name")),
			CACertFile:         r.expand("cacert", r.first("cacert")),
			ClientCertFile:     r.expand("cert", r.first("cert")),
			ClientKeyFile:      r.expand("key", r.first("key")),
		},
		Endpoint:      r.expand("endpoint_override", r.first(append(services("endpoint_override"), services("endpoint")...)...)),
		ServiceRegion: r.expand("region_name", r.first(services("region_name")...)),
		ServiceType:   r.expand("service_type", r.first(services("service_type")...)),
		ServiceName:   r.expand("service_name", r.first(services("service_name")...)),
	}
	if v, given := s.top["auth_type"]; given && v.text == "" && v.odd == "" {
		r.fail(v, "is empty, which other clients interpret as a cloud without logins; remove the key, or use auth.noauth in the policy")
	}
	if found.EndpointType = r.expand("interface", r.first(append(services("endpoint_type", "interface"), "endpoint_type")...)); found.EndpointType == "" {
		found.Interface = r.expand("interface", r.first("interface"))
	}
	found.Verify = r.flag("verify")
	if insecure := r.flag("insecure"); insecure != nil && *insecure {
		found.Verify = new(bool)
	}
	if again := r.flag("allow_reauth"); again != nil {
		info.AllowReauth = *again
	}
	for _, service := range blockStorage {
		if has := r.flag("has_" + service); has != nil && !*has {
			r.fail(s.top["has_"+service], "says that the cloud has no Block Storage")
		}
	}
	return found, r.err
}

// UnknownAuthKeyError is about an unusable key of auth. Such a key would change the
// login, so unlike one elsewhere it is not ignored.
type UnknownAuthKeyError struct {
	Key   string // as written
	Known []string
	at    setting
}

// Error names the key and its place.
func (e *UnknownAuthKeyError) Error() string {
	return e.at.wrong("is not a supported key of auth; remove it, or correct its name").Error()
}

// services returns keys for Block Storage alone, by the names of the service.
func services(keys ...string) []string {
	var all []string
	for _, service := range blockStorage {
		for _, key := range keys {
			all = append(all, service+"_"+key)
		}
	}
	return all
}

// reader takes values from settings and keeps the first error.
type reader struct {
	settings
	err error
}

func (r *reader) fail(v setting, what string) {
	if r.err == nil {
		r.err = v.wrong(what)
	}
}

// wrong returns an error about a setting, without its value.
func (v setting) wrong(what string) error {
	if v.at == "" {
		return fmt.Errorf("%s %s", v.key, what)
	}
	return fmt.Errorf("%s: %s %s", v.at, v.key, what)
}

// usable returns a setting if it is a text, and nothing if it is absent.
func (r *reader) usable(v setting, given bool) setting {
	switch {
	case !given:
		return setting{}
	case v.odd != "":
		r.fail(v, v.odd)
		return setting{}
	case strings.HasPrefix(v.text, "REPLACE-WITH-"):
		r.fail(v, "still has the example's placeholder")
	}
	return v
}

func (r *reader) top(key string) setting {
	v, given := r.settings.top[key]
	return r.usable(v, given)
}

// first returns the first value outside auth.
func (r *reader) first(keys ...string) string {
	for _, key := range keys {
		if v := r.top(key); v.text != "" {
			return v.text
		}
	}
	return ""
}

// agreed returns the value that a key of the account has under all its names, in auth and
// outside. The OpenStack clients have an order for each pair, which depends on the
// spelling; here, two different values are a mistake.
func (r *reader) agreed(names ...string) string {
	var chosen setting
	for _, name := range names {
		for _, place := range []map[string]setting{r.auth, r.settings.top} {
			v, given := place[name]
			v = r.usable(v, given)
			switch {
			case v.text == "" || v.text == chosen.text:
			case chosen.text == "":
				chosen = v
			case v.key == chosen.key:
				r.fail(v, "has another value in auth; keep one of them")
			default:
				r.fail(v, fmt.Sprintf("contradicts %s; keep one of them", chosen.key))
			}
		}
	}
	return chosen.text
}

// flag returns a boolean; nil if it is not set.
func (r *reader) flag(key string) *bool {
	v, given := r.settings.top[key]
	if !given {
		v, given = r.auth[key]
	}
	if !given || v.text == "" && (v.odd == "" || v.odd == oddFlag) {
		return nil
	}
	flag, ok := parseFlag(v.text)
	if !ok || v.odd != "" && v.odd != oddFlag && v.odd != oddNumber {
		r.fail(v, "is neither true nor false")
		return nil
	}
	return &flag
}

// parseFlag reads a boolean in every form that the files of OpenStack and of the cloud
// provider use.
func parseFlag(text string) (flag, ok bool) {
	switch strings.ToLower(text) {
	case "true", "yes", "on", "1":
		return true, true
	case "false", "no", "off", "0":
		return false, true
	}
	return false, false
}

// expand replaces the names of other keys in braces, as in
// https://{region_name}.example.com.
func (r *reader) expand(key, text string) string {
	if inlinePEM(text) || !strings.ContainsAny(text, "{}") {
		return text
	}
	var b strings.Builder
	for rest := text; rest != ""; {
		i := strings.IndexAny(rest, "{}")
		if i < 0 {
			b.WriteString(rest)
			break
		}
		b.WriteString(rest[:i])
		if doubled := rest[i : i+1]; strings.HasPrefix(rest[i+1:], doubled) {
			b.WriteString(doubled)
			rest = rest[i+2:]
			continue
		}
		name, after, closed := strings.Cut(rest[i+1:], "}")
		value, given := r.settings.top[name]
		secret := strings.Contains(name, "pass") || strings.Contains(name, "token") || strings.Contains(name, "secret")
		if rest[i] == '}' || !closed || !given || secret || value.odd != "" || strings.ContainsAny(value.text, "{}") {
			if r.err == nil {
				r.err = fmt.Errorf("%s has braces that do not name another key of the entry", key)
			}
			return text
		}
		b.WriteString(value.text)
		rest = after
	}
	return b.String()
}

// UnknownKey is a key of a backend's credentials that nothing reads. Other programs may
// read it, so it is a mistake only if it resembles a known key.
type UnknownKey struct {
	At    string // file and line, or the file
	Key   string // as written
	Known []string
}

// UnknownKeys lists the keys of a backend's credentials that nothing reads. It lists none
// for unreadable credentials; Resolve reports those.
func (s Sources) UnknownKeys(config Config) []UnknownKey {
	s.files = fileSet{}
	var found settings
	known, at := knownKeys(), ""
	switch source := config.Source; {
	case source.Cloud != "":
		found, _ = s.merged(source.Cloud, config.Region)
	case source.CloudConfig != "":
		file, _ := s.readINI(source.CloudConfig)
		found, at = file.settings(), source.CloudConfig
		known = slices.AppendSeq(known, maps.Keys(globalNames))
	}
	var unknown []UnknownKey
	for _, key := range slices.Sorted(maps.Keys(found.top)) {
		v := found.top[key]
		if !slices.Contains(known, key) && tuningOf(key) == "" {
			unknown = append(unknown, UnknownKey{At: cmp.Or(v.at, at), Key: v.key, Known: known})
		}
	}
	return unknown
}
