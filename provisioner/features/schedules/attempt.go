package schedules

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/backoff"
)

func (c *Controller) failureOf(claim types.NamespacedName) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failures[claim]
}

// do does what is due for a claim.
func (c *Controller) do(ctx context.Context, a *worker.Attempt[types.NamespacedName]) worker.Outcome {
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

// note keeps an attempt's failure, and reports the first of a claim, and of the rights.
func (c *Controller) note(claim types.NamespacedName, err error) {
	// Quotas and admission of a namespace forbid, too, but with other words.
	lacksRights := apierrors.IsForbidden(err) && (strings.Contains(err.Error(), "cannot create resource") || strings.Contains(err.Error(), "cannot delete resource"))
	c.mu.Lock()
	first, tell := c.failures[claim] == nil, lacksRights && !c.told
	c.told = c.told || tell
	if err == nil {
		delete(c.failures, claim)
	} else {
		c.failures[claim] = err
	}
	c.mu.Unlock()
	if err == nil {
		return
	}
	c.Metrics.count("failed")
	if first {
		c.Logger.Warn("Cannot make the scheduled VolumeSnapshots of a claim; trying again", "claim", claim.String(), "error", err)
	}
	if tell {
		c.Tell("snapshots of schedules are not taken; install the component snapshot-schedules, which has the rights, or remove protect from the policy: " + err.Error())
	}
}

// attempt reads what exists from the API server, because a late cache may show a snapshot as
// good that is gone, and does what is due.
func (c *Controller) attempt(ctx context.Context, a *worker.Attempt[types.NamespacedName]) (more bool, err error) {
	claim, err := c.Claims.PersistentVolumeClaims(a.Key.Namespace).Get(a.Key.Name)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	of, tenant, schedules := c.schedulesOf(c.Policy(), claim)
	// Nothing is done at a backend, so only tenants share the turns.
	if len(schedules) == 0 || !a.Begin(tenant, tenant) {
		return false, nil
	}
	var errs []error
	var taken []*snapshotv1.VolumeSnapshot
	known := false
	for _, s := range schedules {
		if !known {
			if taken, known, err = c.read(ctx, of); err != nil || !known {
				return false, errors.Join(append(errs, err)...)
			}
		}
		wrote, left, err := c.follow(ctx, of, s, taken)
		known, more, errs = !wrote, more || left, append(errs, err)
	}
	return more, errors.Join(errs...)
}

// read reads the VolumeSnapshots of a claim from the API server. A write follows at once. It
// returns false if the claim is gone, and perhaps another has its name: that one's snapshots
// must not push out those of the former.
func (c *Controller) read(ctx context.Context, of protected) (taken []*snapshotv1.VolumeSnapshot, exists bool, err error) {
	if err := c.limit.Wait(ctx); err != nil {
		return nil, false, err
	}
	list, err := within(ctx, func(ctx context.Context) (*snapshotv1.VolumeSnapshotList, error) {
		return c.Client.SnapshotV1().VolumeSnapshots(of.Namespace).List(ctx, metav1.ListOptions{LabelSelector: labels.SelectorFromSet(labels.Set{objects.LabelClaimUID: string(of.UID)}).String()})
	})
	if err != nil {
		return nil, false, fmt.Errorf("cannot list the VolumeSnapshots of claim %s/%s: %w", of.Namespace, of.Claim, err)
	}
	for i := range list.Items {
		taken = append(taken, &list.Items[i])
	}
	claim, err := within(ctx, func(ctx context.Context) (*corev1.PersistentVolumeClaim, error) {
		return c.Kubernetes.CoreV1().PersistentVolumeClaims(of.Namespace).Get(ctx, of.Claim, metav1.GetOptions{})
	})
	switch {
	case apierrors.IsNotFound(err):
		return nil, false, nil
	case err != nil:
		return nil, false, fmt.Errorf("cannot read claim %s/%s: %w", of.Namespace, of.Claim, err)
	}
	return taken, claim.UID == of.UID && claim.DeletionTimestamp == nil, nil
}

// follow does the next that is due for a schedule. It deletes one VolumeSnapshot at most: for
// the next one, the newer good ones must still exist. That comes first, since it may make room
// in a quota, but must not keep another from being taken. left means that more is due.
func (c *Controller) follow(ctx context.Context, of protected, s policy.Schedule, taken []*snapshotv1.VolumeSnapshot) (wrote, left bool, err error) {
	claims, err := c.Claims.PersistentVolumeClaims(of.Namespace).List(labels.Everything())
	if err != nil {
		return false, false, err
	}
	p := planOf(of, s, ofSchedule(of, s, taken), restoredBy(claims), time.Now())
	var errs []error
	for _, old := range p.expired[:min(len(p.expired), refusedAtOnce)] {
		if err = c.remove(ctx, of, s, old); err == nil {
			return true, len(p.expired) > 1 || p.take != "", errors.Join(errs...)
		}
		errs = append(errs, err)
	}
	if p.take != "" {
		errs = append(errs, c.take(ctx, of, s, p.take))
	}
	return p.take != "", false, errors.Join(errs...)
}

// take creates the VolumeSnapshot of a turn.
func (c *Controller) take(ctx context.Context, of protected, s policy.Schedule, name string) error {
	err := c.create(ctx, of, s, name)
	if apierrors.IsAlreadyExists(err) {
		var there *snapshotv1.VolumeSnapshot
		if there, err = within(ctx, func(ctx context.Context) (*snapshotv1.VolumeSnapshot, error) {
			return c.Client.SnapshotV1().VolumeSnapshots(of.Namespace).Get(ctx, name, metav1.GetOptions{})
		}); err == nil && isOf(of, s, there) {
			return nil // another leader was faster
		}
		if err == nil {
			// Somebody has taken it over, or an earlier claim of this name had it.
			name = nameOf(of, s.Name, time.Now())
			err = c.create(ctx, of, s, name)
		}
	}
	if err != nil {
		return fmt.Errorf("cannot create VolumeSnapshot %s/%s of schedule %s: %w", of.Namespace, name, s.Name, err)
	}
	c.Metrics.count("created")
	c.Logger.Info("Created a scheduled VolumeSnapshot", "snapshot", of.Namespace+"/"+name, "claim", of.Claim, "schedule", s.Name)
	return nil
}

func (c *Controller) create(ctx context.Context, of protected, s policy.Schedule, name string) error {
	made := &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: of.Namespace, Labels: objects.ScheduleLabels(s.Name, of.UID)},
		Spec:       snapshotv1.VolumeSnapshotSpec{Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: &of.Claim}},
	}
	if s.SnapshotClass != "" {
		made.Spec.VolumeSnapshotClassName = &s.SnapshotClass
	}
	_, err := within(ctx, func(ctx context.Context) (*snapshotv1.VolumeSnapshot, error) {
		return c.Client.SnapshotV1().VolumeSnapshots(of.Namespace).Create(ctx, made, metav1.CreateOptions{})
	})
	return err
}

// remove deletes a VolumeSnapshot that is not needed any longer.
func (c *Controller) remove(ctx context.Context, of protected, s policy.Schedule, old *snapshotv1.VolumeSnapshot) error {
	_, err := within(ctx, func(ctx context.Context) (any, error) {
		// A tenant may have taken it over meanwhile, by removing its labels.
		return nil, c.Client.SnapshotV1().VolumeSnapshots(of.Namespace).Delete(ctx, old.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &old.UID, ResourceVersion: &old.ResourceVersion}})
	})
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return nil
	case err != nil:
		return fmt.Errorf("cannot delete VolumeSnapshot %s/%s, which schedule %s needs no longer: %w", of.Namespace, old.Name, s.Name, err)
	}
	c.Metrics.count("deleted")
	c.Logger.Info("Deleted a scheduled VolumeSnapshot, because newer ones are good", "snapshot", of.Namespace+"/"+old.Name, "claim", of.Claim, "schedule", s.Name)
	return nil
}

// within bounds a request.
func within[T any](ctx context.Context, request func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return request(ctx)
}
