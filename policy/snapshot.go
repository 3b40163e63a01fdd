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
	// StorageClass, Backend and Tenant are what the volume's PersistentVolume
	// records.
	StorageClass string
	Backend      string
	Tenant       string
	// Parameters are the VolumeSnapshotClass's.
	Parameters map[string]string
	// Import is the snapshot at Cinder that the VolumeSnapshot asks for; nil for a new
	// one. It belongs to nobody, so Tenant does not matter, and StorageClass is the one
	// whose rule grants it and counts it.
	Import *Existing
}

// The reasons for which only snapshots are denied.
const (
	// OtherTenant: the volume was made for another tenant.
	OtherTenant Reason = "OtherTenant"
	// BackendNotGranted: the rule no longer names the volume's backend.
	BackendNotGranted Reason = "BackendNotGranted"
)

// DecideSnapshot decides about one VolumeSnapshot. The current policy must name
// the tenant that the volume was made for, its StorageClass and its backend. The
// decision has the quotas of the tenant and the rule.
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
	for _, key := range slices.Sorted(maps.Keys(r.Parameters)) {
		return &Denial{Reason: ParameterNotAllowed, Path: class.path, Message: fmt.Sprintf(
			"parameter %q of the VolumeSnapshotClass is not known; a VolumeSnapshotClass of this program has no parameters", key)}
	}
	i := d.policy.backendIndex(r.Backend)
	if r.Import != nil {
		if denial := snapshotImportNotGranted(class); denial != nil {
			return denial
		}
		if i < 0 || !slices.Contains(class.Backends, r.Backend) || !class.Import.Grants(*r.Import) {
			return NoSuchSnapshot(class.path, r.Import.Wanted)
		}
		d.decision.Import = class.Import
	}
	switch {
	case i < 0 || !slices.Contains(class.Backends, r.Backend):
		return &Denial{Reason: BackendNotGranted, Path: class.path + ".backends", Message: fmt.Sprintf(
			"the volume is on backend %s, which %s.backends does not name", r.Backend, class.path)}
	case d.policy.Backends[i].Suspended:
		return &Denial{Reason: BackendsSuspended, Path: document.Element("backends", i) + ".suspended", Message: fmt.Sprintf(
			"backend %s, which has the volume, is suspended (%s)", r.Backend, document.Element("backends", i))}
	}
	d.decision.Backends = []string{r.Backend}
	d.decision.Quotas = []QuotaScope{tenant.scope, class.scope}
	return nil
}

// DecideSnapshotImport decides whether a VolumeSnapshot may have an existing
// snapshot at all. The decision has the filter, and the backends on which the
// snapshot may be; DecideSnapshot decides about the particular snapshot.
func (p *Policy) DecideSnapshotImport(r SnapshotRequest) Decision {
	d := &decider{policy: p, request: Request{Namespace: r.Namespace, NamespaceLabels: r.NamespaceLabels, StorageClass: r.StorageClass}}
	d.decision.Denial = d.runSnapshotImport(r)
	return d.decision
}

func (d *decider) runSnapshotImport(r SnapshotRequest) *Denial {
	if !names.Namespace().Valid(r.Namespace) || !names.StorageClass().Valid(r.StorageClass) {
		return &Denial{Reason: InvalidClaim, Message: fmt.Sprintf("%q cannot be the name of a namespace, or %q that of a StorageClass", r.Namespace, r.StorageClass)}
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
	d.decision.Rule = class.path
	if denial := snapshotImportNotGranted(class); denial != nil {
		return denial
	}
	return d.importFrom(class)
}

func snapshotImportNotGranted(class *Class) *Denial { return importNotGranted(class, "snapshots", "") }

// SnapshotDenial checks one more snapshot against the usage of the decision's
// quotas. For a denied snapshot it repeats the denial.
func (d Decision) SnapshotDenial(used func(QuotaScope) Usage) *Denial {
	if d.Denial != nil {
		return d.Denial
	}
	for _, scope := range d.Quotas {
		if denial := scope.Check(used(scope), Usage{Snapshots: 1}); denial != nil {
			return denial
		}
	}
	return nil
}
