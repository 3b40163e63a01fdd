package policy

import (
	"maps"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/standalone-cinder/standalone-cinder/mappers/mapping"
	"github.com/standalone-cinder/standalone-cinder/policy/document"
	"github.com/standalone-cinder/standalone-cinder/policy/selectors"
)

var (
	oldVersionPattern = regexp.MustCompile(`^/v[12](/|$)`)
	hexProjectPattern = regexp.MustCompile(`^[0-9a-f-]+$`)
	hostPattern       = regexp.MustCompile(HostPattern)
	wwpnPattern       = regexp.MustCompile(WWPNPattern)
	nqnPattern        = regexp.MustCompile(NQNPattern)
)

// Patterns of host names, Fibre Channel port names and NVMe qualified names.
const (
	HostPattern = `^[A-Za-z0-9][A-Za-z0-9._-]*$`
	WWPNPattern = `^([0-9a-fA-F]{16}|[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){7})$`
	NQNPattern  = `^nqn\.\d{4}-\d{2}\.\S+$`
)

// MaxQualifiedName is the longest NVMe qualified name (NVM Express base
// specification).
const MaxQualifiedName = 223

func (v *validator) validateBackend(i int) {
	b, path := &v.Backends[i], document.Element("backends", i)
	validateName(v.Document, path, b.Name, "backend")
	validateAuth(v.Document, path, b.Auth)
	validateText(v.Document, document.Child(path, "region"), b.Region)
	validateInterface(v.Document, document.Child(path, "interface"), b.Interface)
	validateWorkflow(v.Document, document.Child(path, "workflow"), b.Workflow)
	validateModeOf(v.Document, document.Child(path, "mode"), b.Mode)
	validateCSI(v.Document, document.Child(path, "csi"), b.CSI)
	if at := document.Child(path, "endpoint"); v.Has(at) {
		if mistake := endpointMistake(b.Endpoint); mistake != "" {
			v.Errorf(at, "%s; write it like https://cinder.example:8776/v3", mistake)
		} else if mistake := endpointDetails(b.Endpoint, ""); mistake != "" {
			v.Errorf(at, "%s; write it like https://cinder.example:8776/v3", mistake)
		} else if b.Auth.NoAuth != nil {
			v.Errorf(at, "is for backends with a Keystone; with noauth, give auth.noauth.endpoint alone")
		}
	}
	for _, key := range []string{"region", "interface"} {
		if b.Auth.NoAuth != nil && v.Has(document.Child(path, key)) {
			v.Warnf(document.Child(path, key), "%s has no effect with noauth, which has no service catalog; remove it", key)
		}
	}
	validateVolumeSize(v.Document, document.Child(path, "volumeSize"), b.VolumeSize)
	if sentence, ok := (sizeLimits{}).narrow(b.VolumeSize, document.Child(path, "volumeSize")).conflict(); ok {
		v.Errorf(document.Child(path, "volumeSize"), "%s; raise the largest or lower the smallest size", sentence)
	}
	validateLimits(v.Document, document.Child(path, "limits"), b.Limits)
	validateTimeouts(v.Document, document.Child(path, "timeouts"), b.Timeouts)
	validateConnector(v.Document, document.Child(path, "connector"), &b.Connector)
	validateZones(v.Document, path, b)
	for _, protocol := range slices.Sorted(maps.Keys(b.Mapping)) {
		v.validateMapping(document.Child(document.Child(path, "mapping"), protocol), protocol, b.Mapping[protocol])
	}
}

