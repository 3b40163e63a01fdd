package provisioner

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// A request may reach Cinder after its sender has given up or lost the lease, because a
// network, a proxy or a queue delayed it. What it creates appears after the listing
// that every lookup uses, so no attempt would find it. Therefore each backend is listed
// again: once soon, and once when every such request must have timed out.
const (
	firstSweepAfter = 15 * time.Second
	lastSweepAfter  = 90 * time.Second
	// sweepPeriod is how often Sweep checks which backends are due.
	sweepPeriod = 5 * time.Second
	// secretsPause is the longest that Sweep waits after a failed sweep of Secrets;
	// the wait doubles with each failure, since a sweep lists every backend.
	secretsPause = time.Minute
)

// Sweep lists every backend again to find what late requests created, after the
// term has begun and after create requests whose answers were lost. It ends with
// the context.
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
					p.Logger.Warn("Listing a backend again failed and will be retried", "backend", name, "error", err)
				}
			})
		}
	}
}

// sweepSecretsAgain removes Secrets that late requests created. It ends with the
// context.
func (p *Provisioner) sweepSecretsAgain(ctx context.Context, began time.Time) {
	var swept time.Time
	for wait := sweepPeriod; pause(ctx, wait); {
		latest := began
		if failed := p.secrets.LastUncertain(); failed.After(latest) {
			latest = failed
		}
		at := time.Now()
		if !mayHaveArrived(began, latest, swept, at) {
			wait = sweepPeriod
			continue
		}
		if err := p.secrets.Sweep(ctx); err == nil {
			swept, wait = at, sweepPeriod
		} else if wait = min(2*wait, secretsPause); ctx.Err() == nil {
			p.Logger.Warn("Removing orphaned Secrets failed and will be retried", "error", err)
		}
	}
}

// pause waits, and returns false if the context ended.
func pause(ctx context.Context, length time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(length):
		return true
	}
}

// sweepIsDue reports whether a late request may have reached a backend since its
// last listing.
func (p *Provisioner) sweepIsDue(name string, began, swept, now time.Time) bool {
	if !p.placement.IsCounted(name) || p.placement.Health(name) != nil {
		return false
	}
	latest := began
	if volumes, err := p.Backends.Volumes(name); err == nil && volumes.LastUncertain().After(latest) {
		latest = volumes.LastUncertain()
	}
	return mayHaveArrived(began, latest, swept, now)
}

// mayHaveArrived reports whether requests sent up to latest may have taken effect
// since the last sweep; swept is zero before the first.
func mayHaveArrived(began, latest, swept, now time.Time) bool {
	if swept.IsZero() {
		return now.Sub(latest) >= firstSweepAfter || now.Sub(began) >= lastSweepAfter
	}
	return latest.After(swept) && now.Sub(swept) >= firstSweepAfter || now.Sub(latest) >= lastSweepAfter && swept.Sub(latest) < lastSweepAfter
}

// CountBackends counts every backend when the term begins, and those that a
// reload adds, so that it also finds volumes on backends that no rule uses any
// longer. It queues for removal what an earlier leader left unfinished. It ends
// with the context.
func (p *Provisioner) CountBackends(ctx context.Context) {
	var group sync.WaitGroup
	defer group.Wait()
	for _, name := range p.Backends.Names() {
		p.placement.RequestCount(name)
	}
	var mu sync.Mutex
	running := map[string]bool{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.placement.Wanted():
		}
		for _, name := range p.placement.TakeWanted() {
			mu.Lock()
			isRunning := running[name]
			running[name] = true
			mu.Unlock()
			if isRunning {
				continue
			}
			group.Go(func() {
				p.countUntilDone(ctx, name)
				mu.Lock()
				delete(running, name)
				mu.Unlock()
				// The backend may have moved after the count and before running forgot
				// it.
				if ctx.Err() == nil && !p.placement.IsCounted(name) {
					p.placement.RequestCount(name)
				}
			})
		}
	}
}

// countUntilDone counts one backend as soon as it answers.
func (p *Provisioner) countUntilDone(ctx context.Context, name string) {
	const maxWait = 15 * time.Second
	for wait := time.Second; ; wait = min(2*wait, maxWait) {
		err := p.placement.Health(name)
		silent := err != nil
		if !silent {
			err = p.countAndExamine(ctx, name)
		}
		p.followup.backendListed(name)
		if err == nil {
			return
		}
		if !silent {
			p.Logger.Warn("Counting a backend's volumes failed and will be retried", "backend", name, "error", err)
		}
		if !pause(ctx, wait) {
			return
		}
	}
}

