package policy

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/standalone-cinder/standalone-cinder/mappers/mapping"
	"github.com/standalone-cinder/standalone-cinder/policy/document"
	"github.com/standalone-cinder/standalone-cinder/policy/names"
	"github.com/standalone-cinder/standalone-cinder/policy/selectors"
)

// ClusterIDPattern matches what may be a clusterID.
const ClusterIDPattern = `^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`

var clusterIDPattern = regexp.MustCompile(ClusterIDPattern)

// FileSystems lists the filesystems that kubelet can create on a volume and that
// Linux nodes commonly have the tools for.
func FileSystems() []string { return []string{"ext2", "ext3", "ext4", "xfs", "btrfs"} }

// validator checks a policy. The document it was read from collects the mistakes.
type validator struct {
	*Policy
	*document.Document
	protocols mapping.Protocols
}

// validate reports every mistake in what could be read, and prepares what
// Decide needs.
func (v *validator) validate() {
	v.validateHeader()
	v.validateDefaults()
	v.validateAudit()
	for i := range v.Backends {
		v.validateBackend(i)
	}
	for i := range v.Tenants {
		v.validateTenant(i)
	}
	validateUnique(v.Document, "backends", len(v.Backends), func(i int) string { return v.Backends[i].Name }, "rules and PersistentVolumes know backends by their names")
	validateUnique(v.Document, "tenants", len(v.Tenants), func(i int) string { return v.Tenants[i].Name }, "quotas count the volumes of a tenant by its name")
	v.validateModes()
	v.validatePools()
	v.validateNamespaces()
	v.validatePopulators()
	v.validateSelectors()
	v.warnUnusedBackends()
	v.warnSamePlace()
	v.warnSystemNamespace()
	v.validateRoom()
}

func (v *validator) validateHeader() {
	if v.ClusterID != "" && !clusterIDPattern.MatchString(v.ClusterID) {
		v.Errorf("clusterID", "%q cannot be a cluster's id; use 1 to 63 letters, digits, '.', '_' and '-', beginning and ending with a letter or digit", v.ClusterID)
	}
	switch {
	case !v.Has("backends"):
		v.Errorf("backends", "is missing; list the Cinder endpoints that volumes may come from")
	case len(v.Backends) == 0:
		v.Warnf("backends", "there is no backend, so no volume can be created")
	}
	switch {
	case !v.Has("tenants"):
		v.Errorf("tenants", "is missing; list who may have volumes: a namespace that no tenant matches gets nothing")
	case len(v.Tenants) == 0:
		v.Warnf("tenants", "there is no tenant, so every claim is denied")
	}
}

// validateKind checks the beginning of every file.
func validateKind(d *document.Document, apiVersion, kind, wanted string) {
	switch {
	case apiVersion == "":
		d.Errorf("apiVersion", "is missing; write apiVersion: %s", APIVersion)
	case apiVersion != APIVersion:
		d.Errorf("apiVersion", "must be %s, not %q", APIVersion, apiVersion)
	}
	switch {
	case kind == "":
		d.Errorf("kind", "is missing; write kind: %s", wanted)
	case kind != wanted:
		d.Errorf("kind", "must be %s, not %q", wanted, kind)
	}
}

func (v *validator) validateDefaults() {
	def := v.Defaults
	validateVolumeSize(v.Document, "defaults.volumeSize", def.VolumeSize)
	validateMetadata(v.Document, "defaults.metadata", def.Metadata)
	validateText(v.Document, "defaults.region", def.Region)
	validateInterface(v.Document, "defaults.interface", def.Interface)
	validateWorkflow(v.Document, "defaults.workflow", def.Workflow)
	validateModeOf(v.Document, "defaults.mode", def.Mode)
	validateLimits(v.Document, "defaults.limits", def.Limits)
	validateTimeouts(v.Document, "defaults.timeouts", def.Timeouts)
	validateConnector(v.Document, "defaults.connector", &v.Defaults.Connector)
	if sentence, ok := (sizeLimits{}).narrow(def.VolumeSize, "defaults.volumeSize").conflict(); ok {
		v.Errorf("defaults.volumeSize", "%s; raise the largest or lower the smallest size", sentence)
	}
}

