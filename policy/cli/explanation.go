package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/standalone-cinder/standalone-cinder/policy"
)

// explanation is the output of policy explain.
type explanation struct {
	Policy policyIdentity     `json:"policy"`
	Claims []claimExplanation `json:"claims"`
	// Ignored names objects of manifests that do not concern a policy.
	Ignored []string `json:"ignored,omitempty"`

	// assumed means that no usage was given.
	assumed bool
}

type policyIdentity struct {
	Source   string `json:"source"`
	Revision string `json:"revision"`
}

// claimExplanation is the decision about one claim, and why.
type claimExplanation struct {
	// Source and Name are from a manifest.
	Source          string            `json:"source,omitempty"`
	Name            string            `json:"name,omitempty"`
	Namespace       string            `json:"namespace"`
	NamespaceLabels map[string]string `json:"namespaceLabels"`
	StorageClass    string            `json:"storageClass"`
	Parameters      map[string]string `json:"parameters,omitempty"`
	// Size and Limit are as given; Bytes is Size in bytes.
	Size        string            `json:"size"`
	Bytes       int64             `json:"bytes"`
	Limit       string            `json:"limit,omitempty"`
	VolumeMode  policy.VolumeMode `json:"volumeMode"`
	AccessModes []string          `json:"accessModes,omitempty"`
	// Attributes are the parameters of the VolumeAttributesClass that the claim names.
	Attributes map[string]string `json:"attributes,omitempty"`

	Verdict verdict `json:"verdict"`
	// Granted means that the verdict is granted.
	Granted bool `json:"granted"`
	// Refusal is why the provisioner refuses the claim regardless of the policy, Denial
	// why the policy denies it.
	Refusal *policy.Denial `json:"refusal,omitempty"`
	Denial  *placedDenial  `json:"denial,omitempty"`
	// Tenant and Rule are those that apply to the claim, even if it is denied.
	Tenant string `json:"tenant,omitempty"`
	Rule   string `json:"rule,omitempty"`

	Tenants []step `json:"tenants"`
	Rules   []step `json:"rules"`
	// Volume is set for claims that the rule grants, regardless of room.
	Volume   *volume       `json:"volume,omitempty"`
	Backends []backendStep `json:"backends"`
	// Backend is the first with room: the one that takes the volume if it is healthy and
	// the claim is granted.
	Backend string             `json:"backend,omitempty"`
	Quotas  []policy.ScopeRoom `json:"quotas"`
	Notes   []string           `json:"notes"`
}

// verdict is what happens to a claim.
type verdict string

const (
	// granted: the claim gets a volume.
	granted verdict = "granted"
	// denied: the policy denies the claim.
	denied verdict = "denied"
	// refused: the provisioner refuses the claim before it consults the policy, which may
	// grant it.
	refused verdict = "refused"
	// left: the provisioner leaves the claim to a volume populator; the policy decides
	// about the populator's own claim.
	left verdict = "left"
)

func verdictOf(c claim, room policy.Room) verdict {
	switch {
	case c.refusal != nil && c.refusal.Reason == policy.AwaitsPopulator:
		return left
	case c.refusal != nil:
		return refused
	case room.Denial != nil:
		return denied
	}
	return granted
}

// refusedClaims counts the claims that the provisioner refuses.
func (e explanation) refusedClaims() int {
	n := 0
	for _, c := range e.Claims {
		if c.Verdict == refused {
			n++
		}
	}
	return n
}

// placedDenial is a denial with the line of its path, and its file if there are several.
type placedDenial struct {
	policy.Denial
	Line int    `json:"line,omitempty"`
	File string `json:"file,omitempty"`
}

// schedulesOf describes the schedules of a rule.
func schedulesOf(p *policy.Policy, rule string) (all []string) {
	for _, s := range ruleOf(p, rule).Protect {
		text := fmt.Sprintf("%s, every %s, %d kept", s.Name, s.Period(), s.Keep)
		if s.IsOfGroups() {
			text += ", of all claims with the same label protect-group"
		}
		if s.OnRequest {
			text += ", if a label of the claim requests it"
		}
		all = append(all, text)
	}
	return all
}

// ruleOf returns the rule with a path; a rule without anything if there is none.
func ruleOf(p *policy.Policy, path string) policy.Class {
	for class := range p.Rules() {
		if class.Path() == path {
			return *class
		}
	}
	return policy.Class{}
}

// volume is the volume that would be created, and the properties that the rule fixes.
type volume struct {
	policy.VolumeProperties
	// Fixed names the properties that the rule sets and a StorageClass may not change.
	Fixed []string `json:"fixed"`
	// Schedules are those of the rule's snapshots, in words.
	Schedules []string `json:"schedules,omitempty"`
}

// outcome is the result for a tenant, rule or backend.
type outcome string

