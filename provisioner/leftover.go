package provisioner

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/standalone-cinder/standalone-cinder/backends"
)

// youngEnough is how old a volume may be to be taken over. What an earlier
// leader was busy with is young; an older volume without a claim may have been
// kept on purpose, and is for the operator to judge.
const youngEnough = time.Hour

// takeOverLeftovers goes on with what an earlier leader would have undone: a
// volume of a claim that was deleted while it was provisioned. Nobody else would
// come for it, since its claim is gone. Whether a PersistentVolume was recorded
// is asked when the volume's turn comes, as for any other claim that goes.
func (p *Provisioner) takeOverLeftovers(ctx context.Context, backend string, all []backends.Volume) error {
	connector, err := p.Backends.Connector(backend)
	if err != nil {
		return err
	}
	claims, err := p.claimsByUID()
	if err != nil {
		return err
	}
	var failed []error
	for _, v := range all {
		stamp := backends.StampOf(v)
		uid := types.UID(stamp.ClaimUID)
		if stamp.PV != pvNameFor(stamp.ClaimUID) || !p.ledger.isFound(uid, backend) {
			continue
		}
		if claim, exists := claims[uid]; exists && !boundElsewhere(claim) {
			// A claim that is denied was so before its volume was known.
			p.reconsider(func(d denial) bool { return d.claim.UID == uid })
			continue
		}
		if _, begun := p.beginningOf(uid); begun || time.Since(v.CreatedAt).Abs() > youngEnough {
			continue
		}
		gone, err := isClaimGone(ctx, p.Client, stamp)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		if gone {
			p.begin(uid, beginning{backend: backend, stamp: stamp, connector: connector})
			p.leftover(uid)
		}
	}
	return errors.Join(failed...)
}

func (p *Provisioner) claimsByUID() (map[types.UID]*corev1.PersistentVolumeClaim, error) {
	all, err := p.Claims.List(labels.Everything())
	claims := make(map[types.UID]*corev1.PersistentVolumeClaim, len(all))
	for _, claim := range all {
		claims[claim.UID] = claim
	}
	return claims, err
}

// isClaimGone asks the API server whether the claim that a volume was made for
// needs it no more. A stamp that names no claim proves nothing.
func isClaimGone(ctx context.Context, client kubernetes.Interface, stamp backends.Stamp) (bool, error) {
	if stamp.Namespace == "" || stamp.Claim == "" {
		return false, nil
	}
	claim, err := client.CoreV1().PersistentVolumeClaims(stamp.Namespace).Get(ctx, stamp.Claim, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("cannot tell whether claim %s/%s exists: %w", stamp.Namespace, stamp.Claim, err)
	}
	return string(claim.UID) != stamp.ClaimUID || boundElsewhere(claim), nil
}

// boundElsewhere says that a claim uses a PersistentVolume that was not made for
// it, and so needs none of its own.
func boundElsewhere(claim *corev1.PersistentVolumeClaim) bool {
	return claim.Spec.VolumeName != "" && claim.Spec.VolumeName != pvNameOf(claim)
}

// leaveIfGone gives back what an attempt took for a claim that was deleted, or
// bound to another PersistentVolume, while it was looked at: the event came too
// early to find anything.
func (p *Provisioner) leaveIfGone(claim *corev1.PersistentVolumeClaim) {
	current, err := p.Claims.PersistentVolumeClaims(claim.Namespace).Get(claim.Name)
	if apierrors.IsNotFound(err) || err == nil && (current.UID != claim.UID || boundElsewhere(current)) {
		p.leftover(claim.UID)
	}
}

// removeStray looks into the volume of a claim that counts on another backend.
func (p *Provisioner) removeStray(backend, volumeID string, stamp backends.Stamp) {
	connector, err := p.Backends.Connector(backend)
	if err != nil {
		return
	}
	p.stray(astray{volumeID, beginning{backend: backend, stamp: stamp, connector: connector}})
}
