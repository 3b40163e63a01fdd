package rebind

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// Apply carries out a plan, and waits for what Kubernetes and the leader do. It may be
// interrupted anywhere; a new plan continues from what was done.
func (r *Rebinder) Apply(ctx context.Context, plan *Plan) error {
	if plan.Done {
		return nil
	}
	if !plan.moved {
		if err := r.bind(ctx, plan); err != nil {
			return err
		}
	}
	if err := r.awaitBound(ctx, plan); err != nil {
		return err
	}
	if err := r.awaitLeader(ctx, plan); err != nil {
		return err
	}
	return r.restorePolicy(ctx, plan)
}

// bind takes the steps up to the one that gives the claim the PersistentVolume.
func (r *Rebinder) bind(ctx context.Context, plan *Plan) error {
	mayBeDeleted := plan.pv.Status.Phase == corev1.VolumeReleased && wanted(plan.pv) == corev1.PersistentVolumeReclaimDelete
	if err := r.retain(ctx, plan); err != nil {
		return err
	}
	if plan.holder != nil && plan.holder.DeletionTimestamp == nil && !plan.DeleteClaim {
		return &HeldError{plan.holder}
	}
	if err := r.createClaim(ctx, plan); err != nil {
		return err
	}
	if plan.holder != nil {
		if err := r.release(ctx, plan); err != nil {
			return err
		}
	}
	if mayBeDeleted {
		// The leader reads the reclaim policy live before its first change, and checks it
		// in its cache before each further one. So what it had begun before the policy was
		// Retain shows soon, and nothing new begins.
		if err := sleep(ctx, r.Settle); err != nil {
			return err
		}
	}
	if err := r.awaitUnused(ctx, plan); err != nil {
		return err
	}
	if problem, err := r.problemOfVolume(ctx, plan.origin); err != nil || problem != "" {
		return errors.Join(err, refusedIf(problem))
	}
	return r.point(ctx, plan)
}

func refusedIf(problem string) error {
	if problem == "" {
		return nil
	}
	return refused("%s", problem)
}

// retain sets the reclaim policy Retain, and notes the one that the PersistentVolume gets
// back, in one request: there is no moment at which only one of them is known.
func (r *Rebinder) retain(ctx context.Context, plan *Plan) error {
	err := r.change(ctx, plan, func(live *corev1.PersistentVolume) (map[string]any, error) {
		switch {
		case !sameRef(live.Spec.ClaimRef, plan.pv.Spec.ClaimRef):
			return nil, changed(live)
		case live.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain:
			return nil, nil
		}
		return map[string]any{
			"metadata": map[string]any{"annotations": map[string]any{AnnotationReclaimPolicy: wanted(live)}},
			"spec":     map[string]any{"persistentVolumeReclaimPolicy": corev1.PersistentVolumeReclaimRetain},
		}, nil
	}, func(before, after *corev1.PersistentVolume) {
		r.Say(fmt.Sprintf("PersistentVolume %s has the reclaim policy Retain; it had %s", after.Name, before.Spec.PersistentVolumeReclaimPolicy))
	})
	if err == nil && plan.pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain {
		err = refused("PersistentVolume %s still has the reclaim policy %s after it was set to Retain; something in the cluster sets it back", plan.pv.Name, plan.pv.Spec.PersistentVolumeReclaimPolicy)
	}
	return err
}

// createClaim creates the claim that gets the PersistentVolume, unless it exists. Until
// spec.claimRef names it, it stays Pending, and nothing is provisioned for it.
func (r *Rebinder) createClaim(ctx context.Context, plan *Plan) error {
	if plan.claim.UID != "" {
		return nil
	}
	created, err := r.Client.CoreV1().PersistentVolumeClaims(plan.Namespace).Create(ctx, plan.claim, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("cannot create claim %s: %w", plan.to(), err)
	}
	plan.claim = created
	r.Say(fmt.Sprintf("claim %s is created", plan.to()))
	return nil
}

