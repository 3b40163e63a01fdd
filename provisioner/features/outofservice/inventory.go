package outofservice

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/staged"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodemark"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/paging"
)

// Reason is why a silent node is left alone. It labels a metric.
type Reason string

const (
	// Volume means that the node uses a volume that the array does not keep it out of.
	Volume Reason = "volume"
	// Identity means that a pod may have no twin, and no volume keeps that one out.
	Identity Reason = "identity"
	// Share means that too many nodes are out of service or not Ready.
	Share Reason = "share"
	// Returned means that the node came back without a reboot before.
	Returned Reason = "returned"
	// Unreported means that it is not known what the node has.
	Unreported Reason = "unreported"
	// Failing means that the last attempt failed.
	Failing Reason = "failing"
)

// Refusal says why a silent node is left alone.
type Refusal struct {
	Reason Reason
	// Why names the culprit.
	Why string
}

func refuse(reason Reason, format string, arguments ...any) *Refusal {
	return &Refusal{reason, fmt.Sprintf(format, arguments...)}
}

// inventory returns the volumes that are to be taken from a node, or why it is left alone:
// something there could be written by two nodes, or could run twice although it must not.
func (c *Controller) inventory(ctx context.Context, node *corev1.Node) ([]wire.Handle, *Refusal, error) {
	found := &found{of: c, node: node.Name, volumes: map[wire.Handle]bool{}}
	pods, err := c.podsOn(ctx, node.Name)
	if err != nil {
		return nil, nil, err
	}
	for i := range pods {
		if refusal := found.pod(&pods[i]); refusal != nil {
			return nil, refusal, nil
		}
	}
	names := slices.Clone(node.Status.VolumesInUse)
	for _, attached := range node.Status.VolumesAttached {
		names = append(names, attached.Name)
	}
	for _, name := range names {
		if refusal := found.inUse(string(name)); refusal != nil {
			return nil, refusal, nil
		}
	}
	lease, err := c.Client.CoordinationV1().Leases(c.Namespace).Get(ctx, staged.LeaseName(node.Name), metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, nil, fmt.Errorf("cannot tell what node %s has staged: %w", node.Name, err)
	}
	reported := err == nil
	if reported {
		if refusal := found.report(staged.Of(lease), node); refusal != nil {
			return nil, refusal, nil
		}
	}
	// Last, since it lists those of all nodes.
	attachments, err := paging.List(ctx, "VolumeAttachments", c.Client.StorageV1().VolumeAttachments().List, func(page *storagev1.VolumeAttachmentList) []storagev1.VolumeAttachment {
		return slices.DeleteFunc(page.Items, func(a storagev1.VolumeAttachment) bool { return a.Spec.NodeName != node.Name })
	})
	if err != nil {
		return nil, nil, fmt.Errorf("cannot tell which volumes are attached to node %s: %w", node.Name, err)
	}
	for i := range attachments {
		if refusal := found.attachment(&attachments[i]); refusal != nil {
			return nil, refusal, nil
		}
	}
	if len(found.volumes) > staged.MaxEnded {
		return nil, refuse(Volume, "it has or names %d volumes, and only %d can be forbidden to it", len(found.volumes), staged.MaxEnded), nil
	}
	if !reported && len(found.volumes) > 0 {
		return nil, refuse(Unreported, "its node plugin has not reported what it has staged"), nil
	}
	return found.all(), nil, nil
}

// found are the volumes that were found on a node.
type found struct {
	of      *Controller
	node    string
	volumes map[wire.Handle]bool
}

// all returns the volumes in order.
func (f *found) all() []wire.Handle {
	var all []wire.Handle
	for volume := range f.volumes {
		all = append(all, volume)
	}
	slices.SortFunc(all, func(a, b wire.Handle) int { return strings.Compare(a.String(), b.String()) })
	return all
}

// add notes a volume of the driver, and returns what is wrong with it.
func (f *found) add(handle string) string {
	volume, err := wire.ParseHandle(handle)
	if err != nil {
		return fmt.Sprintf("%.200q, which is no handle of the driver", handle)
	}
	if !f.of.Attachments.IsFenced(volume) {
		return fmt.Sprintf("%s, and its backend does not say fencing: initiator, so the node may still write to it", volume)
	}
	f.volumes[volume] = true
	return ""
}

// pod notes the volumes of a pod.
func (f *found) pod(pod *corev1.Pod) *Refusal {
	name := pod.Namespace + "/" + pod.Name
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return nil
	}
	everywhere, fenced := runsEverywhere(pod), false
	for i := range pod.Spec.Volumes {
		volume := &pod.Spec.Volumes[i]
		if isLocal(volume) {
			continue
		}
		claim := claimOf(pod, volume)
		if claim == "" {
			if everywhere {
				continue // The taint starts no twin elsewhere, and what is attached is found otherwise.
			}
			return refuse(Volume, "pod %s has volume %s, of a kind that the program does not know", name, volume.Name)
		}
		ours, wrong := f.claim(pod.Namespace, claim)
		switch {
		case wrong != "" && (ours || !everywhere):
			return refuse(Volume, "claim %s of pod %s has %s", claim, name, wrong)
		case ours && (everywhere || tolerates(pod)):
			return refuse(Volume, "pod %s stays on the node in spite of the taint, and would lose its claim %s", name, claim)
		}
		fenced = fenced || ours
	}
	if !everywhere && !fenced && mustBeAlone(pod) {
		return refuse(Identity, "pod %s must not run twice, and has no volume by which its twin would wait", name)
	}
	return nil
}

