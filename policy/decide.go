package policy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/policy/document"
	"github.com/standalone-cinder/standalone-cinder/policy/names"
)

// VolumeMode is how a pod sees a volume, as in a claim's spec.volumeMode.
type VolumeMode string

// The volume modes of Kubernetes; an empty mode means Filesystem.
const (
	Filesystem VolumeMode = "Filesystem"
	Block      VolumeMode = "Block"
)

// Request describes a claim to Decide.
type Request struct {
	Namespace       string
	NamespaceLabels map[string]string
	// Claim is the claim's name, used only by PickSpread.
	Claim        string
	StorageClass string
	// Parameters are the StorageClass's parameters.
	Parameters map[string]string
	// Bytes is the claim's resources.requests.storage, LimitBytes its
	// resources.limits.storage, or 0 if it has none. The function Bytes
	// converts quantities to such numbers.
	Bytes      int64
	LimitBytes int64
	VolumeMode VolumeMode
	// Topologies are the StorageClass's allowedTopologies.
	Topologies []Topology
	// Node is nil if no node was selected for the claim's pod, or if the node's labels
	// are unknown.
	Node *Node
	// Driver is the CSI driver that the StorageClass names as its provisioner; empty if
	// it names the program itself. Only mode csi serves it.
	Driver string
	// Source is nil for an empty volume.
	Source *Source
	// Import is the Cinder volume that the claim requests; nil for a new one.
	Import *Existing
	// Populated is the claim on whose behalf a claim in a populator's namespace asks; nil
	// if unknown. It has no meaning in other namespaces.
	Populated *Populated
	// Attributes is the VolumeAttributesClass that the claim names; nil for none.
	Attributes *AttributesClass
}

// Decision is the answer for one claim.
type Decision struct {
	// Denial is nil when the claim is granted.
	Denial *Denial `json:"denial,omitempty"`
	// Tenant and Rule (a path such as tenants[0].classes[1]) are those that apply to the
	// claim. A denial has them if they were found before it.
	Tenant string `json:"tenant,omitempty"`
	Rule   string `json:"rule,omitempty"`
	// Backends are the candidates in the order in which they are tried, without those
	// that are suspended or cannot take a volume of this size or for these nodes.
	Backends []string         `json:"backends,omitempty"`
	Volume   VolumeProperties `json:"volume"`
	// Placements are the zones on every backend of the rule that maps them, including
	// backends that are not candidates: a volume may already exist there.
	Placements []Placement `json:"placements,omitempty"`
	// CSI are the backends of the rule where the volume is one for the CSI driver,
	// including those that are not candidates.
	CSI []string `json:"csi,omitempty"`
	// Import is the rule's filter for existing volumes, for claims that request one.
	Import *ImportFilter `json:"import,omitempty"`
	// Backup is how a granted VolumeSnapshot makes a backup; empty for a snapshot.
	Backup Backup `json:"backup,omitempty"`
	// Consistency is how the snapshots of a granted VolumeGroupSnapshot belong together.
	Consistency Consistency `json:"consistency,omitempty"`
	// GroupType is the group type of Cinder for consistency array; otherwise empty.
	GroupType string `json:"groupType,omitempty"`
	// Quotas are what the volume counts against: the tenant, the class rule and each of
	// Backends, in this order, including those without limits.
	Quotas []QuotaScope `json:"quotas,omitempty"`
	// Trace lists the tenants that match the namespace, and every rule and backend
	// that was considered, in order. That of Explain lists every tenant.
	Trace []TraceStep `json:"trace"`
}

// VolumeProperties are the properties of the Cinder volume to create.
type VolumeProperties struct {
	SizeGiB          int64  `json:"sizeGiB"`
	Type             string `json:"type,omitempty"`
	AvailabilityZone string `json:"availabilityZone,omitempty"`
	// FSType is empty for block volumes.
	FSType   string            `json:"fsType,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"`
	// Mode is empty for ModeNative. VolumeOn sets it: it depends on the backend.
	Mode Mode `json:"mode,omitempty"`
	// Encrypt is nil unless nodes encrypt the volume.
	Encrypt *Encrypt `json:"encrypt,omitempty"`
}

// Reason is the reason for a denial, a stable CamelCase word.
type Reason string

