package removal

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodeuse"
)

// Release proves that the volume of a released PersistentVolume may be removed. A
// deletion may wait minutes for its turn. By then, the PersistentVolume that it started
// with is outdated: an operator may have changed their mind, or a node may still be
// writing.
//
// See docs/decisions.md, "Released volumes and the nodes that use them".
type Release struct {
	ReleaseOptions
	pv       *corev1.PersistentVolume
	volumeID string
	// proven is the resource version for which the API server gave the proof, at is when
	// it did, and status is the volume's status at that time; empty until then.
	proven string
	at     time.Time
	status cinder.Status
	// looked means that the API server had no VolumeAttachment for the volume.
	looked bool
}

// ReleaseOptions are the options of a Release.
type ReleaseOptions struct {
	Client            kubernetes.Interface
	PersistentVolumes corelisters.PersistentVolumeLister
	Nodes             Nodes
	// Attachments finds the VolumeAttachments of the CSI driver's volumes.
	Attachments Attachments
}

// Attachments determines which VolumeAttachments name a PersistentVolume;
// *nodeuse.Tracker implements it.
type Attachments interface {
	// KnownAttachments reads a cache, if there is one.
	KnownAttachments(pv string) (attachments []nodeuse.Attachment, known bool, err error)
	// Attachments reads from the API server.
	Attachments(ctx context.Context, pv string) ([]nodeuse.Attachment, error)
}

// NewRelease begins the proof for a PersistentVolume and the volume that it
// names.
func NewRelease(options ReleaseOptions, pv *corev1.PersistentVolume, volumeID string) *Release {
	return &Release{ReleaseOptions: options, pv: pv, volumeID: volumeID}
}

// IsProven reports whether the proof has succeeded.
func (r *Release) IsProven() bool { return r.proven != "" }

const (
	// proofAge is how old the proof may be when the first change is made.
	proofAge = 2 * time.Second
	// askTimeout bounds the one request to the API server that may be needed while a
	// request to the backend waits for it.
	askTimeout = 5 * time.Second
)

// Permit reads from the API server before the first change, and again if that change
// waited long for its turn. Afterwards the cache shows whether an operator has changed
// their mind.
func (r *Release) Permit(ctx context.Context, v cinder.Volume) error {
	switch {
	case r.proven == "", objects.IsCSI(r.pv) && isAttached(v) && !r.looked:
		return r.prove(ctx, v)
	case v.Status == r.status && time.Since(r.at) > proofAge:
		ctx, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		_, err := r.ask(ctx)
		return err
	}
	return r.recheckCache()
}

// prove reads the nodes and then the PersistentVolume. Reading the nodes may take a
// while, and once no node uses a released volume, none starts to. So the
// PersistentVolume's latest state decides.
func (r *Release) prove(ctx context.Context, v cinder.Volume) error {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	if err := r.notAttached(ctx, v); err != nil {
		return err
	}
	for known := r.pv; ; {
		users, err := r.Nodes.Users(ctx, nodeuse.VolumeOf(known))
		if err != nil {
			return err
		}
		live, err := r.ask(ctx)
		switch {
		case err != nil:
			return err
		case live.Annotations[nodeuse.AnnotationReleasedBy] != known.Annotations[nodeuse.AnnotationReleasedBy]:
			known = live // with the operator's latest annotation
		case len(users) > 0:
			return InUse(r.pv.Name, users)
		default:
			r.proven, r.at, r.status = live.ResourceVersion, time.Now(), v.Status
			return nil
		}
	}
}

// notAttached proves that Kubernetes has a CSI volume attached to no node, regardless of
// the nodes' state. When a volume is detached, its attachment at Cinder is deleted before
// the VolumeAttachment. So for an attachment at Cinder, the API server is asked: without
// a VolumeAttachment, the attachment is left over.
func (r *Release) notAttached(ctx context.Context, v cinder.Volume) error {
	if !objects.IsCSI(r.pv) {
		return nil
	}
	attachments, known, err := r.Attachments.KnownAttachments(r.pv.Name)
	if err == nil && len(attachments) == 0 && (!known || isAttached(v)) {
		attachments, err = r.Attachments.Attachments(ctx, r.pv.Name)
		r.looked = err == nil && len(attachments) == 0
	}
	if err == nil && len(attachments) > 0 {
		return Attached(attachments)
	}
	return err
}

