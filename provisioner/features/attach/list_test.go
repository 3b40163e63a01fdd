package attach

import (
	"reflect"
	"slices"
	"testing"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/controller"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// onNodes returns a volume in mode csi with records for nodes, whose attachments are
// called a-NODE; complete are the nodes whose attachments Cinder shows.
func onNodes(id, cluster string, nodes, complete []string) cinder.Volume {
	v := cinder.Volume{ID: id, SizeGiB: 3, Metadata: stamps.Volume{Cluster: cluster, ClaimUID: "uid", PV: "pvc-uid"}.Metadata(nil)}
	v.Metadata[stamps.KeyMode] = stamps.ModeCSI
	for _, node := range nodes {
		v.Metadata[stamps.NodeRecordPrefix+wire.NodeKey(node)] = stamps.NodeRecord{AttachmentID: "a-" + node, Node: node}.String()
	}
	for _, node := range complete {
		v.Attachments = append(v.Attachments, cinder.Attachment{ID: "a-" + node})
	}
	return v
}

func (w *world) attach(t *testing.T, driver, node, id string) {
	t.Helper()
	must(t, w.attachments.Add(&storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: driver + node, Annotations: map[string]string{AnnotationNodeID: id}},
		Spec:       storagev1.VolumeAttachmentSpec{Attacher: driver, NodeName: node},
	}))
}

// TestListShowsWhoHasAVolume: it lists the nodes for which an attachment is both
// recorded and complete, by the IDs that external-attacher compares.
func TestListShowsWhoHasAVolume(t *testing.T) {
	w := newWorld(t, testPV())
	w.attach(t, wire.DriverName, "n1", "v1 n1 i=earlier")
	w.attach(t, wire.DriverName, "gone", "v1 gone i=iqn.gone")
	w.attach(t, "other.example.org", "n3", "x")
	native := onNodes("native", "cluster-1", nil, nil)
	delete(native.Metadata, stamps.KeyMode)
	w.volumes.all = []cinder.Volume{
		onNodes("both", "cluster-1", []string{"n2", "n1"}, []string{"n1", "n2"}),
		onNodes("removed", "cluster-1", []string{"n1"}, nil),
		onNodes("unrecorded", "cluster-1", nil, []string{"n1"}),
		onNodes("lost", "cluster-1", []string{"gone"}, []string{"gone"}),
		onNodes("unknown", "cluster-1", []string{"n3"}, []string{"n3"}),
		onNodes("theirs", "cluster-2", nil, nil),
		native,
	}
	listed, err := w.List(t.Context(), true)
	must(t, err)
	entry := func(id string, nodes ...string) controller.Listed {
		return controller.Listed{Volume: wire.Handle{Backend: "gold", ID: id}, Bytes: 3 << 30, NodeIDs: nodes}
	}
	want := []controller.Listed{entry("both", idOf(t, n1), idOf(t, n2)), entry("removed"), entry("unrecorded"), entry("lost", "v1 gone i=iqn.gone"), entry("unknown")}
	if !reflect.DeepEqual(listed, want) {
		t.Errorf("got  %+v\nwant %+v", listed, want)
	}
	if _, err = w.List(t.Context(), false); err != nil || !slices.Equal(w.volumes.calls, []string{"relist"}) {
		t.Errorf("calls %q (%v)", w.volumes.calls, err)
	}
	w.volumes.found = &w.volumes.all[0]
	one, err := w.Listed(t.Context(), wire.Handle{Backend: "gold", ID: "both"})
	if must(t, err); !reflect.DeepEqual(one, want[0]) {
		t.Errorf("got %+v", one)
	}
	w.volumes.found = &native
	_, err = w.Listed(t.Context(), wire.Handle{Backend: "gold", ID: "native"})
	wantFailure(t, err, "NotFound", "backend gold has no volume native of the driver")
}

// TestNoPartOfAListIsMissing: an incomplete list is an error, and never a final one.
func TestNoPartOfAListIsMissing(t *testing.T) {
	for name, test := range map[string]struct {
		prepare func(*world)
		want    string
	}{
		"a backend does not answer": {func(w *world) {
			w.volumes.err = &cinder.Error{Kind: cinder.KindNotFound, Backend: "gold", Operation: "list volumes", Message: "no such project", RequestID: "req-1"}
		}, "backend gold: list volumes: no such project"},
		"a backend that had volumes is gone": {func(w *world) {
			pv := testPV()
			pv.Name, pv.Spec.CSI.VolumeHandle = "pvc-2", "silver/v2"
			_ = w.PersistentVolumes.Add(pv)
		}, `backend "silver" is not in the policy`},
		"a backend that gets volumes": {func(w *world) { w.Engine.Backends = func() []string { return []string{"tin"} } }, `backend "tin" is not in the policy`},
		"a handle is not one": {func(w *world) {
			pv := testPV()
			pv.Name, pv.Spec.CSI.VolumeHandle = "pvc-2", "x"
			_ = w.PersistentVolumes.Add(pv)
		}, `PersistentVolume pvc-2: handle "x" is not <backend>/<ID at Cinder>`},
		"the nodes are not read":       {func(w *world) { w.CSINodes.Known = func() bool { return false } }, "the CSINodes and VolumeAttachments are not read yet"},
		"the attachments are not read": {func(w *world) { w.Attachments.Known = func() bool { return false } }, "the CSINodes and VolumeAttachments are not read yet"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, testPV())
			test.prepare(w)
			_, err := w.List(t.Context(), true)
			wantFailure(t, err, "Unavailable", "the list of volumes would not be complete: "+test.want)
		})
	}
}

// TestBackendsWithoutVolumesOfTheDriverAreNotListed: an object of another cluster does
// not count.
func TestBackendsWithoutVolumesOfTheDriverAreNotListed(t *testing.T) {
	theirs := testPV()
	theirs.Annotations[objects.AnnotationCluster] = "cluster-2"
	w := newWorld(t, theirs)
	w.Engine.Backends = func() []string { return nil }
	if listed, err := w.List(t.Context(), true); err != nil || len(listed) > 0 || len(w.volumes.calls) > 0 {
		t.Errorf("listed %v by %q (%v)", listed, w.volumes.calls, err)
	}
}

// TestAKeptVolumeIsNotListedUnderAnothersHandle: two claims have swapped, and the second one and
// its PersistentVolume are gone (Retain). Its kept volume has the ID that the first one's handle
// names.
func TestAKeptVolumeIsNotListedUnderAnothersHandle(t *testing.T) {
	pv := testPV()
	pv.Annotations[objects.AnnotationVolume] = otherID
	pv.Annotations[objects.AnnotationSwapped] = `{"handle": "gold/` + volumeID + `", "with": ["pvc-other"]}`
	w := newWorld(t, pv, testSecret())
	w.attach(t, wire.DriverName, "n1", "v1 n1 i=earlier")
	served := onNodes(otherID, "cluster-1", []string{"n1"}, []string{"n1"})
	served.Metadata[stamps.KeyPV] = pvName
	kept := onNodes(volumeID, "cluster-1", nil, nil)
	kept.Metadata[stamps.KeyPV] = "pvc-other"
	w.volumes.all = []cinder.Volume{served, kept}
	list, err := w.List(t.Context(), true)
	must(t, err)
	if len(list) != 1 {
		t.Errorf("external-attacher is told twice about one handle, and the second time that no node has it: %+v", list)
	}
}
