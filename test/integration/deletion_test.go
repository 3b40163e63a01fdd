package integration

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// hindrance is something that keeps a volume from being deleted.
type hindrance struct {
	name string
	// class is lab (noauth, so administrator) or gold (a project's member).
	class string
	// before is done to the bound volume; it returns the function that fixes
	// it, nil if it fixes itself.
	before func(w *world, v cindersim.Volume) (mend func())
	// told is the sentence required in the PersistentVolume's event, if any.
	told string
	// kept means that the volume must exist, unchanged, until the fix.
	kept bool
	// alone means that nothing else is deleted meanwhile.
	alone bool
}

func answer(operation string, code, times int) func(*world, cindersim.Volume) func() {
	return func(w *world, v cindersim.Volume) func() {
		w.sim.Inject(cindersim.Fault{Kind: cindersim.RespondBefore, Operation: operation, Volume: v.ID, Code: code, Times: times})
		return nil
	}
}

var hindrances = []hindrance{
	{name: "another-stamp", class: "gold", told: `is stamped cluster "another"`, kept: true, before: func(w *world, v cindersim.Volume) func() {
		metadata := maps.Clone(v.Metadata)
		metadata["standalone-cinder.openstack.org/cluster"] = "another"
		w.must(w.sim.SetVolumeMetadata(v.ID, metadata))
		return func() { w.must(w.sim.SetVolumeMetadata(v.ID, v.Metadata)) }
	}},
	{name: "no-stamp", class: "lab", told: "is stamped with nothing", kept: true, before: func(w *world, v cindersim.Volume) func() {
		w.must(w.sim.SetVolumeMetadata(v.ID, nil))
		return func() { w.must(w.sim.SetVolumeMetadata(v.ID, v.Metadata)) }
	}},
	{name: "attached-elsewhere", class: "lab", told: "is attached elsewhere (another-host)", kept: true, before: func(w *world, v cindersim.Volume) func() {
		w.cinder(v.ID, `{"os-detach": {}}`)
		w.cinder(v.ID, `{"os-attach": {"host_name": "another-host", "mountpoint": "/dev/vdb"}}`)
		return func() { w.cinder(v.ID, `{"os-detach": {}}`) }
	}},
	{name: "attached-twice", class: "lab", before: func(w *world, v cindersim.Volume) func() {
		// The result of two leaders that attach at the same moment.
		w.must(w.sim.AddAttachment(v.ID, cindersim.Attachment{Host: "standalone-cinder", Mountpoint: "/dev/standalone-cinder"}))
		return nil
	}},
	{name: "snapshots", class: "lab", told: "cannot be deleted until its snapshots", kept: true, before: func(w *world, v cindersim.Volume) func() {
		id := w.snapshot(v.ID)
		return func() { w.deleteSnapshot(id) }
	}},
	{name: "error-deleting-admin", class: "lab", before: func(w *world, v cindersim.Volume) func() {
		w.sim.Inject(cindersim.Fault{Kind: cindersim.FailBackend, Operation: "volume.delete", Volume: v.ID, Times: 1})
		return nil
	}, told: "failed to delete volume"},
	{name: "error-deleting-member", class: "gold", told: "an OpenStack administrator must repair it and run: cinder force-delete", before: func(w *world, v cindersim.Volume) func() {
		w.must(w.sim.SetVolumeStatus(v.ID, "error_deleting"))
		return func() { w.must(w.sim.RemoveVolume(v.ID)) }
	}},
	{name: "in-error", class: "gold", before: func(w *world, v cindersim.Volume) func() {
		w.must(w.sim.SetVolumeStatus(v.ID, "error"))
		return nil
	}},
	{name: "migrating", class: "gold", told: "is maintenance; waiting for that operation to finish", kept: true, before: func(w *world, v cindersim.Volume) func() {
		w.must(w.sim.SetVolumeStatus(v.ID, "maintenance"))
		return func() { w.must(w.sim.SetVolumeStatus(v.ID, "in-use")) }
	}},
	{name: "gone-already", class: "gold", before: func(w *world, v cindersim.Volume) func() {
		w.must(w.sim.RemoveVolume(v.ID))
		return nil
	}},
	{name: "answer-409", class: "gold", before: answer("volume.delete", 409, 1)},
	{name: "answer-413", class: "gold", before: answer("volume.delete", 413, 1), told: "quota"},
	{name: "answer-429", class: "lab", before: answer("action.os-detach", 429, 1), told: "429"},
	{name: "answer-500", class: "lab", before: answer("action.os-terminate_connection", 500, 1), told: "500"},
	{name: "attachment-429", class: "gold", before: answer("attachment.delete", 429, 1), told: "429"},
	{name: "attachment-500", class: "gold", before: answer("attachment.delete", 500, 1), told: "500"},
	{name: "attachment-lost", class: "gold", before: func(w *world, v cindersim.Volume) func() {
		w.sim.Inject(cindersim.Fault{Kind: cindersim.DropAfter, Operation: "attachment.delete", Volume: v.ID, Times: 1})
		return nil
	}},
	{name: "answer-503", class: "gold", before: answer("volume.delete", 503, 1), told: "503"},
	{name: "delete-lost", class: "gold", before: func(w *world, v cindersim.Volume) func() {
		w.sim.Inject(cindersim.Fault{Kind: cindersim.DropAfter, Operation: "volume.delete", Volume: v.ID, Times: 1})
		return nil
	}},
	// While others are deleted, a listing may be read instead of the volume.
	{name: "answer-404-of-a-proxy", class: "gold", told: "404", alone: true, before: func(w *world, v cindersim.Volume) func() {
		w.sim.Inject(cindersim.Fault{Kind: cindersim.RespondBefore, Operation: "volume.get", Volume: v.ID, Code: 404, Body: "<html>not here</html>", Times: 2})
		return nil
	}},
}

