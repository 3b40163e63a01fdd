// Package secrets writes the Secrets of volumes, and removes those that nothing
// needs: a volume's own Secret, and those that the volumes of a backend share.
package secrets

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// Options configure a Keeper.
type Options struct {
	Client            kubernetes.Interface
	PersistentVolumes corelisters.PersistentVolumeLister
	// Namespace is where the Secrets are; Cluster is the cluster that they are marked
	// with.
	Namespace, Cluster string
	Logger             *slog.Logger

	// IsInUse reports whether a backend is in the policy, or whether a volume counts on
	// it, for which an attempt of this term may still record a PersistentVolume.
	IsInUse func(backend string) bool
	// IsWanted reports whether a claim exists according to a cache, or has something
	// that exists.
	IsWanted func(claim types.UID) bool
	// ClaimsOfVolumes returns the claims that have a volume on any backend.
	ClaimsOfVolumes func(ctx context.Context) (map[types.UID]bool, error)
	// RemoveOwn removes the Secret of a PersistentVolume if it is proven that the
	// object does not exist. It is not an error if the Secret stays on purpose.
	RemoveOwn func(ctx context.Context, pvName string) error
	// MostAge is the greatest age at which the Secret of a claim that is gone is
	// removed. An older one may have been kept on purpose.
	MostAge time.Duration
}

// Keeper keeps the Secrets of one term.
type Keeper struct {
	Options

	// lastUncertain is when the last failed request for a Secret ended, in nanoseconds
	// of Unix time.
	lastUncertain atomic.Int64
}

// New makes the Keeper of a term, or of an import by a command, which sweeps nothing.
func New(options Options) *Keeper {
	return &Keeper{Options: options}
}

// Keep writes the Secret that a PersistentVolume will refer to, its own or a shared one,
// and returns the UID of its own. fresh means that Cinder has just written the
// connection with these credentials. A shared Secret then stays until the
// PersistentVolume is saved, because its backend is in use until then: a term has
// reserved room on it for the volume, and an import has made the claim.
func (k *Keeper) Keep(ctx context.Context, pvName, backend string, secret mappers.Secret, fresh bool) (own types.UID, err error) {
	if secret.Shared {
		return "", k.keepShared(ctx, backend, secret, fresh)
	}
	return k.keepOwn(ctx, pvName, secret)
}

// newSecret returns a Secret with an annotation that says whose it is.
func (k *Keeper) newSecret(secret mappers.Secret, annotation, owner string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name:        secret.Name,
			Namespace:   k.Namespace,
			Labels:      map[string]string{objects.LabelManagedBy: objects.ManagedBy},
			Annotations: map[string]string{annotation: owner, objects.AnnotationCluster: k.Cluster},
		},
		Type: secret.Type,
		Data: secret.Data,
	}
}

// LastUncertain returns when a request last failed that may still arrive late. Then a
// sweep is due. If that never happened, it returns the Unix epoch.
func (k *Keeper) LastUncertain() time.Time { return time.Unix(0, k.lastUncertain.Load()) }

func (k *Keeper) noteUncertain() { k.lastUncertain.Store(time.Now().UnixNano()) }

// Sweep removes Secrets that nothing needs, own and shared.
func (k *Keeper) Sweep(ctx context.Context) error {
	secrets, err := objects.ListSecrets(ctx, k.Client, k.Namespace)
	if err != nil {
		return err
	}
	return errors.Join(k.sweepOwn(ctx, secrets), k.sweepShared(ctx, secrets))
}
