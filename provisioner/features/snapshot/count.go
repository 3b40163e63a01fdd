package snapshot

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/ledger"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

// otherBackendsTimeout is how long a snapshot waits for the listings of backends
// other than its own, which count against the same quota.
const otherBackendsTimeout = 10 * time.Second

// counting counts the snapshots that backends have.
type counting struct {
	*Controller

	mu sync.Mutex
	// counted holds the backends whose snapshots the ledger has counted, and whether
	// that count is still valid.
	counted map[string]bool
}

// hear has a backend that answers again counted again: it may have moved to another
// place.
func (c *counting) hear(triggers []parking.Trigger) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, one := range triggers {
		if (one.Kind == parking.Backend || one.Kind == parking.Credentials) && c.counted[one.Name] {
			c.counted[one.Name] = false
		}
	}
}

// countBackends counts every backend when the term begins, and looks for what an
// earlier leader left there.
func (c *counting) countBackends(ctx context.Context) {
	var group sync.WaitGroup
	for _, name := range c.Backends.Names() {
		group.Go(func() {
			if err := c.countBackend(ctx, name); err == nil {
				err = c.leftovers.sweep(ctx, name, false)
				c.leftovers.warn(ctx, name, err)
			}
		})
	}
	group.Wait()
}

// countFor counts the backend of a snapshot and, if a limit on snapshots is decisive,
// those other backends that its tenant may use and that answer.
func (c *counting) countFor(ctx context.Context, backend string, d policy.Decision) error {
	if err := c.countBackend(ctx, backend); err != nil {
		return fmt.Errorf("cannot list the snapshots that backend %s already has: %w", backend, err)
	}
	t, ok := c.Policy().Tenant(d.Tenant)
	if !ok || !slices.ContainsFunc(d.Quotas, func(s policy.QuotaScope) bool { return s.Limits.Snapshots != nil || s.Limits.SnapshotGigabytes != nil }) {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, otherBackendsTimeout)
	defer cancel()
	var group sync.WaitGroup
	for _, class := range t.Classes {
		for _, name := range class.Backends {
			if name != backend && c.health(name) == nil {
				// A backend that is not counted in time only delays snapshots on that
				// backend.
				group.Go(func() { _ = c.countBackend(bounded, name) })
			}
		}
	}
	group.Wait()
	return nil
}

// countBackend counts the stamped snapshots of a backend, once in a term and once
// after each outage.
func (c *counting) countBackend(ctx context.Context, name string) error {
	c.mu.Lock()
	holds, again := c.counted[name]
	c.mu.Unlock()
	if holds {
		return nil
	}
	backend, err := c.Backends.Snapshots(name)
	if err != nil {
		return err
	}
	if _, err := c.list(ctx, name, backend, again); err != nil {
		return err
	}
	c.mu.Lock()
	c.counted[name] = true
	c.mu.Unlock()
	return nil
}

// list lists the snapshots of a backend, and counts them. The term's last listing may
// lack snapshots that were taken since, so it frees no room.
func (c *counting) list(ctx context.Context, name string, backend Snapshots, again bool) (all []cinder.Snapshot, err error) {
	var began time.Time
	if again {
		began = time.Now()
		all, err = backend.RelistSnapshots(ctx)
	} else {
		all, err = backend.Snapshots(ctx)
	}
	if err == nil {
		c.countListed(name, all, began)
	}
	return all, err
}

// countListed counts the snapshots of a listing.
func (c *counting) countListed(name string, all []cinder.Snapshot, began time.Time) {
	present := map[types.UID]ledger.Snapshot{}
	for _, s := range all {
		if stamp := stamps.OfSnapshot(s); c.isOurs(stamp) || c.isImported(stamp, s) {
			present[types.UID(stamp.SnapshotUID)] = ledger.Snapshot{Tenant: stamp.Tenant, StorageClass: stamp.StorageClass, GiB: s.SizeGiB}
		}
	}
	for _, tenant := range c.Ledger.FoundSnapshots(name, present, began) {
		c.Board.Publish(roomOf(tenant))
	}
}

// isOurs reports whether this program wrote a stamp in this very cluster.
func (c *Controller) isOurs(stamp stamps.Snapshot) bool {
	return stamp.Cluster == c.Cluster && stamp.ClusterUID == c.ClusterUID && stamp.Content == objects.SnapshotContentName(types.UID(stamp.SnapshotUID))
}

// isImported reports whether a snapshot carries the stamp of an import in this very
// cluster. Somebody chose the name of its content, so nothing here takes the snapshot
// for a leftover.
func (c *Controller) isImported(stamp stamps.Snapshot, s cinder.Snapshot) bool {
	return stamp.Cluster == c.Cluster && stamp.ClusterUID == c.ClusterUID && stamp.SnapshotUID != "" && wasRecorded(s)
}

// release frees room, and brings back the snapshots that wait for it.
func (c *Controller) release(uid types.UID, by func(types.UID) (tenant string, freed bool)) {
	if tenant, freed := by(uid); freed {
		c.Board.Publish(roomOf(tenant))
	}
}

// roomOf returns the trigger that fires when a tenant has room for another snapshot.
func roomOf(tenant string) parking.Trigger { return parking.Trigger{Kind: parking.Room, Name: tenant} }

func triggersAt(name string) []parking.Trigger {
	return []parking.Trigger{{Kind: parking.Backend, Name: name}, {Kind: parking.Credentials, Name: name}}
}

// health returns nil while a backend answers. A backend that is not configured is
// reported elsewhere.
func (c *Controller) health(name string) error {
	backend, err := c.Backends.Snapshots(name)
	if err != nil {
		return nil
	}
	return backend.Health()
}

func wasRecorded(s cinder.Snapshot) bool { return stamps.WasRecorded(s) }
