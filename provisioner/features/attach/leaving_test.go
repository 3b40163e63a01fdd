package attach

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/controller"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

// idOf returns the ID with which a node is registered.
func idOf(t *testing.T, node wire.Node) string {
	t.Helper()
	id, err := node.NodeID()
	must(t, err)
	return id
}

// TestANodeSpeaksForItselfAlone: the ID in a call comes from the node's own CSINode,
// which the node can write. Only what Kubernetes detaches is detached.
func TestANodeSpeaksForItselfAlone(t *testing.T) {
	const n1ID, n2ID = "v1 n1 i=iqn.2026-01.example:n1 w=5001 n=nqn.n1 m", "v1 n2 i=iqn.2026-01.example:n2 w=5002 n=nqn.n2"
	leaving := func(node string) *storagev1.VolumeAttachment {
		return testAttachment(pvName, node, func(a *storagev1.VolumeAttachment) {
			a.DeletionTimestamp, a.Finalizers = &metav1.Time{Time: metav1.Now().Time}, []string{"external-attacher/standalone-cinder-openstack-org"}
		})
	}
	staying := func(node string) *storagev1.VolumeAttachment { return testAttachment(pvName, node, nil) }
	foreign := leaving("n2")
	foreign.Spec.Attacher = "other.example.org"
	for name, test := range map[string]struct {
		cached, live []*storagev1.VolumeAttachment // same as cached if nil
		id           string
		from         []string
		kind         string
		message      string
	}{
		"itself":                                 {cached: []*storagev1.VolumeAttachment{leaving("n1"), staying("n2")}, id: n1ID, from: []string{"n1"}},
		"without a VolumeAttachment":             {id: n1ID, from: []string{"n1"}},
		"as another node":                        {cached: []*storagev1.VolumeAttachment{leaving("n1"), staying("n2")}, id: n2ID, from: []string{"n1"}},
		"as another node, which has nothing":     {cached: []*storagev1.VolumeAttachment{leaving("n1")}, id: n2ID, from: []string{"n1"}},
		"as another node, which is detached too": {cached: []*storagev1.VolumeAttachment{leaving("n1"), leaving("n2")}, id: n2ID, from: []string{"n1", "n2"}},
		"as nobody":                              {cached: []*storagev1.VolumeAttachment{leaving("n1"), staying("n2")}, id: "garbage", from: []string{"n1"}},
		"as nobody, without a VolumeAttachment":  {id: "garbage", kind: "Invalid", message: `node ID "garbage" is not one of this driver`},
		"for a node that keeps the volume": {cached: []*storagev1.VolumeAttachment{staying("n2")}, id: n2ID, kind: controller.Damaged,
			message: "VolumeAttachment csi-pvc-1-n2 still asks for the volume on node n2, so it is not detached there"},
		"before the cache shows it":                  {cached: []*storagev1.VolumeAttachment{staying("n1")}, live: []*storagev1.VolumeAttachment{leaving("n1")}, id: n1ID, from: []string{"n1"}},
		"as another node, before the cache shows it": {cached: []*storagev1.VolumeAttachment{staying("n1")}, live: []*storagev1.VolumeAttachment{leaving("n1")}, id: n2ID, from: []string{"n1"}},
		"as nobody, before the cache shows it":       {cached: []*storagev1.VolumeAttachment{staying("n1")}, live: []*storagev1.VolumeAttachment{leaving("n1")}, id: "garbage", from: []string{"n1"}},
		"after its object is gone":                   {cached: []*storagev1.VolumeAttachment{staying("n1")}, live: []*storagev1.VolumeAttachment{}, id: n1ID, from: []string{"n1"}},
		"another's, by an outdated cache":            {cached: []*storagev1.VolumeAttachment{leaving("n1"), leaving("n2")}, live: []*storagev1.VolumeAttachment{leaving("n1"), staying("n2")}, id: n1ID, from: []string{"n1"}},
		"another driver's attachment":                {cached: []*storagev1.VolumeAttachment{foreign, leaving("n1")}, id: n1ID, from: []string{"n1"}},
		"from all":                                   {id: "", from: []string{""}},
	} {
		t.Run(name, func(t *testing.T) {
			live := test.live
			if live == nil {
				live = test.cached
			}
			objects := []runtime.Object{testPV(), testSecret()}
			for _, a := range live {
				objects = append(objects, a)
			}
			w := newWorld(t, objects...)
			for _, a := range live {
				must(t, w.attachments.Delete(a))
			}
			for _, a := range test.cached {
				must(t, w.attachments.Add(a))
			}
			err := w.Unpublish(t.Context(), handle(), test.id)
			if test.kind == "" {
				must(t, err)
			} else {
				wantFailure(t, err, test.kind, test.message)
			}
			var from []string
			for _, call := range w.volumes.calls {
				if key, found := strings.CutPrefix(call, "unpublish "+volumeID+" from "); found {
					for _, node := range []string{"n1", "n2", ""} {
						if node == "" && key == "" || node != "" && key == wire.NodeKey(node) {
							from = append(from, node)
						}
					}
				}
			}
			if !slices.Equal(from, test.from) {
				t.Errorf("detached from %q, want %q", from, test.from)
			}
		})
	}
	if n1ID != idOf(t, n1) || n2ID != idOf(t, n2) {
		t.Errorf("the IDs are %q and %q", idOf(t, n1), idOf(t, n2))
	}
}

