package contract

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
)

// lifecycleRescue: a volume for nodes whose claim is gone gets another claim's stamp, and
// is available in between. As long as a node has it, or Cinder lists an attachment, it is
// left alone.
func lifecycleRescue(t *testing.T, target Target, workflow cinder.Workflow) {
	if workflow == cinder.WorkflowReserve {
		t.Skip("mode csi needs the attachments API")
	}
	a := newActor(t, target, workflow)
	a.spec.Stamp.ClusterUID = "contract-uid"
	v := a.forNodes()
	_, err := a.publish(v, "n1", false)
	a.must(err)
	const filesystem = "6f3d7f7c-8b0f-4b43-8d4e-3f3b9d3f6a11"
	stamp := a.spec.Stamp
	stamp.Claim, stamp.ClaimUID, stamp.PV = "rescued", "other-"+stamp.ClaimUID, "imported-"+v.ID
	asked := 0
	spec := backends.Import{VolumeID: v.ID, Stamp: stamp, CSI: true, FilesystemUUIDs: []string{filesystem}, Granted: func(cinder.Volume) error { return nil }, Unclaimed: func(context.Context, cinder.Volume) error {
		asked++
		return nil
	}}
	refused := func(part string) {
		t.Helper()
		a.newTerm()
		if _, err := a.Import(a.ctx, spec); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("error %v, want one with %q", err, part)
		}
	}
	refused("n1")
	a.must(a.Unpublish(a.ctx, a.of(v), backends.UnpublishRequest{Node: "n1", Key: "key-of-n1"}))
	// This is what an interrupted call leaves.
	newAttachment(t, a.raw, v.ID, "3.44", object{"connector": connector("node1", nil)}).want(t, http.StatusOK)
	refused("so a node may have it")
	a.must(a.Unpublish(a.ctx, a.of(v), backends.UnpublishRequest{}))
	if asked != 0 {
		t.Errorf("asked %d times whether the claim needs it", asked)
	}
	for range 2 {
		a.newTerm()
		connected, err := a.Import(a.ctx, spec)
		a.must(err)
		now := connected.Volume
		if now.Status != cinder.StatusAvailable || !stamp.Owns(now) || !stamps.IsCSI(now) || !stamps.EverAttached(now) || stamps.IsCopy(now) ||
			strings.Join(stamps.FilesystemUUIDsOf(now), ",") != filesystem {
			t.Errorf("imported as %+v", now)
		}
	}
	if asked != 1 {
		t.Errorf("asked %d times whether the former claim needs it", asked)
	}
	a.spec.Stamp = stamp
	a.must(a.Complete(a.ctx, a.of(v), false))
	_, err = a.publish(v, "n2", false)
	a.must(err)
	a.wantNodes(v, "n2")
	a.must(a.Remove(a.ctx, a.of(v)))
	a.wantStatus(v.ID, "")
}
