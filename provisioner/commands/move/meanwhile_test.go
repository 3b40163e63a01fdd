package move

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/commands/swap"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// strict makes patches fail as an API server does: for another object of the name, and for a
// PersistentVolume that was changed since.
func (w *world) strict() {
	preconditions := func(patch []byte) (uid types.UID, version string) {
		var p struct{ Metadata metav1.ObjectMeta }
		must(w.t, json.Unmarshal(patch, &p))
		return p.Metadata.UID, p.Metadata.ResourceVersion
	}
	w.client.PrependReactor("patch", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		patch := action.(clienttesting.PatchAction)
		found, err := w.client.Tracker().Get(podsResource, "team-a", patch.GetName())
		if uid, _ := preconditions(patch.GetPatch()); err == nil && uid != found.(*corev1.Pod).UID {
			return true, nil, apierrors.NewConflict(corev1.Resource("pods"), patch.GetName(), errors.New("Precondition failed: UID"))
		}
		return false, nil, nil
	})
	w.client.PrependReactor("delete", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		deletion := action.(clienttesting.DeleteActionImpl)
		found, err := w.client.Tracker().Get(podsResource, "team-a", deletion.Name)
		if wanted := deletion.DeleteOptions.Preconditions; err == nil && wanted != nil && *wanted.UID != found.(*corev1.Pod).UID {
			return true, nil, apierrors.NewConflict(corev1.Resource("pods"), deletion.Name, errors.New("Precondition failed: UID"))
		}
		return false, nil, nil
	})
	versions := 1000
	w.client.PrependReactor("patch", "persistentvolumes", func(action clienttesting.Action) (bool, runtime.Object, error) {
		patch := action.(clienttesting.PatchAction)
		found, err := w.client.Tracker().Get(pvsResource, "", patch.GetName())
		if err != nil {
			return true, nil, err
		}
		pv := found.(*corev1.PersistentVolume)
		if uid, version := preconditions(patch.GetPatch()); uid != pv.UID || version != "" && version != pv.ResourceVersion {
			return true, nil, apierrors.NewConflict(corev1.Resource("persistentvolumes"), pv.Name, errors.New("the object has been modified"))
		}
		before, err := json.Marshal(pv)
		must(w.t, err)
		after, err := jsonpatch.MergePatch(before, patch.GetPatch())
		must(w.t, err)
		changed := &corev1.PersistentVolume{}
		must(w.t, json.Unmarshal(after, changed))
		versions++
		changed.ResourceVersion = fmt.Sprint(versions)
		return true, changed, w.client.Tracker().Update(pvsResource, changed, "")
	})
}

// hooked are the volumes of one command.
type hooked struct {
	*world
	read, restamp func()
}

func (h *hooked) Volume(ctx context.Context, id string) (cinder.Volume, cinder.Place, error) {
	if h.read != nil {
		h.read()
	}
	return h.world.Volume(ctx, id)
}

// Restamp refuses what backends.Swaps refuses.
func (h *hooked) Restamp(ctx context.Context, id string, stamp stamps.Volume, pvUID string) error {
	if h.restamp != nil {
		h.restamp()
	}
	if v, _, _ := h.world.Volume(ctx, id); v.Metadata[stamps.KeySwap] != stamp.PV || v.Status != cinder.StatusAttaching {
		return &cinder.Error{Kind: cinder.KindConflict, Message: "volume " + id + " is no longer reserved for its swap"}
	}
	return h.world.Restamp(ctx, id, stamp, pvUID)
}

func (w *world) moverWith(h *hooked) *Mover {
	m := w.mover()
	m.Swapper.Volumes = func(string) (swap.Volumes, error) { return h, nil }
	return m
}

func (w *world) moveWith(h *hooked, backend string) error {
	m := w.moverWith(h)
	plan, err := m.Plan(w.t.Context(), Request{Namespace: "team-a", Claim: "data", Backend: backend, StorageClass: backend})
	if err == nil {
		_, err = m.Apply(w.t.Context(), plan, silent)
	}
	return err
}

// reserved returns how many of the volumes are reserved for a swap.
func (w *world) reserved() (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, v := range w.volumes {
		if v.Status == cinder.StatusAttaching && v.Metadata[stamps.KeySwap] != "" {
			n++
		}
	}
	return n
}

