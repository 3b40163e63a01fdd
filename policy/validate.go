package policy

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/validation"
)

var clusterIDPattern = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)

// fileSystems are those that kubelet can make on a volume and Linux nodes
// commonly have the tools for.
var fileSystems = []string{"ext2", "ext3", "ext4", "xfs", "btrfs"}

// validate reports every mistake in what could be read, and prepares what
// Decide needs.
func (p *Policy) validate(d *document) {
	p.validateHeader(d)
	p.validateDefaults(d)
	validateDurations(d, "audit", named[time.Duration]{"interval", p.Audit.Interval}, named[time.Duration]{"grace", p.Audit.Grace})
	for i := range p.Backends {
		p.validateBackend(d, i)
	}
	for i := range p.Tenants {
		p.validateTenant(d, i)
	}
	validateUnique(d, "backends", len(p.Backends), func(i int) string { return p.Backends[i].Name })
	validateUnique(d, "tenants", len(p.Tenants), func(i int) string { return p.Tenants[i].Name })
	p.validateNamespaces(d)
	p.validateSelectors(d)
	p.warnUnusedBackends(d)
}

func (p *Policy) validateHeader(d *document) {
	validateKind(d, p.APIVersion, p.Kind, Kind)
	if p.ClusterID != "" && !clusterIDPattern.MatchString(p.ClusterID) {
		d.errorf("clusterID", "%q cannot be a cluster's id; use 1 to 63 letters, digits, '.', '_' and '-', beginning and ending with a letter or digit", p.ClusterID)
	}
	switch {
	case !d.has("backends"):
		d.errorf("backends", "is missing; list the Cinder endpoints that volumes may come from")
	case len(p.Backends) == 0:
		d.warnf("backends", "there is no backend, so no volume can be made")
	}
	switch {
	case !d.has("tenants"):
		d.errorf("tenants", "is missing; list who may have volumes: a namespace that no tenant matches gets nothing")
	case len(p.Tenants) == 0:
		d.warnf("tenants", "there is no tenant, so every claim is denied")
	}
}

// validateKind checks what every file begins with.
func validateKind(d *document, apiVersion, kind, wanted string) {
	switch {
	case apiVersion == "":
		d.errorf("apiVersion", "is missing; write apiVersion: %s", APIVersion)
	case apiVersion != APIVersion:
		d.errorf("apiVersion", "must be %s, not %q", APIVersion, apiVersion)
	}
	switch {
	case kind == "":
		d.errorf("kind", "is missing; write kind: %s", wanted)
	case kind != wanted:
		d.errorf("kind", "must be %s, not %q", wanted, kind)
	}
}

func (p *Policy) validateDefaults(d *document) {
	def := p.Defaults
	validateVolumeSize(d, "defaults.volumeSize", def.VolumeSize)
	validateMetadata(d, "defaults.metadata", def.Metadata)
	validateText(d, "defaults.region", def.Region)
	validateInterface(d, "defaults.interface", def.Interface)
	validateWorkflow(d, "defaults.workflow", def.Workflow)
	validateLimits(d, "defaults.limits", def.Limits)
	validateTimeouts(d, "defaults.timeouts", def.Timeouts)
	validateConnector(d, "defaults.connector", &p.Defaults.Connector)
	defaults := sizeLimits{}.narrow(def.VolumeSize, "defaults.volumeSize")
	if sentence, ok := defaults.conflict(); ok {
		d.errorf("defaults.volumeSize", "%s; raise the largest or lower the smallest size", sentence)
	}
}

func (p *Policy) validateTenant(d *document, i int) {
	t, path := &p.Tenants[i], element("tenants", i)
	validateName(d, path, t.Name, "tenant")
	if len(t.Namespaces) == 0 && t.NamespaceSelector == nil &&
		!d.has(child(path, "namespaces")) && !d.has(child(path, "namespaceSelector")) {
		d.errorf(child(path, "namespaces"), "is missing; list the tenant's namespaces, or select them with namespaceSelector")
	}
	if d.has(child(path, "namespaces")) && len(t.Namespaces) == 0 {
		d.errorf(child(path, "namespaces"), "the list is empty; name a namespace, or remove the key and use namespaceSelector")
	}
	validateEntries(d, child(path, "namespaces"), t.Namespaces, namespaceName, "a namespace")
	t.matcher = newNamespaceMatcher(t, compileSelector(d, t.NamespaceSelector, child(path, "namespaceSelector")))

	validateQuota(d, child(path, "quota"), t.Quota)
	validateTenantLimits(d, child(path, "limits"), t.Limits)
	validateMetadata(d, child(path, "metadata"), t.Metadata)
	validateVolumeSize(d, child(path, "volumeSize"), t.VolumeSize)
	_, parentConflicts := sizeLimits{}.narrow(p.Defaults.VolumeSize, "defaults.volumeSize").conflict()
	sentence, conflicts := t.size.conflict()
	if conflicts && !parentConflicts {
		d.errorf(child(path, "volumeSize"), "%s; raise the largest or lower the smallest size", sentence)
	}

	if len(t.Classes) == 0 {
		d.errorf(child(path, "classes"), "is missing or empty; without a rule for a StorageClass the tenant gets nothing")
	}
	for j := range t.Classes {
		p.validateClass(d, t, &t.Classes[j], element(child(path, "classes"), j), conflicts)
	}
	warnShadowedClasses(d, path, t.Classes)
}

