package integration

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// contentOf makes a claim ask for the content of another.
func contentOf(source string) func(*corev1.PersistentVolumeClaim) {
	return func(claim *corev1.PersistentVolumeClaim) {
		claim.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: source}
	}
}

// TestClaimsAreCloned: a clone has the content of its source, whether it comes
// before or after it, and both live on without each other.
func TestClaimsAreCloned(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "clone", cindersim.Options{CreateDelay: 200 * time.Millisecond})
	w.smart()
	w.start()

	// The clone waits for its source, with an event and without requests.
	w.file("a", "copy", "gold", contentOf("data"))
	_, err := suite.WaitEvent(w.ctx, "clone-a", "copy", "SourceNotFound", "claim clone-a/data, whose content this claim asks for, does not exist")
	w.must(err)
	original, source := w.bound("a", "data", "gold")
	pv, copied := w.boundVolume("a", "copy")
	if theirs, its := original.Spec.MountOptions, pv.Spec.MountOptions; !slices.Equal(its, append(slices.Clone(theirs), "nouuid")) {
		t.Errorf("the original has the mount options %q, and the clone %q", theirs, its)
	}
	if copied.SourceID != source.ID || copied.ID == source.ID {
		t.Errorf("the clone is %+v of %s", copied, source.ID)
	}
	w.file("a", "larger", "gold", func(claim *corev1.PersistentVolumeClaim) {
		contentOf("data")(claim)
		claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("3Gi")}
	})
	if _, larger := w.boundVolume("a", "larger"); larger.SourceID != source.ID || larger.SizeGiB != 3 {
		t.Errorf("the larger clone is %+v", larger)
	}
	_, err = suite.WaitEvent(w.ctx, "clone-a", "larger", "ConnectionWarning", "the filesystem has the 1 GiB of the source")
	w.must(err)
	_, historic := w.bound("b", "data", "lab")
	w.file("b", "annotated", "smart", func(claim *corev1.PersistentVolumeClaim) {
		claim.Annotations = map[string]string{"k8s.io/CloneRequest": "data"}
	})
	if _, annotated := w.boundVolume("b", "annotated"); annotated.SourceID != historic.ID {
		t.Errorf("the clone by annotation is %+v", annotated)
	}
	w.unprotected("clone-a", "data")

	w.unclaim("a", "data")
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		if _, exists := w.sim.Volume(source.ID); exists {
			return "the source is there", nil
		}
		return "", nil
	}))
	if _, exists := w.sim.Volume(copied.ID); !exists {
		t.Error("the clone went with its source")
	}
	w.must(suite.DeleteClaims(w.ctx, "clone-a"))
	w.must(suite.DeleteClaims(w.ctx, "clone-b"))
	w.noResidue()
}

// TestClonesThatAreDenied: nothing is made for a clone that may not have its
// source's content, and the event says why.
func TestClonesThatAreDenied(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "noclone", cindersim.Options{})
	w.smart()
	w.start()
	pv, _ := w.bound("a", "data", "gold")
	w.bound("b", "data", "lab")
	before := w.creates()
	block := corev1.PersistentVolumeBlock
	for _, test := range []struct {
		namespace, class, name, reason, text string
		change                               func(*corev1.PersistentVolumeClaim)
	}{
		{"a", "gold", "missing", "SourceNotFound", "does not exist", contentOf("nothing")},
		{"a", "gold", "itself", "SourceNotFound", "is this claim itself", contentOf("itself")},
		{"b", "smart", "across", "UnsupportedDataSource", "content is copied only within one namespace", func(claim *corev1.PersistentVolumeClaim) {
			claim.Annotations = map[string]string{"k8s.io/CloneRequest": "noclone-a/data"}
		}},
		{"a", "gold", "block", "SourceNotAllowed", "has volume mode Filesystem, but the claim asks for Block", func(claim *corev1.PersistentVolumeClaim) {
			contentOf("data")(claim)
			claim.Spec.VolumeMode = &block
		}},
	} {
		w.file(test.namespace, test.name, test.class, test.change)
		_, err := suite.WaitEvent(w.ctx, "noclone-"+test.namespace, test.name, test.reason, test.text)
		w.must(err)
	}

	// A PersistentVolume that was made for another tenant.
	_, err := suite.Client.CoreV1().PersistentVolumes().Patch(w.ctx, pv.Name, "application/merge-patch+json",
		[]byte(`{"metadata": {"annotations": {"standalone-cinder.openstack.org/tenant": "tenant-b"}}}`), metav1.PatchOptions{})
	w.must(err)
	w.file("a", "strange", "gold", contentOf("data"))
	_, err = suite.WaitEvent(w.ctx, "noclone-a", "strange", "SourceNotAllowed", `claim noclone-a/data was made for tenant "tenant-b"`)
	w.must(err)
	if n := w.creates(); n != before {
		t.Errorf("%d volumes were made for clones that are denied", n-before)
	}
	// What was denied is served once the reason is gone.
	_, err = suite.Client.CoreV1().PersistentVolumes().Patch(w.ctx, pv.Name, "application/merge-patch+json",
		[]byte(`{"metadata": {"annotations": {"standalone-cinder.openstack.org/tenant": "tenant-a"}}}`), metav1.PatchOptions{})
	w.must(err)
	w.boundVolume("a", "strange")
}

// TestSourceOutlivesItsClone: a source that is deleted while it is copied stays
// until the clone is served, over a change of the leader too.
//
//tier:outage
func TestSourceOutlivesItsClone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "outlive", cindersim.Options{CreateDelay: 3 * time.Second})
	replica := w.start()
	_, source := w.bound("a", "data", "gold")
	w.file("a", "copy", "gold", contentOf("data"))
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		if w.creates() < 2 {
			return "the clone is not requested", nil
		}
		return "", nil
	}))
	w.unclaim("a", "data")
	replica.Kill()
	w.start()
	_, copied := w.boundVolume("a", "copy")
	if copied.SourceID != source.ID {
		t.Errorf("the clone is %+v of %s", copied, source.ID)
	}
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		_, err := suite.Client.CoreV1().PersistentVolumeClaims("outlive-a").Get(w.ctx, "data", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return "the source is still protected", err
	}))
	w.must(suite.DeleteClaims(w.ctx, "outlive-a"))
	w.noResidue()
}

// unprotected waits until a claim lacks the finalizer of copied claims.
func (w *world) unprotected(namespace, name string) {
	w.Helper()
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		claim, err := suite.Client.CoreV1().PersistentVolumeClaims(namespace).Get(w.ctx, name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		for _, finalizer := range claim.Finalizers {
			if finalizer == "standalone-cinder.openstack.org/content-is-copied" {
				return "claim " + name + " is still protected", nil
			}
		}
		return "", nil
	}))
}

// smart lets namespace NAME-b use a class that allows clones by annotation.
func (w *world) smart() {
	w.must(suite.CreateClass(w.ctx, w.name+"-smart", w.provisioner, func(class *storagev1.StorageClass) {
		class.Parameters = map[string]string{"smartclone": "true"}
	}))
	w.allow(w.name + "-smart")
}
