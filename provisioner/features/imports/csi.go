package imports

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodeuse"
)

// isCSI reports whether a volume is imported for the CSI driver.
func (i *Importer) isCSI(plan *Plan) bool {
	return plan.Decision.ModeOn(i.Backend.Name) == policy.ModeCSI
}

// checkMode checks what depends on the mode in which the volume is imported, and makes
// the PersistentVolume.
func (i *Importer) checkMode(ctx context.Context, plan *Plan) error {
	if !i.isCSI(plan) {
		switch {
		case len(plan.given) > 0:
			return refused("%s makes native volumes on backend %s, and their filesystems are not identified by UUID; omit the UUID", plan.Decision.Rule, i.Backend.Name)
		case plan.wanted == "" && len(i.Backend.Connector.NodeLabels) > 0 && len(i.Connector.WWPNs) == 0:
			return refused("the connector of backend %s consists of the port names that annotations of nodes list, which this command does not read; name them in connector.wwpns of a copy of the policy", i.Backend.Name)
		}
		if err := mappers.CheckNativeAccessModes(plan.Claim.Spec.AccessModes, i.Backend.Mapping); err != nil {
			return i.refusalError(err)
		}
		plan.PersistentVolume = i.record(plan, backends.Connected{Volume: plan.Volume}, "", mappers.Result{})
		if plan.wanted == "" && !objects.IsBlock(plan.Claim) {
			plan.Warnings = append(plan.Warnings, fmt.Sprintf("a node that gets volume %s as a disk formats it unless it recognizes a filesystem, partition table or encryption on it; if the volume has other data, import it with --volume-mode Block", plan.Volume.ID))
		}
		return nil
	}
	if err := i.findFilesystem(ctx, plan); err != nil {
		return err
	}
	_, pv, err := i.mapVolume(plan, backends.Connected{Volume: plan.Volume})
	if err != nil {
		return err
	}
	if err := plan.checkHandle(pv); err != nil {
		return err
	}
	plan.PersistentVolume = pv
	return i.checkNodes(ctx, plan.Volume.ID, i.useOf(pv, plan.Volume))
}

// findFilesystem finds the UUIDs that the volume's filesystem may have. Only
// administrators, of the cluster or of the project at Cinder, can name them. A
// filesystem that the driver made on a volume has the volume's ID as its UUID.
func (i *Importer) findFilesystem(ctx context.Context, plan *Plan) error {
	v := plan.Volume
	if objects.IsBlock(plan.Claim) {
		if len(plan.given) > 0 {
			return refused("claim %s/%s asks for a raw block device, on which the driver looks for no filesystem; omit the UUID", plan.Claim.Namespace, plan.Claim.Name)
		}
		return nil
	}
	known := slices.Concat(plan.given, stamps.FilesystemUUIDsOf(v))
	if stamps.IsCopy(v) {
		copied, err := i.filesystemOfOriginal(ctx, v)
		if err != nil {
			return err
		}
		known = append(known, copied...)
	}
	isDrivers := stamps.IsCSI(v) && !stamps.IsCopy(v)
	switch {
	case len(known) > 0 || isDrivers:
	case plan.wanted != "":
		return refused("volume %s was not in mode csi, and the UUID of its filesystem, by which the CSI driver identifies it, is not recorded; ask an operator to record it at Cinder: openstack volume set --property %sfilesystem-uuids=UUID %s", v.ID, stamps.Prefix, v.ID)
	default:
		return refused("volume %s was not in mode csi, or was restored from a backup, and the UUID of its filesystem, by which the CSI driver identifies it, is not recorded; give it with --filesystem-uuid", v.ID)
	}
	for _, id := range known {
		if id != v.ID && !slices.Contains(plan.filesystemUUIDs, id) {
			plan.filesystemUUIDs = append(plan.filesystemUUIDs, id)
		}
	}
	return nil
}