// The reasons of a Denial.
const (
	// InvalidClaim: the claim itself is invalid.
	InvalidClaim Reason = "InvalidClaim"
	// NoMatchingTenant: the namespace belongs to no tenant.
	NoMatchingTenant Reason = "NoMatchingTenant"
	// AmbiguousTenant: several tenants match the namespace equally well.
	AmbiguousTenant Reason = "AmbiguousTenant"
	// NoMatchingClass: the tenant has no rule for the StorageClass.
	NoMatchingClass Reason = "NoMatchingClass"
	// ParameterNotAllowed: a StorageClass parameter is unknown, or would
	// override what the rule sets.
	ParameterNotAllowed Reason = "ParameterNotAllowed"
	// ParameterInvalid: a StorageClass parameter has an unusable value.
	ParameterInvalid Reason = "ParameterInvalid"
	// VolumeTooLarge and VolumeTooSmall: the size is outside volumeSize, or beyond
	// Cinder's range.
	VolumeTooLarge Reason = "VolumeTooLarge"
	VolumeTooSmall Reason = "VolumeTooSmall"
	// ClaimLimitTooSmall: rounding up to whole GiB would exceed the claim's
	// own limit.
	ClaimLimitTooSmall Reason = "ClaimLimitTooSmall"
	// BackendsSuspended: every backend of the rule is suspended.
	BackendsSuspended Reason = "BackendsSuspended"
	// UnsupportedTopology: no backend's volumes stay within the StorageClass's
	// allowedTopologies.
	UnsupportedTopology Reason = "UnsupportedTopology"
	// NodeNotReached: no backend exports volumes to the selected node of the claim's pod.
	NodeNotReached Reason = "NodeNotReached"
	// QuotaExceeded: a quota has no room. Only QuotaScope.Check returns it.
	QuotaExceeded Reason = "QuotaExceeded"
)

// Denial explains why a claim is denied.
type Denial struct {
	Reason Reason `json:"reason"`
	// Path is the deciding field of the policy, or the rule under which it was decided;
	// empty for claims that no policy could grant.
	Path string `json:"path,omitempty"`
	// Message is one sentence with the numbers and the path.
	Message string `json:"message"`
}

// TraceStep is one thing that Decide considered.
type TraceStep struct {
	// Path is the tenant, rule, backend or populator: tenants[0],
	// tenants[0].classes[1], backends[2], populators[0].
	Path string `json:"path"`
	// Name is the tenant's or backend's name, the rule's StorageClasses, or the
	// populator's namespace.
	Name string `json:"name"`
	// Matched reports whether it applied; Detail explains how, or why not.
	Matched bool   `json:"matched"`
	Detail  string `json:"detail"`
	// Outranked reports that a tenant matches too, but another one matches as
	// well or better.
	Outranked bool `json:"outranked,omitempty"`
}

// Allowed reports whether the claim is granted.
func (d Decision) Allowed() bool { return d.Denial == nil }

// Decide decides about one claim. It depends only on the policy and the request, and
// never fails: an invalid request is denied. It is as fast with many tenants as with few.
func (p *Policy) Decide(r Request) Decision {
	d := &decider{policy: p, request: r}
	d.decision.Denial = d.run()
	return d.decision
}

// Explain decides the same, with a trace that also explains why the namespace belongs to
// none of the other tenants.
func (p *Policy) Explain(r Request) Decision {
	d := &decider{policy: p, request: r, explains: true}
	d.decision.Denial = d.run()
	return d.decision
}

// decider is one run of Decide.
type decider struct {
	policy  *Policy
	request Request
	// explains adds the tenants that do not match to the trace.
	explains bool
	decision Decision
}

func (d *decider) run() *Denial {
	if denial := d.checkClaim(); denial != nil {
		return denial
	}
	tenant, index, denial := d.findTenant()
	if denial != nil {
		return denial
	}
	d.decision.Tenant = tenant.Name
	class, denial := d.findClass(tenant, document.Element("tenants", index))
	if denial != nil {
		return denial
	}
	d.decision.Rule, d.decision.CSI = class.path, d.csiOf(class)
	if denial := d.checkImport(class); denial != nil {
		return denial
	}
	volume, denial := d.properties(tenant, class)
	if denial != nil {
		return denial
	}
	if denial := d.attributes(class, &volume); denial != nil {
		return denial
	}
	if denial := class.size.check(volume.SizeGiB); denial != nil {
		return denial
	}
	if denial := d.checkSource(tenant, class, volume); denial != nil {
		return denial
	}
	candidates, scopes, denial := d.findBackends(class, volume)
	if denial != nil {
		return denial
	}
	d.decision.Backends = candidates
	d.decision.Volume = volume
	d.decision.Quotas = append([]QuotaScope{tenant.scope, class.scope}, scopes...)
	return nil
}

func (d *decider) trace(path, name string, matched bool, detail string) {
	d.decision.Trace = append(d.decision.Trace, TraceStep{Path: path, Name: name, Matched: matched, Detail: detail})
}

