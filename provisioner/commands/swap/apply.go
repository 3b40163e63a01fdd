package swap

import (
	"context"
	"errors"
	"fmt"

	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// Apply swaps the volumes. If it fails before the first stamp, it takes back what it did.
func (r *Swapper) Apply(ctx context.Context, p *Plan) error {
	if p.Done {
		return nil
	}
	switched := p.sides[0].isSwitched() && p.sides[1].isSwitched()
	if !switched {
		for _, s := range p.sides {
			if err := r.annotate(ctx, s, map[string]any{AnnotationIntent: s.intent}); err != nil {
				return err
			}
		}
		if err := r.begin(ctx, p); err != nil {
			return err
		}
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
	}
	return r.end(ctx, p)
}

// begin reserves both volumes. What the plan has seen of their use may be old by then, so
// it looks once more, unless an earlier run has gone beyond this point.
func (r *Swapper) begin(ctx context.Context, p *Plan) error {
	var err error
	for _, s := range p.sides {
		volumes, unknown := r.Volumes(s.intent.From.Backend)
		if err = unknown; err == nil {
			err = volumes.Begin(ctx, s.intent.From.Volume, s.intent.With)
		}
		if err != nil {
			break
		}
	}
	beyond, readErr := r.isBeyond(ctx, p)
	switch {
	case readErr != nil:
		return errors.Join(err, readErr)
	case beyond:
		return err
	case err == nil:
		err = r.stillFree(ctx, p)
	}
	if err == nil {
		return nil
	}
	if undone := r.end(ctx, p); undone != nil {
		return fmt.Errorf("%w; what was begun could not be taken back, so run the command again: %w", err, undone)
	}
	return err
}

// isBeyond reports whether a volume has the stamp of its new PersistentVolume, or a record
// is switched.
func (r *Swapper) isBeyond(ctx context.Context, p *Plan) (bool, error) {
	for _, s := range p.sides {
		volumes, err := r.Volumes(s.intent.To.Backend)
		if err != nil {
			return false, err
		}
		v, _, err := volumes.Volume(ctx, s.intent.To.Volume)
		if err != nil {
			return false, err
		}
		if stamps.Of(v).PV == s.pv.Name || s.isSwitched() {
			return true, nil
		}
	}
	return false, nil
}

// stillFree looks once more whether a claim has gone or is in use.
func (r *Swapper) stillFree(ctx context.Context, p *Plan) error {
	again := &planner{Swapper: r, Plan: p}
	for i, s := range p.sides {
		now, err := r.read(ctx, p.Namespace, p.Claims[i])
		if err != nil {
			return err
		}
		if now.claim == nil || now.claim.UID != s.claim.UID || now.pv.UID != s.pv.UID {
			return refused("claim %s was deleted, or made anew, meanwhile", p.Claims[i])
		}
		if err := again.checkUse(ctx, s); err != nil {
			return err
		}
	}
	if len(again.problems) > 0 {
		return &RefusedError{again.problems}
	}
	return nil
}

// restamp gives a side's new volume its stamp.
func (r *Swapper) restamp(ctx context.Context, s *side) error {
	volumes, err := r.Volumes(s.intent.To.Backend)
	if err != nil {
		return err
	}
	return volumes.Restamp(ctx, s.intent.To.Volume, r.stamp(s), string(s.pv.UID))
}

// record makes a PersistentVolume record its new volume.
func (r *Swapper) record(ctx context.Context, s *side) error {
	to, with := s.intent.To, s.intent.With
	if s.intent.Back {
		with = ""
	}
	changes := map[string]any{
		objects.AnnotationVolume: to.Volume, objects.AnnotationBackend: to.Backend,
		objects.AnnotationEndpoint: nil, objects.AnnotationProject: nil,
		objects.AnnotationSwapped: objects.Swapped{
			Handle: s.pv.Spec.CSI.VolumeHandle, With: with, FilesystemUUIDs: to.FilesystemUUIDs, NeverFormat: to.NeverFormat,
		},
	}
	if s.intent.Back && to.String() == s.pv.Spec.CSI.VolumeHandle {
		changes[objects.AnnotationSwapped] = nil // all is as it was
	}
	for key, value := range objects.PlaceAnnotations(to.Place) {
		changes[key] = value
	}
	return r.annotate(ctx, s, changes)
}

// end makes both volumes available, and forgets the intents.
func (r *Swapper) end(ctx context.Context, p *Plan) error {
	for _, s := range p.sides {
		volumes, err := r.Volumes(s.intent.From.Backend)
		if err == nil {
			err = volumes.End(ctx, s.intent.From.Volume, s.intent.With)
		}
		if err != nil {
			return err
		}
	}
	for _, s := range p.sides {
		if err := r.annotate(ctx, s, map[string]any{AnnotationIntent: nil}); err != nil {
			return err
		}
	}
	return nil
}