// claim notes the volume of a claim. ours means that it is the driver's.
func (f *found) claim(namespace, name string) (ours bool, wrong string) {
	claim, err := f.of.Claims.PersistentVolumeClaims(namespace).Get(name)
	if err != nil {
		return false, "no object that the program knows"
	}
	pv, err := f.of.Volumes.Get(claim.Spec.VolumeName)
	switch {
	case err != nil:
		return false, "no PersistentVolume that the program knows"
	case pv.Spec.Local != nil || pv.Spec.HostPath != nil:
		return false, ""
	case pv.Spec.CSI == nil || pv.Spec.CSI.Driver != wire.DriverName:
		return false, fmt.Sprintf("PersistentVolume %s, which is not of this program's driver", pv.Name)
	}
	return true, prefixed("volume ", f.add(pv.Spec.CSI.VolumeHandle))
}

// attachment notes the volume of a VolumeAttachment.
func (f *found) attachment(a *storagev1.VolumeAttachment) *Refusal {
	source := a.Spec.Source.PersistentVolumeName
	if a.Spec.Attacher != wire.DriverName || source == nil {
		return refuse(Volume, "a volume of the driver %.100s is attached to it (VolumeAttachment %s)", a.Spec.Attacher, a.Name)
	}
	pv, err := f.of.Volumes.Get(*source)
	if err != nil || pv.Spec.CSI == nil || pv.Spec.CSI.Driver != wire.DriverName {
		return refuse(Volume, "VolumeAttachment %s names PersistentVolume %s, which is not known", a.Name, *source)
	}
	if wrong := f.add(pv.Spec.CSI.VolumeHandle); wrong != "" {
		return refuse(Volume, "attached to it is volume %s", wrong)
	}
	if wire.ProtocolOf(a.Status.AttachmentMetadata) == mappers.ProtocolRBD {
		return refuse(Volume, "attached to it is volume %s of Ceph, which does not keep a live node out", pv.Spec.CSI.VolumeHandle)
	}
	return nil
}

// inUse notes a volume that the Node's status names.
func (f *found) inUse(name string) *Refusal {
	handle, ours := strings.CutPrefix(name, wire.KubeletName(wire.DriverName, ""))
	if !ours {
		return refuse(Volume, "its status names the volume %.200s, which is not of this program's driver", name)
	}
	if wrong := f.add(handle); wrong != "" {
		return refuse(Volume, "its status names volume %s", wrong)
	}
	return nil
}

// report notes what the node plugin reports.
func (f *found) report(report staged.Report, node *corev1.Node) *Refusal {
	if !report.Holds(node) {
		return nil
	}
	if len(report.Mounts) > 0 {
		return refuse(Volume, "its kubelet has mounted the native volume %.200s, which nothing fences", report.Mounts[0])
	}
	for _, handle := range report.Volumes {
		if wrong := f.add(handle); wrong != "" {
			return refuse(Volume, "its node plugin has staged volume %s", wrong)
		}
	}
	return nil
}

func prefixed(prefix, text string) string {
	if text == "" {
		return ""
	}
	return prefix + text
}

// isLocal reports whether a volume of a pod is on the node, or is none.
func isLocal(v *corev1.Volume) bool {
	return v.EmptyDir != nil || v.ConfigMap != nil || v.Secret != nil || v.Projected != nil || v.DownwardAPI != nil || v.HostPath != nil || v.Image != nil
}

// claimOf returns the claim of a pod's volume; empty if it has none.
func claimOf(pod *corev1.Pod, v *corev1.Volume) string {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		return pod.Name + "-" + v.Name
	}
	return ""
}

// runsEverywhere reports whether the taint starts no twin of a pod on another node, even if
// the pod is deleted there: its like runs on every node anyway.
func runsEverywhere(pod *corev1.Pod) bool {
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return true
	}
	owner := metav1.GetControllerOf(pod)
	return owner != nil && kindOf(*owner) == schema.GroupKind{Group: "apps", Kind: "DaemonSet"}
}

// tolerates reports whether a pod stays on a node that has the taint, if only for a time.
// That proves nothing about twins: Kubernetes removes it there as soon as anything deletes
// it, such as another taint, a person or its controller.
func tolerates(pod *corev1.Pod) bool {
	taint := nodemark.Taint()
	return slices.ContainsFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool {
		return (t.TolerationSeconds == nil || *t.TolerationSeconds > 0) && (t.Effect == "" || t.Effect == taint.Effect) &&
			(t.Key == taint.Key || t.Key == "" && t.Operator == corev1.TolerationOpExists) &&
			(t.Operator == corev1.TolerationOpExists || (t.Operator == "" || t.Operator == corev1.TolerationOpEqual) && t.Value == taint.Value)
	})
}

// mayHaveTwins are the controllers that do not promise that only one pod of a kind runs at
// a time. Of all others but StatefulSets, nothing is known.
var mayHaveTwins = []schema.GroupKind{{Group: "apps", Kind: "ReplicaSet"}, {Kind: "ReplicationController"}, {Group: "batch", Kind: "Job"}}

// mustBeAlone reports whether two of a pod must not run at a time.
func mustBeAlone(pod *corev1.Pod) bool {
	owners := pod.OwnerReferences
	if owner := metav1.GetControllerOf(pod); owner != nil {
		owners = []metav1.OwnerReference{*owner}
	}
	// Operators make pods anew that have other owners, too.
	return slices.ContainsFunc(owners, func(owner metav1.OwnerReference) bool { return !slices.Contains(mayHaveTwins, kindOf(owner)) })
}

// kindOf returns the kind of an owner. Other groups have kinds of the same names.
func kindOf(owner metav1.OwnerReference) schema.GroupKind {
	return schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind).GroupKind()
}