// release deletes the claim that has the PersistentVolume, if the operator asked for
// that, and waits until it is gone.
func (r *Rebinder) release(ctx context.Context, plan *Plan) error {
	if plan.deletes() {
		if err := r.deleteHolder(ctx, plan); err != nil {
			return err
		}
	}
	err := r.await(ctx, func(ctx context.Context) (string, error) {
		holder, err := r.claimAt(ctx, plan.holder.Namespace, plan.holder.Name)
		if err != nil || holder == nil || holder.UID != plan.holder.UID {
			return "", err
		}
		pending := fmt.Sprintf("claim %s is being deleted, but has the finalizers %s", nameOf(holder), strings.Join(holder.Finalizers, ", "))
		if pods, err := r.podsOf(ctx, holder); err == nil && len(pods) > 0 {
			pending += fmt.Sprintf("; pod %s uses it", strings.Join(pods, ", "))
		}
		return pending, nil
	})
	if err == nil {
		r.Say(fmt.Sprintf("claim %s is gone", nameOf(plan.holder)))
	}
	return err
}

// deleteHolder deletes the claim that has the PersistentVolume. It reads everything again
// that makes this safe: the plan may have waited for the operator.
func (r *Rebinder) deleteHolder(ctx context.Context, plan *Plan) error {
	holder := plan.holder
	pods, err := r.podsOf(ctx, holder)
	if err != nil {
		return err
	}
	nodes, err := r.usersOf(ctx, plan.pv)
	switch {
	case err != nil:
		return err
	case len(pods) > 0:
		return refused("pod %s uses claim %s; stop it first", strings.Join(pods, ", "), nameOf(holder))
	case nodes != "":
		return refused("%s", nodes)
	}
	live, err := r.read(ctx, plan)
	switch {
	case err != nil:
		return err
	case live.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain || !isFor(live, holder):
		return changed(live)
	}
	err = r.Client.CoreV1().PersistentVolumeClaims(holder.Namespace).Delete(ctx, holder.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &holder.UID}})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("cannot delete claim %s: %w", nameOf(holder), err)
	}
	return nil
}

// awaitUnused waits until no node uses the volume: it may still have to write what the
// pods of the earlier claim wrote.
func (r *Rebinder) awaitUnused(ctx context.Context, plan *Plan) error {
	return r.await(ctx, func(ctx context.Context) (string, error) {
		live, err := r.read(ctx, plan)
		if err != nil {
			return "", err
		}
		return r.usersOf(ctx, live)
	})
}

// point gives the claim the PersistentVolume, as Kubernetes itself binds one: by the
// claim's UID, so that no other claim gets it.
func (r *Rebinder) point(ctx context.Context, plan *Plan) error {
	return r.change(ctx, plan, func(live *corev1.PersistentVolume) (map[string]any, error) {
		switch {
		case isFor(live, plan.claim):
			return nil, nil
		case !sameRef(live.Spec.ClaimRef, plan.pv.Spec.ClaimRef), live.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain:
			return nil, changed(live)
		}
		return map[string]any{"spec": map[string]any{"claimRef": map[string]any{
			"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": plan.Namespace, "name": plan.Claim, "uid": plan.claim.UID,
			"resourceVersion": nil, "fieldPath": nil,
		}}}, nil
	}, func(_, after *corev1.PersistentVolume) {
		r.Say(fmt.Sprintf("PersistentVolume %s names claim %s", after.Name, plan.to()))
	})
}

// awaitBound waits until Kubernetes has bound the two. It looks at the claim only when it
// next goes through all claims, every 15 seconds by default.
func (r *Rebinder) awaitBound(ctx context.Context, plan *Plan) error {
	return r.await(ctx, func(ctx context.Context) (string, error) {
		claim, err := r.liveClaim(ctx, plan)
		if err != nil {
			return "", err
		}
		live, err := r.read(ctx, plan)
		switch {
		case err != nil:
			return "", err
		case !isFor(live, claim):
			return "", changed(live)
		case live.Status.Phase != corev1.VolumeBound || claim.Status.Phase != corev1.ClaimBound || claim.Spec.VolumeName != live.Name:
			return fmt.Sprintf("claim %s is %s, and PersistentVolume %s is %s; kube-controller-manager binds them; see kubectl -n %s describe pvc %s", nameOf(claim), claim.Status.Phase, live.Name, live.Status.Phase, claim.Namespace, claim.Name), nil
		}
		return "", nil
	})
}

