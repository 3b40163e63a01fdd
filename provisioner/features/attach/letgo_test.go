package attach

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/controller"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/staged"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodemark"
)

// joined is when the test's Nodes were made.
var joined = time.Date(2026, 11, 26, 8, 0, 0, 0, time.UTC)

// machine returns a Node that is not Ready, on the machine of that name.
func machine(name, boot string, changes ...func(*corev1.Node)) *corev1.Node {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(joined)},
		Status:     corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{BootID: boot, SystemUUID: "UUID-OF-" + name}},
	}
	for _, change := range changes {
		change(node)
	}
	return node
}

func outOfService(node *corev1.Node) {
	node.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}}
}

func ready(node *corev1.Node) {
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
}

// silent means that nothing is heard of the node.
func silent(node *corev1.Node) {
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}
}

// marked means that the program takes the node out of service, and takenByUs that it did.
func marked(node *corev1.Node) {
	nodemark.Set(node, nodemark.Mark{State: nodemark.Taking, Boot: node.Status.NodeInfo.BootID})
}

func takenByUs(node *corev1.Node) {
	nodemark.Set(node, nodemark.Mark{State: nodemark.Taken, Boot: node.Status.NodeInfo.BootID})
	node.Spec.Taints = []corev1.Taint{nodemark.Taint()}
}

// otherMachine replaces the machine under the Node's name.
func otherMachine(node *corev1.Node) { node.Status.NodeInfo.SystemUUID = "another" }

// anew makes the Node object anew.
func anew(node *corev1.Node) { node.CreationTimestamp = metav1.NewTime(joined.Add(2 * time.Hour)) }

// reportsStaged makes a node's plugin report what it has staged.
func (w *world) reportsStaged(t *testing.T, node, boot string, volumes ...wire.Handle) {
	t.Helper()
	report := staged.Report{Machine: staged.Machine{SystemUUID: "uuid-of-" + node, Boot: boot}, Written: joined.Add(time.Hour)}
	for _, volume := range volumes {
		report.Volumes = append(report.Volumes, volume.String())
	}
	slices.Sort(report.Volumes)
	lease := report.Lease(own, node)
	leases := w.client.CoordinationV1().Leases(own)
	if _, err := leases.Create(t.Context(), lease, metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
		_, err = leases.Update(t.Context(), lease, metav1.UpdateOptions{})
		must(t, err)
	} else {
		must(t, err)
	}
	must(t, w.reports.Add(lease))
}

// becomes changes a Node at the API server and in the cache.
func (w *world) becomes(t *testing.T, node *corev1.Node) {
	t.Helper()
	_, err := w.client.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{})
	must(t, err)
	must(t, w.machines.Update(node))
}

func (w *world) vanishes(t *testing.T, name string) {
	t.Helper()
	must(t, w.client.CoreV1().Nodes().Delete(t.Context(), name, metav1.DeleteOptions{}))
	must(t, w.machines.Delete(machine(name, "")))
}

// wants makes a VolumeAttachment of PersistentVolume pvName and a node, with the
// name that kube-controller-manager gives it.
func (w *world) wants(t *testing.T, pv string, volume wire.Handle, node string, attached bool) {
	t.Helper()
	a := testAttachment(pv, node, func(a *storagev1.VolumeAttachment) {
		a.Name, a.Status.Attached = attachmentName(volume, node), attached
	})
	_, err := w.client.StorageV1().VolumeAttachments().Create(t.Context(), a, metav1.CreateOptions{})
	must(t, err)
	must(t, w.attachments.Add(a))
}

// lost returns a world in which Kubernetes has taken the volume from n1, which still has
// it staged.
func lost(t *testing.T, objects ...runtime.Object) *world {
	t.Helper()
	w := newWorld(t, append([]runtime.Object{testPV(), testSecret(), machine("n1", "boot-1"), machine("n2", "boot-9", ready)}, objects...)...)
	w.reportsStaged(t, "n1", "boot-1", handle())
	w.reportsStaged(t, "n2", "boot-9")
	must(t, w.Unpublish(t.Context(), handle(), idOf(t, n1)))
	return w
}

func (w *world) detached() bool {
	return slices.Contains(w.volumes.calls, "unpublish "+volumeID+" from "+wire.NodeKey("n1"))
}

