package schedules

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// restore makes a claim that asks for a VolumeSnapshot, and has no volume yet.
func (c *cluster) restore(name, snapshot string) *corev1.PersistentVolumeClaim {
	group := snapshotv1.GroupName
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name, UID: "uid-restored", CreationTimestamp: metav1.Now()},
		Spec:       corev1.PersistentVolumeClaimSpec{DataSourceRef: &corev1.TypedObjectReference{APIGroup: &group, Kind: "VolumeSnapshot", Name: snapshot}},
		Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending},
	}
	c.must(c.claims.Add(claim))
	return claim
}

// TestWhatIsBeingRestoredStays: the provisioner makes no volume from a VolumeSnapshot that is
// being deleted, so the claim, which may wait for a pod or a quota, would never get it.
func TestWhatIsBeingRestoredStays(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.bind("data", nil)
		c.lead(61 * time.Minute)
		first := c.names()
		claim := c.restore("restored", first)
		c.lead(5 * time.Hour)
		if names := c.names(); !strings.HasPrefix(names, first+" ") || strings.Count(names, " ") != 2 {
			t.Errorf("there are %s", names)
		}
		c.client.ClearActions()
		c.lead(30 * time.Minute)
		lists := slices.DeleteFunc(c.client.Actions(), func(action clienttesting.Action) bool {
			list, ok := action.(clienttesting.ListAction)
			return !ok || !strings.Contains(list.GetListRestrictions().Labels.String(), objects.LabelClaimUID)
		})
		if len(lists) > 3 {
			t.Errorf("%d lists in half an hour in which it is being restored", len(lists))
		}
		bound := claim.DeepCopy()
		bound.Status.Phase = corev1.ClaimBound
		c.must(c.claims.Update(bound))
		c.lead(time.Minute)
		if names := c.names(); strings.Contains(names, first) {
			t.Errorf("there are %s", names)
		}
	})
}

// TestTheNewestThatATenantTakesOver: as the guide says, it removes the label. Another one is
// taken in its place, and nobody is told to delete the one that the tenant keeps.
func TestTheNewestThatATenantTakesOver(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.bind("data", nil)
		c.answerAsTheAPIServer()
		c.lead(3*time.Hour + time.Minute)
		all := c.snapshots()
		mine := all[len(all)-1]
		delete(mine.Labels, objects.LabelSchedule)
		_, err := c.client.SnapshotV1().VolumeSnapshots("team-a").Update(c.Context(), mine, metav1.UpdateOptions{})
		c.must(err)
		c.lead(time.Minute)
		if names := c.names(); strings.Count(names, "data-hourly-") != 2 || strings.Contains(names, mine.Name) {
			t.Errorf("beside the one that was taken over there are: %s", names)
		}
		c.lead(2 * time.Hour)
		if _, err := c.client.SnapshotV1().VolumeSnapshots("team-a").Get(c.Context(), mine.Name, metav1.GetOptions{}); err != nil || len(c.events.Events) > 0 {
			t.Errorf("%v, and %d events", err, len(c.events.Events))
		}
	})
}

// answerAsTheAPIServer refuses names that exist, which the reactor of newCluster does after
// it has counted.
func (c *cluster) answerAsTheAPIServer() {
	c.client.PrependReactor("create", "volumesnapshots", func(action clienttesting.Action) (bool, runtime.Object, error) {
		name := action.(clienttesting.CreateAction).GetObject().(*snapshotv1.VolumeSnapshot).Name
		if _, err := c.client.Tracker().Get(action.GetResource(), "team-a", name); err == nil {
			return true, nil, apierrors.NewAlreadyExists(snapshotv1.Resource("volumesnapshots"), name)
		}
		return false, nil, nil
	})
}