// One command is slow in the last check before its commit. Another takes its swap back, copies
// anew, and reserves the volumes for its own. The slow one fails then, and must not end the
// reservation of the other: the volumes could be attached while they are swapped.
func TestACommandThatFailsLateDoesNotEndTheReservationOfAnother(t *testing.T) {
	w := newWorld(t)
	w.claim("data", "gold")
	w.strict()
	slowFails, otherCommits := make(chan error, 1), make(chan error, 1)
	failNow, fast := make(chan struct{}), &hooked{world: w}
	asked := false
	fast.read = func() {
		if len(w.copied) == 2 && w.reserved() == 2 && !asked {
			asked = true
			close(failNow)
			if err := <-slowFails; err == nil {
				t.Error("both commands swap")
			}
		}
	}
	slow, begun := &hooked{world: w}, false
	slow.read = func() {
		if w.reserved() == 2 && !begun {
			begun = true
			go func() { otherCommits <- w.moveWith(fast, "silver") }()
			<-failNow
		}
	}
	go func() { slowFails <- w.moveWith(slow, "silver") }()
	var err error
	select {
	case err = <-otherCommits:
	case <-time.After(20 * time.Second):
		t.Fatal("the commands do not end")
	}
	if !asked { // it was not let in
		close(failNow)
		if slowErr := <-slowFails; slowErr != nil || err == nil || !strings.Contains(err.Error(), "another run is moving the volume") {
			t.Errorf("the slow command: %v; the other: %v", slowErr, err)
		}
		return
	}
	if committed := strings.Contains(w.pvOf("data").Annotations[swap.AnnotationIntent], `"committed":true`); committed && w.reserved() != 2 {
		t.Errorf("the swap is committed, and %d of its volumes are reserved (%v): a pod gets %s, and what it writes there is lost when the swap is finished", w.reserved(), err, w.volumeOf("data"))
		t.Logf("run again: %v; claim data has %s", w.move(t.Context(), "silver", silent), w.volumeOf("data"))
	}
}

// One command has planned a move. Meanwhile, another moves the volume, and is between its
// commit and the records. The first must not say that the former volume is a copy.
func TestTheFormerVolumeIsNotLabeledAsACopy(t *testing.T) {
	w := newWorld(t)
	w.claim("data", "gold")
	w.strict()
	late := w.mover()
	planned, err := late.Plan(t.Context(), Request{Namespace: "team-a", Claim: "data", Backend: "silver", StorageClass: "silver"})
	must(t, err)
	former, committed, tried := w.volumeOf("data"), &hooked{world: w}, false
	committed.restamp = func() {
		if !tried {
			tried = true
			if _, err := late.Apply(t.Context(), planned, silent); err == nil {
				t.Error("both commands move the volume")
			}
		}
	}
	err = w.moveWith(committed, "silver")
	claim, getErr := w.client.CoreV1().PersistentVolumeClaims("team-a").Get(t.Context(), "data-former", metav1.GetOptions{})
	must(t, getErr)
	if w.volumeOf("data-former") != former || !tried {
		t.Fatalf("claim data-former has %s (%v)", w.volumeOf("data-former"), err)
	}
	if label := claim.Labels[objects.LabelCopy]; label != objects.CopyFormer {
		t.Errorf("claim data-former has the former volume, %s, and the label %q, which says that it may be removed and made anew (%v)", former, label, err)
		t.Logf("swap --back: %v", w.swap("data", "data-former", true))
		t.Logf("move on: %v", w.move(t.Context(), "bronze", silent))
	}
}

// The swap is committed, or even at its end. Whoever follows the advice to delete the second
// claim deletes the former volume.
func TestACommandThatFailsAfterTheCommitDoesNotAdviseToDeleteTheFormerVolume(t *testing.T) {
	for name, fail := range map[string]func(w *world){
		"the pod cannot be deleted": func(w *world) {
			w.client.PrependReactor("delete", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, nil, apierrors.NewInternalError(errors.New("etcdserver: request timed out"))
			})
		},
		"a PersistentVolume cannot be changed": func(w *world) {
			w.client.PrependReactor("patch", "persistentvolumes", func(action clienttesting.Action) (bool, runtime.Object, error) {
				if strings.Contains(string(action.(clienttesting.PatchAction).GetPatch()), objects.AnnotationSwapped) {
					return true, nil, apierrors.NewInternalError(errors.New("etcdserver: request timed out"))
				}
				return false, nil, nil
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.claim("data", "gold")
			fail(w)
			err := w.move(t.Context(), "silver", silent)
			if err == nil {
				t.Fatal("no error")
			}
			if strings.Contains(err.Error(), "gets the copy") || strings.Contains(err.Error(), "to give up, delete it") {
				t.Errorf("claim data has %s, and claim data-former %s; the command says: %v", w.volumeOf("data"), w.volumeOf("data-former"), err)
			}
		})
	}
}

