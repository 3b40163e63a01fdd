package policy

import (
	"fmt"
	"maps"
	"slices"

	"github.com/standalone-cinder/standalone-cinder/policy/document"
	"github.com/standalone-cinder/standalone-cinder/policy/names"
)

// SnapshotRequest describes a VolumeSnapshot to DecideSnapshot.
type SnapshotRequest struct {
	Namespace       string
	NamespaceLabels map[string]string
	// StorageClass, Backend and Tenant are recorded on the volume's PersistentVolume.
	StorageClass string
	Backend      string
	Tenant       string
	// Parameters are the VolumeSnapshotClass's. For an existing backup, they have its type.
	Parameters map[string]string
	// Group means that the snapshot is one of a VolumeGroupSnapshot, and Parameters are its
	// VolumeGroupSnapshotClass's.
	Group bool
	// Import is the Cinder snapshot that the VolumeSnapshot requests; nil for a new one.
	// Then Tenant does not matter, and StorageClass is the one whose rule grants and
	// counts it.
	Import *Existing
}

// The reasons that apply only to snapshots.
const (
	// OtherTenant: the volume was created for another tenant.
	OtherTenant Reason = "OtherTenant"
	// BackendNotGranted: the rule no longer names the volume's backend.
	BackendNotGranted Reason = "BackendNotGranted"
	// BackupNotGranted: the rule grants no backups.
	BackupNotGranted Reason = "BackupNotGranted"
	// GroupNotGranted: the rule grants no VolumeGroupSnapshots.
	GroupNotGranted Reason = "GroupNotGranted"
)

// The parameters of a VolumeSnapshotClass.
const (
	ParameterType        = "type"
	ParameterIncremental = "incremental"
	// TypeBackup is the type of backups. That of snapshots is the default.
	TypeBackup   = "backup"
	typeSnapshot = "snapshot"
)

// Backup is how a backup is made; empty for a snapshot.
type Backup string

// A full backup has the whole content. An incremental one has what has changed since an
// earlier one, on which it depends; without any, it is full.
const (
	FullBackup        Backup = "full"
	IncrementalBackup Backup = "incremental"
)

// Backups returns the kinds of Backup.
func Backups() []Backup { return []Backup{FullBackup, IncrementalBackup} }

// DecideSnapshot decides about one VolumeSnapshot. The current policy must name the
// tenant that the volume was created for, its StorageClass and its backend. The decision
// has the quotas of the tenant and the rule.
func (p *Policy) DecideSnapshot(r SnapshotRequest) Decision {
	d := &decider{policy: p, request: Request{Namespace: r.Namespace, NamespaceLabels: r.NamespaceLabels, StorageClass: r.StorageClass}}
	d.decision.Denial = d.runSnapshot(r)
	return d.decision
}

func (d *decider) runSnapshot(r SnapshotRequest) *Denial {
	if !names.Namespace().Valid(r.Namespace) {
		return &Denial{Reason: InvalidClaim, Message: fmt.Sprintf("%q cannot be the name of a namespace", r.Namespace)}
	}
	tenant, index, denial := d.findTenant()
	if denial != nil {
		return denial
	}
	d.decision.Tenant = tenant.Name
	path := document.Element("tenants", index)
	if r.Import == nil && tenant.Name != r.Tenant {
		return &Denial{Reason: OtherTenant, Path: path, Message: fmt.Sprintf(
			"namespace %s belongs to tenant %s (%s), but the volume was made for tenant %s", r.Namespace, tenant.Name, path, r.Tenant)}
	}
	class, denial := d.findClass(tenant, path)
	if denial != nil {
		return denial
	}
	d.decision.Rule = class.path
	decideKind := d.decideBackup
	if r.Group {
		decideKind = d.decideGroup
	}
	if denial := decideKind(r.Parameters, class); denial != nil {
		return denial
	}
	i := d.policy.backendIndex(r.Backend)
	what := "volume"
	if r.Import != nil {
		d.decision.Import, what = class.Import, "snapshot"
		if !tenant.MayTakeUp(r.Import.KeptBy) && (i < 0 || !slices.Contains(class.Backends, r.Backend) || r.Import.KeptBy != "" || !class.Import.Grants(*r.Import)) {
			return d.decision.NoSuchSnapshot(r.Import.Wanted)
		}
	}
	switch {
	case i < 0 || !slices.Contains(class.Backends, r.Backend):
		return &Denial{Reason: BackendNotGranted, Path: class.path + ".backends", Message: fmt.Sprintf(
			"the %s is on backend %s, which %s.backends does not name", what, r.Backend, class.path)}
	case d.policy.Backends[i].Suspended:
		return &Denial{Reason: BackendsSuspended, Path: document.Element("backends", i) + ".suspended", Message: fmt.Sprintf(
			"backend %s, which has the %s, is suspended (%s)", r.Backend, what, document.Element("backends", i))}
	}
	d.decision.Backends = []string{r.Backend}
	d.decision.Quotas = []QuotaScope{tenant.scope, class.scope}
	return nil
}