func (v *validator) validateTenant(i int) {
	t, path := &v.Tenants[i], document.Element("tenants", i)
	validateName(v.Document, path, t.Name, "tenant")
	if len(t.Namespaces) == 0 && t.NamespaceSelector == nil &&
		!v.Has(document.Child(path, "namespaces")) && !v.Has(document.Child(path, "namespaceSelector")) {
		v.Errorf(document.Child(path, "namespaces"), "is missing; list the tenant's namespaces, or select them with namespaceSelector")
	}
	if v.Has(document.Child(path, "namespaces")) && len(t.Namespaces) == 0 {
		v.Errorf(document.Child(path, "namespaces"), "the list is empty; name a namespace, or remove the key and use namespaceSelector")
	}
	validateEntries(v.Document, document.Child(path, "namespaces"), t.Namespaces, names.Namespace(), "a namespace")
	t.matcher = newNamespaceMatcher(t, selectors.Compile(v.Document, t.NamespaceSelector, document.Child(path, "namespaceSelector")))

	validateQuota(v.Document, document.Child(path, "quota"), t.Quota)
	validateRestoreAnySnapshot(v.Document, path, t)
	validateTenantLimits(v.Document, document.Child(path, "limits"), t.Limits)
	validateMetadata(v.Document, document.Child(path, "metadata"), t.Metadata)
	validateVolumeSize(v.Document, document.Child(path, "volumeSize"), t.VolumeSize)
	_, parentConflicts := sizeLimits{}.narrow(v.Defaults.VolumeSize, "defaults.volumeSize").conflict()
	sentence, conflicts := t.size.conflict()
	if conflicts && !parentConflicts {
		v.Errorf(document.Child(path, "volumeSize"), "%s; raise the largest or lower the smallest size", sentence)
	}

	if len(t.Classes) == 0 {
		v.Errorf(document.Child(path, "classes"), "is missing or empty; without a rule for a StorageClass the tenant gets nothing")
	}
	for j := range t.Classes {
		v.validateClass(t, &t.Classes[j], document.Element(document.Child(path, "classes"), j), conflicts)
	}
	warnShadowedClasses(v.Document, path, t.Classes)
}

