package campaign

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/checker"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/plan"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// makeNodes registers the driver on the nodes of pods, as its plugin does there.
func (w *world) makeNodes(ctx context.Context) (err error) {
	if !w.options.CSI {
		return nil
	}
	if w.sockets, err = os.MkdirTemp("", "csi-"); err != nil {
		return err
	}
	if err := w.suite.AllowCSINodes(ctx, w.names.provisioner()); err != nil {
		return err
	}
	for n := range plan.PodNodes {
		name := w.names.podNode(n)
		id, err := wire.Node{Name: name, InitiatorName: "iqn.2026-01.example:" + name}.NodeID()
		if err != nil {
			return err
		}
		_, err = w.suite.Client.StorageV1().CSINodes().Create(ctx, &storagev1.CSINode{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: wire.DriverName, NodeID: id}}},
		}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
	}
	return nil
}

// socket returns the path of the socket of a slot's replicas and of the
// csi-attacher beside them.
func (s *slot) socket() string {
	return filepath.Join(s.world.sockets, fmt.Sprintf("%d.sock", s.number))
}

// attachment is the VolumeAttachment that a pod needs.
type attachment struct {
	name, node string
	uid        types.UID
}

// runPod does what kubelet, the scheduler and the attach-detach controller would for one
// pod. Pods overlap. What the pod still has when the faults end is left to the ending.
func (w *world) runPod(ctx, trouble context.Context, step plan.PodStep) {
	w.carryOut(ctx, trouble, step.At, step.String(), func() error { return w.pod(ctx, trouble, step) })
}

func (w *world) pod(ctx, trouble context.Context, step plan.PodStep) error {
	namespace := w.names.namespace(step.Tenant)
	uid, err := w.makePodClaim(ctx, namespace, step)
	if err != nil || !w.awaitBound(trouble, namespace, step.Claim) {
		return err
	}
	pv := "pvc-" + string(uid)
	bound, err := w.csiVolume(ctx, pv)
	if err != nil {
		return err
	}
	handle := bound.Spec.CSI.VolumeHandle
	var last *attachment
	for _, stay := range step.Stays {
		node := w.names.podNode(stay.Node)
		if last != nil && last.node != node {
			if !stay.Overlaps {
				if err := w.detach(ctx, last); err != nil {
					return err
				}
				if !w.awaitDetached(trouble, last) {
					return nil
				}
			}
			next, err := w.attach(ctx, trouble, attachmentName(handle, node), pv, node)
			if err != nil || next == nil {
				return err
			}
			if stay.Overlaps {
				sleep(trouble, stay.For/3)
				if err := w.detach(ctx, last); err != nil {
					return err
				}
			}
			last = next
		} else if last == nil {
			if last, err = w.attach(ctx, trouble, attachmentName(handle, node), pv, node); err != nil || last == nil {
				return err
			}
		}
		if !sleep(trouble, stay.For) {
			return nil
		}
	}
	switch {
	case !step.Ends:
		return nil
	case step.ClaimFirst:
		if err := w.deleteClaim(ctx, namespace, step.Claim, uid); err != nil {
			return err
		}
		sleep(trouble, time.Second)
		return w.detach(ctx, last)
	}
	if err := w.detach(ctx, last); err != nil || !w.awaitDetached(trouble, last) {
		return err
	}
	return w.deleteClaim(ctx, namespace, step.Claim, uid)
}

// makePodClaim creates the claim. Its name is used once.
func (w *world) makePodClaim(ctx context.Context, namespace string, step plan.PodStep) (types.UID, error) {
	made, err := w.createClaim(ctx, harness.Claim(namespace, step.Claim, w.names.class(plan.OnNodes), fmt.Sprintf("%dMi", step.SizeMi), nil))
	if err != nil {
		return "", err
	}
	w.claims.NoteMade(made.UID)
	w.attachments.NotePod()
	return made.UID, nil
}

// csiVolume reads a PersistentVolume that must be of mode csi.
func (w *world) csiVolume(ctx context.Context, name string) (pv *corev1.PersistentVolume, err error) {
	pv, err = read(ctx, w.suite.Client.CoreV1().PersistentVolumes(), name)
	if err == nil && pv.Spec.CSI == nil {
		err = fmt.Errorf("PersistentVolume %s is not of mode csi", name)
	}
	return pv, err
}

// lookAgain is the pause between two reads of an object.
const lookAgain = 150 * time.Millisecond

// awaitBound returns false if the faults end first.
func (w *world) awaitBound(trouble context.Context, namespace, name string) bool {
	for sleep(trouble, lookAgain) {
		bounded, cancel := context.WithTimeout(trouble, try)
		claim, err := w.suite.Client.CoreV1().PersistentVolumeClaims(namespace).Get(bounded, name, metav1.GetOptions{})
		cancel()
		if err == nil && claim.Status.Phase == corev1.ClaimBound {
			return true
		}
	}
	return false
}

