package status

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/statusreport"
)

// explainVolume says who uses a PersistentVolume, or what delays its deletion.
func (q *inquiry) explainVolume(ctx context.Context) error {
	pv, err := q.client.CoreV1().PersistentVolumes().Get(ctx, q.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	q.Phase = string(pv.Status.Phase)
	by := pv.Annotations[objects.AnnotationProvisionedBy]
	switch origin, err := objects.OriginOf(pv); {
	case objects.IsOurs(pv):
		q.note("it is volume %s at backend %s, of tenant %s", pv.Annotations[objects.AnnotationVolume], pv.Annotations[objects.AnnotationBackend], pv.Annotations[objects.AnnotationTenant])
	case !objects.IsServed(by, q.provisionerName):
		q.because("it was made by another provisioner, %s", cmp.Or(by, "which it does not name"))
		return nil
	case err != nil:
		// Somebody removed what the program wrote.
		q.because("%v (kubectl cinder volume list shows the volumes of each backend)", err)
	default:
		q.note("it is volume %s of the historic provisioner", origin.VolumeID)
	}
	claim := ptr.Deref(pv.Spec.ClaimRef, corev1.ObjectReference{})
	switch {
	case pv.Status.Phase == corev1.VolumeBound:
		if claim.Name != "" {
			q.because("claim %s/%s has it: kubectl cinder why %s -n %s", claim.Namespace, claim.Name, claim.Name, claim.Namespace)
		}
	case pv.Status.Phase == corev1.VolumeReleased && pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain:
		q.because("its claim %s/%s is deleted, and its reclaim policy Retain keeps the volume. standalone-cinder volume rebind gives it to another claim; the reclaim policy Delete deletes it and its data", claim.Namespace, claim.Name)
	case pv.Status.Phase == corev1.VolumeReleased:
		q.explainDeletion(ctx, pv, claim)
	case pv.Status.Phase == corev1.VolumeAvailable:
		q.because("it waits for a claim that names it or fits it")
	case pv.Status.Message != "":
		q.because("%s", pv.Status.Message)
	}
	q.explainDeletionOf(pv)
	q.noteAttachments(ctx, pv)
	q.addEvents(ctx, "PersistentVolume", "", q.Name, pv.UID)
	return nil
}

// explainDeletion says what delays the deletion of a released volume.
func (q *inquiry) explainDeletion(ctx context.Context, pv *corev1.PersistentVolume, claim corev1.ObjectReference) {
	q.note("its claim %s/%s is deleted, so its volume is to be deleted", claim.Namespace, claim.Name)
	report := q.reportAbout(ctx, selection{claim.Namespace, claim.Name})
	if report == nil || report.Deletions == nil {
		return
	}
	i := slices.IndexFunc(report.Deletions.Pending, func(p statusreport.Pending) bool { return p.PersistentVolume == pv.Name })
	if i >= 0 {
		q.explainWaiting(&report.Deletions.Pending[i])
	} else if report.LeaderOnly == "" {
		q.because("the program is about to delete it, or is doing so")
	}
}

// noteAttachments notes where a volume of mode csi is attached.
func (q *inquiry) noteAttachments(ctx context.Context, pv *corev1.PersistentVolume) {
	if !objects.IsCSI(pv) {
		return
	}
	attachments, err := q.attachments(ctx, pv.Name, "")
	if apierrors.IsForbidden(err) {
		return
	}
	if err != nil {
		q.note("where it is attached cannot be read: %s", err)
		return
	}
	for i := range attachments {
		q.note("its volume %s (VolumeAttachment %s)", describeAttachment(&attachments[i]).text, attachments[i].Name)
	}
}

// attachments lists the driver's VolumeAttachments of a PersistentVolume, a node, or both.
func (q *inquiry) attachments(ctx context.Context, pv, node string) ([]storagev1.VolumeAttachment, error) {
	if q.attached == nil {
		list, err := q.client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		q.attached = list
	}
	return slices.DeleteFunc(slices.Clone(q.attached.Items), func(a storagev1.VolumeAttachment) bool {
		of := a.Spec.Source.PersistentVolumeName
		return a.Spec.Attacher != policy.CSIDriver || pv != "" && (of == nil || *of != pv) || node != "" && a.Spec.NodeName != node
	}), nil
}

// attachmentState is what a VolumeAttachment shows. It is settled if nothing has to
// happen.
type attachmentState struct {
	text    string
	settled bool
}

func describeAttachment(a *storagev1.VolumeAttachment) attachmentState {
	switch {
	case a.DeletionTimestamp != nil && a.Status.DetachError != nil:
		return attachmentState{text: fmt.Sprintf("is being detached from node %s since %s; the last attempt failed at %s: %s", a.Spec.NodeName, at(a.DeletionTimestamp.Time), at(a.Status.DetachError.Time.Time), a.Status.DetachError.Message)}
	case a.DeletionTimestamp != nil:
		return attachmentState{text: fmt.Sprintf("is being detached from node %s since %s", a.Spec.NodeName, at(a.DeletionTimestamp.Time))}
	case a.Status.Attached:
		return attachmentState{"is attached to node " + a.Spec.NodeName, true}
	case a.Status.AttachError != nil:
		return attachmentState{text: fmt.Sprintf("could not be attached to node %s at %s, and is tried again: %s", a.Spec.NodeName, at(a.Status.AttachError.Time.Time), a.Status.AttachError.Message)}
	}
	return attachmentState{text: fmt.Sprintf("is being attached to node %s since %s", a.Spec.NodeName, at(a.CreationTimestamp.Time))}
}

// explainAttachment says how far an attachment is, and whether its node can have it.
func (q *inquiry) explainAttachment(ctx context.Context) error {
	a, err := q.client.StorageV1().VolumeAttachments().Get(ctx, q.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	q.Phase = "Pending"
	if a.Status.Attached {
		q.Phase = "Attached"
	}
	if a.DeletionTimestamp != nil {
		q.Phase = "Detaching"
	}
	if a.Spec.Attacher != policy.CSIDriver {
		q.because("it belongs to another driver, %s", a.Spec.Attacher)
		return nil
	}
	what := "a volume without a PersistentVolume"
	if of := a.Spec.Source.PersistentVolumeName; of != nil {
		what = "PersistentVolume " + *of
	}
	q.because("%s %s", what, describeAttachment(a).text)
	if a.DeletionTimestamp != nil {
		q.note("an attachment of a lost node ends when the program has proof that the node no longer writes: kubectl cinder why node/%s", a.Spec.NodeName)
	}
	q.noteDriverOn(ctx, a.Spec.NodeName)
	q.addEvents(ctx, "VolumeAttachment", "", q.Name, a.UID)
	return nil
}