// liveClaim reads the claim that gets the PersistentVolume.
func (r *Rebinder) liveClaim(ctx context.Context, plan *Plan) (*corev1.PersistentVolumeClaim, error) {
	claim, err := r.claimAt(ctx, plan.Namespace, plan.Claim)
	switch {
	case err != nil:
		return nil, err
	case claim == nil || claim.UID != plan.claim.UID || claim.DeletionTimestamp != nil:
		return nil, refused("claim %s was deleted in the meantime; PersistentVolume %s stays, with the reclaim policy Retain", plan.to(), plan.pv.Name)
	}
	return claim, nil
}

// rebindDenied is the reason of the events by which the leader says that the claim does
// not get the volume.
const rebindDenied = "RebindDenied"

// awaitLeader waits until the leader has stamped the volume for the claim.
func (r *Rebinder) awaitLeader(ctx context.Context, plan *Plan) error {
	if plan.rebound() {
		return nil
	}
	began := time.Now()
	err := r.await(ctx, func(ctx context.Context) (string, error) {
		live, err := r.read(ctx, plan)
		if err != nil || objects.HolderOf(live) == plan.claim.UID {
			return "", err
		}
		denial, err := r.denial(ctx, plan)
		switch {
		case err != nil:
			return "", err
		case denial == "":
			return fmt.Sprintf("the leader has not stamped volume %s for claim %s; see kubectl describe pv %s, standalone-cinder status, and the leader's log", plan.origin.VolumeID, plan.to(), live.Name), nil
		case time.Since(began) > r.Settle:
			return "", refused("claim %s is bound to PersistentVolume %s, but the leader does not give it the volume (%s): %s; do what the event says, and run this command again", plan.to(), live.Name, rebindDenied, denial)
		}
		return denial, nil // perhaps of an earlier policy
	})
	if err == nil {
		r.Say(fmt.Sprintf("the leader has stamped volume %s for claim %s", plan.origin.VolumeID, plan.to()))
	}
	return err
}

// denial returns what the leader says if it does not give the claim the volume; empty if
// it has said nothing. It says more to operators, on the PersistentVolume, than to the
// claim's tenant. Its event on the claim shows that it means this claim.
func (r *Rebinder) denial(ctx context.Context, plan *Plan) (string, error) {
	onClaim, err := r.denialOf(ctx, plan.Namespace, plan.claim.UID)
	if err != nil || onClaim == "" {
		return "", err
	}
	onPV, err := r.denialOf(ctx, metav1.NamespaceDefault, plan.pv.UID)
	return cmp.Or(onPV, onClaim), err
}

// denialOf returns the latest denial of an object.
func (r *Rebinder) denialOf(ctx context.Context, namespace string, uid types.UID) (string, error) {
	events, err := r.Client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.Set{"involvedObject.uid": string(uid), "reason": rebindDenied}.String(),
	})
	if err != nil {
		return "", fmt.Errorf("cannot list the events of namespace %s: %w", namespace, err)
	}
	var latest corev1.Event
	for _, event := range events.Items {
		if event.InvolvedObject.UID == uid && event.Reason == rebindDenied && !event.LastTimestamp.Before(&latest.LastTimestamp) {
			latest = event
		}
	}
	return latest.Message, nil
}

