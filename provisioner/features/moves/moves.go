// Package moves tells owners that their claims got other volumes, and counts the volumes
// that moves between backends make or leave. Commands make the moves, with the rights of
// who runs them; the leader only sees in Kubernetes what they did. A term makes a Reporter,
// passes on what it hears of PersistentVolumes, and asks for the counts.
package moves

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	corelisters "k8s.io/client-go/listers/core/v1"
	eventrecord "k8s.io/client-go/tools/record"

	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// ReasonSwapped is the reason of the event that a claim got another volume.
const ReasonSwapped = "VolumeSwapped"

// Options has what a Reporter needs.
type Options struct {
	// Name is that of the provisioner, and Cluster the policy's clusterID.
	Name, Cluster     string
	Claims            corelisters.PersistentVolumeClaimLister
	PersistentVolumes corelisters.PersistentVolumeLister
	Recorder          eventrecord.EventRecorder
}

// Reporter is the leader's view of moves.
type Reporter struct{ Options }

// New returns the Reporter of a term.
func New(options Options) *Reporter { return &Reporter{options} }

// VolumeChanged tells the claim if its PersistentVolume records another volume. What
// changed before the term began, an earlier one has told.
func (r *Reporter) VolumeChanged(before, after *corev1.PersistentVolume) {
	// A watch that was interrupted shows two PersistentVolumes of one name as a change.
	if before == nil || after == nil || before.UID != after.UID || !r.isMine(after) || after.Spec.ClaimRef == nil {
		return
	}
	was, err := objects.LocationOf(before)
	if err != nil {
		return
	}
	is, err := objects.LocationOf(after)
	if err != nil || is == was {
		return
	}
	ref := after.Spec.ClaimRef
	claim, err := r.Claims.PersistentVolumeClaims(ref.Namespace).Get(ref.Name)
	if err != nil || claim.UID != ref.UID {
		return
	}
	r.Recorder.Event(claim, corev1.EventTypeNormal, ReasonSwapped, fmt.Sprintf(
		"it now has volume %s on backend %s; before, it had volume %s on backend %s", is.ID, is.Backend, was.ID, was.Backend))
}

func (r *Reporter) isMine(pv *corev1.PersistentVolume) bool {
	return pv.Annotations[objects.AnnotationProvisionedBy] == r.Name && pv.Annotations[objects.AnnotationCluster] == r.Cluster && objects.IsCSI(pv)
}

// Group identifies the volumes of the claims that moves made which are on one backend, and
// are partial copies or former volumes.
type Group struct{ Backend, Copy string }

// Count is how many volumes a group has, and their size.
type Count struct {
	Volumes int
	GiB     int64
	// Oldest is when the move of one of them began first.
	Oldest time.Time
}

// Counts counts the volumes of the claims that moves made.
func (r *Reporter) Counts() (map[Group]Count, error) {
	made, err := labels.NewRequirement(objects.LabelCopy, selection.In, []string{objects.CopyPartial, objects.CopyFormer})
	if err != nil {
		return nil, fmt.Errorf("label %s: %w", objects.LabelCopy, err)
	}
	claims, err := r.Claims.List(labels.NewSelector().Add(*made))
	if err != nil {
		return nil, err
	}
	counts := map[Group]Count{}
	for _, claim := range claims {
		pv := r.volumeOf(claim)
		if pv == nil {
			continue
		}
		group := Group{Backend: pv.Annotations[objects.AnnotationBackend], Copy: claim.Labels[objects.LabelCopy]}
		count := counts[group]
		count.Volumes++
		count.GiB += objects.SizeGiB(pv)
		if began := claim.CreationTimestamp.Time; count.Oldest.IsZero() || began.Before(count.Oldest) {
			count.Oldest = began
		}
		counts[group] = count
	}
	return counts, nil
}

// volumeOf returns the PersistentVolume of a claim that a move made; nil if it has none. The
// label alone proves nothing, since users may write it.
func (r *Reporter) volumeOf(claim *corev1.PersistentVolumeClaim) *corev1.PersistentVolume {
	pv, err := r.PersistentVolumes.Get(claim.Spec.VolumeName)
	if err != nil || !r.isMine(pv) || pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != claim.UID {
		return nil
	}
	if pv.Annotations[objects.AnnotationCopyOf] == "" && !objects.IsSwapped(pv) {
		return nil
	}
	return pv
}