// TestWhatHindersADeletionIsToldAndSurvived: the PersistentVolume keeps its
// finalizer until the volume is gone, its events name the obstacle, volumes
// that must not be touched are not, and the deletion continues once the
// obstacle is removed.
//
//tier:outage
func TestWhatHindersADeletionIsToldAndSurvived(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "hindered", cindersim.Options{})
	w.start()
	namespaces := map[string]string{"gold": "a", "lab": "b"}
	for _, h := range hindrances {
		w.claim(namespaces[h.class], h.name, h.class, "1Gi")
	}
	claims := map[string]corev1.PersistentVolumeClaim{}
	for class, namespace := range namespaces {
		count := 0
		for _, h := range hindrances {
			if h.class == class {
				count++
			}
		}
		bound, err := suite.WaitBound(w.ctx, "hindered-"+namespace, count)
		w.must(err)
		for _, claim := range bound {
			claims[claim.Name] = claim
		}
	}
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		for _, v := range w.sim.Volumes() {
			if v.Status != "in-use" {
				return v.Name + " is " + v.Status, nil
			}
		}
		return "", nil
	}))

	var group sync.WaitGroup
	for _, h := range hindrances {
		if h.alone {
			group.Wait()
		}
		claim := claims[h.name]
		volume := w.sim.VolumesNamed(claim.Spec.VolumeName)[0]
		mend := h.before(w, volume)
		hindered, _ := w.sim.Volume(volume.ID)
		w.must(suite.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Delete(w.ctx, claim.Name, metav1.DeleteOptions{}))
		group.Go(func() {
			if h.told != "" {
				if _, err := suite.WaitEvent(w.ctx, metav1.NamespaceDefault, claim.Spec.VolumeName, "VolumeFailedDelete", h.told); err != nil {
					t.Errorf("%s: %v", h.name, err)
				}
			}
			if mend != nil {
				pv, err := suite.Client.CoreV1().PersistentVolumes().Get(w.ctx, claim.Spec.VolumeName, metav1.GetOptions{})
				if err != nil || len(pv.Finalizers) == 0 {
					t.Errorf("%s: the PersistentVolume does not wait for its volume: %v", h.name, err)
				}
				now, exists := w.sim.Volume(volume.ID)
				if h.kept && (!exists || now.Status != hindered.Status && h.name != "snapshots" || fmt.Sprint(now.Metadata) != fmt.Sprint(hindered.Metadata)) {
					t.Errorf("%s: the volume was %s and is %s (exists: %t)", h.name, hindered.Status, now.Status, exists)
				}
				mend()
				w.nudge(claim.Spec.VolumeName)
			}
			if err := harness.Eventually(w.ctx, func() (string, error) {
				if _, exists := w.sim.Volume(volume.ID); exists {
					return h.name + ": the volume is still there", nil
				}
				_, err := suite.Client.CoreV1().PersistentVolumes().Get(w.ctx, claim.Spec.VolumeName, metav1.GetOptions{})
				if apierrors.IsNotFound(err) {
					return "", nil
				}
				return h.name + ": the PersistentVolume is still there", err
			}); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	w.noResidue()
}

// nudge changes a PersistentVolume, so that its deletion is retried at once
// rather than after the longest pause.
func (w *world) nudge(name string) {
	patch := []byte(`{"metadata": {"annotations": {"nudged": "yes"}}}`)
	_, err := suite.Client.CoreV1().PersistentVolumes().Patch(w.ctx, name, "application/merge-patch+json", patch, metav1.PatchOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		w.Error(err)
	}
}

// cinder makes an action as another user of the noauth Cinder.
func (w *world) cinder(volume, action string) {
	w.Helper()
	w.asAdministrator(http.MethodPost, "/volumes/"+volume+"/action", action)
}

func (w *world) asAdministrator(method, path, body string) string {
	request, err := http.NewRequestWithContext(w.ctx, method, w.sim.NoauthEndpoint()+"/"+cindersim.DefaultNoauthProject+path, strings.NewReader(body))
	w.must(err)
	request.Header.Set("X-Auth-Token", "admin:"+cindersim.DefaultNoauthProject)
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	w.must(err)
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	w.must(err)
	if response.StatusCode >= 300 {
		w.Errorf("%s %s: %s: %s", method, path, response.Status, content)
	}
	return string(content)
}

func (w *world) snapshot(volume string) (id string) {
	w.Helper()
	w.asAdministrator(http.MethodPost, "/snapshots", fmt.Sprintf(`{"snapshot": {"volume_id": %q, "force": true}}`, volume))
	for _, s := range w.sim.Snapshots() {
		if s.VolumeID == volume {
			return s.ID
		}
	}
	w.Fatal("there is no snapshot")
	return ""
}

func (w *world) deleteSnapshot(id string) {
	w.asAdministrator(http.MethodDelete, "/snapshots/"+id, "")
}

// TestRetainedVolumeOutlivesALeaderThatDiesBeforeItIsInUse: the leader dies while Cinder
// attaches the volume, and the claim and its PersistentVolume are deleted before another
// leads. Nothing but the finalizer shows the next leader that a pod may have written to it.
func TestRetainedVolumeOutlivesALeaderThatDiesBeforeItIsInUse(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "heldpv", cindersim.Options{})
	w.allow("heldpv-retain")
	retain := corev1.PersistentVolumeReclaimRetain
	w.must(suite.CreateClass(w.ctx, w.name+"-retain", w.provisioner, func(class *storagev1.StorageClass) { class.ReclaimPolicy = &retain }))
	leader := w.start()
	silent := w.sim.Inject(cindersim.Fault{Kind: cindersim.HangBefore, Operation: "action.os-attach"})
	w.claim("b", "data", "retain", "1Gi")
	_, err := suite.WaitBound(w.ctx, w.name+"-b", 1)
	w.must(err)
	claim, err := suite.Client.CoreV1().PersistentVolumeClaims(w.name+"-b").Get(w.ctx, "data", metav1.GetOptions{})
	w.must(err)
	pv := claim.Spec.VolumeName
	pvs := suite.Client.CoreV1().PersistentVolumes()
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		live, err := pvs.Get(w.ctx, pv, metav1.GetOptions{})
		if err == nil && slices.Contains(live.Finalizers, objects.LibraryFinalizer) {
			return "the library still holds " + pv, nil
		}
		return "", err
	}))
	leader.Kill()
	w.unclaim("b", "data")
	w.released(pv)
	w.must(pvs.Delete(w.ctx, pv, metav1.DeleteOptions{}))
	silent.Remove()
	second := w.start()
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		if _, err := pvs.Get(w.ctx, pv, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return pv + " still exists", err
		}
		return "", nil
	}))
	// What another leader would do now does not depend on what this one remembers.
	second.Kill()
	if found := w.sim.VolumesNamed(pv); len(found) != 1 || found[0].Metadata[stamps.KeyAttached] == "" {
		t.Errorf("the volume of %s is not marked as recorded: %+v", pv, found)
	}
}