// TestAFullQuotaOfTheNamespaceEmpties: the schedule keeps fewer than the namespace's
// ResourceQuota had room for.
func TestAFullQuotaOfTheNamespaceEmpties(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.follow(strings.Replace(scheduled, "keep: 2", "keep: 4", 1))
		c.bind("data", nil)
		c.client.PrependReactor("create", "volumesnapshots", func(action clienttesting.Action) (bool, runtime.Object, error) {
			list, _ := c.client.Tracker().List(action.GetResource(), snapshotv1.SchemeGroupVersion.WithKind("VolumeSnapshot"), "team-a")
			if len(list.(*snapshotv1.VolumeSnapshotList).Items) >= 4 {
				return true, nil, apierrors.NewForbidden(snapshotv1.Resource("volumesnapshots"), "data", fmt.Errorf("exceeded quota: objects"))
			}
			return false, nil, nil
		})
		c.lead(4*time.Hour + time.Minute)
		c.follow(scheduled)
		time.Sleep(time.Hour)
		c.lead(90 * time.Minute)
		if all := c.snapshots(); len(all) != 2 || time.Since(all[1].CreationTimestamp.Time) > 2*time.Hour {
			t.Errorf("there are %s", c.names())
		}
		if len(c.told) > 0 {
			t.Errorf("a quota of a namespace is no matter of the installation's rights, but told %q", c.told)
		}
	})
}

// TestANewScheduleIsNotLate: of volumes that are older than it, in a term that is older than
// it.
func TestANewScheduleIsNotLate(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.follow(scheduled[:strings.Index(scheduled, "        protect:")])
		for i := range 30 { // 10 are begun each second
			c.bind(fmt.Sprint("data-", i), nil)
		}
		go func() { time.Sleep(48 * time.Hour); c.follow(scheduled) }()
		c.lead(48*time.Hour + 30*time.Minute)
		if n := len(c.snapshots()); n < 30 || len(c.events.Events) > 0 {
			t.Errorf("there are %d, and %d events", n, len(c.events.Events))
		}
		c.broken = true
		go func() {
			time.Sleep(time.Hour)
			c.follow(strings.Replace(scheduled, "name: hourly", "name: other", 1))
		}()
		c.lead(3 * time.Hour)
		if len(c.events.Events) == 0 {
			t.Error("no event about the new schedule, which takes no good snapshot")
		}
	})
}

// TestLabelsThatTheRightsDoNotCover: the admission policy lets the program delete only what
// has all three labels. One that has lost one is its tenant's, and in nobody's way.
func TestLabelsThatTheRightsDoNotCover(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.bind("data", nil)
		c.client.PrependReactor("delete", "volumesnapshots", func(action clienttesting.Action) (bool, runtime.Object, error) {
			object, err := c.client.Tracker().Get(action.GetResource(), "team-a", action.(clienttesting.DeleteAction).GetName())
			if err == nil && object.(*snapshotv1.VolumeSnapshot).Labels[objects.LabelManagedBy] != objects.ManagedBy {
				return true, nil, apierrors.NewForbidden(snapshotv1.Resource("volumesnapshots"), "data", fmt.Errorf("may delete only its own"))
			}
			return false, nil, nil
		})
		c.lead(2*time.Hour + time.Minute)
		for _, mine := range c.snapshots() {
			mine.Labels[objects.LabelManagedBy] = "Helm"
			_, err := c.client.SnapshotV1().VolumeSnapshots("team-a").Update(c.Context(), mine, metav1.UpdateOptions{})
			c.must(err)
		}
		c.answerAsTheAPIServer()
		c.lead(5 * time.Hour)
		if n := len(c.snapshots()); n != 4 || len(c.told) > 0 {
			t.Errorf("there are %s; told %q", c.names(), c.told)
		}
	})
}

// TestOneThatCannotBeDeletedStopsNoOther: as with an admission webhook that holds some.
func TestOneThatCannotBeDeletedStopsNoOther(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.bind("data", nil)
		c.lead(61 * time.Minute)
		held := c.names()
		c.client.PrependReactor("delete", "volumesnapshots", func(action clienttesting.Action) (bool, runtime.Object, error) {
			if action.(clienttesting.DeleteAction).GetName() == held {
				return true, nil, apierrors.NewInvalid(snapshotv1.SchemeGroupVersion.WithKind("VolumeSnapshot").GroupKind(), held, nil)
			}
			return false, nil, nil
		})
		c.lead(7 * time.Hour)
		if all := c.snapshots(); len(all) != 3 || all[0].Name != held || time.Since(all[2].CreationTimestamp.Time) > time.Hour {
			t.Errorf("there are %s", c.names())
		}
	})
}

