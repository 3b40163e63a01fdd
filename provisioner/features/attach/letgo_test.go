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
func (w *world) wants(t *testing.T, pv string, volume wire.Handle, node string) {
	t.Helper()
	a := testAttachment(pv, node, func(a *storagev1.VolumeAttachment) { a.Name = attachmentName(volume, node) })
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

const (
	until    = "the node plugin of n1 has unstaged it, n1 has rebooted, its Node object is deleted, or it is off and tainted node.kubernetes.io/out-of-service"
	stillHas = "volume gold/" + volumeID + " is still staged on node n1, from which Kubernetes has detached it, and that node may write to it; node n2 gets it once " + until
	noOther  = "node n1 has volume gold/" + volumeID + " staged, which Kubernetes has detached from it, so it gets no other volume until " + until
	noReport = "the node plugin of n1 has not reported which volumes it has staged, so the node gets none; the log of the plugin on n1 says why"
	takenNow = "another volume has just been taken from node n1, which may still write to it"
)

// ways are the things that may happen to a lost node.
var ways = map[string]struct {
	then func(*testing.T, *world)
	// lets means that the node has let go of the volume, and moves that another node may
	// get it.
	lets, moves bool
}{
	"nothing":           {then: func(*testing.T, *world) {}},
	"it is Ready again": {then: func(t *testing.T, w *world) { w.becomes(t, machine("n1", "boot-1", ready)) }},
	"it stages another one, too": {then: func(t *testing.T, w *world) {
		w.reportsStaged(t, "n1", "boot-1", handle(), wire.Handle{Backend: "gold", ID: "x"})
	}},
	"its plugin unstaged it":                              {then: func(t *testing.T, w *world) { w.reportsStaged(t, "n1", "boot-1") }, lets: true, moves: true},
	"it has rebooted":                                     {then: func(t *testing.T, w *world) { w.becomes(t, machine("n1", "boot-2")) }, lets: true, moves: true},
	"it does not say its boot":                            {then: func(t *testing.T, w *world) { w.becomes(t, machine("n1", "")) }},
	"its object is deleted":                               {then: func(t *testing.T, w *world) { w.vanishes(t, "n1") }, lets: true, moves: true},
	"its object is made anew":                             {then: func(t *testing.T, w *world) { w.becomes(t, machine("n1", "boot-1", anew)) }},
	"another machine has its name":                        {then: func(t *testing.T, w *world) { w.becomes(t, machine("n1", "boot-7", otherMachine)) }},
	"another machine has its name, and a Node of its own": {then: func(t *testing.T, w *world) { w.becomes(t, machine("n1", "boot-7", otherMachine, anew)) }, lets: true, moves: true},
	"it is tainted out-of-service":                        {then: func(t *testing.T, w *world) { w.becomes(t, machine("n1", "boot-1", outOfService)) }, moves: true},
	"it is tainted, and rebooted":                         {then: func(t *testing.T, w *world) { w.becomes(t, machine("n1", "boot-2", outOfService)) }, lets: true, moves: true},
}

// TestADetachmentIsOwedUntilTheNodeLetsGo: it is answered, but the attachment stays, so
// that nothing gets the volume or its address. The next leader knows that from the
// report.
func TestADetachmentIsOwedUntilTheNodeLetsGo(t *testing.T) {
	for name, way := range ways {
		for _, next := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				w := lost(t)
				if w.detached() {
					t.Fatal("it is detached from a node that may write to it")
				}
				if next {
					w.Engine = New(w.Options)
					w.tidy(t.Context())
				}
				way.then(t, w)
				w.tidy(t.Context())
				if w.detached() != way.moves {
					t.Errorf("it is detached: %t", w.detached())
				}
				calls := len(w.volumes.calls)
				w.tidy(t.Context())
				if len(w.volumes.calls) != calls {
					t.Errorf("another round calls Cinder: %q", w.volumes.calls[calls:])
				}
			})
		}
	}
}

