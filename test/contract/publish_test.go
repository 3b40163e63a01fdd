package contract

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
)

// forNodes makes a volume that each node gets for itself.
func (a *actor) forNodes() cinder.Volume {
	a.t.Helper()
	v := a.make()
	a.raw.call(a.t, http.MethodPost, "/volumes/"+v.ID+"/metadata", object{"metadata": object{stamps.KeyMode: stamps.ModeCSI}}).want(a.t, http.StatusOK)
	return v
}

// publish attaches a volume to a node.
func (a *actor) publish(v cinder.Volume, node string, shared bool) (backends.Published, error) {
	a.t.Helper()
	handed := 0
	published, err := a.Publish(a.ctx, a.of(v), backends.PublishRequest{
		Node: node, Key: "key-of-" + node, Shared: shared,
		Connector: cinder.Connector{Host: stamps.NodeHost(node, "contract"), Initiator: "iqn.2026-01.example:" + node},
		Admit:     func(context.Context) error { return nil },
		Release:   func(context.Context, string, string) (bool, error) { return false, nil },
		HandOut:   func(context.Context, backends.Published) error { handed++; return nil },
	})
	if err == nil && (handed != 1 || len(published.Document) == 0) {
		a.t.Errorf("%d times handed out, a connection of %d bytes", handed, len(published.Document))
	}
	return published, err
}

// wantNodes checks who has a volume, by its records and by Cinder.
func (a *actor) wantNodes(v cinder.Volume, nodes ...string) {
	a.t.Helper()
	now, found, err := a.Find(a.ctx, v.ID)
	a.must(err)
	records := stamps.NodeRecordsOf(now)
	if !found || len(records) != len(nodes) || len(now.Attachments) != len(nodes) {
		a.t.Errorf("the volume is %s, with %d attachments and the records %v; want %q", now.Status, len(now.Attachments), records, nodes)
	}
	for _, node := range nodes {
		if records["key-of-"+node].Node != node {
			a.t.Errorf("the records are %v, want one of %s", records, node)
		}
	}
}

// lifecycleNodes: whichever way Cinder connects other volumes, one of mode csi goes to
// one node at a time, and is removed with what is attached.
func lifecycleNodes(t *testing.T, target Target, workflow cinder.Workflow) {
	a := newActor(t, target, workflow)
	v := a.forNodes()
	first, err := a.publish(v, "n1", false)
	a.must(err)
	a.wantStatus(v.ID, cinder.StatusInUse)
	a.newTerm()
	again, err := a.publish(v, "n1", false)
	a.must(err)
	if again.AttachmentID != first.AttachmentID {
		t.Errorf("attachment %s, and then %s", first.AttachmentID, again.AttachmentID)
	}
	a.wantNodes(v, "n1")
	if _, err := a.publish(v, "n2", true); !cinder.IsKind(err, backends.KindOnOtherNode) {
		t.Errorf("error %v", err)
	}
	a.must(a.Unpublish(a.ctx, a.of(v), backends.UnpublishRequest{Node: "n2", Key: "key-of-n2"}))
	a.wantNodes(v, "n1")
	a.must(a.Unpublish(a.ctx, a.of(v), backends.UnpublishRequest{Node: "n1", Key: "key-of-n1"}))
	a.wantStatus(v.ID, cinder.StatusAvailable)
	a.must(a.Unpublish(a.ctx, a.of(v), backends.UnpublishRequest{Node: "n1", Key: "key-of-n1"}))
	_, err = a.publish(v, "n2", false)
	a.must(err)
	a.wantNodes(v, "n2")
	// What an interrupted call left: an attachment without a record.
	a.must(a.Unpublish(a.ctx, a.of(v), backends.UnpublishRequest{}))
	newAttachment(t, a.raw, v.ID, "3.44", object{"connector": connector("node1", nil)}).want(t, http.StatusOK)
	_, err = a.publish(v, "n1", false)
	a.must(err)
	a.wantNodes(v, "n1")
	a.must(a.Remove(a.ctx, a.of(v)))
	a.wantStatus(v.ID, "")
	a.must(a.Unpublish(a.ctx, a.of(v), backends.UnpublishRequest{Node: "n1", Key: "key-of-n1"}))
}

// lifecycleSharedNodes: a volume of a type with multiattach is on two nodes at once.
func lifecycleSharedNodes(t *testing.T, target Target, workflow cinder.Workflow) {
	a := newActor(t, target, workflow)
	a.spec.Type = needType(t, target.Types.Shared, "CONTRACT_TYPE_SHARED")
	v := a.forNodes()
	first, err := a.publish(v, "n1", true)
	a.must(err)
	// What is left by a node that cannot take the volume does not disturb
	// another node.
	refusal := errors.New("no")
	_, err = a.Publish(a.ctx, a.of(v), backends.PublishRequest{
		Node: "n3", Key: "key-of-n3", Shared: true, Connector: cinder.Connector{Host: stamps.NodeHost("n3", "contract"), Initiator: "iqn.2026-01.example:n3"},
		Admit:   func(context.Context) error { return nil },
		Release: func(context.Context, string, string) (bool, error) { return false, nil },
		HandOut: func(context.Context, backends.Published) error { return refusal },
	})
	if !errors.Is(err, refusal) {
		t.Errorf("error %v", err)
	}
	again, err := a.publish(v, "n1", true)
	a.must(err)
	if again.AttachmentID != first.AttachmentID {
		t.Errorf("attachment %s, and then %s", first.AttachmentID, again.AttachmentID)
	}
	_, err = a.publish(v, "n2", true)
	a.must(err)
	a.wantNodes(v, "n1", "n2")
	a.must(a.Unpublish(a.ctx, a.of(v), backends.UnpublishRequest{Node: "n1", Key: "key-of-n1"}))
	a.wantNodes(v, "n2")
	a.must(a.Remove(a.ctx, a.of(v)))
	a.wantStatus(v.ID, "")
}
