package expand

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/placement"
)

// csiPair returns a pair in mode csi, whose sidecar has marked the claim.
func csiPair() (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume) {
	claim, pv := pair("data")
	handle := pv.Annotations["standalone-cinder.openstack.org/backend"] + "/" + pv.Annotations["standalone-cinder.openstack.org/volume-id"]
	pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: policy.CSIDriver, VolumeHandle: handle}}
	claim.Status.AllocatedResources = size("20Gi")
	claim.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{corev1.ResourceStorage: corev1.PersistentVolumeClaimControllerResizeInProgress}
	return claim, pv
}

// TestVolumeInModeCSIIsLeftToItsSidecar: without a sidecar, an event on the claim says
// why the volume does not grow.
func TestVolumeInModeCSIIsLeftToItsSidecar(t *testing.T) {
	for sidecar, want := range map[bool][]string{
		true: nil,
		false: {"Warning UnsupportedExpansion volumes in mode csi are expanded by the csi-resizer, which is not installed; " +
			"the volume keeps its size until you add the csi component of the manifests, or set csi.enabled of the chart"},
	} {
		f := newFixture(t)
		f.Sidecar = sidecar
		claim, pv := csiPair()
		claim.Status.AllocatedResources, claim.Status.AllocatedResourceStatuses = nil, nil
		f.add(claim, pv)
		f.ClaimChanged(nil, claim)
		for range 2 {
			f.sync("data")
		}
		f.is("data", "pv 10Gi, claim 10Gi, reserved 0")
		if events := f.newEvents(); !slices.Equal(events, want) {
			t.Errorf("with a sidecar %t: events %q", sidecar, events)
		}
		if asked := f.volumes["gold"].asked; len(asked) > 0 {
			t.Errorf("asked for %v", asked)
		}
	}
}

// TestExpansionForASidecar checks what the sidecar gets, what is requested from Cinder,
// and what counts.
func TestExpansionForASidecar(t *testing.T) {
	full := &placement.Denial{Reason: string(policy.QuotaExceeded), Message: "tenant a would use 20 of 15 GiB"}
	silent := &placement.Denial{Reason: placement.ReasonBackendUnavailable, Message: "silent"}
	for name, test := range map[string]struct {
		gib     int64
		prepare func(f *fixture, claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume)
		kind    string // of the failure
		message string
		asked   []int64
		counts  int64
	}{
		"grows": {gib: 20, asked: []int64{20}, counts: 20},
		"has grown": {gib: 20, prepare: func(f *fixture, _ *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) {
			f.volumes["gold"].size = 20
		}, counts: 20},
		"an earlier leader may have begun it": {gib: 20, prepare: func(f *fixture, claim *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) {
			f.ClaimChanged(nil, claim)
		},
			asked: []int64{20}, counts: 20},
		"an earlier leader's quota had no room, as now": {gib: 20, prepare: func(f *fixture, claim *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) {
			f.ClaimChanged(nil, claim)
			f.room.denied = full
		}, kind: "NoRoom", message: "QuotaExceeded: tenant a would use 20 of 15 GiB", counts: 10},
		"it has grown, and would be denied now": {gib: 20, prepare: func(f *fixture, _ *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) {
			f.volumes["gold"].size, f.room.denied = 20, full
		}, counts: 20},
		"no room": {gib: 20, prepare: func(f *fixture, _ *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) { f.room.denied = full },
			kind: "NoRoom", message: "QuotaExceeded: tenant a would use 20 of 15 GiB", counts: 10},
		"a silent backend": {gib: 20, prepare: func(f *fixture, _ *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) { f.room.denied = silent },
			kind: "Unavailable", message: "BackendUnavailable: silent"},
		"too large": {gib: 60, prepare: func(f *fixture, claim *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) {
			claim.Spec.Resources.Requests = size("60Gi")
		}, kind: "OutOfRange", message: "VolumeTooLarge: the volume would have 60 GiB, more than the 50Gi that tenants[0].volumeSize.max allows", counts: 10},
		"another's namespace": {gib: 20, prepare: func(_ *fixture, _ *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) {
			pv.Annotations["standalone-cinder.openstack.org/tenant"] = "b"
		}, kind: "Denied", message: "NoMatchingTenant: namespace team-a belongs to tenant a now, but the volume counts for tenant b (tenants[0])", counts: 10},
		"more than the claim asks for": {gib: 30, kind: "Conflict", message: "backend gold: claim team-a/data asks for 20Gi, not for 32212254720 bytes"},
		"less than before, which the sidecar finishes": {gib: 20, prepare: func(_ *fixture, claim *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) {
			claim.Spec.Resources.Requests = size("12Gi")
		}, asked: []int64{20}, counts: 20},
		"a claim that is gone": {gib: 20, prepare: func(_ *fixture, claim *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) {
			claim.UID = "another"
		}, kind: "Damaged", message: "claim team-a/data of PersistentVolume pvc-uid-data is gone, or is being deleted"},
		"Cinder refuses": {gib: 20, prepare: func(f *fixture, _ *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) {
			f.volumes["gold"].err = failure(cinder.KindOverQuota, "full")
		}, kind: "OverQuota", message: failure(cinder.KindOverQuota, "full").Error(), asked: []int64{20}},
		"Cinder's answer is lost": {gib: 20, prepare: func(f *fixture, _ *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) {
			f.volumes["gold"].err = failure(cinder.KindUnavailable, "lost")
		}, kind: "Unavailable", message: failure(cinder.KindUnavailable, "lost").Error(), asked: []int64{20}, counts: 20},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.Sidecar = true
			claim, pv := csiPair()
			if test.prepare != nil {
				test.prepare(f, claim, pv)
			}
			f.add(claim, pv)
			got, err := f.ExpandVolume(t.Context(), pv, test.gib<<30)
			if kind, _ := objects.FailureKind(err); kind != test.kind || fmt.Sprint(err) != cmp.Or(test.message, "<nil>") {
				t.Errorf("got  %s: %v\nwant %s: %s", kind, err, test.kind, test.message)
			}
			if err == nil && got != test.gib {
				t.Errorf("answered %d GiB", got)
			}
			if asked := f.volumes["gold"].asked; !slices.Equal(asked, test.asked) {
				t.Errorf("asked for %v, want %v", asked, test.asked)
			}
			if counts := max(f.room.reserved[claim.UID], f.room.grew[claim.UID]); counts != test.counts {
				t.Errorf("it counts with %d GiB, want %d", counts, test.counts)
			}
		})
	}
}