// The copy of hours is complete, and the command is about to swap. Another command for the
// same claim must not throw that away.
func TestACopyThatIsAboutToBeSwappedIsNotThrownAway(t *testing.T) {
	for name, backend := range map[string]string{"a command with nothing to do": "gold", "the same command": "silver"} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.claim("data", "gold")
			w.strict()
			var other error
			asked := false
			err := w.move(t.Context(), "silver", func(text string) {
				if strings.HasPrefix(text, "copied and compared") && !asked {
					asked = true
					other = w.move(t.Context(), backend, silent)
				}
			})
			if err != nil || len(w.copied) != 1 {
				t.Errorf("the other command: %v; copies %v; the first: %v", other, w.copied, err)
			}
		})
	}
}

// Somebody who has the right to change pods, or a controller of gates, takes the gate away
// before anybody watches, and the pod copies at once. Another pod writes meanwhile, and ends.
func TestACopyThatNobodyHasWatchedIsNotTaken(t *testing.T) {
	w := newWorld(t)
	w.claim("data", "gold")
	w.client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		name := "copy-" + string(w.pvOf("data").Spec.ClaimRef.UID)
		found, err := w.client.Tracker().Get(podsResource, "team-a", name)
		if err != nil || len(found.(*corev1.Pod).Spec.SchedulingGates) == 0 {
			return false, nil, nil
		}
		pod := found.(*corev1.Pod).DeepCopy()
		pod.Spec.SchedulingGates = nil
		pod.Status = corev1.PodStatus{Phase: corev1.PodSucceeded, ContainerStatuses: []corev1.ContainerStatus{{Name: "copy", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: "{}"}}}}}
		must(t, w.client.Tracker().Update(podsResource, pod, "team-a"))
		writer := w.user("writer", "data", nil).DeepCopy()
		writer.Status.Phase = corev1.PodSucceeded
		must(t, w.client.Tracker().Update(podsResource, writer, "team-a"))
		return false, nil, nil
	})
	if err := w.move(t.Context(), "silver", silent); err == nil {
		t.Error("pod writer wrote while the volume was copied, and the copy is taken")
	}
}

// Kueue and others keep pods from their nodes by gates of their own.
func TestTheGatesOfOthersStay(t *testing.T) {
	w := newWorld(t)
	w.claim("data", "gold")
	w.client.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		pod := action.(clienttesting.CreateAction).GetObject().(*corev1.Pod)
		pod.Spec.SchedulingGates = append(pod.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: "kueue.x-k8s.io/admission"})
		return false, nil, nil
	})
	w.client.PrependReactor("patch", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		patch := action.(clienttesting.PatchAction)
		if strings.Contains(string(patch.GetPatch()), `"schedulingGates": []`) {
			t.Errorf("the %s removes all gates: %s", patch.GetPatchType(), patch.GetPatch())
		}
		return false, nil, nil
	})
	_ = w.move(t.Context(), "silver", silent)
}

// Nodes take a minute to let go, namespaces have thousands of pods, and a command makes up to
// 50 moves at once.
func TestTheWaitForNodesDoesNotListThePods(t *testing.T) {
	w := newWorld(t)
	w.claim("data", "gold")
	pv, lists := w.pvOf("data").Name, int64(0)
	w.meanwhile = func(*corev1.Pod) {
		w.attached[pv], lists = "node-1", w.lists.Load()
		time.AfterFunc(300*time.Millisecond, func() { w.detach(pv) })
	}
	err := w.move(t.Context(), "silver", silent)
	if lists = w.lists.Load() - lists; err != nil || lists > 10 {
		t.Errorf("a wait of 60 pauses lists all pods of the namespace %d times (%v)", lists, err)
	}
}

