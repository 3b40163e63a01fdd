package schedules

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// together is a policy with a schedule of groups for two StorageClasses.
var together = strings.NewReplacer("[fast]", "[fast, slow]", "protect:", "groups: true\n        protect:",
	"{name: hourly, every: 1h, keep: 2, snapshotClass: cheap}", "{name: hourly, every: 1h, keep: 2, snapshotClass: alike, as: group}").Replace(scheduled)

// serveGroups lets the snapshot-controller serve VolumeGroupSnapshots: each has the volumes of
// the claims that its selector finds when it is made.
func (c *cluster) serveGroups() {
	c.follow(together)
	c.client.PrependReactor("create", "volumegroupsnapshots", func(action clienttesting.Action) (bool, runtime.Object, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.refused != nil {
			return true, nil, c.refused
		}
		made := action.(clienttesting.CreateAction).GetObject().(*groupv1.VolumeGroupSnapshot)
		c.uids++
		ready := !c.broken
		made.UID, made.CreationTimestamp, made.ResourceVersion = types.UID(fmt.Sprint("g", c.uids)), metav1.Now(), "1"
		made.Status = &groupv1.VolumeGroupSnapshotStatus{ReadyToUse: &ready}
		for _, one := range c.claims.List() {
			claim := one.(*corev1.PersistentVolumeClaim)
			if labels.SelectorFromSet(made.Spec.Source.Selector.MatchLabels).Matches(labels.Set(claim.Labels)) {
				c.grouped[made.UID] = append(c.grouped[made.UID], "volume-"+claim.Name)
			}
		}
		return false, nil, nil
	})
}

// bindIn makes a claim with a volume in a group.
func (c *cluster) bindIn(group, name string) {
	c.bind(name, func(claim *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) {
		claim.Labels = map[string]string{objects.LabelProtectGroup: group}
	})
}

func (c *cluster) ScheduledGroups() ([]*groupv1.VolumeGroupSnapshot, bool) { return c.groups(), true }

func (c *cluster) VolumesOfGroup(group types.UID) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.grouped[group]
}

// groups are those that exist, in the order of their creation.
func (c *cluster) groups() (all []*groupv1.VolumeGroupSnapshot) {
	list, err := c.client.GroupsnapshotV1().VolumeGroupSnapshots("team-a").List(context.Background(), metav1.ListOptions{LabelSelector: objects.LabelSchedule})
	c.must(err)
	for i := range list.Items {
		all = append(all, &list.Items[i])
	}
	slices.SortFunc(all, func(a, b *groupv1.VolumeGroupSnapshot) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	return all
}

func (c *cluster) groupNames() string {
	var names []string
	for _, one := range c.groups() {
		names = append(names, one.Name)
	}
	return strings.Join(names, " ")
}

// TestGroupsComeAndGo: one for each value of the label, of claims of several StorageClasses.
func TestGroupsComeAndGo(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.serveGroups()
		c.bindIn("db", "data")
		c.bind("log", func(claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) {
			claim.Labels, pv.Spec.StorageClassName = map[string]string{objects.LabelProtectGroup: "db"}, "slow"
		})
		c.bindIn("Web_1", "pages")
		c.bind("alone", nil)
		for range 5 {
			c.lead(time.Hour) // each hour, another leader
		}
		all := c.groups()
		if names := c.names(); names != "" || len(all) != 4 || len(c.events.Events) > 0 {
			t.Fatalf("after five hours there are %s and %s, and %d events", c.groupNames(), names, len(c.events.Events))
		}
		for i, of := range map[int]string{0: "db", 2: "Web_1"} {
			of := slices.DeleteFunc(slices.Clone(all), func(one *groupv1.VolumeGroupSnapshot) bool {
				return one.Labels[objects.LabelProtectGroup] != of
			})
			volumes := 2 - i/2
			if len(of) != 2 || len(c.grouped[of[0].UID]) != volumes || *of[1].Spec.VolumeGroupSnapshotClassName != "alike" || of[1].Labels[objects.LabelSchedule] != "hourly" {
				t.Errorf("there are %s; the last is %+v %+v", c.groupNames(), of[len(of)-1].Labels, of[len(of)-1].Spec)
			}
		}
	})
}

// TestAGroupNeedsItsScheduleOnce: the label without a schedule is nothing, and a schedule that
// one claim requests is that of all.
func TestAGroupNeedsItsScheduleOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.serveGroups()
		c.follow(strings.Replace(together, "as: group}", "as: group, onRequest: true}", 1))
		c.bindIn("web", "pages")
		c.bindIn("db", "data")
		c.bind("log", func(claim *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) {
			claim.Labels = map[string]string{objects.LabelProtectGroup: "db", objects.LabelProtect: "hourly"}
		})
		c.lead(30 * time.Minute)
		if all := c.groups(); len(all) != 1 || len(c.grouped[all[0].UID]) != 2 {
			t.Errorf("there are %s of %v", c.groupNames(), c.grouped)
		}
	})
}

// TestTheGroupsOfADeletedClaimStay: as many as are kept, beside as many newer ones.
func TestTheGroupsOfADeletedClaimStay(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.serveGroups()
		c.bindIn("db", "data")
		c.bindIn("db", "log")
		c.lead(4 * time.Hour)
		before := c.groupNames()
		claim, _, err := c.claims.GetByKey("team-a/log")
		c.must(err)
		c.must(c.claims.Delete(claim))
		c.lead(4 * time.Hour)
		if after := c.groupNames(); !strings.HasPrefix(after, before+" ") || len(c.groups()) != 4 {
			t.Errorf("there were %s, and are %s", before, after)
		}
	})
}

