package snapshot

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// List lists the CSI driver's snapshots: the one with the ID, those of the
// volume, or all if both are empty, on one backend or, if that is empty, on all. They
// are in the order of their handles. If a backend cannot be listed, it returns an error
// rather than a shorter list. again means that the last listing will do.
func (c Sidecar) List(ctx context.Context, backendName, id, volumeID string, again bool) ([]Taken, error) {
	names := c.Backends.Names()
	if backendName != "" {
		if !slices.Contains(names, backendName) {
			return nil, nil
		}
		names = []string{backendName}
	}
	var all []Taken
	var shelves []Shelf
	for _, name := range names {
		if id != "" {
			shelves = append(shelves, Shelf{name, backends.IsBackup(id)})
			continue
		}
		shelves = append(shelves, c.counting.shelves(name)...)
	}
	for _, of := range shelves {
		backend, err := c.Backends.Snapshots(of)
		if err != nil {
			return nil, err
		}
		var found []cinder.Snapshot
		if id != "" {
			if found, err = c.findOne(ctx, backend, id); err != nil {
				return nil, err
			}
		} else {
			list := backend.RelistSnapshots
			if again {
				list = backend.Snapshots
			}
			if found, err = list(ctx); err != nil {
				return nil, err
			}
		}
		for _, s := range found {
			stamp := stamps.OfSnapshot(s)
			if stamps.IsCSISnapshot(s) && !stamps.IsUnneeded(s) && (c.isOurs(stamp) || c.isImported(stamp, s)) && (volumeID == "" || s.VolumeID == volumeID) {
				one := Taken{Snapshot: s, Backend: of.Backend}
				if stamp.Group != "" && c.isOurs(stamp) {
					one.Group = objects.GroupHandle(types.UID(stamp.Group))
				}
				all = append(all, one)
			}
		}
	}
	slices.SortFunc(all, func(a, b Taken) int { return cmp.Or(cmp.Compare(a.Backend, b.Backend), cmp.Compare(a.ID, b.ID)) })
	return all, nil
}

// lookAgainEvery is how often a question that waits looks whether it can be answered.
const lookAgainEvery = 100 * time.Millisecond

// findOne finds a snapshot. The sidecar asks about one that somebody's content
// names to say in the status that it is ready, but it does not say for which content it
// asks. So there is no answer as long as any content names the snapshot without having
// it. The sidecar asks again.
func (c Sidecar) findOne(ctx context.Context, backend Snapshots, id string) ([]cinder.Snapshot, error) {
	for until := time.Now().Add(c.TakeUpTime); ; {
		s, exists, err := backend.FindSnapshot(ctx, id)
		if err != nil {
			return nil, err
		}
		without, shared, err := c.contentWithout(ctx, s, id)
		switch {
		case err != nil:
			return nil, err
		case without == nil && exists:
			return []cinder.Snapshot{s}, nil
		case without == nil:
			return nil, nil
		}
		// The answer reaches the status of the VolumeSnapshot, so it is what that was told,
		// unless it may be another one's.
		reason, message := c.parked.Told(without.Spec.VolumeSnapshotRef.UID)
		switch over := !time.Now().Before(until); {
		case shared && (over || reason != ""):
			return nil, &refusal{string(cinder.KindConflict), fmt.Sprintf("VolumeSnapshotContents for several namespaces name snapshot %s, and at most one gets it; the events on each VolumeSnapshot say what became of it", id)}
		case reason != "":
			return nil, &denied{reason: reason, message: message}
		case over:
			return nil, &refusal{string(cinder.KindConflict), fmt.Sprintf("VolumeSnapshotContent %s does not have snapshot %s yet: it gets the snapshot once VolumeSnapshot %s/%s names the content, and the policy grants it",
				without.Name, id, without.Spec.VolumeSnapshotRef.Namespace, without.Spec.VolumeSnapshotRef.Name)}
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(lookAgainEvery):
		}
	}
}

// contentWithout returns a content that names an existing snapshot, but does not have it;
// nil if there is none. It also reports whether a content for another namespace names
// the snapshot, too. The sidecar may ask before the cache shows the content that it
// asks about, so the API server has the last word.
func (c Sidecar) contentWithout(ctx context.Context, s cinder.Snapshot, id string) (without *snapshotv1.VolumeSnapshotContent, shared bool, err error) {
	lacks := func(content *snapshotv1.VolumeSnapshotContent) bool {
		return objects.IsCSISnapshot(content) && objects.ImportedHandleOf(content) == id && content.DeletionTimestamp == nil && !c.isOf(s, content)
	}
	naming, err := c.ContentsOf(id)
	if err != nil {
		return nil, false, err
	}
	if n := slices.IndexFunc(naming, lacks); n >= 0 {
		return naming[n], namedElsewhere(naming, naming[n]), nil
	}
	live, err := c.liveContentsOf(ctx, id)
	if n := slices.IndexFunc(live, lacks); err == nil && n >= 0 {
		return live[n], namedElsewhere(live, live[n]), nil
	}
	return nil, false, err
}

// namedElsewhere reports whether a content for another namespace is among those that name
// a snapshot.
func namedElsewhere(naming []*snapshotv1.VolumeSnapshotContent, content *snapshotv1.VolumeSnapshotContent) bool {
	return slices.ContainsFunc(naming, func(other *snapshotv1.VolumeSnapshotContent) bool {
		return other.Spec.VolumeSnapshotRef.Namespace != content.Spec.VolumeSnapshotRef.Namespace
	})
}
