package campaign

import (
	"context"
	"regexp"
	"strings"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/checker"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/plan"
)

// labelFast has the name of a claim that may be in a group.
const labelFast = "chaos.example/fast"

// makeGroupClass creates the seed's VolumeGroupSnapshotClass, and gives the program the rights.
func (w *world) makeGroupClass(ctx context.Context) error {
	if err := w.suite.AllowGroups(ctx, w.names.provisioner()); err != nil {
		return err
	}
	_, err := w.snapshotClient.GroupsnapshotV1().VolumeGroupSnapshotClasses().Create(ctx, &groupv1.VolumeGroupSnapshotClass{
		ObjectMeta: metav1.ObjectMeta{Name: w.names.groupClass()}, Driver: w.names.provisioner(), DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
		Parameters: map[string]string{policy.ParameterConsistency: string(policy.NotConsistent)},
	}, metav1.CreateOptions{})
	return err
}

// takeGroup does for a VolumeGroupSnapshot what takeSnapshot does.
func (w *world) takeGroup(ctx context.Context, namespace string, step plan.SnapshotStep) (types.UID, error) {
	class, groups := w.names.groupClass(), w.snapshotClient.GroupsnapshotV1().VolumeGroupSnapshots(namespace)
	made, err := create(ctx, groups, &groupv1.VolumeGroupSnapshot{
		ObjectMeta: metav1.ObjectMeta{Name: step.Snapshot},
		Spec: groupv1.VolumeGroupSnapshotSpec{
			Source:                       groupv1.VolumeGroupSnapshotSource{Selector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: labelFast, Operator: metav1.LabelSelectorOpIn, Values: step.Claims}}}},
			VolumeGroupSnapshotClassName: &class,
		},
	})
	if err != nil {
		return "", err
	}
	w.snapshots.NoteTaken(step.As)
	return made.UID, nil
}

// deleteGroup requests the deletion of a VolumeGroupSnapshot.
func (w *world) deleteGroup(ctx context.Context, namespace, name string, uid types.UID) error {
	w.snapshots.RecordDeletionRequest(uid)
	return remove(ctx, w.snapshotClient.GroupsnapshotV1().VolumeGroupSnapshots(namespace), name, uid)
}

// deleteGroups does for groups what deleteSnapshots does, if any of their claims is not kept.
func (w *world) deleteGroups(ctx context.Context, kept map[string]bool) error {
	groups, contents, err := w.listGroups(ctx)
	if err != nil {
		return err
	}
	for _, g := range groups {
		goes := w.snapshots.DeletionRequested(g.UID)
		for _, claim := range claimsOf(&g) {
			goes = goes || !kept[claim]
		}
		if content := contents[objects.GroupContentName(g.UID)]; content != nil {
			origin, _ := objects.GroupOriginOf(content)
			for _, m := range origin.Members {
				v, _ := w.sim.Volume(m.VolumeID)
				goes = goes || w.claims.DeletionRequested(types.UID(v.Metadata[checker.StampClaimUID]))
			}
		}
		if goes {
			if err := w.deleteGroup(ctx, g.Namespace, g.Name, g.UID); err != nil {
				return err
			}
		}
	}
	return nil
}

// claimsOf returns the claims that a group was to be of.
func claimsOf(g *groupv1.VolumeGroupSnapshot) (claims []string) {
	for _, name := range g.Spec.Source.Selector.MatchExpressions[0].Values {
		claims = append(claims, g.Namespace+"/"+name)
	}
	return claims
}

