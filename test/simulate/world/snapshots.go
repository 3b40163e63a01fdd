package world

import (
	"fmt"
	"slices"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/checker"
	"github.com/standalone-cinder/standalone-cinder/test/simulate/apiserver"
)

// The classes of what Cinder keeps of a volume.
const (
	snapshotClass = "snapshots"
	backupClass   = "backups"
)

// snapshotObjects are what a cluster with the snapshot-controller has.
func snapshotObjects() []apiserver.Object {
	var all []apiserver.Object
	for class, parameters := range map[string]map[string]string{snapshotClass: nil, backupClass: {policy.ParameterType: policy.TypeBackup}} {
		all = append(all, &snapshotv1.VolumeSnapshotClass{
			ObjectMeta: metav1.ObjectMeta{Name: class}, Driver: provisionerName, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete, Parameters: parameters})
	}
	for _, resource := range []string{"volumesnapshots", "volumesnapshotcontents", "volumesnapshotclasses"} {
		all = append(all, &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: resource + "." + snapshotv1.GroupName}})
	}
	return append(all, groupObjects()...)
}

func (w *World) takeSnapshot() {
	class, _ := pick(w, []string{snapshotClass, snapshotClass, backupClass})
	w.takeSnapshotOf(class)
}

// takeSnapshotOf takes a snapshot of a class, of any claim.
func (w *World) takeSnapshotOf(class string) {
	claim, ok := pick(w, w.nativeClaims())
	if !ok {
		return
	}
	made, err := w.api.Create(&snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{Namespace: claim.Namespace, Name: fmt.Sprintf("snapshot-%d", w.random.IntN(5))},
		Spec: snapshotv1.VolumeSnapshotSpec{
			Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: &claim.Name}, VolumeSnapshotClassName: &class,
		},
	})
	if err == nil {
		w.note("tenant %s takes %s (%s) of claim %s, as of class %s", claim.Namespace, made.GetName(), made.GetUID(), claim.Name, class)
	}
}

func (w *World) deleteSnapshot() {
	all := apiserver.Objects[*snapshotv1.VolumeSnapshot](w.api)
	if s, ok := pick(w, slices.DeleteFunc(all, func(s *snapshotv1.VolumeSnapshot) bool {
		return s.DeletionTimestamp != nil || objects.OwnerGroup(s.OwnerReferences) != nil // the latter goes with its group
	})); ok {
		w.removeSnapshot(s)
	}
}

func (w *World) removeSnapshot(s *snapshotv1.VolumeSnapshot) {
	w.note("tenant %s deletes %s (%s)", s.Namespace, s.Name, s.UID)
	w.snapshots.RecordDeletionRequest(s.UID)
	if err := w.api.Delete(s); err != nil {
		w.note("%s cannot be deleted: %s", s.Name, err)
	}
}

// restoreSnapshot creates a claim for the content of a snapshot, which may go meanwhile.
func (w *World) restoreSnapshot() {
	s, ok := pick(w, apiserver.Objects[*snapshotv1.VolumeSnapshot](w.api))
	if !ok {
		return
	}
	class, _ := pick(w, []string{"fast", "dual"})
	if isMover(s.Namespace) {
		class = "moved"
	}
	claim := claimOf(s.Namespace, fmt.Sprintf("restored-%d", w.random.IntN(5)), class, 4)
	claim.Spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: new(snapshotv1.GroupName), Kind: "VolumeSnapshot", Name: s.Name}
	if made, err := w.api.Create(claim); err == nil {
		w.note("tenant %s creates claim %s (%s), from %s", made.GetNamespace(), made.GetName(), made.GetUID(), s.Name)
		w.claims.NoteMade(made.GetUID())
	}
}

