package checker

import (
	"cmp"
	"fmt"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
)

// Keys of a snapshot's stamp: the name of its VolumeSnapshotContent, and the UID of the
// VolumeGroupSnapshot that it belongs to.
const (
	stampContent = "csi.storage.k8s.io/volumesnapshotcontent/name"
	stampGroup   = policy.StampPrefix + "group-uid"
)

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

// Taken is what a cluster has of snapshots and groups.
type Taken struct {
	Snapshots     []*snapshotv1.VolumeSnapshot
	Contents      []*snapshotv1.VolumeSnapshotContent
	Groups        []*groupv1.VolumeGroupSnapshot
	GroupContents map[string]*groupv1.VolumeGroupSnapshotContent // by their names
	// Requested reports whether the deletion of an object was requested, and Told has the
	// reasons of the warnings about objects.
	Requested func(types.UID) bool
	Told      map[types.UID]map[string]bool
}

// AddTo adds it to a state that has the claims and the PersistentVolumes.
func (t Taken) AddTo(s *State) {
	volumes, source := map[string]string{}, map[string]string{}
	for _, pv := range s.PVs {
		volumes[pv.HeldBy()] = pv.VolumeID
	}
	for _, claim := range s.Claims {
		source[claim.Namespace+"/"+claim.Name] = volumes[claim.UID]
	}
	barred := t.barred()
	for _, content := range t.Contents {
		if barred[content.Name] {
			continue
		}
		recorded := SnapshotContent{Name: content.Name, SnapshotID: objects.SnapshotHandleOf(content)}
		if origin, err := objects.SnapshotOriginOf(content); err == nil {
			recorded.VolumeID = origin.VolumeID
		}
		s.Contents = append(s.Contents, recorded)
		volumes[content.Name] = recorded.VolumeID
	}
	ready := map[string]bool{}
	for _, snapshot := range t.Snapshots {
		name := ContentFor(snapshot)
		if barred[name] {
			continue
		}
		ready[name] = IsReady(snapshot)
		wanted := VolumeSnapshot{
			Namespace: snapshot.Namespace, Name: snapshot.Name, Content: name, VolumeID: volumes[name], Ready: ready[name],
			Asked: t.Requested(snapshot.UID), Explained: len(t.Told[snapshot.UID]) > 0 || snapshot.Status != nil && snapshot.Status.Error != nil,
		}
		if group := objects.OwnerGroup(snapshot.OwnerReferences); group != nil {
			// What is to be said of it is said of its group.
			wanted.Asked, wanted.Explained = t.Requested(group.UID), true
		}
		if wanted.VolumeID == "" {
			wanted.VolumeID = source[snapshot.Namespace+"/"+*snapshot.Spec.Source.PersistentVolumeClaimName]
		}
		s.VolumeSnapshots = append(s.VolumeSnapshots, wanted)
	}
	for _, g := range t.Groups {
		group := GroupOf(g, t.GroupContents[objects.GroupContentName(g.UID)], ready)
		group.Asked, group.Explained = t.Requested(g.UID), group.Explained || len(t.Told[g.UID]) > 0
		for _, name := range g.Spec.Source.Selector.MatchExpressions[0].Values {
			group.VolumeID = cmp.Or(group.VolumeID, source[g.Namespace+"/"+name])
		}
		s.Groups = append(s.Groups, group)
	}
	for _, content := range t.GroupContents {
		s.GroupContents = append(s.GroupContents, GroupContentOf(content))
	}
}

// barred returns the names of the contents of members whose group is gone, while another
// has its name: the snapshot-controller asks for groups by name, and keeps such members
// until the other group is gone.
func (t Taken) barred() map[string]bool {
	names, uids := map[string]bool{}, map[types.UID]bool{}
	for _, g := range t.Groups {
		names[g.Namespace+"/"+g.Name], uids[g.UID] = true, true
	}
	barred := map[string]bool{}
	for _, snapshot := range t.Snapshots {
		if group := objects.OwnerGroup(snapshot.OwnerReferences); group != nil && !uids[group.UID] && names[snapshot.Namespace+"/"+group.Name] {
			barred[ContentFor(snapshot)] = true
		}
	}
	return barred
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
		kind, group := LeakedSnapshot, s.Metadata[stampGroup]
		if group != "" {
			kind = LeakedGroup
		}
		switch content, named := contents[s.Metadata[stampContent]]; {
		case !named && group != "" && e.isGroupRecorded(group):
			// Its content is made when all snapshots of the group are taken.
		case !named:
			report(kind, describeSnapshot(s), s.VolumeID, "VolumeSnapshotContent %s does not exist", s.Metadata[stampContent])
		case content.SnapshotID != "" && content.SnapshotID != s.ID:
			report(kind, describeSnapshot(s), s.VolumeID, "VolumeSnapshotContent %s names snapshot %s", content.Name, content.SnapshotID)
		}
	}
	for _, b := range e.Backups {
		there[backupHandle(b)] = true
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

// backupHandle is how contents name a backup.
func backupHandle(b cindersim.Backup) string { return "backup:" + b.ID }

// checkBackups finds backups that nothing names.
func (e ending) checkBackups() []Finding {
	var findings []Finding
	contents := map[string]SnapshotContent{}
	for _, c := range e.Contents {
		contents[c.Name] = c
	}
	for _, b := range e.Backups {
		if b.Metadata[StampCluster] != e.Cluster {
			continue
		}
		object := "backup " + b.ID + " (" + b.Name + ", " + b.Status + ")"
		switch content, named := contents[b.Metadata[stampContent]]; {
		case !named:
			findings = append(findings, Finding{LeakedBackup, object, fmt.Sprintf("VolumeSnapshotContent %s does not exist", b.Metadata[stampContent]), b.VolumeID, ""})
		case content.SnapshotID != "" && content.SnapshotID != backupHandle(b):
			findings = append(findings, Finding{LeakedBackup, object, fmt.Sprintf("VolumeSnapshotContent %s names %s", content.Name, content.SnapshotID), b.VolumeID, ""})
		}
	}
	return findings
}

func describeSnapshot(s cindersim.Snapshot) string {
	return "snapshot " + s.ID + " (" + s.Name + ", " + s.Status + ")"
}
