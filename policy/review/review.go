// Package review determines what a policy means for a cluster's existing claims and
// volumes. No policy changes or removes an existing volume.
package review

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/policy/document"
)

// FindingKind is the kind of a Finding, a stable CamelCase word.
type FindingKind string

// The kinds of Finding, in the order in which a Review lists them.
const (
	// BackendGone: the policy lacks a backend that is needed to delete volumes.
	BackendGone FindingKind = "BackendGone"
	// BackendElsewhere: a backend points to a place other than the one recorded for its
	// volumes, so they cannot be deleted.
	BackendElsewhere FindingKind = "BackendElsewhere"
	// BackendChanged: auth, region or interface of a backend differ from an earlier
	// policy, and only a request could show where they point. Only Change finds it.
	BackendChanged FindingKind = "BackendChanged"
	// RetainedBackendGone: the policy lacks the backend of volumes that are never
	// deleted, because their reclaim policy is Retain.
	RetainedBackendGone FindingKind = "RetainedBackendGone"
	// ClusterChanged: volumes were stamped under another cluster's ID.
	ClusterChanged FindingKind = "ClusterChanged"
	// DamagedVolume: a PersistentVolume lacks a record that deletion needs.
	DamagedVolume FindingKind = "DamagedVolume"
	// TenantGone: volumes belong to a tenant that is not in the policy.
	TenantGone FindingKind = "TenantGone"
	// RuleGone: a tenant's volumes have a StorageClass for which it no longer has a rule.
	RuleGone FindingKind = "RuleGone"
	// EncryptionDiffers: nodes encrypt volumes of a rule that does not say so, or they do not
	// although it does, because it was changed later.
	EncryptionDiffers FindingKind = "EncryptionDiffers"
	// OverQuota: volumes take up more than a limit allows.
	OverQuota FindingKind = "OverQuota"
	// NewlyDenied: a claim that has its volume would be denied today.
	NewlyDenied FindingKind = "NewlyDenied"
	// MovedTenant: a claim's volume was created for another tenant than its namespace's
	// current one.
	MovedTenant FindingKind = "MovedTenant"
	// StorageClassGone: a pending claim names a nonexistent StorageClass, so it waits
	// regardless of the policy.
	StorageClassGone FindingKind = "StorageClassGone"
	// DriverMissing: the policy uses mode csi, and the cluster lacks a part of the
	// driver.
	DriverMissing FindingKind = "DriverMissing"
	// ClassNotHonored: a StorageClass promises what its claims do not get, or not
	// everywhere.
	ClassNotHonored FindingKind = "ClassNotHonored"
	// PendingDenied and PendingGranted: a claim without a volume gets none, or one.
	PendingDenied  FindingKind = "PendingDenied"
	PendingGranted FindingKind = "PendingGranted"
	// PendingLeft: a claim without a volume waits for another program, regardless of the
	// policy.
	PendingLeft FindingKind = "PendingLeft"
)

// FindingKinds returns every kind in the order in which a Review lists them.
func FindingKinds() []FindingKind {
	return []FindingKind{
		BackendGone, BackendElsewhere, BackendChanged, RetainedBackendGone, ClusterChanged, DamagedVolume, TenantGone, RuleGone,
		EncryptionDiffers, OverQuota, NewlyDenied, MovedTenant, StorageClassGone, DriverMissing, ClassNotHonored, PendingDenied, PendingGranted, PendingLeft,
	}
}

// Finding is one consequence of a policy for what exists.
type Finding struct {
	Kind FindingKind `json:"kind"`
	// Subject is the subject of the finding: a claim as namespace/name, a
	// PersistentVolume, a backend, a tenant or a limit.
	Subject string `json:"subject"`
	// Reason is why a claim is denied, for findings about denials.
	Reason policy.Reason `json:"reason,omitempty"`
	// Path and Line locate the deciding value in the policy. Path is empty if there is no
	// single one.
	Path string `json:"path,omitempty"`
	Line int    `json:"line,omitempty"`
	// File is the one with the line, if the policy has several.
	File string `json:"file,omitempty"`
	// Message is one sentence.
	Message string `json:"message"`
	// Volumes are the PersistentVolumes of a finding about several, sorted by name.
	Volumes []string `json:"volumes,omitempty"`

	// detail distinguishes findings about one subject under different policies. It
	// contains no paths, because they change with every entry inserted before them.
	detail string
}

// Fails reports whether the policy must not take effect as it is, because existing
// volumes could not be deleted.
func (f Finding) Fails() bool { return f.Kind == BackendGone || f.Kind == BackendElsewhere }

