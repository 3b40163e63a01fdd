package proof

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
	"github.com/standalone-cinder/standalone-cinder/provisioner/nodeuse"
	"github.com/standalone-cinder/standalone-cinder/provisioner/record"
)

// Release is the proof that the volume of a released PersistentVolume may go. A
// deletion may wait for minutes for its turn, and the PersistentVolume that it
// was begun with is as old by then: somebody may have changed his mind, or a
// node may still be writing.
type Release struct {
	ReleaseOptions
	pv       *corev1.PersistentVolume
	volumeID string
	// proven is the resource version that the API server gave the proof for, at is
	// when, and status the volume's at that time; empty until then.
	proven string
	at     time.Time
	status cinder.Status
}

// ReleaseOptions are what a Release asks.
type ReleaseOptions struct {
	Client            kubernetes.Interface
	PersistentVolumes corelisters.PersistentVolumeLister
	Nodes             Nodes
}

// NewRelease begins the proof for a PersistentVolume and the volume that it
// names.
func NewRelease(options ReleaseOptions, pv *corev1.PersistentVolume, volumeID string) *Release {
	return &Release{ReleaseOptions: options, pv: pv, volumeID: volumeID}
}

// IsProven says that the proof was given before.
func (r *Release) IsProven() bool { return r.proven != "" }

const (
	// proofAge is how old the proof may be when the first change is made.
	proofAge = 2 * time.Second
	// askTimeout bounds the one question to the API server that may have to be
	// asked while a request to the backend is kept from being made.
	askTimeout = 5 * time.Second
)

// Permit asks the API server before the first change, and once more if the turn
// of that was long in coming. Afterwards the cache tells whether somebody has
// changed his mind.
func (r *Release) Permit(ctx context.Context, v cinder.Volume) error {
	switch {
	case r.proven == "":
		return r.prove(ctx, v)
	case v.Status == r.status && time.Since(r.at) > proofAge:
		ctx, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		_, err := r.ask(ctx)
		return err
	}
	return r.stillMeant()
}

// prove asks for the nodes and the PersistentVolume. The nodes come first: to ask
// them may take long, and once none of them uses a volume that is released, none
// begins to. The last word is whether the volume is still to be removed.
func (r *Release) prove(ctx context.Context, v cinder.Volume) error {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
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
			known = live // the operator's word is the one that the API server has
		case len(users) > 0:
			return &InUseError{r.pv.Name, users}
		default:
			r.proven, r.at, r.status = live.ResourceVersion, time.Now(), v.Status
			return nil
		}
	}
}

// ask reads the PersistentVolume from the API server. It must ask for the
// removal.
func (r *Release) ask(ctx context.Context) (*corev1.PersistentVolume, error) {
	live, err := r.Client.CoreV1().PersistentVolumes().Get(ctx, r.pv.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, &ChangedError{r.pv.Name, "the object is gone"}
	case err != nil:
		return nil, fmt.Errorf("cannot tell whether PersistentVolume %s is still to be deleted: %w", r.pv.Name, err)
	}
	return live, r.meant(live)
}

// stillMeant looks at what the cache has learned since the proof.
func (r *Release) stillMeant() error {
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
	return r.meant(cached)
}

// meant says whether a PersistentVolume, as it is now, asks for the removal of
// the very volume that is about to be removed.
func (r *Release) meant(now *corev1.PersistentVolume) error {
	because := ""
	switch origin, err := record.OriginOf(now); {
	case now.UID != r.pv.UID:
		because = "another object has its name"
	case now.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete:
		because = fmt.Sprintf("its reclaim policy is %s now", now.Spec.PersistentVolumeReclaimPolicy)
	case now.Spec.ClaimRef == nil:
		because = "its claimRef was cleared"
	case now.Status.Phase != corev1.VolumeReleased:
		because = fmt.Sprintf("its phase is %s now", now.Status.Phase)
	case err != nil:
		return err
	case origin.VolumeID != r.volumeID:
		because = fmt.Sprintf("it names volume %s now", origin.VolumeID)
	default:
		return nil
	}
	return &ChangedError{r.pv.Name, because}
}

// ChangedError says that a deletion stopped because somebody wants it no more.
type ChangedError struct{ pv, because string }

func (e *ChangedError) Error() string {
	return fmt.Sprintf("the volume of PersistentVolume %s is not removed: %s", e.pv, e.because)
}

// InUseError says that a deletion waits for nodes to let the volume go.
type InUseError struct {
	PV    string
	Nodes []string
}

func (e *InUseError) Error() string {
	return fmt.Sprintf("the volume is not disconnected while node %s still uses it (volumesInUse or volumesAttached of the node's status, or a VolumeAttachment); "+
		"it goes as soon as the node has unmounted it; if the node is lost for good, delete its Node object, taint it with %s, or run: kubectl annotate pv %s %s=%s",
		strings.Join(e.Nodes, ", "), corev1.TaintNodeOutOfService, e.PV, nodeuse.AnnotationReleasedBy, strings.Join(e.Nodes, ","))
}