// attach creates a VolumeAttachment for a volume and a node. It returns nil if the
// faults end before that is possible. The name of a VolumeAttachment is always the
// same for a volume and a node.
func (w *world) attach(ctx, trouble context.Context, name, pv, node string) (*attachment, error) {
	a := &attachment{name: name, node: node}
	for {
		made, err := create(ctx, w.suite.Client.StorageV1().VolumeAttachments(), &storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: a.name},
			Spec:       storagev1.VolumeAttachmentSpec{Attacher: wire.DriverName, NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv}},
		})
		switch {
		case err == nil && made.DeletionTimestamp == nil && !w.attachments.DeletionRequested(made.UID):
			a.uid = made.UID
			return a, nil
		case err != nil && !apierrors.IsNotFound(err):
			return nil, err
		case !sleep(trouble, lookAgain):
			return nil, nil
		}
	}
}

// detach requests the end of an attachment.
func (w *world) detach(ctx context.Context, a *attachment) error {
	w.attachments.RecordDeletionRequest(a.uid)
	return remove(ctx, w.suite.Client.StorageV1().VolumeAttachments(), a.name, a.uid)
}

// awaitDetached returns false if the faults end first.
func (w *world) awaitDetached(trouble context.Context, a *attachment) bool {
	for sleep(trouble, lookAgain) {
		bounded, cancel := context.WithTimeout(trouble, try)
		now, err := w.suite.Client.StorageV1().VolumeAttachments().Get(bounded, a.name, metav1.GetOptions{})
		cancel()
		if apierrors.IsNotFound(err) || err == nil && now.UID != a.uid {
			return true
		}
	}
	return false
}

// isPods reports whether a VolumeAttachment is that of one of this seed's pods, on
// machines or not.
func (n names) isPods(a *storagev1.VolumeAttachment) bool {
	return a.Spec.Attacher == wire.DriverName && (strings.HasPrefix(a.Spec.NodeName, n.id()+"-pods-") || n.isMachine(a.Spec.NodeName)) && a.Spec.Source.PersistentVolumeName != nil
}

func (w *world) listAttachments(ctx context.Context) ([]storagev1.VolumeAttachment, error) {
	if !w.options.CSI {
		return nil, nil
	}
	var all []storagev1.VolumeAttachment
	err := insist(ctx, func(ctx context.Context) error {
		list, err := w.suite.Client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
		if err == nil {
			all = slices.DeleteFunc(list.Items, func(a storagev1.VolumeAttachment) bool { return !w.names.isPods(&a) })
		}
		return err
	})
	return all, err
}

// endPods detaches the volumes of all claims whose deletion was requested, and of the
// others all but the newest attachment. Machines' volumes have their own ending.
func (w *world) endPods(ctx context.Context) error {
	all, err := w.listAttachments(ctx)
	if err != nil {
		return err
	}
	slices.SortFunc(all, func(a, b storagev1.VolumeAttachment) int {
		return cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	kept := map[string]bool{}
	for i := range all {
		a := &all[i]
		pv := *a.Spec.Source.PersistentVolumeName
		if w.names.isMachine(a.Spec.NodeName) {
			continue
		}
		if !w.attachments.DeletionRequested(a.UID) && !kept[pv] && !w.claims.DeletionRequested(types.UID(strings.TrimPrefix(pv, "pvc-"))) {
			kept[pv] = true
			continue
		}
		if err := w.detach(ctx, &attachment{a.Name, a.Spec.NodeName, a.UID}); err != nil {
			return err
		}
	}
	return nil
}

// attachmentOf returns a VolumeAttachment as the checker sees it.
func (w *world) attachmentOf(a *storagev1.VolumeAttachment, volumes map[string]string) checker.Attachment {
	out := checker.Attachment{
		UID: string(a.UID), Name: a.Name, PV: *a.Spec.Source.PersistentVolumeName, Node: a.Spec.NodeName,
		Attached: a.Status.Attached && a.DeletionTimestamp == nil, Asked: w.attachments.DeletionRequested(a.UID) || a.DeletionTimestamp != nil,
	}
	out.VolumeID = volumes[out.PV]
	for _, failed := range []*storagev1.VolumeError{a.Status.AttachError, a.Status.DetachError} {
		if failed != nil {
			out.Error = failed.Message
		}
	}
	return out
}

// addAttachments adds to a state what is known of VolumeAttachments. It has the
// PersistentVolumes.
func (w *world) addAttachments(ctx context.Context, s *checker.State) error {
	all, err := w.listAttachments(ctx)
	if err != nil {
		return err
	}
	volumes := map[string]string{}
	for _, pv := range s.PVs {
		volumes[pv.Name] = pv.VolumeID
	}
	for i := range all {
		s.Attachments = append(s.Attachments, w.attachmentOf(&all[i], volumes))
	}
	return nil
}

// sweepPods removes what the seed left of attachments and nodes.
func (w *world) sweepPods(ctx context.Context) error {
	if !w.options.CSI {
		return nil
	}
	all, err := w.listAttachments(ctx)
	if err != nil {
		return err
	}
	client := w.suite.Client.StorageV1()
	for _, a := range all {
		if err := sweep(ctx, client.VolumeAttachments(), a.Name); err != nil {
			return err
		}
	}
	for n := range plan.PodNodes {
		if err := destroy(ctx, client.CSINodes(), w.names.podNode(n)); err != nil {
			return err
		}
	}
	return nil
}
