package status

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/policy/admission"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/statusreport"
)

func (q *inquiry) explainClaim(ctx context.Context) error {
	claim, err := q.client.CoreV1().PersistentVolumeClaims(q.Namespace).Get(ctx, q.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	q.Phase = string(claim.Status.Phase)
	q.explainDeletionOf(claim)
	by := objects.ProvisionerOf(claim)
	switch {
	case by != "" && !objects.IsServed(by, q.provisionerName):
		q.because("it belongs to another provisioner, %s", by)
	case isGrowing(claim):
		q.explainGrowth(claim)
	case claim.Status.Phase == corev1.ClaimBound:
		q.because("it is not pending: it is bound to PersistentVolume %s", claim.Spec.VolumeName)
	case claim.Status.Phase == corev1.ClaimLost:
		q.because("it has lost its volume, and nothing provisions another one for it")
		q.explainNamedVolume(ctx, claim)
	case claim.DeletionTimestamp == nil:
		q.explainPending(ctx, claim)
	}
	if claim.DeletionTimestamp != nil || claim.Status.Phase == corev1.ClaimBound && !isGrowing(claim) {
		q.followClaim(ctx, claim)
	}
	switch claim.Labels[objects.LabelCopy] {
	case objects.CopyPartial:
		q.note("standalone-cinder volume move made it for a copy of another claim's volume; run that command again, or delete the claim")
	case objects.CopyFormer:
		q.note("it keeps the volume that another claim had before standalone-cinder volume move; delete it when the copy is trusted")
	}
	// The policy may not grant a bound claim the volume.
	q.addEvents(ctx, "PersistentVolumeClaim", q.Namespace, q.Name, claim.UID)
	return nil
}

// explainPending says why a claim has no volume.
func (q *inquiry) explainPending(ctx context.Context, claim *corev1.PersistentVolumeClaim) {
	if claim.Spec.VolumeName != "" {
		q.because("it names a PersistentVolume (spec.volumeName), so nothing is provisioned for it")
		q.explainNamedVolume(ctx, claim)
	}
	if populator := admission.PopulatorOf(claim); populator != "" && !q.Explained {
		// What the populator does is in its events.
		q.because("it waits for a volume populator of %s, which has its volume made for a claim of its own", populator)
		return
	}
	q.askProgram(ctx)
	if q.Pending == nil && !q.Explained {
		q.askClass(ctx, claim)
	}
}

// explainNamedVolume says why a claim that names a PersistentVolume is not bound to it.
func (q *inquiry) explainNamedVolume(ctx context.Context, claim *corev1.PersistentVolumeClaim) {
	pv, err := q.client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	of := corev1.ObjectReference{}
	if pv != nil && pv.Spec.ClaimRef != nil {
		of = *pv.Spec.ClaimRef
	}
	switch {
	case apierrors.IsNotFound(err):
		q.because("its PersistentVolume %s does not exist", claim.Spec.VolumeName)
	case err != nil:
		q.note("PersistentVolume %s cannot be read: %s", claim.Spec.VolumeName, err)
	case of.Name == "":
		q.because("it waits to be bound to PersistentVolume %s", pv.Name)
	case of.Namespace != claim.Namespace || of.Name != claim.Name:
		q.because("its PersistentVolume %s belongs to claim %s/%s", pv.Name, of.Namespace, of.Name)
	case of.UID != "" && of.UID != claim.UID:
		q.because("its PersistentVolume %s belongs to an earlier claim %s/%s", pv.Name, of.Namespace, of.Name)
	default:
		q.because("it waits to be bound to PersistentVolume %s, which is for it", pv.Name)
	}
}

// askProgram adds what the program reports about the claim. If it cannot be asked, or the
// replica does not lead, it adds a note.
func (q *inquiry) askProgram(ctx context.Context) {
	report := q.reportAbout(ctx, selection{q.Namespace, q.Name})
	if report == nil || report.Claims == nil {
		return
	}
	for i := range report.Claims.Pending {
		q.explainWaiting(&report.Claims.Pending[i])
	}
	for _, step := range report.Claims.InFlight {
		if step.Count > 0 && q.Pending == nil {
			q.because("the program is working on it (step: %s), and has been for %s", step.Step, time.Duration(step.OldestSeconds*float64(time.Second)).Round(time.Second))
		}
	}
}

// reportAbout asks the program. It returns nil, and notes why, if that fails.
func (q *inquiry) reportAbout(ctx context.Context, s selection) *statusreport.Report {
	report, err := q.report(ctx, s)
	if err != nil {
		q.note("could not ask the program: %s", err)
		return nil
	}
	if report.LeaderOnly != "" {
		q.note("%s", report.LeaderOnly)
	}
	q.asked = report
	return report
}

// explainWaiting adds what the program says about a claim or a deletion that waits.
func (q *inquiry) explainWaiting(pending *statusreport.Pending) {
	q.Pending = pending
	since := at(pending.Since)
	if q.asked.MayBeOlder(*pending) {
		since += " or before (the leader began then)"
	}
	switch pending.State {
	case "waiting":
		q.because("it has been waiting for a free worker since %s: no tenant and no backend may use more workers than are free", since)
	case "failing":
		q.because("the last attempt failed (the first one at %s), and the program tries again: %s", since, pending.Why())
	default:
		q.because("it has been %s since %s: %s", pending.State, since, pending.Why())
	}
}

// askClass looks for reasons why no provisioner works on the claim yet.
func (q *inquiry) askClass(ctx context.Context, claim *corev1.PersistentVolumeClaim) {
	name := objects.ClassName(claim)
	if name == "" {
		or := ""
		if claim.Spec.StorageClassName == nil {
			or = ", or for a default StorageClass"
		}
		q.because("it names no StorageClass, so no provisioner serves it: it waits for a PersistentVolume made by hand%s", or)
		return
	}
	class, err := q.client.StorageV1().StorageClasses().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		q.because("StorageClass %s does not exist", name)
	case err != nil:
		q.note("StorageClass %s cannot be read: %s", name, err)
	case !objects.IsServed(class.Provisioner, q.provisionerName):
		q.because("StorageClass %s belongs to another provisioner, %s", class.Name, class.Provisioner)
	case class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer && admission.SelectedNode(claim) == "":
		q.because("StorageClass %s has volumeBindingMode: WaitForFirstConsumer, and no pod that uses the claim is scheduled yet", class.Name)
	}
}

