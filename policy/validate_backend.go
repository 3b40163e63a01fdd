package policy

import (
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/standalone-cinder/standalone-cinder/mappers/mapping"
)

var (
	oldVersionPattern = regexp.MustCompile(`^/v[12](/|$)`)
	hexProjectPattern = regexp.MustCompile(`^[0-9a-f-]+$`)
	hostPattern       = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)
	wwpnPattern       = regexp.MustCompile(`^([0-9a-fA-F]{16}|[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){7})$`)
	nqnPattern        = regexp.MustCompile(`^nqn\.\d{4}-\d{2}\.\S+$`)
)

// maxQualifiedName is the longest NVMe qualified name (NVM Express base
// specification).
const maxQualifiedName = 223

func (p *Policy) validateBackend(d *document, i int) {
	b, path := &p.Backends[i], element("backends", i)
	validateName(d, path, b.Name, "backend")
	validateAuth(d, path, b.Auth)
	if d.has(child(path, "region")) {
		validateText(d, child(path, "region"), b.Region)
	}
	validateInterface(d, child(path, "interface"), b.Interface)
	validateWorkflow(d, child(path, "workflow"), b.Workflow)
	for _, key := range []string{"region", "interface"} {
		if b.Auth.NoAuth != nil && d.has(child(path, key)) {
			d.warnf(child(path, key), "%s has no effect with noauth, which has no service catalogue; remove it", key)
		}
	}
	validateVolumeSize(d, child(path, "volumeSize"), b.VolumeSize)
	if sentence, ok := (sizeLimits{}).narrow(b.VolumeSize, child(path, "volumeSize")).conflict(); ok {
		d.errorf(child(path, "volumeSize"), "%s; raise the largest or lower the smallest size", sentence)
	}
	validateLimits(d, child(path, "limits"), b.Limits)
	validateTimeouts(d, child(path, "timeouts"), b.Timeouts)
	validateConnector(d, child(path, "connector"), &b.Connector)
	for _, protocol := range sortedKeys(b.Mapping) {
		validateMapping(d, child(child(path, "mapping"), protocol), protocol, b.Mapping[protocol])
	}
}

func validateAuth(d *document, path string, auth Auth) {
	path = child(path, "auth")
	kinds := []string{"cloud", "noauth", "cloudConfig", "environment"}
	var given []string
	for _, kind := range kinds {
		if d.has(child(path, kind)) {
			given = append(given, kind)
		}
	}
	switch {
	case !d.has(path):
		d.errorf(path, "is missing; give one of %s", strings.Join(kinds, ", "))
	case len(given) != 1:
		list := "none"
		if len(given) > 0 {
			list = strings.Join(given, " and ")
		}
		d.errorf(path, "exactly one of %s must be given, not %s", strings.Join(kinds, ", "), list)
	}
	validateText(d, child(path, "cloud"), auth.Cloud)
	validateText(d, child(path, "cloudConfig"), auth.CloudConfig)
	if environment := child(path, "environment"); d.has(environment) && !auth.Environment {
		d.errorf(environment, "must be true; to log in another way, remove it and give cloud, noauth or cloudConfig")
	}
	if auth.NoAuth != nil {
		validateNoAuth(d, child(path, "noauth"), *auth.NoAuth)
	}
}

func validateNoAuth(d *document, path string, noauth NoAuth) {
	endpoint := child(path, "endpoint")
	if noauth.Endpoint == "" {
		d.errorf(endpoint, "is missing; give the URL of Cinder's API, such as http://cinder.example:8776/v3")
	} else if mistake := endpointMistake(noauth.Endpoint); mistake != "" {
		d.errorf(endpoint, "%s; write it like http://cinder.example:8776/v3", mistake)
	} else if u, err := url.Parse(noauth.Endpoint); err == nil && oldVersionPattern.MatchString(u.Path) {
		d.warnf(endpoint, "current Cinder releases serve only version 3 of the API; write the URL with /v3")
	}
	validateText(d, child(path, "user"), noauth.User)
	validateText(d, child(path, "project"), noauth.Project)
	for _, key := range []string{"user", "project"} {
		if value := map[string]string{"user": noauth.User, "project": noauth.Project}[key]; strings.Contains(value, ":") {
			d.errorf(child(path, key), "must have no colon, because the noauth token is user:project")
		}
	}
	if noauth.Project != "" && !hexProjectPattern.MatchString(noauth.Project) {
		d.warnf(child(path, "project"), "the project %q is not made of hexadecimal digits and hyphens; current Cinder releases answer 404 to URLs with other projects, unless project_id_regex in cinder.conf allows them", noauth.Project)
	}
}

