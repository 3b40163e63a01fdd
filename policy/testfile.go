package policy

import (
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/policy/document"
	"github.com/standalone-cinder/standalone-cinder/policy/names"
	"github.com/standalone-cinder/standalone-cinder/policy/selectors"
)

// TestKind is the kind of a file of policy tests.
const TestKind = "PolicyTest"

// TestFile is a checked table of claims with the expected decisions of a policy.
// LoadTests and ParseTests create it.
type TestFile struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Policy is the file under test, as written; see ResolvePolicy. It may be
	// empty if the caller has a policy already.
	Policy string     `json:"policy"`
	Tests  []TestCase `json:"tests"`

	// Source is the name under which the file was parsed.
	Source string `json:"-"`

	positions map[string]document.Position
}

// TestCase is one claim or snapshot with its expected decision. Exactly one of Claim and
// Snapshot is set.
type TestCase struct {
	Name     string        `json:"name"`
	Claim    *TestClaim    `json:"claim"`
	Snapshot *TestSnapshot `json:"snapshot"`
	// Used is the earlier usage of quota scopes. Scopes that are not listed are empty.
	Used   []ScopeUsage    `json:"used"`
	Expect TestExpectation `json:"expect"`
}

// TestClaim describes a Request.
type TestClaim struct {
	Namespace       string            `json:"namespace"`
	NamespaceLabels map[string]string `json:"namespaceLabels"`
	// Populates is the claim on whose behalf a populator's claim asks; nil for none.
	Populates *TestPopulated `json:"populates"`
	// Name is the claim's, for rules with pick: spread.
	Name         string `json:"name"`
	StorageClass string `json:"storageClass"`
	// Provisioner is the StorageClass's; empty means the program itself.
	Provisioner string `json:"provisioner"`
	// Parameters and AllowedTopologies are the StorageClass's.
	Parameters        map[string]string `json:"parameters"`
	AllowedTopologies []Topology        `json:"allowedTopologies"`
	// NodeLabels are those of the selected node of the claim's pod; nil for none.
	NodeLabels map[string]string `json:"nodeLabels"`
	Size       Size              `json:"size"`
	// Limit is the claim's resources.limits.storage; nil means none.
	Limit      *Size      `json:"limit"`
	VolumeMode VolumeMode `json:"volumeMode"`
	// Source is where the claim's content is copied from; nil for an empty volume.
	Source *TestSource `json:"source"`
	// Import is the Cinder volume that the claim requests; nil for a new one.
	Import *TestImport `json:"import"`
	// Attributes are the parameters of the claim's VolumeAttributesClass; nil if it names
	// none.
	Attributes map[string]string `json:"attributes"`
}

// TestPopulated describes a Populated.
type TestPopulated struct {
	Namespace       string            `json:"namespace"`
	NamespaceLabels map[string]string `json:"namespaceLabels"`
	// Name is the claim's, for rules with pick: spread.
	Name string `json:"name"`
}

// TestImport describes an Existing volume or snapshot. A volume has the claim's size.
type TestImport struct {
	Name     string            `json:"name"`
	Type     string            `json:"type"`
	Metadata map[string]string `json:"metadata"`
}

// TestSource describes a Source.
type TestSource struct {
	// Kind is PersistentVolumeClaim or VolumeSnapshot; empty means a claim.
	Kind    string `json:"kind"`
	Tenant  string `json:"tenant"`
	Backend string `json:"backend"`
	// Size is the source's; empty means the claim's.
	Size       *Size      `json:"size"`
	VolumeMode VolumeMode `json:"volumeMode"`
	// Mode is the source's; empty means native.
	Mode Mode `json:"mode"`
	// FilesystemKnown means that the UUID of a native source's filesystem is recorded.
	FilesystemKnown bool `json:"filesystemKnown"`
	// Encrypted means that nodes encrypt the source, by a rule with encrypt.
	Encrypted bool `json:"encrypted"`
}

// The kinds of a TestSource, as claims name them.
const (
	sourceClaim    = "PersistentVolumeClaim"
	sourceSnapshot = "VolumeSnapshot"
)