// followClaim notes which pods use a claim, and where its volume is attached.
func (q *inquiry) followClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim) {
	pods, err := q.client.CoreV1().Pods(claim.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		q.note("which pods use it cannot be read: %s", err)
	} else {
		q.notePods(pods.Items, claim)
	}
	if claim.Status.Phase != corev1.ClaimBound || claim.Spec.VolumeName == "" {
		return
	}
	pv, err := q.client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	switch {
	case apierrors.IsForbidden(err):
		// Whoever only has claims does without.
	case err != nil:
		q.note("PersistentVolume %s cannot be read: %s", claim.Spec.VolumeName, err)
	default:
		q.noteAttachments(ctx, pv)
	}
}

// notePods notes the pods that use a claim.
func (q *inquiry) notePods(pods []corev1.Pod, claim *corev1.PersistentVolumeClaim) {
	users := 0
	for i := range pods {
		pod := &pods[i]
		if !objects.Uses(pod, claim) {
			continue
		}
		if users++; users > maxListed {
			continue
		}
		where := "on no node yet"
		if pod.Spec.NodeName != "" {
			where = "on node " + pod.Spec.NodeName
		}
		if pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil {
			q.note("pod %s uses it %s", pod.Name, where)
		} else {
			q.note("pod %s needs it %s, and is not running: kubectl cinder why pod/%s -n %s", pod.Name, where, pod.Name, pod.Namespace)
		}
	}
	switch {
	case users == 0:
		q.note("no pod uses it")
	case users > maxListed:
		q.note("%d more pods use it", users-maxListed)
	}
}