// filesystemOfOriginal returns the UUIDs that the filesystem of a restored backup may
// have, as far as the PersistentVolume of the original records them.
func (i *Importer) filesystemOfOriginal(ctx context.Context, v cinder.Volume) ([]string, error) {
	name := stamps.Of(v).PV
	pv, err := read(ctx, i, i.Caches.PersistentVolumes, name, i.Client.CoreV1().PersistentVolumes().Get)
	switch {
	case apierrors.IsNotFound(err) || err == nil && !objects.IsOurs(pv):
		return nil, nil
	case err == nil && objects.IsSwapped(pv):
		return nil, nil // the backup may be of another volume than it has now
	case err != nil:
		return nil, fmt.Errorf("cannot read PersistentVolume %s, which records the filesystem that volume %s is a copy of: %w", name, v.ID, err)
	}
	return objects.FilesystemUUIDsOf(pv, pv.Annotations[objects.AnnotationVolume]), nil
}

// recordUUIDs returns the UUIDs to be recorded on the volume: those that an operator
// gave, even if one is the volume's own ID, and the others that are known.
func (p *Plan) recordUUIDs() []string {
	recorded := slices.Clone(p.filesystemUUIDs)
	if slices.Contains(p.given, p.Volume.ID) {
		recorded = append(recorded, p.Volume.ID)
	}
	return recorded
}

// mapCSI returns how nodes reach a volume by the CSI driver.
func (i *Importer) mapCSI(plan *Plan, v cinder.Volume) (mappers.Result, error) {
	return objects.MapCSI(objects.CSIVolume{
		PVName: plan.pvName(), Backend: i.Backend.Name, VolumeID: v.ID, SecretNamespace: i.Namespace,
		AccessModes: plan.Claim.Spec.AccessModes, Block: objects.IsBlock(plan.Claim), FSType: plan.Decision.Volume.FSType,
		FilesystemUUIDs: plan.filesystemUUIDs, NeverFormat: true, Encrypted: plan.encrypted, MultiAttach: v.MultiAttach,
	})
}

// checkEncryption refuses a volume that nodes would open otherwise than the rule says.
// The rules that grant volumes to tenants encrypt none, so an operator answers for whose
// key a volume's metadata records.
func (p *Plan) checkEncryption() error {
	text, has := p.Volume.Metadata[stamps.KeyEncryption]
	switch encrypts := p.Decision.Volume.Encrypt != nil; {
	case has && !encrypts:
		return refused("volume %s is encrypted by nodes (its metadata has %s), but %s has no encrypt; import it with a StorageClass whose rule has it", p.Volume.ID, stamps.KeyEncryption, p.Decision.Rule)
	case !has && encrypts:
		return refused("volume %s is not encrypted by nodes, but %s encrypts its volumes (encrypt); import it with a StorageClass whose rule does not", p.Volume.ID, p.Decision.Rule)
	case !has:
		return nil
	}
	record, err := stamps.ParseEncryptionRecord(text)
	if err != nil {
		return refused("volume %s is encrypted by nodes, and %v", p.Volume.ID, err)
	}
	p.encrypted = record.Origin
	p.Warnings = append(p.Warnings, fmt.Sprintf("nodes will open volume %s with the key that was made for claim UID %s; make sure that its content is not another tenant's", p.Volume.ID, record.Origin))
	return nil
}

// useOf returns how nodes know a volume. A volume of the CSI driver is also looked for
// by its ID, because a driver of another name may have given it to nodes.
func (i *Importer) useOf(pv *corev1.PersistentVolume, v cinder.Volume) nodeuse.Volume {
	use := nodeuse.VolumeOf(pv)
	if objects.IsCSI(pv) {
		use.ID = v.ID
	}
	return use
}

// warnFilesystem warns about UUIDs that a PersistentVolume lacks, because its source
// cannot be changed.
func (p *Plan) warnFilesystem(pv *corev1.PersistentVolume) {
	has := objects.FilesystemUUIDsOf(pv, p.Volume.ID)
	missing := slices.DeleteFunc(slices.Clone(p.given), func(id string) bool { return slices.Contains(has, id) })
	if len(missing) > 0 {
		p.Warnings = append(p.Warnings, fmt.Sprintf("PersistentVolume %s does not have the filesystem UUID %s, and its source cannot be changed; to import the volume with it, delete the claim and then the PersistentVolume, and run the command again", pv.Name, strings.Join(missing, ", ")))
	}
}