// countAndExamine counts a backend's volumes, and searches the term's listing of them for
// those that nothing seems to need.
func (p *Provisioner) countAndExamine(ctx context.Context, name string) error {
	if err := p.placement.CountBackend(ctx, name); err != nil {
		return err
	}
	volumes, err := p.Backends.Volumes(name)
	if err != nil {
		return err
	}
	all, err := volumes.Volumes(ctx)
	if err == nil {
		p.examine(name, all)
	}
	return err
}

// RelistBackend lists a backend again, queues the volumes that nothing seems to
// need for removal, and returns the listing.
func (p *Provisioner) RelistBackend(ctx context.Context, name string) ([]cinder.Volume, error) {
	all, err := p.placement.Relist(ctx, name, p.claimExists)
	if err == nil {
		p.examine(name, all)
	}
	return all, err
}

// youngEnough is the age up to which a volume or Secret may be removed although this
// term did not see the deletion of its claim. An earlier leader's unfinished work is
// young. Anything older may have been kept on purpose, so it is left to the audit's
// report.
const youngEnough = time.Hour

// examine searches a listing for volumes that nothing seems to need, duplicates and
// orphans, and queues them for removal. The proof follows when their turn comes.
func (p *Provisioner) examine(backend string, all []cinder.Volume) {
	for _, v := range all {
		stamp := stamps.Of(v)
		uid := types.UID(stamp.ClaimUID)
		if stamp.PV == objects.ImportedPVName(v.ID) && !p.claimExists(types.UID(stamp.Holder())) && p.recordedBy(v) == "" && p.LeftImport != nil {
			p.LeftImport(backend, v)
		}
		if pv, err := p.PersistentVolumes.Get(stamp.PV); err == nil && p.contradicts(pv, v) {
			p.followup.add(misstampedOf(pv.Name, v.ID))
		}
		if stamp.PV != objects.PVNameFor(stamp.ClaimUID) || stamps.EverAttached(v) || stamps.IsCopy(v) || p.recordedBy(v) != "" {
			continue
		}
		item := removalOf(uid, backend, v.ID)
		if pv, err := p.PersistentVolumes.Get(stamp.PV); err == nil && p.isMine(pv) {
			p.followup.add(item) // a duplicate: the PersistentVolume names another volume
			continue
		}
		_, begun := p.journal.Beginning(uid)
		claim := objects.ClaimByUID(p.IndexedClaims, uid)
		position, counts := p.ledger.PositionOf(uid)
		switch {
		case counts && position.Backend != backend:
			p.followup.add(item) // a duplicate as soon as a PersistentVolume names one of the two
		case claim != nil && !objects.BoundElsewhere(claim):
			// If the claim was denied, that decision did not consider its volume.
			p.parkedClaims.reconsider(claim.UID)
		case begun:
		case p.ledger.WasServedByAnother(uid, v.ID):
			p.followup.add(item) // a duplicate: the PersistentVolume that is gone named another volume
		case p.ledger.IsFound(uid, backend) && (time.Since(v.CreatedAt).Abs() < youngEnough || p.placement.SawDeleted(uid)):
			p.followup.add(undoOf(uid))
		}
	}
}

// claimExists reports whether the cache has a claim.
func (p *Provisioner) claimExists(uid types.UID) bool {
	return objects.ClaimByUID(p.IndexedClaims, uid) != nil
}

// SweepSecrets removes the Secrets that nothing needs, those of single volumes
// and shared ones.
func (p *Provisioner) SweepSecrets(ctx context.Context) error { return p.secrets.Sweep(ctx) }

// isWanted reports whether a claim is in the cache, has an unfinished attempt, or
// counts in the ledger, perhaps for a volume that is younger than the listings.
func (p *Provisioner) isWanted(uid types.UID) bool {
	_, begun := p.journal.Beginning(uid)
	_, counts := p.ledger.PositionOf(uid)
	return begun || counts || p.claimExists(uid)
}

// claimsOfVolumes lists the claims that have a volume. If any backend does not
// answer, it returns an error.
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
			if stamp := stamps.Of(v); stamp.PV == objects.PVNameFor(stamp.ClaimUID) {
				claims[types.UID(stamp.ClaimUID)] = true
			}
		}
	}
	return claims, nil
}
