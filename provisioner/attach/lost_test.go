package attach

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
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
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/record"
)

// machine returns a Node that uses volumes.
func machine(name, boot string, uses ...wire.Handle) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{BootID: boot}}}
	for _, handle := range uses {
		node.Status.VolumesInUse = append(node.Status.VolumesInUse, corev1.UniqueVolumeName("kubernetes.io/csi/"+wire.DriverName+"^"+handle.String()))
	}
	return node
}

func outOfService(node *corev1.Node) *corev1.Node {
	node.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}}
	return node
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

// looks returns how many times a Node was read.
func (w *world) looks() int {
	n := 0
	for _, action := range w.client.Actions() {
		if action.Matches("get", "nodes") {
			n++
		}
	}
	return n
}

// lostWithVolume returns a world whose node n1 was lost with the volume, and whose
// array keeps the node out.
func lostWithVolume(t *testing.T, objects ...runtime.Object) *world {
	t.Helper()
	w := newWorld(t, append([]runtime.Object{testPV(), testSecret(), machine("n1", "boot-1", handle()), machine("n2", "boot-9")}, objects...)...)
	w.rules.FencedByInitiator = true
	must(t, w.Unpublish(t.Context(), handle(), idOf(t, n1)))
	if want := map[string]stamps.Unclean{wire.NodeKey("n1"): {Node: "n1", Boot: stamps.BootKey("boot-1")}}; !maps.Equal(w.volumes.notes, want) {
		t.Fatalf("notes %v", w.volumes.notes)
	}
	return w
}

const (
	quarantined = "node n1 was lost with volume gold/" + volumeID + " and may still write to it, so it gets no volume of backend gold until its kubelet has released that volume, it has rebooted, or its Node object is deleted"
	held        = "node n1 still uses volume gold/" + volumeID + " and may write to it (csi.fencing: export), so the volume stays attached until the kubelet of n1 releases it, n1 reboots, its Node object is deleted, or it is off and tainted node.kubernetes.io/out-of-service"
	notFenced   = "volume gold/" + volumeID + " was detached from node n1 while it was in use there, and that node may still write to it (csi.fencing: export); it can be attached to node n2 once the kubelet of n1 has released it, n1 has rebooted, its Node object is deleted, or it is off and tainted node.kubernetes.io/out-of-service"
)

// ways are the things that may happen to a lost node.
var ways = map[string]struct {
	then func(*testing.T, *world)
	// moves means that the volume goes to another node; ends, that the node is like any
	// other again.
	moves, ends bool
}{
	"nothing": {then: func(*testing.T, *world) {}},
	"it uses another one, too": {then: func(t *testing.T, w *world) {
		w.becomes(t, machine("n1", "boot-1", handle(), wire.Handle{Backend: "gold", ID: "x"}))
	}},
	"its kubelet released it":       {then: func(t *testing.T, w *world) { w.becomes(t, machine("n1", "boot-1")) }, moves: true, ends: true},
	"it has rebooted":               {then: func(t *testing.T, w *world) { w.becomes(t, machine("n1", "boot-2", handle())) }, moves: true, ends: true},
	"it does not say its boot":      {then: func(t *testing.T, w *world) { w.becomes(t, machine("n1", "", handle())) }},
	"its object is deleted":         {then: func(t *testing.T, w *world) { w.vanishes(t, "n1") }, moves: true, ends: true},
	"it is tainted out-of-service":  {then: func(t *testing.T, w *world) { w.becomes(t, outOfService(machine("n1", "boot-1", handle()))) }, moves: true},
	"it is tainted, and came again": {then: func(t *testing.T, w *world) { w.becomes(t, outOfService(machine("n1", "boot-2"))) }, moves: true, ends: true},
}

// TestAVolumeStaysWithALostNodeThatTheArrayLetsIn: not even its address is free for
// another volume. The next leader knows in which boot the node had it.
func TestAVolumeStaysWithALostNodeThatTheArrayLetsIn(t *testing.T) {
	for name, way := range ways {
		for _, next := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				w := newWorld(t, testPV(), testSecret(), machine("n1", "boot-1", handle()))
				for range 2 {
					wantFailure(t, w.Unpublish(t.Context(), handle(), idOf(t, n1)), controller.Unclean, held)
				}
				if want := map[string]stamps.Unclean{wire.NodeKey("n1"): {Node: "n1", Boot: stamps.BootKey("boot-1")}}; !maps.Equal(w.volumes.notes, want) {
					t.Fatalf("notes %v", w.volumes.notes)
				}
				if next {
					w.Engine = New(w.Options)
				}
				way.then(t, w)
				err := w.Unpublish(t.Context(), handle(), idOf(t, n1))
				if way.moves {
					must(t, err)
				} else {
					wantFailure(t, err, controller.Unclean, held)
				}
			})
		}
	}
}

