package swap

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// Apply swaps the volumes. If it fails before it has committed that, it takes back what it
// did, unless a request may arrive late; then the next run does.
func (r *Swapper) Apply(ctx context.Context, p *Plan) error {
	// What is half done keeps pods from both claims.
	ctx, end := goOn(ctx)
	defer end()
	switch {
	case p.earlier != nil:
		return r.applyAfter(ctx, p)
	case p.Done:
		return nil
	case !p.sides[0].isSwitched() || !p.sides[1].isSwitched():
		if err := r.exchange(ctx, p); err != nil {
			return err
		}
	}
	return r.end(ctx, p.sides)
}

// grace is how long a swap goes on after its command was told to stop, which a pod's kubelet
// makes wait for 30 s. It takes seconds.
const grace = 20 * time.Second

// goOn returns a context that ends after the grace.
func goOn(stopping context.Context) (context.Context, context.CancelFunc) {
	ctx, end := context.WithCancel(context.WithoutCancel(stopping))
	stop := context.AfterFunc(stopping, func() { time.AfterFunc(grace, end) })
	return ctx, func() { stop(); end() }
}

// applyAfter ends what an earlier run has begun. That may be what was asked for, or the claims
// may have been made anew since, so it plans once more.
func (r *Swapper) applyAfter(ctx context.Context, p *Plan) error {
	if err := r.EndEarlier(ctx, p); err != nil {
		return err
	}
	again, err := r.Plan(ctx, p.Request)
	if err != nil {
		return fmt.Errorf("what an earlier run has begun was %s, but: %w", p.outcome(), err)
	}
	p.sides, p.Done = again.sides, again.Done
	return r.Apply(ctx, again)
}

// EndEarlier ends what an earlier run has begun, if any has, and does nothing else.
func (r *Swapper) EndEarlier(ctx context.Context, p *Plan) error {
	if p.earlier == nil {
		return nil
	}
	if p.finishes {
		return r.Apply(ctx, &Plan{Request: p.Request, sides: *p.earlier, committed: true})
	}
	if err := r.takeBack(ctx, *p.earlier); err != nil {
		return fmt.Errorf("what an earlier run has begun cannot be taken back; if nobody else is at it, run the command again: %w", err)
	}
	return nil
}

// takeBack ends what another run has begun, and keeps that run from committing it.
func (r *Swapper) takeBack(ctx context.Context, sides [2]*side) error {
	for _, s := range inOrder(sides) {
		if s.pv == nil || s.pv.Annotations[AnnotationIntent] == "" {
			continue
		}
		s.intent.TakenBack = rand.Text()
		if err := r.annotate(ctx, s, map[string]any{AnnotationIntent: s.intent}); err != nil {
			return err
		}
	}
	return r.end(ctx, sides)
}