// tidySnapshots does what tenants and operators do so that claims can go: it deletes the
// VolumeSnapshots of deleted claims, and what the events and the guide to troubleshooting say.
func (w *World) tidySnapshots(told map[types.UID]map[string]bool) {
	sources, taken := map[string]*corev1.PersistentVolumeClaim{}, map[string]bool{}
	claims := apiserver.Objects[*corev1.PersistentVolumeClaim](w.api)
	for _, claim := range claims {
		sources[claim.Namespace+"/"+claim.Name] = claim
		// A claim that waits for a snapshot's content keeps the snapshot.
		if source := claim.Spec.DataSource; source != nil && source.Kind == "VolumeSnapshot" && claim.Spec.VolumeName == "" && claim.DeletionTimestamp == nil {
			if s, err := w.VolumeSnapshot(claim.Namespace, source.Name); err == nil && (s.DeletionTimestamp != nil || w.isGroupGoing(s)) {
				w.removeClaim(claim)
			}
		}
	}
	contents, wanted := apiserver.Objects[*snapshotv1.VolumeSnapshotContent](w.api), map[string]bool{}
	ofDeleted := map[string]bool{}
	for _, content := range contents {
		if origin, err := objects.SnapshotOriginOf(content); err == nil {
			ofDeleted[content.Name] = w.claims.DeletionRequested(types.UID(w.seen[origin.VolumeID].Metadata[checker.StampClaimUID]))
		}
	}
	for _, s := range apiserver.Objects[*snapshotv1.VolumeSnapshot](w.api) {
		source, name := sources[s.Namespace+"/"+*s.Spec.Source.PersistentVolumeClaimName], checker.ContentFor(s)
		wanted[name] = true
		if gone := source == nil || source.DeletionTimestamp != nil || ofDeleted[name]; gone && s.DeletionTimestamp == nil && objects.OwnerGroup(s.OwnerReferences) == nil {
			w.removeSnapshot(s)
		}
		taken[s.Namespace+"/"+*s.Spec.Source.PersistentVolumeClaimName] = true
	}
	for _, content := range contents {
		if content.DeletionTimestamp == nil && !wanted[content.Name] && told[content.UID]["SnapshotKept"] {
			w.note("%s is deleted, as its event asks", content.Name)
			_ = w.api.Delete(content)
		}
	}
	w.tidyGroups(sources, told)
	// The snapshot-controller forgets its finalizer if a VolumeSnapshot of a claim that is not
	// bound is deleted right after its creation.
	const protection = "snapshot.storage.kubernetes.io/pvc-as-source-protection"
	for _, claim := range claims {
		name := claim.Namespace + "/" + claim.Name
		if claim.DeletionTimestamp != nil && !taken[name] && slices.Equal(claim.Finalizers, []string{protection}) {
			w.note("claim %s is freed of the finalizer that the snapshot-controller left", name)
			_, _ = change(w, claim, func(c *corev1.PersistentVolumeClaim) { c.Finalizers = nil })
		}
	}
}

// addSnapshots adds to a state what is known of snapshots.
func (w *World) addSnapshots(s *checker.State, told map[types.UID]map[string]bool) {
	s.Snapshots, s.Backups = w.sim.Snapshots(), w.sim.Backups()
	checker.Taken{
		Snapshots: apiserver.Objects[*snapshotv1.VolumeSnapshot](w.api), Contents: apiserver.Objects[*snapshotv1.VolumeSnapshotContent](w.api),
		Groups: apiserver.Objects[*groupv1.VolumeGroupSnapshot](w.api), GroupContents: w.groupContents(), Requested: w.snapshots.DeletionRequested, Told: told,
	}.AddTo(s)
}

// VolumeSnapshot implements objects.SnapshotReader.
func (w *World) VolumeSnapshot(namespace, name string) (*snapshotv1.VolumeSnapshot, error) {
	for _, s := range apiserver.Objects[*snapshotv1.VolumeSnapshot](w.api) {
		if s.Namespace == namespace && s.Name == name {
			return s, nil
		}
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Group: snapshotv1.GroupName, Resource: "volumesnapshots"}, name)
}

// VolumeSnapshotContent implements objects.SnapshotReader.
func (w *World) VolumeSnapshotContent(name string) (*snapshotv1.VolumeSnapshotContent, error) {
	for _, content := range apiserver.Objects[*snapshotv1.VolumeSnapshotContent](w.api) {
		if content.Name == name {
			return content, nil
		}
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Group: snapshotv1.GroupName, Resource: "volumesnapshotcontents"}, name)
}