// TestAnOrderlyDetachmentIsDoneAtOnce: it costs one look at the report.
func TestAnOrderlyDetachmentIsDoneAtOnce(t *testing.T) {
	w := newWorld(t, testPV(), testSecret(), machine("n1", "boot-1", ready))
	w.reportsStaged(t, "n1", "boot-1", wire.Handle{Backend: "gold", ID: "x"})
	w.client.ClearActions()
	must(t, w.Unpublish(t.Context(), handle(), idOf(t, n1)))
	if !w.detached() {
		t.Error("it is not detached")
	}
	looks := 0
	for _, action := range w.client.Actions() {
		if action.GetVerb() == "get" && action.GetResource().Resource != "secrets" && action.GetResource().Resource != "volumeattachments" {
			looks++
		}
	}
	if looks != 1 {
		t.Errorf("%d looks", looks)
	}
}

// TestAVolumeThatIsTakenMeanwhileEndsAnAttachment: the new attachment may have its address.
func TestAVolumeThatIsTakenMeanwhileEndsAnAttachment(t *testing.T) {
	w := newWorld(t, testPV(), testSecret(), machine("n1", "boot-1", ready))
	w.reportsStaged(t, "n1", "boot-1")
	w.Volumes = func(string) (Volumes, error) {
		return takenMeanwhile{w.volumes, func() { w.unsettled.take("n1", wire.Handle{Backend: "gold", ID: "2"}) }}, nil
	}
	_, err := w.publish(t)
	wantFailure(t, err, string(cinder.KindConflict), "another volume has just been taken from node n1, which may still write to it")
}

// takenMeanwhile takes a volume from the node after it was admitted.
type takenMeanwhile struct {
	*volumes
	take func()
}

func (v takenMeanwhile) Publish(ctx context.Context, target backends.Target, to backends.PublishRequest) (backends.Published, error) {
	admit := to.Admit
	to.Admit = func(ctx context.Context) error {
		defer v.take()
		return admit(ctx)
	}
	return v.volumes.Publish(ctx, target, to)
}

// TestUnsettledVolumesAreCounted: by the backends that the policy knows.
func TestUnsettledVolumesAreCounted(t *testing.T) {
	w := lost(t)
	w.reportsStaged(t, "n1", "boot-1", handle(), wire.Handle{Backend: "gold", ID: "y"}, wire.Handle{Backend: "forged", ID: "x"})
	if found := w.rounds.count(w.rounds.unattached()); found["gold"] != (counts{unclean: 2, quarantined: 1}) || len(found) != 1 {
		t.Errorf("counts %+v", found)
	}
}

// wantedMeanwhile publishes the volume to the node again while an owed detachment waits
// for the volume's turn.
type wantedMeanwhile struct {
	*volumes
	wants func()
}

func (v wantedMeanwhile) Unpublish(ctx context.Context, target backends.Target, from backends.UnpublishRequest) error {
	v.wants()
	if target.Permit != nil {
		if err := target.Permit(ctx, cinder.Volume{}); err != nil {
			return err
		}
	}
	return v.volumes.Unpublish(ctx, target, from)
}

// TestAVolumeThatIsWantedAgainIsNotDetached: the next pod is on the same node before an
// owed detachment is done.
func TestAVolumeThatIsWantedAgainIsNotDetached(t *testing.T) {
	w := lost(t)
	w.reportsStaged(t, "n1", "boot-1")
	published := false
	w.Volumes = func(string) (Volumes, error) {
		return wantedMeanwhile{w.volumes, func() {
			w.wants(t, pvName, handle(), "n1", true)
			before := w.Volumes
			w.Volumes = func(string) (Volumes, error) { return w.volumes, nil }
			defer func() { w.Volumes = before }()
			w.volumes.has = true
			_, err := w.publish(t)
			published = err == nil
		}}, nil
	}
	w.rounds.tidy(t.Context())
	if published && (w.detached() || len(w.secret(t)) == 0) {
		t.Errorf("what the node has just got is taken from it: calls %q, Secret %v", w.volumes.calls, w.secret(t))
	}
}

