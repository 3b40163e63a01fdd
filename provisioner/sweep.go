package provisioner

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/provisioner/record"
)

// A request whose sender has given up, or leads no more, may reach Cinder all
// the same: a network, a proxy or a queue kept it. What it makes appears after
// the listing that every look rests on, and nobody would come for it. So a
// backend is listed again, soon and once more when every such request must have
// run out of time.
const (
	firstSweepAfter = 15 * time.Second
	lastSweepAfter  = 90 * time.Second
	// sweepPeriod is how often it is asked which backends are due.
	sweepPeriod = 5 * time.Second
	// secretsPause is how long a sweep of Secrets that failed is not repeated.
	secretsPause = time.Minute
)

// Sweep looks again for what arrives late, at every backend, after the term has
// begun and after creates whose answers were lost. It ends with the context.
func (p *Provisioner) Sweep(ctx context.Context) {
	began := time.Now()
	var group sync.WaitGroup
	defer group.Wait()
	group.Go(func() { p.sweepSecretsAgain(ctx, began) })
	var mu sync.Mutex
	swept, busy := map[string]time.Time{}, map[string]bool{}
	for pause(ctx, sweepPeriod) {
		for _, name := range p.Backends.Names() {
			mu.Lock()
			due := !busy[name] && p.sweepIsDue(name, began, swept[name], time.Now())
			busy[name] = busy[name] || due
			mu.Unlock()
			if !due {
				continue
			}
			group.Go(func() {
				at := time.Now()
				_, err := p.RelistBackend(ctx, name)
				mu.Lock()
				defer mu.Unlock()
				busy[name] = false
				if err == nil {
					swept[name] = at
				} else if ctx.Err() == nil {
					p.Logger.Warn("Looking again for what arrived late failed, and is tried again", "backend", name, "error", err)
				}
			})
		}
	}
}

// sweepSecretsAgain looks for Secrets that arrived late. It ends with the
// context.
func (p *Provisioner) sweepSecretsAgain(ctx context.Context, began time.Time) {
	var swept time.Time
	for wait := sweepPeriod; pause(ctx, wait); {
		wait = sweepPeriod
		doubt := began
		if failed := p.secrets.LastDoubt(); failed.After(doubt) {
			doubt = failed
		}
		at := time.Now()
		if !mayHaveArrived(began, doubt, swept, at) {
			continue
		}
		if err := p.secrets.Sweep(ctx); err == nil {
			swept = at
		} else if wait = secretsPause; ctx.Err() == nil {
			p.Logger.Warn("Looking for Secrets that were left failed, and is tried again", "error", err)
		}
	}
}

// pause returns false when the context ended meanwhile.
func pause(ctx context.Context, length time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(length):
		return true
	}
}

// sweepIsDue says whether something may have arrived at a backend since it was
// listed last.
func (p *Provisioner) sweepIsDue(name string, began, swept, now time.Time) bool {
	if !p.placement.isCounted(name) || p.placement.health(name) != nil {
		return false
	}
	doubt := began
	if volumes, err := p.Backends.Volumes(name); err == nil && volumes.LastDoubt().After(doubt) {
		doubt = volumes.LastDoubt()
	}
	return mayHaveArrived(began, doubt, swept, now)
}

// mayHaveArrived says whether it is time to look for what was asked for before
// the doubt and may have arrived since the last sweep, if there was one.
func mayHaveArrived(began, doubt, swept, now time.Time) bool {
	if swept.IsZero() {
		return now.Sub(doubt) >= firstSweepAfter || now.Sub(began) >= lastSweepAfter
	}
	return doubt.After(swept) && now.Sub(swept) >= firstSweepAfter || now.Sub(doubt) >= lastSweepAfter && swept.Sub(doubt) < lastSweepAfter
}

// RelistBackend lists a backend anew, hands what nobody seems to need to the
// follow-up, and returns the listing.
func (p *Provisioner) RelistBackend(ctx context.Context, name string) ([]backends.Volume, error) {
	all, err := p.placement.relist(ctx, name, p.claimsByUID)
	if err == nil {
		err = p.examine(name, all)
	}
	return all, err
}

// youngEnough is how old a volume or Secret may be to be removed although this
// term did not see its claim go. What an earlier leader was busy with is young;
// what is older may have been kept on purpose, and is for an audit to report.
const youngEnough = time.Hour

// examine goes through a listing for volumes that nobody seems to need: second
// ones beside those that are recorded, and what is left of claims that are gone.
// Whether they may go is proven when they have their turn.
func (p *Provisioner) examine(backend string, all []backends.Volume) error {
	claims, err := p.claimsByUID()
	if err != nil {
		return err
	}
	for _, v := range all {
		stamp := backends.StampOf(v)
		uid := types.UID(stamp.ClaimUID)
		if stamp.PV != record.PVNameFor(stamp.ClaimUID) || v.EverAttached() || v.IsCopy() || p.recordedBy(v) != "" {
			continue
		}
		item := followup{claim: uid, backend: backend, volume: v.ID}
		if pv, err := p.PersistentVolumes.Get(stamp.PV); err == nil && p.isMine(pv) {
			p.followup.add(item) // which names another volume
			continue
		}
		_, begun := p.journal.beginning(uid)
		claim, exists := claims[uid]
		position, counts := p.placement.PositionOf(uid)
		switch {
		case counts && position.Backend != backend:
			p.followup.add(item) // as soon as it is known which of the two is recorded
		case exists && !record.BoundElsewhere(claim):
			// A claim that is denied was so before its volume was known.
			p.parked.reconsider(claim)
		case begun:
		case p.placement.IsFound(uid, backend) && (time.Since(v.CreatedAt).Abs() < youngEnough || p.placement.sawDeleted(uid)):
			p.followup.add(followup{claim: uid})
		}
	}
	return nil
}

func (p *Provisioner) claimsByUID() (map[types.UID]*corev1.PersistentVolumeClaim, error) {
	all, err := p.Claims.List(labels.Everything())
	claims := make(map[types.UID]*corev1.PersistentVolumeClaim, len(all))
	for _, claim := range all {
		claims[claim.UID] = claim
	}
	return claims, err
}

// SweepSecrets removes Secrets that nobody needs, of single volumes and shared.
func (p *Provisioner) SweepSecrets(ctx context.Context) error { return p.secrets.Sweep(ctx) }

// wantedClaims tells which claims are in the cache, or have something begun for
// them or counted, perhaps a volume that is younger than the listings.
func (p *Provisioner) wantedClaims() (func(types.UID) bool, error) {
	claims, err := p.claimsByUID()
	return func(uid types.UID) bool {
		_, begun := p.journal.beginning(uid)
		_, counts := p.placement.PositionOf(uid)
		return begun || counts || claims[uid] != nil
	}, err
}

// claimsOfVolumes lists the claims of which a volume exists. One backend that
// does not answer leaves it unknown.
func (p *Provisioner) claimsOfVolumes(ctx context.Context) (map[types.UID]bool, error) {
	claims := map[types.UID]bool{}
	for _, name := range p.Backends.Names() {
		volumes, err := p.Backends.Volumes(name)
		if err == nil {
			err = volumes.Health()
		}
		if err != nil {
			return nil, err
		}
		all, err := volumes.Volumes(ctx)
		if err != nil {
			return nil, err
		}
		for _, v := range all {
			if stamp := backends.StampOf(v); stamp.PV == record.PVNameFor(stamp.ClaimUID) {
				claims[types.UID(stamp.ClaimUID)] = true
			}
		}
	}
	return claims, nil
}