// ScopeUsage is the usage of one quota scope. Exactly one of Tenant, Rule and
// Backend is set.
type ScopeUsage struct {
	Tenant string `json:"tenant"`
	// Rule is the path of a class rule, such as tenants[0].classes[1].
	Rule      string `json:"rule"`
	Backend   string `json:"backend"`
	Volumes   int64  `json:"volumes"`
	Gigabytes int64  `json:"gigabytes"`
	Snapshots int64  `json:"snapshots"`

	SnapshotGigabytes int64 `json:"snapshotGigabytes"`
	Backups           int64 `json:"backups"`
	BackupGigabytes   int64 `json:"backupGigabytes"`
}

func (u ScopeUsage) usage() Usage {
	return Usage{Volumes: u.Volumes, Gigabytes: u.Gigabytes, Snapshots: u.Snapshots, SnapshotGigabytes: u.SnapshotGigabytes, Backups: u.Backups, BackupGigabytes: u.BackupGigabytes}
}

// TestExpectation is compared with the decision; fields that are not set are ignored. The
// claim or snapshot must be granted unless Denied is set.
type TestExpectation struct {
	Tenant string `json:"tenant"`
	Rule   string `json:"rule"`
	// Backends are those that may take the volume, in order, or the one with the
	// snapshot. Nil is not compared.
	Backends []string     `json:"backends"`
	Volume   ExpectVolume `json:"volume"`

	Denied Reason `json:"denied"`
	// Message must be part of the denial's message.
	Message string `json:"message"`
}

// ExpectVolume is the part of VolumeProperties that is compared.
type ExpectVolume struct {
	SizeGiB          *int64 `json:"sizeGiB"`
	Type             string `json:"type"`
	AvailabilityZone string `json:"availabilityZone"`
	FSType           string `json:"fsType"`
	Mode             Mode   `json:"mode"`
	// Encrypted is whether nodes encrypt the volume, by the rule's encrypt.
	Encrypted *bool `json:"encrypted"`
	// Metadata must be on the volume, which may have more.
	Metadata map[string]string `json:"metadata"`
}

// LoadTests reads a file of policy tests and parses it. An unreadable file gives the
// filesystem's error, one with mistakes an ErrorList.
func LoadTests(file string) (*TestFile, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("read policy tests: %w", err)
	}
	defer f.Close() //nolint:errcheck // Nothing was written.
	return ReadTests(f, file)
}

// ReadTests parses policy tests from an open file or stream; see ParseTests.
func ReadTests(r io.Reader, source string) (*TestFile, error) {
	data, err := document.ReadLimited(r)
	if err != nil {
		return nil, fmt.Errorf("read policy tests: %w", err)
	}
	return ParseTests(data, source)
}

// ParseTests checks a file of policy tests as strictly as Parse does a policy.
// The error is an ErrorList of every mistake.
func ParseTests(data []byte, source string) (*TestFile, error) {
	d := newDocumentOf(source, "policy test", "the file is larger than 1 MiB; split it")
	f := &TestFile{Source: source, positions: d.Positions()}
	if d.Read(data, f) {
		f.validate(d)
	}
	if mistakes := d.Errors(); len(mistakes) > 0 {
		return nil, mistakes
	}
	return f, nil
}

// ResolvePolicy returns the path of the policy under test: a relative name
// starts from the directory of the test file.
func (f *TestFile) ResolvePolicy() string {
	if filepath.IsAbs(f.Policy) {
		return f.Policy
	}
	return filepath.Join(filepath.Dir(f.Source), f.Policy)
}

// Line returns the line of a test's value, such as "expect.tenant", or of its nearest
// ancestor; "" stands for the test itself.
func (f *TestFile) Line(test int, path string) int {
	at := document.Element("tests", test)
	if path != "" {
		at += "." + path
	}
	return document.Nearest(f.positions, at).Line
}