// Review is the consequences of a policy for what exists.
type Review struct {
	// Claims and Volumes count the reviewed objects.
	Claims  int `json:"claims"`
	Volumes int `json:"volumes"`
	// Findings are sorted by kind, then by subject.
	Findings []Finding `json:"findings"`
	// Ended are findings of an earlier policy that this one does not have. Only Since
	// sets it.
	Ended []Finding `json:"ended,omitempty"`
}

// Failing counts the findings that Fail.
func (r Review) Failing() int {
	n := 0
	for _, f := range r.Findings {
		if f.Fails() {
			n++
		}
	}
	return n
}

// Of reviews a policy. It decides and counts like the running program, except for volumes
// being created, which only Cinder knows about.
func Of(p *policy.Policy, existing Existing) Review {
	r := &reviewer{
		policy: p, cluster: p.ClusterID, places: existing.Places, used: policy.Usages{},
		byName: map[string]Volume{}, byClaim: map[string]bool{},
		review: Review{Claims: len(existing.Claims), Volumes: len(existing.Volumes), Findings: []Finding{}},
	}
	if r.cluster == "" {
		r.cluster = existing.Cluster
	}
	volumes := slices.Clone(existing.Volumes)
	slices.SortFunc(volumes, func(a, b Volume) int { return strings.Compare(a.Name, b.Name) })
	r.volumes(volumes)
	// Check limits for what exists before pending claims are added.
	r.overQuota()
	r.driver(existing.CSI)
	for _, class := range existing.Classes {
		for _, warning := range p.ClassWarnings(class, "") {
			r.find(Finding{Kind: ClassNotHonored, Subject: class.Name, Message: warning, detail: warning})
		}
	}
	for _, claim := range existing.Claims {
		if claim.Bound {
			r.bound(claim)
		} else {
			r.pending(claim)
		}
	}
	sortFindings(r.review.Findings)
	return r.review
}

func sortFindings(findings []Finding) {
	kinds := FindingKinds()
	slices.SortStableFunc(findings, func(a, b Finding) int {
		if a.Kind != b.Kind {
			return slices.Index(kinds, a.Kind) - slices.Index(kinds, b.Kind)
		}
		return strings.Compare(a.Subject, b.Subject)
	})
}

// reviewer is one run of Review.
type reviewer struct {
	policy  *policy.Policy
	cluster string
	places  map[string]Place
	// byName holds the volumes, byClaim the UIDs of claims that have one.
	byName  map[string]Volume
	byClaim map[string]bool
	used    policy.Usages
	review  Review
}

func (r *reviewer) find(f Finding) {
	if f.Path != "" {
		f.Line, f.File = r.policy.Line(f.Path), r.policy.FileOf(f.Path)
	}
	r.review.Findings = append(r.review.Findings, f)
}

// volumes counts the volumes and finds those that the policy no longer covers.
func (r *reviewer) volumes(volumes []Volume) {
	var deletable, retained, elsewhere, clusters, tenants, rules, sealed, plain groups
	counted := map[string]bool{}
	for _, v := range volumes {
		r.byName[v.Name] = v
		if v.ClaimUID != "" {
			r.byClaim[v.ClaimUID] = true
		}
		if v.Damage != "" {
			r.find(Finding{Kind: DamagedVolume, Subject: v.Name, Message: v.Damage})
		}
		if _, known := r.policy.Backend(v.Backend); v.Backend != "" && !known {
			if v.Retain {
				retained.add(v.Backend, v.Name)
			} else {
				deletable.add(v.Backend, v.Name)
			}
		}
		if _, known := r.policy.Backend(v.Backend); known && !v.Retain && r.places[v.Backend].excludes(v.Place) {
			elsewhere.add(v.Backend+" "+v.Place.String(), v.Name)
		}
		if v.Cluster != "" && r.cluster != "" && v.Cluster != r.cluster {
			clusters.add(v.Cluster, v.Name)
		}
		// As in the ledger, a claim counts once.
		if v.counts(r.cluster) && !counted[v.ClaimUID] {
			counted[v.ClaimUID] = true
			r.count(v, &tenants, &rules)
		}
		switch path, encrypt := r.encryptOf(v.Tenant, v.StorageClass); {
		case path == "" || v.Encrypted == (encrypt != nil):
		case v.Encrypted:
			sealed.add(v.Tenant+"/"+v.StorageClass, v.Name)
		default:
			plain.add(v.Tenant+"/"+v.StorageClass, v.Name)
		}
	}
	deletable.each(func(backend string, names []string) {
		r.find(grouped(BackendGone, backend, "backends", names,
			"backend %s is not in the policy, so %s cannot be deleted; keep the backend, with suspended: true, until they are gone", backend, someVolumes(names)))
	})
	elsewhere.each(func(group string, names []string) {
		backend, recorded, _ := strings.Cut(group, " ")
		r.find(grouped(BackendElsewhere, backend, backendPath(r.policy, backend)+".auth", names,
			"backend %s points to %s, but the volumes of %s were recorded at %s and cannot be deleted unless they are found at the new place, too; keep the backend as it was until they are gone, and give the new place a backend of its own",
			backend, r.places[backend], someVolumes(names), recorded))
	})
	retained.each(func(backend string, names []string) {
		r.find(grouped(RetainedBackendGone, backend, "backends", names,
			"backend %s is not in the policy, but has the volumes of %s; nothing deletes them, because their reclaim policy is Retain", backend, someVolumes(names)))
	})
	clusters.each(func(cluster string, names []string) {
		r.find(grouped(ClusterChanged, cluster, "clusterID", names,
			"the cluster's id is %s under this policy, so no quota counts %s, made under the id %s; volumes still being made under that id are not recognized", r.cluster, someVolumes(names), cluster))
	})
	tenants.each(func(tenant string, names []string) {
		r.find(grouped(TenantGone, tenant, "tenants", names,
			"tenant %s is not in the policy, so no tenant's quota counts %s", tenant, someVolumes(names)))
	})
	rules.each(func(rule string, names []string) {
		tenant, class, _ := strings.Cut(rule, "/")
		r.find(grouped(RuleGone, rule, r.tenantPath(tenant)+".classes", names,
			"tenant %s has no rule for StorageClass %s, so only the quotas of the tenant and the backend count %s", tenant, class, someVolumes(names)))
	})
	differs := func(message string) func(string, []string) {
		return func(rule string, names []string) {
			tenant, class, _ := strings.Cut(rule, "/")
			path, _ := r.encryptOf(tenant, class)
			r.find(grouped(EncryptionDiffers, rule, path, names, message, someVolumes(names), path))
		}
	}
	sealed.each(differs("nodes encrypt %s, but not new volumes, because %s has no encrypt; keep the key-encryption keys"))
	plain.each(differs("nodes do not encrypt %s, only new volumes, because %s has encrypt now; to encrypt existing data, move it (volume move --to-backend)"))
}

