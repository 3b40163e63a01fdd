package snapshot

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/paging"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

// Audit lists the snapshots of a backend again, counts them, and removes what a
// late request left behind. It returns the orphans among them. It does nothing while no
// snapshots are taken.
func (c *Controller) Audit(ctx context.Context, name string) []Orphan {
	if c.shown() == nil || c.Backends.Health(name) != nil {
		return nil
	}
	c.leftovers.warn(ctx, name, c.leftovers.sweepAll(ctx, name))
	return c.leftovers.orphansOn(name)
}

// Orphan is a snapshot, or a backup, that was handed out, and that no VolumeSnapshotContent
// names any more: its content had the deletionPolicy Retain, or was removed by hand.
type Orphan struct {
	ID       string
	IsBackup bool
	// Of is the namespace and the name of its VolumeSnapshot.
	Of, Tenant string
}

// kept is a snapshot that was reported as kept.
type kept struct {
	on Shelf
	// orphan is nil if the snapshot may still be named or removed.
	orphan *Orphan
}

// leftovers removes the snapshots that late requests left behind.
type leftovers struct {
	*Controller

	mu   sync.Mutex
	kept map[string]kept // by ID
}

// syncBackend looks at once for the snapshots of the CSI driver's contents that are gone
// from a backend without having said what became of them: if a call has failed for
// good, the sidecar removes the content without requesting a deletion. A backend is in
// the queue only once, so one listing serves all contents that were gone before it.
func (c *leftovers) syncBackend(ctx context.Context, a *attempt) error {
	backend := a.Key.name
	if _, err := c.answering(Shelf{Backend: backend}); err != nil {
		return nil // an audit will look, too
	}
	// The contents may be those of any tenants. All such listings together have the turns
	// of one tenant, so that backends that hang leave workers to others.
	if !a.Begin("", backend) {
		return nil // its turn brings it back
	}
	return c.sweepAll(ctx, backend)
}

// sweepAll sweeps every shelf of a backend.
func (c *leftovers) sweepAll(ctx context.Context, backend string) error {
	var errs []error
	for _, s := range c.counting.shelves(backend) {
		errs = append(errs, c.sweep(ctx, s, true))
	}
	return errors.Join(append(errs, c.sweepGroups(ctx, backend))...)
}

// sweepGroups removes the groups at a backend that an attempt left there.
func (c *leftovers) sweepGroups(ctx context.Context, name string) error {
	if !c.mayHaveGroups(name) {
		return nil
	}
	backend, err := c.Backends.Groups(name)
	if err != nil {
		return err
	}
	removed, err := backend.AbandonGroups(ctx, c.ClusterUID, func(ctx context.Context, uid string) (bool, error) {
		content := objects.GroupContentName(types.UID(uid))
		if _, err := c.groupsShown().contents.Get(content); err == nil {
			return false, nil
		}
		live, err := c.grouped.groupContentAt(ctx, content)
		return live == nil, err
	})
	for _, uid := range removed {
		c.Logger.Info("Removed an abandoned group", "backend", name, "groupUID", uid)
	}
	return err
}

// mayHaveGroups reports whether group snapshots may be at a backend. Others are not asked for
// any: their Cinder may be too old.
func (c *leftovers) mayHaveGroups(backend string) bool {
	groups := c.groupsShown()
	if groups == nil || !policy.GrantsGroups(c.Policy(), backend) {
		return false
	}
	classes, _ := groups.classes.List(everything) // the cache never returns an error
	return slices.ContainsFunc(classes, func(class *groupv1.VolumeGroupSnapshotClass) bool {
		return policy.Consistency(class.Parameters[policy.ParameterConsistency]) == policy.ConsistentArray && (class.Driver == c.Name || class.Driver == policy.CSIDriver)
	})
}

func (c *leftovers) warn(ctx context.Context, name string, err error) {
	if err != nil && ctx.Err() == nil {
		c.Logger.Warn("Looking for abandoned snapshots failed and will be retried", "backend", name, "error", err)
	}
}