// TestAnotherNodeGetsAVolumeThatTheFirstLetGoOf: nobody waits for the next round.
func TestAnotherNodeGetsAVolumeThatTheFirstLetGoOf(t *testing.T) {
	for name, way := range ways {
		for _, next := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				w := lost(t)
				if next {
					w.Engine = New(w.Options)
				}
				way.then(t, w)
				w.wants(t, pvName, handle(), "n2")
				w.volumes.others = []string{"n1"}
				_, err := w.Publish(t.Context(), controller.PublishRequest{Volume: handle(), Node: n2})
				if !way.moves {
					wantFailure(t, err, controller.Unclean, stillHas)
					return
				}
				must(t, err)
				w.volumes.calls = nil
				w.tidy(t.Context())
				if w.detached() {
					t.Error("it is detached again")
				}
			})
		}
	}
}

// TestANodeThatHasAVolumeRightlyKeepsIt: Kubernetes has not detached it.
func TestANodeThatHasAVolumeRightlyKeepsIt(t *testing.T) {
	for name, hide := range map[string]bool{"": false, "the cache does not show the VolumeAttachment yet": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, testPV(), testSecret(), machine("n1", "boot-1"), machine("n2", "boot-9"))
			w.reportsStaged(t, "n2", "boot-9")
			w.wants(t, pvName, handle(), "n1")
			w.wants(t, pvName, handle(), "n2")
			if hide {
				must(t, w.attachments.Delete(testAttachment(pvName, "n1", func(a *storagev1.VolumeAttachment) { a.Name = attachmentName(handle(), "n1") })))
			}
			w.volumes.others = []string{"n1"}
			_, err := w.Publish(t.Context(), controller.PublishRequest{Volume: handle(), Node: n2})
			wantFailure(t, err, string(backends.KindOnOtherNode), "backend gold: attached to node n1")
		})
	}
}

// TestALostNodeGetsNothingElse: its kernel may write to addresses that lead to other
// volumes by now, of any backend. But the volume that it has is its own again as soon as
// it asks for it.
func TestALostNodeGetsNothingElse(t *testing.T) {
	other := wire.Handle{Backend: "silver", ID: "2"}
	for name, way := range ways {
		for _, next := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				w := lost(t, otherPV(2, "silver"))
				w.Volumes = func(string) (Volumes, error) { return w.volumes, nil }
				w.volumes.document = plain + "}"
				way.then(t, w)
				if next {
					w.Engine = New(w.Options)
					w.Volumes = func(string) (Volumes, error) { return w.volumes, nil }
				}
				w.wants(t, "other-2", other, "n1")
				_, err := w.Publish(t.Context(), controller.PublishRequest{Volume: other, Node: n1})
				if way.lets {
					must(t, err)
				} else {
					wantFailure(t, err, controller.Unclean, noOther)
				}
			})
		}
	}
}

// TestANodeGetsNothingElseWhileWhatItHasStagedIsWantedAgain: the volume was taken from it,
// its next pod wants the volume there, and the next leader sees a VolumeAttachment. But what
// the node has staged is not of that one.
func TestANodeGetsNothingElseWhileWhatItHasStagedIsWantedAgain(t *testing.T) {
	other := wire.Handle{Backend: "gold", ID: "2"}
	for name, late := range map[string]bool{"the cache shows it": false, "the cache is late": true} {
		t.Run(name, func(t *testing.T) {
			w := lost(t, otherPV(2, "gold"))
			again := testAttachment(pvName, "n1", func(a *storagev1.VolumeAttachment) {
				a.Name, a.Status.Attached = attachmentName(handle(), "n1"), false
			})
			_, err := w.client.StorageV1().VolumeAttachments().Create(t.Context(), again, metav1.CreateOptions{})
			must(t, err)
			if !late {
				must(t, w.attachments.Add(again))
			}
			w.wants(t, "other-2", other, "n1")
			w.Engine = New(w.Options)
			_, err = w.Publish(t.Context(), controller.PublishRequest{Volume: other, Node: n1})
			wantFailure(t, err, controller.Unclean, noOther)
		})
	}
}

