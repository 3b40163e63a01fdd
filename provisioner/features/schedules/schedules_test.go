package schedules

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	snapshotfake "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/fake"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	eventrecord "k8s.io/client-go/tools/record"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/liveness"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

const scheduled = `
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
backends: [{name: gold, auth: {cloud: gold}}]
tenants:
  - name: a
    namespaces: [team-a]
    classes:
      - storageClasses: [fast]
        backends: [gold]
        protect:
          - {name: hourly, every: 1h, keep: 2, snapshotClass: cheap}
          - {name: often, every: 10m, keep: 1, onRequest: true}
`

// cluster is an API server with a snapshot-controller, and the caches of a leader.
type cluster struct {
	*testing.T
	claims, volumes, namespaces cache.Indexer
	client                      *snapshotfake.Clientset
	kubernetes                  *fake.Clientset
	events                      *eventrecord.FakeRecorder
	metrics                     *Metrics
	log                         bytes.Buffer

	mu     sync.Mutex
	policy *policy.Policy
	// broken snapshots never become ready; refused is the answer to creations.
	broken  bool
	refused error
	// shown, if not nil, is what a late cache shows.
	shown []*snapshotv1.VolumeSnapshot
	told  []string
	uids  int
	// volumes are those of VolumeGroupSnapshots.
	grouped map[types.UID][]string
	// classes are the parameters of VolumeSnapshotClasses.
	classes map[string]map[string]string
}

func (c *cluster) VolumeSnapshotClass(name string) (*snapshotv1.VolumeSnapshotClass, error) {
	if parameters, exists := c.classes[name]; exists {
		return &snapshotv1.VolumeSnapshotClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Parameters: parameters}, nil
	}
	return nil, apierrors.NewNotFound(snapshotv1.Resource("volumesnapshotclasses"), name)
}

func newCluster(t *testing.T) *cluster {
	indexer := func() cache.Indexer {
		return cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	}
	c := &cluster{
		T: t, claims: indexer(), volumes: indexer(), namespaces: indexer(),
		client:     snapshotfake.NewSimpleClientset(), //nolint:staticcheck // the other one knows no schema of these types
		kubernetes: fake.NewClientset(),
		events:     eventrecord.NewFakeRecorder(1000), metrics: NewMetrics(prometheus.NewRegistry()), grouped: map[types.UID][]string{},
	}
	c.follow(scheduled)
	c.must(c.namespaces.Add(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team-a"}}))
	c.client.PrependReactor("create", "volumesnapshots", func(action clienttesting.Action) (bool, runtime.Object, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.refused != nil {
			return true, nil, c.refused
		}
		made := action.(clienttesting.CreateAction).GetObject().(*snapshotv1.VolumeSnapshot)
		c.uids++
		ready := !c.broken
		made.UID, made.CreationTimestamp, made.ResourceVersion = types.UID(fmt.Sprint("s", c.uids)), metav1.Now(), "1"
		made.Status = &snapshotv1.VolumeSnapshotStatus{ReadyToUse: &ready}
		return false, nil, nil
	})
	return c
}

func (c *cluster) must(err error) {
	c.Helper()
	if err != nil {
		c.Fatal(err)
	}
}

func (c *cluster) follow(text string) {
	p, err := policy.Parse([]byte(text), "policy.yaml", nil)
	c.must(err)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.policy = p
}

// bind makes a claim with a volume.
func (c *cluster) bind(name string, change func(*corev1.PersistentVolumeClaim, *corev1.PersistentVolume)) {
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name, UID: types.UID("uid-" + name), CreationTimestamp: metav1.Now()},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "pvc-" + name}, Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
	}
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pvc-" + name, Annotations: map[string]string{
			objects.AnnotationProvisionedBy: "test", objects.AnnotationVolume: "volume-" + name, objects.AnnotationBackend: "gold", objects.AnnotationTenant: "a",
			objects.AnnotationCluster: "cluster-1", objects.AnnotationClaimUID: "uid-" + name, objects.AnnotationConnector: "{}",
		}},
		Spec: corev1.PersistentVolumeSpec{StorageClassName: "fast", ClaimRef: &corev1.ObjectReference{Namespace: "team-a", Name: name, UID: claim.UID}},
	}
	if change != nil {
		change(claim, pv)
	}
	c.must(c.claims.Add(claim))
	c.must(c.kubernetes.Tracker().Add(claim))
	c.must(c.volumes.Add(pv))
}

