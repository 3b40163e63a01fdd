package policy

import (
	"fmt"
	"reflect"

	"github.com/standalone-cinder/standalone-cinder/policy/document"
	"github.com/standalone-cinder/standalone-cinder/policy/names"
)

// Source is the origin of a requested volume's content: another claim's volume, or a
// snapshot.
type Source struct {
	// Name is the source's name in messages, such as "claim team-a/data".
	Name string
	// IsSnapshot distinguishes a snapshot or a backup from a claim's volume.
	IsSnapshot bool
	// IsBackup means that every backend of the same project at the same Cinder can copy it.
	IsBackup bool
	// Tenant is the one that the source was created for.
	Tenant string
	// Backend has the source. Content other than a backup's is never copied between
	// backends.
	Backend    string
	SizeGiB    int64
	VolumeMode VolumeMode
	// Mode is ModeCSI for a volume of the CSI driver.
	Mode Mode
	// FilesystemKnown means that the UUID of the source's filesystem is recorded;
	// otherwise the CSI driver mounts no copy of it.
	FilesystemKnown bool
	// Encrypted means that nodes encrypt the source, by a rule with encrypt.
	Encrypted bool
}

// The reasons to deny a claim because of its source. Decide returns the first and the
// last; the others are decided before the policy is consulted.
const (
	// SourceNotAllowed: the source belongs to another tenant, has another volume mode, or
	// is encrypted unlike the rule's volumes.
	SourceNotAllowed Reason = "SourceNotAllowed"
	// SourceNotFound: there is none of that name.
	SourceNotFound Reason = "SourceNotFound"
	// SourceNotReady: it has no content yet.
	SourceNotReady Reason = "SourceNotReady"
	// SourceNotOurs: this program did not create it, or its owner is unknown.
	SourceNotOurs Reason = "SourceNotOurs"
	// SourceOnOtherBackend: the claim's rule does not use the source's backend.
	SourceOnOtherBackend Reason = "SourceOnOtherBackend"
)

// checkSource denies a claim that may not have its source's content, or has no room for
// it.
func (d *decider) checkSource(tenant *Tenant, class *Class, volume VolumeProperties) *Denial {
	source := d.request.Source
	if source == nil {
		return nil
	}
	mode := d.request.VolumeMode
	if mode == "" {
		mode = Filesystem
	}
	switch {
	case !tenant.mayCopy(*source):
		return &Denial{Reason: SourceNotAllowed, Path: class.path, Message: fmt.Sprintf(
			"%s was made for tenant %q, and namespace %s belongs to tenant %s; content is never copied from one tenant to another", source.Name, source.Tenant, d.request.Namespace, tenant.Name)}
	case source.VolumeMode != "" && source.VolumeMode != mode:
		return &Denial{Reason: SourceNotAllowed, Path: class.path, Message: fmt.Sprintf(
			"%s has volume mode %s, but the claim asks for %s; ask for the same mode", source.Name, source.VolumeMode, mode)}
	case source.Encrypted && class.Encrypt == nil:
		return &Denial{Reason: SourceNotAllowed, Path: class.path, Message: fmt.Sprintf(
			"%s is encrypted by nodes, and so would be its copy, but %s has no encrypt; ask for a StorageClass whose rule has it", source.Name, class.path)}
	case !source.Encrypted && class.Encrypt != nil:
		return &Denial{Reason: SourceNotAllowed, Path: document.Child(class.path, "encrypt"), Message: fmt.Sprintf(
			"%s is not encrypted, so its copy would not be either, but %s encrypts its volumes (encrypt); ask for a StorageClass whose rule does not, or copy the files in a pod", source.Name, class.path)}
	case volume.SizeGiB < source.SizeGiB:
		return &Denial{Reason: VolumeTooSmall, Path: class.path, Message: fmt.Sprintf(
			"the volume would have %d GiB, but %s has %d GiB; ask for at least that", volume.SizeGiB, source.Name, source.SizeGiB)}
	}
	return nil
}

// mayCopy reports whether the tenant's claims may have the content of a source. Even a
// tenant that restores any snapshot clones only its own volumes: a snapshot is a copy
// that a user created on purpose.
func (t *Tenant) mayCopy(source Source) bool {
	return source.Tenant == t.Name || t.RestoreAnySnapshot && source.IsSnapshot
}

// validateRestoreAnySnapshot keeps a tenant that restores any snapshot from having
// namespaces that other users could add by a name or label, and from filling the backends
// with other tenants' data.
func validateRestoreAnySnapshot(d *document.Document, path string, t *Tenant) {
	if !t.RestoreAnySnapshot {
		return
	}
	const instead = "but the tenant has restoreAnySnapshot: true, so the owner of such a namespace could read every tenant's snapshots; "
	for i, entry := range t.Namespaces {
		if names.IsPattern(entry) {
			d.Errorf(document.Element(document.Child(path, "namespaces"), i), "%q is a pattern, %slist the namespaces by their names, or make them a tenant of their own", entry, instead)
		}
	}
	if at := document.Child(path, "namespaceSelector"); t.NamespaceSelector != nil {
		d.Errorf(at, "selects namespaces by their labels, %sremove it, and list the namespaces by their names", instead)
	}
	if t.Quota.Volumes == nil && t.Quota.Gigabytes == nil {
		d.Errorf(document.Child(path, "restoreAnySnapshot"), "needs a quota: what is restored counts for tenant %s and not for the tenants that the snapshots belong to; give the tenant quota.volumes or quota.gigabytes", t.Name)
	}
}

// withoutSource denies the backends of a rule that do not have the source.
func (d *decider) withoutSource(backend string) *Denial {
	source := d.request.Source
	if source == nil || source.Backend == backend || source.IsBackup && sameCinder(d.policy, source.Backend, backend) {
		return nil
	}
	return &Denial{Reason: SourceOnOtherBackend, Message: fmt.Sprintf("%s is on backend %s", source.Name, source.Backend)}
}

// sameCinder reports whether two backends log in to the same project at the same Cinder, as
// far as the policy shows.
func sameCinder(p *Policy, one, other string) bool {
	a, hasOne := p.Backend(one)
	b, hasOther := p.Backend(other)
	return hasOne && hasOther && reflect.DeepEqual(a.Auth, b.Auth) && a.Region == b.Region && a.Endpoint == b.Endpoint
}