func validateAuth(d *document.Document, path string, auth Auth) {
	path = document.Child(path, "auth")
	kinds := []string{"cloud", "noauth", "cloudConfig", "environment"}
	var given []string
	for _, kind := range kinds {
		if d.Has(document.Child(path, kind)) {
			given = append(given, kind)
		}
	}
	switch {
	case !d.Has(path):
		d.Errorf(path, "is missing; give one of %s", strings.Join(kinds, ", "))
	case len(given) != 1:
		list := "none"
		if len(given) > 0 {
			list = strings.Join(given, " and ")
		}
		d.Errorf(path, "exactly one of %s must be given, not %s", strings.Join(kinds, ", "), list)
	}
	validateText(d, document.Child(path, "cloud"), auth.Cloud)
	if strings.ContainsAny(auth.Cloud, "/") || strings.HasSuffix(auth.Cloud, ".yaml") || strings.HasSuffix(auth.Cloud, ".yml") {
		d.Errorf(document.Child(path, "cloud"), "%q is a file; cloud names an entry of clouds.yaml, and --clouds-file names the file", auth.Cloud)
	}
	validateText(d, document.Child(path, "cloudConfig"), auth.CloudConfig)
	if mistake := fileMistake(auth.CloudConfig); mistake != "" {
		d.Errorf(document.Child(path, "cloudConfig"), "%q cannot be a file: %s", auth.CloudConfig, mistake)
	}
	if environment := document.Child(path, "environment"); d.Has(environment) && !auth.Environment {
		d.Errorf(environment, "must be true; to log in another way, remove it and give cloud, noauth or cloudConfig")
	}
	if auth.NoAuth != nil {
		validateNoAuth(d, document.Child(path, "noauth"), *auth.NoAuth)
	}
}

func validateNoAuth(d *document.Document, path string, noauth NoAuth) {
	endpoint := document.Child(path, "endpoint")
	if noauth.Endpoint == "" {
		d.Errorf(endpoint, "is missing; give the URL of Cinder's API, such as http://cinder.example:8776/v3")
	} else if mistake := endpointMistake(noauth.Endpoint); mistake != "" {
		d.Errorf(endpoint, "%s; write it like http://cinder.example:8776/v3", mistake)
	} else if mistake := endpointDetails(noauth.Endpoint, givenProject(d, path, noauth)); mistake != "" {
		d.Errorf(endpoint, "%s; write it like http://cinder.example:8776/v3", mistake)
	} else if u, err := url.Parse(noauth.Endpoint); err == nil && oldVersionPattern.MatchString(u.Path) {
		d.Warnf(endpoint, "current Cinder releases serve only version 3 of the API; write the URL with /v3")
	}
	validateText(d, document.Child(path, "user"), noauth.User)
	validateText(d, document.Child(path, "project"), noauth.Project)
	for _, key := range []string{"user", "project"} {
		if value := map[string]string{"user": noauth.User, "project": noauth.Project}[key]; strings.Contains(value, ":") {
			d.Errorf(document.Child(path, key), "must have no colon, because the noauth token is user:project")
		} else if strings.ContainsAny(value, "/ ") && textMistake(value) == "" {
			d.Errorf(document.Child(path, key), "%q must have no slashes or blanks, because it becomes part of a URL", value)
		}
	}
	if noauth.Project != "" && !hexProjectPattern.MatchString(noauth.Project) {
		d.Warnf(document.Child(path, "project"), "the project %q is not made of hexadecimal digits and hyphens; current Cinder releases answer 404 to URLs with other projects, unless project_id_regex in cinder.conf allows them", noauth.Project)
	}
}

// givenProject returns the project if the file gives it; the default is none.
func givenProject(d *document.Document, path string, noauth NoAuth) string {
	if d.Has(document.Child(path, "project")) {
		return noauth.Project
	}
	return ""
}

// endpointMistake describes what is wrong with an endpoint. It never shows the
// URL, which might contain a password.
func endpointMistake(endpoint string) string {
	u, err := url.Parse(endpoint)
	switch {
	case strings.TrimSpace(endpoint) != endpoint:
		return "the endpoint begins or ends with a blank"
	case err != nil:
		return "the endpoint is not a URL"
	case u.Scheme != "http" && u.Scheme != "https":
		return "the endpoint must begin with http:// or https://"
	case u.Hostname() == "":
		return "the endpoint has no host"
	case u.User != nil:
		return "the endpoint must carry no user or password"
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return "the endpoint must have no query or fragment"
	}
	return ""
}

func validateInterface(d *document.Document, path string, value Interface) {
	validateWord(d, path, "interface", value, []string{string(InterfacePublic), string(InterfaceInternal), string(InterfaceAdmin)}, "the interfaces are")
}