const (
	// chosen: the tenant or rule applies.
	chosen outcome = "chosen"
	// outranked: the tenant matches, but another one matches as strongly or more
	// strongly.
	outranked outcome = "outranked"
	// noMatch: it does not apply to this claim.
	noMatch outcome = "noMatch"
	// notReached: an earlier rule decided.
	notReached outcome = "notReached"
	// candidate: the backend may take the volume, in its turn.
	candidate outcome = "candidate"
	// leftOut: the backend is suspended, or does not take volumes of this size.
	leftOut outcome = "leftOut"
	// full: the backend's limits leave no room.
	full outcome = "full"
)

// step is a tenant, rule or backend with its outcome.
type step struct {
	Path    string  `json:"path"`
	Line    int     `json:"line"`
	File    string  `json:"file,omitempty"`
	Name    string  `json:"name"`
	Outcome outcome `json:"outcome"`
	Detail  string  `json:"detail"`
}

// backendStep is a backend with its connector, which describes the nodes.
type backendStep struct {
	step
	Connector policy.Connector `json:"connector"`
	// Mode is csi for a backend whose volumes the CSI driver attaches; empty for
	// native ones.
	Mode policy.Mode `json:"mode,omitempty"`
	// Fencing and MaxVolumesPerNode are those of a backend in mode csi.
	Fencing           policy.Fencing `json:"fencing,omitempty"`
	MaxVolumesPerNode int            `json:"maxVolumesPerNode,omitempty"`
	// Zones are where the volume may be, best first, with their nodes.
	Zones []policy.Zone `json:"zones,omitempty"`
}

// explain asks the policy about each claim. A granted claim counts for those after it.
func explain(p *policy.Policy, claims []claim, used policy.Usages) explanation {
	e := explanation{Policy: policyIdentity{p.Source, p.Revision()}, Claims: []claimExplanation{}}
	for _, c := range claims {
		decision := decide(p, &c)
		room := decision.Room(used.Of)
		e.Claims = append(e.Claims, explainClaim(p, c, decision, room))
		if verdictOf(c, room) != granted {
			continue
		}
		for _, scope := range decision.Quotas {
			if scope.Kind != policy.BackendScope || scope.Name == room.Backends[0] {
				used.Add(scope, decision.Volume.Usage())
			}
		}
	}
	return e
}

// decide asks the policy about a claim. Only Cinder knows an existing volume's size, so
// the claim's size is used instead.
func decide(p *policy.Policy, c *claim) policy.Decision {
	if c.existing != "" {
		granted := p.ExplainImport(c.request)
		if granted.Denial != nil {
			return granted
		}
		c.notes = append(c.notes, fmt.Sprintf("the claim asks for the volume %q at Cinder, and gets it if it is one %s; its size counts in place of the claim's", c.existing, granted.Import))
	}
	return p.Explain(c.request)
}

func explainClaim(p *policy.Policy, c claim, decision policy.Decision, room policy.Room) claimExplanation {
	e := claimExplanation{
		Source: c.source, Name: c.name,
		Namespace: c.request.Namespace, NamespaceLabels: c.request.NamespaceLabels,
		StorageClass: c.request.StorageClass, Parameters: c.request.Parameters,
		Size: c.size, Bytes: c.request.Bytes, Limit: c.limit,
		VolumeMode: c.request.VolumeMode, AccessModes: c.accessModes,
		Verdict: verdictOf(c, room), Granted: verdictOf(c, room) == granted, Refusal: c.refusal, Tenant: decision.Tenant, Rule: decision.Rule,
		Tenants: []step{}, Rules: []step{}, Backends: []backendStep{},
		Quotas: append([]policy.ScopeRoom{}, room.Scopes...), Notes: append([]string{}, c.notes...),
	}
	if e.VolumeMode == "" {
		e.VolumeMode = policy.Filesystem
	}
	if named := c.request.Attributes; named != nil {
		e.Attributes = named.Parameters
	}
	if denial := room.Denial; denial != nil {
		e.Denial = &placedDenial{Denial: *denial}
		if denial.Path != "" {
			e.Denial.Line, e.Denial.File = p.Line(denial.Path), p.FileOf(denial.Path)
		}
	}
	if len(room.Backends) > 0 && room.Denial == nil {
		e.Backend = room.Backends[0]
	}
	for _, s := range decision.Trace {
		e.addStep(p, s)
	}
	e.addUnreachedRules(p)
	e.addRoom(room)
	if c.class != nil && decision.Tenant != "" {
		e.Notes = append(e.Notes, p.ClassWarnings(*c.class, decision.Tenant)...)
	}
	if decision.Allowed() {
		e.Volume = &volume{VolumeProperties: decision.VolumeOn(cmp.Or(e.Backend, decision.Backends[0])), Fixed: fixed(p, decision.Rule), Schedules: schedulesOf(p, decision.Rule)}
		if e.Attributes[policy.AttributesType] != "" {
			// The VolumeAttributesClass wins over the rule.
			e.Volume.Fixed = slices.DeleteFunc(e.Volume.Fixed, func(name string) bool { return name == "type" })
		}
		e.noteOrder(p, c)
		e.noteModes(decision, c)
	}
	e.addZones(p, decision)
	return e
}