// encryptOf returns what the rule for a volume says of encryption, and where; an empty path
// means that there is none any more.
func (r *reviewer) encryptOf(tenant, storageClass string) (path string, encrypt *policy.Encrypt) {
	if t, ok := r.policy.Tenant(tenant); ok {
		return t.EncryptOf(storageClass)
	}
	return "", nil
}

// count counts a volume against its tenant, rule and backend, if they are still in the
// policy.
func (r *reviewer) count(v Volume, tenants, rules *groups) {
	var kinds []policy.ScopeKind
	for _, scope := range r.policy.QuotaScopes(v.Tenant, v.StorageClass, v.Backend) {
		r.used.Add(scope, v.usage())
		kinds = append(kinds, scope.Kind)
	}
	switch {
	case !slices.Contains(kinds, policy.TenantScope):
		tenants.add(cmp.Or(v.Tenant, "(none recorded)"), v.Name)
	case !slices.Contains(kinds, policy.ClassScope):
		// Names of tenants and StorageClasses have no slash.
		rules.add(v.Tenant+"/"+v.StorageClass, v.Name)
	}
}

// overQuota finds the limits that are already exceeded.
func (r *reviewer) overQuota() {
	for _, scope := range r.policy.Scopes() {
		for _, limit := range scope.Exceeded(r.used.Of(scope)) {
			r.find(Finding{
				Kind: OverQuota, Subject: scope.Subject() + ", " + limit.Key, Path: limit.Path,
				Message: fmt.Sprintf("%d of %d %s are used by %s (%s); existing volumes stay, and no more are added until enough of them are gone",
					limit.Used, limit.Limit, limit.Unit, scope.Subject(), limit.Path),
				detail: fmt.Sprintf("%d of %d", limit.Used, limit.Limit),
			})
		}
	}
}

// bound reviews a claim that has its volume. Claims with volumes of other provisioners
// are ignored.
func (r *reviewer) bound(claim Claim) {
	volume, ours := r.byName[claim.Volume]
	if !ours {
		return
	}
	decision := r.policy.Decide(claim.Request)
	if claim.Asks && decision.Denial == nil {
		// The rule may still grant new volumes.
		decision = r.policy.DecideImport(claim.Request)
	}
	// Without the StorageClass the claim could not be provisioned again anyway,
	// and its parameters are unknown.
	if denial := decision.Denial; denial != nil && claim.ClassExists {
		r.find(Finding{
			Kind: NewlyDenied, Subject: claim.subject(), Reason: denial.Reason, Path: denial.Path,
			Message: fmt.Sprintf("the claim would be denied today: %s; its volume %s is not affected", denial.Message, volume.Name),
			detail:  string(denial.Reason),
		})
	}
	if now := decision.Tenant; now != "" && volume.Tenant != "" && now != volume.Tenant {
		path := r.tenantPath(now)
		r.find(Finding{
			Kind: MovedTenant, Subject: claim.subject(), Path: path,
			Message: fmt.Sprintf("namespace %s belongs to tenant %s (%s), but volume %s was made for tenant %s and still counts against that tenant", claim.Request.Namespace, now, path, volume.Name, volume.Tenant),
			detail:  now,
		})
	}
}

