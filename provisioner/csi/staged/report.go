// Package staged is what a node says of the volumes that it has staged: the report that
// its node plugin keeps in a Lease, and what that report proves to the leader.
//
// Nobody else can say it. A kubelet that was restarted does not list in its Node's status
// what is only staged, or what kube-controller-manager has detached meanwhile
// (pkg/kubelet/volumemanager/reconciler/reconstruct.go), although the kernel still has
// the filesystem, with data to write.
package staged

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

// leasePrefix begins the names of the Leases. The admission policy of the manifests
// allows a node plugin no other name than that of its own node.
const leasePrefix = "staged-volumes."

// LeaseName returns the name of the Lease in which a node's plugin reports.
func LeaseName(node string) string { return leasePrefix + node }

// NodeOf returns the node whose plugin reports in a Lease; empty for any other Lease.
func NodeOf(lease string) string {
	node, found := strings.CutPrefix(lease, leasePrefix)
	if !found {
		return ""
	}
	return node
}

// Labels select the Leases with reports.
func Labels() map[string]string {
	return map[string]string{"app.kubernetes.io/name": "standalone-cinder-node", "app.kubernetes.io/component": "staged-volumes"}
}

// The annotations of a Lease with a report.
const (
	// AnnotationVolumes has the handles of the staged volumes, separated by spaces. An
	// operator who removes it says that the node has none.
	AnnotationVolumes = "standalone-cinder.openstack.org/staged-volumes"
	// AnnotationMounts has the names of the native volumes that kubelet has mounted,
	// separated by spaces.
	AnnotationMounts = "standalone-cinder.openstack.org/kubelet-mounts"
	// AnnotationEnded has the IDs of attachments that the leader has ended although the
	// node may be about to stage a volume with them, separated by spaces.
	AnnotationEnded = "standalone-cinder.openstack.org/ended-attachments"
	// AnnotationPassphrases has, for volumes that get a new passphrase, which passphrases open
	// the header that the plugin has seen: a handle, =, and what wire.PassphraseName and
	// wire.Absent return, separated by commas.
	AnnotationPassphrases = "standalone-cinder.openstack.org/volume-passphrases"
	// AnnotationSystemUUID and AnnotationMachineID identify the machine, like the fields
	// of these names in a Node's status.
	AnnotationSystemUUID = "standalone-cinder.openstack.org/system-uuid"
	AnnotationMachineID  = "standalone-cinder.openstack.org/machine-id"
)

// maxVolumes bounds how many volumes of a report are read. No node has room for as many.
const maxVolumes = 4096

// maxNames bounds the names of the passphrases of one volume, in bytes.
const maxNames = 256

// MaxEnded bounds how many ended attachments a Lease has: the last ones. All volumes of a
// node may be detached at once.
const MaxEnded = 1024

// Machine identifies one boot of a machine.
type Machine struct {
	// SystemUUID is the UUID of its firmware, and MachineID that of its operating system.
	// Either may be empty.
	SystemUUID, MachineID string
	// Boot is the ID of the boot.
	Boot string
}

// MachineOf returns the machine that a kubelet runs on.
func MachineOf(node *corev1.Node) Machine {
	info := node.Status.NodeInfo
	return Machine{SystemUUID: info.SystemUUID, MachineID: info.MachineID, Boot: info.BootID}
}

// IsSame reports whether two boots are known to be of one machine.
func (m Machine) IsSame(other Machine) bool {
	if m.Boot != "" && m.Boot == other.Boot {
		return true
	}
	if m.SystemUUID != "" && other.SystemUUID != "" {
		return strings.EqualFold(m.SystemUUID, other.SystemUUID)
	}
	return m.MachineID != "" && m.MachineID == other.MachineID
}

// Report is what a node plugin says.
type Report struct {
	Machine
	// Volumes are the handles of the volumes that are staged, or being staged, in order.
	Volumes []string
	// Mounts are the names of the native volumes that kubelet has mounted, in order.
	Mounts []string
	// Passphrases are what was proven of the passphrases of a volume, by its handle.
	Passphrases map[string][]string
	// Ended are the attachments with which nothing may be staged any more, the last one
	// last. The leader writes them, and the plugin keeps them.
	Ended []string
	// Written is when the report last changed.
	Written time.Time
}

// Lease returns the Lease with a report, for the plugin of a node.
func (r Report) Lease(namespace, node string) *coordinationv1.Lease {
	boot, written := r.Boot, metav1.NewMicroTime(r.Written)
	var proven []string
	for _, handle := range slices.Sorted(maps.Keys(r.Passphrases)) {
		proven = append(proven, handle+"="+strings.Join(r.Passphrases[handle], ","))
	}
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: LeaseName(node), Labels: Labels(), Annotations: map[string]string{
			AnnotationVolumes: strings.Join(r.Volumes, " "), AnnotationMounts: strings.Join(r.Mounts, " "),
			AnnotationEnded: strings.Join(r.Ended, " "), AnnotationSystemUUID: r.SystemUUID, AnnotationMachineID: r.MachineID,
		}},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &boot, RenewTime: &written},
	}
	if len(proven) > 0 {
		lease.Annotations[AnnotationPassphrases] = strings.Join(proven, " ")
	}
	return lease
}