// noteOrder explains what else determines the order of the backends.
func (e *claimExplanation) noteOrder(p *policy.Policy, c claim) {
	if c.request.Claim == "" && p.RulePicks(e.Rule) == policy.PickSpread {
		e.Notes = append(e.Notes, "the rule has pick: spread, so the order of backends and zones depends on the claim's name, which is not known; --name gives it")
	}
}

// noteModes explains what the backends' modes mean for the claim.
func (e *claimExplanation) noteModes(decision policy.Decision, c claim) {
	var modes []string
	uses := map[policy.Mode]bool{}
	for _, backend := range decision.Backends {
		mode := decision.ModeOn(backend)
		uses[mode] = true
		modes = append(modes, fmt.Sprintf("%s on %s", mode, backend))
	}
	if len(uses) > 1 {
		e.Notes = append(e.Notes, "the mode depends on the backend that takes the volume: "+strings.Join(modes, ", "))
	}
	if slices.Contains(c.accessModes, string(corev1.ReadWriteOncePod)) && uses[policy.ModeNative] {
		e.Notes = append(e.Notes, "ReadWriteOncePod needs a CSI source: a native volume has none unless the backend's mapping makes one; in mode csi, every volume has one")
	}
	if slices.Contains(c.accessModes, string(corev1.ReadOnlyMany)) && uses[policy.ModeCSI] {
		// Several nodes read native volumes over one attachment.
		e.Notes = append(e.Notes, "in mode csi, ReadOnlyMany needs a volume type with multiattach; whether the type has it is known when the volume is created")
		if slices.Contains(c.accessModes, string(corev1.ReadWriteOnce)) && !slices.Contains(c.accessModes, string(corev1.ReadWriteMany)) {
			e.Notes = append(e.Notes, "in mode csi, ReadOnlyMany and ReadWriteOnce cannot be combined, so such a claim is denied; name one of them")
		}
	}
}

// addZones adds the modes and the zones to the backends.
func (e *claimExplanation) addZones(p *policy.Policy, decision policy.Decision) {
	for i := range e.Backends {
		b := &e.Backends[i]
		if decision.ModeOn(b.Name) == policy.ModeCSI {
			b.Mode = policy.ModeCSI
			if backend, ok := p.Backend(b.Name); ok {
				b.Fencing, b.MaxVolumesPerNode = backend.Fencing(), backend.VolumesPerNode()
			}
		}
		if placement, mapped := decision.PlacementOn(b.Name); mapped && slices.Contains(decision.Backends, b.Name) {
			b.Zones = placement.Zones
		}
	}
}

// addStep files a step of the decision's trace under its subject.
func (e *claimExplanation) addStep(p *policy.Policy, s policy.TraceStep) {
	to := step{Path: s.Path, Line: p.Line(s.Path), File: p.FileOf(s.Path), Name: s.Name, Outcome: noMatch, Detail: s.Detail}
	switch {
	case strings.HasPrefix(s.Path, "populators["):
		e.Notes = append(e.Notes, s.Detail)
		return
	case strings.HasPrefix(s.Path, "backends["):
		to.Outcome = leftOut
		if s.Matched {
			to.Outcome = candidate
		}
		backend, _ := p.Backend(s.Name)
		e.Backends = append(e.Backends, backendStep{step: to, Connector: backend.Connector})
		return
	case s.Matched:
		to.Outcome = chosen
	case s.Outranked:
		to.Outcome = outranked
	}
	if strings.Contains(s.Path, ".classes[") {
		e.Rules = append(e.Rules, to)
	} else {
		e.Tenants = append(e.Tenants, to)
	}
}

// addUnreachedRules adds the tenant's rules after the deciding one, which the decision
// has not considered.
func (e *claimExplanation) addUnreachedRules(p *policy.Policy) {
	for _, tenant := range p.Tenants {
		if tenant.Name != e.Tenant {
			continue
		}
		for _, class := range tenant.Classes[len(e.Rules):] {
			e.Rules = append(e.Rules, step{
				Path: class.Path(), Line: p.Line(class.Path()), File: p.FileOf(class.Path()), Name: "[" + strings.Join(class.StorageClasses, ", ") + "]",
				Outcome: notReached, Detail: "not considered, because an earlier rule decided",
			})
		}
	}
}

// addRoom notes the backends whose limits leave no room.
func (e *claimExplanation) addRoom(room policy.Room) {
	for _, scope := range room.Scopes {
		if scope.Kind != policy.BackendScope || scope.Denial == nil {
			continue
		}
		i := slices.IndexFunc(e.Backends, func(b backendStep) bool { return b.Name == scope.Name })
		e.Backends[i].Outcome, e.Backends[i].Detail = full, scope.Denial.Message
	}
}

// fixed names the properties that a rule sets.
func fixed(p *policy.Policy, rule string) []string {
	class, names := ruleOf(p, rule), []string{}
	for _, property := range []struct{ name, value string }{
		{"type", class.VolumeType}, {"availabilityZone", class.AvailabilityZone}, {"fsType", class.FSType},
	} {
		if property.value != "" {
			names = append(names, property.name)
		}
	}
	return names
}
