package campaign

import (
	"context"
	"fmt"
	"slices"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/checker"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/plan"
)

// makeSnapshotClasses creates the seed's classes of snapshots, backups and groups.
func (w *world) makeSnapshotClasses(ctx context.Context) error {
	if !w.options.Snapshots {
		return nil
	}
	for name, parameters := range map[string]map[string]string{w.names.snapshotClass(): nil, w.names.backupClass(): {policy.ParameterType: policy.TypeBackup}} {
		_, err := w.snapshotClient.SnapshotV1().VolumeSnapshotClasses().Create(ctx, &snapshotv1.VolumeSnapshotClass{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Parameters: parameters,
			Driver: w.names.provisioner(), DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
		}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
	}
	return w.makeGroupClass(ctx)
}

// takeSnapshots does what the plan says for one tenant.
func (w *world) takeSnapshots(ctx, trouble context.Context, tenant string) {
	namespace, made := w.names.namespace(tenant), map[string]types.UID{}
	for _, step := range w.plan.Snapshots[tenant] {
		if !w.until(trouble, step.At) {
			return
		}
		w.timeline.Note("%s: %s", namespace, step)
		take, remove := w.takeSnapshot, w.deleteSnapshot
		if step.As == plan.Group {
			take, remove = w.takeGroup, w.deleteGroup
		}
		var err error
		if step.Kind == plan.Create {
			made[step.Snapshot], err = take(ctx, namespace, step)
		} else if uid := made[step.Snapshot]; uid != "" {
			err = remove(ctx, namespace, step.Snapshot, uid)
		}
		if err != nil && ctx.Err() == nil {
			w.timeline.Say("%s: %s: %s", namespace, step, err)
		}
	}
}

// takeSnapshot creates a VolumeSnapshot. Its name is used once, so one that exists
// is this one, whose answer was lost.
func (w *world) takeSnapshot(ctx context.Context, namespace string, step plan.SnapshotStep) (types.UID, error) {
	class, snapshots := w.names.snapshotClass(), w.snapshotClient.SnapshotV1().VolumeSnapshots(namespace)
	if step.As == plan.Backup {
		class = w.names.backupClass()
	}
	var made *snapshotv1.VolumeSnapshot
	err := insist(ctx, func(ctx context.Context) (err error) {
		made, err = snapshots.Create(ctx, &snapshotv1.VolumeSnapshot{
			ObjectMeta: metav1.ObjectMeta{Name: step.Snapshot},
			Spec: snapshotv1.VolumeSnapshotSpec{
				Source:                  snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: &step.Claims[0]},
				VolumeSnapshotClassName: &class,
			},
		}, metav1.CreateOptions{})
		return err
	})
	if apierrors.IsAlreadyExists(err) {
		err = insist(ctx, func(ctx context.Context) (err error) {
			made, err = snapshots.Get(ctx, step.Snapshot, metav1.GetOptions{})
			return err
		})
	}
	if err != nil {
		return "", err
	}
	w.snapshots.NoteTaken(step.As)
	return made.UID, nil
}

