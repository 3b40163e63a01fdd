package campaign

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/test/chaos/checker"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/plan"
)

// disturbVolume carries out one step at a PersistentVolume. Steps overlap. A
// step that has begun is completed even after the faults end: its requests must
// be known to succeed.
func (w *world) disturbVolume(ctx, trouble context.Context, step plan.VolumeStep) {
	if !w.until(trouble, step.At) {
		return
	}
	pv := w.chooseVolume(trouble, step)
	if pv == nil {
		w.timeline.Note("%s: there is none", step)
		return
	}
	w.timeline.Note("%s: %s", step, pv.Name)
	var err error
	switch step.Kind {
	case plan.Keep, plan.KeepReleased:
		err = w.keep(ctx, trouble, pv, step)
	default:
		err = w.remove(ctx, trouble, pv, step)
	}
	if err != nil && ctx.Err() == nil && !apierrors.IsNotFound(err) {
		w.timeline.Say("%s: %s: %s", step, pv.Name, err)
	}
}

// maxToChoose is how long to wait for a PersistentVolume that fits a step.
const maxToChoose = 4 * time.Second

// chooseVolume picks a PersistentVolume that fits a step and that no other step
// has chosen; nil if there is none for a while.
func (w *world) chooseVolume(ctx context.Context, step plan.VolumeStep) *corev1.PersistentVolume {
	bound := func(pv *corev1.PersistentVolume) bool { return pv.Status.Phase == corev1.VolumeBound }
	retain := func(pv *corev1.PersistentVolume) bool {
		return pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain
	}
	fits := map[plan.VolumeKind]func(*corev1.PersistentVolume) bool{
		plan.Keep:           func(pv *corev1.PersistentVolume) bool { return bound(pv) && !retain(pv) },
		plan.KeepReleased:   func(pv *corev1.PersistentVolume) bool { return pv.Status.Phase == corev1.VolumeReleased && !retain(pv) },
		plan.Remove:         bound,
		plan.RemoveReleased: func(pv *corev1.PersistentVolume) bool { return pv.Status.Phase == corev1.VolumeReleased && retain(pv) },
		plan.Strip:          bound,
	}[step.Kind]
	if fits == nil {
		return w.nextVolume(ctx)
	}
	for deadline := time.Now().Add(maxToChoose); time.Now().Before(deadline); {
		var fitting []*corev1.PersistentVolume
		for _, pv := range w.watch.volumes() {
			if pv.DeletionTimestamp == nil && pv.Spec.ClaimRef != nil && fits(pv) {
				fitting = append(fitting, pv)
			}
		}
		for i := range fitting {
			if pv := fitting[(step.Pick+i)%len(fitting)]; w.fates.Choose(pv.Name) {
				return pv
			}
		}
		if !sleep(ctx, 50*time.Millisecond) {
			break
		}
	}
	return nil
}

// nextVolume waits for the next PersistentVolume that is created, and returns
// it at once.
func (w *world) nextVolume(ctx context.Context) *corev1.PersistentVolume {
	bounded, cancel := context.WithTimeout(ctx, maxToChoose)
	defer cancel()
	news, err := w.suite.Client.CoreV1().PersistentVolumes().Watch(bounded, metav1.ListOptions{})
	if err != nil {
		return nil
	}
	defer news.Stop()
	began := time.Now()
	for {
		select {
		case <-bounded.Done():
			return nil
		case event, ok := <-news.ResultChan():
			if !ok {
				return nil
			}
			pv, is := event.Object.(*corev1.PersistentVolume)
			// A watch begins with the existing objects.
			if is && w.names.made(pv) && !w.names.isOthers(pv) && pv.Spec.ClaimRef != nil && pv.Status.Phase != corev1.VolumeBound && pv.Status.Phase != corev1.VolumeReleased &&
				pv.CreationTimestamp.After(began.Add(-time.Second)) && w.fates.Choose(pv.Name) {
				return pv
			}
		}
	}
}

// keep makes a PersistentVolume keep its volume, and reverts that later if the
// step says so.
func (w *world) keep(ctx, trouble context.Context, pv *corev1.PersistentVolume, step plan.VolumeStep) error {
	if err := w.retain(ctx, pv.Name); err != nil {
		return err
	}
	if !step.Back {
		return nil
	}
	sleep(trouble, step.For)
	w.fates.NoteFreed(pvOf(pv))
	_, err := w.reclaim(ctx, pv.Name, corev1.PersistentVolumeReclaimDelete)
	return err
}

// retain makes a PersistentVolume keep its volume.
func (w *world) retain(ctx context.Context, name string) error {
	w.fates.NoteKeeping(name, true)
	pv, err := w.reclaim(ctx, name, corev1.PersistentVolumeReclaimRetain)
	if err != nil {
		w.fates.NoteKeeping(name, false)
		return err
	}
	w.fates.NoteKept(pvOf(pv))
	w.timeline.Note("%s is to be kept", name)
	return nil
}

// reclaim changes a reclaim policy.
func (w *world) reclaim(ctx context.Context, name string, to corev1.PersistentVolumeReclaimPolicy) (changed *corev1.PersistentVolume, err error) {
	patch := []byte(`{"spec":{"persistentVolumeReclaimPolicy":"` + string(to) + `"}}`)
	err = insist(ctx, func(ctx context.Context) error {
		changed, err = w.suite.Client.CoreV1().PersistentVolumes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	})
	w.change(func(c *Counts) { c.Flips++ })
	return changed, err
}

// remove deletes a PersistentVolume by hand, and its claim later: the claim can
// no longer be bound, or has lost what it was bound to.
func (w *world) remove(ctx, trouble context.Context, pv *corev1.PersistentVolume, step plan.VolumeStep) error {
	if step.Kind == plan.Remove || step.Kind == plan.RemoveReleased {
		if err := w.retain(ctx, pv.Name); err != nil {
			return err
		}
	}
	recorded := pvOf(pv)
	w.fates.NoteRemoved(recorded)
	if recorded.Retain {
		w.fates.NoteKept(recorded)
	}
	volumes := w.suite.Client.CoreV1().PersistentVolumes()
	err := insist(ctx, func(ctx context.Context) error {
		return volumes.Delete(ctx, pv.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pv.UID}})
	})
	if err == nil && step.Kind == plan.Strip {
		err = insist(ctx, func(ctx context.Context) error {
			_, err := volumes.Patch(ctx, pv.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
			return err
		})
		// A repeated request finds that the first one took effect.
		if err == nil || apierrors.IsNotFound(err) {
			w.fates.NoteKept(recorded)
		}
	}
	w.change(func(c *Counts) { c.Removals++ })
	if apierrors.IsNotFound(err) {
		err = nil
	}
	sleep(trouble, step.For)
	ref := pv.Spec.ClaimRef
	return errors.Join(err, w.deleteClaim(ctx, ref.Namespace, ref.Name, ref.UID))
}

// tooLate reports whether a PersistentVolume was to be kept only after the
// removal of its volume had begun.
func (w *world) tooLate(fate checker.Fate) bool {
	return checker.CameTooLate(fate, w.claims.DeletionRequestedAt(types.UID(fate.PV.HeldBy())), w.sim.Journal())
}
