package backends

import (
	"context"
	"errors"
	"slices"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
)

// RemoveGroup removes the groups and group snapshots of a VolumeGroupSnapshot. Those with a
// snapshot that must not go stay, without volumes; it returns the IDs of these snapshots, and
// marks the others as unneeded.
func (l Snapshots) RemoveGroup(ctx context.Context, target GroupTarget) (kept []string, err error) {
	return serialized(ctx, l.Lifecycle, target.Stamp.Key(), func(at *owners) ([]string, error) { return at.groups.removeAll(ctx, target) })
}

func (e *groups) removeAll(ctx context.Context, target GroupTarget) (kept []string, err error) {
	all, err := e.list(ctx)
	if err != nil {
		return nil, err
	}
	if here := e.place(); target.Place != here {
		return nil, e.elsewhere("the group of VolumeGroupSnapshot UID %q was to be made at %s, but the backend points to %s", target.Stamp.UID, target.Place, here)
	}
	for _, g := range all {
		if stamps.OfGroup(g.Description) != target.Stamp {
			continue
		}
		some, err := e.remove(ctx, g, target.MayGo, permissionOf(ctx, target.Permit))
		if err != nil {
			return nil, err
		}
		kept = append(kept, some...)
	}
	return kept, nil
}

// remove removes a group and its group snapshots, as RemoveGroup does.
func (e *groups) remove(ctx context.Context, g cinder.Group, mayGo func(cinder.Snapshot) bool, permitted permission) (kept []string, err error) {
	g, gone, err := e.settle(ctx, g)
	if err != nil || gone {
		return nil, err
	}
	if g, err = e.leave(ctx, g, g.Volumes, permitted); err != nil {
		return nil, err
	}
	existing, err := e.snapshotsIn(ctx, g)
	if err != nil {
		return nil, err
	}
	for _, taken := range existing {
		var unneeded []cinder.Snapshot
		keeps := len(kept)
		for _, s := range taken.members {
			switch {
			case !isNeeded(s):
			case mayGo == nil || !mayGo(s):
				kept = append(kept, s.ID)
			default:
				unneeded = append(unneeded, s)
			}
		}
		if len(kept) == keeps {
			err = e.removeSnapshot(ctx, taken, permitted)
		} else {
			err = e.markUnneeded(ctx, unneeded, permitted)
		}
		if err != nil {
			return nil, err
		}
	}
	if len(kept) > 0 {
		return kept, nil
	}
	err = change(ctx, e.session, permitted, func(ctx context.Context, client groupRequests) error { return client.DeleteGroup(ctx, g.ID) })
	if err == nil {
		_, gone, err = e.groups.awaitGone(ctx, g.ID, true)
		if err == nil && !gone {
			err = e.failure(KindVolumeFailed, "Cinder failed to delete group %s; see the log of cinder-volume", g.ID)
		}
	}
	if cinder.IsKind(err, cinder.KindNotFound) {
		err = nil
	}
	return nil, err
}

func (e *groups) markUnneeded(ctx context.Context, all []cinder.Snapshot, permitted permission) error {
	for _, s := range all {
		if err := e.snapshots.writeMetadata(ctx, permitted, s.ID, map[string]string{stamps.KeyUnneeded: "true"}); err != nil {
			return err
		}
	}
	return nil
}

// removeSnapshot deletes a group snapshot with all of its snapshots.
func (e *groups) removeSnapshot(ctx context.Context, taken groupSnapshot, permitted permission) error {
	var err error
	now := taken.GroupSnapshot
	if now.Status == cinder.StatusCreating {
		if now, _, err = e.taken.watcher.Await(ctx, now.ID, now.Status, e.timeouts().Create); err != nil {
			return err
		}
	}
	requested := now.Status == cinder.StatusAvailable || now.Status == cinder.StatusError
	if requested {
		for _, s := range taken.members {
			if isUsed(s) {
				return e.failure(cinder.KindConflict, "snapshot %s of group snapshot %s is %s; waiting for that operation to finish", s.ID, taken.ID, s.Status)
			}
		}
		err = change(ctx, e.session, permitted, func(ctx context.Context, client groupSnapshotRequests) error {
			return client.DeleteGroupSnapshot(ctx, taken.ID)
		})
	}
	gone := false
	if err == nil {
		now, gone, err = e.taken.awaitGone(ctx, taken.ID, requested)
	}
	switch {
	case cinder.IsKind(err, cinder.KindNotFound):
	case err != nil:
		return err
	case !gone:
		return e.failure(KindVolumeFailed, "Cinder failed to delete group snapshot %s, which is %s; see the log of cinder-volume", taken.ID, cinderStatus(now.Status))
	}
	for _, s := range taken.members {
		e.snapshots.taken.forgetOne(stamps.OfSnapshot(s).SnapshotUID, s.ID)
	}
	return nil
}