// deleteSnapshot requests the deletion of a VolumeSnapshot.
func (w *world) deleteSnapshot(ctx context.Context, namespace, name string, uid types.UID) error {
	w.snapshots.RecordDeletionRequest(uid)
	err := insist(ctx, func(ctx context.Context) error {
		return w.snapshotClient.SnapshotV1().VolumeSnapshots(namespace).Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
	})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// deleteSnapshots deletes the VolumeSnapshots and groups of all claims that are not kept, and
// those whose delete request got no answer. Volumes with snapshots would stay when
// their claims are deleted.
func (w *world) deleteSnapshots(ctx context.Context) error {
	if !w.options.Snapshots {
		return nil
	}
	claims, err := w.listClaims(ctx)
	if err != nil {
		return err
	}
	kept := map[string]bool{}
	for _, claim := range claims {
		kept[claim.Namespace+"/"+claim.Name] = !w.claims.DeletionRequested(claim.UID)
	}
	all, err := w.listSnapshots(ctx)
	if err != nil {
		return err
	}
	contents, err := w.listContents(ctx)
	if err != nil {
		return err
	}
	// A claim that is kept may have the name of a deleted one, from whose volume the
	// snapshot was taken.
	ofDeleted := map[string]bool{}
	for i := range contents {
		if origin, err := objects.SnapshotOriginOf(&contents[i]); err == nil {
			v, _ := w.sim.Volume(origin.VolumeID)
			ofDeleted[contents[i].Name] = w.claims.DeletionRequested(types.UID(v.Metadata[checker.StampClaimUID]))
		}
	}
	if err := w.deleteGroups(ctx, kept); err != nil {
		return err
	}
	for i := range all {
		s := &all[i]
		if objects.OwnerGroup(s.OwnerReferences) != nil {
			continue // it goes with its group
		}
		if w.snapshots.DeletionRequested(s.UID) || ofDeleted[objects.SnapshotContentName(s.UID)] || !kept[s.Namespace+"/"+*s.Spec.Source.PersistentVolumeClaimName] {
			if err := w.deleteSnapshot(ctx, s.Namespace, s.Name, s.UID); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *world) listSnapshots(ctx context.Context) ([]snapshotv1.VolumeSnapshot, error) {
	var all []snapshotv1.VolumeSnapshot
	for _, tenant := range plan.TenantNames() {
		err := insist(ctx, func(ctx context.Context) error {
			list, err := w.snapshotClient.SnapshotV1().VolumeSnapshots(w.names.namespace(tenant)).List(ctx, metav1.ListOptions{})
			if err == nil {
				all = append(all, list.Items...)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (w *world) listContents(ctx context.Context) ([]snapshotv1.VolumeSnapshotContent, error) {
	var all []snapshotv1.VolumeSnapshotContent
	err := insist(ctx, func(ctx context.Context) error {
		list, err := w.snapshotClient.SnapshotV1().VolumeSnapshotContents().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		all = nil
		for _, content := range list.Items {
			if content.Spec.Driver == w.names.provisioner() {
				all = append(all, content)
			}
		}
		return nil
	})
	return all, err
}

// deleteUnbound does what the event SnapshotKept asks an operator for: it deletes
// the contents whose VolumeSnapshots were gone before the snapshot-controller bound
// them. A content that no event explains is left for the checker to find.
func (w *world) deleteUnbound(ctx context.Context) error {
	if !w.options.Snapshots {
		return nil
	}
	contents, err := w.listContents(ctx)
	if err != nil {
		return err
	}
	told, wanted := map[types.UID]bool{}, map[string]bool{}
	err = insist(ctx, func(ctx context.Context) error {
		// Events about objects that have no namespace are in this one.
		events, err := w.suite.Client.CoreV1().Events(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{FieldSelector: "reason=SnapshotKept"})
		if err != nil {
			return err
		}
		for _, event := range events.Items {
			told[event.InvolvedObject.UID] = true
		}
		return nil
	})
	if err != nil {
		return err
	}
	snapshots, err := w.listSnapshots(ctx)
	if err != nil {
		return err
	}
	for i := range snapshots {
		wanted[checker.ContentFor(&snapshots[i])] = true
	}
	for _, content := range contents {
		if content.DeletionTimestamp != nil || !told[content.UID] || wanted[content.Name] {
			continue
		}
		w.timeline.Say("VolumeSnapshotContent %s: deleted, as its event asks", content.Name)
		err := insist(ctx, func(ctx context.Context) error {
			return w.snapshotClient.SnapshotV1().VolumeSnapshotContents().Delete(ctx, content.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &content.UID}})
		})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return err
		}
	}
	return w.deleteUnboundGroups(ctx, told)
}

// sourceProtection is the snapshot-controller's finalizer on claims of which snapshots
// are being taken.
const sourceProtection = "snapshot.storage.kubernetes.io/pvc-as-source-protection"

// freeSources does what the guide to troubleshooting asks an administrator for: it
// removes the snapshot-controller's finalizer from deleted claims of which no
// VolumeSnapshot is left. The snapshot-controller forgets the finalizer if a
// VolumeSnapshot of a claim that is not bound is deleted right after its creation.
func (w *world) freeSources(ctx context.Context) error {
	if !w.options.Snapshots {
		return nil
	}
	claims, err := w.listClaims(ctx)
	if err != nil {
		return err
	}
	snapshots, err := w.listSnapshots(ctx)
	if err != nil {
		return err
	}
	sources := map[string]bool{}
	for _, s := range snapshots {
		sources[s.Namespace+"/"+*s.Spec.Source.PersistentVolumeClaimName] = true
	}
	for _, claim := range claims {
		if claim.DeletionTimestamp == nil || !slices.Equal(claim.Finalizers, []string{sourceProtection}) || sources[claim.Namespace+"/"+claim.Name] {
			continue
		}
		w.timeline.Say("claim %s/%s: freed of the finalizer that the snapshot-controller left", claim.Namespace, claim.Name)
		patch := fmt.Sprintf(`{"metadata": {"finalizers": null, "resourceVersion": %q}}`, claim.ResourceVersion)
		err := insist(ctx, func(ctx context.Context) error {
			_, err := w.suite.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Patch(ctx, claim.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
			return err
		})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return err
		}
	}
	return nil
}

// addSnapshots adds to a state what is known of snapshots. It has the claims, the
// PersistentVolumes and the warnings.
func (w *world) addSnapshots(ctx context.Context, s *checker.State, told map[types.UID]map[string]bool) error {
	if !w.options.Snapshots {
		return nil
	}
	snapshots, err := w.listSnapshots(ctx)
	if err != nil {
		return err
	}
	contents, err := w.listContents(ctx)
	if err != nil {
		return err
	}
	s.Snapshots, s.Backups = w.sim.Snapshots(), w.sim.Backups()
	volumes, source := map[string]string{}, map[string]string{}
	for _, pv := range s.PVs {
		volumes[pv.HeldBy()] = pv.VolumeID
	}
	for _, claim := range s.Claims {
		source[claim.Namespace+"/"+claim.Name] = volumes[claim.UID]
	}
	for i := range contents {
		content := &contents[i]
		recorded := checker.SnapshotContent{Name: content.Name, SnapshotID: objects.SnapshotHandleOf(content)}
		if origin, err := objects.SnapshotOriginOf(content); err == nil {
			recorded.VolumeID = origin.VolumeID
		}
		s.Contents = append(s.Contents, recorded)
		volumes[content.Name] = recorded.VolumeID
	}
	for i := range snapshots {
		snapshot := &snapshots[i]
		name := checker.ContentFor(snapshot)
		wanted := checker.VolumeSnapshot{
			Namespace: snapshot.Namespace, Name: snapshot.Name, Content: name, VolumeID: volumes[name],
			Asked: w.snapshots.DeletionRequested(snapshot.UID), Explained: len(told[snapshot.UID]) > 0,
		}
		if group := objects.OwnerGroup(snapshot.OwnerReferences); group != nil {
			// What is to be said of it is said of its group.
			wanted.Asked, wanted.Explained = w.snapshots.DeletionRequested(group.UID), true
		}
		if wanted.VolumeID == "" {
			wanted.VolumeID = source[snapshot.Namespace+"/"+*snapshot.Spec.Source.PersistentVolumeClaimName]
		}
		if status := snapshot.Status; status != nil {
			wanted.Ready = checker.IsReady(snapshot)
			wanted.Explained = wanted.Explained || status.Error != nil
		}
		s.VolumeSnapshots = append(s.VolumeSnapshots, wanted)
	}
	return w.addGroups(ctx, s, snapshots, source, told)
}

// sweepSnapshots removes what the seed left of snapshots, whatever its state.
func (w *world) sweepSnapshots(ctx context.Context) error {
	if !w.options.Snapshots || w.snapshotClient == nil {
		return nil
	}
	if err := w.sweepGroups(ctx); err != nil {
		return err
	}
	client, free := w.snapshotClient.SnapshotV1(), []byte(`{"metadata":{"finalizers":null}}`)
	snapshots, err := w.listSnapshots(ctx)
	if err != nil {
		return err
	}
	for _, s := range snapshots {
		if err := w.deleteSnapshot(ctx, s.Namespace, s.Name, s.UID); err != nil {
			return err
		}
		_, err := client.VolumeSnapshots(s.Namespace).Patch(ctx, s.Name, types.MergePatchType, free, metav1.PatchOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	contents, err := w.listContents(ctx)
	if err != nil {
		return err
	}
	for _, content := range contents {
		if _, err := client.VolumeSnapshotContents().Patch(ctx, content.Name, types.MergePatchType, free, metav1.PatchOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		if err := client.VolumeSnapshotContents().Delete(ctx, content.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	for _, class := range []string{w.names.snapshotClass(), w.names.backupClass()} {
		if err := client.VolumeSnapshotClasses().Delete(ctx, class, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}