// TestAVolumeOfALostNodeMovesWhenNothingCanWriteToIt: when the volume was detached, its
// array kept the node out, or the node had been declared off.
func TestAVolumeOfALostNodeMovesWhenNothingCanWriteToIt(t *testing.T) {
	for name, way := range ways {
		for _, byInitiator := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				w := lostWithVolume(t)
				w.rules.FencedByInitiator = byInitiator
				way.then(t, w)
				w.client.ClearActions()
				_, err := w.Publish(t.Context(), controller.PublishRequest{Volume: handle(), Node: n2})
				if !way.moves && !byInitiator {
					wantFailure(t, err, controller.Unclean, notFenced)
					return
				}
				must(t, err)
				if ended := slices.Contains(w.volumes.ended, wire.NodeKey("n1")); ended != (way.ends && !byInitiator) {
					t.Errorf("the note is ended: %t", ended)
				}
				if want := map[bool]int{false: 1, true: 0}[byInitiator]; w.looks() != want {
					t.Errorf("%d looks at nodes", w.looks())
				}
			})
		}
	}
}

// TestALostNodeGetsNothingMoreOfTheBackend: it does not even get the volume itself,
// whatever the fencing. The next leader knows that, too.
func TestALostNodeGetsNothingMoreOfTheBackend(t *testing.T) {
	for name, way := range ways {
		for _, next := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				w := lostWithVolume(t, otherPV(1, "gold"), otherPV(2, "silver"))
				if next {
					// The next leader has only what the volume carries.
					v := cinder.Volume{ID: volumeID, Metadata: stamps.Volume{Cluster: "cluster-1", ClaimUID: "1", PV: pvName, Tenant: "team-a"}.Metadata(nil)}
					v.Metadata[stamps.KeyMode] = stamps.ModeCSI
					v.Metadata[stamps.Prefix+"unclean."+wire.NodeKey("n1")] = w.volumes.notes[wire.NodeKey("n1")].String()
					w.volumes.all = []cinder.Volume{v, {ID: "native"}}
					w.Engine = New(w.Options)
				}
				w.rules.FencedByInitiator = true
				silver := &volumes{project: "p2", document: plain + "}"}
				w.Volumes = func(backend string) (Volumes, error) {
					if backend == "silver" {
						return silver, nil
					}
					return w.volumes, nil
				}
				way.then(t, w)
				w.volumes.calls, w.volumes.document = nil, plain+"}"
				other := controller.PublishRequest{Volume: wire.Handle{Backend: "gold", ID: "1"}, Node: n1}
				if name == "its object is deleted" {
					w.tidy(t.Context())
				}
				_, err := w.Publish(t.Context(), other)
				forgotten := slices.Contains(w.volumes.calls, "forget "+wire.NodeKey("n1")+" on "+volumeID)
				if way.ends != forgotten {
					t.Errorf("the note is ended: %t", forgotten)
				}
				if way.ends {
					must(t, err)
					// Another attempt costs nothing.
					w.client.ClearActions()
					_, err = w.Publish(t.Context(), other)
					must(t, err)
					if w.looks() > 0 {
						t.Errorf("%d looks at nodes", w.looks())
					}
					return
				}
				wantFailure(t, err, controller.Unclean, quarantined)
				_, err = w.publish(t)
				wantFailure(t, err, controller.Unclean, quarantined)
				// Volumes at another place are not affected.
				_, err = w.Publish(t.Context(), controller.PublishRequest{Volume: wire.Handle{Backend: "silver", ID: "2"}, Node: n1})
				must(t, err)
			})
		}
	}
}

// TestOrderlyDetachmentsLeaveNothing: they cost one look at the node.
func TestOrderlyDetachmentsLeaveNothing(t *testing.T) {
	for name, node := range map[string]*corev1.Node{
		"it has unstaged the volume": machine("n1", "boot-1", wire.Handle{Backend: "silver", ID: "x"}),
		"it is gone":                 machine("n7", "boot-1"),
		"it is out of service":       outOfService(machine("n1", "boot-1")),
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, testPV(), testSecret(), node)
			w.Volumes = func(backend string) (Volumes, error) {
				if backend == "silver" {
					return &volumes{project: "p2"}, nil
				}
				return w.volumes, nil
			}
			must(t, w.Unpublish(t.Context(), handle(), idOf(t, n1)))
			if len(w.volumes.notes) > 0 || w.looks() != 1 {
				t.Errorf("notes %v, %d looks", w.volumes.notes, w.looks())
			}
			_, err := w.publish(t)
			must(t, err)
			if w.looks() != 1 {
				t.Errorf("%d looks", w.looks())
			}
		})
	}
}

