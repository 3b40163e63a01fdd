package checker

import (
	"fmt"
	"slices"
	"strings"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
)

// Group is a VolumeGroupSnapshot that a tenant asked for.
type Group struct {
	Namespace, Name, UID string
	// Content is the name that its VolumeGroupSnapshotContent has.
	Content string
	// VolumeID is one of the volumes that it was to be taken of; empty if they are gone.
	VolumeID string
	Ready    bool
	// Asked means that its deletion was requested.
	Asked bool
	// Explained means that an event or its status says why it is not ready.
	Explained bool
	// Members are those that its content records.
	Members []GroupMember
}

// GroupMember is one snapshot of a group.
type GroupMember struct {
	SnapshotID, VolumeID string
	// Ready means that its VolumeSnapshot is there and ready.
	Ready bool
}

// GroupContent is a VolumeGroupSnapshotContent with the program's driver.
type GroupContent struct {
	Name string
	// VolumeID is one of its volumes.
	VolumeID string
}

// GroupOf describes a VolumeGroupSnapshot by its content, which may be nil, and whether the
// VolumeSnapshots of contents are ready.
func GroupOf(g *groupv1.VolumeGroupSnapshot, content *groupv1.VolumeGroupSnapshotContent, ready map[string]bool) Group {
	group := Group{Namespace: g.Namespace, Name: g.Name, UID: string(g.UID), Content: objects.GroupContentName(g.UID)}
	if status := g.Status; status != nil {
		group.Ready, group.Explained = status.ReadyToUse != nil && *status.ReadyToUse, status.Error != nil
	}
	if content == nil {
		return group
	}
	origin, _ := objects.GroupOriginOf(content) // whatever is not damaged counts
	for _, m := range origin.Members {
		group.VolumeID = m.VolumeID
		group.Members = append(group.Members, GroupMember{SnapshotID: m.SnapshotID, VolumeID: m.VolumeID, Ready: ready[m.Content]})
	}
	return group
}

// GroupContentOf describes a VolumeGroupSnapshotContent.
func GroupContentOf(content *groupv1.VolumeGroupSnapshotContent) GroupContent {
	recorded := GroupContent{Name: content.Name}
	if origin, _ := objects.GroupOriginOf(content); len(origin.Members) > 0 {
		recorded.VolumeID = origin.Members[0].VolumeID
	}
	return recorded
}

// ContentFor returns the name that the content of a VolumeSnapshot has. In a group, both names
// have the same hash.
func ContentFor(s *snapshotv1.VolumeSnapshot) string {
	if objects.OwnerGroup(s.OwnerReferences) != nil {
		return objects.SnapshotContentName(types.UID(strings.TrimPrefix(s.Name, objects.SnapshotName(""))))
	}
	return objects.SnapshotContentName(s.UID)
}

// inGroup is the snapshot-controller's finalizer on the VolumeSnapshots of a group.
const inGroup = "snapshot.storage.kubernetes.io/volumesnapshot-in-group-protection"

// IsForgotten reports whether the snapshot-controller has forgotten its finalizer on a
// VolumeSnapshot of a group that is gone: it does if the group goes before the VolumeSnapshot's
// status names it.
func IsForgotten(s *snapshotv1.VolumeSnapshot) bool {
	return s.DeletionTimestamp != nil && slices.Equal(s.Finalizers, []string{inGroup}) && (s.Status == nil || s.Status.VolumeGroupSnapshotName == nil)
}

// IsReady reports whether a VolumeSnapshot is ready.
func IsReady(s *snapshotv1.VolumeSnapshot) bool {
	return s.Status != nil && s.Status.ReadyToUse != nil && *s.Status.ReadyToUse
}

func (e ending) isGroupRecorded(group string) bool {
	return slices.ContainsFunc(e.GroupContents, func(c GroupContent) bool { return c.Name == objects.GroupContentName(types.UID(group)) })
}

// checkGroups finds groups that are torn, and those that never go away or are never ready.
func (e ending) checkGroups() []Finding {
	var findings []Finding
	report := func(kind Kind, object, volumeID, format string, arguments ...any) {
		findings = append(findings, Finding{Kind: kind, Object: object, Text: fmt.Sprintf(format, arguments...), VolumeID: volumeID})
	}
	there, wanted := map[string]cindersim.Snapshot{}, map[string]bool{}
	for _, s := range e.Snapshots {
		there[s.ID] = s
	}
	for _, g := range e.Groups {
		wanted[g.Content] = true
		object := "VolumeGroupSnapshot " + g.Namespace + "/" + g.Name
		switch {
		case g.Asked:
			report(Stuck, object, g.VolumeID, "is deleted and does not go")
			continue
		case !g.Ready && !g.Explained:
			report(Stuck, object, g.VolumeID, "is not ready and nothing says why")
		case g.Ready && len(g.Members) == 0:
			report(TornGroup, object, g.VolumeID, "is ready, and VolumeGroupSnapshotContent %s records no snapshot", g.Content)
		}
		for _, m := range g.Members {
			s, exists := there[m.SnapshotID]
			switch {
			case !g.Ready:
			case !exists:
				report(TornGroup, object, m.VolumeID, "is ready, and its snapshot %s of volume %s does not exist", m.SnapshotID, m.VolumeID)
			case s.Metadata[stampGroup] != g.UID || s.VolumeID != m.VolumeID:
				report(TornGroup, object, m.VolumeID, "is ready, and its %s is of volume %s and group %q", describeSnapshot(s), s.VolumeID, s.Metadata[stampGroup])
			case !m.Ready:
				report(TornGroup, object, m.VolumeID, "is ready, and the VolumeSnapshot of its %s is not", describeSnapshot(s))
			}
		}
	}
	for _, c := range e.GroupContents {
		if !wanted[c.Name] {
			report(Stuck, "VolumeGroupSnapshotContent "+c.Name, c.VolumeID, "its VolumeGroupSnapshot is gone and it is still there")
		}
	}
	return findings
}