// pending reviews a claim without a volume. If it is granted, it counts for the claims
// after it.
func (r *reviewer) pending(claim Claim) {
	if claim.Volume != "" || r.byClaim[claim.UID] {
		// It waits for the volume that it names, or that was just created for it.
		return
	}
	if claim.Refusal != nil && claim.Refusal.Reason == policy.AwaitsPopulator {
		r.find(Finding{Kind: PendingLeft, Subject: claim.subject(), Message: claim.Refusal.Message})
		return
	}
	if claim.Refusal != nil {
		r.denied(claim, *claim.Refusal)
		return
	}
	if !claim.ClassExists {
		message := fmt.Sprintf("the claim waits for StorageClass %s, which does not exist", claim.Request.StorageClass)
		if claim.Request.StorageClass == "" {
			message = "the claim names no StorageClass, so nothing creates a volume for it"
		}
		r.find(Finding{Kind: StorageClassGone, Subject: claim.subject(), Message: message})
		return
	}
	if claim.Asks {
		r.asks(claim)
		return
	}
	decision := r.policy.Decide(claim.Request)
	room := decision.Room(r.used.Of)
	if room.Denial != nil {
		r.denied(claim, *room.Denial)
		return
	}
	backend := room.Backends[0]
	for _, scope := range decision.Quotas {
		if scope.Kind != policy.BackendScope || scope.Name == backend {
			r.used.Add(scope, decision.Volume.Usage())
		}
	}
	remark := ""
	if claim.OnePod && decision.ModeOn(backend) != policy.ModeCSI {
		remark = "; it has the access mode ReadWriteOncePod, which needs a CSI source: the backend's mapping may make one, and in mode csi every volume has one"
	}
	r.find(Finding{
		Kind: PendingGranted, Subject: claim.subject(), Path: decision.Rule,
		Message: fmt.Sprintf("the claim gets %d GiB from backend %s for tenant %s (%s)%s", decision.Volume.SizeGiB, backend, decision.Tenant, decision.Rule, remark),
		detail:  decision.Tenant + " " + backend,
	})
}

// asks reviews a pending claim for an existing volume. Only Cinder knows the volume, and
// so what it counts.
func (r *reviewer) asks(claim Claim) {
	decision := r.policy.DecideImport(claim.Request)
	if decision.Denial != nil {
		r.denied(claim, *decision.Denial)
		return
	}
	r.find(Finding{
		Kind: PendingGranted, Subject: claim.subject(), Path: decision.Rule + ".import",
		Message: fmt.Sprintf("the claim asks for the volume %q at Cinder, and gets it if it is one %s, on backend %s, and there is room for it (tenant %s, %s.import)",
			claim.Import, decision.Import, strings.Join(decision.Backends, " or "), decision.Tenant, decision.Rule),
		detail: decision.Tenant + " import " + decision.Import.String(),
	})
}

// driver finds which parts of mode csi the cluster lacks.
func (r *reviewer) driver(has *CSI) {
	if has == nil || !r.policy.UsesCSI() {
		return
	}
	path := r.policy.CSIPath()
	lacks := func(detail, format string, args ...any) {
		r.find(Finding{Kind: DriverMissing, Subject: policy.CSIDriver, Path: path, Message: fmt.Sprintf(format, args...), detail: detail})
	}
	if !has.Driver {
		lacks("object", "the policy uses mode csi, but the cluster has no CSIDriver %s; add the csi component of the manifests, or csi.enabled of the chart", policy.CSIDriver)
	}
	if has.Nodes == 0 {
		lacks("nodes", "the policy uses mode csi, but no node has the driver %s registered, so no pod can use such a volume; look at the pods of the DaemonSet standalone-cinder-node", policy.CSIDriver)
	}
}

func (r *reviewer) denied(claim Claim, denial policy.Denial) {
	r.find(Finding{Kind: PendingDenied, Subject: claim.subject(), Reason: denial.Reason, Path: denial.Path, Message: denial.Message, detail: string(denial.Reason)})
}

func backendPath(p *policy.Policy, name string) string {
	return document.Element("backends", slices.IndexFunc(p.Backends, func(b policy.Backend) bool { return b.Name == name }))
}

func (r *reviewer) tenantPath(name string) string {
	return document.Element("tenants", slices.IndexFunc(r.policy.Tenants, func(t policy.Tenant) bool { return t.Name == name }))
}
