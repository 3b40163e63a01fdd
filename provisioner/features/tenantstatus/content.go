package tenantstatus

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/bound"
)

// The bounds of an object. The schema of the CRD has the same.
const (
	maxWaiting = 10
	maxRules   = 100
	maxNames   = 100
)

// Content is the status of a TenantStatus: what the policy gives the tenant of a
// namespace, what the tenant uses, and what waits in this namespace. It has nothing of
// other tenants.
type Content struct {
	Tenant         string           `json:"tenant"`
	PolicyRevision string           `json:"policyRevision"`
	Quota          map[string]Quota `json:"quota"`
	Rules          []Rule           `json:"rules"`
	RulesNotShown  int              `json:"rulesNotShown,omitempty"`
	// WaitingTotal counts what waits; Waiting has the latest of it.
	WaitingTotal int       `json:"waitingTotal"`
	Waiting      []Waiting `json:"waiting"`
	// UpdatedAt is when the rest changed.
	UpdatedAt *metav1.Time `json:"updatedAt,omitempty"`
}

// Quota is what counts against one limit; Hard is nil if there is none.
type Quota struct {
	Used int64  `json:"used"`
	Hard *int64 `json:"hard,omitempty"`
}

// Rule is what one rule of the tenant gives.
type Rule struct {
	// StorageClasses are names and patterns.
	StorageClasses []string  `json:"storageClasses"`
	Backends       []Backend `json:"backends"`
	// Quota has only what the rule limits.
	Quota   map[string]Quota `json:"quota,omitempty"`
	MinSize string           `json:"minSize,omitempty"`
	MaxSize string           `json:"maxSize,omitempty"`
	// VolumeType, AvailabilityZone and FSType are fixed by the rule; empty leaves them to
	// the StorageClass.
	VolumeType       string `json:"volumeType,omitempty"`
	AvailabilityZone string `json:"availabilityZone,omitempty"`
	FSType           string `json:"fsType,omitempty"`
	// VolumeTypes are those that a VolumeAttributesClass may ask for.
	VolumeTypes []string `json:"volumeTypes,omitempty"`
	// Import means that claims may ask for some volumes that exist.
	Import bool `json:"import,omitempty"`
	// Protect are the schedules of snapshots.
	Protect []Schedule `json:"protect,omitempty"`
}

// Schedule is a schedule of snapshots.
type Schedule struct {
	Name  string `json:"name"`
	Every string `json:"every"`
	Keep  int64  `json:"keep"`
	// OnRequest means that claims request it by a label.
	OnRequest bool `json:"onRequest,omitempty"`
	// As is what it makes, unless that is a snapshot of each claim.
	As string `json:"as,omitempty"`
}

// Backend is a backend of a rule.
type Backend struct {
	Name string      `json:"name"`
	Mode policy.Mode `json:"mode"`
	// Suspended means that it takes no new volumes.
	Suspended bool `json:"suspended,omitempty"`
}

// Waiting is an object that was denied, fails, or waits for something.
type Waiting struct {
	Namespace string `json:"-"`
	Kind      string `json:"kind"`
	Name      string `json:"name"`
	// State is how it waits.
	State string `json:"state"`
	// Reason and Message are those of the object's last event; empty if it had none.
	Reason  string      `json:"reason,omitempty"`
	Message string      `json:"message,omitempty"`
	Since   metav1.Time `json:"since"`
}

// Usage returns what counts against the limits of a scope of the policy.
type Usage func(kind policy.ScopeKind, name string) policy.Usage

