package claims

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	ktesting "k8s.io/client-go/testing"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// requests returns how many requests the API server and the projects got.
func (f *fixture) requests() (kubernetes, listings, reads int) {
	for _, p := range f.projects {
		p.mu.Lock()
		listings, reads = listings+p.listings, reads+p.reads
		p.mu.Unlock()
	}
	return len(f.client.Actions()), listings, reads
}

// TestLoopOfAnnotationWritesCostsNoMoreThanAnyOther: whoever may write a claim may write it
// in a loop. What the caches and a shared listing refuse requests nothing else; what they
// do not refuse is tried once for each listing.
func TestLoopOfAnnotationWritesCostsNoMoreThanAnyOther(t *testing.T) {
	const (
		writes   = 200
		interval = 50 * time.Millisecond
		share    = 2 * time.Second
		// looks is how many listings fit into the loop. The first attempt comes before it.
		looks = int(writes*interval/share) + 2
	)
	for name, c := range map[string]struct {
		volume cinder.Volume
		claim  func(*corev1.PersistentVolumeClaim)
		// wanted are what the author writes in turn.
		wanted []string
		// other writes another annotation instead.
		other bool
		// perLook is how many requests to the API server each attempt may cost.
		perLook int
	}{
		"another annotation": {volume: data("id", nil), wanted: []string{"none"}, other: true},
		"no such volume":     {volume: data("id", nil), wanted: []string{"none", "neither"}},
		"another tenant's":   {volume: data("id", stamped("cluster-1", "b", "gone")), wanted: []string{"id", "data"}},
		"a volume in use":    {volume: data("id", func(v *cinder.Volume) { v.Status = cinder.StatusInUse }), wanted: []string{"id", "data"}},
		"a volume that is too small": {volume: data("id", nil), wanted: []string{"id", "data"}, claim: func(claim *corev1.PersistentVolumeClaim) {
			claim.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("5Gi")
		}},
		"no room for it": {volume: data("id", func(v *cinder.Volume) { v.SizeGiB = 11 }), wanted: []string{"id", "data"}, perLook: 5},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, c.volume)
				f.ShareListings = share
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				go f.Run(ctx)
				claim := f.ask("team-a", "mine", "fast", c.wanted[0], c.claim)
				var live atomic.Pointer[corev1.PersistentVolumeClaim]
				live.Store(claim)
				f.client.PrependReactor("get", "persistentvolumeclaims", func(ktesting.Action) (bool, runtime.Object, error) { return true, live.Load(), nil })
				f.client.ClearActions()
				f.Consider(claim)
				synctest.Wait()
				for i := range writes {
					written := claim.DeepCopy()
					written.ResourceVersion = fmt.Sprint(i)
					key, value := objects.AnnotationImport, c.wanted[i%len(c.wanted)]
					if c.other {
						key, value = "example.org/note", fmt.Sprint(i)
					}
					written.Annotations[key] = value
					live.Store(written)
					f.must(f.Caches.Claims.Update(written))
					f.ClaimChanged(claim, written)
					claim = written
					time.Sleep(interval)
					synctest.Wait()
				}
				kubernetes, listings, reads := f.requests()
				if kubernetes > c.perLook*looks || c.perLook == 0 && reads > 0 || reads > looks || listings > 2*looks {
					t.Errorf("%d requests to the API server, %d listings, %d reads of volumes", kubernetes, listings, reads)
				}
				if f.served("id") != "" {
					t.Error("the volume was imported")
				}
				stop()
				synctest.Wait()
			})
		})
	}
}

// TestImportListsNothing: what an import costs does not grow with the cluster.
func TestImportListsNothing(t *testing.T) {
	for _, class := range []string{"fast", "csi"} {
		t.Run(class, func(t *testing.T) {
			f := newFixture(t, data("id", func(v *cinder.Volume) {
				v.Metadata["standalone-cinder.openstack.org/filesystem-uuids"] = "6f3d7f7c-8b0f-4b43-8d4e-3f3b9d3f6a11"
			}))
			claim := f.ask("team-a", "mine", class, "id", nil)
			f.client.ClearActions()
			f.sync(claim)
			var did []string
			for _, action := range f.client.Actions() {
				did = append(did, action.GetVerb()+" "+action.GetResource().Resource)
			}
			if slices.Contains(did, "list persistentvolumes") || slices.Contains(did, "list persistentvolumeclaims") || len(did) > 20 {
				t.Errorf("it did %q", did)
			}
			if f.served("id") != "mine" {
				t.Errorf("it was not imported: %v", f.newEvents())
			}
		})
	}
}
