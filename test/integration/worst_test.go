package integration

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// profiled starts a replica, and returns what reads the size of its live heap, in MiB.
func (w *world) profiled() (*harness.Replica, func() int) {
	w.Helper()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	w.must(err)
	address := free.Addr().String()
	w.must(free.Close())
	replica := w.start("--pprof-address", address)
	allocated := regexp.MustCompile(`# HeapAlloc = (\d+)`)
	return replica, func() int {
		w.Helper()
		answer, err := http.Get("http://" + address + "/debug/pprof/heap?gc=1&debug=1")
		w.must(err)
		defer func() { _ = answer.Body.Close() }()
		text, err := io.ReadAll(answer.Body)
		w.must(err)
		found := allocated.FindSubmatch(text)
		if found == nil {
			w.Fatal("the profile does not tell the size of the heap")
		}
		size, err := strconv.Atoi(string(found[1]))
		w.must(err)
		return size >> 20
	}
}

// TestWorstClaimsAndSnapshotsTakeLittleMemory: a tenant writes as much into its claims and
// VolumeSnapshots as the API server accepts. All are refused, and no replica keeps more
// than a few kilobytes of each, neither the leader nor a follower, even one that starts
// when they are there. WORST_OBJECTS sets how many objects it writes: 2,000 take 1.2 GiB
// in etcd and several GiB in the API server.
//
//tier:matrix
func TestWorstClaimsAndSnapshotsTakeLittleMemory(t *testing.T) {
	const most = 64 // MiB
	objects := 240  // 140 MiB
	if number := os.Getenv("WORST_OBJECTS"); number != "" {
		var err error
		if objects, err = strconv.Atoi(number); err != nil {
			t.Fatalf("WORST_OBJECTS: %v", err)
		}
	}
	each := objects / 2 // half are claims, half are VolumeSnapshots
	w := newWorld(t, "worst", cindersim.Options{})
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.ctx), time.Hour)
	defer cancel()
	w.ctx = ctx
	leader, heapOfLeader := w.profiled()
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		if !leader.Leads(w.ctx) {
			return "it does not lead", nil
		}
		return "", nil
	}))
	_, heapOfFollower := w.profiled()
	before := heapOfLeader()
	// An object may have at most 1 MiB.
	big := strings.Repeat("x", 400<<10)
	annotation := strings.Repeat("y", 200<<10)
	var group errgroup.Group
	group.SetLimit(2)
	w.must(suite.InstallSnapshotCRDs(w.ctx)) // the snapshot-controller would log each object
	config := rest.CopyConfig(suite.Config)
	config.QPS = -1
	client, err := snapshotclient.NewForConfig(config)
	w.must(err)
	claims, err := kubernetes.NewForConfig(config)
	w.must(err)
	snapshots := client.SnapshotV1().VolumeSnapshots("worst-a")
	for i := range each {
		group.Go(func() error {
			_, err := claims.CoreV1().PersistentVolumeClaims("worst-a").Create(w.ctx, harness.Claim("worst-a", fmt.Sprintf("claim-%d", i), "worst-gold", "1Gi", func(claim *corev1.PersistentVolumeClaim) {
				claim.Annotations = map[string]string{"volume.kubernetes.io/selected-node": annotation}
				claim.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: big}
			}), metav1.CreateOptions{})
			return err
		})
		group.Go(func() error {
			_, err := snapshots.Create(w.ctx, &snapshotv1.VolumeSnapshot{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("snapshot-%d", i), Annotations: map[string]string{"a": annotation}},
				Spec:       snapshotv1.VolumeSnapshotSpec{Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: &big}},
			}, metav1.CreateOptions{})
			return err
		})
	}
	w.must(group.Wait())
	t.Cleanup(func() { _ = snapshots.DeleteCollection(w.ctx, metav1.DeleteOptions{}, metav1.ListOptions{}) })
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		if refused := strings.Count(leader.Log(), `"reason":"InvalidClaim"`); refused < each {
			return fmt.Sprintf("%d claims are refused", refused), nil
		}
		return "", nil
	}))
	_, heapOfNewcomer := w.profiled()
	for name, heap := range map[string]func() int{"leader": heapOfLeader, "follower": heapOfFollower, "newcomer": heapOfNewcomer} {
		if now := heap(); now > before+most {
			t.Errorf("the %s's heap has %d MiB, and the leader's had %d before", name, now, before)
		} else {
			t.Logf("the %s's heap has %d MiB, and the leader's had %d before", name, now, before)
		}
	}
	if log := leader.Log(); len(log) > 2<<20 {
		t.Errorf("the leader's log has %d KiB", len(log)>>10)
	}
}
