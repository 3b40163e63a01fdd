package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/policy/document"
	"github.com/standalone-cinder/standalone-cinder/policy/names"
)

// ImportFilter selects the existing Cinder volumes that a rule's claims may have, and the
// snapshots that its VolumeSnapshots may have. All given conditions must hold.
type ImportFilter struct {
	// Names holds names of volumes and snapshots, and patterns, as Tenant.Namespaces
	// does; Types names of volume types. One of each must match. The type of a
	// snapshot is that of its volume.
	Names []string `json:"names,omitempty"`
	Types []string `json:"types,omitempty"`
	// Metadata must be on the volume or snapshot, which may have more.
	Metadata map[string]string `json:"metadata,omitempty"`
}

// Existing is a Cinder volume that a claim requests, or a snapshot that a VolumeSnapshot
// requests.
type Existing struct {
	// Wanted is the requested ID or name.
	Wanted   string
	Name     string
	Type     string
	Metadata map[string]string
	// KeptBy is the tenant that a snapshot was taken for, according to its stamp; empty
	// without a stamp. It is not used for volumes.
	KeptBy string
}

// The reasons to deny a claim for an existing volume. Decide returns them, the second
// even before it is known whether there is such a volume.
const (
	// ImportNotGranted: the rule grants no existing volumes, or snapshots.
	ImportNotGranted Reason = "ImportNotGranted"
	// ImportedVolumeNotFound: there is no such volume, or the rule does not grant it.
	// Tenants must not be able to tell which.
	ImportedVolumeNotFound Reason = "ImportedVolumeNotFound"
	// ImportedSnapshotNotFound: the same for a snapshot that a VolumeSnapshot requests
	// and the tenant did not keep.
	ImportedSnapshotNotFound Reason = "ImportedSnapshotNotFound"
)

// madeForClusters are the metadata keys that cinder-csi and the sidecars of CSI drivers
// write on their volumes and snapshots.
var madeForClusters = []string{"cinder.csi.openstack.org/cluster", "csi.storage.k8s.io/pv/name", "csi.storage.k8s.io/volumesnapshot/name"}

// isAnothers reports whether another driver created a volume or snapshot, perhaps for
// another cluster, which may still write to it.
func isAnothers(metadata map[string]string) bool {
	return metadata[StampPrefix+"claim-uid"] == "" && metadata[StampPrefix+"snapshot-uid"] == "" &&
		slices.ContainsFunc(madeForClusters, func(key string) bool { return metadata[key] != "" })
}

// Grants reports whether the filter grants a volume. A nil filter grants none. Volumes of
// another driver must match by that driver's metadata.
func (f *ImportFilter) Grants(v Existing) bool {
	if f == nil || isAnothers(v.Metadata) && !isAnothers(f.Metadata) || len(f.Names) == 0 && len(f.Types) == 0 && len(f.Metadata) == 0 {
		return false
	}
	named := func(entry string) bool { return names.Matches(entry, v.Name) }
	if len(f.Names) > 0 && !slices.ContainsFunc(f.Names, named) || len(f.Types) > 0 && !slices.Contains(f.Types, v.Type) {
		return false
	}
	for key, value := range f.Metadata {
		if has, ok := v.Metadata[key]; !ok || has != value {
			return false
		}
	}
	return true
}

// String describes the filter as part of a sentence.
func (f *ImportFilter) String() string {
	var parts []string
	if len(f.Names) > 0 {
		parts = append(parts, "with a name like "+strings.Join(f.Names, " or "))
	}
	if len(f.Types) > 0 {
		parts = append(parts, "of type "+strings.Join(f.Types, " or "))
	}
	for _, key := range slices.Sorted(maps.Keys(f.Metadata)) {
		parts = append(parts, fmt.Sprintf("with the metadata %s=%s", key, f.Metadata[key]))
	}
	return strings.Join(parts, ", ")
}

// DecideImport decides whether a claim may have an existing volume at all. The decision
// has the filter and the volume's possible backends; Decide decides about the particular
// volume. The request needs no size.
func (p *Policy) DecideImport(r Request) Decision {
	d := &decider{policy: p, request: r}
	d.decision.Denial = d.runImport()
	return d.decision
}

// ExplainImport decides the same, with Explain's trace.
func (p *Policy) ExplainImport(r Request) Decision {
	d := &decider{policy: p, request: r, explains: true}
	d.decision.Denial = d.runImport()
	return d.decision
}

func (d *decider) runImport() *Denial {
	r := d.request
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
	if denial := importNotGranted(class); denial != nil {
		return denial
	}
	if denial := d.importFrom(class); denial != nil {
		return denial
	}
	d.decision.CSI = d.csiOf(class)
	return d.importInMode(class)
}