// The node is dead: its pod is deleted after five minutes, and stays as it was last seen until
// somebody removes the node.
func TestACopyOnADeadNodeIsNotAwaitedForGood(t *testing.T) {
	w := newWorld(t)
	w.claim("data", "gold")
	var said []string
	w.meanwhile = func(pod *corev1.Pod) {
		pod.DeletionTimestamp = &metav1.Time{Time: time.Now().Add(-time.Hour)}
		pod.Finalizers = []string{"the.node/is-dead"} // as long as the kubelet does not answer
		pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse, Reason: "NodeNotReady"}}}
	}
	ctx, end := context.WithTimeout(t.Context(), 5*time.Second) // the mover's patience is 2 s
	defer end()
	err := w.move(ctx, "silver", func(text string) { said = append(said, text) })
	if ctx.Err() != nil {
		t.Errorf("the pod is deleted, and its node does not answer; the command says %q, and waits for good (%v)", said, err)
	}
}

// A tenant has a pod of the name, of its own.
func TestAPodThatNoMoveHasMadeStays(t *testing.T) {
	w := newWorld(t)
	claim := w.claim("data", "gold")
	theirs := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "copy-" + string(claim.UID), UID: "theirs"}, Status: corev1.PodStatus{Phase: corev1.PodSucceeded}}
	must(t, w.client.Tracker().Add(theirs))
	err := w.move(t.Context(), "silver", silent)
	if _, getErr := w.client.CoreV1().Pods("team-a").Get(t.Context(), theirs.Name, metav1.GetOptions{}); getErr != nil {
		t.Errorf("pod %s has none of the labels of a copying pod, and is deleted (the move: %v)", theirs.Name, err)
	}
}

// The volumes were swapped back by hand, so claim data-former has what pods have written since
// the move. Somebody applies the labels of before, with a backup or out of a repository.
func TestAClaimThatHasTheNewerDataIsNotCopiedOverWhateverItsLabel(t *testing.T) {
	for _, label := range []string{objects.CopyFormer, objects.CopyPartial} {
		t.Run(label, func(t *testing.T) {
			w := newWorld(t)
			w.claim("data", "gold")
			must(t, w.move(t.Context(), "silver", silent))
			must(t, w.swap("data", "data-former", true))
			newer := w.volumeOf("data-former")
			w.copied = nil
			_, err := w.client.CoreV1().PersistentVolumeClaims("team-a").Patch(t.Context(), "data-former", types.MergePatchType, fmt.Appendf(nil, `{"metadata": {"labels": {%q: %q}}}`, objects.LabelCopy, label), metav1.PatchOptions{})
			must(t, err)
			err = w.move(t.Context(), "silver", silent)
			if len(w.copied) > 0 {
				t.Errorf("%s has what was written since the move, and a pod copies %v (%v)", newer, w.copied, err)
			}
		})
	}
}

// A move to silver has failed, and the operator wants another backend. Two pods of the claim are
// not needed for that.
func TestACopyThatIsAboutToBeSwappedIsNotThrownAwayForAnotherBackend(t *testing.T) {
	w := newWorld(t)
	w.claim("data", "gold")
	w.strict()
	var other error
	err := w.move(t.Context(), "silver", func(text string) {
		if strings.HasPrefix(text, "copied and compared") && other == nil {
			other = w.move(t.Context(), "bronze", silent)
		}
	})
	if err != nil || other == nil || strings.Contains(other.Error(), "then delete the claim") {
		t.Errorf("a command has copied to silver, and is about to swap: %v; one to bronze meanwhile says: %v", err, other)
	}
}

// The claim that gets the copy waits for its pod, and the pod gets no node.
func TestAClaimThatWaitsForItsPodIsCopied(t *testing.T) {
	w := newWorld(t)
	w.claim("data", "gold")
	must(t, w.client.Tracker().Delete(storageClasses, "", "silver"))
	must(t, w.client.Tracker().Add(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "silver"}, Provisioner: "test", VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer)}))
	must(t, w.move(t.Context(), "silver", silent))
}

var storageClasses = storagev1.SchemeGroupVersion.WithResource("storageclasses")