func (p *Policy) validateClass(d *document, t *Tenant, c *Class, path string, parentConflicts bool) {
	c.path = path
	if len(c.StorageClasses) == 0 {
		d.errorf(child(path, "storageClasses"), "is missing or empty; name the StorageClasses the rule is for, or [\"*\"] for all")
	}
	validateEntries(d, child(path, "storageClasses"), c.StorageClasses, className, "a StorageClass")

	if len(c.Backends) == 0 {
		d.errorf(child(path, "backends"), "is missing or empty; name the backends the volumes may come from")
	}
	seen := map[string]bool{}
	for i, name := range c.Backends {
		at := element(child(path, "backends"), i)
		if seen[name] {
			d.warnf(at, "%q is listed twice; remove one", name)
		} else if _, ok := p.Backend(name); !ok && p.backendsKnown(d) {
			d.errorf(at, "unknown backend %q%s", name, p.meantBackend(name))
		}
		seen[name] = true
	}

	validateText(d, child(path, "volumeType"), c.VolumeType)
	validateText(d, child(path, "availabilityZone"), c.AvailabilityZone)
	if c.FSType != "" && !slices.Contains(fileSystems, c.FSType) {
		d.errorf(child(path, "fsType"), "%q is not a file system that can be made on a volume%s", c.FSType, didYouMean(c.FSType, fileSystems, "use one of"))
	}
	validateQuota(d, child(path, "quota"), c.Quota)
	validateVolumeSize(d, child(path, "volumeSize"), c.VolumeSize)
	c.size = t.size.narrow(c.VolumeSize, child(path, "volumeSize"))
	if sentence, ok := c.size.conflict(); ok {
		if !parentConflicts {
			d.errorf(child(path, "volumeSize"), "%s; raise the largest or lower the smallest size", sentence)
		}
		return
	}
	for i, name := range c.Backends {
		j := p.backendIndex(name)
		if j < 0 {
			continue
		}
		if sentence, ok := c.size.narrow(p.Backends[j].VolumeSize, element("backends", j)+".volumeSize").conflict(); ok {
			d.warnf(element(child(path, "backends"), i), "the backend can take no volume of this rule: %s", sentence)
		}
	}
}

// backendsKnown says whether all backends and their names could be read, so
// that a name which is not among them must be wrong.
func (p *Policy) backendsKnown(d *document) bool {
	for i, b := range p.Backends {
		if b.Name == "" || d.unread[element("backends", i)] {
			return false
		}
	}
	return !d.unread["backends"]
}

func (p *Policy) meantBackend(name string) string {
	var names []string
	for _, b := range p.Backends {
		names = append(names, b.Name)
	}
	if len(names) == 0 {
		return "; there is none"
	}
	return didYouMean(name, names, "the backends are")
}

func (p *Policy) warnUnusedBackends(d *document) {
	used := map[string]bool{}
	for _, t := range p.Tenants {
		for _, c := range t.Classes {
			for _, name := range c.Backends {
				used[name] = true
			}
		}
	}
	for i, b := range p.Backends {
		if !used[b.Name] && !b.Suspended {
			d.warnf(element("backends", i), "no rule uses backend %q; name it in a tenant's classes, or set suspended: true if it is kept only for the volumes it has", b.Name)
		}
	}
}

// maxShadows bounds the entries of a tenant's rules that are compared with each
// other, only for the sake of a warning.
const maxShadows = 5_000

// warnShadowedClasses finds rules and entries that an earlier one always beats.
func warnShadowedClasses(d *document, path string, classes []Class) {
	entries := 0
	for _, c := range classes {
		if entries += len(c.StorageClasses); entries > maxShadows {
			return
		}
	}
	for i, c := range classes {
		rule := element(child(path, "classes"), i)
		shadows := make([]shadow, len(c.StorageClasses))
		// The rule is never reached if other rules take all its entries.
		reached := len(shadows) == 0
		for k := range shadows {
			shadows[k] = shadowOf(path, classes, i, k)
			reached = reached || shadows[k].path == "" || shadows[k].own
		}
		if !reached {
			by := shadows[len(shadows)-1].path
			d.warnf(rule, "the rule is never reached: %s (line %d) takes its StorageClasses first; put this rule before it, or remove it", by, d.find(by).line)
			continue
		}
		for k, by := range shadows {
			if by.path != "" {
				d.warnf(element(child(rule, "storageClasses"), k), "%q has no effect: %s (line %d) takes it first", c.StorageClasses[k], by.path, d.find(by.path).line)
			}
		}
	}
}

