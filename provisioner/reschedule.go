package provisioner

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/policy/admission"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/ledger"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/placement"
)

// The scheduler selects the node of a claim's pod before the volume is made, and looks
// for another one when the annotation with the node is removed. It has no memory, and may
// select the same node again. So it is asked at once the first time, then after growing
// pauses.
//
// See docs/decisions.md, "Failed locations and other nodes".
const (
	firstReschedulePause = 10 * time.Second
	maxReschedulePause   = 5 * time.Minute
)

// reschedules holds, by claim, when the scheduler may be asked again. It ends with the
// term, so the next leader may ask at once.
type reschedules struct {
	mu     sync.Mutex
	claims map[types.UID]*reschedule
}

type reschedule struct {
	pause time.Duration
	next  time.Time
	// timer requeues a denied claim when the scheduler may be asked again.
	timer *time.Timer
}

func newReschedules() *reschedules { return &reschedules{claims: map[types.UID]*reschedule{}} }

// mayAsk reports whether the scheduler may be asked for another node now.
func (r *reschedules) mayAsk(claim types.UID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.claims[claim]
	return known == nil || !time.Now().Before(known.next)
}

// pauseAfter begins a pause longer than the last.
func (r *reschedules) pauseAfter(claim types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.of(claim)
	known.pause = min(max(2*known.pause, firstReschedulePause), maxReschedulePause)
	known.next = time.Now().Add(known.pause)
}

// atEnd calls back once when the claim's pause is over. Without a pause, it waits as long
// as the first one would take.
func (r *reschedules) atEnd(claim types.UID, back func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.of(claim)
	if known.timer != nil {
		known.timer.Stop()
	}
	wait := time.Until(known.next)
	if wait <= 0 {
		wait = firstReschedulePause
	}
	known.timer = time.AfterFunc(wait, back)
}

func (r *reschedules) of(claim types.UID) *reschedule {
	known := r.claims[claim]
	if known == nil {
		known = &reschedule{}
		r.claims[claim] = known
	}
	return known
}

// Forget drops a claim that no longer needs a node.
func (r *reschedules) Forget(claim types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if known := r.claims[claim]; known != nil && known.timer != nil {
		known.timer.Stop()
	}
	delete(r.claims, claim)
}

// nodeOf returns the node that the scheduler selected and may replace; empty if there is
// none.
func nodeOf(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) string {
	if !admission.ClassOf(class).WaitsForPod || claim.Spec.VolumeName != "" {
		return ""
	}
	return claim.Annotations[admission.SelectedNodeAnnotation]
}

// lacksNode reports whether the scheduler must select a node before the library
// provisions the claim. The library asks about such a claim anyway, because removing the
// node's annotation leaves the provisioner's annotation in place.
func lacksNode(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) bool {
	return admission.ClassOf(class).WaitsForPod && claim.Annotations[admission.SelectedNodeAnnotation] == ""
}

// awaitNode makes a claim wait for the scheduler only. Meanwhile it holds no room and no
// worker.
func (c *claims) awaitNode(claim types.UID) {
	c.parkedClaims.lot.Take(claim)
	c.parkedClaims.loop.Leave(string(claim))
	if _, begun := c.journal.Beginning(claim); !begun {
		c.ledger.ReleaseReservation(claim)
	}
}

// onAnyNode decides as if the scheduler had not selected a node yet, and reports whether
// another node helps: one that reaches a location that has not failed and is out of the
// selected node's reach.
func (c *claims) onAnyNode(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) (decision ledger.Decided, helps bool) {
	if nodeOf(claim, class) == "" {
		return ledger.Decided{}, false
	}
	by := c.askerOf(claim)
	reached := c.placement.Untried(claim.UID, c.decide(claim, class, by))
	unscheduled := claim.DeepCopy()
	delete(unscheduled.Annotations, admission.SelectedNodeAnnotation)
	delete(unscheduled.Annotations, admission.AlphaSelectedNodeAnnotation)
	decision = c.decide(unscheduled, class, by)
	return decision, slices.ContainsFunc(c.placement.Untried(claim.UID, decision), func(at policy.Location) bool {
		return !slices.Contains(reached, at)
	})
}

// hasNothing reports whether the claim provably has no volume and none is being made,
// by the same proof that lets a claim go to another backend.
func (c *claims) hasNothing(claim *corev1.PersistentVolumeClaim, d ledger.Decided) bool {
	stamp := c.stampOf(claim.UID, d.Tenant)
	return !c.mayHaveVolume(claim.UID) && !slices.ContainsFunc(c.placement.RuleBackends(d), func(name string) bool {
		return c.placement.MayHaveVolume(claim, name, stamp)
	})
}

// reschedule asks the scheduler for another node, if that helps and the last pause is
// over.
//
// The patch removes one annotation and applies only to the claim's version that the
// decision is about. The library would update the whole claim, of which the cache holds
// only a part.
func (c *claims) reschedule(ctx context.Context, decided *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, why string) (asked bool) {
	claim, err := c.cachedClaims.PersistentVolumeClaims(decided.Namespace).Get(decided.Name)
	if err != nil || claim.UID != decided.UID || nodeOf(claim, class) != nodeOf(decided, class) {
		return false
	}
	decision, helps := c.onAnyNode(claim, class)
	if !helps || !c.reschedules.mayAsk(claim.UID) {
		return false
	}
	if !c.hasNothing(claim, decision) {
		c.reschedules.pauseAfter(claim.UID)
		return false
	}
	err = removeSelectedNode(ctx, c.client, claim)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		// The claim has changed, so it is queued anyway.
		return false
	}
	c.reschedules.pauseAfter(claim.UID)
	if err != nil {
		c.logger.Warn("Cannot ask the scheduler for another node", "claim", claim.Namespace+"/"+claim.Name, "error", err)
		return false
	}
	c.awaitNode(claim.UID)
	c.recorder.Eventf(claim, corev1.EventTypeWarning, "RescheduleRequested", "asked the scheduler to select a node other than %s: %s", nodeOf(claim, class), why)
	return true
}

func removeSelectedNode(ctx context.Context, client kubernetes.Interface, claim *corev1.PersistentVolumeClaim) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": claim.UID, "resourceVersion": claim.ResourceVersion, "annotations": map[string]any{admission.SelectedNodeAnnotation: nil},
	}})
	if err != nil {
		return err
	}
	_, err = client.CoreV1().PersistentVolumeClaims(claim.Namespace).Patch(ctx, claim.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// denyOnNode denies a claim that the policy does not admit, unless it can ask the
// scheduler for another node. If it cannot ask yet, the claim is retried when the pause
// is over.
func (c *claims) denyOnNode(ctx context.Context, turn *turn, claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, denied placement.Denial) {
	if c.reschedule(ctx, claim, class, denied.Message) {
		return
	}
	c.deny(turn, claim, denied)
	if _, helps := c.onAnyNode(claim, class); helps {
		c.reschedules.atEnd(claim.UID, func() {
			if !c.stopping() {
				c.parkedClaims.reconsider(claim.UID)
			}
		})
	}
}
