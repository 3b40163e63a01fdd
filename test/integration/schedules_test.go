package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// TestSchedulesTakeAndDeleteSnapshots: each minute, under the rights of the manifests, beside
// the real snapshot-controller. The leader is killed meanwhile, and again and again.
func TestSchedulesTakeAndDeleteSnapshots(t *testing.T) {
	t.Parallel()
	w := newSnapshotWorld(t, "schedules")
	w.install()
	// One more than is kept, of each claim, and the three that others keep.
	w.policy = w.change("        fsType: xfs\n", fmt.Sprintf("        fsType: xfs\n        quota: {snapshots: 7}\n        protect: [{name: often, every: 1m, keep: 1, snapshotClass: %s}]\n", w.class))
	leader := w.start(shortLease...)
	w.claim("a", "one", "gold", "1Gi")
	w.claim("a", "two", "gold", "1Gi")
	w.claim("b", "other", "lab", "1Gi")
	mine := w.take("a", "mine", "one", w.class)
	_, err := suite.WaitBound(w.ctx, w.name+"-a", 2)
	w.must(err)
	w.waitLeaseEvent("SchedulesNotKept", "install the component snapshot-schedules")
	w.must(suite.AllowSchedules(w.ctx, w.provisioner))

	good := func(claim string) (ready []string, err error) {
		list, err := w.client.SnapshotV1().VolumeSnapshots(w.name+"-a").List(w.ctx, metav1.ListOptions{LabelSelector: objects.LabelSchedule + "=often"})
		if err != nil {
			return nil, err
		}
		for _, one := range list.Items {
			if *one.Spec.Source.PersistentVolumeClaimName == claim && one.DeletionTimestamp == nil && one.Status != nil && one.Status.ReadyToUse != nil && *one.Status.ReadyToUse {
				ready = append(ready, one.Name)
			}
		}
		return ready, nil
	}
	var first []string
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		first = nil
		for _, claim := range []string{"one", "two"} {
			ready, err := good(claim)
			if err != nil || len(ready) == 0 {
				return "claim " + claim + " has no scheduled snapshot yet", err
			}
			first = append(first, ready[len(ready)-1])
		}
		return "", nil
	}))
	// A claim that waits for a copy keeps the VolumeSnapshot, and a tenant the one without the
	// label, in whose place another is taken.
	group := snapshotv1.GroupName
	waits, err := suite.CreateClaim(w.ctx, harness.Claim(w.name+"-a", "restored", w.name+"-missing", "1Gi", func(claim *corev1.PersistentVolumeClaim) {
		claim.Spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: &group, Kind: "VolumeSnapshot", Name: first[1]}
	}))
	w.must(err)
	_, err = w.client.SnapshotV1().VolumeSnapshots(w.name+"-a").Patch(w.ctx, first[0], types.JSONPatchType, []byte(`[{"op": "remove", "path": "/metadata/labels/standalone-cinder.openstack.org~1schedule"}]`), metav1.PatchOptions{})
	w.must(err)
	for range 6 {
		leader.Kill()
		leader = w.start(shortLease...)
		time.Sleep(20 * time.Second)
		for _, claim := range []string{"one", "two"} {
			switch ready, err := good(claim); {
			case err != nil:
				t.Fatal(err)
			case len(ready) == 0 && claim != "one":
				t.Fatalf("claim %s has no good snapshot any more", claim)
			}
		}
	}
	for i, claim := range []string{"one", "two"} {
		w.must(harness.Eventually(w.ctx, func() (string, error) {
			ready, err := good(claim)
			if err != nil || len(ready) != 1+i || slices.Contains(ready, first[i]) != (i == 1) {
				return fmt.Sprintf("claim %s has %v, and had %s", claim, ready, first[i]), err
			}
			return "", nil
		}))
	}
	w.must(suite.Client.CoreV1().PersistentVolumeClaims(waits.Namespace).Delete(w.ctx, waits.Name, metav1.DeleteOptions{}))
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		ready, err := good("two")
		if err != nil || slices.Contains(ready, first[1]) {
			return fmt.Sprintf("claim two has %v, and nothing restores %s", ready, first[1]), err
		}
		return "", nil
	}))
	for _, name := range []string{mine.Name, first[0]} {
		if _, err := w.client.SnapshotV1().VolumeSnapshots(mine.Namespace).Get(w.ctx, name, metav1.GetOptions{}); err != nil {
			t.Errorf("the tenant's own VolumeSnapshot: %v", err)
		}
	}

	// The rights are for VolumeSnapshots of schedules only.
	account, err := snapshotclient.NewForConfig(attackerConfig(w.world))
	w.must(err)
	dryRun := []string{metav1.DryRunAll}
	claim := "one"
	forged := &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{Name: "forged", Labels: map[string]string{objects.LabelManagedBy: objects.ManagedBy}},
		Spec:       snapshotv1.VolumeSnapshotSpec{Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: &claim}},
	}
	_, creation := account.SnapshotV1().VolumeSnapshots(mine.Namespace).Create(w.ctx, forged, metav1.CreateOptions{DryRun: dryRun})
	for what, err := range map[string]error{
		"creating one of no schedule": creation,
		"deleting a tenant's":         account.SnapshotV1().VolumeSnapshots(mine.Namespace).Delete(w.ctx, mine.Name, metav1.DeleteOptions{DryRun: dryRun}),
	} {
		if err == nil || !strings.Contains(err.Error(), "only VolumeSnapshots of a schedule") {
			t.Errorf("%s: %v", what, err)
		}
	}
	leader.Kill()
	w.policy = w.change("protect: [{name: often, every: 1m", "protect: [{name: seldom, every: 8784h")
	w.start(shortLease...)
	w.clean()
}

