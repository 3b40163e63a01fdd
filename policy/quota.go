package policy

import (
	"fmt"
	"math"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/policy/document"
)

// ScopeKind is the kind of object that a quota belongs to.
type ScopeKind string

// The kinds of QuotaScope.
const (
	TenantScope  ScopeKind = "tenant"
	ClassScope   ScopeKind = "class"
	BackendScope ScopeKind = "backend"
)

// Usage is what volumes and snapshots use, or would use.
type Usage struct {
	Volumes int64 `json:"volumes"`
	// Gigabytes counts GiB; each volume is rounded up.
	Gigabytes int64 `json:"gigabytes"`
	Snapshots int64 `json:"snapshots"`
	// SnapshotGigabytes counts the sizes of the volumes when the snapshots were taken.
	SnapshotGigabytes int64 `json:"snapshotGigabytes"`
	Backups           int64 `json:"backups,omitempty"`
	// BackupGigabytes counts the sizes of the volumes, even of incremental backups.
	BackupGigabytes int64 `json:"backupGigabytes,omitempty"`
}

// Add returns the sum, saturating instead of overflowing.
func (u Usage) Add(v Usage) Usage {
	return Usage{
		Volumes:   addSaturating(u.Volumes, v.Volumes),
		Gigabytes: addSaturating(u.Gigabytes, v.Gigabytes),
		Snapshots: addSaturating(u.Snapshots, v.Snapshots),

		SnapshotGigabytes: addSaturating(u.SnapshotGigabytes, v.SnapshotGigabytes),

		Backups:         addSaturating(u.Backups, v.Backups),
		BackupGigabytes: addSaturating(u.BackupGigabytes, v.BackupGigabytes),
	}
}

// Sub returns u without v. The result is never negative.
func (u Usage) Sub(v Usage) Usage {
	return Usage{
		Volumes:   max(u.Volumes-v.Volumes, 0),
		Gigabytes: max(u.Gigabytes-v.Gigabytes, 0),
		Snapshots: max(u.Snapshots-v.Snapshots, 0),

		SnapshotGigabytes: max(u.SnapshotGigabytes-v.SnapshotGigabytes, 0),

		Backups:         max(u.Backups-v.Backups, 0),
		BackupGigabytes: max(u.BackupGigabytes-v.BackupGigabytes, 0),
	}
}