// isUsed reports whether Cinder uses a snapshot for something else. It deletes a group snapshot
// nevertheless (delete_group_snapshot in cinder/group/api.py).
func isUsed(s cinder.Snapshot) bool {
	return slices.Contains([]cinder.Status{cinder.StatusBackingUp, cinder.StatusBackupRestoring, cinder.StatusUnmanaging, cinder.StatusUnreadable}, s.Status)
}

// removeMember removes the group snapshot of a snapshot, or marks the snapshot as unneeded if
// others of its group snapshot are needed. The group snapshot exists unless isMember is false.
func (e *groups) removeMember(ctx context.Context, s cinder.Snapshot, permitted permission) (isMember bool, err error) {
	taken, err := e.taken.get(ctx, stamps.GroupSnapshotOf(s))
	if cinder.IsKind(err, cinder.KindNotFound) {
		return false, nil
	}
	if err != nil {
		return true, err
	}
	stamp := stamps.OfGroup(taken.Description)
	if stamp.Cluster == "" {
		return true, e.failure(KindNotOurs, "snapshot %s belongs to group snapshot %s, which this program did not take, and Cinder deletes its snapshots only together", s.ID, taken.ID)
	}
	// Of two that go at once, the later one must see the mark of the other.
	release, err := e.locks.Acquire(ctx, stamp.Key())
	if err != nil {
		return true, err
	}
	defer release()
	g, err := e.groups.get(ctx, taken.GroupID)
	if err == nil {
		_, err = e.remove(ctx, g, func(other cinder.Snapshot) bool { return other.ID == s.ID }, permitted)
	}
	return true, err
}

// AbandonGroups removes the groups that late requests left behind: they were made for this
// very cluster, nothing leads to them any more, and none of their snapshots was recorded, or
// all of them are unneeded. It returns the UIDs of their VolumeGroupSnapshots.
func (l Snapshots) AbandonGroups(ctx context.Context, clusterUID string, isLost func(ctx context.Context, uid string) (bool, error)) (removed []string, err error) {
	return l.current().groups.abandon(ctx, clusterUID, isLost)
}

func (e *groups) abandon(ctx context.Context, clusterUID string, isLost func(ctx context.Context, uid string) (bool, error)) (removed []string, err error) {
	all, err := e.list(ctx)
	if err != nil {
		return nil, err
	}
	var lost []cinder.Group
	var errs []error
	for _, g := range all {
		stamp := stamps.OfGroup(g.Description)
		if stamp.Cluster != e.cluster || stamp.ClusterUID != clusterUID {
			continue
		}
		is, err := isLost(ctx, stamp.UID)
		if is && err == nil {
			lost = append(lost, g)
		}
		errs = append(errs, err)
	}
	if len(lost) == 0 {
		return nil, errors.Join(errs...)
	}
	existing, err := e.snapshotsIn(ctx, lost...)
	if err != nil {
		return nil, errors.Join(append(errs, err)...)
	}
	for _, g := range lost {
		if slices.ContainsFunc(existing, func(taken groupSnapshot) bool { return taken.GroupID == g.ID && taken.isNeeded() }) && len(g.Volumes) == 0 {
			continue
		}
		if ctx.Err() != nil {
			break
		}
		kept, err := e.abandonOne(ctx, g, isLost)
		if err == nil && len(kept) == 0 {
			removed = append(removed, stamps.OfGroup(g.Description).UID)
		}
		errs = append(errs, err)
	}
	return removed, errors.Join(errs...)
}

func (e *groups) abandonOne(ctx context.Context, g cinder.Group, isLost func(ctx context.Context, uid string) (bool, error)) (kept []string, err error) {
	stamp := stamps.OfGroup(g.Description)
	release, err := e.locks.Acquire(ctx, stamp.Key())
	if err != nil {
		return nil, err
	}
	defer release()
	return e.remove(ctx, g, nil, func() error {
		is, err := isLost(ctx, stamp.UID)
		if err == nil && !is {
			err = e.failure(cinder.KindConflict, "group %s is needed again", g.ID)
		}
		return err
	})
}

// release takes a volume that is to be deleted out of the group where an attempt left it.
// found is false if it is in none.
func (e *groups) release(ctx context.Context, v cinder.Volume, permitted permission) (found bool, err error) {
	all, err := e.list(ctx)
	i := slices.IndexFunc(all, func(g cinder.Group) bool { return slices.Contains(g.Volumes, v.ID) })
	if err != nil || i < 0 {
		return false, nil // this Cinder may be too old for groups, or forbid them
	}
	g := all[i]
	if stamps.OfGroup(g.Description).Cluster != e.cluster {
		return true, e.foreign(v.ID, g)
	}
	g, gone, err := e.settle(ctx, g)
	if err == nil && !gone && slices.Contains(g.Volumes, v.ID) {
		_, err = e.leave(ctx, g, []string{v.ID}, permitted)
	}
	return true, err
}
