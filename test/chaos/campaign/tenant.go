package campaign

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/checker"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/plan"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// tenant creates and deletes claims.
type tenant struct {
	world     *world
	namespace string
	// present are its claims by name, as far as it knows.
	present map[string]types.UID
	// retained are those whose volumes are kept; an administrator who keeps a
	// volume does not break it.
	retained map[types.UID]bool
}

func newTenant(w *world, name string) *tenant {
	return &tenant{world: w, namespace: w.names.namespace(name), present: map[string]types.UID{}, retained: map[types.UID]bool{}}
}

// run does what the plan says. It repeats requests that get no answer because
// of the faults, even after the faults end: their outcome must be known.
func (t *tenant) run(ctx, trouble context.Context, steps []plan.ClaimStep) {
	for _, step := range steps {
		if !t.world.carryOut(ctx, trouble, step.At, t.namespace+": "+step.String(), func() error { return t.do(ctx, step) }) {
			return
		}
	}
}

func (t *tenant) do(ctx context.Context, step plan.ClaimStep) error {
	if step.Kind == plan.Create {
		return t.create(ctx, step)
	}
	uid, ok := t.present[step.Claim]
	if !ok {
		return nil // it could not be created
	}
	if step.Kind == plan.Retain {
		return t.retain(ctx, uid)
	}
	delete(t.present, step.Claim)
	if err := t.world.deleteClaim(ctx, t.namespace, step.Claim, uid); err != nil {
		return err
	}
	if step.Fails && !t.retained[uid] {
		t.world.failInUse(uid)
	}
	return nil
}

// maxNameTime is how long to wait until a deleted claim of the same name is
// gone.
const maxNameTime = 6 * time.Second

// create creates a claim.
func (t *tenant) create(ctx context.Context, step plan.ClaimStep) error {
	claim := harness.Claim(t.namespace, step.Claim, t.world.names.class(step.Class), fmt.Sprintf("%dMi", step.SizeMi), func(c *corev1.PersistentVolumeClaim) {
		if step.Class == plan.Fast {
			c.Labels = map[string]string{labelFast: step.Claim}
		}
		if step.Block {
			mode := corev1.PersistentVolumeBlock
			c.Spec.VolumeMode = &mode
		}
		if step.Copies != "" {
			c.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: step.Copies}
		}
	})
	for deadline := time.Now().Add(maxNameTime); time.Now().Before(deadline) && ctx.Err() == nil; {
		made, err := t.world.createClaim(ctx, claim)
		switch {
		case err == nil && made.DeletionTimestamp == nil && !t.world.claims.DeletionRequested(made.UID):
			t.present[step.Claim] = made.UID
			t.retained[made.UID] = step.Class == plan.Kept
			t.world.claims.NoteMade(made.UID)
			return nil
		case err != nil && !apierrors.IsNotFound(err):
			return err
		}
		sleep(ctx, 100*time.Millisecond)
	}
	// Kubernetes' controllers take a while after an outage of the API server.
	t.world.timeline.Note("%s: the claim of the same name was not gone within %s", t.namespace, maxNameTime)
	return nil
}

// createClaim creates a claim, or returns the existing one of its name.
func (w *world) createClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim) (*corev1.PersistentVolumeClaim, error) {
	return create(ctx, w.suite.Client.CoreV1().PersistentVolumeClaims(claim.Namespace), claim)
}

// retain makes a claim's PersistentVolume keep its volume, if it has one.
func (t *tenant) retain(ctx context.Context, uid types.UID) error {
	name := "pvc-" + string(uid)
	if !t.world.fates.Choose(name) {
		return nil
	}
	t.retained[uid] = true
	err := t.world.retain(ctx, name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// deleteClaim requests a claim's deletion.
func (w *world) deleteClaim(ctx context.Context, namespace, name string, uid types.UID) error {
	w.claims.RecordDeletionRequest(uid)
	return remove(ctx, w.suite.Client.CoreV1().PersistentVolumeClaims(namespace), name, uid)
}

// failInUse moves the volume of a deleted claim from in-use to error.
func (w *world) failInUse(uid types.UID) {
	// A volume to be kept is not broken, nor is a broken one kept.
	if !w.fates.Choose("pvc-" + string(uid)) {
		return
	}
	for _, v := range w.sim.Volumes() {
		if strings.HasSuffix(v.Name, string(uid)) && v.Metadata[checker.StampClaimUID] == string(uid) && w.isStamped(v) &&
			w.sim.ReplaceVolumeStatus(v.ID, "in-use", "error") {
			w.timeline.Note("Cinder: volume %s (%s) goes from in-use to error", v.ID, v.Name)
		}
	}
}

// growClaims does what the plan says for one tenant.
func (w *world) growClaims(ctx, trouble context.Context, tenant string) {
	namespace := w.names.namespace(tenant)
	for _, step := range w.plan.Grows[tenant] {
		if !w.carryOut(ctx, trouble, step.At, namespace+": "+step.String(), func() error { return w.grow(ctx, namespace, step) }) {
			return
		}
	}
}

// grow asks for a larger volume of a claim. The API server refuses that for a claim
// that is not bound, and for one that asks for more already.
func (w *world) grow(ctx context.Context, namespace string, step plan.GrowStep) error {
	patch := fmt.Appendf(nil, `{"spec":{"resources":{"requests":{"storage":"%dMi"}}}}`, step.SizeMi)
	err := insist(ctx, func(ctx context.Context) error {
		_, err := w.suite.Client.CoreV1().PersistentVolumeClaims(namespace).Patch(ctx, step.Claim, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	})
	switch {
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err), apierrors.IsInvalid(err):
		return nil
	case err == nil:
		w.change(func(c *Counts) { c.Grows++ })
	}
	return err
}

// addGrowth adds to a bound claim what is known of its size.
func (w *world) addGrowth(c *checker.Claim, claim *corev1.PersistentVolumeClaim, inForce *policy.Policy, volumes []cindersim.Volume, used map[string]policy.Usage, told map[string]bool) {
	for _, v := range volumes {
		if checker.HolderOf(v) != c.UID || !w.isStamped(v) || !w.isReachable(v.Project) || v.Status != "in-use" {
			continue
		}
		request := w.request(claim)
		decision := inForce.DecideExpansion(request, policy.Holding{Tenant: v.Metadata[checker.StampTenant], Backend: w.backendOf()[v.Project]})
		reason, message := checker.RoomToGrow(decision, used, v.SizeGiB)
		c.WantsGiB, c.GrowthDenial, c.GrowthExplained = int((request.Bytes+1<<30-1)>>30), message, told[string(reason)]
	}
}