// importInMode leaves out the backends whose mode cannot serve the claim's StorageClass.
func (d *decider) importInMode(class *Class) (denial *Denial) {
	// Filesystem support is checked later, with the volume.
	d.request.VolumeMode = Block
	d.decision.Backends = slices.DeleteFunc(d.decision.Backends, func(name string) bool {
		refused := d.checkMode(class, d.policy.backendIndex(name), VolumeProperties{})
		if denial == nil {
			denial = refused
		}
		return refused != nil
	})
	if len(d.decision.Backends) > 0 {
		return nil
	}
	return denial
}

// importFrom adds the filter to the decision, and the backends that may have something it
// grants.
func (d *decider) importFrom(class *Class) *Denial {
	d.decision.Import = class.Import
	for _, name := range class.Backends {
		if i := d.policy.backendIndex(name); i >= 0 && !d.policy.Backends[i].Suspended && !slices.Contains(d.decision.Backends, name) {
			d.decision.Backends = append(d.decision.Backends, name)
		}
	}
	if len(d.decision.Backends) == 0 {
		return &Denial{Reason: BackendsSuspended, Path: class.path + ".backends", Message: fmt.Sprintf(
			"every backend of %s is suspended: %s", class.path, strings.Join(class.Backends, ", "))}
	}
	return nil
}

// importNotGranted denies an import under a rule that grants none.
func importNotGranted(class *Class) *Denial {
	if class.Import != nil {
		return nil
	}
	return &Denial{Reason: ImportNotGranted, Path: class.path, Message: fmt.Sprintf(
		"%s grants no volumes that exist at Cinder; ask an operator to add import to the rule, or for standalone-cinder volume import", class.path)}
}

// checkImport denies a volume that the rule does not grant.
func (d *decider) checkImport(class *Class) *Denial {
	v := d.request.Import
	if v == nil {
		return nil
	}
	if denial := importNotGranted(class); denial != nil {
		return denial
	}
	if !class.Import.Grants(*v) {
		return NoSuchVolume(class.path, v.Wanted)
	}
	if v.Metadata[StampPrefix+"volume-mode"] == string(Block) && d.request.VolumeMode != Block {
		return &Denial{Reason: SourceNotAllowed, Path: class.path, Message: fmt.Sprintf(
			"pods had volume %q as a raw device, and nodes do not mount what they wrote to it; ask for volumeMode: Block, or ask an operator", v.Wanted)}
	}
	d.decision.Import = class.Import
	return nil
}

// NoSuchVolume returns the denial of a claim for a volume that does not exist or is not
// granted by the rule: a tenant must not learn which.
func NoSuchVolume(rule, wanted string) *Denial {
	return &Denial{Reason: ImportedVolumeNotFound, Path: rule + ".import", Message: fmt.Sprintf(
		"%s.import grants no volume with the ID or the name %q on the backends of the rule; correct the claim's annotation, or ask an operator", rule, wanted)}
}

// validateImport checks a rule's filter for existing volumes.
func validateImport(d *document.Document, path string, f *ImportFilter, written map[string]string) {
	if f == nil {
		return
	}
	if len(f.Names) == 0 && len(f.Types) == 0 && len(f.Metadata) == 0 {
		d.Errorf(path, "says nothing about the volumes; give names, types or metadata, and names: [\"*\"] if the rule is to grant every volume of its backends' projects")
	}
	for i, entry := range f.Names {
		at := document.Element(document.Child(path, "names"), i)
		validateListed(d, at, entry, "volume")
		if strings.Contains(entry, "**") {
			d.Errorf(at, "%q cannot be the name of a volume: one * already stands for any run of characters", entry)
		}
	}
	for i, entry := range f.Types {
		at := document.Element(document.Child(path, "types"), i)
		validateListed(d, at, entry, "volume type")
		if names.IsPattern(entry) {
			d.Errorf(at, "%q cannot be the name of a volume type: types are no patterns; list each of them", entry)
		}
	}
	at := document.Child(path, "metadata")
	validateMetadata(d, at, f.Metadata)
	for _, key := range slices.Sorted(maps.Keys(f.Metadata)) {
		if value, ok := written[key]; ok && value != f.Metadata[key] {
			d.Errorf(document.Child(at, key), "asks for %q, but the tenant's metadata writes %q on every volume that it gets; use another key", f.Metadata[key], value)
		}
	}
}

// validateListed checks a name, or a pattern, in a list.
func validateListed(d *document.Document, at, entry, what string) {
	if entry == "" {
		d.Errorf(at, "is empty; give the name of a %s", what)
		return
	}
	validateText(d, at, entry)
}