// Of reads what Lease writes. It leaves out what cannot be a handle, since the node may
// have written anything.
func Of(lease *coordinationv1.Lease) Report {
	r := Report{Machine: Machine{SystemUUID: lease.Annotations[AnnotationSystemUUID], MachineID: lease.Annotations[AnnotationMachineID]}}
	if lease.Spec.HolderIdentity != nil {
		r.Boot = *lease.Spec.HolderIdentity
	}
	if lease.Spec.RenewTime != nil {
		r.Written = lease.Spec.RenewTime.Time
	}
	for handle := range strings.FieldsSeq(lease.Annotations[AnnotationVolumes]) {
		if _, err := wire.ParseHandle(handle); err == nil && len(r.Volumes) < maxVolumes {
			r.Volumes = append(r.Volumes, handle)
		}
	}
	for name := range strings.FieldsSeq(lease.Annotations[AnnotationMounts]) {
		if isMount(name) && len(r.Mounts) < maxVolumes {
			r.Mounts = append(r.Mounts, name)
		}
	}
	slices.Sort(r.Volumes)
	slices.Sort(r.Mounts)
	for text := range strings.FieldsSeq(lease.Annotations[AnnotationPassphrases]) {
		handle, names, _ := strings.Cut(text, "=")
		if _, listed := slices.BinarySearch(r.Volumes, handle); !listed || len(names) > maxNames {
			continue
		}
		if r.Passphrases == nil {
			r.Passphrases = map[string][]string{}
		}
		r.Passphrases[handle] = strings.Split(names, ",")
	}
	for attachment := range strings.FieldsSeq(lease.Annotations[AnnotationEnded]) {
		r.Ended = append(r.Ended, attachment)
	}
	r.Ended = r.Ended[max(0, len(r.Ended)-MaxEnded):]
	return r
}

// End returns a Lease that forbids its node to stage anything with some attachments. It must
// replace just this version of the Lease: then a volume that it does not name is not
// staged with any of them, even if the node pauses now, because the plugin, too,
// replaces only the version that it has read.
func End(lease *coordinationv1.Lease, attachments ...string) *coordinationv1.Lease {
	ended := append(Of(lease).Ended, attachments...)
	lease = lease.DeepCopy()
	metav1.SetMetaDataAnnotation(&lease.ObjectMeta, AnnotationEnded, strings.Join(ended[max(0, len(ended)-MaxEnded):], " "))
	return lease
}

// Has reports whether the machine that wrote the report may still write to a volume.
func (r Report) Has(volume string, node *corev1.Node) bool {
	_, listed := slices.BinarySearch(r.Volumes, volume)
	return listed && r.Holds(node)
}

// Holds reports whether what the report names is still on the machine that wrote it. node
// is the Node object of that name at present; nil if it is deleted, by which an operator
// says that the machine is gone. What another boot of the machine had staged is not
// mounted any more. Another machine under the name says nothing about the first one,
// unless the Node was deleted in between.
func (r Report) Holds(node *corev1.Node) bool {
	if node == nil {
		return false
	}
	now := MachineOf(node)
	if r.IsSame(now) {
		return now.Boot == "" || now.Boot == r.Boot
	}
	return !r.IsOver(node)
}

// IsOver reports whether the Node of the machine that wrote the report was deleted, and
// another machine has taken its name.
func (r Report) IsOver(node *corev1.Node) bool {
	return !r.IsSame(MachineOf(node)) && node.CreationTimestamp.After(r.Written)
}

// Ended returns how an operator can tell that a node has let go of a volume.
func Ended(node string) string {
	return fmt.Sprintf("the node plugin of %s has unstaged it, %s has rebooted, its Node object is deleted, or it is off and tainted %s", node, node, corev1.TaintNodeOutOfService)
}

// OwnTaint is the value of the out-of-service taint that the program itself sets.
const OwnTaint = "standalone-cinder"

// IsOff reports whether an administrator has declared a node off. The program's own taint
// says less: the array keeps the node out of what was taken from it, and the node may run.
func IsOff(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool {
		return taint.Key == corev1.TaintNodeOutOfService && taint.Value != OwnTaint
	})
}

// foreign returns an error if another machine's report must not be replaced.
func (r Report) foreign(by Machine, node string) error {
	if len(r.Volumes)+len(r.Mounts) == 0 || r.IsSame(by) {
		return nil
	}
	return fmt.Errorf("Lease %s says that another machine, %s, has %d volumes staged or mounted under the name of node %s; if that machine is gone for good, delete the Node object %s, and restart the kubelet here",
		LeaseName(node), cmp.Or(r.SystemUUID, r.MachineID, "of unknown ID"), len(r.Volumes)+len(r.Mounts), node, node)
}
