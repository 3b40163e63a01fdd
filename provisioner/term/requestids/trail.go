// Package requestids collects the request IDs that audit trail lines show for a volume or
// a snapshot.
package requestids

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// RequestIDs are Cinder's IDs of the requests that created, stamped, extended or deleted
// a volume or a snapshot, for the audit trail. They also appear in Cinder's own log.
type RequestIDs struct {
	mu       sync.Mutex
	created  string
	deleted  string
	extended string
	stamped  string
}

type requestIDsKey struct{}

// WithRequestIDs collects the IDs of requests sent with the context.
func WithRequestIDs(ctx context.Context) (collecting context.Context, ids *RequestIDs) {
	ids = &RequestIDs{}
	return context.WithValue(ctx, requestIDsKey{}, ids), ids
}

// Answered returns the function that records a context's requests.
func Answered(ctx context.Context) func(operation, requestID string) {
	ids, ok := ctx.Value(requestIDsKey{}).(*RequestIDs)
	if !ok {
		return nil
	}
	return func(operation, requestID string) {
		ids.mu.Lock()
		defer ids.mu.Unlock()
		switch operation {
		case cinder.OperationCreate, cinder.OperationSnapshotCreate, cinder.OperationBackupCreate:
			ids.created = requestID
		case cinder.OperationDelete, cinder.OperationForceDelete, cinder.OperationSnapshotDelete, cinder.OperationBackupDelete:
			ids.deleted = requestID
		case cinder.OperationExtend:
			ids.extended = requestID
		case cinder.OperationMetadata, cinder.OperationSnapshotMetadata, cinder.OperationBackupUpdate:
			// An import begins with its stamp.
			if ids.stamped == "" {
				ids.stamped = requestID
			}
		}
	}
}

// OfCreate returns the ID of the create request; empty if an earlier attempt created the
// volume.
func (r *RequestIDs) OfCreate() string { return r.read(&r.created) }

// OfDelete returns the ID of the delete request; empty if the volume was already gone
// or being deleted.
func (r *RequestIDs) OfDelete() string { return r.read(&r.deleted) }

// OfExtend returns the ID of the extend request; empty if an earlier attempt made it.
func (r *RequestIDs) OfExtend() string { return r.read(&r.extended) }

// OfStamp returns the ID of the request that wrote the stamp of an import or a rebind;
// empty if an earlier attempt wrote it.
func (r *RequestIDs) OfStamp() string { return r.read(&r.stamped) }

func (r *RequestIDs) read(id *string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return *id
}

// ClaimOf returns the claim of a PersistentVolume, as the audit trail writes it.
func ClaimOf(pv *corev1.PersistentVolume) string {
	if reference := pv.Spec.ClaimRef; reference != nil {
		return reference.Namespace + "/" + reference.Name
	}
	return ""
}

// SizeOf returns the size of a PersistentVolume in GiB.
func SizeOf(pv *corev1.PersistentVolume) int64 {
	capacity := pv.Spec.Capacity[corev1.ResourceStorage]
	return capacity.Value() >> 30
}
