package provisioner

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/removal"
)

// A request may reach Cinder after its sender has given up or lost the lease, because a
// network, proxy or queue delayed it. What it creates appears only after the listing that
// every lookup uses, so no attempt would find it. Therefore each backend is listed again:
// once soon, and once when every such request must have timed out.
const (
	firstSweepAfter = 15 * time.Second
	lastSweepAfter  = 90 * time.Second
	// sweepPeriod is how often Sweep checks which backends are due.
	sweepPeriod = 5 * time.Second
	// secretsPause bounds the wait after a failed sweep of Secrets; the wait doubles with
	// each failure, since a sweep lists every backend.
	secretsPause = time.Minute
)

// Sweep lists every backend again to find what late requests created, after the term has
// begun and after a create request lost its answer. It ends with the context.
func (o *orphans) Sweep(ctx context.Context) {
	began := time.Now()
	var group sync.WaitGroup
	defer group.Wait()
	group.Go(func() { o.sweepSecretsAgain(ctx, began) })
	var mu sync.Mutex
	swept, busy := map[string]time.Time{}, map[string]bool{}
	for pause(ctx, sweepPeriod) {
		for _, name := range o.backends.Names() {
			mu.Lock()
			due := !busy[name] && o.sweepIsDue(name, began, swept[name], time.Now())
			busy[name] = busy[name] || due
			mu.Unlock()
			if !due {
				continue
			}
			group.Go(func() {
				at := time.Now()
				_, err := o.RelistBackend(ctx, name)
				mu.Lock()
				defer mu.Unlock()
				busy[name] = false
				if err == nil {
					swept[name] = at
				} else if ctx.Err() == nil {
					o.logger.Warn("Listing a backend again failed and will be retried", "backend", name, "error", err)
				}
			})
		}
	}
}

