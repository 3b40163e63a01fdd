package world

import (
	"fmt"
	"maps"
	"slices"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/checker"
	"github.com/standalone-cinder/standalone-cinder/test/simulate/apiserver"
)

const (
	// Members of groupClass are taken one by one, and those of arrayClass by the array.
	groupClass = "groups"
	arrayClass = "array-groups"
	// labelName has the name of a claim, by which groups select it.
	labelName = "simulate.example/name"
)

func groupObjects() []apiserver.Object {
	var all []apiserver.Object
	for class, parameters := range map[string]map[string]string{
		groupClass: {policy.ParameterConsistency: string(policy.NotConsistent)},
		arrayClass: {policy.ParameterConsistency: string(policy.ConsistentArray), policy.ParameterGroupType: "consistent"},
	} {
		all = append(all, &groupv1.VolumeGroupSnapshotClass{
			ObjectMeta: metav1.ObjectMeta{Name: class}, Driver: provisionerName, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete, Parameters: parameters})
	}
	for _, resource := range []string{"volumegroupsnapshots", "volumegroupsnapshotcontents", "volumegroupsnapshotclasses"} {
		all = append(all, &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: resource + "." + groupv1.GroupName}})
	}
	return all
}

// takeGroup takes a group of a claim and perhaps others, which may go meanwhile.
func (w *World) takeGroup() {
	class, _ := pick(w, []string{groupClass, groupClass, arrayClass})
	w.takeGroupOf(class)
}

// takeGroupOf takes a group of a class.
func (w *World) takeGroupOf(class string) {
	claims := w.nativeClaims()
	first, ok := pick(w, claims)
	if !ok {
		return
	}
	names := []string{first.Name}
	for range 2 {
		if other, _ := pick(w, claims); other.Namespace == first.Namespace && !slices.Contains(names, other.Name) {
			names = append(names, other.Name)
		}
	}
	made, err := w.api.Create(&groupv1.VolumeGroupSnapshot{
		ObjectMeta: metav1.ObjectMeta{Namespace: first.Namespace, Name: fmt.Sprintf("group-%d", w.random.IntN(5))},
		Spec: groupv1.VolumeGroupSnapshotSpec{
			Source:                       groupv1.VolumeGroupSnapshotSource{Selector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: labelName, Operator: metav1.LabelSelectorOpIn, Values: names}}}},
			VolumeGroupSnapshotClassName: &class,
		},
	})
	if err == nil {
		w.note("tenant %s takes %s (%s) of claims %v, as of class %s", first.Namespace, made.GetName(), made.GetUID(), names, class)
	}
}

func (w *World) deleteGroup() {
	all := apiserver.Objects[*groupv1.VolumeGroupSnapshot](w.api)
	if g, ok := pick(w, slices.DeleteFunc(all, func(g *groupv1.VolumeGroupSnapshot) bool { return g.DeletionTimestamp != nil })); ok {
		w.removeGroup(g)
	}
}

func (w *World) removeGroup(g *groupv1.VolumeGroupSnapshot) {
	w.note("tenant %s deletes %s (%s)", g.Namespace, g.Name, g.UID)
	w.snapshots.RecordDeletionRequest(g.UID)
	if err := w.api.Delete(g); err != nil {
		w.note("%s cannot be deleted: %s", g.Name, err)
	}
}

// groupContents returns the contents of groups by their names.
func (w *World) groupContents() map[string]*groupv1.VolumeGroupSnapshotContent {
	contents := map[string]*groupv1.VolumeGroupSnapshotContent{}
	for _, content := range apiserver.Objects[*groupv1.VolumeGroupSnapshotContent](w.api) {
		contents[content.Name] = content
	}
	return contents
}

// groupOf returns the group that a VolumeSnapshot belongs to; nil if there is none.
func (w *World) groupOf(s *snapshotv1.VolumeSnapshot) *groupv1.VolumeGroupSnapshot {
	owner := objects.OwnerGroup(s.OwnerReferences)
	for _, g := range apiserver.Objects[*groupv1.VolumeGroupSnapshot](w.api) {
		if owner != nil && g.UID == owner.UID {
			return g
		}
	}
	return nil
}

// isGroupGoing reports whether the group of a VolumeSnapshot, if it has one, is being deleted.
func (w *World) isGroupGoing(s *snapshotv1.VolumeSnapshot) bool {
	group := w.groupOf(s)
	return group != nil && group.DeletionTimestamp != nil
}

// collectMembers does with VolumeSnapshots whose group is gone what Kubernetes' garbage
// collector does, and an administrator with those that stay.
func (w *World) collectMembers() {
	for _, s := range apiserver.Objects[*snapshotv1.VolumeSnapshot](w.api) {
		switch {
		case objects.OwnerGroup(s.OwnerReferences) == nil || w.groupOf(s) != nil:
		case s.DeletionTimestamp == nil:
			w.note("the garbage collector deletes %s", s.Name)
			_ = w.api.Delete(s)
		case checker.IsForgotten(s):
			w.note("%s is freed of the finalizer that the snapshot-controller left", s.Name)
			_, _ = change(w, s, func(s *snapshotv1.VolumeSnapshot) { s.Finalizers = nil })
		}
	}
}

// tidyGroups does for groups what tidySnapshots does.
func (w *World) tidyGroups(claims map[string]*corev1.PersistentVolumeClaim, told map[types.UID]map[string]bool) {
	w.collectMembers()
	contents := w.groupContents()
	for _, g := range apiserver.Objects[*groupv1.VolumeGroupSnapshot](w.api) {
		gone := false
		for _, name := range g.Spec.Source.Selector.MatchExpressions[0].Values {
			claim := claims[g.Namespace+"/"+name]
			gone = gone || claim == nil || claim.DeletionTimestamp != nil
		}
		name := objects.GroupContentName(g.UID)
		if content := contents[name]; content != nil {
			origin, _ := objects.GroupOriginOf(content)
			for _, m := range origin.Members {
				gone = gone || w.claims.DeletionRequested(types.UID(w.seen[m.VolumeID].Metadata[checker.StampClaimUID]))
			}
		}
		if gone && g.DeletionTimestamp == nil {
			w.removeGroup(g)
		}
		delete(contents, name)
	}
	for _, name := range slices.Sorted(maps.Keys(contents)) {
		if content := contents[name]; content.DeletionTimestamp == nil && told[content.UID]["SnapshotKept"] {
			w.note("%s is deleted, as its event asks", content.Name)
			_ = w.api.Delete(content)
		}
	}
}