// checkClaim denies requests that Kubernetes or Cinder would also reject. They come from
// the command line, or have a size that only Kubernetes can express.
func (d *decider) checkClaim() *Denial {
	r := d.request
	invalid := func(format string, args ...any) *Denial {
		return &Denial{Reason: InvalidClaim, Message: fmt.Sprintf(format, args...)}
	}
	switch {
	case !names.Namespace().Valid(r.Namespace):
		return invalid("%q cannot be the name of a namespace", r.Namespace)
	case r.Claim != "" && !names.StorageClass().Valid(r.Claim):
		return invalid("%q cannot be the name of a claim", r.Claim)
	case !names.StorageClass().Valid(r.StorageClass):
		return invalid("%q cannot be the name of a StorageClass", r.StorageClass)
	case r.VolumeMode != "" && r.VolumeMode != Filesystem && r.VolumeMode != Block:
		return invalid("volume mode %q is neither Filesystem nor Block", r.VolumeMode)
	case r.Bytes <= 0:
		return invalid("the claim asks for %d bytes; it must ask for more than 0", r.Bytes)
	}
	size := roundUpGiB(r.Bytes)
	if size > maxGiB {
		return &Denial{Reason: VolumeTooLarge, Message: fmt.Sprintf(
			"the volume would have %d GiB, more than the %d GiB that Cinder can express", size, maxGiB)}
	}
	if r.LimitBytes < 0 {
		return invalid("the claim's limit of %d bytes is negative", r.LimitBytes)
	}
	if r.LimitBytes > 0 && size*gib > r.LimitBytes {
		return &Denial{Reason: ClaimLimitTooSmall, Message: fmt.Sprintf(
			"Cinder creates volumes in whole GiB, and the %d GiB that hold the requested %d bytes are more than the claim's limit of %d bytes",
			size, r.Bytes, r.LimitBytes)}
	}
	return nil
}

// findTenant finds the one tenant that matches the namespace best.
func (d *decider) findTenant() (*Tenant, int, *Denial) {
	if denial := d.onBehalf(); denial != nil {
		return nil, 0, denial
	}
	considered := d.policy.index.candidates(d.request.Namespace, d.request.NamespaceLabels)
	if d.explains {
		considered = make([]int, len(d.policy.Tenants))
		for i := range considered {
			considered[i] = i
		}
	}
	best := noMatch
	var winners []int
	kinds := make([]matchKind, len(considered))
	details := make([]string, len(considered))
	for k, i := range considered {
		kinds[k], details[k] = d.policy.Tenants[i].matcher.match(d.request.Namespace, d.request.NamespaceLabels)
		switch {
		case kinds[k] == noMatch || kinds[k] < best:
		case kinds[k] > best:
			best, winners = kinds[k], []int{i}
		default:
			winners = append(winners, i)
		}
	}
	d.traceTenants(considered, kinds, details, winners)
	switch len(winners) {
	case 0:
		return nil, 0, &Denial{Reason: NoMatchingTenant, Path: "tenants", Message: fmt.Sprintf(
			"namespace %s belongs to no tenant of the policy: none lists its name, has a pattern for it or selects its labels", d.request.Namespace)}
	case 1:
		return &d.policy.Tenants[winners[0]], winners[0], nil
	}
	return nil, 0, &Denial{Reason: AmbiguousTenant, Path: document.Element("tenants", winners[0]), Message: fmt.Sprintf(
		"namespace %s matches several tenants equally well: %s; list its name in one of them, or exclude it from the selectors of the others", d.request.Namespace, d.namesOf(winners))}
}

// traceTenants records which tenants match, and why each other one does not or is
// outranked.
func (d *decider) traceTenants(considered []int, kinds []matchKind, details []string, winners []int) {
	best := noMatch
	if len(kinds) > 0 {
		best = slices.Max(kinds)
	}
	for k, i := range considered {
		kind, detail := kinds[k], details[k]
		matched := kind == best && kind != noMatch && len(winners) == 1
		switch {
		case matched:
		case kind == noMatch && !d.explains:
			continue
		case kind == noMatch:
			detail = d.policy.Tenants[i].otherwise()
		case kind < best:
			detail += "; a stronger match wins: " + d.namesOf(winners)
		default:
			detail += "; several tenants match it equally well: " + d.namesOf(winners)
		}
		d.decision.Trace = append(d.decision.Trace, TraceStep{
			Path: document.Element("tenants", i), Name: d.policy.Tenants[i].Name,
			Matched: matched, Outranked: !matched && kind != noMatch, Detail: detail,
		})
	}
}

func (d *decider) namesOf(tenants []int) string {
	var names []string
	for _, i := range tenants {
		names = append(names, fmt.Sprintf("%s (%s)", d.policy.Tenants[i].Name, document.Element("tenants", i)))
	}
	return strings.Join(names, ", ")
}

// takes reports whether the rule applies to a StorageClass.
func (c *Class) takes(storageClass string) bool {
	return slices.ContainsFunc(c.StorageClasses, func(entry string) bool { return names.Matches(entry, storageClass) })
}