// contentOf returns what the namespaces of a tenant have in common.
func contentOf(p *policy.Policy, tenant *policy.Tenant, usage Usage) *Content {
	c := &Content{
		Tenant: tenant.Name, PolicyRevision: p.Revision(),
		Quota: quotaOf(tenant.Quota, usage(policy.TenantScope, tenant.Name)),
		Rules: []Rule{}, RulesNotShown: max(len(tenant.Classes)-maxRules, 0), Waiting: []Waiting{},
	}
	for _, class := range tenant.Classes[:min(len(tenant.Classes), maxRules)] {
		sizes := class.Sizes()
		limited := quotaOf(class.Quota, usage(policy.ClassScope, class.Path()))
		maps.DeleteFunc(limited, func(_ string, q Quota) bool { return q.Hard == nil })
		rule := Rule{
			StorageClasses: firstOf(class.StorageClasses), Backends: []Backend{},
			Quota:   limited,
			MinSize: sizeOf(sizes.Min), MaxSize: sizeOf(sizes.Max),
			VolumeType: bound.Text(class.VolumeType), AvailabilityZone: bound.Text(class.AvailabilityZone), FSType: bound.Text(class.FSType),
			VolumeTypes: firstOf(class.VolumeTypes), Import: class.Import != nil,
		}
		for _, s := range class.Protect {
			rule.Protect = append(rule.Protect, Schedule{s.Name, s.Period(), s.Keep, s.OnRequest, string(s.As)})
		}
		for _, name := range class.Backends[:min(len(class.Backends), maxNames)] {
			if backend, ok := p.Backend(name); ok {
				rule.Backends = append(rule.Backends, Backend{name, class.ModeOn(*backend), backend.Suspended})
			}
		}
		c.Rules = append(c.Rules, rule)
	}
	return c
}

func quotaOf(limits policy.Quota, used policy.Usage) map[string]Quota {
	quota := map[string]Quota{}
	for _, l := range limits.Limits(used) {
		quota[l.Key] = Quota{l.Used, l.Most}
	}
	return quota
}

func sizeOf(size *policy.Size) string {
	if size == nil {
		return ""
	}
	return bound.Text(size.String())
}

// firstOf bounds a list of names, and says how many are missing.
func firstOf(names []string) []string {
	first := []string{}
	for i, name := range names {
		if i == maxNames-1 && len(names) > maxNames {
			return append(first, fmt.Sprintf("and %d more", len(names)-i))
		}
		first = append(first, bound.Text(name))
	}
	return first
}

// with returns the content for a namespace in which these objects wait.
func (c *Content) with(p *policy.Policy, waiting []Waiting) *Content {
	waiting = append([]Waiting{}, waiting...)
	slices.SortFunc(waiting, func(a, b Waiting) int {
		return cmp.Or(b.Since.Compare(a.Since.Time), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
	})
	own := *c
	own.WaitingTotal, own.Waiting = len(waiting), waiting[:min(len(waiting), maxWaiting)]
	for i := range own.Waiting {
		w := &own.Waiting[i]
		w.Since = metav1.NewTime(w.Since.UTC().Truncate(1e9))
		if namesOthers(p, own.Tenant, w.Message) {
			// The event has it, which is the author's alone.
			w.Message = "see the events of the object"
		}
		w.Message = bound.Summary(w.Message)
	}
	return &own
}

// namesOthers reports whether a message has the name of another tenant, or of a backend
// that no rule of the tenant names. A word that happens to be such a name counts, too.
func namesOthers(p *policy.Policy, tenant, message string) bool {
	words := strings.FieldsFunc(message, func(r rune) bool {
		return r != '-' && (r < '0' || r > '9') && (r < 'a' || r > 'z')
	})
	return slices.ContainsFunc(words, func(word string) bool {
		if word == tenant || p.MayUse(tenant, word) {
			return false
		}
		_, isTenant := p.Tenant(word)
		_, isBackend := p.Backend(word)
		return isTenant || isBackend
	})
}

// digest identifies the content, except for UpdatedAt, across leaders.
func (c *Content) digest() string {
	encoded, err := json.Marshal(c)
	if err != nil {
		// Structs of strings and numbers always encode.
		panic(err)
	}
	sum := sha256.Sum256(encoded)
	return hex.EncodeToString(sum[:16])
}
