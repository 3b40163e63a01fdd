package provisioner

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/record"
)

func TestAdmission(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*corev1.PersistentVolumeClaim)
		admit  bool
		event  string // the start of the event; empty for none
	}{
		{name: "granted", admit: true},
		{name: "of another provisioner", change: func(c *corev1.PersistentVolumeClaim) { c.Annotations[record.AnnotationStorageProvisioner] = "other" }},
		{name: "by the old annotation", admit: true, change: func(c *corev1.PersistentVolumeClaim) {
			c.Annotations = map[string]string{record.AnnotationBetaStorageProvisioner: "test"}
		}},
		{name: "too large", event: "Warning VolumeTooLarge ", change: func(c *corev1.PersistentVolumeClaim) {
			c.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("11Gi")
		}},
		{name: "of a stranger", event: "Warning NoMatchingTenant ", change: func(c *corev1.PersistentVolumeClaim) { c.Namespace = "stranger" }},
		{name: "selector", event: "Warning UnsupportedSelector spec.selector cannot be honored for a volume that is yet to be created; remove the selector, or bind an existing PersistentVolume with spec.volumeName",
			change: func(c *corev1.PersistentVolumeClaim) { c.Spec.Selector = &metav1.LabelSelector{} }},
		{name: "data source", event: `Warning UnsupportedDataSource spec.dataSource asks for the content of PersistentVolumeClaim "other", which is not supported; the claim is not given an empty volume instead; remove the data source`,
			change: func(c *corev1.PersistentVolumeClaim) {
				c.Spec.DataSourceRef = &corev1.TypedObjectReference{Kind: "PersistentVolumeClaim", Name: "other"}
			}},
		{name: "clone of another tenant's claim by annotation", event: "Warning UnsupportedDataSource annotation k8s.io/CloneRequest ",
			change: func(c *corev1.PersistentVolumeClaim) { c.Annotations[record.HistoricClone] = "team-b/data" }},
		{name: "many writers", event: "Warning UnsupportedAccessMode ", change: func(c *corev1.PersistentVolumeClaim) {
			c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
		}},
		{name: "of a StorageClass that does not exist", event: `Warning StorageClassNotFound StorageClass "none" does not exist; create it, or replace the claim with one that names another`,
			change: func(c *corev1.PersistentVolumeClaim) {
				none := "none"
				c.Spec.StorageClassName = &none
			}},
		{name: "without a StorageClass name", event: "Warning StorageClassNotFound the claim names no StorageClass; replace it with a claim that does", change: func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = nil }},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t)
			if got := f.ShouldProvision(t.Context(), f.claim(c.change)); got != c.admit {
				t.Errorf("admitted: %t", got)
			}
			events := f.newEvents()
			switch {
			case c.event == "" && len(events) > 0:
				t.Errorf("events %q", events)
			case c.event != "" && (len(events) != 1 || !strings.HasPrefix(events[0], c.event)):
				t.Errorf("events %q, want one that begins with %q", events, c.event)
			}
		})
	}
}

func TestDenialIsReportedOnceAndLiftedByTheNamespace(t *testing.T) {
	f := newFixture(t)
	claim := f.claim(func(c *corev1.PersistentVolumeClaim) { c.Namespace = "stranger" })
	for range 5 {
		f.ShouldProvision(t.Context(), claim)
	}
	if events := f.newEvents(); len(events) != 1 {
		t.Errorf("an unchanged denial was reported %d times", len(events))
	}
	f.Reconsider("team-a")
	if len(f.requeued) != 0 {
		t.Errorf("claims %v came back because of another namespace", f.requeued)
	}
	f.Reconsider("stranger")
	if strings.Join(f.requeued, " ") != "data" {
		t.Errorf("claims that came back: %v", f.requeued)
	}
	// Another reason is news.
	claim = claim.DeepCopy()
	claim.Spec.Selector = &metav1.LabelSelector{}
	f.ShouldProvision(t.Context(), claim)
	if events := f.newEvents(); len(events) != 1 || !strings.HasPrefix(events[0], "Warning UnsupportedSelector ") {
		t.Errorf("events %q", events)
	}
}

func TestPolicyIsAppliedAgainAfterAdmission(t *testing.T) {
	f := newFixture(t)
	claim := f.claim(nil)
	if !f.ShouldProvision(t.Context(), claim) {
		t.Fatal("not admitted")
	}
	f.class.Name = "unknown"
	if _, err := f.provision(claim); !isIgnored(err) {
		t.Errorf("error %v, want one that the library ignores", err)
	}
	if events := f.newEvents(); len(events) != 1 || !strings.HasPrefix(events[0], "Warning NoMatchingClass ") {
		t.Errorf("events %q", events)
	}
	wantCalls(t, f.backends["gold"])
}