// exchange gives each PersistentVolume the other's volume.
func (r *Swapper) exchange(ctx context.Context, p *Plan) error {
	// Another swap may have been made since the plan.
	if _, err := r.intend(ctx, p); err != nil {
		return err
	}
	if err := r.begin(ctx, p); err != nil {
		return err
	}
	for _, s := range p.sides {
		s.intent.Committed = true
	}
	if isLate, err := r.intend(ctx, p); isLate {
		return errors.Join(err, r.endUnlessAnother(ctx, p.sides))
	} else if err != nil {
		return err // It may be committed, and another run at it.
	}
	p.committed = true
	for _, s := range p.sides {
		if err := r.restamp(ctx, s); err != nil {
			return err
		}
	}
	for _, s := range p.sides {
		if err := r.record(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// intend writes the intents, that which decides first. After a failure, nothing may be taken
// back but by another run, which reads what is there. It reports whether nothing was written,
// for certain, since another run has changed what decides.
func (r *Swapper) intend(ctx context.Context, p *Plan) (isLate bool, err error) {
	written := false
	for _, s := range inOrder(p.sides) {
		if s.pv == nil {
			continue
		}
		if err := r.annotate(ctx, s, map[string]any{AnnotationIntent: s.intent}); err != nil {
			return !written && apierrors.IsConflict(err), fmt.Errorf("%w; run the command again", err)
		}
		written = true
	}
	return false, nil
}

// begin reserves both volumes. What the plan has seen may be old by then, so it looks once
// more.
func (r *Swapper) begin(ctx context.Context, p *Plan) error {
	for _, s := range p.sides {
		volumes, err := r.Volumes(s.intent.From.Backend)
		if err == nil {
			err = volumes.Begin(ctx, s.intent.From.ID, s.intent.With)
		}
		if p.committed && cinder.IsKind(err, cinder.KindNotFound) {
			err = nil // the array has lost it since
		}
		if failed, ok := errors.AsType[*cinder.Error](err); ok && failed.EffectUnknown {
			return fmt.Errorf("%w; run the command again in a minute, so that nothing of this one can arrive any more", err)
		}
		if err != nil {
			return errors.Join(err, r.endUnlessCommitted(ctx, p))
		}
	}
	if p.committed {
		return nil
	}
	err := r.stillFree(ctx, p)
	if err == nil && r.Copy != nil {
		err = r.Copy.Complete(ctx)
	} else if err == nil {
		err = r.forgetCopies(ctx, p)
	}
	if err != nil {
		return errors.Join(err, r.endUnlessCommitted(ctx, p))
	}
	return nil
}

// forgetCopies removes the labels of claims whose volumes are swapped by hand: from then on, a
// claim that kept a former volume may have the newer data.
func (r *Swapper) forgetCopies(ctx context.Context, p *Plan) error {
	for _, s := range p.sides {
		if s.claim.Labels[objects.LabelCopy] == "" {
			continue
		}
		patch := fmt.Appendf(nil, `{"metadata": {"uid": %q, "labels": {%q: null}}}`, s.claim.UID, objects.LabelCopy)
		if _, err := r.Client.CoreV1().PersistentVolumeClaims(p.Namespace).Patch(ctx, s.claim.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("cannot remove the label %s of claim %s: %w", objects.LabelCopy, s.claim.Name, err)
		}
	}
	return nil
}

// endUnlessCommitted takes back what was begun, unless another run is at it by now.
func (r *Swapper) endUnlessCommitted(ctx context.Context, p *Plan) error {
	if p.committed {
		return nil
	}
	err := r.takeBack(ctx, p.sides)
	if apierrors.IsConflict(err) {
		err = r.endUnlessAnother(ctx, p.sides)
	}
	if err != nil {
		return fmt.Errorf("what was begun cannot be taken back, so run the command again: %w", err)
	}
	return nil
}

// endUnlessAnother ends reservations after another run has taken the swap back, unless one is
// at it again: the reservations are its own then.
func (r *Swapper) endUnlessAnother(ctx context.Context, sides [2]*side) error {
	for _, s := range sides {
		now, err := r.Client.CoreV1().PersistentVolumes().Get(ctx, s.name, metav1.GetOptions{})
		switch {
		case err != nil:
			return err
		case now.Annotations[AnnotationIntent] != "":
			return errors.New("another run is at it")
		}
		s.pv = now
	}
	return r.end(ctx, sides)
}

// stillFree checks everything once more.
func (r *Swapper) stillFree(ctx context.Context, p *Plan) error {
	again := &planner{Swapper: r, Plan: &Plan{Request: p.Request}}
	for i, s := range p.sides {
		now, err := r.read(ctx, p.Namespace, p.Claims[i])
		if err != nil {
			return err
		}
		if now.claim.UID != s.claim.UID || now.pv.UID != s.pv.UID || !recordOf(now.pv).is(s.intent.From) {
			return refused("claim %s was made anew, or got another volume, meanwhile", p.Claims[i])
		}
		now.intent = s.intent
		again.sides[i] = now
	}
	return again.check(ctx)
}

// restamp gives a side's new volume its stamp.
func (r *Swapper) restamp(ctx context.Context, s *side) error {
	if s.pv == nil {
		return nil
	}
	volumes, err := r.Volumes(s.intent.To.Backend)
	if err != nil {
		return err
	}
	err = volumes.Restamp(ctx, s.intent.To.ID, r.stamp(s), string(s.pv.UID))
	if cinder.IsKind(err, cinder.KindNotFound) {
		return nil // the array has lost it since, and an audit says so
	}
	return err
}

// record makes a PersistentVolume record its new volume.
func (r *Swapper) record(ctx context.Context, s *side) error {
	if s.isSwitched() {
		return nil
	}
	swapped, err := objects.SwappedOf(s.pv)
	if err != nil {
		return err
	}
	if swapped == nil {
		swapped = &objects.Swapped{Handle: s.pv.Spec.CSI.VolumeHandle}
	}
	to := s.intent.To
	swapped.Volume = to.Volume
	if s.intent.Back {
		swapped.With = swapped.With[:max(0, len(swapped.With)-1)]
	} else {
		swapped.With = append(swapped.With, s.intent.With)
	}
	changes := map[string]any{
		objects.AnnotationVolume: to.ID, objects.AnnotationBackend: to.Backend,
		objects.AnnotationEndpoint: nil, objects.AnnotationProject: nil, objects.AnnotationSwapped: swapped, objects.AnnotationCopyOf: nil,
	}
	if len(swapped.With) == 0 && to.String() == swapped.Handle {
		changes[objects.AnnotationSwapped] = nil // all is as it was
	}
	for key, value := range objects.PlaceAnnotations(to.Place) {
		changes[key] = value
	}
	return r.annotate(ctx, s, changes)
}

// end makes both volumes available, and forgets the intents.
func (r *Swapper) end(ctx context.Context, sides [2]*side) error {
	for _, s := range sides {
		volumes, err := r.Volumes(s.intent.From.Backend)
		if err == nil {
			err = volumes.End(ctx, s.intent.From.ID, s.intent.With)
		}
		if err != nil && !cinder.IsKind(err, cinder.KindNotFound) {
			return err
		}
	}
	// The intent that decides goes last.
	for _, s := range slices.Backward(inOrder(sides)) {
		if s.pv == nil {
			continue
		}
		// It may be that of another swap by now.
		if now, err := intentOf(s.pv); err != nil || now == nil || now.With != s.intent.With {
			continue
		}
		if err := r.annotate(ctx, s, map[string]any{AnnotationIntent: nil}); err != nil {
			return err
		}
	}
	return nil
}
