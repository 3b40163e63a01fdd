// Package rebind gives the PersistentVolume of one claim to another claim. It runs in a
// command, beside the leader and with the rights of an operator.
//
// It changes only Kubernetes objects: the leader sees that the PersistentVolume has
// another claim, and stamps the volume for it. What can fail comes before what cannot be
// undone, and the PersistentVolume has the reclaim policy Retain all the while. Each step
// is read from the objects, so a rebind that ended anywhere continues when it is planned
// anew.
package rebind

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodeuse"
)

// AnnotationReclaimPolicy is on a PersistentVolume that is given to another claim, and holds the
// reclaim policy that it had before and gets back at the end.
const AnnotationReclaimPolicy = "standalone-cinder.openstack.org/reclaim-policy-after-rebind"

// Volumes are the volumes of one backend; *backends.Lifecycle implements it.
type Volumes interface {
	Look(ctx context.Context, target backends.Target) (cinder.Volume, cinder.Place, error)
}

// Nodes determines which nodes use a volume; *nodeuse.Tracker implements it.
type Nodes interface {
	Users(ctx context.Context, v nodeuse.Volume) ([]string, error)
	Attachments(ctx context.Context, pv string) ([]nodeuse.Attachment, error)
}

// Rebinder gives PersistentVolumes to other claims.
type Rebinder struct {
	Client kubernetes.Interface
	Policy *policy.Policy
	// Volumes returns an error if no backend of that name is configured.
	Volumes         func(backend string) (Volumes, error)
	Nodes           Nodes
	ProvisionerName string
	Cluster         string
	// Say is told what was done, in sentences.
	Say func(what string)
	// Pause is the time between two looks at what the command waits for.
	Pause time.Duration
	// Settle is how long something that has begun may take to show: a deletion at Cinder,
	// or a decision by another policy.
	Settle time.Duration
}

// Request is what an operator asks for.
type Request struct {
	PersistentVolume string
	// Namespace and Claim name the claim that gets the PersistentVolume.
	Namespace, Claim string
	// DeleteClaim deletes the claim that has the PersistentVolume now.
	DeleteClaim bool
}

// Plan is a rebind that nothing prevents, as far as can be known before any change.
type Plan struct {
	Request
	// Done means that nothing is left to do.
	Done bool
	// Steps are the changes to come, as sentences.
	Steps []string
	// Warnings are full sentences.
	Warnings []string

	pv     *corev1.PersistentVolume
	origin objects.Origin
	// claim is the one that gets the PersistentVolume. It has no UID if it does not exist
	// yet.
	claim *corev1.PersistentVolumeClaim
	// holder is the other claim that has the PersistentVolume; nil if it is gone.
	holder *corev1.PersistentVolumeClaim
	// users are the pods that use the holder.
	users []string
	// moved means that spec.claimRef has the UID of the claim already.
	moved    bool
	decision policy.Decision
}

// RefusedError lists all that prevents a rebind.
type RefusedError struct{ Problems []string }

func (e *RefusedError) Error() string { return strings.Join(e.Problems, "; ") }

func refused(format string, arguments ...any) error {
	return &RefusedError{Problems: []string{fmt.Sprintf(format, arguments...)}}
}

// HeldError means that a rebind stopped at a claim that only the operator may delete. The
// reclaim policy of the PersistentVolume is Retain by then.
type HeldError struct{ claim *corev1.PersistentVolumeClaim }

func (e *HeldError) Error() string {
	return fmt.Sprintf("claim %s still has the PersistentVolume, whose reclaim policy is Retain now: stop the pods that use the claim, run %s, and then this command again; or add --delete-claim",
		nameOf(e.claim), deletion(e.claim))
}

// deletion is how an operator deletes a claim.
func deletion(claim *corev1.PersistentVolumeClaim) string {
	return fmt.Sprintf("kubectl -n %s delete pvc %s", claim.Namespace, claim.Name)
}

// to returns the name of the claim that gets the PersistentVolume.
func (r Request) to() string { return r.Namespace + "/" + r.Claim }

func nameOf(claim *corev1.PersistentVolumeClaim) string { return claim.Namespace + "/" + claim.Name }

// wanted returns the reclaim policy that a PersistentVolume has at the end.
func wanted(pv *corev1.PersistentVolume) corev1.PersistentVolumeReclaimPolicy {
	if noted, ok := pv.Annotations[AnnotationReclaimPolicy]; ok {
		return corev1.PersistentVolumeReclaimPolicy(noted)
	}
	return pv.Spec.PersistentVolumeReclaimPolicy
}

// isFor reports whether spec.claimRef names a claim by its UID.
func isFor(pv *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) bool {
	return claim.UID != "" && pv.Spec.ClaimRef != nil && pv.Spec.ClaimRef.UID == claim.UID
}
