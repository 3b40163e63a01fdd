package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// TestVolumesThatTheirBackendDoesNotShowAreKept: by mistake the policy names
// another endpoint for one backend, and clouds.yaml another project for the
// other. PersistentVolumes released meanwhile stay, with an event that explains
// why, and are deleted when both are corrected; a leader that knows only the
// mistake does no harm either.
//
//tier:outage
func TestVolumesThatTheirBackendDoesNotShowAreKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "elsewhere", cindersim.Options{})
	other, err := cindersim.New(cindersim.Options{})
	w.must(err)
	w.must(other.Start())
	t.Cleanup(other.Close)
	replica := w.start()
	w.claim("a", "data", "gold", "1Gi")
	w.claim("b", "data", "lab", "1Gi")
	w.boundIn("a", "data")
	w.boundIn("b", "data")
	w.eachVolume("in-use", 2)

	// Every PersistentVolume records where its volume is.
	volumes := map[string]corev1.PersistentVolume{} // by backend
	all, err := suite.PersistentVolumes(w.ctx, w.provisioner)
	w.must(err)
	for _, pv := range all {
		volumes[pv.Annotations["standalone-cinder.openstack.org/backend"]] = pv
	}
	gold, lab := volumes["gold"].Annotations, volumes["lab"].Annotations
	if lab["standalone-cinder.openstack.org/endpoint"] != cinder.NewPlace(w.sim.NoauthEndpoint(), "").Endpoint ||
		lab["standalone-cinder.openstack.org/project-id"] != cindersim.DefaultNoauthProject {
		t.Errorf("the volume of noauth is recorded at %v", lab)
	}
	if v := w.sim.VolumesNamed(volumes["gold"].Name)[0]; gold["standalone-cinder.openstack.org/endpoint"] == "" || gold["standalone-cinder.openstack.org/project-id"] != v.Project {
		t.Errorf("the volume of project %s is recorded at %v", v.Project, gold)
	}

	good, goodClouds := w.policy, w.clouds
	w.policy = w.change(w.sim.NoauthEndpoint(), other.NoauthEndpoint())
	w.clouds = strings.NewReplacer(`username: "team-a"`, `username: "team-b"`, `"team-a-pass"`, `"team-b-pass"`, `project_name: "team-a"`, `project_name: "team-b"`).Replace(w.clouds)

	// It is reported earlier if it can be known.
	dir := t.TempDir()
	for name, text := range map[string]string{"good.yaml": good, "bad.yaml": w.policy} {
		w.must(os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	code, output, err := suite.Run(w.ctx, "policy", "check", filepath.Join(dir, "bad.yaml"), "--against", filepath.Join(dir, "good.yaml"), "--kubeconfig", "KUBECONFIG", "--provisioner-name", w.provisioner)
	w.must(err)
	if code != 1 || !strings.Contains(output, "BackendElsewhere") || !strings.Contains(output, volumes["lab"].Name) {
		t.Errorf("policy check: exit code %d:\n%s", code, output)
	}

	w.must(replica.WriteClouds(w.clouds))
	w.must(replica.WritePolicy(w.policy))
	w.waitLeaseEvent("PolicyReloaded", "is now in force (was")
	for _, namespace := range []string{"a", "b"} {
		w.must(suite.DeleteClaims(w.ctx, "elsewhere-"+namespace))
	}
	kept := func() {
		t.Helper()
		for backend, pv := range volumes {
			if _, err := suite.WaitEvent(w.ctx, metav1.NamespaceDefault, pv.Name, "VolumeFailedDelete", "was recorded at"); err != nil {
				t.Errorf("the PersistentVolume of %s: %v", backend, err)
			}
			now, err := suite.Client.CoreV1().PersistentVolumes().Get(w.ctx, pv.Name, metav1.GetOptions{})
			w.must(err)
			secret, namespace := now.Annotations["standalone-cinder.openstack.org/secret"], now.Annotations["standalone-cinder.openstack.org/secret-namespace"]
			if _, err := suite.Client.CoreV1().Secrets(namespace).Get(w.ctx, secret, metav1.GetOptions{}); secret == "" || err != nil {
				t.Errorf("the Secret %q of backend %s: %v", secret, backend, err)
			}
		}
		w.eachVolume("in-use", 2)
	}
	kept()
	if code, answer := w.audit(); code != 1 || !slices.Equal(kindsOf(answer.Findings), []string{"VolumeElsewhere", "VolumeElsewhere"}) {
		t.Errorf("audit: exit code %d, findings %+v", code, answer.Findings)
	}

	// The next process has never seen the volumes.
	replica.Kill()
	for _, pv := range volumes {
		w.forgetEvents(pv.Name)
	}
	replica = w.start()
	kept()

	w.must(replica.WritePolicy(good))
	w.must(replica.WriteClouds(goodClouds))
	w.noResidue()
	for _, pv := range volumes {
		_, err := suite.Client.CoreV1().Secrets(pv.Annotations["standalone-cinder.openstack.org/secret-namespace"]).
			Get(w.ctx, pv.Annotations["standalone-cinder.openstack.org/secret"], metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			t.Errorf("the Secret of %s is left: %v", pv.Name, err)
		}
	}
}

// eachVolume waits until there are that many volumes, all in the status.
func (w *world) eachVolume(status string, count int) {
	w.Helper()
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		volumes := w.sim.Volumes()
		for _, v := range volumes {
			if v.Status != status {
				return v.Name + " is " + v.Status, nil
			}
		}
		if len(volumes) != count {
			return fmt.Sprintf("there are %d volumes", len(volumes)), nil
		}
		return "", nil
	}))
}

// forgetEvents deletes the events of a PersistentVolume.
func (w *world) forgetEvents(name string) {
	w.Helper()
	w.must(suite.Client.CoreV1().Events(metav1.NamespaceDefault).DeleteCollection(w.ctx, metav1.DeleteOptions{},
		metav1.ListOptions{FieldSelector: "involvedObject.name=" + name}))
}