// TestALostNodeGetsItsVolumeAgain: its next pod is there, and waits for it. No other
// node has had it, and the node gets the same attachment.
func TestALostNodeGetsItsVolumeAgain(t *testing.T) {
	w := lost(t, otherPV(2, "gold"))
	w.wants(t, pvName, handle(), "n1")
	w.volumes.has = true
	_, err := w.publish(t)
	must(t, err)
	// The detachment is owed no longer, and the node is barred from nothing.
	w.reportsStaged(t, "n1", "boot-1")
	w.tidy(t.Context())
	if w.detached() {
		t.Error("the volume is taken from the node that wants it")
	}
	w.reportsStaged(t, "n1", "boot-1", handle())
	w.volumes.has = false
	other := wire.Handle{Backend: "gold", ID: "2"}
	w.wants(t, "other-2", other, "n1")
	w.volumes.document = plain + "}"
	_, err = w.Publish(t.Context(), controller.PublishRequest{Volume: other, Node: n1})
	must(t, err)
	// If the attachment is gone, what the node has staged is of an earlier one.
	_, err = w.publish(t)
	wantFailure(t, err, controller.Unclean, "node n1 still has volume gold/"+volumeID+" staged from an earlier attachment, which is gone, so it gets the volume again only when "+until)
}

// TestFencingByInitiator: the array keeps a lost node out, so the volume moves at once,
// but a Ready node has not lost it.
func TestFencingByInitiator(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*corev1.Node)
		moves  bool
	}{
		"not Ready":             {change: func(*corev1.Node) {}, moves: true},
		"Ready":                 {change: ready},
		"Ready, but tainted":    {change: func(node *corev1.Node) { ready(node); outOfService(node) }, moves: true},
		"Ready is not reported": {change: func(node *corev1.Node) { node.Status.Conditions = nil }, moves: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, testPV(), testSecret(), machine("n1", "boot-1", c.change))
			w.rules.FencedByInitiator = true
			w.reportsStaged(t, "n1", "boot-1", handle())
			must(t, w.Unpublish(t.Context(), handle(), idOf(t, n1)))
			if w.detached() != c.moves {
				t.Errorf("it is detached: %t", w.detached())
			}
			if c.moves {
				_, err := w.publish(t)
				wantFailure(t, err, controller.Unclean, noOther)
			}
		})
	}
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

// TestANodeThatDoesNotReportGetsNothing: nobody would know what it has staged. What it
// got from an earlier release stays attached.
func TestANodeThatDoesNotReportGetsNothing(t *testing.T) {
	w := newWorld(t, testPV(), testSecret(), machine("n1", "boot-1", ready))
	_, err := w.publish(t)
	wantFailure(t, err, controller.Unclean, noReport)
	must(t, w.Unpublish(t.Context(), handle(), idOf(t, n1)))
	if w.detached() {
		t.Error("it is detached")
	}
	w.reportsStaged(t, "n1", "boot-1")
	w.tidy(t.Context())
	if !w.detached() {
		t.Error("it is not detached")
	}
	_, err = w.publish(t)
	must(t, err)
}

