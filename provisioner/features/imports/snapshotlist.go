package imports

import (
	"context"
	"fmt"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/paging"
)

// ListedSnapshot is a snapshot of a backend's project, and whether it can be imported.
type ListedSnapshot struct {
	Backend string `json:"backend"`
	ID      string `json:"id"`
	Name    string `json:"name,omitempty"`
	SizeGiB int64  `json:"sizeGiB"`
	Status  string `json:"status"`
	// Volume is the ID of the snapshot's volume.
	Volume string `json:"volume"`
	// Cluster and VolumeSnapshot (namespace/name) come from the stamp; empty without
	// one. VolumeSnapshotContent is the one of this cluster that names the snapshot.
	Cluster               string `json:"cluster,omitempty"`
	VolumeSnapshot        string `json:"volumeSnapshot,omitempty"`
	VolumeSnapshotContent string `json:"volumeSnapshotContent,omitempty"`
	Importable            bool   `json:"importable"`
	// Why is a sentence about what prevents an import.
	Why string `json:"why,omitempty"`
}

// Owner says in a few words whose snapshot it is.
func (l ListedSnapshot) Owner() string {
	return owner(l.VolumeSnapshotContent, l.VolumeSnapshot, l.Cluster)
}

// KnownSnapshots holds the objects of a cluster to which snapshots may belong.
type KnownSnapshots struct {
	// naming maps snapshots to the contents that name them.
	naming          map[string]string
	contents, wants map[string]bool
}

// ReadSnapshots reads those objects from a cluster. It returns none if the snapshot
// CRDs are not installed.
func ReadSnapshots(ctx context.Context, client snapshotclient.Interface) (*KnownSnapshots, error) {
	known := &KnownSnapshots{naming: map[string]string{}, contents: map[string]bool{}, wants: map[string]bool{}}
	snapshots, err := paging.List(ctx, "VolumeSnapshots", client.SnapshotV1().VolumeSnapshots(metav1.NamespaceAll).List, func(page *snapshotv1.VolumeSnapshotList) []snapshotv1.VolumeSnapshot { return page.Items })
	if err != nil {
		return known, missingIsNone(err)
	}
	for i := range snapshots {
		known.wants[string(snapshots[i].UID)] = true
	}
	contents, err := paging.List(ctx, "VolumeSnapshotContents", client.SnapshotV1().VolumeSnapshotContents().List, func(page *snapshotv1.VolumeSnapshotContentList) []snapshotv1.VolumeSnapshotContent { return page.Items })
	for i := range contents {
		known.contents[contents[i].Name] = true
		for _, handle := range objects.SnapshotHandlesOf(&contents[i]) {
			known.naming[handle] = contents[i].Name
		}
	}
	return known, missingIsNone(err)
}

func missingIsNone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// ListSnapshots judges snapshots of a backend.
func (i *SnapshotImporter) ListSnapshots(backend string, from Snapshots, snapshots []cinder.Snapshot, known *KnownSnapshots) []ListedSnapshot {
	listed := make([]ListedSnapshot, 0, len(snapshots))
	for _, s := range snapshots {
		stamp := stamps.OfSnapshot(s)
		l := ListedSnapshot{
			Backend: backend, ID: s.ID, Name: s.Name, SizeGiB: s.SizeGiB, Status: string(s.Status), Volume: s.VolumeID,
			Cluster: stamp.Cluster, VolumeSnapshotContent: known.naming[s.ID],
		}
		if stamp.Cluster != "" {
			l.VolumeSnapshot = stamp.Namespace + "/" + stamp.Snapshot
		}
		l.Why = i.againstSnapshot(s, from, known)
		l.Importable = l.Why == ""
		listed = append(listed, l)
	}
	return listed
}

// againstSnapshot returns what prevents an import; empty if nothing does.
func (i *SnapshotImporter) againstSnapshot(s cinder.Snapshot, from Snapshots, known *KnownSnapshots) string {
	if content := known.naming[s.ID]; content != "" {
		return fmt.Sprintf("VolumeSnapshotContent %s names it", content)
	}
	if err := from.ImportableSnapshot(s, stamps.Snapshot{Cluster: i.Cluster, ClusterUID: i.ClusterUID}); err != nil {
		return err.Error()
	}
	stamp := stamps.OfSnapshot(s)
	switch {
	case stamp.Cluster == "":
	case known.contents[stamp.Content]:
		return fmt.Sprintf("it is stamped for VolumeSnapshotContent %s, which exists", stamp.Content)
	case known.wants[stamp.SnapshotUID]:
		return fmt.Sprintf("it is stamped for VolumeSnapshot %s/%s, which exists", stamp.Namespace, stamp.Snapshot)
	}
	return ""
}