// TestAVolumeThatIsWantedAgainIsNotTakenForUnclean: while its detachment is repeated,
// the next pod comes to the same node, and the kubelet lists the volume again.
func TestAVolumeThatIsWantedAgainIsNotTakenForUnclean(t *testing.T) {
	detaching := testAttachment(pvName, "n1", func(a *storagev1.VolumeAttachment) {
		a.UID, a.DeletionTimestamp, a.Finalizers = "uid-1", &metav1.Time{}, []string{"f"}
	})
	w := newWorld(t, testPV(), testSecret(), machine("n1", "boot-1"))
	w.rules.FencedByInitiator = true
	must(t, w.attachments.Add(detaching))
	must(t, w.Unpublish(t.Context(), handle(), idOf(t, n1)))
	w.becomes(t, machine("n1", "boot-1", handle()))
	must(t, w.Unpublish(t.Context(), handle(), idOf(t, n1)))
	if len(w.volumes.notes) > 0 {
		t.Errorf("notes %v", w.volumes.notes)
	}
	w.tidy(t.Context())
	if !w.lost.isClean("uid-1") {
		t.Error("it is forgotten while it is there")
	}
	// The next detachment is judged on its own.
	must(t, w.attachments.Delete(detaching))
	w.tidy(t.Context())
	if w.lost.isClean("uid-1") {
		t.Error("it is remembered for good")
	}
	must(t, w.Unpublish(t.Context(), handle(), idOf(t, n1)))
	if len(w.volumes.notes) != 1 {
		t.Errorf("notes %v", w.volumes.notes)
	}
}

// TestTheNextLeaderTakesNoHealthyNodeForLost: the backend was silent when the volume
// was to be detached. Then the leader changed, and the kubelet lists the volume again
// for the next pod, which waits for this very detachment.
func TestTheNextLeaderTakesNoHealthyNodeForLost(t *testing.T) {
	detaching := testAttachment(pvName, "n1", func(a *storagev1.VolumeAttachment) {
		a.UID, a.DeletionTimestamp, a.Finalizers = "uid-1", &metav1.Time{Time: metav1.Now().Time}, []string{"f"}
	})
	first := newWorld(t, testPV(), testSecret(), machine("n1", "boot-1"), detaching)
	first.volumes.err = &cinder.Error{Backend: "gold", Kind: cinder.KindUnavailable, Message: "silent"}
	wantFailure(t, first.Unpublish(t.Context(), handle(), idOf(t, n1)), "Unavailable", "backend gold: silent")
	noted, err := first.client.StorageV1().VolumeAttachments().Get(t.Context(), detaching.Name, metav1.GetOptions{})
	must(t, err)

	next := newWorld(t, testPV(), testSecret(), machine("n1", "boot-1", handle()), noted)
	must(t, next.Unpublish(t.Context(), handle(), idOf(t, n1)))
	if len(next.volumes.notes) > 0 {
		t.Errorf("notes %v", next.volumes.notes)
	}
	// Without the first leader's annotation, the node counts as lost.
	unknown := newWorld(t, testPV(), testSecret(), machine("n1", "boot-1", handle()), detaching)
	wantFailure(t, unknown.Unpublish(t.Context(), handle(), idOf(t, n1)), controller.Unclean, held)
}

// TestANodeThatUsesADeletedVolumeGetsNothing: the note went with the volume, after an
// administrator had declared the node off although it is not.
func TestANodeThatUsesADeletedVolumeGetsNothing(t *testing.T) {
	gone := wire.Handle{Backend: "gold", ID: "gone"}
	w := newWorld(t, testPV(), testSecret(), machine("n1", "boot-1", gone, wire.Handle{Backend: "silver", ID: "gone"}, handle()))
	_, err := w.publish(t)
	wantFailure(t, err, controller.Unclean, "node n1 still uses volume gold/gone, which no PersistentVolume names any more, so it gets no volume of backend gold until its kubelet has released that volume or the node has rebooted")
	w.becomes(t, machine("n1", "boot-1", handle()))
	_, err = w.publish(t)
	must(t, err)
}

// TestNothingIsDecidedUnseen: without an answer from the API server or the backend,
// nothing happens, and no failure is final.
func TestNothingIsDecidedUnseen(t *testing.T) {
	unseen := apierrors.NewForbidden(corev1.Resource("nodes"), "n1", errors.New("no right"))
	w := lostWithVolume(t)
	w.client.PrependReactor("get", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, unseen })
	_, err := w.publish(t)
	wantFailure(t, err, "Forbidden", `cannot tell which volumes node n1 uses: nodes "n1" is forbidden: no right`)
	w.rules.FencedByInitiator = false
	_, err = w.Publish(t.Context(), controller.PublishRequest{Volume: handle(), Node: n2})
	wantFailure(t, err, "Forbidden", `cannot tell which volumes node n1 uses: nodes "n1" is forbidden: no right`)
	w.volumes.notes = nil
	wantFailure(t, w.Unpublish(t.Context(), handle(), idOf(t, n1)), "Forbidden", `cannot tell which volumes node n1 uses: nodes "n1" is forbidden: no right`)

	w = newWorld(t, testPV(), testSecret())
	w.volumes.unread = &cinder.Error{Backend: "gold", Kind: cinder.KindUnavailable, Message: "no answer"}
	_, err = w.publish(t)
	wantFailure(t, err, "Unavailable", "it is not known yet which nodes were lost with volumes: backend gold: no answer")
	w.tidy(t.Context())
	w.volumes.unread = nil
	_, err = w.publish(t)
	must(t, err)
}