// TestTheCachesMayBeLate: a report may be shown before the VolumeAttachment that explains
// it, and a volume may be taken from the node while another is being attached.
func TestTheCachesMayBeLate(t *testing.T) {
	w := newWorld(t, testPV(), testSecret(), otherPV(2, "gold"), machine("n1", "boot-1", ready))
	other := wire.Handle{Backend: "gold", ID: "2"}
	w.reportsStaged(t, "n1", "boot-1", other)
	w.wants(t, "other-2", other, "n1")
	w.wants(t, pvName, handle(), "n1")
	must(t, w.attachments.Delete(testAttachment("other-2", "n1", func(a *storagev1.VolumeAttachment) { a.Name = attachmentName(other, "n1") })))
	_, err := w.publish(t)
	must(t, err)

	w.volumes.document = plain + "}"
	w.Volumes = func(string) (Volumes, error) {
		return takenMeanwhile{w.volumes, func() { w.unsettled.take("n1", other) }}, nil
	}
	_, err = w.publish(t)
	wantFailure(t, err, string(cinder.KindConflict), takenNow)
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

// TestNothingIsDecidedUnseen: without an answer from the API server nothing happens, and
// no failure is final.
func TestNothingIsDecidedUnseen(t *testing.T) {
	for _, unseen := range []struct{ resource, name, want string }{
		{"leases", "staged-volumes.n1", `cannot tell whether node n1 has unstaged volume gold/` + volumeID + `: leases.coordination.k8s.io "staged-volumes.n1" is forbidden: no right`},
		{"nodes", "n1", `cannot tell whether node n1 has unstaged volume gold/` + volumeID + `: nodes "n1" is forbidden: no right`},
	} {
		w := lost(t)
		w.client.PrependReactor("get", unseen.resource, func(clienttesting.Action) (bool, runtime.Object, error) {
			resource := corev1.Resource(unseen.resource)
			if unseen.resource == "leases" {
				resource.Group = "coordination.k8s.io"
			}
			return true, nil, apierrors.NewForbidden(resource, unseen.name, errors.New("no right"))
		})
		w.wants(t, pvName, handle(), "n2")
		w.volumes.others = []string{"n1"}
		_, err := w.Publish(t.Context(), controller.PublishRequest{Volume: handle(), Node: n2})
		wantFailure(t, err, "Forbidden", unseen.want)
		wantFailure(t, w.Unpublish(t.Context(), handle(), idOf(t, n1)), "Forbidden", unseen.want)
		if w.detached() {
			t.Error("it is detached unseen")
		}
	}
	for name, hide := range map[string]func(*world){
		"nodes":       func(w *world) { w.NodesKnown = func() bool { return false } },
		"reports":     func(w *world) { w.ReportsKnown = func() bool { return false } },
		"attachments": func(w *world) { w.AttachmentsKnown = func() bool { return false } },
	} {
		w := newWorld(t, testPV(), testSecret())
		hide(w)
		if _, err := w.publish(t); err == nil {
			t.Errorf("%s are not known, and the volume is attached", name)
		}
	}
}

// TestRecordsThatKubernetesForgotEnd: the leader was down when the node let go, or
// somebody removed a finalizer.
func TestRecordsThatKubernetesForgotEnd(t *testing.T) {
	v := cinder.Volume{ID: volumeID, Metadata: stamps.Volume{Cluster: "cluster-1", ClaimUID: "1", PV: pvName, Tenant: "team-a"}.Metadata(nil)}
	v.Metadata[stamps.KeyMode] = stamps.ModeCSI
	v.Metadata[stamps.NodeRecordPrefix+wire.NodeKey("n1")] = stamps.NodeRecord{AttachmentID: "a", Node: "n1"}.String()
	for name, c := range map[string]struct {
		staged, wanted, ends bool
	}{
		"":                            {ends: true},
		"the node still has it":       {staged: true},
		"a VolumeAttachment wants it": {wanted: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, testPV(), testSecret(), machine("n1", "boot-1"))
			w.volumes.all = []cinder.Volume{v, {ID: "native"}}
			if w.reportsStaged(t, "n1", "boot-1"); c.staged {
				w.reportsStaged(t, "n1", "boot-1", handle())
			}
			if c.wanted {
				w.wants(t, pvName, handle(), "n1")
			}
			w.tidy(t.Context())
			if w.detached() != c.ends {
				t.Errorf("calls %q", w.volumes.calls)
			}
		})
	}
}

// TestReportsGoWithTheirNodes: another machine may then report under the name.
func TestReportsGoWithTheirNodes(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*testing.T, *world)
		goes   bool
	}{
		"present":               {change: func(*testing.T, *world) {}},
		"deleted":               {change: func(t *testing.T, w *world) { w.vanishes(t, "n1") }, goes: true},
		"made anew":             {change: func(t *testing.T, w *world) { w.becomes(t, machine("n1", "boot-2", anew)) }},
		"another machine":       {change: func(t *testing.T, w *world) { w.becomes(t, machine("n1", "boot-2", otherMachine)) }},
		"another machine, anew": {change: func(t *testing.T, w *world) { w.becomes(t, machine("n1", "boot-2", otherMachine, anew)) }, goes: true},
		"not in the cache yet":  {change: func(t *testing.T, w *world) { must(t, w.machines.Delete(machine("n1", ""))) }},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, testPV(), testSecret(), machine("n1", "boot-1"))
			w.reportsStaged(t, "n1", "boot-1", handle())
			c.change(t, w)
			w.tidy(t.Context())
			_, err := w.client.CoordinationV1().Leases(own).Get(t.Context(), staged.LeaseName("n1"), metav1.GetOptions{})
			if gone := apierrors.IsNotFound(err); gone != c.goes {
				t.Errorf("the report is gone: %t", gone)
			}
		})
	}
}

