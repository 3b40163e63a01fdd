package schedules

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/backoff"
)

func (c *Controller) failureOf(of target) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failures[of]
}

// do does what is due for a target.
func (c *Controller) do(ctx context.Context, a *worker.Attempt[target]) worker.Outcome {
	more, err := c.attempt(ctx, a)
	if ctx.Err() != nil || a.Waits() {
		return worker.Outcome{} // the next leader continues, or another attempt
	}
	if c.note(a.Key, err); err != nil {
		return worker.Outcome{Retry: &backoff.Delay{Outcome: "kubernetes", First: 10 * time.Second, Most: time.Minute}}
	}
	if more {
		c.loop.Add(a.Key)
	}
	return worker.Outcome{Done: true}
}

// note keeps an attempt's failure, and reports the first of a target, and of the rights.
func (c *Controller) note(of target, err error) {
	// Quotas and admission of a namespace forbid, too, but with other words.
	lacksRights := apierrors.IsForbidden(err) && (strings.Contains(err.Error(), "cannot create resource") || strings.Contains(err.Error(), "cannot delete resource"))
	c.mu.Lock()
	first, tell := c.failures[of] == nil, lacksRights && !c.told
	c.told = c.told || tell
	if err == nil {
		delete(c.failures, of)
	} else {
		c.failures[of] = err
	}
	c.mu.Unlock()
	if err == nil {
		return
	}
	c.Metrics.count("failed")
	if first {
		c.Logger.Warn("Cannot make scheduled snapshots; trying again", "of", of.String(), "error", err)
	}
	if tell {
		c.Tell("snapshots of schedules are not taken; install the component snapshot-schedules, which has the rights, or remove protect from the policy: " + err.Error())
	}
}

// attempt reads what exists from the API server, because a late cache may show a snapshot as
// good that is gone, and does what is due.
func (c *Controller) attempt(ctx context.Context, a *worker.Attempt[target]) (more bool, err error) {
	of, err := c.find(a.Key)
	// Nothing is done at a backend, so only tenants share the turns.
	if err != nil || of == nil || !a.Begin(of.tenant, of.tenant) {
		return false, err
	}
	var errs []error
	var taken []*shot
	known := false
	for _, s := range of.schedules {
		if !known {
			if taken, known, err = c.read(ctx, of.target); err != nil || !known {
				return false, errors.Join(append(errs, err)...)
			}
		}
		wrote, left, err := c.follow(ctx, of, s, taken)
		known, more, errs = !wrote, more || left, append(errs, err)
	}
	return more, errors.Join(errs...)
}

// find returns a target as the caches show it; nil if it has no schedule any more.
func (c *Controller) find(key target) (*protected, error) {
	claims, err := c.Claims.PersistentVolumeClaims(key.namespace).List(labels.Everything())
	if err != nil {
		return nil, err
	}
	all := c.protectedBy(c.Policy(), slices.DeleteFunc(claims, func(claim *corev1.PersistentVolumeClaim) bool {
		return claim.UID != key.uid && (!key.isGroup() || claim.Labels[objects.LabelProtectGroup] != key.group)
	}))
	if i := slices.IndexFunc(all, func(of *protected) bool { return of.target == key }); i >= 0 {
		return all[i], nil
	}
	return nil, nil
}

// read reads the snapshots of a target from the API server. A write follows at once. It
// returns false if the claim is gone, and perhaps another has its name: that one's snapshots
// must not push out those of the former.
func (c *Controller) read(ctx context.Context, of target) (taken []*shot, exists bool, err error) {
	if err := c.limit.Wait(ctx); err != nil {
		return nil, false, err
	}
	kind := c.kindOf(of)
	if taken, err = within(ctx, func(ctx context.Context) ([]*shot, error) { return kind.list(ctx, of) }); err != nil {
		return nil, false, fmt.Errorf("cannot list the %ss of %s: %w", kind, of, err)
	}
	if exists, err = within(ctx, func(ctx context.Context) (bool, error) { return kind.exists(ctx, of) }); err != nil {
		return nil, false, fmt.Errorf("cannot read %s: %w", of, err)
	}
	return taken, exists, nil
}

