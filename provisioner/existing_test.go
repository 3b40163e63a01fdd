package provisioner

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/policy/review"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// TestReadExistingAgreesWithAdmission: the review of existing claims must make
// the same decision as the running program.
func TestReadExistingAgreesWithAdmission(t *testing.T) {
	claims := map[string]func(*corev1.PersistentVolumeClaim){
		"granted": nil,
		"too large": func(c *corev1.PersistentVolumeClaim) {
			c.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("11Gi")
		},
		"of a stranger": func(c *corev1.PersistentVolumeClaim) { c.Namespace = "stranger" },
		"another class": func(c *corev1.PersistentVolumeClaim) { c.Annotations[corev1.BetaStorageClassAnnotation] = "unknown" },
		"a low limit":   func(c *corev1.PersistentVolumeClaim) { c.Spec.Resources.Limits = c.Spec.Resources.Requests },
		"a data source": func(c *corev1.PersistentVolumeClaim) {
			c.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "x"}
		},
		"for a populator": fromImage,
		"many writers": func(c *corev1.PersistentVolumeClaim) {
			c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
		},
		"without a size": func(c *corev1.PersistentVolumeClaim) { c.Spec.Resources.Requests = nil },
	}
	for name, change := range claims {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			claim := f.claim(change)
			other := f.class.DeepCopy()
			other.Name = "unknown"
			f.must(f.factory.Storage().V1().StorageClasses().Informer().GetStore().Add(other))
			admitted := f.admits(claim)

			existing, err := objects.ReadExisting(t.Context(), fake.NewClientset(claim, f.class, other), "test")
			if err != nil {
				t.Fatal(err)
			}
			findings := review.Of(f.Policy(), existing).Findings
			if len(findings) != 1 {
				t.Fatalf("findings %+v, want one", findings)
			}
			if granted := findings[0].Kind == review.PendingGranted; granted != admitted {
				t.Errorf("the claim was admitted: %t, but is found %s", admitted, findings[0].Kind)
			}
			for _, event := range f.newEvents() {
				if want := "Warning " + string(findings[0].Reason) + " " + findings[0].Message; event != want {
					t.Errorf("its event is %q, but is found %q", event, want)
				}
			}
		})
	}
}

// TestReadExistingCountsAsTheLedger: the review must find a quota exceeded
// exactly when the running program does.
func TestReadExistingCountsAsTheLedger(t *testing.T) {
	recorded := func(name, claimUID, cluster string) *corev1.PersistentVolume {
		return &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{
				objects.AnnotationProvisionedBy: "test", objects.AnnotationVolume: "volume-" + name, objects.AnnotationBackend: "gold",
				objects.AnnotationTenant: "a", objects.AnnotationRule: "tenants[0].classes[1]", objects.AnnotationConnector: "{}",
				objects.AnnotationCluster: cluster, objects.AnnotationClaimUID: claimUID,
			}},
			Spec: corev1.PersistentVolumeSpec{StorageClassName: "fast", Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")}},
		}
	}
	failed := recorded("pvc-uid-data", "uid-data", "cluster-1")
	failed.Status.Phase = corev1.VolumeFailed
	historic := recorded("old", "", "")
	historic.Annotations = map[string]string{objects.AnnotationProvisionedBy: "test", objects.HistoricIdentity: "x", objects.HistoricVolume: "volume-9", objects.AnnotationBackend: "gold"}
	volumes := []runtime.Object{failed, recorded("pvc-uid-other", "uid-other", "cluster-0"), recorded("imported-3", "", "cluster-1"), historic}
	f := newFixture(t)
	for _, pv := range volumes {
		f.followup.countRecorded(pv.(*corev1.PersistentVolume))
	}
	want := f.ledger.Usage(policy.TenantScope, "a")
	if want != (policy.Usage{Volumes: 1, Gigabytes: 2}) {
		t.Fatalf("the ledger counts %+v", want)
	}
	existing, err := objects.ReadExisting(t.Context(), fake.NewClientset(volumes...), "test")
	if err != nil {
		t.Fatal(err)
	}
	existing.Cluster = f.Cluster
	for limit, over := range map[int64]bool{want.Gigabytes - 1: true, want.Gigabytes: false} {
		p, err := policy.Parse([]byte(strings.Replace(testPolicy, "    volumeSize: {max: 10Gi}", fmt.Sprintf("    quota: {gigabytes: %d}", limit), 1)), "p.yaml", mappers.BuiltIn().Describe())
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, finding := range review.Of(p, existing).Findings {
			found = found || finding.Kind == review.OverQuota
		}
		if found != over {
			t.Errorf("with a limit of %d GiB the quota is found exceeded: %t", limit, found)
		}
	}
}
