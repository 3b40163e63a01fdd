package checker

import (
	"fmt"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
)

// stampContent is the key of a snapshot's stamp that names its
// VolumeSnapshotContent.
const stampContent = "csi.storage.k8s.io/volumesnapshotcontent/name"

// VolumeSnapshot is what a tenant asked for.
type VolumeSnapshot struct {
	Namespace, Name string
	// Content is the name that its VolumeSnapshotContent has.
	Content string
	// VolumeID is the volume that it was to be taken of; empty if that is gone.
	VolumeID string
	Ready    bool
	// Asked means that its deletion was requested.
	Asked bool
	// Explained means that an event or its status says why it is not ready.
	Explained bool
}

// SnapshotContent is a VolumeSnapshotContent with the program's driver.
type SnapshotContent struct {
	Name string
	// SnapshotID is the snapshot that it names; empty before it was taken.
	SnapshotID string
	VolumeID   string
}

// checkSnapshots finds snapshots that nothing names, objects that name a snapshot
// that is gone, and objects that never go away or are never ready.
func (e ending) checkSnapshots() []Finding {
	var findings []Finding
	report := func(kind Kind, object, volumeID, format string, arguments ...any) {
		findings = append(findings, Finding{Kind: kind, Object: object, Text: fmt.Sprintf(format, arguments...), VolumeID: volumeID})
	}
	contents, wanted, there := map[string]SnapshotContent{}, map[string]bool{}, map[string]bool{}
	for _, c := range e.Contents {
		contents[c.Name] = c
	}
	for _, s := range e.VolumeSnapshots {
		wanted[s.Content] = true
	}
	for _, s := range e.Snapshots {
		there[s.ID] = true
		if s.Metadata[StampCluster] != e.Cluster {
			continue
		}
		switch content, named := contents[s.Metadata[stampContent]]; {
		case !named:
			report(LeakedSnapshot, describeSnapshot(s), s.VolumeID, "VolumeSnapshotContent %s does not exist", s.Metadata[stampContent])
		case content.SnapshotID != "" && content.SnapshotID != s.ID:
			report(LeakedSnapshot, describeSnapshot(s), s.VolumeID, "VolumeSnapshotContent %s names snapshot %s", content.Name, content.SnapshotID)
		}
	}
	for _, c := range e.Contents {
		switch {
		case c.SnapshotID != "" && !there[c.SnapshotID]:
			report(LostSnapshot, "VolumeSnapshotContent "+c.Name, c.VolumeID, "snapshot %s does not exist", c.SnapshotID)
		case !wanted[c.Name]:
			report(Stuck, "VolumeSnapshotContent "+c.Name, c.VolumeID, "its VolumeSnapshot is gone and it is still there")
		}
	}
	for _, s := range e.VolumeSnapshots {
		object := "VolumeSnapshot " + s.Namespace + "/" + s.Name
		_, recorded := contents[s.Content]
		switch {
		case s.Asked:
			report(Stuck, object, s.VolumeID, "is deleted and does not go")
		case s.Ready && !recorded:
			report(LostSnapshot, object, s.VolumeID, "is ready and VolumeSnapshotContent %s is gone", s.Content)
		case !s.Ready && !s.Explained:
			report(Stuck, object, s.VolumeID, "is not ready and nothing says why")
		}
	}
	return findings
}

func describeSnapshot(s cindersim.Snapshot) string {
	return "snapshot " + s.ID + " (" + s.Name + ", " + s.Status + ")"
}
