package integration

import (
	"fmt"
	"regexp"
	"strconv"
	"testing"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// calls counts the calls of a method that were answered with a code.
func (s sidecar) calls(w *world, method, code string) int {
	w.Helper()
	_, metrics, err := s.Get(w.ctx, "/metrics")
	w.must(err)
	found := regexp.MustCompile(`standalone_cinder_csi_requests_total\{code="` + code + `",method="` + method + `"\} (\d+)`).FindStringSubmatch(metrics)
	if found == nil {
		return 0
	}
	count, err := strconv.Atoi(found[1])
	w.must(err)
	return count
}

// reconciled waits until the external-attacher has compared its attachments with some
// more lists.
func (s sidecar) reconciled(w *world, code string) {
	w.Helper()
	before := s.calls(w, "ListVolumes", code)
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		if n := s.calls(w, "ListVolumes", code) - before; n < 3 {
			return fmt.Sprintf("the volumes were listed %d times (%s)", n, code), nil
		}
		return "", nil
	}))
}

// TestRemovedAttachmentsAreMadeAgain: the real external-attacher compares the attachments
// of Kubernetes with those at Cinder, makes one again that somebody removed at Cinder,
// and touches nothing else: while all is well, when a node is gone, and when a backend
// cannot be listed.
//
//tier:outage
func TestRemovedAttachmentsAreMadeAgain(t *testing.T) {
	w := newWorld(t, "csidrift", cindersim.Options{})
	c, volumes := w.csi(2, 3)
	s := w.startWithSidecar()
	objects := func() (versions [3]string) {
		t.Helper()
		for i, v := range volumes {
			va, err := suite.Client.StorageV1().VolumeAttachments().Get(w.ctx, c.attachment(v, i%2), metav1.GetOptions{})
			w.must(err)
			if va.Status.AttachError != nil || !va.Status.Attached {
				t.Errorf("%s has the status %+v", va.Name, va.Status)
			}
			versions[i] = va.ResourceVersion
		}
		return versions
	}
	for i, v := range volumes {
		w.must(c.attachTo(w.ctx, v, i%2))
	}
	for i, v := range volumes {
		_, err := c.attached(w.ctx, v, i%2)
		w.must(err)
	}
	s.reconciled(w, "OK")
	calm := func(code string) {
		t.Helper()
		before, published := objects(), s.calls(w, "ControllerPublishVolume", "OK")
		s.reconciled(w, code)
		if after := objects(); after != before {
			t.Errorf("the VolumeAttachments were %v and are %v", before, after)
		}
		if n := s.calls(w, "ControllerPublishVolume", "OK") - published; n != 0 {
			t.Errorf("%d volumes were published again", n)
		}
	}
	calm("OK")

	// What is removed is made again, and nothing else.
	before := objects()
	had, _ := w.sim.Volume(volumes[0].id)
	w.must(w.sim.RemoveAttachments(volumes[0].id))
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		if err := c.onlyOn(volumes[0], c.node(0)); err != nil {
			return err.Error(), nil
		}
		return "", nil
	}))
	s.reconciled(w, "OK")
	has, _ := w.sim.Volume(volumes[0].id)
	if has.Attachments[0].ID == had.Attachments[0].ID {
		t.Errorf("volume %s has attachment %s as before", has.ID, has.Attachments[0].ID)
	}
	connection, err := c.attached(w.ctx, volumes[0], 0)
	w.must(err)
	if connection.Attachment != has.Attachments[0].ID {
		t.Errorf("the VolumeAttachment is about attachment %s, and Cinder has %s", connection.Attachment, has.Attachments[0].ID)
	}
	if after := objects(); after[1] != before[1] || after[2] != before[2] {
		t.Errorf("the VolumeAttachments were %v and are %v", before, after)
	}

	// A node that is no longer registered has its volumes all the same.
	node, err := suite.Client.StorageV1().CSINodes().Get(w.ctx, c.node(0), metav1.GetOptions{})
	w.must(err)
	w.must(suite.Client.StorageV1().CSINodes().Delete(w.ctx, node.Name, metav1.DeleteOptions{}))
	s.reconciled(w, "OK")
	calm("OK")
	_, err = suite.Client.StorageV1().CSINodes().Create(w.ctx, &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: node.Name}, Spec: node.Spec}, metav1.CreateOptions{})
	w.must(err)

	// Nothing is known of a backend that cannot be listed.
	silent := w.sim.Inject(cindersim.Fault{Kind: cindersim.RespondBefore, Operation: "volume.list", Code: 500})
	calm("Unavailable")
	silent.Remove()
	for i, v := range volumes {
		w.must(c.detachFrom(w.ctx, v, i%2))
		w.must(c.detached(w.ctx, v, i%2))
	}
}
