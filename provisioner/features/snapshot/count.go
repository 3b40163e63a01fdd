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
	// counted holds what the ledger has counted, and whether that count is still valid.
	counted map[Shelf]bool
}

// hear has a backend that answers again counted again: it may have moved to another
// place.
func (c *counting) hear(triggers []parking.Trigger) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, one := range triggers {
		for s, counted := range c.counted {
			if (one.Kind == parking.Backend || one.Kind == parking.Credentials) && s.Backend == one.Name && counted {
				c.counted[s] = false
			}
		}
	}
}

// countBackends counts every backend when the term begins, and looks for what an
// earlier leader left there.
func (c *counting) countBackends(ctx context.Context) {
	var group sync.WaitGroup
	for _, name := range c.Backends.Names() {
		group.Go(func() { c.leftovers.warn(ctx, name, c.leftovers.sweepGroups(ctx, name)) })
		for _, s := range c.shelves(name) {
			group.Go(func() {
				if err := c.countBackend(ctx, s); err == nil {
					err = c.leftovers.sweep(ctx, s, false)
					c.leftovers.warn(ctx, name, err)
				}
			})
		}
	}
	group.Wait()
}

// shelves returns those of a backend that may have something: as long as nobody may make
// backups there and there are none, its Cinder is not asked for any.
func (c *counting) shelves(backend string) []Shelf {
	shelves := []Shelf{{backend, false}}
	if policy.GrantsBackups(c.Policy(), backend) || c.shown().haveBackup(backend) {
		shelves = append(shelves, Shelf{backend, true})
	}
	return shelves
}

// countFor counts the backend of a snapshot and, if a limit on snapshots is decisive,
// those other backends that its tenant may use and that answer.
func (c *counting) countFor(ctx context.Context, of Shelf, d policy.Decision) error {
	if err := c.countBackend(ctx, of); err != nil {
		return fmt.Errorf("cannot list what backend %s already has: %w", of.Backend, err)
	}
	t, ok := c.Policy().Tenant(d.Tenant)
	if !ok || !slices.ContainsFunc(d.Quotas, func(s policy.QuotaScope) bool {
		if of.Backups {
			return s.Limits.Backups != nil || s.Limits.BackupGigabytes != nil
		}
		return s.Limits.Snapshots != nil || s.Limits.SnapshotGigabytes != nil
	}) {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, otherBackendsTimeout)
	defer cancel()
	var group sync.WaitGroup
	for _, class := range t.Classes {
		for _, name := range class.Backends {
			if name != of.Backend && c.Backends.Health(name) == nil {
				// A backend that is not counted in time only delays snapshots on that
				// backend.
				group.Go(func() { _ = c.countBackend(bounded, Shelf{name, of.Backups}) })
			}
		}
	}
	group.Wait()
	return nil
}

// countBackend counts the stamped snapshots or backups of a backend, once in a term and once
// after each outage.
func (c *counting) countBackend(ctx context.Context, of Shelf) error {
	c.mu.Lock()
	holds, again := c.counted[of]
	c.mu.Unlock()
	if holds {
		return nil
	}
	backend, err := c.Backends.Snapshots(of)
	if err != nil {
		return err
	}
	if _, err := c.list(ctx, of, backend, again); err != nil {
		return err
	}
	c.mu.Lock()
	c.counted[of] = true
	c.mu.Unlock()
	return nil
}

// list lists the snapshots or backups of a backend, and counts them. The term's last listing may
// lack snapshots that were taken since, so it frees no room.
func (c *counting) list(ctx context.Context, of Shelf, backend Snapshots, again bool) (all []cinder.Snapshot, err error) {
	var began time.Time
	if again {
		began = time.Now()
		all, err = backend.RelistSnapshots(ctx)
	} else {
		all, err = backend.Snapshots(ctx)
	}
	if err == nil {
		c.countListed(of, all, began)
	}
	return all, err
}

// countListed counts what a listing shows. A snapshot from which a backup is being made
// counts as that backup.
func (c *counting) countListed(of Shelf, all []cinder.Snapshot, began time.Time) {
	present := map[types.UID]ledger.Snapshot{}
	for _, s := range all {
		if stamp := stamps.OfSnapshot(s); !stamps.IsForBackup(s) && (c.isOurs(stamp) || c.isImported(stamp, s)) {
			present[types.UID(stamp.SnapshotUID)] = ledger.Snapshot{IsBackup: of.Backups, Tenant: stamp.Tenant, StorageClass: stamp.StorageClass, GiB: s.SizeGiB}
		}
	}
	for _, tenant := range c.Ledger.FoundSnapshots(of.Backend, of.Backups, present, began) {
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

func wasRecorded(s cinder.Snapshot) bool { return stamps.WasRecorded(s) }
