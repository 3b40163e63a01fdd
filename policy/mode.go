package policy

import (
	"fmt"
	"iter"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/standalone-cinder/standalone-cinder/mappers/mapping"
	"github.com/standalone-cinder/standalone-cinder/policy/document"
)

// Mode is how a rule's volumes reach the nodes.
type Mode string

const (
	// ModeNative creates PersistentVolumes that kubelets mount without this program's
	// driver; all nodes share one connection. It is the default.
	ModeNative Mode = "native"
	// ModeCSI creates PersistentVolumes of this program's CSI driver, which attaches a
	// volume to each node that uses it.
	ModeCSI Mode = "csi"
)

// CSIDriver is the name of this program's CSI driver. A StorageClass that names it as its
// provisioner gets volumes in mode csi only.
const CSIDriver = "standalone-cinder.openstack.org"

// Modes returns the known modes.
func Modes() []string { return []string{string(ModeNative), string(ModeCSI)} }

// CSIFileSystems returns the filesystems that the CSI driver can create.
func CSIFileSystems() []string { return []string{"ext4", "xfs"} }

// Fencing is, for mode csi, whether the array keeps a node out of a volume that was
// detached from it.
type Fencing string

const (
	// FencingInitiator means that the array shows a volume only to the initiators that it
	// is attached to.
	FencingInitiator Fencing = "initiator"
	// FencingExport means that a node may reach a volume exported to another one. It is
	// the default, because it holds for every driver.
	FencingExport Fencing = "export"
)

// FencingModes returns the known values of Fencing.
func FencingModes() []string { return []string{string(FencingInitiator), string(FencingExport)} }

// MaxVolumesPerNode is the largest limit of volumes on a node.
const MaxVolumesPerNode = 65535

// Fencing returns whether the array keeps a lost node out of the backend's volumes.
func (b Backend) Fencing() Fencing {
	if b.CSI != nil && b.CSI.Fencing == FencingInitiator {
		return FencingInitiator
	}
	return FencingExport
}

// VolumesPerNode returns how many of the backend's volumes can be attached to a node; 0
// means any number.
func (b Backend) VolumesPerNode() int {
	if b.CSI == nil || b.CSI.MaxVolumesPerNode == nil {
		return 0
	}
	return int(*b.CSI.MaxVolumesPerNode)
}

// CephSecret returns the name of the Secret with which nodes reach the backend's images of
// Ceph; empty if there is none.
func (b Backend) CephSecret() string {
	if b.CSI == nil {
		return ""
	}
	return b.CSI.CephSecret
}

// FixedKeySecret returns the name of the Secret with the fixed key of the backend's Cinder;
// empty if there is none.
func (b Backend) FixedKeySecret() string {
	if b.CSI == nil || b.CSI.Encryption == nil {
		return ""
	}
	return b.CSI.Encryption.FixedKeySecret
}

// UnsupportedMode is the reason for denying a claim that requests something that the
// rule's mode on its backends does not support.
const UnsupportedMode Reason = "UnsupportedMode"

// ModeOn returns the mode of the volume on a backend of the rule.
func (d Decision) ModeOn(backend string) Mode {
	if slices.Contains(d.CSI, backend) {
		return ModeCSI
	}
	return ModeNative
}

// Rules returns the rules of all tenants, in their order.
func (p *Policy) Rules() iter.Seq[*Class] {
	return func(yield func(*Class) bool) {
		for i := range p.Tenants {
			for j := range p.Tenants[i].Classes {
				if !yield(&p.Tenants[i].Classes[j]) {
					return
				}
			}
		}
	}
}

// UsesCSI reports whether any rule creates volumes in mode csi.
func (p *Policy) UsesCSI() bool { return p.CSIPath() != "" }