// TestOneNodeThatIsHeldHindersNoOther: one call may detach a volume from several nodes,
// and one of them may still write to it.
func TestOneNodeThatIsHeldHindersNoOther(t *testing.T) {
	ending := func(node string) *storagev1.VolumeAttachment {
		return testAttachment(pvName, node, func(a *storagev1.VolumeAttachment) {
			a.DeletionTimestamp, a.Finalizers = &metav1.Time{Time: metav1.Now().Time}, []string{"external-attacher/standalone-cinder-openstack-org"}
		})
	}
	w := newWorld(t, testPV(), testSecret(), ending("n1"), ending("n2"))
	w.volumes.held = wire.NodeKey("n1")
	err := w.Unpublish(t.Context(), handle(), idOf(t, n1))
	wantFailure(t, err, "Conflict", "backend gold: held")
	if want := "unpublish " + volumeID + " from " + wire.NodeKey("n2"); !slices.Contains(w.volumes.calls, want) {
		t.Errorf("no %q in %q", want, w.volumes.calls)
	}
}

// TestNothingIsDetachedBeforeAllAttachmentsAreKnown: the cache might lack the very one.
func TestNothingIsDetachedBeforeAllAttachmentsAreKnown(t *testing.T) {
	w := newWorld(t, testPV(), testSecret())
	w.Attachments.Known = func() bool { return false }
	err := w.Unpublish(t.Context(), handle(), idOf(t, n1))
	if err == nil || err.Error() != "the VolumeAttachments are not read yet, so it is not known from which node the volume is detached" || len(w.volumes.calls) > 0 {
		t.Errorf("error %v, calls %q", err, w.volumes.calls)
	}
}

// TestISCSINamesAreTheSameInAnyCase: RFC 7143 normalizes them to lower case before it
// compares them, and so do arrays.
func TestISCSINamesAreTheSameInAnyCase(t *testing.T) {
	w := newWorld(t, testPV(), testSecret())
	must(t, w.nodes.Update(csiNode(t, wire.Node{Name: "n2", InitiatorName: "IQN.2026-01.Example:N1", PortNames: []string{"500A"}})))
	_, err := w.publish(t)
	wantFailure(t, err, controller.DuplicateInitiator, "Nodes n1 and n2 identify themselves to the storage by the same iSCSI name, iqn.2026-01.example:n1, so neither gets a volume by iSCSI; give one of them a unique name, and restart its node plugin")
	if same := (wire.Node{PortNames: []string{"500a"}}).SharedNames(wire.Node{PortNames: []string{"500A"}})[fibreChannel]; same != "500a" {
		t.Errorf("port names: %q", same)
	}
	if same := (wire.Node{HostNQN: "nqn.a"}).SharedNames(wire.Node{HostNQN: "nqn.A"})[nvme]; same != "" {
		t.Errorf("NQNs are compared as they are, but: %q", same)
	}
}

// TestPortsAreNamedInOneFormAlone: Cinder's drivers accept other forms, too, in which
// another node's port would not be recognized.
func TestPortsAreNamedInOneFormAlone(t *testing.T) {
	for _, node := range []wire.Node{
		{Name: "n2", PortNames: []string{"0x5001"}},
		{Name: "n2", PortNames: []string{"5009", "50:01"}},
		{Name: "n2", PortNames: []string{"5009"}, NodeNames: []string{"0x01"}},
	} {
		w := newWorld(t, testPV(), testSecret())
		must(t, w.nodes.Add(csiNode(t, node)))
		_, err := w.Publish(t.Context(), controller.PublishRequest{Volume: handle(), Node: node})
		bad := append(slices.Clone(node.PortNames), node.NodeNames...)
		wantFailure(t, err, controller.NodeUnknown, fmt.Sprintf("node n2 is registered with %q, which is not the name of a Fibre Channel port; restart its node plugin", bad[len(bad)-1]))
		if len(w.volumes.calls) > 0 {
			t.Errorf("calls %q", w.volumes.calls)
		}
		_, err = w.publish(t)
		must(t, err)
	}
}

