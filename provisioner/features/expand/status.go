package expand

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// The states of an expansion, as KEP-1790 defines them. A nil value removes what an
// earlier state wrote.

// status holds the part of a claim's status that changes.
type status struct {
	// capacity is the size that pods may use.
	capacity *resource.Quantity
	// allocated is the size that is being made, or was made.
	allocated *resource.Quantity
	// state is empty when nothing is left to do.
	state corev1.ClaimResourceStatus
	// condition replaces the conditions of an expansion; nil removes them.
	condition *corev1.PersistentVolumeClaimCondition
}

// inProgress returns the status while Cinder may be extending the volume.
func inProgress(size resource.Quantity) status {
	return status{allocated: &size, state: corev1.PersistentVolumeClaimControllerResizeInProgress,
		condition: &corev1.PersistentVolumeClaimCondition{Type: corev1.PersistentVolumeClaimResizing}}
}

// infeasible returns the status when Cinder has refused, and will refuse again.
func infeasible(size resource.Quantity, why string) status {
	return status{allocated: &size, state: corev1.PersistentVolumeClaimControllerResizeInfeasible,
		condition: &corev1.PersistentVolumeClaimCondition{Type: corev1.PersistentVolumeClaimControllerResizeError, Message: why}}
}

// onNode returns the status when only the filesystem must still grow.
func onNode(size resource.Quantity, how string) status {
	return status{allocated: &size, state: corev1.PersistentVolumeClaimNodeResizePending,
		condition: &corev1.PersistentVolumeClaimCondition{Type: corev1.PersistentVolumeClaimFileSystemResizePending, Message: how}}
}

// finished returns the status when pods may use all of the volume.
func finished(size resource.Quantity) status { return status{capacity: &size} }

// isConditionOfExpansion reports whether a condition is about an expansion.
func isConditionOfExpansion(condition corev1.PersistentVolumeClaimCondition) bool {
	switch condition.Type {
	case corev1.PersistentVolumeClaimResizing, corev1.PersistentVolumeClaimFileSystemResizePending,
		corev1.PersistentVolumeClaimControllerResizeError, corev1.PersistentVolumeClaimNodeResizeError:
		return true
	}
	return false
}

// conditions returns the claim's conditions, with those of its expansion replaced.
func (s status) conditions(claim *corev1.PersistentVolumeClaim) []corev1.PersistentVolumeClaimCondition {
	all := slices.DeleteFunc(slices.Clone(claim.Status.Conditions), isConditionOfExpansion)
	if s.condition == nil {
		return all
	}
	next := *s.condition
	next.Status, next.LastTransitionTime = corev1.ConditionTrue, metav1.Now()
	for _, before := range claim.Status.Conditions {
		if before.Type == next.Type && before.Status == next.Status {
			next.LastTransitionTime = before.LastTransitionTime
		}
	}
	return append(all, next)
}

// isOn reports whether the claim already has this status.
func (s status) isOn(claim *corev1.PersistentVolumeClaim) bool {
	if s.capacity != nil {
		if is := storage(claim.Status.Capacity); is.Cmp(*s.capacity) != 0 {
			return false
		}
	}
	allocated, has := claim.Status.AllocatedResources[corev1.ResourceStorage]
	if has != (s.allocated != nil) || has && allocated.Cmp(*s.allocated) != 0 || claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage] != s.state {
		return false
	}
	same := func(a, b corev1.PersistentVolumeClaimCondition) bool {
		return a.Type == b.Type && a.Status == b.Status && a.Message == b.Message
	}
	return slices.EqualFunc(claim.Status.Conditions, s.conditions(claim), same)
}

// write writes the status on a claim that has not changed since it was read, and
// returns the updated claim.
func (s status) write(ctx context.Context, client kubernetes.Interface, claim *corev1.PersistentVolumeClaim) (*corev1.PersistentVolumeClaim, error) {
	if s.isOn(claim) {
		return claim, nil
	}
	var state any
	if s.state != "" {
		state = s.state
	}
	of := map[string]any{
		"allocatedResources":        map[string]any{string(corev1.ResourceStorage): s.allocated},
		"allocatedResourceStatuses": map[string]any{string(corev1.ResourceStorage): state},
		"conditions":                s.conditions(claim),
	}
	if s.capacity != nil {
		of["capacity"] = map[string]any{string(corev1.ResourceStorage): s.capacity}
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": claim.UID, "resourceVersion": claim.ResourceVersion}, "status": of})
	if err != nil {
		// Maps, lists and quantities always encode.
		panic(err)
	}
	written, err := client.CoreV1().PersistentVolumeClaims(claim.Namespace).Patch(ctx, claim.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return nil, fmt.Errorf("cannot write the status of claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	return written, nil
}