// sweep removes the snapshots to which nothing leads or ever led.
func (c *leftovers) sweep(ctx context.Context, of Shelf, again bool) error {
	backend, err := c.Backends.Snapshots(of)
	if err != nil {
		return err
	}
	all, err := c.counting.list(ctx, of, backend, again)
	if err != nil {
		return err
	}
	var unnamed []cinder.Snapshot
	for _, s := range all {
		if stamp := stamps.OfSnapshot(s); c.isOurs(stamp) && !c.isNamed(stamp, s.ID) {
			unnamed = append(unnamed, s)
		}
	}
	if len(unnamed) > 0 {
		named, err := c.namedHandles(ctx)
		if err != nil {
			return err
		}
		unnamed = slices.DeleteFunc(unnamed, func(s cinder.Snapshot) bool { return named[s.ID] })
	}
	c.forgetKept(of, unnamed)
	var errs []error
	for _, s := range unnamed {
		if ctx.Err() == nil {
			errs = append(errs, c.removeLeftover(ctx, backend, of, s))
		}
	}
	return errors.Join(errs...)
}

// isNamed reports whether the cache has a content that leads, or may still come to
// lead, to the snapshot.
func (c *leftovers) isNamed(stamp stamps.Snapshot, id string) bool {
	content, err := c.shown().contents.Get(stamp.Content)
	if err == nil && (objects.SnapshotHandleOf(content) == "" || objects.SnapshotHandleOf(content) == id) {
		return true
	}
	group := c.groupContent(stamp)
	return group != nil && leadsTo(group, stamp, id)
}

// groupContent returns the content, in the cache, of the group that a stamp names; nil if
// there is none.
func (c *leftovers) groupContent(stamp stamps.Snapshot) *groupv1.VolumeGroupSnapshotContent {
	groups := c.groupsShown()
	if stamp.Group == "" || groups == nil {
		return nil
	}
	group, err := groups.contents.Get(objects.GroupContentName(types.UID(stamp.Group)))
	if err != nil {
		return nil
	}
	return group
}

// leadsTo reports whether the content of a group leads, or may still come to lead, to a
// snapshot with a stamp of the group.
func leadsTo(group *groupv1.VolumeGroupSnapshotContent, stamp stamps.Snapshot, id string) bool {
	origin, err := objects.GroupOriginOf(group)
	if err != nil {
		return true
	}
	i := slices.IndexFunc(origin.Members, func(m objects.Member) bool { return string(m.UID) == stamp.SnapshotUID })
	return i < 0 || origin.Members[i].SnapshotID == "" || origin.Members[i].SnapshotID == id
}

// namedHandles reads the IDs of all snapshots that any content names from the API
// server.
func (c *leftovers) namedHandles(ctx context.Context) (map[string]bool, error) {
	handles, err := paging.List(ctx, "VolumeSnapshotContents", c.Snapshots.SnapshotV1().VolumeSnapshotContents().List, func(page *snapshotv1.VolumeSnapshotContentList) (handles []string) {
		for i := range page.Items {
			handles = append(handles, objects.SnapshotHandlesOf(&page.Items[i])...)
		}
		return handles
	})
	named := map[string]bool{}
	for _, handle := range handles {
		named[handle] = true
	}
	return named, err
}

// forgetKept drops the reports about snapshots that are gone, or named again.
func (c *leftovers) forgetKept(of Shelf, unnamed []cinder.Snapshot) {
	still := map[string]bool{}
	for _, s := range unnamed {
		still[s.ID] = true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.kept, func(id string, k kept) bool { return k.on == of && !still[id] })
}

// orphansOn returns the orphans on a backend.
func (c *leftovers) orphansOn(backend string) (orphans []Orphan) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.kept {
		if k.on.Backend == backend && k.orphan != nil {
			orphans = append(orphans, *k.orphan)
		}
	}
	return orphans
}