// shadow is the entry that takes all that another one could match.
type shadow struct {
	path string // empty if there is none
	own  bool   // whether it stands in the same rule
}

// shadowOf returns the shadow over entry k of rule i. Of two equal entries only
// the later one has one.
func shadowOf(path string, classes []Class, i, k int) shadow {
	entry := classes[i].StorageClasses[k]
	for j := 0; j <= i; j++ {
		for m, other := range classes[j].StorageClasses {
			if j == i && (m == k || m > k && other == entry) {
				continue
			}
			if covers(other, entry) {
				return shadow{fmt.Sprintf("%s.classes[%d].storageClasses[%d]", path, j, m), j == i}
			}
		}
	}
	return shadow{}
}

// validateEntries checks names and patterns.
func validateEntries(d *document, path string, entries []string, kind nameKind, what string) {
	for i, entry := range entries {
		if mistake := kind.mistake(entry); mistake != "" {
			d.errorf(element(path, i), "%q cannot be %s: %s", entry, what, mistake)
		}
	}
}

// validateName checks a required name that ends up in metadata, metrics and
// lease names, where an RFC 1123 label is always welcome.
func validateName(d *document, path, name, what string) {
	switch {
	case name == "":
		d.errorf(child(path, "name"), "is missing; give the %s a name", what)
	case len(validation.IsDNS1123Label(name)) > 0:
		d.errorf(child(path, "name"), "%q cannot be the name of a %s; use at most 63 lower-case letters, digits and hyphens, beginning and ending with a letter or digit", name, what)
	}
}

// validateUnique reports names in a list that were given before.
func validateUnique(d *document, path string, n int, name func(int) string) {
	first := map[string]string{}
	for i := range n {
		at := element(path, i)
		if earlier, ok := first[name(i)]; ok && name(i) != "" {
			d.errorf(child(at, "name"), "%s (line %d) is already called %q; give each a name of its own", earlier, d.find(child(earlier, "name")).line, name(i))
			continue
		}
		first[name(i)] = at
	}
}

// maxTextLength is what Cinder's database holds in names and metadata.
const maxTextLength = 255

// textMistake says why a string cannot be stored by Cinder unchanged, or "".
func textMistake(s string) string {
	switch {
	case utf8.RuneCountInString(s) > maxTextLength:
		return fmt.Sprintf("it is longer than the %d characters that Cinder stores", maxTextLength)
	case strings.TrimSpace(s) != s:
		return "it begins or ends with a blank, which Cinder would drop"
	case strings.ContainsFunc(s, unicode.IsControl):
		return "it has control characters"
	}
	return ""
}

func validateText(d *document, path, s string) {
	if mistake := textMistake(s); mistake != "" && d.has(path) {
		d.errorf(path, "%q cannot be used: %s", s, mistake)
	}
}

func validateMetadata(d *document, path string, metadata map[string]string) {
	for _, key := range sortedKeys(metadata) {
		at := child(path, key)
		if !d.has(at) {
			continue // inherited, and checked there
		}
		switch mistake := textMistake(key); {
		case key == "":
			d.errorf(at, "a metadata key is empty; give it a name")
		case mistake != "":
			d.errorf(at, "metadata key %q cannot be used: %s", key, mistake)
		case strings.HasPrefix(strings.ToLower(key), StampPrefix):
			d.errorf(at, "metadata keys that begin with %s are the provisioner's own; choose another", StampPrefix)
		case key == "readonly" || key == "attached_mode":
			d.errorf(at, "Cinder itself writes the metadata key %q; choose another", key)
		}
		if mistake := textMistake(metadata[key]); mistake != "" {
			d.errorf(at, "the metadata value cannot be used: %s", mistake)
		}
	}
}

func validateQuota(d *document, path string, q Quota) {
	for _, limit := range []struct {
		key   string
		value *int64
	}{{"volumes", q.Volumes}, {"gigabytes", q.Gigabytes}, {"snapshots", q.Snapshots}} {
		if limit.value != nil && *limit.value < 0 {
			d.errorf(child(path, limit.key), "must not be negative; 0 allows none, and without the key there is no limit")
		}
	}
}

func validateVolumeSize(d *document, path string, size VolumeSize) {
	if at := child(path, "min"); d.has(at) && size.Min != nil && size.Min.Bytes == 0 {
		d.errorf(at, "must be more than 0; remove the key if there is no smallest size")
	} else if d.has(at) && size.Min != nil && roundUpGiB(size.Min.Bytes) > maxGiB {
		d.errorf(at, "no volume in Cinder can be larger than %d GiB; write a smaller size", maxGiB)
	}
	if at := child(path, "max"); d.has(at) && size.Max != nil && size.Max.Bytes < gib {
		d.errorf(at, "must be at least 1Gi, the smallest volume that Cinder makes")
	}
}
