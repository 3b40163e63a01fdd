package campaign

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/checker"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/plan"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
)

// growClaims does what the plan says for one tenant.
func (w *world) growClaims(ctx, trouble context.Context, tenant string) {
	namespace := w.names.namespace(tenant)
	for _, step := range w.plan.Grows[tenant] {
		if !w.until(trouble, step.At) {
			return
		}
		w.timeline.Note("%s: %s", namespace, step)
		if err := w.grow(ctx, namespace, step); err != nil && ctx.Err() == nil {
			w.timeline.Say("%s: %s: %s", namespace, step, err)
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
		if v.Metadata[checker.StampClaimUID] != c.UID || !w.isStamped(v) || !w.isReachable(v.Project) || v.Status != "in-use" {
			continue
		}
		request := w.request(claim)
		decision := inForce.DecideExpansion(request, policy.Holding{Tenant: v.Metadata[checker.StampTenant], Backend: w.backendOf()[v.Project]})
		reason, message := checker.RoomToGrow(decision, used, v.SizeGiB)
		c.WantsGiB, c.GrowthDenial, c.GrowthExplained = int((request.Bytes+1<<30-1)>>30), message, told[string(reason)]
	}
}