// Request returns the request that the daemon would make for the claim.
func (c TestClaim) Request() Request {
	r := Request{
		Namespace:       c.Namespace,
		NamespaceLabels: NamespaceLabels(c.Namespace, c.NamespaceLabels),
		Claim:           c.Name,
		StorageClass:    c.StorageClass,
		Parameters:      c.Parameters,
		Topologies:      c.AllowedTopologies,
		Bytes:           c.Size.Bytes,
		VolumeMode:      c.VolumeMode,
	}
	if c.Limit != nil {
		r.LimitBytes = c.Limit.Bytes
	}
	if c.Provisioner == CSIDriver {
		r.Driver = c.Provisioner
	}
	if c.NodeLabels != nil {
		r.Node = &Node{Name: "of the test", Labels: c.NodeLabels}
	}
	if s := c.Source; s != nil {
		r.Source = &Source{Name: "the source", IsSnapshot: s.Kind == sourceSnapshot, Tenant: s.Tenant, Backend: s.Backend, SizeGiB: roundUpGiB(c.Size.Bytes), VolumeMode: s.VolumeMode, Mode: s.Mode, FilesystemKnown: s.FilesystemKnown, Encrypted: s.Encrypted}
		if s.Size != nil {
			r.Source.SizeGiB = roundUpGiB(s.Size.Bytes)
		}
	}
	if of := c.Populates; of != nil {
		r.Populated = &Populated{Namespace: of.Namespace, NamespaceLabels: NamespaceLabels(of.Namespace, of.NamespaceLabels), Claim: of.Name}
	}
	if v := c.Import; v != nil {
		r.Import = &Existing{Wanted: v.Name, Name: v.Name, Type: v.Type, Metadata: v.Metadata}
	}
	if c.Attributes != nil {
		r.Attributes = &AttributesClass{Name: "of the test", Driver: CSIDriver, Parameters: c.Attributes}
	}
	return r
}

// namespaceNameLabel is set by the API server on every namespace, regardless of its
// author's labels (k8s.io/api/core/v1, LabelMetadataName).
const namespaceNameLabel = "kubernetes.io/metadata.name"

// NamespaceLabels returns the labels of a namespace in a cluster whose author sets the
// given ones.
func NamespaceLabels(name string, given map[string]string) map[string]string {
	all := map[string]string{}
	maps.Copy(all, given)
	all[namespaceNameLabel] = name
	return all
}

// CheckLabels returns a message about the first label that Kubernetes would reject, or
// "".
func CheckLabels(given map[string]string) string {
	d := newDocument("")
	validateLabels(d, "", given)
	if len(d.Errors()) == 0 {
		return ""
	}
	return d.Errors()[0].Message
}

func validateLabels(d *document.Document, path string, given map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(given)) {
		selectors.CheckKey(d, document.Child(path, key), key)
		selectors.CheckValue(d, document.Child(path, key), given[key])
	}
}

// reasons are those that a test may expect.
var reasons = []string{
	string(InvalidClaim), string(NoMatchingTenant), string(AmbiguousTenant), string(NoMatchingClass),
	string(ParameterNotAllowed), string(ParameterInvalid), string(VolumeTooLarge), string(VolumeTooSmall),
	string(ClaimLimitTooSmall), string(BackendsSuspended), string(UnsupportedTopology), string(NodeNotReached), string(QuotaExceeded),
	string(NoPopulatedClaim), string(SourceNotAllowed), string(SourceOnOtherBackend), string(OtherTenant), string(BackendNotGranted),
	string(UnsupportedMode), string(UnsupportedVolumeAttributesClass), string(VolumeAttributesClassNotFound), string(ImportNotGranted), string(BackupNotGranted), string(GroupNotGranted), string(ImportedSnapshotNotFound), string(ImportedVolumeNotFound),
}

func (f *TestFile) validate(d *document.Document) {
	validateKind(d, f.APIVersion, f.Kind, TestKind)
	if len(f.Tests) == 0 {
		d.Errorf("tests", "is missing or empty; list claims and snapshots with what is expected of them")
	}
	for i := range f.Tests {
		t, path := &f.Tests[i], document.Element("tests", i)
		if t.Name == "" {
			d.Errorf(document.Child(path, "name"), "is missing; say in a few words what the test shows")
		}
		t.validate(d, path)
		for j, used := range t.Used {
			used.validate(d, document.Element(document.Child(path, "used"), j))
		}
		t.Expect.validate(d, document.Child(path, "expect"))
	}
	validateUnique(d, "tests", len(f.Tests), func(i int) string { return f.Tests[i].Name }, "results name tests by it")
}

func (t TestCase) validate(d *document.Document, path string) {
	switch {
	case t.Claim != nil && t.Snapshot != nil:
		d.Errorf(path, "claim and snapshot are both given; a test is about one of them")
	case t.Snapshot != nil:
		t.Snapshot.validate(d, document.Child(path, "snapshot"))
		if at := document.Child(document.Child(path, "expect"), "volume"); d.Has(at) {
			d.Errorf(at, "a snapshot makes no volume; remove it")
		}
	case t.Claim != nil:
		t.Claim.validate(d, document.Child(path, "claim"))
	default:
		d.Errorf(path, "has neither claim nor snapshot; give what the policy should decide about")
	}
}

