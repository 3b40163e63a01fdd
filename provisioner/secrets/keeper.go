// Package secrets writes the Secrets of volumes, and removes those that nobody
// needs: a volume's own one, and those that the volumes of a backend share.
package secrets

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/provisioner/record"
)

// Options configure a Keeper.
type Options struct {
	Client            kubernetes.Interface
	PersistentVolumes corelisters.PersistentVolumeLister
	// Namespace is where the Secrets are, Cluster what they are marked with.
	Namespace, Cluster string
	Logger             *slog.Logger

	// MayBeUnrecorded says that a backend may have volumes that no
	// PersistentVolume names yet and that no attempt of this term made.
	MayBeUnrecorded func(backend string) bool
	// Wanted tells which claims exist, as far as a cache tells, or have something
	// that does.
	Wanted func() (isWanted func(claim types.UID) bool, err error)
	// ClaimsOfVolumes are the claims of which a volume exists at any backend.
	ClaimsOfVolumes func(ctx context.Context) (map[types.UID]bool, error)
	// RemoveOwn removes the Secret of a PersistentVolume if that provably does not
	// exist. That it stays on purpose is no error.
	RemoveOwn func(ctx context.Context, pvName string) error
	// MostAge is how old the Secret of a claim that is gone may be to be removed:
	// an older one may have been kept on purpose.
	MostAge time.Duration
}

// Keeper keeps the Secrets of one term.
type Keeper struct {
	Options

	// lastDoubt is when the request for a Secret failed last, in nanoseconds of
	// Unix time.
	lastDoubt atomic.Int64

	mu     sync.Mutex
	byName map[string]*holding
}

// New makes the Keeper of a term.
func New(options Options) *Keeper {
	return &Keeper{Options: options, byName: map[string]*holding{}}
}

// Keep writes the Secret that a claim's PersistentVolume will refer to, its own
// or the one that it shares. The credentials are fresh if Cinder wrote the
// connection now.
func (k *Keeper) Keep(ctx context.Context, claim types.UID, pvName, backend string, secret mappers.Secret, fresh bool) error {
	if secret.Shared {
		return k.keepShared(ctx, claim, backend, secret, fresh)
	}
	return k.keepOwn(ctx, pvName, secret)
}

// VolumeRemoved removes the Secret of a volume that is gone, unless others need
// it.
func (k *Keeper) VolumeRemoved(ctx context.Context, pv types.UID, origin record.Origin) error {
	if origin.SharesSecret() {
		return k.leaveShared(ctx, pv, origin)
	}
	return k.deleteOwn(ctx, origin)
}

// LastDoubt is when a request failed that may arrive late, or when it could not
// be told whether a Secret is needed: then a sweep is due. It is the zero time of
// Unix if there was none.
func (k *Keeper) LastDoubt() time.Time { return time.Unix(0, k.lastDoubt.Load()) }

func (k *Keeper) noteDoubt() { k.lastDoubt.Store(time.Now().UnixNano()) }

// Sweep removes Secrets that nobody needs, of single volumes and shared.
func (k *Keeper) Sweep(ctx context.Context) error {
	return errors.Join(k.sweepOwn(ctx), k.sweepShared(ctx))
}