// follow does the next that is due for a schedule. It deletes one snapshot at most: for the
// next one, the newer good ones must still exist. That comes first, since it may make room
// in a quota, but must not keep another from being taken. left means that more is due.
func (c *Controller) follow(ctx context.Context, of *protected, s policy.Schedule, taken []*shot) (wrote, left bool, err error) {
	claims, err := c.Claims.PersistentVolumeClaims(of.namespace).List(labels.Everything())
	if err != nil {
		return false, false, err
	}
	this := series{of.target, s.Name}
	own := slices.DeleteFunc(slices.Clone(taken), func(one *shot) bool { return one.series != this })
	p := planOf(of, s, own, restoredBy(claims), time.Now())
	var errs []error
	for _, old := range p.expired[:min(len(p.expired), refusedAtOnce)] {
		if err = c.remove(ctx, old); err == nil {
			return true, len(p.expired) > 1 || p.take != "", errors.Join(errs...)
		}
		errs = append(errs, err)
	}
	if p.take != "" {
		err := c.mustMake(s)
		if err == nil {
			err = c.take(ctx, this, s.SnapshotClass, p.take)
		}
		errs = append(errs, err)
	}
	return p.take != "", false, errors.Join(errs...)
}

// mustMake returns an error if the class of a schedule of backups makes snapshots, which would
// not survive their volume.
func (c *Controller) mustMake(s policy.Schedule) error {
	if s.As != policy.AsBackup {
		return nil
	}
	class, err := c.Snapshots.VolumeSnapshotClass(s.SnapshotClass)
	switch {
	case err != nil:
		return fmt.Errorf("cannot read the class of schedule %s: %w", s.Name, err)
	case class.Parameters[policy.ParameterType] != policy.TypeBackup:
		return fmt.Errorf("schedule %s makes backups, but VolumeSnapshotClass %s makes snapshots; give it the parameter type: backup, or name another", s.Name, class.Name)
	}
	return nil
}

// take creates the snapshot of a turn.
func (c *Controller) take(ctx context.Context, of series, class, name string) error {
	kind := c.kindOf(of.target)
	create := func(ctx context.Context) (any, error) { return nil, kind.create(ctx, of, class, name) }
	_, err := within(ctx, create)
	if apierrors.IsAlreadyExists(err) {
		var there *shot
		if there, err = within(ctx, func(ctx context.Context) (*shot, error) { return kind.get(ctx, of.namespace, name) }); err == nil && there.series == of {
			return nil // another leader was faster
		}
		if err == nil {
			// Somebody has taken it over, or an earlier claim of this name had it.
			name = nameOf(of.target, of.schedule, time.Now())
			_, err = within(ctx, create)
		}
	}
	if err != nil {
		return fmt.Errorf("cannot create %s %s/%s of schedule %s: %w", kind, of.namespace, name, of.schedule, err)
	}
	c.Metrics.count("created")
	c.Logger.Info("Created a scheduled "+kind.String(), "snapshot", of.namespace+"/"+name, "of", of.target.String(), "schedule", of.schedule)
	return nil
}

// remove deletes a snapshot that is not needed any longer.
func (c *Controller) remove(ctx context.Context, old *shot) error {
	kind := c.kindOf(old.target)
	_, err := within(ctx, func(ctx context.Context) (any, error) {
		// A tenant may have taken it over meanwhile, by removing its labels.
		return nil, kind.delete(ctx, old, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &old.uid, ResourceVersion: &old.version}})
	})
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return nil
	case err != nil:
		return fmt.Errorf("cannot delete %s %s/%s, which schedule %s needs no longer: %w", kind, old.namespace, old.name, old.schedule, err)
	}
	c.Metrics.count("deleted")
	c.Logger.Info("Deleted a scheduled "+kind.String()+", because newer ones are good", "snapshot", old.namespace+"/"+old.name, "of", old.target.String(), "schedule", old.schedule)
	return nil
}

// within bounds a request.
func within[T any](ctx context.Context, request func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return request(ctx)
}
