package attach

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/staged"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

// TestVolumesAreTakenAtTheSameTime: all are forbidden in one Lease, of which the API server
// replaces only the version that was read.
func TestVolumesAreTakenAtTheSameTime(t *testing.T) {
	const many = 16
	objects := []runtime.Object{}
	for n := range many {
		objects = append(objects, otherPV(n, "gold"))
	}
	w := newWorld(t, objects...)
	w.rules = Rules{FencedByInitiator: true}
	node := machine("n1", "boot-1")
	silent(node)
	_, err := w.client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{})
	must(t, err)
	must(t, w.machines.Add(node))
	w.reportsStaged(t, "n1", "boot-1")
	var mu sync.Mutex
	version := 0
	w.client.PrependReactor("*", "leases", func(a clienttesting.Action) (bool, runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		leases := coordinationv1.SchemeGroupVersion.WithResource("leases")
		switch a := a.(type) {
		case clienttesting.GetAction:
			lease, err := w.client.Tracker().Get(leases, own, a.GetName())
			if err != nil {
				return true, nil, err
			}
			read := lease.DeepCopyObject().(*coordinationv1.Lease)
			read.ResourceVersion = strconv.Itoa(version)
			return true, read, nil
		case clienttesting.UpdateAction:
			lease := a.GetObject().(*coordinationv1.Lease)
			if lease.ResourceVersion != strconv.Itoa(version) {
				return true, nil, apierrors.NewConflict(leases.GroupResource(), lease.Name, fmt.Errorf("it is %d", version))
			}
			version++
			return true, lease, w.client.Tracker().Update(leases, lease, own)
		}
		return false, nil, nil
	})
	one := &oneAtATime{keeping: &keeping{volumes: w.volumes, kept: map[string]cinder.Volume{}}}
	var all []string
	for n := range many {
		id := strconv.Itoa(n)
		metadata := stamps.Volume{Cluster: "cluster-1", ClaimUID: "1", PV: "other-" + id, Tenant: "team-a"}.Metadata(nil)
		metadata[stamps.KeyMode] = stamps.ModeCSI
		metadata[stamps.NodeRecordPrefix+wire.NodeKey("n1")] = stamps.NodeRecord{AttachmentID: "attachment-" + id, Node: "n1"}.String()
		one.kept[id] = cinder.Volume{ID: id, SizeGiB: 2, Metadata: metadata}
		all = append(all, "attachment-"+id)
	}
	w.Volumes = func(string) (Volumes, error) { return one, nil }
	var group sync.WaitGroup
	for n := range many {
		group.Go(func() {
			if taken, err := FenceOf(w.Engine).Take(t.Context(), wire.Handle{Backend: "gold", ID: strconv.Itoa(n)}, "n1", "boot-1"); err != nil || !taken {
				t.Errorf("volume %d: taken %t, %v", n, taken, err)
			}
		})
	}
	group.Wait()
	lease, err := w.client.CoordinationV1().Leases(own).Get(t.Context(), staged.LeaseName("n1"), metav1.GetOptions{})
	must(t, err)
	forbidden := staged.Of(lease).Ended
	slices.Sort(forbidden)
	slices.Sort(all)
	if !slices.Equal(forbidden, all) {
		t.Errorf("forbidden are %q", forbidden)
	}
}

// oneAtATime is a fake that several may call.
type oneAtATime struct {
	*keeping
	mu sync.Mutex
}

func (o *oneAtATime) Find(ctx context.Context, id string) (cinder.Volume, bool, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.keeping.Find(ctx, id)
}

func (o *oneAtATime) Unpublish(ctx context.Context, target backends.Target, from backends.UnpublishRequest) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.keeping.Unpublish(ctx, target, from)
}
