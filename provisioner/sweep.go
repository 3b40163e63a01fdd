package provisioner

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/backends"
)

// A request whose sender has given up, or leads no more, may reach Cinder all
// the same: a network, a proxy or a queue kept it. What it makes appears after
// the listing that every look rests on, and nobody would come for it. So a
// backend is listed again, soon and once more when every such request must have
// run out of time.
const (
	soon = 15 * time.Second
	late = 90 * time.Second
	// sweepPeriod is how often it is asked which backends are due.
	sweepPeriod = 5 * time.Second
)

// Sweep looks again for what arrives late, at every backend, after the term has
// begun and after creates whose answers were lost. It ends with the context.
func (p *Provisioner) Sweep(ctx context.Context) {
	began := time.Now()
	var group sync.WaitGroup
	defer group.Wait()
	var mu sync.Mutex
	swept, busy := map[string]time.Time{}, map[string]bool{}
	var secretsSwept time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(sweepPeriod):
		}
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
				_, err := p.LookAgain(ctx, name)
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
		doubt := began
		if failed := time.Unix(0, p.secretDoubt.Load()); failed.After(doubt) {
			doubt = failed
		}
		if at := time.Now(); mayHaveArrived(began, doubt, secretsSwept, at) {
			if err := p.SweepSecrets(ctx); err == nil {
				secretsSwept = at
			} else if ctx.Err() == nil {
				p.Logger.Warn("Looking for Secrets that were left failed, and is tried again", "error", err)
			}
		}
	}
}

// sweepIsDue says whether something may have arrived at a backend since it was
// listed last.
func (p *Provisioner) sweepIsDue(name string, began, swept, now time.Time) bool {
	if !p.isCounted(name) || p.health(name) != nil {
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
		return now.Sub(doubt) >= soon || now.Sub(began) >= late
	}
	return doubt.After(swept) && now.Sub(swept) >= soon || now.Sub(doubt) >= late && swept.Sub(doubt) < late
}

// LookAgain lists a backend anew and removes what provably nobody uses: what is
// left of claims that are gone, and second volumes of those that have one. It
// returns the listing.
func (p *Provisioner) LookAgain(ctx context.Context, name string) ([]backends.Volume, error) {
	volumes, err := p.Backends.Volumes(name)
	if err != nil {
		return nil, err
	}
	c := p.counting
	c.mu.Lock()
	if c.listings == 0 {
		// What went before this listing began cannot be in it, unless it came
		// back by a request that was late.
		p.ledger.forgetGone()
	}
	c.listings++
	c.mu.Unlock()
	all, err := volumes.Relist(ctx)
	if err == nil {
		p.countFound(name, all)
		p.forgetVanished(name, all)
	}
	c.mu.Lock()
	if c.listings--; c.listings == 0 {
		p.ledger.forgetGone()
	}
	c.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return all, errors.Join(p.takeOverLeftovers(ctx, name, all), p.removeSeconds(ctx, name, all))
}

// forgetVanished gives back the room of volumes that counted because they were
// found, and that somebody has removed: an administrator, or an audit.
func (p *Provisioner) forgetVanished(name string, all []backends.Volume) {
	present := map[types.UID]bool{}
	for _, v := range all {
		present[types.UID(backends.StampOf(v).ClaimUID)] = true
	}
	claims, err := p.claimsByUID()
	if err != nil {
		return
	}
	freed := false
	for _, uid := range p.ledger.foundOn(name) {
		// While a claim exists an attempt may be making its volume anew.
		_, begun := p.beginningOf(uid)
		if !present[uid] && claims[uid] == nil && !begun {
			freed = p.ledger.ReleaseUnrecorded(uid) || freed
		}
	}
	if freed {
		p.roomFreed()
	}
}

// removeSeconds removes volumes beside those that PersistentVolumes name. What
// was ever attached is left to a person.
func (p *Provisioner) removeSeconds(ctx context.Context, backend string, all []backends.Volume) error {
	var failed []error
	for _, v := range all {
		stamp := backends.StampOf(v)
		if stamp.PV != pvNameFor(stamp.ClaimUID) || v.EverAttached() || v.IsCopy() {
			continue
		}
		pv, err := p.PersistentVolumes.Get(stamp.PV)
		if err != nil || !p.isMine(pv) || pv.Annotations[annotationBackend] != backend || !namesAnother(pv, v.ID) {
			continue
		}
		p.Logger.Warn("Removing a second volume of one claim", "volume", v.ID, "backend", backend, "persistentVolume", stamp.PV)
		if err := p.Cleaner().RemoveVolume(p.onBehalfOf(ctx, stamp.Tenant), backend, v.ID, stamp); err != nil {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

// Cleaner removes what is nobody's, with the term's backends.
func (p *Provisioner) Cleaner() Cleaner {
	return Cleaner{Client: p.Client, Cluster: p.Cluster, Namespace: p.Namespace,
		Volumes: func(backend string) (Unrecorded, backends.Connector, error) {
			volumes, err := p.Backends.Volumes(backend)
			if err != nil {
				return nil, backends.Connector{}, err
			}
			connector, err := p.Backends.Connector(backend)
			return volumes, connector, err
		}}
}