// TestANodeThatIsLostMeanwhileGetsNothing: it is lost with one volume while another is
// being attached to it.
func TestANodeThatIsLostMeanwhileGetsNothing(t *testing.T) {
	w := newWorld(t, testPV(), testSecret())
	admit := w.admit(handle(), "n1", w.quarantine(t.Context(), w.volumes, "gold", "n1"))
	w.lost.add("n1", lostVolume{backend: "gold", target: backends.Target{VolumeID: "x"}})
	_, err := admit(t.Context(), nil)
	wantFailure(t, err, "Conflict", "node n1 has just been lost with another volume")
}

// TestNotesEndWithoutAnotherVolume: nodes let go, or disappear, without any further
// call.
func TestNotesEndWithoutAnotherVolume(t *testing.T) {
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			w := lostWithVolume(t)
			way.then(t, w)
			w.client.ClearActions()
			w.volumes.calls = nil
			w.tidy(t.Context())
			if ended := len(w.lost.nodes()) == 0; ended != way.ends || ended != slices.Contains(w.volumes.calls, "forget "+wire.NodeKey("n1")+" on "+volumeID) {
				t.Errorf("ended %t, calls %q", ended, w.volumes.calls)
			}
			if !way.ends && w.looks() > 0 {
				t.Errorf("%d looks", w.looks())
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	newWorld(t).Run(ctx)
}

// TestLongNamesOfNodesAreFound: the node record on the volume has no room for them.
func TestLongNamesOfNodesAreFound(t *testing.T) {
	w := newWorld(t, testPV(), testSecret(), machine("n1", "boot-1", handle()))
	w.rules.FencedByInitiator = true
	ask := w.stillUses(w.volumes, handle(), source{}, func(string) {})
	note, unclean, err := ask(t.Context(), "n", wire.NodeKey("n1"), stamps.Unclean{})
	if err != nil || !unclean || note.Node != "n1" {
		t.Errorf("note %v, unclean %t, error %v", note, unclean, err)
	}
	if _, unclean, err := ask(t.Context(), "n", wire.NodeKey("n7"), stamps.Unclean{}); err != nil || unclean {
		t.Errorf("unclean %t, error %v", unclean, err)
	}
}

// TestANodeThatLetGoGetsTheVolumeAgain: by then, its kubelet lists the volume again for
// the pod that waits for it.
func TestANodeThatLetGoGetsTheVolumeAgain(t *testing.T) {
	for _, byInitiator := range []bool{false, true} {
		w := newWorld(t, testPV(), testSecret(), machine("n1", "boot-1", handle()))
		wantFailure(t, w.Unpublish(t.Context(), handle(), idOf(t, n1)), controller.Unclean, held)
		w.rules.FencedByInitiator = byInitiator
		w.becomes(t, machine("n1", "boot-1"))
		must(t, w.Unpublish(t.Context(), handle(), idOf(t, n1)))
		w.becomes(t, machine("n1", "boot-1", handle()))
		_, err := w.publish(t)
		must(t, err)
	}
}

// TestAnOldNoteEndsWhenItsNodeGetsTheVolume: the note stayed because the node's record
// did, until somebody else ended that. Whether the node has rebooted since that boot
// would say nothing about the next use.
func TestAnOldNoteEndsWhenItsNodeGetsTheVolume(t *testing.T) {
	for _, byInitiator := range []bool{false, true} {
		w := newWorld(t, testPV(), testSecret(), machine("n1", "boot-1", handle()))
		w.rules.FencedByInitiator = byInitiator
		w.volumes.notes = map[string]stamps.Unclean{wire.NodeKey("n1"): {Node: "n1", Boot: stamps.BootKey("boot-1")}}
		_, err := w.publish(t)
		must(t, err)
		if want := []string{wire.NodeKey("n1")}; !slices.Equal(w.volumes.ended, want) {
			t.Errorf("ended %q", w.volumes.ended)
		}
	}
}

// TestANodeThatLetGoDuringAnOutageIsClean: its kubelet had released the volume when it
// was to be detached, and lists it again for the next pod before Cinder answers.
func TestANodeThatLetGoDuringAnOutageIsClean(t *testing.T) {
	w := newWorld(t, testPV(), testSecret(), machine("n1", "boot-1"))
	must(t, w.attachments.Add(testAttachment(pvName, "n1", func(a *storagev1.VolumeAttachment) {
		a.UID, a.DeletionTimestamp, a.Finalizers = "uid-1", &metav1.Time{}, []string{"f"}
	})))
	w.volumes.err = &cinder.Error{Backend: "gold", Kind: cinder.KindUnavailable, Message: "no answer"}
	wantFailure(t, w.Unpublish(t.Context(), handle(), idOf(t, n1)), "Unavailable", "backend gold: no answer")
	w.volumes.err = nil
	w.becomes(t, machine("n1", "boot-1", handle()))
	must(t, w.Unpublish(t.Context(), handle(), idOf(t, n1)))
	if len(w.volumes.notes) > 0 || w.looks() != 1 {
		t.Errorf("notes %v, %d looks", w.volumes.notes, w.looks())
	}
}

// TestANodeThatLetGoBetweenTwoCallsIsClean: csi-attacher repeats a refused call at
// growing intervals. In between, the kubelet releases the volume, and lists it again
// for the next pod, which waits for this very detachment. The next leader knows that,
// too.
func TestANodeThatLetGoBetweenTwoCallsIsClean(t *testing.T) {
	for _, next := range []bool{false, true} {
		detaching := testAttachment(pvName, "n1", func(a *storagev1.VolumeAttachment) {
			a.UID, a.DeletionTimestamp, a.Finalizers = "uid-1", &metav1.Time{Time: metav1.Now().Time}, []string{"f"}
		})
		w := newWorld(t, testPV(), testSecret(), machine("n1", "boot-1", handle()), detaching)
		wantFailure(t, w.Unpublish(t.Context(), handle(), idOf(t, n1)), controller.Unclean, held)
		w.becomes(t, machine("n1", "boot-1"))
		w.tidy(t.Context())
		w.becomes(t, machine("n1", "boot-1", handle()))
		if next {
			noted, err := w.client.StorageV1().VolumeAttachments().Get(t.Context(), detaching.Name, metav1.GetOptions{})
			must(t, err)
			must(t, w.attachments.Update(noted))
			w.Engine = New(w.Options)
		}
		must(t, w.Unpublish(t.Context(), handle(), idOf(t, n1)))
		if len(w.volumes.notes) > 0 {
			t.Errorf("notes %v", w.volumes.notes)
		}
	}
}

// TestANoteIsReadByTheNameOfItsBackendAlone: two backends of one project show each
// other's volumes, and nodes list a volume under the backend that its PersistentVolume
// names. Without a PersistentVolume, only the volume's ID identifies it.
func TestANoteIsReadByTheNameOfItsBackendAlone(t *testing.T) {
	for _, recorded := range []bool{true, false} {
		v := cinder.Volume{ID: volumeID, Metadata: stamps.Volume{Cluster: "cluster-1", ClaimUID: "1", PV: pvName, Tenant: "team-a"}.Metadata(nil)}
		v.Metadata[stamps.KeyMode] = stamps.ModeCSI
		note := stamps.Unclean{Node: "n1", Boot: stamps.BootKey("boot-1")}
		v.Metadata[stamps.Prefix+"unclean."+wire.NodeKey("n1")] = note.String()
		objects := []runtime.Object{testSecret(), machine("n1", "boot-1", handle()), otherPV(2, "silver")}
		if recorded {
			objects = append(objects, testPV())
		}
		w := newWorld(t, objects...)
		w.volumes.all, w.volumes.document = []cinder.Volume{v}, plain+"}"
		w.Volumes = func(string) (Volumes, error) { return w.volumes, nil }
		w.Backends = func() []string { return []string{"gold", "silver"} }
		w.tidy(t.Context())
		if len(w.volumes.calls) > 0 {
			t.Errorf("node n1 still uses the volume, but: %q", w.volumes.calls)
		}
		if !recorded {
			continue
		}
		_, err := w.publish(t)
		wantFailure(t, err, controller.Unclean, quarantined)
	}
}

// TestALostNodeGetsNothingByTheOtherNameOfAProject: its array gives free addresses to
// volumes of all backends that lead there.
func TestALostNodeGetsNothingByTheOtherNameOfAProject(t *testing.T) {
	const until = "so it gets no volume of backend silver until its kubelet has released that volume"
	other := controller.PublishRequest{Volume: wire.Handle{Backend: "silver", ID: "2"}, Node: n1}
	w := lostWithVolume(t, otherPV(2, "silver"))
	w.Volumes = func(string) (Volumes, error) { return w.volumes, nil }
	w.volumes.document = plain + "}"
	_, err := w.Publish(t.Context(), other)
	wantFailure(t, err, controller.Unclean, "node n1 was lost with volume gold/"+volumeID+" and may still write to it, "+until+", it has rebooted, or its Node object is deleted")

	// The next leader reads the note in either listing.
	v := cinder.Volume{ID: volumeID, Metadata: stamps.Volume{Cluster: "cluster-1", ClaimUID: "1", PV: pvName, Tenant: "team-a"}.Metadata(nil)}
	v.Metadata[stamps.KeyMode] = stamps.ModeCSI
	v.Metadata[stamps.Prefix+"unclean."+wire.NodeKey("n1")] = w.volumes.notes[wire.NodeKey("n1")].String()
	w.volumes.all = []cinder.Volume{v}
	w.Engine = New(w.Options)
	w.Volumes = func(string) (Volumes, error) { return w.volumes, nil }
	_, err = w.Publish(t.Context(), other)
	wantFailure(t, err, controller.Unclean, "node n1 was lost with volume gold/"+volumeID+" and may still write to it, "+until+", it has rebooted, or its Node object is deleted")

	// The same holds if the volume is deleted.
	w = newWorld(t, machine("n1", "boot-1", handle()), otherPV(2, "silver"))
	w.Volumes = func(string) (Volumes, error) { return w.volumes, nil }
	w.volumes.document = plain + "}"
	_, err = w.Publish(t.Context(), other)
	wantFailure(t, err, controller.Unclean, "node n1 still uses volume gold/"+volumeID+", which no PersistentVolume names any more, "+until+" or the node has rebooted")
	w.becomes(t, machine("n1", "boot-1"))
	_, err = w.Publish(t.Context(), other)
	must(t, err)
}

// TestNothingIsAttachedBeforeTheNodesAreRead: if a node uses a volume that is gone,
// only its status shows that.
func TestNothingIsAttachedBeforeTheNodesAreRead(t *testing.T) {
	w := newWorld(t, testPV(), testSecret())
	w.NodesKnown = func() bool { return false }
	_, err := w.publish(t)
	if err == nil || err.Error() != "the Nodes are not read yet, so it is not known whether node n1 still uses volumes that are gone" {
		t.Errorf("the error is %v", err)
	}
}

// inPlace is a backend that leads to a place of its own, and finds volumes there.
type inPlace struct {
	*volumes
	place cinder.Place
}

func (p inPlace) Place() cinder.Place { return p.place }

func (p inPlace) Find(_ context.Context, id string) (cinder.Volume, bool, error) {
	for _, v := range p.all {
		if v.ID == id {
			return v, true, p.err
		}
	}
	return cinder.Volume{}, false, p.err
}

// TestALostNodeGetsNothingOfTheProjectWhateverBecameOfItsBackend: what counts is that
// silver shows the volume that n1 was lost with, not what is known about gold.
func TestALostNodeGetsNothingOfTheProjectWhateverBecameOfItsBackend(t *testing.T) {
	here := cinder.Place{Endpoint: "http://cinder:8776/v3", Project: "p1"}
	alias := cinder.Place{Endpoint: "http://192.0.2.9:8776/v3", Project: "p1"}
	silent := errors.New("no answer")
	for name, test := range map[string]struct {
		backends []string
		// gold is where gold leads; zero before its first login.
		gold    cinder.Place
		missing bool
		silver  cinder.Place
		// hidden means that silver shows other volumes.
		hidden, free bool
	}{
		"nothing":                                {backends: []string{"gold", "silver"}, gold: here, silver: here},
		"it has no rule of mode csi":             {backends: []string{"silver"}, gold: here, silver: here},
		"it left the policy":                     {backends: []string{"silver"}, missing: true, silver: here},
		"it has not logged in":                   {backends: []string{"gold", "silver"}, silver: here},
		"it leads to another project":            {backends: []string{"gold", "silver"}, gold: cinder.Place{Endpoint: here.Endpoint, Project: "p2"}, silver: here},
		"it has another address":                 {backends: []string{"gold", "silver"}, gold: here, silver: alias},
		"another Cinder has an equal project ID": {backends: []string{"gold", "silver"}, gold: here, silver: alias, hidden: true, free: true},
	} {
		for _, next := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				w := lostWithVolume(t, otherPV(2, "silver"))
				v := cinder.Volume{ID: volumeID, Metadata: stamps.Volume{Cluster: "cluster-1", ClaimUID: "1", PV: pvName, Tenant: "team-a"}.Metadata(nil)}
				v.Metadata[stamps.KeyMode] = stamps.ModeCSI
				v.Metadata[stamps.UncleanPrefix+wire.NodeKey("n1")] = w.volumes.notes[wire.NodeKey("n1")].String()
				w.volumes.all = []cinder.Volume{v}
				silver := &volumes{document: plain + "}"}
				if !test.hidden {
					silver.all = w.volumes.all
				}
				if next {
					w.Engine = New(w.Options)
				}
				w.Backends = func() []string { return test.backends }
				w.Volumes = func(backend string) (Volumes, error) {
					switch {
					case backend == "silver":
						return inPlace{silver, test.silver}, nil
					case test.missing:
						return nil, errors.New("not in the policy")
					case test.gold != here:
						return inPlace{&volumes{unread: silent, err: silent}, test.gold}, nil
					}
					return inPlace{w.volumes, test.gold}, nil
				}
				w.tidy(t.Context())
				publish := func() error {
					_, err := w.Publish(t.Context(), controller.PublishRequest{Volume: wire.Handle{Backend: "silver", ID: "2"}, Node: n1})
					return err
				}
				if test.free {
					must(t, publish())
					return
				}
				wantFailure(t, publish(), controller.Unclean, strings.Replace(quarantined, "no volume of backend gold", "no volume of backend silver", 1))
				// Any backend that shows the volume can end the note.
				w.becomes(t, machine("n1", "boot-2"))
				must(t, publish())
				if len(w.lost.nodes()) > 0 {
					t.Error("the note has not ended")
				}
			})
		}
	}
}