func (c TestClaim) validate(d *document.Document, path string) {
	require(d, path, "namespace", "name the namespace of the claim")
	require(d, path, "storageClass", "name the StorageClass of the claim")
	require(d, path, "size", "give the size that the claim asks for, such as 10Gi")
	validateLabels(d, document.Child(path, "namespaceLabels"), c.NamespaceLabels)
	validateLabels(d, document.Child(path, "nodeLabels"), c.NodeLabels)
	for i, topology := range c.AllowedTopologies {
		validateTopology(d, document.Element(document.Child(path, "allowedTopologies"), i), topology)
	}
	if at := document.Child(path, "name"); d.Has(at) && !names.StorageClass().Valid(c.Name) {
		d.Errorf(at, "%q cannot be the name of a claim", c.Name)
	}
	if of := document.Child(path, "populates"); c.Populates != nil {
		require(d, of, "namespace", "name the namespace of the claim that the populator fills")
		validateLabels(d, document.Child(of, "namespaceLabels"), c.Populates.NamespaceLabels)
	}
	validateMode(d, document.Child(path, "volumeMode"), c.VolumeMode)
	if at := document.Child(path, "provisioner"); d.Has(at) && c.Provisioner != CSIDriver {
		d.Errorf(at, "%q is not the CSI driver %s; remove it if the StorageClass names the program itself", c.Provisioner, CSIDriver)
	}
	if source := document.Child(path, "source"); c.Source != nil {
		require(d, source, "tenant", "name the tenant that the source was made for")
		require(d, source, "backend", "name the backend that has the source")
		validateWord(d, document.Child(source, "kind"), "kind of source", c.Source.Kind, []string{sourceClaim, sourceSnapshot}, "the kinds are")
		validateMode(d, document.Child(source, "volumeMode"), c.Source.VolumeMode)
		validateModeOf(d, document.Child(source, "mode"), c.Source.Mode)
	}
}

// require reports that a key is missing, with what to do about it.
func require(d *document.Document, path, key, remedy string) {
	if at := document.Child(path, key); !d.Has(at) {
		d.Errorf(at, "is missing; %s", remedy)
	}
}

func validateMode(d *document.Document, at string, mode VolumeMode) {
	validateWord(d, at, "volume mode", mode, []string{string(Filesystem), string(Block)}, "the modes are")
}

func (u ScopeUsage) validate(d *document.Document, path string) {
	var given []string
	for _, key := range []string{"tenant", "rule", "backend"} {
		if d.Has(document.Child(path, key)) {
			given = append(given, key)
		}
	}
	if len(given) != 1 {
		list := "none"
		if len(given) > 0 {
			list = strings.Join(given, " and ")
		}
		d.Errorf(path, "exactly one of tenant, rule, backend must be given, not %s", list)
	}
	for _, amount := range (Quota{}).Limits(u.usage()) {
		if amount.Used < 0 {
			d.Errorf(document.Child(path, amount.Key), "must not be negative")
		}
	}
}

func (e TestExpectation) validate(d *document.Document, path string) {
	given := false
	for _, key := range []string{"tenant", "rule", "backends", "volume", "denied", "message"} {
		given = given || d.Has(document.Child(path, key))
	}
	switch {
	case !given:
		d.Errorf(path, "expects nothing; give at least tenant, rule, backends or volume, or denied with a reason")
	case e.Denied == "" && !d.Has(document.Child(path, "denied")) && e.Message != "":
		d.Errorf(document.Child(path, "message"), "is allowed only with denied; add denied with a reason, or remove it")
	}
	if at := document.Child(path, "denied"); d.Has(at) {
		validateWord(d, at, "reason", e.Denied, reasons, "the reasons are")
		for _, key := range []string{"backends", "volume"} {
			if at := document.Child(path, key); d.Has(at) {
				d.Errorf(at, "%s cannot be combined with denied: a denied claim has none; remove one of them", key)
			}
		}
	}
	if at := document.Child(path, "backends"); d.Has(at) && len(e.Backends) == 0 {
		d.Errorf(at, "the list is empty; name backends, or write denied: %s if none is left", BackendsSuspended)
	}
	volume := document.Child(path, "volume")
	validateModeOf(d, document.Child(volume, "mode"), e.Volume.Mode)
	if size := e.Volume.SizeGiB; size != nil && *size < 1 {
		d.Errorf(document.Child(volume, "sizeGiB"), "must be at least 1, the smallest volume that Cinder creates")
	}
	if at := document.Child(volume, "fsType"); d.Has(at) && !slices.Contains(FileSystems(), e.Volume.FSType) {
		d.Errorf(at, "%q is not a filesystem that can be created on a volume%s", e.Volume.FSType, document.DidYouMean(e.Volume.FSType, FileSystems(), "use one of"))
	}
}