// addSaturating adds non-negative numbers.
func addSaturating(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// QuotaScope is a set of volumes with limits.
type QuotaScope struct {
	Kind ScopeKind `json:"kind"`
	// Name is the tenant's or backend's name, or the rule's path. It is the same for all
	// claims that count against the scope, within one revision of the policy.
	Name string `json:"name"`
	// Path is the path of the limits, such as tenants[0].quota.
	Path   string `json:"path"`
	Limits Quota  `json:"limits"`

	// subject begins messages about the scope.
	subject string
}

// Check returns the limit that would be exceeded if more were added to the usage, or nil
// if there is room. A limit does not matter if nothing is added to what it counts, so
// lowering one quota below its usage does not block the others.
func (s QuotaScope) Check(used, more Usage) *Denial {
	added := s.Limits.limits(more)
	for i, l := range s.Limits.limits(used) {
		would := addSaturating(l.Used, added[i].Used)
		if l.Most == nil || added[i].Used <= 0 || would <= *l.Most {
			continue
		}
		path := document.Child(s.Path, l.Key)
		return &Denial{Reason: QuotaExceeded, Path: path, Message: fmt.Sprintf(
			"%s would use %d of %d %s (%s)", s.subject, would, *l.Most, l.Unit, path)}
	}
	return nil
}

// Limit is one limit of a quota, with what counts against it.
type Limit struct {
	// Key is the key in the policy. Unit is what the limit counts.
	Key, Unit string
	// Most is nil if there is no limit.
	Most *int64
	Used int64
	// OfSnapshots means that only snapshots or backups count. Backends have no such limit.
	OfSnapshots bool
}

// Limits lists every limit of a quota with what a usage counts against it, always in the
// same order.
func (q Quota) Limits(used Usage) []Limit {
	all := q.limits(used)
	return all[:]
}

// limits returns them without an allocation, since Check runs for every claim.
func (q Quota) limits(used Usage) [6]Limit {
	return [6]Limit{
		{"volumes", "volumes", q.Volumes, used.Volumes, false},
		{"gigabytes", "GiB", q.Gigabytes, used.Gigabytes, false},
		{"snapshots", "snapshots", q.Snapshots, used.Snapshots, true},
		{"snapshotGigabytes", "GiB of snapshots", q.SnapshotGigabytes, used.SnapshotGigabytes, true},
		{"backups", "backups", q.Backups, used.Backups, true},
		{"backupGigabytes", "GiB of backups", q.BackupGigabytes, used.BackupGigabytes, true},
	}
}

// Subject returns the scope's name in messages.
func (s QuotaScope) Subject() string { return s.subject }

// ExceededLimit is a limit that its scope's usage exceeds.
type ExceededLimit struct {
	// Key and Path locate the limit in the policy. Unit is what it counts.
	Key, Path, Unit string
	Used, Limit     int64
}

// Exceeded lists the limits below the usage.
func (s QuotaScope) Exceeded(used Usage) []ExceededLimit {
	var exceeded []ExceededLimit
	for _, l := range s.Limits.Limits(used) {
		if l.Most != nil && l.Used > *l.Most {
			exceeded = append(exceeded, ExceededLimit{Key: l.Key, Path: document.Child(s.Path, l.Key), Unit: l.Unit, Used: l.Used, Limit: *l.Most})
		}
	}
	return exceeded
}

// Scopes lists every quota scope of the policy, in the order of the file.
func (p *Policy) Scopes() []QuotaScope {
	var all []QuotaScope
	for i := range p.Backends {
		all = append(all, p.Backends[i].scope)
	}
	for i := range p.Tenants {
		t := &p.Tenants[i]
		all = append(all, t.scope)
		for j := range t.Classes {
			all = append(all, t.Classes[j].scope)
		}
	}
	return all
}

// QuotaScopes returns the scopes that a tenant's volume on a backend counts against. The
// volume may already exist: a scope whose tenant, rule or backend is no longer in the
// policy is left out. The backend may be empty.
func (p *Policy) QuotaScopes(tenant, storageClass, backend string) []QuotaScope {
	scopes := make([]QuotaScope, 0, 3)
	if t, ok := p.Tenant(tenant); ok {
		scopes = append(scopes, t.scope)
		if c := t.rule(storageClass); c != nil {
			scopes = append(scopes, c.scope)
		}
	}
	if b, ok := p.Backend(backend); ok {
		scopes = append(scopes, b.scope)
	}
	return scopes
}

// prepareScopes creates the scopes once, since every claim and volume needs some of them.
func (p *Policy) prepareScopes() {
	for i := range p.Backends {
		b := &p.Backends[i]
		b.scope = QuotaScope{
			Kind: BackendScope, Name: b.Name, Path: document.Element("backends", i) + ".limits",
			Limits:  Quota{Volumes: b.Limits.Volumes, Gigabytes: b.Limits.Gigabytes},
			subject: "backend " + b.Name,
		}
	}
	for i := range p.Tenants {
		t := &p.Tenants[i]
		t.scope = QuotaScope{
			Kind: TenantScope, Name: t.Name, Path: document.Element("tenants", i) + ".quota", Limits: t.Quota,
			subject: "tenant " + t.Name,
		}
		for j := range t.Classes {
			c := &t.Classes[j]
			c.entries = "[" + strings.Join(c.StorageClasses, ", ") + "]"
			c.scope = QuotaScope{
				Kind: ClassScope, Name: c.path, Path: c.path + ".quota", Limits: c.Quota,
				subject: fmt.Sprintf("StorageClasses %s of tenant %s", c.entries, t.Name),
			}
		}
	}
}

// Usage returns what a volume with these properties counts.
func (v VolumeProperties) Usage() Usage { return Usage{Volumes: 1, Gigabytes: v.SizeGiB} }

// ScopeRoom is a quota scope with its usage before and after a volume is added.
type ScopeRoom struct {
	QuotaScope
	Used  Usage `json:"used"`
	Would Usage `json:"would"`
	// Denial is the limit that would be exceeded, or nil.
	Denial *Denial `json:"denial,omitempty"`
}

// Room is whether the quotas have room for a granted claim.
type Room struct {
	// Denial has the reason QuotaExceeded if the volume fits nowhere.
	Denial *Denial
	// Backends are the backends of the decision that have room, in the same order.
	Backends []string
	// Scopes are the scopes of the decision, in the same order.
	Scopes []ScopeRoom
}

// Room checks a granted claim against the usage of its quota scopes: the tenant, the
// class rule and at least one backend must have room. For a denied claim it repeats the
// denial.
func (d Decision) Room(used func(QuotaScope) Usage) Room {
	if d.Denial != nil {
		return Room{Denial: d.Denial}
	}
	var room Room
	var full []string
	var first *Denial
	more := d.Volume.Usage()
	for _, scope := range d.Quotas {
		s := ScopeRoom{QuotaScope: scope, Used: used(scope)}
		s.Would, s.Denial = s.Used.Add(more), scope.Check(s.Used, more)
		room.Scopes = append(room.Scopes, s)
		switch {
		case s.Denial == nil && scope.Kind == BackendScope:
			room.Backends = append(room.Backends, scope.Name)
		case s.Denial == nil:
		case scope.Kind == BackendScope:
			full = append(full, s.Denial.Message)
			if first == nil {
				first = s.Denial
			}
		case room.Denial == nil:
			room.Denial = s.Denial
		}
	}
	if room.Denial == nil && len(room.Backends) == 0 {
		denial := *first
		if len(full) > 1 {
			denial.Path = d.Rule + ".backends"
			denial.Message = fmt.Sprintf("no backend of %s has room: %s", d.Rule, strings.Join(full, "; "))
		}
		room.Denial = &denial
	}
	return room
}

// Usages holds the usage of quota scopes, by kind and name.
type Usages map[UsageKey]Usage

// UsageKey is the identity of a QuotaScope.
type UsageKey struct {
	Kind ScopeKind
	Name string
}

// Of returns a scope's usage; zero if unknown.
func (u Usages) Of(s QuotaScope) Usage { return u[UsageKey{s.Kind, s.Name}] }

// Add adds usage to a scope.
func (u Usages) Add(s QuotaScope, more Usage) {
	key := UsageKey{s.Kind, s.Name}
	u[key] = u[key].Add(more)
}