// endpointMistake never shows the URL, which might hold a password.
func endpointMistake(endpoint string) string {
	u, err := url.Parse(endpoint)
	switch {
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

func validateInterface(d *document, path string, value Interface) {
	known := []string{string(InterfacePublic), string(InterfaceInternal), string(InterfaceAdmin)}
	if d.has(path) && !slices.Contains(known, string(value)) {
		d.errorf(path, "unknown interface %q%s", value, didYouMean(string(value), known, "the interfaces are"))
	}
}

func validateWorkflow(d *document, path string, value Workflow) {
	known := []string{string(WorkflowReserve), string(WorkflowAttachment), string(WorkflowAuto)}
	if d.has(path) && !slices.Contains(known, string(value)) {
		d.errorf(path, "unknown workflow %q%s", value, didYouMean(string(value), known, "the workflows are"))
	}
}

func validateLimits(d *document, path string, limits Limits) {
	for _, limit := range []struct {
		key   string
		value *int64
	}{{"volumes", limits.Volumes}, {"gigabytes", limits.Gigabytes}} {
		if at := child(path, limit.key); d.has(at) && limit.value != nil && *limit.value < 0 {
			d.errorf(at, "must not be negative; 0 allows none, and without the key there is no limit")
		}
	}
	validateConcurrency(d, child(path, "concurrency"), limits.Concurrency, "to keep new volumes away, set suspended: true")
	validateRate(d, child(path, "requestsPerSecond"), limits.RequestsPerSecond)
}

func validateTimeouts(d *document, path string, timeouts Timeouts) {
	validateDurations(d, path, named[time.Duration]{"create", timeouts.Create}, named[time.Duration]{"delete", timeouts.Delete}, named[time.Duration]{"request", timeouts.Request})
}

// named is a value with its key.
type named[T any] struct {
	key   string
	value T
}

// validateDurations wants each that is given to be positive.
func validateDurations(d *document, path string, durations ...named[time.Duration]) {
	for _, duration := range durations {
		if at := child(path, duration.key); d.has(at) && duration.value <= 0 {
			d.errorf(at, "must be more than 0; remove the key for the default")
		}
	}
}

// validateConnector also brings WWPNs into their normal form.
func validateConnector(d *document, path string, c *Connector) {
	if at := child(path, "host"); d.has(at) && (!hostPattern.MatchString(c.Host) || len(c.Host) > maxTextLength) {
		d.errorf(at, "%q cannot be a host name; use letters, digits, '.', '_' and '-'", c.Host)
	}
	if at := child(path, "initiator"); d.has(at) && (!mapping.Initiator.MatchString(c.Initiator) || len(c.Initiator) > mapping.LongestInitiator) {
		d.errorf(at, "%q is not an iSCSI initiator name that Kubernetes accepts; write it like iqn.2026-01.com.example:cluster-1 (lower case, with the part after the colon), or as eui. with 16 or naa. with 32 hexadecimal digits", c.Initiator)
	}
	if at := child(path, "ip"); d.has(at) && net.ParseIP(c.IP) == nil {
		d.errorf(at, "%q is not an IP address", c.IP)
	}
	if at := child(path, "nqn"); d.has(at) && (!nqnPattern.MatchString(c.NQN) || len(c.NQN) > maxQualifiedName) {
		d.errorf(at, "%q is not an NVMe qualified name; write it like nqn.2014-08.org.nvmexpress:uuid:...", c.NQN)
	}
	for _, key := range sortedKeys(c.NodeLabels) {
		at := child(child(path, "nodeLabels"), key)
		checkLabelKey(d, at, key)
		checkLabelValue(d, at, c.NodeLabels[key])
	}
	if !d.has(child(path, "wwpns")) {
		return
	}
	for i, wwpn := range c.WWPNs {
		at := element(child(path, "wwpns"), i)
		if !wwpnPattern.MatchString(wwpn) {
			d.errorf(at, "%q is not a Fibre Channel port name; write 16 hexadecimal digits, with or without colons, in quotes", wwpn)
			continue
		}
		c.WWPNs[i] = strings.ToLower(strings.ReplaceAll(wwpn, ":", ""))
		if slices.Contains(c.WWPNs[:i], c.WWPNs[i]) {
			d.warnf(at, "%q is listed twice; remove one", wwpn)
		}
	}
}