// findClass finds the first rule for the StorageClass.
func (d *decider) findClass(t *Tenant, path string) (*Class, *Denial) {
	for i := range t.Classes {
		c := &t.Classes[i]
		if c.takes(d.request.StorageClass) {
			d.trace(c.path, c.entries, true, "storageClasses include it")
			return c, nil
		}
		d.trace(c.path, c.entries, false, fmt.Sprintf("storageClasses do not include %q", d.request.StorageClass))
	}
	return nil, &Denial{Reason: NoMatchingClass, Path: path + ".classes", Message: fmt.Sprintf(
		"tenant %s has no rule for StorageClass %s (%s.classes)", t.Name, d.request.StorageClass, path)}
}

// candidate is a backend that may take the volume.
type candidate struct {
	name  string
	scope QuotaScope
	// placement is the index of its zones in the decision, or -1.
	placement int
	step      TraceStep
}

// ordered sorts a rule's candidates, and the zones on each, into the order in which they
// are tried, and records it in their steps.
func (d *decider) ordered(c *Class, candidates []candidate) []candidate {
	turn := uint64(0)
	if c.Pick == PickSpread && len(candidates) > 0 {
		turn = turnOf(d.request)
	}
	all := rotate(candidates, turn)
	for k := range all {
		all[k].step.Detail = "it may take the volume"
		if all[k].placement < 0 {
			continue
		}
		placement := &d.decision.Placements[all[k].placement]
		// The zones take turns once every backend has had its turn: otherwise two
		// backends with two zones each would use only one zone of each.
		placement.Zones = rotate(placement.Zones, turn/uint64(len(all)))
		if placement.AtSource {
			all[k].step.Detail += ", in the availability zone of its source: " + strings.Join(placement.Names(), " or ")
		} else {
			all[k].step.Detail += ", in availability zone " + placement.Zones[0].Name
		}
	}
	return all
}

// findBackends leaves out the rule's backends that can take no new volume, none of this
// size, or none for the claim's nodes.
func (d *decider) findBackends(c *Class, volume VolumeProperties) (backends []string, scopes []QuotaScope, denial *Denial) {
	var outside *Denial
	var seen []string
	var candidates []candidate
	var steps []int
	hasSource := false
	for _, name := range c.Backends {
		i := d.policy.backendIndex(name)
		// Parse rejects unknown names, but only warns about repeated ones.
		if i < 0 || slices.Contains(seen, name) {
			continue
		}
		seen = append(seen, name)
		b, path := &d.policy.Backends[i], document.Element("backends", i)
		if elsewhere := d.withoutSource(name); elsewhere != nil {
			d.trace(path, name, false, elsewhere.Message)
			continue
		}
		hasSource = true
		zones, unreachable := d.place(b, path, volume.AvailabilityZone)
		placement := -1
		if len(b.Zones) > 0 {
			placement = len(d.decision.Placements)
			d.decision.Placements = append(d.decision.Placements, Placement{Backend: name, Zones: zones, AtSource: d.request.Source != nil && volume.AvailabilityZone == ""})
		}
		if b.Suspended {
			d.trace(path, name, false, "it is suspended")
			continue
		}
		refused := (sizeLimits{}).narrow(b.VolumeSize, path+".volumeSize").check(volume.SizeGiB)
		if refused == nil {
			refused = unreachable
		}
		if refused == nil {
			refused = d.checkMode(c, i, volume)
		}
		if refused != nil {
			d.trace(path, name, false, refused.Message)
			if outside == nil {
				outside = refused
			}
			continue
		}
		steps = append(steps, len(d.decision.Trace))
		d.trace(path, name, true, "")
		candidates = append(candidates, candidate{name, b.scope, placement, d.decision.Trace[len(d.decision.Trace)-1]})
	}
	for k, chosen := range d.ordered(c, candidates) {
		d.decision.Trace[steps[k]] = chosen.step
		backends, scopes = append(backends, chosen.name), append(scopes, chosen.scope)
	}
	switch {
	case len(backends) > 0:
		return backends, scopes, nil
	case !hasSource:
		return nil, nil, &Denial{Reason: SourceOnOtherBackend, Path: c.path + ".backends", Message: fmt.Sprintf(
			"%s is on backend %s, which %s does not use (%s)", d.request.Source.Name, d.request.Source.Backend, c.path, strings.Join(seen, ", "))}
	case outside != nil:
		return nil, nil, outside
	}
	if d.request.Source != nil {
		return nil, nil, &Denial{Reason: BackendsSuspended, Path: c.path + ".backends", Message: fmt.Sprintf(
			"%s is on backend %s, which is suspended", d.request.Source.Name, d.request.Source.Backend)}
	}
	return nil, nil, &Denial{Reason: BackendsSuspended, Path: c.path + ".backends", Message: fmt.Sprintf(
		"every backend of %s is suspended: %s", c.path, strings.Join(seen, ", "))}
}