// TestWhatATenantDeletesMeanwhileCounts: many are to be deleted, which takes a while at the
// pace of all schedules. Meanwhile the tenant deletes the good ones for which they were to go.
func TestWhatATenantDeletesMeanwhileCounts(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.follow(strings.Replace(scheduled, "keep: 2", "keep: 100", 1))
		c.bind("data", nil)
		c.lead(15 * time.Hour)
		all := c.snapshots()
		c.follow(scheduled)
		deletions := 0
		c.client.PrependReactor("delete", "volumesnapshots", func(clienttesting.Action) (bool, runtime.Object, error) {
			if deletions++; deletions == 1 {
				for _, one := range all[2:] {
					_ = c.client.Tracker().Delete(snapshotv1.SchemeGroupVersion.WithResource("volumesnapshots"), "team-a", one.Name)
				}
			}
			return false, nil, nil
		})
		c.lead(30 * time.Second)
		if names := c.names(); !strings.HasPrefix(names, all[1].Name+" ") {
			t.Errorf("there are %s", names)
		}
	})
}

// TestATenantWithManyVolumesDelaysNoOther: all of its claims request a schedule at once.
func TestATenantWithManyVolumesDelaysNoOther(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.follow(scheduled + "  - name: b\n    namespaces: [team-b]\n    classes:\n      - {storageClasses: [fast], backends: [gold], protect: [{name: often, every: 1m, keep: 1}]}\n")
		c.must(c.namespaces.Add(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team-b"}}))
		for i := range 300 {
			c.bind(fmt.Sprint("data-", i), nil)
		}
		time.Sleep(2 * time.Hour)
		c.bind("other", func(claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) {
			claim.Namespace, pv.Spec.ClaimRef.Namespace = "team-b", "team-b"
		})
		time.Sleep(90 * time.Second)
		c.lead(20 * time.Second)
		list, err := c.client.SnapshotV1().VolumeSnapshots("team-b").List(context.Background(), metav1.ListOptions{})
		c.must(err)
		if len(list.Items) != 1 {
			t.Errorf("beside %d of the other tenant's, there are %d", len(c.snapshots()), len(list.Items))
		}
	})
}

// TestAnAPIServerThatRefusesEverything: as without the CRDs, which somebody has removed.
func TestAnAPIServerThatRefusesEverything(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		lists := 0
		c.client.PrependReactor("list", "volumesnapshots", func(action clienttesting.Action) (bool, runtime.Object, error) {
			if !strings.Contains(action.(clienttesting.ListAction).GetListRestrictions().Labels.String(), objects.LabelClaimUID) {
				return false, nil, nil
			}
			lists++
			return true, nil, apierrors.NewNotFound(snapshotv1.Resource("volumesnapshots"), "")
		})
		for i := range 1000 {
			c.bind(fmt.Sprint("data-", i), nil)
		}
		time.Sleep(2 * time.Hour)
		c.lead(5 * time.Minute)
		if most := 5*60*listsPerSecond + 2*listsPerSecond; lists < most/2 || lists > most {
			t.Errorf("%d requests in five minutes, of at most %d", lists, most)
		}
	})
}

// TestLeadersThatChangeOften: each leads for a few minutes, and the first snapshot of a claim
// never becomes ready.
func TestLeadersThatChangeOften(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.broken = true
		c.bind("data", nil)
		for range 24 {
			c.lead(10 * time.Minute)
		}
		if len(c.events.Events) == 0 {
			t.Error("in four hours no event says that the claim has no good snapshot")
		}
	})
}

// TestAClaimThatWasMadeAgain: the cache still shows the former. Snapshots of the new claim's
// volume must not push out those of the former's, which may be all that is left of it.
func TestAClaimThatWasMadeAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.bind("data", nil)
		c.lead(2*time.Hour + time.Minute)
		before := c.names()
		claims := c.kubernetes.CoreV1().PersistentVolumeClaims("team-a")
		c.must(claims.Delete(c.Context(), "data", metav1.DeleteOptions{}))
		c.lead(3 * time.Hour)
		_, err := claims.Create(c.Context(), &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "data", UID: "uid-again"}}, metav1.CreateOptions{})
		c.must(err)
		c.lead(3 * time.Hour)
		if after := c.names(); after != before {
			t.Errorf("there were %s, and are %s", before, after)
		}
	})
}