// TestManyForgedReportsCostFewRequests: whatever a node reports.
func TestManyForgedReportsCostFewRequests(t *testing.T) {
	w := newWorld(t, testPV(), testSecret(), machine("n1", "boot-1", ready))
	var forged []wire.Handle
	for i := range 1000 {
		forged = append(forged, wire.Handle{Backend: "gold", ID: fmt.Sprintf("forged-%d", i)})
	}
	w.reportsStaged(t, "n1", "boot-1", forged...)
	w.rounds.tidy(t.Context())
	w.reportsStaged(t, "n1", "boot-1")
	w.client.ClearActions()
	w.volumes.calls = nil
	w.rounds.tidy(t.Context())
	if n := len(w.client.Actions()) + len(w.volumes.calls); n > 100 {
		t.Errorf("%d requests", n)
	}
}

// TestANodeThatPausedStagesNothingThatIsDetached: its kubelet saw the VolumeAttachment,
// and the node goes on when another one has the volume. The ended attachment is in the
// Lease before anything is detached, and only in the version that did not name the volume.
func TestANodeThatPausedStagesNothingThatIsDetached(t *testing.T) {
	inUse := func(node *corev1.Node) {
		node.Status.VolumesInUse = []corev1.UniqueVolumeName{corev1.UniqueVolumeName("kubernetes.io/csi/" + wire.DriverName + "^" + handle().String())}
	}
	for name, c := range map[string]struct {
		node     *corev1.Node
		recorded string // attachment
		ended    []string
		// shown are the completed attachments.
		shown []cinder.Attachment
	}{
		"it is not Ready":                        {machine("n1", "boot-1"), "attachment-1", []string{"attachment-1"}, nil},
		"its kubelet is about to use the volume": {machine("n1", "boot-1", ready, inUse), "attachment-1", []string{"attachment-1"}, nil},
		"it is Ready, and done with the volume":  {machine("n1", "boot-1", ready), "attachment-1", nil, nil},
		"it never got the attachment":            {machine("n1", "boot-1"), "", nil, nil},
		"it has booted meanwhile":                {machine("n1", "boot-2"), "attachment-1", []string{"attachment-1"}, nil},
		"the record of its attachment is lost": {machine("n1", "boot-1"), "", []string{"attachment-2"}, []cinder.Attachment{
			{ID: "attachment-2", Host: stamps.NodeHost("n1", "cluster-1")}, {ID: "attachment-3", Host: "rescue"}}},
		"its record is lost, and a member is told no host": {machine("n1", "boot-1"), "", []string{"attachment-2"}, []cinder.Attachment{{ID: "attachment-2"}}},
	} {
		for _, by := range []string{"its own detachment", "another node's attachment"} {
			t.Run(name+", by "+by, func(t *testing.T) {
				w := newWorld(t, testPV(), testSecret(), c.node, machine("n2", "boot-9", ready))
				w.reportsStaged(t, "n1", "boot-1")
				w.reportsStaged(t, "n2", "boot-9")
				w.volumes.found = &cinder.Volume{ID: volumeID, Metadata: map[string]string{}, Attachments: c.shown}
				if c.recorded != "" {
					w.volumes.found.Metadata[stamps.NodeRecordPrefix+wire.NodeKey("n1")] = stamps.NodeRecord{AttachmentID: c.recorded, Node: "n1"}.String()
				}
				detach := func() error {
					if by == "its own detachment" {
						return w.Unpublish(t.Context(), handle(), idOf(t, n1))
					}
					w.volumes.others = []string{"n1"}
					_, err := w.Publish(t.Context(), controller.PublishRequest{Volume: handle(), Node: n2})
					return err
				}
				if by != "its own detachment" {
					w.wants(t, pvName, handle(), "n2", true)
				}
				refuse := true
				w.client.PrependReactor("update", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
					return refuse, nil, errors.New("another version")
				})
				if err := detach(); (err != nil) != (c.ended != nil) {
					t.Errorf("while the Lease changes: %v", err)
				}
				if c.ended != nil && w.detached() {
					t.Error("it is detached although the node may not know")
				}
				refuse = false
				must(t, detach())
				lease, err := w.client.CoordinationV1().Leases(own).Get(t.Context(), staged.LeaseName("n1"), metav1.GetOptions{})
				must(t, err)
				if got := staged.Of(lease).Ended; !slices.Equal(got, c.ended) {
					t.Errorf("ended are %q, want %q", got, c.ended)
				}
			})
		}
	}
}
