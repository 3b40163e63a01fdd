package integration

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// nameClaims installs the component claim-policy for the time of a test.
func (w *world) nameClaims() {
	w.Helper()
	remove, err := suite.NameClaims(w.ctx, w.provisioner, w.name+"-gold")
	if meta.IsNoMatchError(err) {
		w.Skip("this Kubernetes has no MutatingAdmissionPolicy in v1")
	}
	w.must(err)
	w.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := remove(ctx); err != nil {
			w.Error(err)
		}
	})
}

// nameAtBirth returns which provisioner's name a claim would have once created.
func (w *world) nameAtBirth(class string, change func(*corev1.PersistentVolumeClaim)) string {
	w.Helper()
	claim := harness.Claim(w.name+"-a", "tried", class, "1Gi", change)
	tried, err := suite.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Create(w.ctx, claim, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	w.must(err)
	return tried.Annotations[objects.AnnotationStorageProvisioner]
}

// byHand makes a PersistentVolume that is not the program's, for any claim or for one.
func (w *world) byHand(name, class string, meantFor *corev1.ObjectReference) {
	w.Helper()
	volumes := suite.Client.CoreV1().PersistentVolumes()
	_, err := volumes.Create(w.ctx, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName: class, ClaimRef: meantFor, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Capacity:               corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("5Gi")},
			PersistentVolumeSource: corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{Server: "nfs.example", Path: "/"}},
		},
	}, metav1.CreateOptions{})
	w.must(err)
	w.Cleanup(func() {
		if err := volumes.Delete(context.WithoutCancel(w.ctx), name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			w.Error(err)
		}
	})
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		pv, err := volumes.Get(w.ctx, name, metav1.GetOptions{})
		if err != nil || pv.Status.Phase == corev1.VolumeAvailable {
			return "", err
		}
		return "the volume is " + string(pv.Status.Phase), nil
	}))
}

// TestClaimPolicyNamesTheProvisioner: the component names it where Kubernetes would, and
// nowhere else; and the program leaves what Kubernetes binds itself to Kubernetes.
func TestClaimPolicyNamesTheProvisioner(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "born", cindersim.Options{})
	waits := storagev1.VolumeBindingWaitForFirstConsumer
	w.must(suite.CreateClass(w.ctx, "born-waits", w.provisioner, func(class *storagev1.StorageClass) { class.VolumeBindingMode = &waits }))
	w.must(suite.CreateClass(w.ctx, "born-foreign", "foreign.example", nil))
	w.nameClaims()
	for name, test := range map[string]struct {
		class  string
		change func(*corev1.PersistentVolumeClaim)
		want   string
	}{
		"plain":                        {"born-gold", nil, w.provisioner},
		"with annotations of its own":  {"born-gold", func(c *corev1.PersistentVolumeClaim) { c.Annotations = map[string]string{"note": "x"} }, w.provisioner},
		"of a foreign class":           {"born-foreign", nil, ""},
		"of a class that is not there": {"born-gone", nil, ""},
		"of no class":                  {"", nil, ""},
		"that waits for a pod":         {"born-waits", nil, ""},
		"that names its volume":        {"born-gold", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "by-hand" }, ""},
		"with a selector":              {"born-gold", func(c *corev1.PersistentVolumeClaim) { c.Spec.Selector = &metav1.LabelSelector{} }, ""},
		"with a name already": {"born-gold", func(c *corev1.PersistentVolumeClaim) {
			c.Annotations = map[string]string{objects.AnnotationStorageProvisioner: "foreign.example"}
		}, "foreign.example"},
	} {
		if got := w.nameAtBirth(test.class, test.change); got != test.want {
			t.Errorf("a claim %s gets the name %q, want %q", name, got, test.want)
		}
	}

	// A lie is corrected: by Kubernetes where it names another provisioner, by the
	// program where it names this one.
	replica := w.start()
	w.leader([]*harness.Replica{replica})
	lie := func(name string) func(*corev1.PersistentVolumeClaim) {
		return func(c *corev1.PersistentVolumeClaim) {
			c.Annotations = map[string]string{objects.AnnotationStorageProvisioner: name}
		}
	}
	w.file("a", "named-foreign", "gold", lie("foreign.example"))
	w.file("a", "foreign", "foreign", lie(w.provisioner))
	w.boundVolume("a", "named-foreign")

	// An administrator's volume goes to the claim that it satisfies.
	w.byHand("born-by-hand", "born-gold", nil)
	w.byHand("born-meant", "by-hand", &corev1.ObjectReference{Namespace: "born-a", Name: "meant"})
	w.file("a", "first", "gold", nil)
	w.file("a", "second", "gold", nil)
	w.file("a", "meant", "gold", nil)
	var claims []corev1.PersistentVolumeClaim
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		claims = nil
		for _, name := range []string{"first", "second", "meant"} {
			claim, err := suite.Client.CoreV1().PersistentVolumeClaims("born-a").Get(w.ctx, name, metav1.GetOptions{})
			if err != nil {
				return "", err
			}
			if claim.Status.Phase != corev1.ClaimBound {
				return name + " is " + string(claim.Status.Phase), nil
			}
			claims = append(claims, *claim)
		}
		return "", nil
	}))
	if one, two := claims[0].Spec.VolumeName == "born-by-hand", claims[1].Spec.VolumeName == "born-by-hand"; one == two || claims[2].Spec.VolumeName != "born-meant" {
		t.Errorf("the claims got %s, %s and %s", claims[0].Spec.VolumeName, claims[1].Spec.VolumeName, claims[2].Spec.VolumeName)
	}
	// If the program's cache did not show the volume yet, it made one too many.
	w.eachVolume("in-use", 2)
	foreign, err := suite.Client.CoreV1().PersistentVolumeClaims("born-a").Get(w.ctx, "foreign", metav1.GetOptions{})
	if err != nil || foreign.Spec.VolumeName != "" {
		t.Errorf("a claim of a foreign class got %s (%v)", foreign.Spec.VolumeName, err)
	}
}