func (v *validator) validateClass(t *Tenant, c *Class, path string, parentConflicts bool) {
	c.path = path
	if len(c.StorageClasses) == 0 {
		v.Errorf(document.Child(path, "storageClasses"), "is missing or empty; name the StorageClasses the rule is for, or [\"*\"] for all")
	}
	validateEntries(v.Document, document.Child(path, "storageClasses"), c.StorageClasses, names.StorageClass(), "a StorageClass")

	if len(c.Backends) == 0 {
		v.Errorf(document.Child(path, "backends"), "is missing or empty; name the backends the volumes may come from")
	}
	seen := map[string]bool{}
	for i, name := range c.Backends {
		at := document.Element(document.Child(path, "backends"), i)
		if seen[name] {
			v.Warnf(at, "%q is listed twice; remove one", name)
		} else if _, ok := v.Backend(name); !ok && v.backendsKnown() {
			v.Errorf(at, "unknown backend %q%s", name, v.meantBackend(name))
		}
		seen[name] = true
	}

	v.warnSuspendedRule(path, c)
	v.validatePick(document.Child(path, "pick"), c)
	validateModeOf(v.Document, document.Child(path, "mode"), c.Mode)
	v.validateFixedZone(document.Child(path, "availabilityZone"), c)
	validateText(v.Document, document.Child(path, "volumeType"), c.VolumeType)
	validateText(v.Document, document.Child(path, "availabilityZone"), c.AvailabilityZone)
	for _, property := range []named[string]{{"volumeType", c.VolumeType}, {"availabilityZone", c.AvailabilityZone}} {
		if strings.Contains(property.value, ",") {
			v.Warnf(document.Child(path, property.key), "%q is one name, not a list; for several, write several rules", property.value)
		}
	}
	if c.FSType != "" && !slices.Contains(FileSystems(), c.FSType) {
		v.Errorf(document.Child(path, "fsType"), "%q is not a filesystem that can be created on a volume%s", c.FSType, document.DidYouMean(c.FSType, FileSystems(), "use one of"))
	}
	for i, name := range c.VolumeTypes {
		at := document.Element(document.Child(path, "volumeTypes"), i)
		switch {
		case name == "":
			v.Errorf(at, "is empty; name a volume type of Cinder")
		case slices.Contains(c.VolumeTypes[:i], name):
			v.Warnf(at, "%q is listed twice; remove one", name)
		}
		validateText(v.Document, at, name)
	}
	v.validateEncrypt(document.Child(path, "encrypt"), c)
	if c.Backups && c.Encrypt != nil {
		v.Errorf(document.Child(path, "backups"), "cannot be combined with encrypt: a backup would have no record of the key that opens it; use snapshots, or another rule")
	}
	v.validateProtect(document.Child(path, "protect"), t, c)
	validateQuota(v.Document, document.Child(path, "quota"), c.Quota)
	validateImport(v.Document, document.Child(path, "import"), c.Import, t.Metadata)
	validateVolumeSize(v.Document, document.Child(path, "volumeSize"), c.VolumeSize)
	c.size = t.size.narrow(c.VolumeSize, document.Child(path, "volumeSize"))
	if sentence, ok := c.size.conflict(); ok {
		if !parentConflicts {
			v.Errorf(document.Child(path, "volumeSize"), "%s; raise the largest or lower the smallest size", sentence)
		}
		return
	}
	for i, name := range c.Backends {
		j := v.backendIndex(name)
		if j < 0 {
			continue
		}
		if sentence, ok := c.size.narrow(v.Backends[j].VolumeSize, document.Element("backends", j)+".volumeSize").conflict(); ok {
			v.Warnf(document.Element(document.Child(path, "backends"), i), "the backend can take no volume of this rule: %s", sentence)
		}
	}
}

// backendsKnown reports whether all backends and their names could be read, and
// no name has an odd character. Then a name that is not among them must be
// wrong.
func (v *validator) backendsKnown() bool {
	for i, b := range v.Backends {
		if b.Name == "" || document.Foreign(b.Name) != "" || v.IsUnread(document.Element("backends", i)) {
			return false
		}
	}
	return !v.IsUnread("backends")
}

func (v *validator) meantBackend(name string) string {
	var names []string
	for _, b := range v.Backends {
		names = append(names, b.Name)
	}
	if len(names) == 0 {
		return "; no backends are defined"
	}
	meant := document.DidYouMean(name, names, "the backends are")
	for i, twice := range names {
		if twice != "" && slices.Contains(names[:i], twice) {
			return fmt.Sprintf("%s; two are called %q, and one of them may be meant to be %q", meant, twice, name)
		}
	}
	return meant
}

func (v *validator) warnUnusedBackends() {
	used := map[string]bool{}
	for c := range v.Rules() {
		for _, name := range c.Backends {
			used[name] = true
		}
	}
	for i, b := range v.Backends {
		if !used[b.Name] && !b.Suspended {
			v.Warnf(document.Element("backends", i), "no rule uses backend %q; name it in a tenant's classes, or set suspended: true if it is kept only for the volumes it has", b.Name)
		}
	}
}

// maxShadows bounds the number of entries of a tenant's rules that are compared
// with each other, because the result is only a warning.
const maxShadows = 5_000

