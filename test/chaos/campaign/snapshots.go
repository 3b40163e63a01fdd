package campaign

import (
	"context"
	"slices"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
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
		take, remove := w.takeSnapshot, w.deleteSnapshot
		if step.As == plan.Group {
			take, remove = w.takeGroup, w.deleteGroup
		}
		if !w.carryOut(ctx, trouble, step.At, namespace+": "+step.String(), func() (err error) {
			if step.Kind == plan.Create {
				made[step.Snapshot], err = take(ctx, namespace, step)
			} else if uid := made[step.Snapshot]; uid != "" {
				err = remove(ctx, namespace, step.Snapshot, uid)
			}
			return err
		}) {
			return
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
	made, err := create(ctx, snapshots, &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{Name: step.Snapshot},
		Spec: snapshotv1.VolumeSnapshotSpec{
			Source:                  snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: &step.Claims[0]},
			VolumeSnapshotClassName: &class,
		},
	})
	if err != nil {
		return "", err
	}
	w.snapshots.NoteTaken(step.As)
	return made.UID, nil
}

// deleteSnapshot requests the deletion of a VolumeSnapshot.
func (w *world) deleteSnapshot(ctx context.Context, namespace, name string, uid types.UID) error {
	w.snapshots.RecordDeletionRequest(uid)
	return remove(ctx, w.snapshotClient.SnapshotV1().VolumeSnapshots(namespace), name, uid)
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
	err := w.inEach(ctx, plan.TenantNames(), func(ctx context.Context, namespace string) error {
		list, err := w.snapshotClient.SnapshotV1().VolumeSnapshots(namespace).List(ctx, metav1.ListOptions{})
		if err == nil {
			all = append(all, list.Items...)
		}
		return err
	})
	return all, err
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
		if err := remove(ctx, w.snapshotClient.SnapshotV1().VolumeSnapshotContents(), content.Name, content.UID); err != nil {
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
		if err := unlessGone(free(ctx, w.suite.Client.CoreV1().PersistentVolumeClaims(claim.Namespace), claim.Name, claim.ResourceVersion)); err != nil {
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
	groups, groupContents, err := w.listGroups(ctx)
	if err != nil {
		return err
	}
	s.Snapshots, s.Backups = w.sim.Snapshots(), w.sim.Backups()
	checker.Taken{
		Snapshots: pointers(snapshots), Contents: pointers(contents), Groups: pointers(groups), GroupContents: groupContents, Requested: w.snapshots.DeletionRequested, Told: told,
	}.AddTo(s)
	return nil
}

func pointers[T any](all []T) (to []*T) {
	for i := range all {
		to = append(to, &all[i])
	}
	return to
}

// sweepSnapshots removes what the seed left of snapshots, whatever its state.
func (w *world) sweepSnapshots(ctx context.Context) error {
	if !w.options.Snapshots || w.snapshotClient == nil {
		return nil
	}
	if err := w.sweepGroups(ctx); err != nil {
		return err
	}
	client := w.snapshotClient.SnapshotV1()
	snapshots, err := w.listSnapshots(ctx)
	if err != nil {
		return err
	}
	for _, s := range snapshots {
		w.snapshots.RecordDeletionRequest(s.UID)
		if err := sweep(ctx, client.VolumeSnapshots(s.Namespace), s.Name); err != nil {
			return err
		}
	}
	contents, err := w.listContents(ctx)
	if err != nil {
		return err
	}
	for _, content := range contents {
		if err := sweep(ctx, client.VolumeSnapshotContents(), content.Name); err != nil {
			return err
		}
	}
	for _, class := range []string{w.names.snapshotClass(), w.names.backupClass()} {
		if err := sweep(ctx, client.VolumeSnapshotClasses(), class); err != nil {
			return err
		}
	}
	return nil
}