// Usages adds up the listed usages. The error is an ErrorList about scopes that are not
// in the policy; its paths begin with used.
func (p *Policy) Usages(listed []ScopeUsage) (Usages, error) {
	usages := Usages{}
	var unknown ErrorList
	var tenants, rules, backends []string
	for _, t := range p.Tenants {
		tenants = append(tenants, t.Name)
	}
	for c := range p.Rules() {
		rules = append(rules, c.path)
	}
	for _, b := range p.Backends {
		backends = append(backends, b.Name)
	}
	for i, l := range listed {
		key, kind, name, known := "tenant", TenantScope, l.Tenant, tenants
		switch {
		case l.Rule != "":
			key, kind, name, known = "rule", ClassScope, l.Rule, rules
		case l.Backend != "":
			key, kind, name, known = "backend", BackendScope, l.Backend, backends
		}
		if !slices.Contains(known, name) {
			unknown = append(unknown, Error{Path: document.Child(document.Element("used", i), key),
				Message: fmt.Sprintf("the policy has no %s %q%s", key, name, document.DidYouMean(name, known, "the "+key+"s are"))})
			continue
		}
		usages.Add(QuotaScope{Kind: kind, Name: name}, l.usage())
	}
	if len(unknown) > 0 {
		return nil, unknown
	}
	return usages, nil
}

// TestSnapshot describes a SnapshotRequest.
type TestSnapshot struct {
	Namespace       string            `json:"namespace"`
	NamespaceLabels map[string]string `json:"namespaceLabels"`
	// StorageClass and Backend are the volume's.
	StorageClass string `json:"storageClass"`
	Backend      string `json:"backend"`
	// Tenant is the one that the volume was created for; empty means the namespace's.
	Tenant string `json:"tenant"`
	// Size is the volume's. It matters only for snapshotGigabytes.
	Size Size `json:"size"`
	// Parameters are the VolumeSnapshotClass's, or the VolumeGroupSnapshotClass's.
	Parameters map[string]string `json:"parameters"`
	// Group means that the snapshot is one of a VolumeGroupSnapshot.
	Group bool `json:"group"`
	// Import is the Cinder snapshot that the VolumeSnapshot requests; nil means a new
	// one. StorageClass is then the one that the VolumeSnapshotContent names.
	Import *TestImport `json:"import"`
}

// GiB returns the size of the snapshot.
func (s TestSnapshot) GiB() int64 { return roundUpGiB(s.Size.Bytes) }

// Request returns the request that the daemon would make for the snapshot under the
// policy.
func (s TestSnapshot) Request(p *Policy) SnapshotRequest {
	r := SnapshotRequest{
		Namespace:       s.Namespace,
		NamespaceLabels: NamespaceLabels(s.Namespace, s.NamespaceLabels),
		StorageClass:    s.StorageClass,
		Backend:         s.Backend,
		Tenant:          s.Tenant,
		Parameters:      s.Parameters,
		Group:           s.Group,
	}
	if i := s.Import; i != nil {
		r.Import = &Existing{Wanted: i.Name, Name: i.Name, Type: i.Type, Metadata: i.Metadata}
	}
	if r.Tenant == "" {
		d := &decider{policy: p, request: Request{Namespace: r.Namespace, NamespaceLabels: r.NamespaceLabels}}
		if tenant, _, denial := d.findTenant(); denial == nil {
			r.Tenant = tenant.Name
		}
	}
	return r
}

func (s TestSnapshot) validate(d *document.Document, path string) {
	require(d, path, "namespace", "name the namespace of the VolumeSnapshot")
	require(d, path, "storageClass", "name the StorageClass of the volume")
	require(d, path, "backend", "name the backend that has the volume")
	validateLabels(d, document.Child(path, "namespaceLabels"), s.NamespaceLabels)
}