// removeLeftover removes a snapshot if it is proven that it was never handed out. Other
// snapshots are kept, and reported once in a term.
func (c *leftovers) removeLeftover(ctx context.Context, backend Snapshots, of Shelf, s cinder.Snapshot) error {
	stamp := stamps.OfSnapshot(s)
	log := c.Logger.With("backend", of.Backend, "id", s.ID, "snapshot", stamp.Namespace+"/"+stamp.Snapshot, "snapshotUID", stamp.SnapshotUID, "tenant", stamp.Tenant)
	keep := func(why string, orphan *Orphan) error {
		c.mu.Lock()
		_, said := c.kept[s.ID]
		c.kept[s.ID] = kept{of, orphan}
		c.mu.Unlock()
		if !said {
			log.Info("Kept a snapshot that no VolumeSnapshotContent names", "reason", why)
		}
		return nil
	}
	if stamps.IsUnneeded(s) {
		return keep("it is deleted with the others of its group snapshot", nil)
	}
	if wasRecorded(s) {
		return keep("it was ready once: its VolumeSnapshotContent had the deletionPolicy Retain, or was removed by hand",
			&Orphan{ID: s.ID, IsBackup: of.Backups, Of: stamp.Namespace + "/" + stamp.Snapshot, Tenant: stamp.Tenant})
	}
	why, err := c.mayStillLeadTo(ctx, stamp, s.ID)
	if err != nil {
		return err
	}
	if why != "" {
		return keep(why, nil)
	}
	ctx = c.Caller(ctx, stamp.Tenant)
	err = backend.RemoveSnapshot(ctx, backends.SnapshotTarget{
		SnapshotID: s.ID, Stamp: stamp, Place: backend.Place(), Unrecorded: true,
		Permit: func(ctx context.Context) error {
			why, err := c.mayStillLeadTo(ctx, stamp, s.ID)
			if err == nil && why != "" {
				err = &changedError{why}
			}
			return err
		},
	})
	switch {
	case cinder.IsKind(err, backends.KindRecorded):
		return keep(err.Error(), nil)
	case cinder.IsKind(err, backends.KindPending), cinder.IsKind(err, backends.KindHasBackups):
		return keep("an audit will remove it later: "+err.Error(), nil) // it may take hours, or days
	case err != nil:
		return fmt.Errorf("snapshot %s, which no VolumeSnapshotContent names: %w", s.ID, err)
	}
	log.Info("Removed an abandoned snapshot")
	if _, err := c.shown().contents.Get(stamp.Content); apierrors.IsNotFound(err) && c.groupContent(stamp) == nil {
		c.release(types.UID(stamp.SnapshotUID), c.Ledger.ReleaseSnapshot)
	}
	c.Board.Publish(parking.Trigger{Kind: parking.Snapshots, Name: s.VolumeID})
	return nil
}

// mayStillLeadTo looks at the API server for objects that may still lead to a snapshot,
// or be given it: its VolumeSnapshot, and a content that names no other snapshot.
func (c *leftovers) mayStillLeadTo(ctx context.Context, stamp stamps.Snapshot, id string) (why string, err error) {
	content, err := c.Snapshots.SnapshotV1().VolumeSnapshotContents().Get(ctx, stamp.Content, metav1.GetOptions{})
	switch {
	case err == nil:
		if handle := objects.SnapshotHandleOf(content); handle == "" || handle == id {
			return "VolumeSnapshotContent " + stamp.Content + " exists", nil
		}
		return "", nil // the content names another snapshot, so this one is a duplicate
	case !apierrors.IsNotFound(err):
		return "", fmt.Errorf("cannot tell whether VolumeSnapshotContent %s is there: %w", stamp.Content, err)
	}
	if stamp.Group != "" {
		return c.groupMayStillLeadTo(ctx, stamp, id)
	}
	live, err := c.liveSnapshot(ctx, stamp.Namespace, stamp.Snapshot, types.UID(stamp.SnapshotUID))
	if err == nil && live != nil {
		why = "VolumeSnapshot " + stamp.Namespace + "/" + stamp.Snapshot + " exists"
	}
	return why, err
}

// groupMayStillLeadTo looks for the content of the group that a snapshot belongs to. It is
// made, or asked about, only as long as it exists.
func (c *leftovers) groupMayStillLeadTo(ctx context.Context, stamp stamps.Snapshot, id string) (why string, err error) {
	name := objects.GroupContentName(types.UID(stamp.Group))
	group, err := c.grouped.groupContentAt(ctx, name)
	if err == nil && group != nil && leadsTo(group, stamp, id) {
		why = "VolumeGroupSnapshotContent " + name + " exists"
	}
	return why, err
}