// TestAPauseFollowsAFailedDetachment: a silent backend is not asked every few seconds.
func TestAPauseFollowsAFailedDetachment(t *testing.T) {
	w := lost(t)
	w.reportsStaged(t, "n1", "boot-1")
	w.volumes.err = &cinder.Error{Backend: "gold", Kind: cinder.KindUnavailable, Message: "silent"}
	w.tidy(t.Context())
	w.volumes.calls = nil
	w.tidy(t.Context())
	if len(w.volumes.calls) > 0 {
		t.Errorf("calls %q", w.volumes.calls)
	}
}

// TestUnsettledVolumesAreCounted: by the backends that the policy knows.
func TestUnsettledVolumesAreCounted(t *testing.T) {
	w := lost(t)
	w.reportsStaged(t, "n1", "boot-1", handle(), wire.Handle{Backend: "gold", ID: "y"}, wire.Handle{Backend: "forged", ID: "x"})
	if found := w.count(w.unattached()); found["gold"] != (counts{unclean: 2, quarantined: 1}) || len(found) != 1 {
		t.Errorf("counts %+v", found)
	}
}

// TestANodeOfAnotherOrchestratorKeepsItsVolume: it has neither a Node object nor
// VolumeAttachments nor a report, and a new leader must not take its volume for one that
// Kubernetes forgot.
func TestANodeOfAnotherOrchestratorKeepsItsVolume(t *testing.T) {
	w := newWorld(t, testPV(), testSecret())
	v := cinder.Volume{ID: volumeID, Metadata: stamps.Volume{Cluster: "cluster-1", ClaimUID: "1", PV: pvName, Tenant: "team-a"}.Metadata(nil)}
	v.Metadata[stamps.KeyMode] = stamps.ModeCSI
	v.Metadata[stamps.NodeRecordPrefix+wire.NodeKey("n1")] = stamps.NodeRecord{AttachmentID: "a", Node: "n1"}.String()
	w.volumes.all = []cinder.Volume{v}
	_, err := w.publish(t) // It is admitted.
	must(t, err)
	w.Engine = New(w.Options)
	w.tidy(t.Context())
	if w.detached() {
		t.Error("the next leader takes it away")
	}
	w.volumes.others = []string{"n1"}
	_, err = w.Publish(t.Context(), controller.PublishRequest{Volume: handle(), Node: n2})
	wantFailure(t, err, string(backends.KindOnOtherNode), "backend gold: attached to node n1")
}

// TestRecordsAreReadWithTheNodes: a leader whose cache of Nodes is late forgets no debt.
func TestRecordsAreReadWithTheNodes(t *testing.T) {
	w := newWorld(t, testPV(), testSecret(), machine("n1", "boot-1"))
	w.reportsStaged(t, "n1", "boot-1")
	v := cinder.Volume{ID: volumeID, Metadata: stamps.Volume{Cluster: "cluster-1", ClaimUID: "1", PV: pvName, Tenant: "team-a"}.Metadata(nil)}
	v.Metadata[stamps.KeyMode] = stamps.ModeCSI
	// The record has only the beginning of the name, so the Nodes say whose it is.
	v.Metadata[stamps.NodeRecordPrefix+wire.NodeKey("n1")] = stamps.NodeRecord{AttachmentID: "a", Node: "n"}.String()
	w.volumes.all = []cinder.Volume{v}
	w.NodesKnown = func() bool { return false }
	node := machine("n1", "boot-1")
	must(t, w.machines.Delete(node))
	w.tidy(t.Context())
	w.NodesKnown = func() bool { return true }
	must(t, w.machines.Add(node))
	w.tidy(t.Context())
	if !w.detached() {
		t.Error("the debt is forgotten")
	}
}

