package status

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

func TestGrowthIsExplainedByTheClaim(t *testing.T) {
	const begins = "it is bound to PersistentVolume pvc-1, and asks to grow from 1Gi to 2Gi"
	for name, c := range map[string]struct {
		state     corev1.ClaimResourceStatus
		condition corev1.PersistentVolumeClaimCondition
		warning   string
		explained bool
		want      []string
	}{
		"nothing happened yet": {want: []string{begins}},
		"the policy denies it": {warning: "tenant a would use 12 of 10 gigabytes", explained: true, want: []string{
			begins, "its last warning says: QuotaExceeded: tenant a would use 12 of 10 gigabytes",
		}},
		"Cinder is at it": {state: corev1.PersistentVolumeClaimControllerResizeInProgress, warning: "no answer", explained: true, want: []string{
			begins, "the volume is being extended at Cinder; the last warning, if there is one, says what is in the way",
		}},
		"Cinder refused": {
			state:     corev1.PersistentVolumeClaimControllerResizeInfeasible,
			condition: corev1.PersistentVolumeClaimCondition{Type: corev1.PersistentVolumeClaimControllerResizeError, Message: "over the quota of Cinder"},
			explained: true, want: []string{begins, "Cinder refused to extend the volume: over the quota of Cinder"},
		},
		"the node has its turn": {
			state:     corev1.PersistentVolumeClaimNodeResizePending,
			condition: corev1.PersistentVolumeClaimCondition{Type: corev1.PersistentVolumeClaimFileSystemResizePending, Message: "grow it by hand"},
			explained: true, want: []string{begins, "Cinder has extended the volume, and the node must still grow what is on it: grow it by hand"},
		},
		"the node failed": {
			state: corev1.PersistentVolumeClaimNodeResizeInfeasible, explained: true,
			want: []string{begins, "Cinder has extended the volume, and the node could not grow what is on it: the claim has no message about it"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			claim := &corev1.PersistentVolumeClaim{
				ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "data", UID: "uid-1"},
				Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pvc-1", Resources: corev1.VolumeResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")},
				}},
				Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
			}
			if c.state != "" {
				claim.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{corev1.ResourceStorage: c.state}
				claim.Status.Conditions = []corev1.PersistentVolumeClaimCondition{c.condition}
			}
			client := fake.NewClientset(claim)
			if c.warning != "" {
				err := client.Tracker().Add(&corev1.Event{
					ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "data.1"}, Type: corev1.EventTypeWarning, Reason: "QuotaExceeded", Message: c.warning,
					InvolvedObject: corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: "team-a", Name: "data", UID: "uid-1"},
					LastTimestamp:  metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)),
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			if !isGrowing(claim) {
				t.Fatal("the claim does not count as growing")
			}
			a, err := ask(t, &inquiry{connection: &connection{}, client: client}, "data")
			if err != nil {
				t.Fatal(err)
			}
			if a.Explained != c.explained || !slices.Equal(a.Because, c.want) {
				t.Errorf("explained: %t, want %t, because\n%q, want\n%q", a.Explained, c.explained, a.Because, c.want)
			}
		})
	}
}

func TestClaimOfItsSizeDoesNotGrow(t *testing.T) {
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	claim := &corev1.PersistentVolumeClaim{
		Spec:   corev1.PersistentVolumeClaimSpec{Resources: corev1.VolumeResourceRequirements{Requests: size}},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, Capacity: size},
	}
	if isGrowing(claim) {
		t.Error("the claim counts as growing")
	}
}