// warnShadowedClasses finds rules and entries that never apply, because an earlier
// one always does.
func warnShadowedClasses(d *document.Document, path string, classes []Class) {
	entries := 0
	for _, c := range classes {
		if entries += len(c.StorageClasses); entries > maxShadows {
			return
		}
	}
	for i, c := range classes {
		rule := document.Element(document.Child(path, "classes"), i)
		shadows := make([]shadow, len(c.StorageClasses))
		// The rule is never reached if other rules take all its entries.
		reached := len(shadows) == 0
		for k := range shadows {
			shadows[k] = shadowOf(path, classes, i, k)
			reached = reached || shadows[k].path == "" || shadows[k].own
		}
		if !reached {
			by := shadows[len(shadows)-1].path
			d.Warnf(rule, "the rule is never reached: %s (%s) takes its StorageClasses first; put this rule before it, or remove it", by, d.LineOf(by))
			continue
		}
		for k, by := range shadows {
			if by.path != "" {
				d.Warnf(document.Element(document.Child(rule, "storageClasses"), k), "%q has no effect: %s (%s) takes it first", c.StorageClasses[k], by.path, d.LineOf(by.path))
			}
		}
	}
}

// shadow is the entry that takes everything another one could match.
type shadow struct {
	path string // empty if there is none
	own  bool   // whether it is in the same rule
}

// shadowOf returns the shadow over entry k of rule i. If two entries are equal,
// only the later one has a shadow.
func shadowOf(path string, classes []Class, i, k int) shadow {
	entry := classes[i].StorageClasses[k]
	for j := 0; j <= i; j++ {
		for m, other := range classes[j].StorageClasses {
			if j == i && (m == k || m > k && other == entry) {
				continue
			}
			if names.Covers(other, entry) {
				return shadow{fmt.Sprintf("%s.classes[%d].storageClasses[%d]", path, j, m), j == i}
			}
		}
	}
	return shadow{}
}

// validateEntries checks names and patterns.
func validateEntries(d *document.Document, path string, entries []string, kind names.Kind, what string) {
	for i, entry := range entries {
		if mistake := kind.Mistake(entry); mistake != "" {
			d.Errorf(document.Element(path, i), "%q cannot be %s: %s", entry, what, mistake)
		}
	}
}

// validateName checks a required name. It ends up in metadata, metrics and lease
// names, all of which accept an RFC 1123 label.
func validateName(d *document.Document, path, name, what string) {
	switch {
	case name == "":
		d.Errorf(document.Child(path, "name"), "is missing; give the %s a name", what)
	case names.Namespace().Mistake(name) != "" && document.Foreign(name) != "":
		d.Errorf(document.Child(path, "name"), "%q cannot be the name of a %s: %s; use lower-case letters, digits and hyphens", name, what, document.Foreign(name))
	case len(validation.IsDNS1123Label(name)) > 0:
		d.Errorf(document.Child(path, "name"), "%q cannot be the name of a %s; use at most 63 lower-case letters, digits and hyphens, beginning and ending with a letter or digit", name, what)
	}
}

// validateWord checks a word that can only be one of a few.
func validateWord[W ~string](d *document.Document, at, noun string, word W, known []string, all string) {
	if d.Has(at) && !slices.Contains(known, string(word)) {
		d.Errorf(at, "unknown %s %q%s", noun, word, document.DidYouMean(string(word), known, all))
	}
}

// validateUnique reports names in a list that were given before.
func validateUnique(d *document.Document, path string, n int, name func(int) string, why string) {
	first := map[string]string{}
	for i := range n {
		at := document.Element(path, i)
		if earlier, ok := first[name(i)]; ok && name(i) != "" {
			d.Errorf(document.Child(at, "name"), "%s (%s) is already called %q, and %s; give each a different name", earlier, d.LineOf(document.Child(earlier, "name")), name(i), why)
			continue
		}
		first[name(i)] = at
	}
}

// MaxTextLength is the longest name or metadata value in Cinder's database.
const MaxTextLength = 255

// textMistake describes why Cinder cannot store a string unchanged; it is empty if
// Cinder can.
func textMistake(s string) string {
	switch {
	case utf8.RuneCountInString(s) > MaxTextLength:
		return fmt.Sprintf("it is longer than the %d characters that Cinder stores", MaxTextLength)
	case strings.TrimSpace(s) != s:
		return "it begins or ends with a space, which Cinder would drop"
	case strings.ContainsFunc(s, unicode.IsControl):
		return "it has control characters"
	}
	return ""
}