// CSIBackends returns the names of the backends on which a rule makes volumes in mode csi.
func (p *Policy) CSIBackends() []string {
	var names []string
	for c := range p.Rules() {
		for _, name := range c.Backends {
			if k := p.backendIndex(name); k >= 0 && c.isCSI(&p.Backends[k]) && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// ModesOn returns the modes in which rules create volumes on a backend, or the backend's
// mode if no rule names it.
func (p *Policy) ModesOn(backend string) (modes []Mode) {
	k := p.backendIndex(backend)
	if k < 0 {
		return nil
	}
	for c := range p.Rules() {
		if mode := c.ModeOn(p.Backends[k]); slices.Contains(c.Backends, backend) && !slices.Contains(modes, mode) {
			modes = append(modes, mode)
		}
	}
	if len(modes) == 0 {
		modes = []Mode{Class{}.ModeOn(p.Backends[k])}
	}
	return modes
}

// CSIPath returns the path of the first value that effectively requests mode csi; it is
// empty if there is none.
func (p *Policy) CSIPath() string {
	for c := range p.Rules() {
		for _, name := range c.Backends {
			if k := p.backendIndex(name); k >= 0 && c.isCSI(&p.Backends[k]) {
				return p.modePath(c, k)
			}
		}
	}
	return ""
}

// isCSI reports whether the rule's volumes on a backend are for the CSI driver.
func (c *Class) isCSI(b *Backend) bool {
	if c.Mode != "" {
		return c.Mode == ModeCSI
	}
	return b.Mode == ModeCSI
}

// ModeOn returns the mode of the rule's volumes on a backend.
func (c Class) ModeOn(b Backend) Mode {
	if c.isCSI(&b) {
		return ModeCSI
	}
	return ModeNative
}

// modePath returns the value that decides the mode of a rule's volumes on a backend, or
// the rule if none does.
func (p *Policy) modePath(c *Class, backend int) string {
	for _, at := range []string{document.Child(c.path, "mode"), document.Element("backends", backend) + ".mode", "defaults.mode"} {
		if _, given := p.positions[at]; given {
			return at
		}
	}
	return c.path
}

// csiOf lists the rule's backends on which its volumes are for the CSI driver.
func (d *decider) csiOf(c *Class) []string {
	var names []string
	for _, name := range c.Backends {
		if i := d.policy.backendIndex(name); i >= 0 && c.isCSI(&d.policy.Backends[i]) && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// checkMode denies what the rule's mode on a backend does not support.
func (d *decider) checkMode(c *Class, backend int, volume VolumeProperties) *Denial {
	b, source := &d.policy.Backends[backend], d.request.Source
	deny := func(format string, args ...any) *Denial {
		return &Denial{Reason: UnsupportedMode, Path: d.policy.modePath(c, backend), Message: fmt.Sprintf(format, args...)}
	}
	if !c.isCSI(b) {
		if d.request.Attributes != nil {
			return d.nativeAttributes(c.path+" on backend "+b.Name, d.policy.modePath(c, backend))
		}
		if d.request.Driver == "" {
			return nil
		}
		return deny("StorageClass %s names the CSI driver %s as its provisioner, but %s makes native volumes on backend %s; give the rule mode: csi, or name the program itself as the provisioner",
			d.request.StorageClass, d.request.Driver, c.path, b.Name)
	}
	block := d.request.VolumeMode == Block
	switch {
	case !block && !slices.Contains(CSIFileSystems(), volume.FSType):
		return deny("%s makes volumes in mode csi on backend %s, where the filesystem can be %s, not %s", c.path, b.Name, strings.Join(CSIFileSystems(), " or "), volume.FSType)
	case !block && source != nil && source.Mode != ModeCSI && !source.FilesystemKnown:
		return deny("%s is a native volume, and %s makes volumes in mode csi on backend %s: the CSI driver mounts only filesystems that it can identify by UUID, and no UUID is recorded for this one; copy it in mode native, or have an administrator record the UUID (docs/how-to/native-to-csi.md)", source.Name, c.path, b.Name)
	}
	return nil
}

func validateModeOf(d *document.Document, path string, value Mode) {
	validateWord(d, path, "mode", value, Modes(), "the modes are")
}

func validateCSI(d *document.Document, path string, c *CSI) {
	if c == nil {
		return
	}
	validateWord(d, document.Child(path, "fencing"), "fencing", c.Fencing, FencingModes(), "it can be")
	if at := document.Child(path, "maxVolumesPerNode"); c.MaxVolumesPerNode != nil && (*c.MaxVolumesPerNode < 1 || *c.MaxVolumesPerNode > MaxVolumesPerNode) {
		d.Errorf(at, "must be between 1 and %d, not %d; leave it out for any number", MaxVolumesPerNode, *c.MaxVolumesPerNode)
	}
	if at := document.Child(path, "cephSecret"); d.Has(at) && len(validation.IsDNS1123Subdomain(c.CephSecret)) > 0 {
		d.Errorf(at, "%q cannot be the name of a Secret of the program's namespace", c.CephSecret)
	}
	if at := document.Child(path, "encryption"); c.Encryption != nil && len(validation.IsDNS1123Subdomain(c.Encryption.FixedKeySecret)) > 0 {
		d.Errorf(document.Child(at, "fixedKeySecret"), "%q cannot be the name of a Secret of the program's namespace", c.Encryption.FixedKeySecret)
	}
}

// validateModes checks what only rules and backends together reveal.
func (v *validator) validateModes() {
	usedNative := make([]bool, len(v.Backends))
	usedCSI := make([]bool, len(v.Backends))
	refused := make([]bool, len(v.Backends))
	for c := range v.Rules() {
		csi, all := 0, 0
		for _, name := range c.Backends {
			k := v.backendIndex(name)
			if k < 0 {
				continue
			}
			all++
			if !c.isCSI(&v.Backends[k]) {
				usedNative[k] = true
				if c.Encrypt != nil {
					v.Errorf(document.Child(c.path, "encrypt"), "encrypt needs mode csi, because the CSI driver encrypts on the node, and no kubelet does; but the rule makes native volumes on backend %q; give the rule mode: csi, or remove one of the two", name)
				}
				continue
			}
			csi++
			usedCSI[k] = true
			if v.Backends[k].Workflow == WorkflowReserve && !refused[k] {
				refused[k] = true
				v.Errorf(v.modePath(c, k), "mode csi needs the attachments API, but backend %q has workflow: reserve; remove that, or use mode native", name)
			}
		}
		if csi == 0 {
			if len(c.VolumeTypes) > 0 && all > 0 {
				v.Warnf(document.Child(c.path, "volumeTypes"), "volumeTypes has no effect: the rule makes native volumes only, which cannot have a VolumeAttributesClass; give the rule mode: csi, or remove it")
			}
			continue
		}
		if at := document.Child(c.path, "fsType"); c.FSType != "" && slices.Contains(FileSystems(), c.FSType) && !slices.Contains(CSIFileSystems(), c.FSType) {
			v.Errorf(at, "the rule makes volumes in mode csi, where the filesystem can be %s, not %s", strings.Join(CSIFileSystems(), " or "), c.FSType)
		}
	}
	for path, message := range v.BothModes(v.ProjectOf) {
		v.Warnf(path, "%s", message)
	}
	for k := range v.Backends {
		b, path := &v.Backends[k], document.Element("backends", k)
		// Trials (policy check --make-volume) need the other keys of the connector: these have
		// no default.
		for _, key := range []string{"mapping", "connector.host", "connector.initiator", "connector.multipath"} {
			if at := path + "." + key; v.Has(at) && usedCSI[k] && !usedNative[k] {
				v.Warnf(at, "%s has no effect: every rule that uses backend %q makes volumes in mode csi, which the program's own driver attaches; remove it", key, b.Name)
			}
		}
		if b.CSI != nil && !usedCSI[k] {
			v.Warnf(document.Child(path, "csi"), "csi has no effect: no rule makes volumes in mode csi on backend %q; give the backend or a rule mode: csi, or remove it", b.Name)
		}
		for protocol, m := range b.Mapping {
			if at := document.Child(document.Child(path, "mapping"), protocol); m.As == mapping.CSI && m.Driver == CSIDriver {
				v.Errorf(document.Child(at, "driver"), "%q is this program's own driver, which needs no mapping; write mode: csi in place of it", CSIDriver)
			}
		}
	}
}

// BothModes returns messages about backends, by their paths, whose volumes in mode csi can
// be on one node with native ones of the same Cinder project. If their array has one iSCSI
// target for many volumes, which the policy does not show, the kubelet finds the disks of
// native volumes by the target's name alone, and mistakes the driver's session for its
// own. project describes a backend's project; empty means unknown.
func (p *Policy) BothModes(project func(Backend) string) map[string]string {
	messages := map[string]string{}
	for i := range p.Backends {
		csi := &p.Backends[i]
		at := project(*csi)
		if at == "" || !makes(p, ModeCSI, csi) {
			continue
		}
		for k := range p.Backends {
			native := &p.Backends[k]
			if native.usesDrivers() || !makes(p, ModeNative, native) || project(*native) != at || apart(csi, native) {
				continue
			}
			who := fmt.Sprintf("backend %q has volumes in both modes", csi.Name)
			if i != k {
				who = fmt.Sprintf("backend %q has volumes in mode csi, and backend %q native ones of the same project (%s)", csi.Name, native.Name, at)
			}
			messages[document.Element("backends", i)] = who + ", and a node can have both: if the array has one iSCSI target for many volumes, a native pod there can get another volume, and disks in use can be removed; give each mode a backend and nodes of its own (connector.nodeLabels that no node can have at once), unless each volume has its own target, as with Cinder's LVM driver (docs/how-to/choose-mode.md#keep-the-modes-on-separate-nodes)"
			break
		}
	}
	return messages
}

// makes reports whether a rule makes volumes in a mode on a backend.
func makes(p *Policy, mode Mode, b *Backend) bool {
	for c := range p.Rules() {
		if slices.Contains(c.Backends, b.Name) && c.ModeOn(*b) == mode {
			return true
		}
	}
	return false
}

// apart reports whether no node can use volumes of both backends.
func apart(a, b *Backend) bool {
	for _, one := range a.reaches("") {
		for _, other := range b.reaches("") {
			differs := false
			for key, value := range one.labels {
				if theirs, both := other.labels[key]; both && theirs != value {
					differs = true
				}
			}
			if !differs {
				return false
			}
		}
	}
	return true
}