// sweepSecretsAgain removes Secrets that late requests created. It ends with the
// context.
func (o *orphans) sweepSecretsAgain(ctx context.Context, began time.Time) {
	var swept time.Time
	for wait := sweepPeriod; pause(ctx, wait); {
		latest := began
		if failed := o.secrets.LastUncertain(); failed.After(latest) {
			latest = failed
		}
		at := time.Now()
		if !mayHaveArrived(began, latest, swept, at) {
			wait = sweepPeriod
			continue
		}
		if err := o.SweepSecrets(ctx); err == nil {
			swept, wait = at, sweepPeriod
		} else if wait = min(2*wait, secretsPause); ctx.Err() == nil {
			o.logger.Warn("Removing orphaned Secrets failed and will be retried", "error", err)
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
func (o *orphans) sweepIsDue(name string, began, swept, now time.Time) bool {
	if !o.placement.IsCounted(name) || o.placement.Health(name) != nil {
		return false
	}
	latest := began
	if volumes, err := o.backends.Listing(name); err == nil && volumes.LastUncertain().After(latest) {
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

// CountBackends counts every backend when the term begins, and those that a reload adds,
// so it also finds volumes on backends that no rule uses anymore. It queues for removal
// what an earlier leader left unfinished. It ends with the context.
func (o *orphans) CountBackends(ctx context.Context) {
	var group sync.WaitGroup
	defer group.Wait()
	for _, name := range o.backends.Names() {
		o.placement.RequestCount(name)
	}
	var mu sync.Mutex
	running := map[string]bool{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-o.placement.Wanted():
		}
		for _, name := range o.placement.TakeWanted() {
			mu.Lock()
			isRunning := running[name]
			running[name] = true
			mu.Unlock()
			if isRunning {
				continue
			}
			group.Go(func() {
				o.countUntilDone(ctx, name)
				mu.Lock()
				delete(running, name)
				mu.Unlock()
				// The backend may have moved after the count and before running forgot
				// it.
				if ctx.Err() == nil && !o.placement.IsCounted(name) {
					o.placement.RequestCount(name)
				}
			})
		}
	}
}

// countUntilDone counts one backend as soon as it answers.
func (o *orphans) countUntilDone(ctx context.Context, name string) {
	const maxWait = 15 * time.Second
	for wait := time.Second; ; wait = min(2*wait, maxWait) {
		err := o.placement.Health(name)
		silent := err != nil
		if !silent {
			err = o.countAndExamine(ctx, name)
		}
		o.followup.backendListed(name)
		if err == nil {
			return
		}
		if !silent {
			o.logger.Warn("Counting a backend's volumes failed and will be retried", "backend", name, "error", err)
		}
		if !pause(ctx, wait) {
			return
		}
	}
}

// countAndExamine counts a backend's volumes and searches the term's listing for unneeded
// ones.
func (o *orphans) countAndExamine(ctx context.Context, name string) error {
	if err := o.placement.CountBackend(ctx, name); err != nil {
		return err
	}
	volumes, err := o.backends.Listing(name)
	if err != nil {
		return err
	}
	all, err := volumes.Volumes(ctx)
	if err == nil {
		o.examine(name, all)
	}
	return err
}

// RelistBackend lists a backend again, queues apparently unneeded volumes for removal,
// and returns the listing.
func (o *orphans) RelistBackend(ctx context.Context, name string) ([]cinder.Volume, error) {
	all, err := o.placement.Relist(ctx, name, o.claimExists)
	if err == nil {
		o.examine(name, all)
	}
	return all, err
}

// youngEnough is the age up to which a volume or Secret may be removed although this term
// did not see its claim deleted. An earlier leader's unfinished work is young; anything
// older may have been kept on purpose and is left to the audit.
const youngEnough = time.Hour

// examine searches a listing for duplicates and orphans and queues them for removal. The
// proof follows when their turn comes.
func (o *orphans) examine(backend string, all []cinder.Volume) {
	for _, v := range all {
		stamp := stamps.Of(v)
		uid := types.UID(stamp.ClaimUID)
		if stamp.PV == objects.ImportedPVName(v.ID) && !o.claimExists(types.UID(stamp.Holder())) && o.recordedBy(v) == "" && o.imports.Importer != nil {
			o.imports.Left(backend, v)
		}
		if pv, err := o.cachedPVs.Get(stamp.PV); err == nil && o.contradicts(pv, v) {
			o.tasks.add(misstampedOf(pv.Name, v.ID))
		}
		if stamp.PV != objects.PVNameFor(stamp.ClaimUID) || stamps.EverAttached(v) || stamps.IsCopy(v) || o.recordedBy(v) != "" {
			continue
		}
		item := removalOf(uid, backend, v.ID)
		if pv, err := o.cachedPVs.Get(stamp.PV); err == nil && o.isMine(pv) {
			o.tasks.add(item) // a duplicate: the PersistentVolume names another volume
			continue
		}
		_, begun := o.journal.Beginning(uid)
		claim := objects.ClaimByUID(o.indexedClaims, uid)
		position, counts := o.ledger.PositionOf(uid)
		switch {
		case counts && position.Backend != backend:
			o.tasks.add(item) // a duplicate as soon as a PersistentVolume names one of the two
		case claim != nil && !objects.BoundElsewhere(claim):
			// If the claim was denied, that decision did not consider its volume.
			o.parkedClaims.reconsider(claim.UID)
		case begun:
		case o.ledger.WasServedByAnother(uid, v.ID):
			o.tasks.add(item) // a duplicate: the PersistentVolume that is gone named another volume
		case o.ledger.IsFound(uid, backend) && (time.Since(v.CreatedAt).Abs() < youngEnough || o.placement.SawDeleted(uid)):
			o.tasks.add(undoOf(uid))
		}
	}
}

// SweepSecrets removes the Secrets that nothing needs: those of single volumes, and
// those that the volumes of a backend shared that is no longer in use.
func (o *orphans) SweepSecrets(ctx context.Context) error { return o.secrets.Sweep(ctx) }

// claimsOfVolumes lists the claims that have a volume. It fails if any backend does not
// answer.
func claimsOfVolumes(ctx context.Context, b Backends) (map[types.UID]bool, error) {
	claims := map[types.UID]bool{}
	for _, name := range b.Names() {
		volumes, err := b.Listing(name)
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

func unrecordedVolumes(b Backends, backend string) (removal.Unrecorded, cinder.Connector, error) {
	volumes, err := b.Unrecorded(backend)
	if err != nil {
		return nil, cinder.Connector{}, err
	}
	connector, err := b.Connector(backend)
	return volumes, connector, err
}