// listGroups returns the seed's VolumeGroupSnapshots, and its contents by their names.
func (w *world) listGroups(ctx context.Context) (groups []groupv1.VolumeGroupSnapshot, contents map[string]*groupv1.VolumeGroupSnapshotContent, err error) {
	err = w.inEach(ctx, plan.TenantNames(), func(ctx context.Context, namespace string) error {
		list, err := w.snapshotClient.GroupsnapshotV1().VolumeGroupSnapshots(namespace).List(ctx, metav1.ListOptions{})
		if err == nil {
			groups = append(groups, list.Items...)
		}
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	err = insist(ctx, func(ctx context.Context) error {
		list, err := w.snapshotClient.GroupsnapshotV1().VolumeGroupSnapshotContents().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		contents = map[string]*groupv1.VolumeGroupSnapshotContent{}
		for i, content := range list.Items {
			if content.Spec.Driver == w.names.provisioner() {
				contents[content.Name] = &list.Items[i]
			}
		}
		return nil
	})
	return groups, contents, err
}

// deleteUnboundGroups does for the contents of groups what deleteUnbound does.
func (w *world) deleteUnboundGroups(ctx context.Context, told map[types.UID]bool) error {
	groups, contents, err := w.listGroups(ctx)
	if err != nil {
		return err
	}
	there := map[types.UID]bool{}
	for _, g := range groups {
		there[g.UID] = true
		delete(contents, objects.GroupContentName(g.UID))
	}
	if err := w.collectMembers(ctx, there); err != nil {
		return err
	}
	for _, content := range contents {
		if content.DeletionTimestamp != nil || !told[content.UID] {
			continue
		}
		w.timeline.Say("VolumeGroupSnapshotContent %s: deleted, as its event asks", content.Name)
		if err := remove(ctx, w.snapshotClient.GroupsnapshotV1().VolumeGroupSnapshotContents(), content.Name, content.UID); err != nil {
			return err
		}
	}
	return nil
}

// collectMembers does with VolumeSnapshots whose group is gone what Kubernetes' garbage
// collector does, which the control plane does not have. From those that stay, it removes the
// finalizer that the snapshot-controller left, as the guide to troubleshooting asks an
// administrator for.
func (w *world) collectMembers(ctx context.Context, groups map[types.UID]bool) error {
	snapshots, err := w.listSnapshots(ctx)
	if err != nil {
		return err
	}
	for i := range snapshots {
		s := &snapshots[i]
		group := objects.OwnerGroup(s.OwnerReferences)
		if group == nil || groups[group.UID] {
			continue
		}
		if s.DeletionTimestamp == nil {
			if err := w.deleteSnapshot(ctx, s.Namespace, s.Name, s.UID); err != nil {
				return err
			}
			continue
		}
		if !checker.IsForgotten(s) {
			continue
		}
		w.timeline.Say("VolumeSnapshot %s/%s: freed of the finalizer that the snapshot-controller left", s.Namespace, s.Name)
		err := free(ctx, w.snapshotClient.SnapshotV1().VolumeSnapshots(s.Namespace), s.Name, s.ResourceVersion)
		if err == nil {
			// Nobody else would.
			err = destroy(ctx, w.snapshotClient.SnapshotV1().VolumeSnapshotContents(), strings.Replace(s.Name, "snapshot-", "snapcontent-", 1))
		}
		if err := unlessGone(err); err != nil {
			return err
		}
	}
	return nil
}

// groupsTaken counts the groups of which the replicas have taken all snapshots.
func (w *world) groupsTaken() int {
	took, taken := regexp.MustCompile(`"Took the snapshots of a VolumeGroupSnapshot".*"groupUID":"([^"]*)"`), map[string]bool{}
	for _, s := range w.slots {
		s.mu.Lock()
		for _, r := range s.past {
			for _, found := range took.FindAllStringSubmatch(r.Log(), -1) {
				taken[found[1]] = true
			}
		}
		s.mu.Unlock()
	}
	return len(taken)
}

// sweepGroups removes what the seed left of groups, whatever its state.
func (w *world) sweepGroups(ctx context.Context) error {
	groups, contents, err := w.listGroups(ctx)
	if err != nil {
		return err
	}
	client := w.snapshotClient.GroupsnapshotV1()
	for _, g := range groups {
		w.snapshots.RecordDeletionRequest(g.UID)
		if err := sweep(ctx, client.VolumeGroupSnapshots(g.Namespace), g.Name); err != nil {
			return err
		}
	}
	for name := range contents {
		if err := sweep(ctx, client.VolumeGroupSnapshotContents(), name); err != nil {
			return err
		}
	}
	return sweep(ctx, client.VolumeGroupSnapshotClasses(), w.names.groupClass())
}
