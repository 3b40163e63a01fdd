package integration

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
)

// TestAuditComparesAttachments: what somebody may write to without a VolumeAttachment,
// and VolumeAttachments with nothing behind them.
func TestAuditComparesAttachments(t *testing.T) {
	w := csiWorld(t, "csiaudit")
	c := csiCluster{name: w.name, cluster: "cluster-" + w.name, sim: w.sim, project: cindersim.DefaultNoauthProject, backend: "lab"}
	w.must(suite.AllowCSINodes(w.ctx, w.provisioner))
	w.must(c.register(w.ctx, 1))
	w.Cleanup(func() { w.must(c.remove(w.ctx, nil, 1)) })
	s := w.startWithSidecar()
	w.claim("b", "data", "lab", "1Gi")
	pv, volume := w.madeFor("data")
	v := csiVolume{id: volume.ID, pv: pv.Name}
	w.must(c.attachTo(w.ctx, v, 0))
	_, err := c.attached(w.ctx, v, 0)
	w.must(err)
	finds := func(want ...string) {
		t.Helper()
		_, answer := w.audit()
		var got []string
		for _, f := range answer.Findings {
			got = append(got, f.Kind+": "+f.Message)
		}
		if !slices.EqualFunc(got, want, strings.Contains) {
			t.Errorf("found %q, want %q", got, want)
		}
	}
	finds()

	// Somebody removes the finalizer, and the sidecar has no chance to act.
	s.Attacher.Stop()
	attachments := suite.Client.StorageV1().VolumeAttachments()
	_, err = attachments.Patch(w.ctx, c.attachment(v, 0), types.MergePatchType, []byte(`{"metadata": {"finalizers": null}}`), metav1.PatchOptions{})
	w.must(err)
	w.must(c.detachFrom(w.ctx, v, 0))
	now, _ := w.sim.Volume(v.id)
	leaked := "node " + c.node(0) + " (attachment " + now.Attachments[0].ID + ")"
	finds("LeakedAttachment: no VolumeAttachment asks for it on " + leaked + ", which may still write to it")

	// It is asked for again, which is all that was missing; and the attachment goes.
	w.must(c.attachTo(w.ctx, v, 0))
	_, err = attachments.Patch(w.ctx, c.attachment(v, 0), types.MergePatchType, []byte(`{"status": {"attached": true}}`), metav1.PatchOptions{}, "status")
	w.must(err)
	finds()
	request, err := http.NewRequestWithContext(w.ctx, http.MethodDelete, w.sim.NoauthEndpoint()+"/"+cindersim.DefaultNoauthProject+"/attachments/"+now.Attachments[0].ID, nil)
	w.must(err)
	request.Header.Set("X-Auth-Token", "admin:"+cindersim.DefaultNoauthProject)
	request.Header.Set("OpenStack-API-Version", "volume 3.44")
	response, err := http.DefaultClient.Do(request)
	w.must(err)
	w.must(response.Body.Close())
	finds("MissingAttachment: VolumeAttachment " + c.attachment(v, 0) + " says that it is attached to node " + c.node(0) + ", but it is not: a pod there cannot reach it")
	w.must(c.detachFrom(w.ctx, v, 0))
	finds("LeakedAttachment: it records attachment")

	// The sidecar's finalizer would keep the PersistentVolume.
	last, err := suite.Client.CoreV1().PersistentVolumes().Get(w.ctx, pv.Name, metav1.GetOptions{})
	w.must(err)
	last.Finalizers = slices.DeleteFunc(last.Finalizers, func(name string) bool { return strings.HasPrefix(name, "external-attacher/") })
	_, err = suite.Client.CoreV1().PersistentVolumes().Update(w.ctx, last, metav1.UpdateOptions{})
	w.must(err)
	w.must(suite.DeleteClaims(w.ctx, w.name+"-b"))
	w.must(suite.WaitForNoPersistentVolumes(w.ctx, w.provisioner))
}