func validateWorkflow(d *document.Document, path string, value Workflow) {
	validateWord(d, path, "workflow", value, []string{string(WorkflowReserve), string(WorkflowAttachment), string(WorkflowAuto)}, "the workflows are")
}

func validateLimits(d *document.Document, path string, limits Limits) {
	for _, limit := range []struct {
		key   string
		value *int64
	}{{"volumes", limits.Volumes}, {"gigabytes", limits.Gigabytes}} {
		if at := document.Child(path, limit.key); d.Has(at) && limit.value != nil && *limit.value < 0 {
			d.Errorf(at, "must not be negative; 0 allows none, and without the key there is no limit")
		}
		validateCount(d, document.Child(path, limit.key), limit.value)
	}
	warnContradiction(d, path, "volume", named[*int64]{"volumes", limits.Volumes}, named[*int64]{"gigabytes", limits.Gigabytes})
	validateConcurrency(d, document.Child(path, "concurrency"), limits.Concurrency, "to keep new volumes away, set suspended: true")
	validateRate(d, document.Child(path, "requestsPerSecond"), limits.RequestsPerSecond)
}

func validateTimeouts(d *document.Document, path string, timeouts Timeouts) {
	validateDurations(d, path, named[time.Duration]{"create", timeouts.Create}, named[time.Duration]{"delete", timeouts.Delete}, named[time.Duration]{"request", timeouts.Request})
	validateBounds(d, document.Child(path, "create"), timeouts.Create, MinVolumeTimeout, MaxTimeout, "no volume is created so fast")
	validateBounds(d, document.Child(path, "delete"), timeouts.Delete, MinVolumeTimeout, MaxTimeout, "no volume is deleted so fast")
	validateBounds(d, document.Child(path, "request"), timeouts.Request, MinRequestTimeout, MaxTimeout, "no request is answered so fast")
}

// named is a value with its key.
type named[T any] struct {
	key   string
	value T
}

// validateDurations requires every duration that is given to be positive.
func validateDurations(d *document.Document, path string, durations ...named[time.Duration]) {
	for _, duration := range durations {
		if at := document.Child(path, duration.key); d.Has(at) && duration.value <= 0 {
			d.Errorf(at, "must be more than 0; remove the key for the default")
		}
	}
}

// validateConnector checks a connector, and normalizes its WWPNs.
func validateConnector(d *document.Document, path string, c *Connector) {
	if at := document.Child(path, "host"); d.Has(at) && (!hostPattern.MatchString(c.Host) || len(c.Host) > MaxTextLength) {
		d.Errorf(at, "%q cannot be a host name; use letters, digits, '.', '_' and '-'", c.Host)
	}
	if at, problem := document.Child(path, "initiator"), mapping.InitiatorProblem(c.Initiator); d.Has(at) && problem != "" {
		d.Errorf(at, "%q cannot be the nodes' iSCSI initiator name: it %s; write it like iqn.2026-01.com.example:cluster-1 (lower case, with the part after the colon), or as eui. with 16 or naa. with 32 hexadecimal digits", c.Initiator, problem)
	}
	if at := document.Child(path, "ip"); d.Has(at) && net.ParseIP(c.IP) == nil {
		d.Errorf(at, "%q is not an IP address; write one such as 192.0.2.10 or 2001:db8::10, without a prefix length", c.IP)
	} else if ip := net.ParseIP(c.IP); d.Has(at) && (ip.IsUnspecified() || ip.IsMulticast()) {
		d.Errorf(at, "%s is not the address of a host; write one of the nodes' addresses, or remove the key", c.IP)
	} else if d.Has(at) && ip.IsLoopback() {
		d.Warnf(at, "%s is a loopback address, so Cinder cannot identify the nodes by it; write one of the nodes' addresses, or remove the key", c.IP)
	}
	if at := document.Child(path, "nqn"); d.Has(at) && (!nqnPattern.MatchString(c.NQN) || len(c.NQN) > MaxQualifiedName) {
		d.Errorf(at, "%q is not an NVMe qualified name; write it like nqn.2014-08.org.nvmexpress:uuid:...", c.NQN)
	}
	// A backend may use an empty set of labels to override those of the
	// defaults.
	if at := document.Child(path, "nodeLabels"); d.Has(at) && len(c.NodeLabels) == 0 && !d.IsUnread(at) &&
		(path == "defaults.connector" || !d.Has("defaults.connector.nodeLabels")) {
		d.Warnf(at, "no label is given, so volumes can be used on every node; name the labels, or remove the key")
	}
	for _, key := range slices.Sorted(maps.Keys(c.NodeLabels)) {
		at := document.Child(document.Child(path, "nodeLabels"), key)
		selectors.CheckKey(d, at, key)
		selectors.CheckValue(d, at, c.NodeLabels[key])
	}
	if !d.Has(document.Child(path, "wwpns")) {
		return
	}
	for i, wwpn := range c.WWPNs {
		at := document.Element(document.Child(path, "wwpns"), i)
		if !wwpnPattern.MatchString(wwpn) {
			d.Errorf(at, "%q is not a Fibre Channel port name; write 16 hexadecimal digits, with or without colons, in quotes", wwpn)
			continue
		}
		c.WWPNs[i] = strings.ToLower(strings.ReplaceAll(wwpn, ":", ""))
		if strings.Trim(c.WWPNs[i], "0") == "" || strings.Trim(c.WWPNs[i], "f") == "" {
			d.Errorf(at, "%q is not the name of a port; write one from /sys/class/fc_host/*/port_name", wwpn)
		}
		if slices.Contains(c.WWPNs[:i], c.WWPNs[i]) {
			d.Warnf(at, "%q is listed twice; remove one", wwpn)
		}
	}
}

