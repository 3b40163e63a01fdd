package provisioner

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/backends"
)

// takeOverLeftovers goes on with what an earlier leader would have undone: a
// volume of a claim that was deleted while it was provisioned. Nobody else would
// come for it, since its claim is gone. Whether a PersistentVolume was recorded
// is asked when the volume's turn comes, as for any other claim that goes.
func (p *Provisioner) takeOverLeftovers(ctx context.Context, backend string) error {
	volumes, err := p.Backends.Volumes(backend)
	if err != nil {
		return err
	}
	all, err := volumes.Volumes(ctx)
	if err != nil {
		return err
	}
	connector, err := p.Backends.Connector(backend)
	if err != nil {
		return err
	}
	for _, v := range all {
		stamp := backends.StampOf(v)
		uid := types.UID(stamp.ClaimUID)
		if !p.ledger.isFound(uid, backend) {
			continue
		}
		if _, begun := p.beginningOf(uid); begun {
			continue
		}
		gone, err := p.isClaimGone(ctx, stamp)
		if err != nil {
			return err
		}
		if gone {
			p.begin(uid, beginning{backend: backend, stamp: stamp, connector: connector})
			p.leftover(uid)
			continue
		}
		// A claim that is denied was so before its volume was known.
		p.reconsider(func(d denial) bool { return d.claim.UID == uid })
	}
	return nil
}

// isClaimGone asks the API server whether the claim that a volume was made for
// exists no more.
func (p *Provisioner) isClaimGone(ctx context.Context, stamp backends.Stamp) (bool, error) {
	if cached, err := p.Claims.PersistentVolumeClaims(stamp.Namespace).Get(stamp.Claim); err == nil && string(cached.UID) == stamp.ClaimUID {
		return false, nil
	}
	claim, err := p.Client.CoreV1().PersistentVolumeClaims(stamp.Namespace).Get(ctx, stamp.Claim, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("cannot tell whether claim %s/%s exists: %w", stamp.Namespace, stamp.Claim, err)
	}
	return string(claim.UID) != stamp.ClaimUID, nil
}
