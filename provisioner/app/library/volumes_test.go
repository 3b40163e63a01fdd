package library

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// TestPersistentVolumesNameTheProgramAsTheirProvisioner: their StorageClass may use
// another name, but the admission policy lets the account create no others.
func TestPersistentVolumesNameTheProgramAsTheirProvisioner(t *testing.T) {
	client := &Client{Interface: fake.NewClientset(), Provisioner: "test"}
	for by, want := range map[string]string{"test": "test", "standalone-cinder.openstack.org": "test", "": ""} {
		pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "of-" + by, Annotations: map[string]string{"pv.kubernetes.io/provisioned-by": by}}}
		made, err := client.CoreV1().PersistentVolumes().Create(t.Context(), pv, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got := made.Annotations["pv.kubernetes.io/provisioned-by"]; got != want {
			t.Errorf("by %q: saved as %q, want %q", by, got, want)
		}
		if got := pv.Annotations["pv.kubernetes.io/provisioned-by"]; got != by {
			t.Errorf("the library's object was changed to %q", got)
		}
	}
}