func (c *cluster) Scheduled() ([]*snapshotv1.VolumeSnapshot, bool) {
	c.mu.Lock()
	shown := c.shown
	c.mu.Unlock()
	if shown != nil {
		return shown, true
	}
	return c.snapshots(), true
}

// snapshots are those that exist, in the order of their creation.
func (c *cluster) snapshots() []*snapshotv1.VolumeSnapshot {
	list, err := c.client.SnapshotV1().VolumeSnapshots("team-a").List(context.Background(), metav1.ListOptions{LabelSelector: objects.LabelSchedule})
	c.must(err)
	var all []*snapshotv1.VolumeSnapshot
	for i := range list.Items {
		all = append(all, &list.Items[i])
	}
	slices.SortFunc(all, func(a, b *snapshotv1.VolumeSnapshot) int {
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	})
	return all
}

func (c *cluster) names() string {
	var names []string
	for _, one := range c.snapshots() {
		names = append(names, one.Name)
	}
	return strings.Join(names, " ")
}

// lead runs a term for a while.
func (c *cluster) lead(long time.Duration) {
	ctx, cancel := context.WithCancel(c.Context())
	controller := New(Options{
		Name: "test", Cluster: "cluster-1", Policy: func() *policy.Policy { c.mu.Lock(); defer c.mu.Unlock(); return c.policy },
		Snapshots: c, Client: c.client, Kubernetes: c.kubernetes, Claims: corelisters.NewPersistentVolumeClaimLister(c.claims), PersistentVolumes: corelisters.NewPersistentVolumeLister(c.volumes),
		Namespaces: corelisters.NewNamespaceLister(c.namespaces), Recorder: c.events,
		Tell:    func(message string) { c.mu.Lock(); defer c.mu.Unlock(); c.told = append(c.told, message) },
		Metrics: c.metrics, Logger: slog.New(slog.NewTextHandler(&c.log, nil)),
		Board: parking.NewBoard(), Monitor: liveness.New(), MaxWorkTime: liveness.Always(time.Hour),
	})
	done := make(chan struct{})
	go func() { defer close(done); controller.Run(ctx) }()
	time.Sleep(long)
	synctest.Wait()
	c.T.Logf("at %s: %s; late %v", time.Now().UTC().Format(time.RFC3339), c.names(), testutil.ToFloat64(c.metrics.late.WithLabelValues("a")))
	cancel()
	<-done
}

func inBubble(t *testing.T, test func(t *testing.T, c *cluster)) {
	synctest.Test(t, func(t *testing.T) { test(t, newCluster(t)) })
}

func TestSnapshotsComeAndGo(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.bind("data", nil)
		c.lead(61 * time.Minute)
		first := c.snapshots()
		if len(first) != 1 {
			t.Fatalf("after an hour there are: %s", c.names())
		}
		one := first[0]
		if one.Labels[objects.LabelSchedule] != "hourly" || one.Labels[objects.LabelClaimUID] != "uid-data" || *one.Spec.Source.PersistentVolumeClaimName != "data" || *one.Spec.VolumeSnapshotClassName != "cheap" {
			t.Errorf("the VolumeSnapshot is %+v %+v", one.Labels, one.Spec)
		}
		for range 4 {
			c.lead(time.Hour) // each hour, another leader
		}
		left := c.snapshots()
		if len(left) != 2 || left[0].Name == one.Name || len(c.events.Events) > 0 {
			t.Errorf("after five hours there are %s, and %d events", c.names(), len(c.events.Events))
		}
		if made, gone := testutil.ToFloat64(c.metrics.snapshots.WithLabelValues("created")), testutil.ToFloat64(c.metrics.snapshots.WithLabelValues("deleted")); made != 5 || gone != 3 {
			t.Errorf("%v were created, %v deleted, and not 5 and 3", made, gone)
		}
	})
}

