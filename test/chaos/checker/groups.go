package checker

import (
	"fmt"
	"slices"

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

// groupContentName is how the snapshot-controller names the content of a group.
func groupContentName(group string) string { return "groupsnapcontent-" + group }

func (e ending) isGroupRecorded(group string) bool {
	return slices.ContainsFunc(e.GroupContents, func(c GroupContent) bool { return c.Name == groupContentName(group) })
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