// TestNothingIsGuessedAboutWhereAVolumeIs: silver does not answer whether it shows the
// volume that n1 was lost with.
func TestNothingIsGuessedAboutWhereAVolumeIs(t *testing.T) {
	w := lostWithVolume(t, otherPV(2, "silver"))
	silver := &volumes{err: errors.New("no answer")}
	w.Volumes = func(backend string) (Volumes, error) {
		if backend == "silver" {
			return inPlace{silver, cinder.Place{Endpoint: "http://192.0.2.9:8776/v3", Project: "p1"}}, nil
		}
		return w.volumes, nil
	}
	got := w.quarantine(t.Context(), inPlace{silver, cinder.Place{Endpoint: "http://192.0.2.9:8776/v3", Project: "p1"}}, "silver", "n1")
	if want := "cannot tell whether backend silver shows volume gold/" + volumeID + ", which node n1 was lost with: no answer"; got.refusal == nil || got.refusal.Error() != want {
		t.Errorf("got  %v\nwant %s", got.refusal, want)
	}
}

// TestANodeThatUsesADeletedVolumeGetsNothingThatMayBeNextToIt: the volume is gone, so no
// backend shows it.
func TestANodeThatUsesADeletedVolumeGetsNothingThatMayBeNextToIt(t *testing.T) {
	for name, test := range map[string]struct {
		silver  cinder.Place
		missing bool
		free    bool
	}{
		"its backend leads to the same project":    {silver: cinder.Place{Endpoint: "http://192.0.2.9:8776/v3", Project: "p1"}},
		"its backend has not logged in":            {},
		"its backend left the policy":              {missing: true},
		"its backend leads to another project":     {silver: cinder.Place{Endpoint: "http://cinder:8776/v3", Project: "p2"}, free: true},
		"its backend is another Cinder altogether": {silver: cinder.Place{Endpoint: "http://192.0.2.9:8776/v3", Project: "p2"}, free: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, testPV(), testSecret(), machine("n1", "boot-1", wire.Handle{Backend: "silver", ID: "gone"}))
			w.Volumes = func(backend string) (Volumes, error) {
				switch {
				case backend != "silver":
					return w.volumes, nil
				case test.missing:
					return nil, errors.New("not in the policy")
				}
				return inPlace{&volumes{}, test.silver}, nil
			}
			_, err := w.publish(t)
			if test.free {
				must(t, err)
				return
			}
			wantFailure(t, err, controller.Unclean, "node n1 still uses volume silver/gone, which no PersistentVolume names any more, so it gets no volume of backend gold until its kubelet has released that volume or the node has rebooted")
		})
	}
}