// TestBackupsNeedAClassThatMakesThem: a snapshot that a tenant takes for a backup would go with
// its array.
func TestBackupsNeedAClassThatMakesThem(t *testing.T) {
	for name, test := range map[string]struct {
		classes map[string]map[string]string
		made    int
		why     string
	}{
		"of backups":   {classes: map[string]map[string]string{"cheap": {"type": "backup"}}, made: 1},
		"of snapshots": {classes: map[string]map[string]string{"cheap": {"type": "snapshot"}}, why: "schedule hourly makes backups, but VolumeSnapshotClass cheap makes snapshots; give it the parameter type: backup, or name another"},
		"missing":      {why: `cannot read the class of schedule hourly: volumesnapshotclasses.snapshot.storage.k8s.io "cheap" not found`},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, c *cluster) {
				c.classes = test.classes
				c.follow(strings.NewReplacer("snapshotClass: cheap", "snapshotClass: cheap, as: backup", "        protect:", "        backups: true\n        protect:").Replace(scheduled))
				c.bind("data", nil)
				c.lead(2*time.Hour + 20*time.Minute)
				if made := min(1, len(c.snapshots())); made != test.made {
					t.Errorf("there are %s", c.names())
				}
				if test.why == "" {
					return
				}
				if e := <-c.events.Events; !strings.Contains(e, "Warning ScheduledSnapshotLate") || !strings.Contains(e, test.why) {
					t.Errorf("the event is %s", e)
				}
			})
		})
	}
}

func TestClaimsWithoutASchedule(t *testing.T) {
	for name, change := range map[string]func(*corev1.PersistentVolumeClaim, *corev1.PersistentVolume){
		"another rule":   func(_ *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) { pv.Spec.StorageClassName = "other" },
		"another tenant": func(claim *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) { claim.Namespace = "team-b" },
		"not bound": func(claim *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) {
			claim.Status.Phase = corev1.ClaimPending
		},
		"being deleted": func(claim *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) {
			now := metav1.Now()
			claim.DeletionTimestamp = &now
		},
		"another claim's":  func(_ *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) { pv.Spec.ClaimRef.UID = "other" },
		"another driver's": func(_ *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) { pv.Annotations = nil },
		"another cluster's": func(_ *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) {
			pv.Annotations[objects.AnnotationCluster] = "cluster-2"
		},
		"another provisioner's": func(_ *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) {
			pv.Annotations[objects.AnnotationProvisionedBy] = "other"
		},
		"the copy of a move": func(claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) {
			claim.Labels = map[string]string{objects.LabelCopy: objects.CopyPartial}
			pv.Annotations[objects.AnnotationCopyOf] = "other"
		},
		"the former volume of a move": func(claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) {
			claim.Labels = map[string]string{objects.LabelCopy: objects.CopyFormer}
			pv.Annotations[objects.AnnotationSwapped] = `{"handle": "gold/volume-data"}`
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, c *cluster) {
				c.bind("data", change)
				c.lead(3 * time.Hour)
				if names := c.names(); names != "" || len(c.events.Events) > 0 {
					t.Errorf("there are %s, and %d events", names, len(c.events.Events))
				}
			})
		})
	}
}

// TestVolumesInModeCSI: their PersistentVolumes do not name the provisioner.
func TestVolumesInModeCSI(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.bind("data", func(_ *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) {
			pv.Annotations[objects.AnnotationProvisionedBy] = wire.DriverName
			pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: wire.DriverName, VolumeHandle: "gold/volume-data"}
		})
		c.lead(61 * time.Minute)
		if n := len(c.snapshots()); n != 1 {
			t.Errorf("%d snapshots", n)
		}
	})
}

// TestALabelOfATenantEndsNoSchedule: only an operator's move does.
func TestALabelOfATenantEndsNoSchedule(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.bind("data", func(claim *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) {
			claim.Labels = map[string]string{objects.LabelCopy: objects.CopyFormer}
		})
		c.lead(61 * time.Minute)
		if n := len(c.snapshots()); n != 1 {
			t.Errorf("%d snapshots", n)
		}
	})
}

func TestAClaimRequestsASchedule(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.bind("data", func(claim *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) {
			claim.Labels = map[string]string{objects.LabelProtect: "often.hourly"}
		})
		c.lead(3 * time.Hour)
		if names := c.names(); strings.Count(names, "data-often-") != 1 || strings.Count(names, "data-hourly-") != 2 {
			t.Errorf("there are %s", names)
		}
	})
}