// decideBackup reads the parameters of a VolumeSnapshotClass, and decides whether they may
// ask for a backup.
func (d *decider) decideBackup(parameters map[string]string, class *Class) *Denial {
	refuse := func(format string, arguments ...any) *Denial {
		return &Denial{Reason: ParameterNotAllowed, Path: class.path, Message: fmt.Sprintf(format, arguments...)}
	}
	isBackup := parameters[ParameterType] == TypeBackup
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		switch value := parameters[key]; {
		case key == ParameterType && !isBackup && value != typeSnapshot:
			return refuse("the VolumeSnapshotClass has type %.60q; it must be %s or %s", value, typeSnapshot, TypeBackup)
		case key == ParameterIncremental && !isBackup:
			return refuse("the VolumeSnapshotClass has %s without type %s", key, TypeBackup)
		case key == ParameterIncremental && value != "true" && value != "false":
			return refuse("the VolumeSnapshotClass has %s %.60q; it must be true or false", key, value)
		case key != ParameterType && key != ParameterIncremental:
			return refuse("parameter %q of the VolumeSnapshotClass is not known; there are only %s and %s", key, ParameterType, ParameterIncremental)
		}
	}
	switch {
	case !isBackup:
		return nil
	case !class.Backups:
		return &Denial{Reason: BackupNotGranted, Path: class.path, Message: fmt.Sprintf("%s grants no backups; use a VolumeSnapshotClass of type %s, or add backups: true to the rule", class.path, typeSnapshot)}
	}
	d.decision.Backup = FullBackup
	if parameters[ParameterIncremental] == "true" {
		d.decision.Backup = IncrementalBackup
	}
	return nil
}

// The parameters of a VolumeGroupSnapshotClass.
const (
	ParameterConsistency = "consistency"
	ParameterGroupType   = "groupType"
)

// Consistency is how the snapshots of a VolumeGroupSnapshot belong together.
type Consistency string

const (
	// ConsistentArray means that the array takes all of them at one moment, for a group
	// snapshot of Cinder. The class must name a group type: Cinder shows only to
	// administrators which of them are consistent.
	ConsistentArray Consistency = "array"
	// ConsistentFilesystem means that nobody writes while they are taken.
	ConsistentFilesystem Consistency = "filesystem"
	// NotConsistent means that each is taken for itself, at about the same time.
	NotConsistent Consistency = "none"
)

// decideGroup does for a VolumeGroupSnapshotClass what decideBackup does.
func (d *decider) decideGroup(parameters map[string]string, class *Class) *Denial {
	refuse := func(format string, arguments ...any) *Denial {
		return &Denial{Reason: ParameterNotAllowed, Path: class.path, Message: fmt.Sprintf(format, arguments...)}
	}
	wanted := Consistency(parameters[ParameterConsistency])
	if !slices.Contains([]Consistency{ConsistentArray, ConsistentFilesystem, NotConsistent}, wanted) {
		return refuse("the VolumeGroupSnapshotClass has %s %.60q; it must be %s (the storage takes all snapshots at one moment), %s (nobody writes while they are taken) or %s (each is taken for itself, at about the same time)",
			ParameterConsistency, wanted, ConsistentArray, ConsistentFilesystem, NotConsistent)
	}
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		switch key {
		case ParameterConsistency, "deletionPolicy": // Kubernetes' own suite writes that of the class here, too
		case ParameterGroupType:
			if wanted != ConsistentArray {
				return refuse("the VolumeGroupSnapshotClass has %s without %s %s", key, ParameterConsistency, ConsistentArray)
			}
		default:
			return refuse("parameter %q of the VolumeGroupSnapshotClass is not known; there are only %s and %s", key, ParameterConsistency, ParameterGroupType)
		}
	}
	if wanted == ConsistentArray {
		if d.decision.GroupType = parameters[ParameterGroupType]; d.decision.GroupType == "" {
			return refuse("the VolumeGroupSnapshotClass has %s %s without %s, which must name a group type of Cinder with the spec consistent_group_snapshot_enabled", ParameterConsistency, wanted, ParameterGroupType)
		}
	}
	d.decision.Consistency = wanted
	if !class.Groups {
		return &Denial{Reason: GroupNotGranted, Path: class.path, Message: fmt.Sprintf("%s grants no VolumeGroupSnapshots; take VolumeSnapshots, or add groups: true to the rule", class.path)}
	}
	return nil
}

