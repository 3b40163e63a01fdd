package attach

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

// Expansions makes volumes larger, within policy and quotas; *expand.Controller
// implements it. If an error has the method FailureKind, that tells the controller the
// kind of the failure.
type Expansions interface {
	ExpandVolume(ctx context.Context, pv *corev1.PersistentVolume, bytes int64) (sizeGiB int64, err error)
}

// Expand implements controller.Expander.
func (e *Engine) Expand(ctx context.Context, volume wire.Handle, bytes int64) (size int64, err error) {
	pv, err := Changeable(e, volume)
	if err != nil {
		return 0, Failure(err)
	}
	gib, err := e.Expansions.ExpandVolume(ctx, pv, bytes)
	if err != nil {
		return 0, Failure(err)
	}
	return gib << 30, nil
}
