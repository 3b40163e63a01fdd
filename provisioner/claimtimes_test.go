package provisioner

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/policy/admission"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/placement"
)

// measured returns how many claims of tenant a on a backend were seen to become Bound,
// and the sum of the times that they took.
func (f *fixture) measured(tenant, backend string) (count uint64, took time.Duration) {
	f.t.Helper()
	var found dto.Metric
	f.must(f.Metrics.claimBound.WithLabelValues(tenant, backend).(prometheus.Histogram).Write(&found))
	return found.GetHistogram().GetSampleCount(), time.Duration(found.GetHistogram().GetSampleSum() * float64(time.Second))
}

// bound returns the claim as the PersistentVolume controller leaves it after each of
// its two steps.
func bound(claim *corev1.PersistentVolumeClaim) (named, bound *corev1.PersistentVolumeClaim) {
	named = claim.DeepCopy()
	named.Spec.VolumeName = objects.PVNameOf(claim)
	bound = named.DeepCopy()
	bound.Status.Phase = corev1.ClaimBound
	return named, bound
}

func TestTimeToBound(t *testing.T) {
	ago := func(d time.Duration) func(*corev1.PersistentVolumeClaim) {
		return func(claim *corev1.PersistentVolumeClaim) {
			claim.CreationTimestamp = metav1.NewTime(time.Now().Add(-d))
		}
	}
	withNode := func(claim *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
		selected := claim.DeepCopy()
		selected.Annotations[admission.SelectedNodeAnnotation] = "node-1"
		return selected
	}
	for name, test := range map[string]struct {
		// happen makes the claim Bound.
		happen func(f *fixture, claim *corev1.PersistentVolumeClaim)
		want   string
	}{
		"from its creation": {func(f *fixture, claim *corev1.PersistentVolumeClaim) {
			named, bound := bound(claim)
			f.followup.ClaimChanged(claim, named)
			f.followup.ClaimChanged(named, bound)
			f.followup.ClaimChanged(bound, bound) // a resync
		}, "1 claims, 1h"},
		"one that was Bound before the term": {func(f *fixture, claim *corev1.PersistentVolumeClaim) {
			_, bound := bound(claim)
			f.followup.ClaimChanged(bound, bound)
		}, "0 claims, 0h"},
		"one that is bound to another volume": {func(f *fixture, claim *corev1.PersistentVolumeClaim) {
			_, bound := bound(claim)
			bound.Spec.VolumeName = "by-hand"
			f.followup.ClaimChanged(claim, bound)
		}, "0 claims, 0h"},
		"from when its node was selected": {func(f *fixture, claim *corev1.PersistentVolumeClaim) {
			selected := withNode(claim)
			f.followup.ClaimChanged(claim, selected)
			named, bound := bound(selected)
			f.followup.ClaimChanged(selected, named)
			f.followup.ClaimChanged(named, bound)
		}, "1 claims, 0h"},
		"one whose node was selected before the term": {func(f *fixture, claim *corev1.PersistentVolumeClaim) {
			selected := withNode(claim)
			_, bound := bound(selected)
			f.followup.ClaimChanged(selected, bound)
		}, "0 claims, 0h"},
		"from when the policy last denied it": {func(f *fixture, claim *corev1.PersistentVolumeClaim) {
			f.deny(f.turn(claim), claim, placement.Denial{Reason: string(policy.QuotaExceeded)})
			_, bound := bound(claim)
			f.followup.ClaimChanged(claim, bound)
		}, "1 claims, 0h"},
		"an outage is part of it": {func(f *fixture, claim *corev1.PersistentVolumeClaim) {
			f.deny(f.turn(claim), claim, placement.Denial{Reason: placement.ReasonBackendUnavailable})
			_, bound := bound(claim)
			f.followup.ClaimChanged(claim, bound)
		}, "1 claims, 1h"},
		"forgotten with the claim": {func(f *fixture, claim *corev1.PersistentVolumeClaim) {
			f.deny(f.turn(claim), claim, placement.Denial{Reason: string(policy.QuotaExceeded)})
			f.forgetClaim(claim)
			f.followup.ClaimGone(claim)
			f.follow(f.followup)
			if n := len(f.claimTimes.since); n != 0 {
				f.t.Errorf("%d claims are remembered", n)
			}
		}, "0 claims, 0h"},
	} {
		t.Run(name, func(t *testing.T) {
			f, followup, _ := newCountedFixture(t)
			claim := f.claim(ago(time.Hour))
			pv, err := f.provision(claim)
			f.must(err)
			pv.Annotations[objects.AnnotationProvisionedBy] = "test"
			followup.VolumeSeen(pv)
			test.happen(f, claim)
			count, took := f.measured("a", "gold")
			if got := fmt.Sprintf("%d claims, %.0fh", count, took.Hours()); got != test.want {
				t.Errorf("measured %s, want %s", got, test.want)
			}
		})
	}
}

// TestTimesOfRemovedTenantsShareOneSeries: objects may name tenants and backends
// that the policy no longer has.
func TestTimesOfRemovedTenantsShareOneSeries(t *testing.T) {
	f, followup, _ := newCountedFixture(t)
	claim := f.claim(nil)
	claim.CreationTimestamp = metav1.Now()
	pv, err := f.provision(claim)
	f.must(err)
	pv.Annotations[objects.AnnotationProvisionedBy] = "test"
	pv.Annotations[objects.AnnotationTenant], pv.Annotations[objects.AnnotationBackend] = "gone", "gone-too"
	followup.VolumeSeen(pv)
	_, bound := bound(claim)
	followup.ClaimChanged(claim, bound)
	if count, _ := f.measured("other", "other"); count != 1 {
		t.Errorf("%d claims count for tenants that the policy does not know, want 1", count)
	}
}
