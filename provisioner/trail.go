package provisioner

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// requestIDs are Cinder's IDs of the requests that made or deleted a volume, for
// the audit trail. Cinder's own log has them, too.
type requestIDs struct {
	mu      sync.Mutex
	created string
	deleted string
}

type requestIDsKey struct{}

// withRequestIDs collects the IDs of the requests that are sent with the context.
func withRequestIDs(ctx context.Context) (collecting context.Context, ids *requestIDs) {
	ids = &requestIDs{}
	return context.WithValue(ctx, requestIDsKey{}, ids), ids
}

// answered returns what notes the requests of a context.
func answered(ctx context.Context) func(operation, requestID string) {
	ids, ok := ctx.Value(requestIDsKey{}).(*requestIDs)
	if !ok {
		return nil
	}
	return func(operation, requestID string) {
		ids.mu.Lock()
		defer ids.mu.Unlock()
		switch operation {
		case cinder.OperationCreate:
			ids.created = requestID
		case cinder.OperationDelete, cinder.OperationForceDelete:
			ids.deleted = requestID
		}
	}
}

// ofCreate is empty if the volume was made by an earlier attempt.
func (r *requestIDs) ofCreate() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.created
}

// ofDelete is empty if the volume was already gone or being deleted.
func (r *requestIDs) ofDelete() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.deleted
}

// claimOf is the claim of a PersistentVolume, as the audit trail writes it.
func claimOf(pv *corev1.PersistentVolume) string {
	if reference := pv.Spec.ClaimRef; reference != nil {
		return reference.Namespace + "/" + reference.Name
	}
	return ""
}

// sizeOf is the size of a PersistentVolume in GiB.
func sizeOf(pv *corev1.PersistentVolume) int64 {
	capacity := pv.Spec.Capacity[corev1.ResourceStorage]
	return capacity.Value() >> 30
}
