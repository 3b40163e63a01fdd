package app

import (
	"log/slog"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/audit"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// TestAuditConfirmsWhatTheCachesShow: caches may be late, and an unnecessary listing of
// everything costs the API server more than all other requests of a replica.
func TestAuditConfirmsWhatTheCachesShow(t *testing.T) {
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-uid-1", CreationTimestamp: metav1.Now(), Annotations: map[string]string{
		objects.AnnotationProvisionedBy: "cinder", objects.AnnotationVolume: "volume-1", objects.AnnotationBackend: "gold", objects.AnnotationCluster: "cluster",
		objects.AnnotationClaimUID: "uid-1", objects.AnnotationTenant: "a", objects.AnnotationProtocol: "iscsi", objects.AnnotationConnector: `{"host":"k8s"}`,
	}}}
	volume := cinder.Volume{ID: "volume-1", Status: cinder.StatusAttaching, CreatedAt: time.Now().Add(-24 * time.Hour),
		Metadata: stamps.Volume{Cluster: "cluster", ClusterUID: "cluster-uid", ClaimUID: "uid-1", PV: "pvc-uid-1", Namespace: "a", Claim: "data"}.Metadata(nil)}
	for _, test := range []struct {
		name             string
		cached, existing []*corev1.PersistentVolume
		again, removed   bool
		removes          bool
		want             []audit.Kind
		confirmed        bool
	}{
		{name: "nothing is wrong", cached: []*corev1.PersistentVolume{pv}, existing: []*corev1.PersistentVolume{pv}},
		{name: "the cache is late", existing: []*corev1.PersistentVolume{pv}, confirmed: true},
		{name: "a volume that nothing names", want: []audit.Kind{audit.OrphanVolume, audit.OrphanVolume}, confirmed: true},
		{name: "a volume that was removed after it was listed", removed: true},
		{name: "a volume that nothing names, again", again: true, want: []audit.Kind{audit.OrphanVolume, audit.OrphanVolume}},
		{name: "a volume that nothing names and that is to be removed, again", again: true, removes: true, want: []audit.Kind{audit.OrphanVolume, audit.OrphanVolume}, confirmed: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			var existing []runtime.Object
			for _, pv := range test.existing {
				existing = append(existing, pv)
			}
			client := fake.NewClientset(existing...)
			volumes := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
			for _, pv := range test.cached {
				if err := volumes.Add(pv); err != nil {
					t.Fatal(err)
				}
			}
			u := &auditor{
				policy: func() *policy.Policy { return &policy.Policy{Audit: policy.Audit{Grace: time.Hour}} }, client: client, warn: slog.New(slog.DiscardHandler).Warn,
				isGone:  func(backend, _ string) bool { return test.removed && backend == "gold" },
				cluster: "cluster", clusterUID: "cluster-uid", namespace: "system", provisionerName: "cinder", reported: map[audit.Finding]bool{},
				caches: objects.Caches{
					Claims:            corelisters.NewPersistentVolumeClaimLister(cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})),
					PersistentVolumes: corelisters.NewPersistentVolumeLister(volumes),
				},
			}
			// Another backend of the same project also shows it.
			listings := map[string]audit.Listing{"gold": {Volumes: []cinder.Volume{volume}}, "silver": {Volumes: []cinder.Volume{volume}}}
			compare := func() []audit.Finding {
				findings, err := u.compare(t.Context(), listings, test.removes)
				if err != nil {
					t.Fatal(err)
				}
				return findings
			}
			if test.again {
				for _, f := range compare() {
					u.reported[withoutMessage(f)] = true
				}
				client.ClearActions()
			}
			findings := compare()
			var kinds []audit.Kind
			for _, f := range findings {
				kinds = append(kinds, f.Kind)
			}
			if !slices.Equal(kinds, test.want) {
				t.Errorf("found %+v, want %v", findings, test.want)
			}
			confirmed := slices.ContainsFunc(client.Actions(), func(a clienttesting.Action) bool { return a.Matches("list", "persistentvolumes") })
			if confirmed != test.confirmed {
				t.Errorf("PersistentVolumes were listed: %t, want %t", confirmed, test.confirmed)
			}
		})
	}
}