// restorePolicy gives the PersistentVolume its reclaim policy back. If the claim was
// deleted meanwhile, it keeps Retain, since Delete would delete the volume at once.
func (r *Rebinder) restorePolicy(ctx context.Context, plan *Plan) error {
	if _, err := r.liveClaim(ctx, plan); err != nil {
		return err
	}
	return r.change(ctx, plan, func(live *corev1.PersistentVolume) (map[string]any, error) {
		switch {
		case live.Annotations[AnnotationReclaimPolicy] == "":
			return nil, nil
		case !isFor(live, plan.claim) || live.Status.Phase != corev1.VolumeBound:
			return nil, changed(live)
		}
		return map[string]any{
			"metadata": map[string]any{"annotations": map[string]any{AnnotationReclaimPolicy: nil}},
			"spec":     map[string]any{"persistentVolumeReclaimPolicy": wanted(live)},
		}, nil
	}, func(_, after *corev1.PersistentVolume) {
		r.Say(fmt.Sprintf("PersistentVolume %s has the reclaim policy %s", after.Name, after.Spec.PersistentVolumeReclaimPolicy))
	})
}

// change patches the PersistentVolume as it is at the API server, and calls done if there
// was anything to change. patch says what to change, or why nothing may be. The request
// fails if the object has changed since it was read, and is then repeated: Kubernetes and
// the leader write on it, too.
func (r *Rebinder) change(ctx context.Context, plan *Plan, patch func(live *corev1.PersistentVolume) (map[string]any, error), done func(before, after *corev1.PersistentVolume)) error {
	for {
		live, err := r.read(ctx, plan)
		if err != nil {
			return err
		}
		of, err := patch(live)
		if err != nil {
			return err
		}
		if of == nil {
			plan.pv = live
			return nil
		}
		metadata, _ := of["metadata"].(map[string]any)
		if metadata == nil {
			metadata = map[string]any{}
			of["metadata"] = metadata
		}
		metadata["uid"], metadata["resourceVersion"] = live.UID, live.ResourceVersion
		encoded, err := json.Marshal(of)
		if err != nil {
			return err
		}
		after, err := r.Client.CoreV1().PersistentVolumes().Patch(ctx, live.Name, types.MergePatchType, encoded, metav1.PatchOptions{})
		switch {
		case apierrors.IsConflict(err):
			continue
		case err != nil:
			return fmt.Errorf("cannot change PersistentVolume %s: %w", live.Name, err)
		}
		plan.pv = after
		done(live, after)
		return nil
	}
}

// read reads the PersistentVolume from the API server.
func (r *Rebinder) read(ctx context.Context, plan *Plan) (*corev1.PersistentVolume, error) {
	live, err := r.Client.CoreV1().PersistentVolumes().Get(ctx, plan.pv.Name, metav1.GetOptions{})
	switch {
	case err != nil && !apierrors.IsNotFound(err):
		return nil, fmt.Errorf("cannot read PersistentVolume %s: %w", plan.pv.Name, err)
	case err != nil || live.UID != plan.pv.UID || live.DeletionTimestamp != nil:
		return nil, refused("PersistentVolume %s was deleted in the meantime", plan.pv.Name)
	}
	return live, nil
}

// changed means that somebody else works on the PersistentVolume.
func changed(live *corev1.PersistentVolume) error {
	bound := "no claim"
	if ref := live.Spec.ClaimRef; ref != nil {
		bound = fmt.Sprintf("claim %s/%s (UID %q)", ref.Namespace, ref.Name, ref.UID)
	}
	return refused("somebody changed PersistentVolume %s in the meantime: it names %s, with the reclaim policy %s", live.Name, bound, live.Spec.PersistentVolumeReclaimPolicy)
}

// sameRef reports whether two references name the same claim.
func sameRef(a, b *corev1.ObjectReference) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Namespace == b.Namespace && a.Name == b.Name && a.UID == b.UID
}

// await looks until nothing is pending. A look that fails is repeated, unless it shows
// that nothing is left to wait for. If the time is up, the error says what is pending.
func (r *Rebinder) await(ctx context.Context, look func(context.Context) (pending string, err error)) error {
	var last string
	for {
		pending, err := look(ctx)
		var refusal *RefusedError
		switch {
		case err == nil && pending == "":
			return nil
		case errors.As(err, &refusal):
			return err
		case err != nil && (ctx.Err() == nil || last == ""):
			last = err.Error()
		case err == nil:
			last = pending
		}
		if err := sleep(ctx, r.Pause); err != nil {
			return fmt.Errorf("not finished (%w): %s; run the same command again, and it continues", err, last)
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