// TestNamesThatNoNodeHasAreRefused: what a node says goes to Cinder's drivers, which
// write it into commands and files, and some of which drop blanks or zeros. So a name
// could be another node's without looking like it.
func TestNamesThatNoNodeHasAreRefused(t *testing.T) {
	for name, node := range map[string]wire.Node{
		"an iSCSI name": {Name: "n2", InitiatorName: n1.InitiatorName + "\t"},
		"an NVMe name":  {Name: "n2", HostNQN: "nqn.x/../../" + n1.HostNQN},
	} {
		w := newWorld(t, testPV(), testSecret())
		must(t, w.nodes.Update(csiNode(t, node)))
		_, err := w.Publish(t.Context(), controller.PublishRequest{Volume: handle(), Node: node})
		bad := node.InitiatorName + node.HostNQN
		wantFailure(t, err, controller.NodeUnknown, fmt.Sprintf("node n2 is registered with %q, which is not %s; restart its node plugin", bad, name))
		if len(w.volumes.calls) > 0 {
			t.Errorf("calls %q", w.volumes.calls)
		}
		_, err = w.publish(t)
		must(t, err)
	}
	w := newWorld(t, testPV(), testSecret())
	must(t, w.nodes.Update(csiNode(t, wire.Node{Name: "n2", PortNames: []string{"05001"}})))
	_, err := w.publish(t)
	must(t, err)
	if got := <-w.events.Events; !strings.Contains(got, "by the same Fibre Channel name, 5001, so neither gets") || len(w.volumes.to.Connector.WWPNs) > 0 {
		t.Errorf("event %s; the array learns %q", got, w.volumes.to.Connector.WWPNs)
	}
}

// TestANodeGetsOnlyWhatAVolumeAttachmentAsksFor: n1 had registered under n2's ID for a
// moment, so csi-attacher asks for n2 although the VolumeAttachment is n1's. Nothing
// would ever detach n2.
func TestANodeGetsOnlyWhatAVolumeAttachmentAsksFor(t *testing.T) {
	const refusal = "VolumeAttachments ask for PersistentVolume pvc-1, but none for node n2, so the volume is not attached there; another node may have used its ID"
	ofN1 := testAttachment(pvName, "n1", func(a *storagev1.VolumeAttachment) { a.Status.Attached = false })
	named := testAttachment(pvName, "n2", func(a *storagev1.VolumeAttachment) {
		a.Name = fmt.Sprintf("csi-%x", sha256.Sum256([]byte(handle().String()+wire.DriverName+"n2")))
	})
	unreadable := errors.New("no answer")
	for name, test := range map[string]struct {
		cached []*storagev1.VolumeAttachment
		// late are VolumeAttachments that only the API server shows; failing is the verb
		// that it does not answer.
		late    []runtime.Object
		failing string
		refused string
		reads   int
	}{
		"none":                              {reads: 2},
		"another node's, not cached yet":    {late: []runtime.Object{ofN1}, refused: refusal, reads: 2},
		"its own":                           {cached: []*storagev1.VolumeAttachment{ofN1, testAttachment(pvName, "n2", nil)}},
		"another node's":                    {cached: []*storagev1.VolumeAttachment{ofN1}, refused: refusal, reads: 2},
		"its own, not cached yet":           {cached: []*storagev1.VolumeAttachment{ofN1}, late: []runtime.Object{named}, reads: 1},
		"its own, by another name":          {cached: []*storagev1.VolumeAttachment{ofN1}, late: []runtime.Object{testAttachment(pvName, "n2", nil)}, reads: 2},
		"another volume's, not cached yet":  {cached: []*storagev1.VolumeAttachment{ofN1}, late: []runtime.Object{testAttachment("other-1", "n2", nil)}, refused: refusal, reads: 2},
		"another node's, API server silent": {cached: []*storagev1.VolumeAttachment{ofN1}, failing: "list", refused: "cannot tell whether volume gold/" + volumeID + " is to be attached to node n2: cannot list VolumeAttachments: no answer", reads: 2},
		"API server silent":                 {cached: []*storagev1.VolumeAttachment{ofN1}, failing: "get", refused: "cannot tell whether volume gold/" + volumeID + " is to be attached to node n2: no answer", reads: 1},
	} {
		t.Run(name, func(t *testing.T) {
			objects := append([]runtime.Object{testPV(), testSecret()}, test.late...)
			for _, a := range test.cached {
				objects = append(objects, a)
			}
			w := newWorld(t, objects...)
			for _, a := range test.late {
				must(t, w.attachments.Delete(a))
			}
			if test.failing != "" {
				w.client.PrependReactor(test.failing, "volumeattachments", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, unreadable })
			}
			_, err := w.Publish(t.Context(), controller.PublishRequest{Volume: handle(), Node: n2})
			if test.refused == "" {
				must(t, err)
			} else if err == nil || err.Error() != test.refused {
				t.Errorf("got  %v\nwant %s", err, test.refused)
			}
			if reads := len(slices.DeleteFunc(w.client.Actions(), func(a clienttesting.Action) bool { return a.GetResource().Resource != "volumeattachments" })); reads != test.reads {
				t.Errorf("%d reads, want %d", reads, test.reads)
			}
			if attached := len(w.volumes.calls) > 0; attached != (test.refused == "") {
				t.Errorf("calls %q", w.volumes.calls)
			}
		})
	}
}