// TestSchedulesTakeAndDeleteGroups: while leaders die, there is always a good one with all
// claims. Those of a claim that was deleted stay.
func TestSchedulesTakeAndDeleteGroups(t *testing.T) {
	t.Parallel()
	w := &groupWorld{newSnapshotWorld(t, "schedules-group"), "native", "test.example/schedules-group", "none"}
	w.must(suite.AllowGroups(w.ctx, w.provisioner))
	w.must(suite.AllowSchedules(w.ctx, w.provisioner))
	w.must(suite.InstallSnapshots(w.ctx))
	w.addGroupClass("delete", snapshotv1.VolumeSnapshotContentDelete)
	w.policy = w.change("        backends: [lab]\n", fmt.Sprintf("        backends: [lab]\n        groups: true\n        protect: [{name: often, every: 1m, keep: 1, as: group, snapshotClass: %s-delete}]\n", w.name))
	kill := w.lead()
	labels := map[string]string{objects.LabelProtectGroup: "db"}
	for _, name := range []string{"data", "log"} {
		_, err := suite.CreateClaim(w.ctx, harness.Claim(w.name+"-b", name, w.storageClass(), "1Gi", func(claim *corev1.PersistentVolumeClaim) { claim.Labels = labels }))
		w.must(err)
	}
	w.claim("b", "other", "lab", "1Gi")
	api := w.client.GroupsnapshotV1().VolumeGroupSnapshots(w.name + "-b")
	// good returns the ready ones by how many volumes they have.
	good := func() (by map[int][]string, all []groupv1.VolumeGroupSnapshot) {
		by = map[int][]string{}
		list, err := api.List(w.ctx, metav1.ListOptions{LabelSelector: objects.LabelSchedule + "=often"})
		w.must(err)
		for _, one := range list.Items {
			if one.DeletionTimestamp == nil && one.Status != nil && one.Status.ReadyToUse != nil && *one.Status.ReadyToUse {
				content, err := w.client.GroupsnapshotV1().VolumeGroupSnapshotContents().Get(w.ctx, objects.GroupContentName(one.UID), metav1.GetOptions{})
				w.must(err)
				n := len(content.Status.VolumeSnapshotInfoList)
				by[n] = append(by[n], one.Name)
			}
		}
		return by, list.Items
	}
	var first string
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		by, all := good()
		if len(by[2]) == 0 {
			return fmt.Sprintf("there is no good group: %+v", all), nil
		}
		first = by[2][0]
		return "", nil
	}))
	for range 4 {
		kill()
		kill = w.lead()
		time.Sleep(20 * time.Second)
		if by, all := good(); len(by[2]) == 0 || len(by) > 1 {
			t.Fatalf("there are %v: %+v", by, all)
		}
	}
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		if by, _ := good(); len(by[2]) != 1 || by[2][0] == first {
			return fmt.Sprintf("there are %v, and the first was %s", by, first), nil
		}
		return "", nil
	}))
	w.must(suite.Client.CoreV1().PersistentVolumeClaims(w.name+"-b").Delete(w.ctx, "log", metav1.DeleteOptions{}))
	newer := map[string]bool{}
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		by, _ := good()
		for _, name := range by[1] {
			newer[name] = true
		}
		if len(newer) < 2 || len(by[1]) != 1 || len(by[2]) == 0 {
			return fmt.Sprintf("there are %v, of one claim were %v", by, newer), nil
		}
		return "", nil
	}))

	// The rights are for those of schedules only.
	account, err := snapshotclient.NewForConfig(attackerConfig(w.world))
	w.must(err)
	dryRun := []string{metav1.DryRunAll}
	mine := w.group("b", "mine", "delete")
	forged := &groupv1.VolumeGroupSnapshot{
		ObjectMeta: metav1.ObjectMeta{Name: "forged", Labels: objects.ScheduleLabels("often", "uid")},
		Spec:       groupv1.VolumeGroupSnapshotSpec{Source: groupv1.VolumeGroupSnapshotSource{Selector: &metav1.LabelSelector{MatchLabels: labels}}},
	}
	_, creation := account.GroupsnapshotV1().VolumeGroupSnapshots(mine.Namespace).Create(w.ctx, forged, metav1.CreateOptions{DryRun: dryRun})
	for what, err := range map[string]error{
		"creating one of no schedule": creation,
		"deleting a tenant's":         account.GroupsnapshotV1().VolumeGroupSnapshots(mine.Namespace).Delete(w.ctx, mine.Name, metav1.DeleteOptions{DryRun: dryRun}),
	} {
		if err == nil || !strings.Contains(err.Error(), "VolumeGroupSnapshots of a schedule") {
			t.Errorf("%s: %v", what, err)
		}
	}
	kill()
	w.policy = w.change("as: group, ", "as: group, onRequest: true, ")
	kill = w.lead()
	w.must(api.DeleteCollection(w.ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	w.stored(0)
	w.clean()
	kill()
}