// hanging is a backend at a place of its own that does not answer.
type hanging struct {
	inPlace
	// publishes answers after all.
	publishes       *volumes
	entered, answer chan struct{}
}

func (h hanging) Publish(ctx context.Context, target backends.Target, to backends.PublishRequest) (backends.Published, error) {
	close(h.entered)
	<-h.answer
	return h.publishes.Publish(ctx, target, to)
}

// hangingWorld returns a world whose backend gold hangs while it attaches a volume to n1,
// and a function that ends that.
func hangingWorld(t *testing.T, silver Volumes, objects ...runtime.Object) (*world, func()) {
	t.Helper()
	w := newWorld(t, append([]runtime.Object{testPV(), testSecret()}, objects...)...)
	gold := hanging{inPlace{w.volumes, cinder.Place{Endpoint: "http://cinder:8776/v3", Project: "p1"}}, &volumes{document: withCHAP}, make(chan struct{}), make(chan struct{})}
	w.rules.FencedByInitiator = true
	w.Backends = func() []string { return []string{"gold", "silver"} }
	w.Volumes = func(backend string) (Volumes, error) {
		if backend == "silver" {
			return silver, nil
		}
		return gold, nil
	}
	w.tidy(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = w.publish(t)
	}()
	<-gold.entered
	return w, func() {
		close(gold.answer)
		<-ended
	}
}