// isAttached reports whether a volume has attachments at Cinder, complete or not.
func isAttached(v cinder.Volume) bool {
	switch v.Status {
	case cinder.StatusReserved, cinder.StatusAttaching, cinder.StatusInUse, cinder.StatusDetaching:
		return true
	}
	return len(v.Attachments) > 0
}

// ask reads the PersistentVolume from the API server. It returns an error unless the
// object still calls for the removal.
func (r *Release) ask(ctx context.Context) (*corev1.PersistentVolume, error) {
	live, err := r.Client.CoreV1().PersistentVolumes().Get(ctx, r.pv.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, &ChangedError{r.pv.Name, "the object is gone"}
	case err != nil:
		return nil, fmt.Errorf("cannot tell whether PersistentVolume %s is still to be deleted: %w", r.pv.Name, err)
	}
	return live, r.checkWanted(live)
}

// recheckCache checks what the cache has learned since the proof.
func (r *Release) recheckCache() error {
	cached, err := r.PersistentVolumes.Get(r.pv.Name)
	if apierrors.IsNotFound(err) {
		return &ChangedError{r.pv.Name, "the object is gone"}
	}
	if err != nil {
		return err
	}
	if order, err := resourceversion.CompareResourceVersion(cached.ResourceVersion, r.proven); err == nil && order <= 0 {
		return nil
	}
	return r.checkWanted(cached)
}

// checkWanted returns an error unless the current PersistentVolume still calls for
// removing this very volume.
func (r *Release) checkWanted(now *corev1.PersistentVolume) error {
	var because string
	switch origin, err := objects.OriginOf(now); {
	case now.UID != r.pv.UID:
		because = "another object has its name"
	case now.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete:
		because = fmt.Sprintf("its reclaim policy is now %s", now.Spec.PersistentVolumeReclaimPolicy)
	case now.Spec.ClaimRef == nil:
		because = "its claimRef was cleared"
	case now.Status.Phase != corev1.VolumeReleased:
		because = fmt.Sprintf("its phase is now %s", now.Status.Phase)
	case err != nil:
		return err
	case origin.VolumeID != r.volumeID:
		because = fmt.Sprintf("it now names volume %s", origin.VolumeID)
	default:
		return nil
	}
	return &ChangedError{r.pv.Name, because}
}

// ChangedError means that a deletion stopped because it is no longer wanted.
type ChangedError struct{ pv, because string }

func (e *ChangedError) Error() string {
	return fmt.Sprintf("the volume of PersistentVolume %s is not removed: %s", e.pv, e.because)
}

// StillUsedError means that a deletion waits for nodes to release the volume.
type StillUsedError struct {
	// Reason is that of the event about it.
	Reason string
	Nodes  []string
	// Wait says what the deletion waits for, and Remedy what to do if a node is lost.
	Wait, Remedy string
}

func (e *StillUsedError) Error() string { return e.Wait + "; " + e.Remedy }

// InUse returns the error for a volume that nodes use.
func InUse(pv string, nodes []string) *StillUsedError {
	return &StillUsedError{
		Reason: "VolumeStillInUse", Nodes: nodes,
		Wait: fmt.Sprintf("node %s still uses the volume (volumesInUse or volumesAttached of its status, or a VolumeAttachment); the deletion continues when the node has unmounted it", strings.Join(nodes, ", ")),
		Remedy: fmt.Sprintf("if the node is permanently lost, delete its Node object, taint it with %s, or run: kubectl annotate pv %s %s=%s",
			corev1.TaintNodeOutOfService, pv, nodeuse.AnnotationReleasedBy, strings.Join(nodes, ",")),
	}
}

// Attached returns the error for a volume of mode csi that Kubernetes has not detached.
func Attached(attachments []nodeuse.Attachment) *StillUsedError {
	var nodes, named []string
	for _, attachment := range attachments {
		nodes, named = append(nodes, attachment.Node), append(named, attachment.String())
	}
	return &StillUsedError{
		Reason: "VolumeStillAttached", Nodes: nodes,
		Wait:   fmt.Sprintf("VolumeAttachment %s still attaches the volume; the deletion continues when Kubernetes has removed it", strings.Join(named, ", ")),
		Remedy: "if the node is permanently lost, delete its Node object or taint it with " + corev1.TaintNodeOutOfService,
	}
}