// TestAFailedTakingIsDoneLater: the node is Ready again before the volume is taken. What
// it has is its own, and must be detached once it has let go.
func TestAFailedTakingIsDoneLater(t *testing.T) {
	w := newWorld(t, testPV(), testSecret(), otherPV(2, "gold"), machine("n1", "boot-1"))
	w.rules.FencedByInitiator = true
	w.reportsStaged(t, "n1", "boot-1", handle())
	w.volumes.err = &cinder.Error{Backend: "gold", Kind: cinder.KindUnavailable, Message: "silent"}
	if err := w.Unpublish(t.Context(), handle(), idOf(t, n1)); err == nil {
		t.Fatal("it is detached")
	}
	w.volumes.err, w.volumes.calls = nil, nil
	w.becomes(t, machine("n1", "boot-1", ready))
	must(t, w.Unpublish(t.Context(), handle(), idOf(t, n1)))
	if w.detached() {
		t.Fatal("it is taken from a Ready node")
	}
	w.reportsStaged(t, "n1", "boot-1")
	w.tidy(t.Context())
	if !w.detached() || !w.volumes.from.Attached {
		t.Errorf("the attachment is leaked: %+v", w.volumes.from)
	}
}

// TestANodeThatKeptItsVolumeIsNotBarred: taking it failed, and it has it again.
func TestANodeThatKeptItsVolumeIsNotBarred(t *testing.T) {
	w := newWorld(t, testPV(), testSecret(), otherPV(2, "gold"), machine("n1", "boot-1"))
	w.rules.FencedByInitiator = true
	w.reportsStaged(t, "n1", "boot-1", handle())
	w.volumes.err = &cinder.Error{Backend: "gold", Kind: cinder.KindUnavailable, Message: "silent"}
	if err := w.Unpublish(t.Context(), handle(), idOf(t, n1)); err == nil {
		t.Fatal("it is detached")
	}
	w.volumes.err = nil
	w.becomes(t, machine("n1", "boot-1", ready))
	w.wants(t, pvName, handle(), "n1")
	w.volumes.has = true
	_, err := w.publish(t)
	must(t, err)
	w.volumes.has, w.volumes.document = false, plain+"}"
	other := wire.Handle{Backend: "gold", ID: "2"}
	w.wants(t, "other-2", other, "n1")
	w.tidy(t.Context())
	_, err = w.Publish(t.Context(), controller.PublishRequest{Volume: other, Node: n1})
	must(t, err)
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
			w.wants(t, pvName, handle(), "n1")
			before := w.Volumes
			w.Volumes = func(string) (Volumes, error) { return w.volumes, nil }
			defer func() { w.Volumes = before }()
			w.volumes.has = true
			_, err := w.publish(t)
			published = err == nil
		}}, nil
	}
	w.tidy(t.Context())
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
	w.tidy(t.Context())
	w.reportsStaged(t, "n1", "boot-1")
	w.client.ClearActions()
	w.volumes.calls = nil
	w.tidy(t.Context())
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
					w.wants(t, pvName, handle(), "n2")
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

// TestAnAttachmentThatWasBeingEndedIsMadeAnew: the node may not stage the volume with it any
// more, but the detachment failed, and then the volume is wanted there again.
func TestAnAttachmentThatWasBeingEndedIsMadeAnew(t *testing.T) {
	w := newWorld(t, testPV(), testSecret(), machine("n1", "boot-1"))
	w.reportsStaged(t, "n1", "boot-1")
	w.volumes.found = &cinder.Volume{ID: volumeID, Metadata: map[string]string{
		stamps.NodeRecordPrefix + wire.NodeKey("n1"): stamps.NodeRecord{AttachmentID: "attachment-1", Node: "n1"}.String(),
	}}
	w.volumes.held = wire.NodeKey("n1")
	if err := w.Unpublish(t.Context(), handle(), idOf(t, n1)); err == nil {
		t.Fatal("it is detached")
	}
	w.volumes.held, w.volumes.has = "", true
	w.wants(t, pvName, handle(), "n1")
	w.volumes.calls = nil
	_, err := w.publish(t)
	wantFailure(t, err, string(cinder.KindConflict), "the attachment of volume gold/"+volumeID+" to node n1 was being ended when the node did not answer; it is made anew")
	if !w.detached() {
		t.Errorf("calls %q", w.volumes.calls)
	}
	w.volumes.has = false
	_, err = w.publish(t)
	must(t, err)
}