// TestABackendThatHangsDelaysNoOtherRegion: two regions of one Keystone have equal
// project IDs. gold hangs while it attaches a volume to n1; silver detaches one from n1,
// reads notes about n1, and attaches to any node.
func TestABackendThatHangsDelaysNoOtherRegion(t *testing.T) {
	taken := wire.Handle{Backend: "silver", ID: "2"}
	for _, noted := range []bool{false, true} {
		v := cinder.Volume{ID: "2", Metadata: stamps.Volume{Cluster: "cluster-1", ClaimUID: "uid-1", PV: "other-2", Tenant: "team-a"}.Metadata(nil)}
		v.Metadata[stamps.KeyMode] = stamps.ModeCSI
		v.Metadata[stamps.UncleanPrefix+wire.NodeKey("n1")] = stamps.Unclean{Node: "n1", Boot: stamps.BootKey("boot-1")}.String()
		silver := inPlace{&volumes{document: plain + "}"}, cinder.Place{Endpoint: "http://region2:8776/v3", Project: "p1"}}
		pvs := []runtime.Object{otherPV(2, "silver"), otherPV(3, "silver"), machine("n1", "boot-1", taken), machine("n2", "boot-9")}
		for _, object := range pvs[:2] {
			object.(*corev1.PersistentVolume).Annotations[record.AnnotationEndpoint] = "http://region2:8776/v3"
		}
		if noted {
			silver.all = []cinder.Volume{v}
		}
		w, end := hangingWorld(t, silver, pvs...)
		must(t, w.Unpublish(t.Context(), taken, idOf(t, n1)))
		_, err := w.Publish(t.Context(), controller.PublishRequest{Volume: wire.Handle{Backend: "silver", ID: "3"}, Node: n2})
		must(t, err)
		_, err = w.Publish(t.Context(), controller.PublishRequest{Volume: wire.Handle{Backend: "silver", ID: "3"}, Node: n1})
		wantFailure(t, err, controller.Unclean, "node n1 was lost with volume silver/2 and may still write to it, so it gets no volume of backend silver until its kubelet has released that volume, it has rebooted, or its Node object is deleted")
		end()
	}
}