// TestNewLeaderLooksWhatASidecarsMarkIsWorth: the sidecar marks claims before their
// quota is known to have room, so a reservation held because of a mark is compared with
// Cinder.
func TestNewLeaderLooksWhatASidecarsMarkIsWorth(t *testing.T) {
	for shown, counts := range map[int64]int64{10: 10, 20: 20} {
		t.Run(fmt.Sprintf("Cinder shows %d GiB", shown), func(t *testing.T) {
			f := newFixture(t)
			f.Sidecar = true
			f.volumes["gold"].size = shown
			claim, pv := csiPair()
			f.add(claim, pv)
			f.ClaimChanged(nil, claim)
			if f.room.reserved[claim.UID] != 20 {
				t.Errorf("reserved %d GiB", f.room.reserved[claim.UID])
			}
			if queued := f.queued(); !slices.Equal(queued, []string{"team-a/data"}) {
				t.Errorf("queued %q", queued)
			}
			f.sync("data")
			if got := max(f.room.reserved[claim.UID], f.room.grew[claim.UID]); got != counts {
				t.Errorf("it counts with %d GiB, want %d", got, counts)
			}
			if asked := f.volumes["gold"].asked; len(asked) > 0 {
				t.Errorf("asked for %v", asked)
			}
			f.is("data", fmt.Sprintf("pv 10Gi, claim 10Gi, allocated 20Gi, ControllerResizeInProgress, reserved %d", counts))
		})
	}
}

// TestLooksAndCallsTakeTurns: nothing frees the room for which a call is asking.
func TestLooksAndCallsTakeTurns(t *testing.T) {
	f := newFixture(t)
	f.Sidecar = true
	claim, pv := csiPair()
	f.add(claim, pv)
	f.volumes["gold"].onTurn = func() {
		f.loop.Try(context.Background(), "team-a/data")
		if _, err := f.ExpandVolume(context.Background(), pv, 20<<30); !cinder.IsKind(err, cinder.KindConflict) {
			t.Errorf("a second call got %v", err)
		}
		if !f.room.held[claim.UID] {
			t.Error("nothing is held while Cinder is asked")
		}
	}
	_, err := f.ExpandVolume(t.Context(), pv, 20<<30)
	f.must(err)
	if queued := f.queued(); !slices.Equal(queued, []string{"team-a/data"}) {
		t.Errorf("queued %q", queued)
	}
}