// SnapshotUsage returns what a snapshot, or a backup, of a size counts.
func SnapshotUsage(isBackup bool, gib int64) Usage {
	if isBackup {
		return Usage{Backups: 1, BackupGigabytes: gib}
	}
	return Usage{Snapshots: 1, SnapshotGigabytes: gib}
}

// GrantsBackups reports whether any rule of a policy grants backups on a backend.
func GrantsBackups(p *Policy, backend string) bool {
	for c := range p.Rules() {
		if c.Backups && slices.Contains(c.Backends, backend) {
			return true
		}
	}
	return false
}

// GrantsGroups reports whether any rule of a policy grants VolumeGroupSnapshots on a backend.
func GrantsGroups(p *Policy, backend string) bool {
	for c := range p.Rules() {
		if c.Groups && slices.Contains(c.Backends, backend) {
			return true
		}
	}
	return false
}

// MayTakeUp reports whether the tenant may import a snapshot that a tenant kept,
// regardless of its rules for imports: its own, or any if it restores any snapshot.
func (t *Tenant) MayTakeUp(keptBy string) bool {
	return keptBy != "" && (keptBy == t.Name || t.RestoreAnySnapshot)
}

// DecideSnapshotImport decides on which backends a VolumeSnapshot's existing snapshot may
// be: those of a rule or, without a StorageClass, those of all rules of the tenant.
// DecideSnapshot decides about the particular snapshot.
func (p *Policy) DecideSnapshotImport(r SnapshotRequest) Decision {
	d := &decider{policy: p, request: Request{Namespace: r.Namespace, NamespaceLabels: r.NamespaceLabels, StorageClass: r.StorageClass}}
	d.decision.Denial = d.runSnapshotImport(r)
	return d.decision
}

func (d *decider) runSnapshotImport(r SnapshotRequest) *Denial {
	if !names.Namespace().Valid(r.Namespace) || r.StorageClass != "" && !names.StorageClass().Valid(r.StorageClass) {
		return &Denial{Reason: InvalidClaim, Message: fmt.Sprintf("%q cannot be the name of a namespace, or %q that of a StorageClass", r.Namespace, r.StorageClass)}
	}
	tenant, index, denial := d.findTenant()
	if denial != nil {
		return denial
	}
	d.decision.Tenant = tenant.Name
	if r.StorageClass != "" {
		class, denial := d.findClass(tenant, document.Element("tenants", index))
		if denial != nil {
			return denial
		}
		d.decision.Rule = class.path
		return d.importFrom(class)
	}
	for i := range tenant.Classes {
		if suspended := d.importFrom(&tenant.Classes[i]); denial == nil {
			denial = suspended
		}
	}
	if d.decision.Import = nil; len(d.decision.Backends) > 0 {
		return nil
	}
	return denial
}

// NoSuchSnapshot returns the denial of a VolumeSnapshot for a snapshot that does not
// exist, or that neither the rule grants nor the tenant kept: a tenant must not learn
// which.
func (d Decision) NoSuchSnapshot(wanted string) *Denial {
	if d.Import == nil {
		return &Denial{Reason: ImportNotGranted, Path: d.Rule, Message: fmt.Sprintf(
			"tenant %s has kept no snapshot with the ID %q, and %s grants no others that exist at Cinder; correct spec.source.snapshotHandle of the VolumeSnapshotContent, or add import to the rule", d.Tenant, wanted, d.Rule)}
	}
	return &Denial{Reason: ImportedSnapshotNotFound, Path: d.Rule + ".import", Message: fmt.Sprintf(
		"tenant %s has kept no snapshot with the ID %q, and %s.import grants none on the backends of the rule; correct spec.source.snapshotHandle of the VolumeSnapshotContent, or the rule", d.Tenant, wanted, d.Rule)}
}

// SnapshotDenial checks one more snapshot of a size against the usage of the decision's
// quotas. For a denied snapshot it repeats the denial.
func (d Decision) SnapshotDenial(gib int64, used func(QuotaScope) Usage) *Denial {
	if d.Denial != nil {
		return d.Denial
	}
	for _, scope := range d.Quotas {
		if denial := scope.Check(used(scope), SnapshotUsage(d.Backup != "", gib)); denial != nil {
			return denial
		}
	}
	return nil
}