func validateText(d *document.Document, path, s string) {
	if !d.Has(path) {
		return
	}
	if mistake := textMistake(s); mistake != "" {
		d.Errorf(path, "%q cannot be used: %s", s, mistake)
	} else if unquoted, ok := document.Unquoted(s); ok {
		d.Errorf(path, "%q cannot be used: the inner quotes are part of the value; write %s", s, unquoted)
	} else if strange := document.Strange(s); strange != "" {
		d.Warnf(path, "%q is unlikely to be meant: %s; type it again", s, strange)
	}
}

// reservedPrefix begins the metadata keys by which the CSI sidecars, and the
// provisioner, name a volume's claim.
const reservedPrefix = "csi.storage.k8s.io/"

// nodeRecordPrefix begins the keys under which the provisioner records the nodes that have
// a volume.
const nodeRecordPrefix = "standalone-cinder-node-"

func validateMetadata(d *document.Document, path string, metadata map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(metadata)) {
		at := document.Child(path, key)
		if !d.Has(at) {
			continue // inherited, and checked there
		}
		switch mistake := textMistake(key); {
		case key == "":
			d.Errorf(at, "a metadata key is empty; give it a name")
		case mistake != "":
			d.Errorf(at, "metadata key %q cannot be used: %s", key, mistake)
		case strings.HasPrefix(strings.ToLower(key), StampPrefix):
			d.Errorf(at, "metadata keys that begin with %s are the provisioner's own; choose another", StampPrefix)
		case strings.HasPrefix(strings.ToLower(key), nodeRecordPrefix):
			d.Errorf(at, "metadata keys that begin with %s are the provisioner's own; choose another", nodeRecordPrefix)
		case strings.HasPrefix(strings.ToLower(key), reservedPrefix):
			d.Errorf(at, "metadata keys that begin with %s say for which claim a volume was made, and the provisioner writes them; choose another", reservedPrefix)
		case key == "readonly" || key == "attached_mode":
			d.Errorf(at, "Cinder itself writes the metadata key %q; choose another", key)
		}
		if mistake := textMistake(metadata[key]); mistake != "" {
			d.Errorf(at, "the metadata value cannot be used: %s", mistake)
		}
	}
}

func validateQuota(d *document.Document, path string, q Quota) {
	for _, limit := range q.Limits(Usage{}) {
		if limit.Most != nil && *limit.Most < 0 {
			d.Errorf(document.Child(path, limit.Key), "must not be negative; 0 allows none, and without the key there is no limit")
		}
		validateCount(d, document.Child(path, limit.Key), limit.Most)
	}
	warnContradiction(d, path, "volume", named[*int64]{"volumes", q.Volumes}, named[*int64]{"gigabytes", q.Gigabytes})
	warnContradiction(d, path, "snapshot", named[*int64]{"snapshots", q.Snapshots}, named[*int64]{"snapshotGigabytes", q.SnapshotGigabytes})
	warnContradiction(d, path, "backup", named[*int64]{"backups", q.Backups}, named[*int64]{"backupGigabytes", q.BackupGigabytes})
}

func validateVolumeSize(d *document.Document, path string, size VolumeSize) {
	if at := document.Child(path, "min"); d.Has(at) && size.Min != nil && size.Min.Bytes == 0 {
		d.Errorf(at, "must be greater than 0; remove the key for no minimum")
	} else if d.Has(at) && size.Min != nil && roundUpGiB(size.Min.Bytes) > maxGiB {
		d.Errorf(at, "no volume in Cinder can be larger than %d GiB; write a smaller size", maxGiB)
	}
	if at := document.Child(path, "max"); d.Has(at) && size.Max != nil && size.Max.Bytes < gib {
		d.Errorf(at, "must be at least 1Gi, the smallest volume that Cinder creates")
	} else if d.Has(at) && size.Max != nil && size.Max.Bytes/gib > maxGiB {
		d.Errorf(at, "no volume in Cinder can be larger than %d GiB; write a smaller size, or remove the key if there is no largest size", maxGiB)
	}
	validateWholeGiB(d, document.Child(path, "min"), size.Min, false)
	validateWholeGiB(d, document.Child(path, "max"), size.Max, true)
}