const (
	// MaxConcurrency is more than any Cinder or any process can handle. It
	// catches mistakes such as a size in bytes.
	MaxConcurrency = 100_000

	// MinRate is one request in 100 seconds. Creating a volume takes at least
	// four, so with a lower rate the program would seem to hang.
	MinRate = 0.01
)

func validateTenantLimits(d *document.Document, path string, limits TenantLimits) {
	validateConcurrency(d, document.Child(path, "concurrency"), limits.Concurrency, "remove the key if the tenant needs no limit of its own; to allow it no volumes, set quota: {volumes: 0}")
	validateRate(d, document.Child(path, "requestsPerSecond"), limits.RequestsPerSecond)
}

// validateConcurrency rejects 0 rather than guess whether it means no limit or no
// requests.
func validateConcurrency(d *document.Document, path string, value int64, instead string) {
	switch {
	case !d.Has(path):
	case value < 1:
		d.Errorf(path, "must be at least 1; %s", instead)
	case value > MaxConcurrency:
		d.Errorf(path, "must be at most %d", MaxConcurrency)
	}
}

// validateRate checks a number of requests per second. 0 means no limit.
func validateRate(d *document.Document, path string, value float64) {
	switch {
	case !d.Has(path):
	case value < 0:
		d.Errorf(path, "must not be negative; 0 means no limit")
	case value > MaxConcurrency:
		d.Errorf(path, "must be at most %d; 0 means no limit", MaxConcurrency)
	case value > 0 && value < MinRate:
		d.Errorf(path, "must be at least %g, which is a request in 100 seconds; 0 means no limit", MinRate)
	}
}

// validateMapping reports what is wrong with a mapping at its place in the
// file.
func (v *validator) validateMapping(path, protocol string, m mapping.Mapping) {
	place := func(keys []string) string {
		at := path
		for _, key := range keys {
			at = document.Child(at, key)
		}
		return at
	}
	findings := m.Check(protocol, mapping.Context{
		Protocols: v.protocols,
		Has:       func(keys ...string) bool { return v.Has(place(keys)) },
		Suggest:   document.Suggest,
	})
	for _, finding := range findings {
		at := place(finding.Keys)
		if finding.Index >= 0 {
			at = document.Element(at, finding.Index)
		}
		if finding.Warning {
			v.Warnf(at, "%s", finding.Message)
		} else {
			v.Errorf(at, "%s", finding.Message)
		}
	}
}
