package provisioner

import (
	"context"
	"errors"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/backends"
)

// SweepSecrets removes Secrets that nobody needs, of single volumes and shared.
func (p *Provisioner) SweepSecrets(ctx context.Context) error {
	return errors.Join(p.sweepOwnSecrets(ctx), p.sweepSharedSecrets(ctx))
}

// sweepOwnSecrets removes Secrets of claims that went while they were
// provisioned. Undoing removes a claim's Secret, but the request that makes it
// may arrive later. As with volumes, only what is young was left by this
// program; the rest is for an operator to judge.
func (p *Provisioner) sweepOwnSecrets(ctx context.Context) error {
	secrets, err := listSecrets(ctx, p.Client, p.Namespace)
	if err != nil {
		return err
	}
	left := map[types.UID]string{} // PersistentVolumes' names by claim UID
	for _, secret := range secrets {
		uid, named := strings.CutPrefix(secret.PV, pvNamePrefix)
		_, begun := p.beginningOf(types.UID(uid))
		_, err := p.PersistentVolumes.Get(secret.PV)
		if named && !begun && err != nil && secret.Cluster == p.Cluster && time.Since(secret.CreatedAt).Abs() < youngEnough {
			left[types.UID(uid)] = secret.PV
		}
	}
	if len(left) == 0 {
		return nil
	}
	if err := p.keepSecretsOfVolumes(ctx, left); err != nil {
		return err
	}
	claims, err := ListClaimUIDs(ctx, p.Client)
	if err != nil {
		return err
	}
	for uid := range claims {
		delete(left, uid)
	}
	var failed []error
	for _, pv := range left {
		p.Logger.Info("Removing the Secret of a claim that is gone", "persistentVolume", pv)
		failed = append(failed, p.Cleaner().RemoveSecret(ctx, pv))
	}
	return errors.Join(failed...)
}

// keepSecretsOfVolumes takes those out of which a volume exists: it may have
// been kept on purpose, with its credentials.
func (p *Provisioner) keepSecretsOfVolumes(ctx context.Context, left map[types.UID]string) error {
	for _, name := range p.Backends.Names() {
		volumes, err := p.Backends.Volumes(name)
		if err == nil {
			err = volumes.Health()
		}
		if err != nil {
			return err
		}
		all, err := volumes.Volumes(ctx)
		if err != nil {
			return err
		}
		for _, v := range all {
			if stamp := backends.StampOf(v); stamp.PV == pvNameFor(stamp.ClaimUID) {
				delete(left, types.UID(stamp.ClaimUID))
			}
		}
	}
	return nil
}