// TestWhatATenantTakesOverStays: without its labels, a VolumeSnapshot is the tenant's.
func TestWhatATenantTakesOverStays(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.bind("data", nil)
		c.lead(61 * time.Minute)
		mine := c.snapshots()[0]
		mine.Labels = nil
		_, err := c.client.SnapshotV1().VolumeSnapshots("team-a").Update(c.Context(), mine, metav1.UpdateOptions{})
		c.must(err)
		c.lead(5 * time.Hour)
		if _, err := c.client.SnapshotV1().VolumeSnapshots("team-a").Get(c.Context(), mine.Name, metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// TestALateCacheDeletesNothingThatIsLast: the cache shows newer good snapshots, which the
// tenant has just deleted.
func TestALateCacheDeletesNothingThatIsLast(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.bind("data", nil)
		c.lead(3*time.Hour + time.Minute)
		all := c.snapshots()
		oldest := all[0].DeepCopy()
		oldest.Name, oldest.UID, oldest.CreationTimestamp = "data-hourly-old", "old", metav1.NewTime(oldest.CreationTimestamp.Add(-time.Hour))
		c.must(c.client.Tracker().Add(oldest))
		c.mu.Lock()
		c.shown = append(all, oldest)
		c.mu.Unlock()
		for _, one := range all {
			c.must(c.client.SnapshotV1().VolumeSnapshots("team-a").Delete(c.Context(), one.Name, metav1.DeleteOptions{}))
		}
		c.lead(time.Minute)
		if names := c.names(); !strings.HasPrefix(names, "data-hourly-old") {
			t.Errorf("there are %s", names)
		}
	})
}

// TestSnapshotsThatAreNotReady: no more are created, the last good one stays, and an event
// says so, rarely.
func TestSnapshotsThatAreNotReady(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.bind("data", nil)
		c.lead(61 * time.Minute)
		good := c.names()
		c.broken = true
		c.lead(10 * time.Hour)
		if all := c.snapshots(); len(all) != 2 || all[0].Name != good {
			t.Errorf("there are %s", c.names())
		}
		if n := len(c.events.Events); n == 0 || n > 20 {
			t.Fatalf("%d events", n)
		}
		if e := <-c.events.Events; !strings.Contains(e, "Warning ScheduledSnapshotLate schedule hourly has taken no good snapshot since 2000-01-01T00:") || !strings.Contains(e, "is not ready (see kubectl cinder why); if its class was wrong, delete it") {
			t.Error(e)
		}
	})
}

func TestMissingRightsAreToldOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.refused = apierrors.NewForbidden(snapshotv1.Resource("volumesnapshots"), "", fmt.Errorf(`User "us" cannot create resource "volumesnapshots"`))
		c.bind("data", nil)
		c.bind("more", nil)
		c.lead(90 * time.Minute)
		if len(c.told) != 1 || !strings.Contains(c.told[0], "install the component snapshot-schedules") {
			t.Errorf("told %q", c.told)
		}
		c.refused = nil
		c.lead(2 * time.Minute)
		if n := len(c.snapshots()); n != 2 {
			t.Errorf("with the rights there are %d", n)
		}
	})
}

// TestANameThatIsTaken: a VolumeSnapshot that no schedule made stays, and another gets a name
// of its own.
func TestANameThatIsTaken(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.bind("data", nil)
		of := target{namespace: "team-a", claim: "data", uid: "uid-data"}
		own := taken(nameOf(of, "hourly", turnOf(of.seed(), time.Hour, time.Now().Add(time.Hour))), time.Now(), "good")
		own.Namespace = "team-a"
		c.must(c.client.Tracker().Add(own))
		c.answerAsTheAPIServer()
		c.lead(30 * time.Minute)
		if names := c.names(); strings.Count(names, "data-hourly-") != 1 || names == own.Name || len(c.events.Events) > 0 {
			t.Errorf("beside %s there are %q, and %d events", own.Name, names, len(c.events.Events))
		}
		if _, err := c.client.SnapshotV1().VolumeSnapshots("team-a").Get(c.Context(), own.Name, metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// TestWithoutSchedulesNothingIsAsked: as in most clusters.
func TestWithoutSchedulesNothingIsAsked(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.follow(scheduled[:strings.Index(scheduled, "        protect:")])
		c.bind("data", nil)
		c.lead(5 * time.Hour)
		c.names() // the test's own list
		if n := len(c.client.Actions()); n != 2 {
			t.Errorf("%d requests", n)
		}
	})
}