// TestExpansionForATrustedCaller: the claim was made for the caller, and asks for
// nothing. What happens is recorded as for any claim.
func TestExpansionForATrustedCaller(t *testing.T) {
	named := func(claim *corev1.PersistentVolumeClaim) {
		claim.Annotations = map[string]string{objects.AnnotationVolumeName: "some volume"}
	}
	for name, test := range map[string]struct {
		trusts  bool
		prepare func(f *fixture, claim *corev1.PersistentVolumeClaim)
		kind    string
		message string
		asked   []int64
		claim   string
	}{
		"grows":     {trusts: true, asked: []int64{20}, claim: "pv 20Gi, claim 20Gi, reserved 20"},
		"has grown": {trusts: true, prepare: func(f *fixture, _ *corev1.PersistentVolumeClaim) { f.volumes["gold"].size = 20 }, claim: "pv 20Gi, claim 20Gi, reserved 20"},
		"another writes to both objects meanwhile": {trusts: true, prepare: func(f *fixture, _ *corev1.PersistentVolumeClaim) {
			for _, written := range []string{"persistentvolumeclaims", "persistentvolumes"} {
				writes := 0
				f.client.PrependReactor("patch", written, func(clienttesting.Action) (bool, runtime.Object, error) {
					writes++
					return writes%2 == 1, nil, apierrors.NewConflict(schema.GroupResource{Resource: written}, "data", errors.New("changed"))
				})
			}
		}, asked: []int64{20}, claim: "pv 20Gi, claim 20Gi, reserved 20"},
		"not trusted": {kind: "Conflict", message: "backend gold: claim team-a/%s asks for 10Gi, not for 21474836480 bytes", claim: "pv 10Gi, claim 10Gi, reserved 0"},
		"another claim": {trusts: true, prepare: func(_ *fixture, claim *corev1.PersistentVolumeClaim) {
			claim.Annotations[objects.AnnotationVolumeName] = "another"
		}, kind: "Conflict", message: "backend gold: claim team-a/%s asks for 10Gi, not for 21474836480 bytes", claim: "pv 10Gi, claim 10Gi, reserved 0"},
		"no room": {trusts: true, prepare: func(f *fixture, _ *corev1.PersistentVolumeClaim) {
			f.room.denied = &placement.Denial{Reason: string(policy.QuotaExceeded), Message: "full"}
		}, kind: "NoRoom", message: "QuotaExceeded: full", claim: "pv 10Gi, claim 10Gi, reserved 10"},
		"Cinder refuses": {trusts: true, prepare: func(f *fixture, _ *corev1.PersistentVolumeClaim) {
			f.volumes["gold"].err = failure(cinder.KindOverQuota, "full")
		}, kind: "OverQuota", message: failure(cinder.KindOverQuota, "full").Error(), asked: []int64{20}, claim: "pv 10Gi, claim 10Gi, reserved 0"},
		"Cinder's answer is lost": {trusts: true, prepare: func(f *fixture, _ *corev1.PersistentVolumeClaim) {
			f.volumes["gold"].err = failure(cinder.KindUnavailable, "lost")
		}, kind: "Unavailable", message: failure(cinder.KindUnavailable, "lost").Error(), asked: []int64{20}, claim: "pv 10Gi, claim 10Gi, allocated 20Gi, ControllerResizeInProgress, Resizing, reserved 20"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.Sidecar, f.TrustParameters = true, test.trusts
			claim, pv := csiPair()
			claim.Name = objects.NameForCaller("some volume")
			pv.Spec.ClaimRef.Name = claim.Name
			claim.Spec.Resources.Requests, claim.Status.AllocatedResources, claim.Status.AllocatedResourceStatuses = size("10Gi"), nil, nil
			named(claim)
			if test.prepare != nil {
				test.prepare(f, claim)
			}
			f.add(claim, pv)
			got, err := f.ExpandVolume(t.Context(), pv, 20<<30)
			if kind, _ := objects.FailureKind(err); kind != test.kind || fmt.Sprint(err) != cmp.Or(strings.ReplaceAll(test.message, "%s", claim.Name), "<nil>") {
				t.Errorf("got  %s: %v\nwant %s: %s", kind, err, test.kind, test.message)
			}
			if err == nil && got != 20 {
				t.Errorf("answered %d GiB", got)
			}
			if asked := f.volumes["gold"].asked; !slices.Equal(asked, test.asked) {
				t.Errorf("asked for %v, want %v", asked, test.asked)
			}
			f.is(claim.Name, test.claim)
		})
	}
}

// TestATrustedCallersRepetitionIsWrittenDown: no sidecar records what Cinder extended
// for an interrupted call, in this term or an earlier one, so the next call does.
func TestATrustedCallersRepetitionIsWrittenDown(t *testing.T) {
	for name, newLeader := range map[string]bool{"in the same term": false, "by the next leader": true} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.Sidecar, f.TrustParameters = true, true
			claim, pv := csiPair()
			claim.Name = objects.NameForCaller("some volume")
			pv.Spec.ClaimRef.Name = claim.Name
			claim.Annotations = map[string]string{objects.AnnotationVolumeName: "some volume"}
			claim.Spec.Resources.Requests = size("10Gi")
			if newLeader {
				f.add(claim, pv)
				f.ClaimChanged(nil, claim)
			} else {
				claim.Status.AllocatedResources, claim.Status.AllocatedResourceStatuses = nil, nil
				f.add(claim, pv)
				f.volumes["gold"].err = failure(cinder.KindUnavailable, "lost")
				if _, err := f.ExpandVolume(t.Context(), pv, 20<<30); err == nil {
					t.Fatal("the lost answer is no error")
				}
				f.volumes["gold"].err = nil
			}
			f.volumes["gold"].size = 20
			got, err := f.ExpandVolume(t.Context(), pv, 20<<30)
			if f.must(err); got != 20 {
				t.Errorf("answered %d GiB", got)
			}
			f.is(claim.Name, "pv 20Gi, claim 20Gi, reserved 20")
		})
	}
}