// TestAVolumeIsTakenFromANodeOnlyWhenNoneIsBeingAttachedThere: its address would be free
// for that other volume. Where it is, only the backend says if its PersistentVolume is
// gone, or records no place.
func TestAVolumeIsTakenFromANodeOnlyWhenNoneIsBeingAttachedThere(t *testing.T) {
	taken := wire.Handle{Backend: "gold", ID: "2"}
	unplaced := otherPV(2, "gold")
	delete(unplaced.Annotations, record.AnnotationEndpoint)
	delete(unplaced.Annotations, record.AnnotationProject)
	for name, objects := range map[string][]runtime.Object{
		"its PersistentVolume records its place": {otherPV(2, "gold")},
		"its PersistentVolume records no place":  {unplaced},
		"its PersistentVolume is gone":           {},
	} {
		t.Run(name, func(t *testing.T) {
			w, end := hangingWorld(t, &volumes{}, append(objects, machine("n1", "boot-1"))...)
			w.volumes.found = &cinder.Volume{ID: "2", Metadata: stamps.Volume{Cluster: "cluster-1", ClaimUID: "uid-2", PV: "other-2", Tenant: "team-a"}.Metadata(nil)}
			w.volumes.all = []cinder.Volume{*w.volumes.found}
			w.becomes(t, machine("n1", "boot-1", taken))
			detached := make(chan error, 1)
			go func() { detached <- w.Unpublish(t.Context(), taken, idOf(t, n1)) }()
			select {
			case err := <-detached:
				t.Errorf("it is detached (%v)", err)
			case <-time.After(100 * time.Millisecond):
			}
			end()
			must(t, <-detached)
		})
	}
}

// TestANoteOfAVolumeWithoutAPlaceIsItsBackendsAlone: it bars the node from no other
// place, and only its own backend ends it.
func TestANoteOfAVolumeWithoutAPlaceIsItsBackendsAlone(t *testing.T) {
	taken := wire.Handle{Backend: "gold", ID: "2"}
	unplaced := otherPV(2, "gold")
	delete(unplaced.Annotations, record.AnnotationEndpoint)
	w := newWorld(t, testPV(), testSecret(), unplaced, otherPV(3, "silver"), machine("n1", "boot-1", taken))
	w.rules.FencedByInitiator = true
	silver := inPlace{&volumes{document: plain + "}"}, cinder.Place{Endpoint: "http://elsewhere:8776/v3", Project: "p2"}}
	gold := w.volumes
	w.Volumes = func(backend string) (Volumes, error) {
		if backend == "silver" {
			return silver, nil
		}
		return gold, nil
	}
	must(t, w.Unpublish(t.Context(), taken, idOf(t, n1)))
	other := controller.PublishRequest{Volume: wire.Handle{Backend: "silver", ID: "3"}, Node: n1}
	_, err := w.Publish(t.Context(), other)
	must(t, err)
	w.becomes(t, machine("n1", "boot-1"))
	_, err = w.Publish(t.Context(), other)
	must(t, err)
	if len(w.lost.nodes()) == 0 {
		t.Error("the note ended at another backend")
	}
	w.tidy(t.Context())
	if len(w.lost.nodes()) > 0 || !slices.Contains(gold.calls, "forget "+wire.NodeKey("n1")+" on 2") {
		t.Errorf("lost are %q, calls %q", w.lost.nodes(), gold.calls)
	}
}

// TestANoteThatNoBackendCanEndCostsNothing: none leads to the volume any more.
func TestANoteThatNoBackendCanEndCostsNothing(t *testing.T) {
	w := lostWithVolume(t)
	w.becomes(t, machine("n1", "boot-2"))
	w.Volumes = func(string) (Volumes, error) { return nil, errors.New("not in the policy") }
	w.client.ClearActions()
	w.tidy(t.Context())
	if w.looks() > 0 || len(w.lost.nodes()) == 0 {
		t.Errorf("%d looks, lost are %q", w.looks(), w.lost.nodes())
	}
}

// TestABarredNodeIsCounted: the volume that it uses is deleted, and its backend has left
// the policy.
func TestABarredNodeIsCounted(t *testing.T) {
	w := newWorld(t, testPV(), testSecret(), machine("n1", "boot-1", wire.Handle{Backend: "retired", ID: "gone"}))
	if _, err := w.publish(t); err == nil {
		t.Error("the node is not barred")
	}
	if found := w.count(); found["gold"].quarantined != 1 || len(found) != 1 {
		t.Errorf("counts %+v", found)
	}
}