// A tenant changes labels at any time: of the second claim, and of the pod. What is swapped is
// what was copied, or nothing.
func TestWhatIsSwappedIsWhatWasCopiedWhateverTheLabels(t *testing.T) {
	for name, hand := range map[string][2]string{"the claim": {"data", "third"}, "the second claim": {"data-former", "third"}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.claim("data", "gold")
			w.claim("third", "silver")
			before := w.volumeOf("data")
			label := func(value any) {
				patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]any{objects.LabelCopy: value}}})
				must(t, err)
				_, err = w.client.CoreV1().PersistentVolumeClaims("team-a").Patch(t.Context(), "data-former", types.MergePatchType, patch, metav1.PatchOptions{})
				must(t, err)
			}
			var byHand error
			err := w.move(t.Context(), "silver", func(text string) {
				if !strings.HasPrefix(text, "copied and compared") {
					return
				}
				label(nil)
				pods, err := w.client.CoreV1().Pods("team-a").List(t.Context(), metav1.ListOptions{})
				must(t, err)
				patch := fmt.Appendf(nil, `{"metadata": {"uid": %q, "labels": {%q: null}}}`, pods.Items[0].UID, objects.LabelCopy)
				_, err = w.client.CoreV1().Pods("team-a").Patch(t.Context(), pods.Items[0].Name, types.MergePatchType, patch, metav1.PatchOptions{})
				must(t, err)
				byHand = w.swap(hand[0], hand[1], false)
				label(objects.CopyPartial)
			})
			copied := strings.Split(w.copied[0], " to ")
			if err == nil && (copied[0] != before || copied[1] != w.volumeOf("data")) {
				t.Errorf("a pod has copied %v, and claim data has %s (swap by hand: %v)", w.copied, w.volumeOf("data"), byHand)
			}
		})
	}
}

// A tenant has removed the label of the copying pod. By hand, the volume goes to another claim,
// whose pods write to it, and comes back.
func TestAVolumeThatWasElsewhereMeanwhileIsNotReplacedByItsCopy(t *testing.T) {
	w := newWorld(t)
	w.claim("data", "gold")
	w.claim("third", "gold")
	var there, back error
	err := w.move(t.Context(), "silver", func(text string) {
		if !strings.HasPrefix(text, "copied and compared") {
			return
		}
		pods, err := w.client.CoreV1().Pods("team-a").List(t.Context(), metav1.ListOptions{})
		must(t, err)
		patch := fmt.Appendf(nil, `{"metadata": {"uid": %q, "labels": {%q: null}}}`, pods.Items[0].UID, objects.LabelCopy)
		_, err = w.client.CoreV1().Pods("team-a").Patch(t.Context(), pods.Items[0].Name, types.MergePatchType, patch, metav1.PatchOptions{})
		must(t, err)
		there = w.swap("data", "third", false)
		w.user("writer", "third", nil)
		must(t, w.client.Tracker().Delete(podsResource, "team-a", "writer"))
		back = w.swap("data", "third", true)
	})
	if err == nil && there == nil && back == nil {
		t.Errorf("pod writer has written to gold/volume-1 since it was copied, and claim data has the copy, %s", w.volumeOf("data"))
	}
}

// A command was killed when the label was written, and before the commit. The next takes the swap
// back, and refuses, since a pod waits for the volume. That one writes, and ends.
func TestAStaleCopyIsNotSwappedByHand(t *testing.T) {
	w := newWorld(t)
	w.claim("data", "gold")
	killed, alive, dead := errors.New("killed"), false, false
	w.client.PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if patch, ok := action.(clienttesting.PatchAction); ok && strings.Contains(string(patch.GetPatch()), `\"committed\":true`) {
			dead = true
		}
		return dead && !alive, nil, killed
	})
	if err := w.move(t.Context(), "silver", silent); !errors.Is(err, killed) {
		t.Fatalf("error %v", err)
	}
	alive = true
	w.user("data-0", "data", nil)
	if err := w.move(t.Context(), "silver", silent); err == nil || w.reserved() != 0 {
		t.Fatalf("error %v, %d reserved", err, w.reserved())
	}
	must(t, w.client.Tracker().Delete(podsResource, "team-a", "data-0"))
	claim, err := w.client.CoreV1().PersistentVolumeClaims("team-a").Get(t.Context(), "data-former", metav1.GetOptions{})
	must(t, err)
	if label := claim.Labels[objects.LabelCopy]; label != objects.CopyPartial {
		t.Errorf("pod data-0 wrote since the copy, and the label of claim data-former, which has the stale copy, is %q", label)
	}
	must(t, w.client.CoreV1().Pods("team-a").Delete(t.Context(), "copy-"+string(w.pvOf("data").Spec.ClaimRef.UID), metav1.DeleteOptions{}))
	if err := w.swap("data", "data-former", false); err == nil {
		t.Errorf("volume swap gives claim data the stale copy, %s", w.volumeOf("data"))
	}
}