// TestAGroupThatLostAVolumeStopsNoOther: it never becomes ready. One whose volumes exist may.
func TestAGroupThatLostAVolumeStopsNoOther(t *testing.T) {
	for deleted, want := range map[bool]int{true: 3, false: 1} {
		inBubble(t, func(t *testing.T, c *cluster) {
			c.serveGroups()
			c.broken = true
			c.bindIn("db", "data")
			c.bindIn("db", "log")
			c.lead(90 * time.Minute)
			before := c.groupNames()
			claim, _, err := c.claims.GetByKey("team-a/log")
			c.must(err)
			c.must(c.claims.Delete(claim))
			if deleted {
				pv, _, err := c.volumes.GetByKey("pvc-log")
				c.must(err)
				c.must(c.volumes.Delete(pv))
			}
			c.broken = false
			c.lead(5 * time.Hour)
			if after := c.groupNames(); !strings.HasPrefix(after, before) || len(c.groups()) != want {
				t.Errorf("the volume deleted: %t: there were %s, and are %s", deleted, before, after)
			}
		})
	}
}

// TestAGroupWithoutClaims: the cache still shows one, of which the VolumeGroupSnapshot would
// never become ready.
func TestAGroupWithoutClaims(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.serveGroups()
		c.bindIn("db", "data")
		c.must(c.kubernetes.CoreV1().PersistentVolumeClaims("team-a").Delete(c.Context(), "data", metav1.DeleteOptions{}))
		c.lead(3 * time.Hour)
		if names := c.groupNames(); names != "" {
			t.Errorf("there are %s", names)
		}
	})
}

// TestAMemberThatIsBeingRestoredKeepsItsGroup: claims are made from the VolumeSnapshots of a
// group.
func TestAMemberThatIsBeingRestoredKeepsItsGroup(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.serveGroups()
		c.bindIn("db", "data")
		c.lead(30 * time.Minute)
		first := c.groups()[0]
		group := snapshotv1.GroupName
		c.must(c.claims.Add(&corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "restored", UID: "uid-restored"}, Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending},
			Spec: corev1.PersistentVolumeClaimSpec{DataSource: &corev1.TypedLocalObjectReference{
				APIGroup: &group, Kind: "VolumeSnapshot", Name: objects.SnapshotName(objects.MemberUID(first.UID, c.VolumesOfGroup(first.UID)[0])),
			}},
		}))
		c.lead(5 * time.Hour)
		if all := c.groups(); len(all) != 3 || all[0].UID != first.UID {
			t.Errorf("there are %s, and %s was being restored", c.groupNames(), first.Name)
		}
	})
}

// TestALateGroupIsToldOnItsClaims: whether the group is not ready or cannot be made.
func TestALateGroupIsToldOnItsClaims(t *testing.T) {
	for name, test := range map[string]struct {
		spoil func(*cluster)
		want  string
	}{
		"not ready": {func(c *cluster) { c.broken = true }, ": VolumeGroupSnapshot db-hourly-20000101-0"},
		"refused": {func(c *cluster) {
			c.refused = apierrors.NewForbidden(groupv1.Resource("volumegroupsnapshots"), "", fmt.Errorf(`User "us" cannot create resource "volumegroupsnapshots"`))
		}, ": cannot create VolumeGroupSnapshot team-a/db-hourly-20000101-0"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, c *cluster) {
				c.serveGroups()
				test.spoil(c)
				c.bindIn("db", "data")
				c.bindIn("db", "log")
				c.lead(4 * time.Hour)
				if late := testutil.ToFloat64(c.metrics.late.WithLabelValues("a")); late != 0 {
					t.Errorf("without a leader %v are late", late)
				}
				if n := len(c.events.Events); n < 2 || n > 20 {
					t.Fatalf("%d events", n)
				}
				if e := <-c.events.Events; !strings.Contains(e, "Warning ScheduledSnapshotLate schedule hourly has taken no good snapshot of group db yet") || !strings.Contains(e, test.want) {
					t.Error(e)
				}
				if (c.refused != nil) != (len(c.told) == 1) {
					t.Errorf("told %q", c.told)
				}
			})
		})
	}
}

// TestAGroupThatATenantTakesOverStays: without its labels, it is the tenant's.
func TestAGroupThatATenantTakesOverStays(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.serveGroups()
		c.bindIn("db", "data")
		c.lead(30 * time.Minute)
		mine := c.groups()[0]
		delete(mine.Labels, objects.LabelSchedule)
		_, err := c.client.GroupsnapshotV1().VolumeGroupSnapshots("team-a").Update(c.Context(), mine, metav1.UpdateOptions{})
		c.must(err)
		c.lead(5 * time.Hour)
		if _, err := c.client.GroupsnapshotV1().VolumeGroupSnapshots("team-a").Get(c.Context(), mine.Name, metav1.GetOptions{}); err != nil || len(c.groups()) != 2 {
			t.Errorf("beside it there are %s: %v", c.groupNames(), err)
		}
	})
}
