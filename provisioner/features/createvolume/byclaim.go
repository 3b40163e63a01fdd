// Package createvolume serves CreateVolume and DeleteVolume of the CSI driver, and
// CreateSnapshot and DeleteSnapshot for callers without claims. Like tenants, it
// requests volumes and snapshots by creating Kubernetes objects. So only the hub
// provisions them: by the policy, in their turn, counted, and only once.
//
// external-provisioner calls it for claims that exist. Another orchestrator has no
// claims, and names a namespace and a StorageClass instead. If the program is
// configured to trust it, this package makes its claims and VolumeSnapshots.
package createvolume

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/controller"
)

// Parameters of CreateVolume. external-provisioner sends the first two with
// --extra-create-metadata; the others are those of trusted callers.
const (
	parameterClaim          = "csi.storage.k8s.io/pvc/name"
	parameterClaimNamespace = "csi.storage.k8s.io/pvc/namespace"
	ParameterNamespace      = "namespace"
	ParameterStorageClass   = "storageClass"
)

// Waits is the reason why an object waits, as its events state it.
type Waits struct {
	// Denied means that something else must change first.
	Denied          bool
	Reason, Message string
}

// Volumes reads the volumes of one backend; *backends.Lifecycle implements it.
type Volumes interface {
	Find(ctx context.Context, id string) (v cinder.Volume, found bool, err error)
}

// Options configure a Maker.
type Options struct {
	Cluster string
	// TrustParameters allows callers to name the namespace and the StorageClass of a
	// volume that no claim asks for.
	TrustParameters bool

	Client         kubernetes.Interface
	SnapshotClient snapshotclient.Interface
	Classes        storagelisters.StorageClassLister
	// PersistentVolumes is the cache of PersistentVolumes, with the indexes of package
	// record.
	PersistentVolumes cache.Indexer
	// Serves reports whether the program serves claims of a provisioner.
	Serves func(provisioner string) bool
	// ClaimWaits returns why a claim waits; DeletionWaits, why the deletion of its
	// PersistentVolume waits. They return false if it does not wait.
	ClaimWaits, DeletionWaits func(namespace, claim string) (Waits, bool)
	// IsAttached reports whether a VolumeAttachment names a PersistentVolume.
	IsAttached func(pv string) (bool, error)
	// Volumes returns an error if no backend of that name is configured.
	Volumes   func(backend string) (Volumes, error)
	Snapshots Snapshots
	Logger    *slog.Logger
}

// Maker makes and removes volumes for one term.
type Maker struct{ Options }

var _ controller.Maker = (*Maker)(nil)

// New makes the Maker of one term.
func New(options Options) *Maker { return &Maker{options} }

// pause is how often a cache is read. What the object waits for is looked up only every
// reportEvery-th time, because that goes through everything that waits.
const (
	pause       = 50 * time.Millisecond
	reportEvery = 10
)

func failure(kind, format string, arguments ...any) error {
	return &controller.Failure{Kind: kind, Message: fmt.Sprintf(format, arguments...)}
}

// The kinds of failures that Cinder also has.
const (
	notFound    = string(cinder.KindNotFound)
	invalid     = string(cinder.KindInvalid)
	conflict    = string(cinder.KindConflict)
	unavailable = string(cinder.KindUnavailable)
)

// await polls until done finishes or fails, hopeless returns an error, or the context
// ends.
func await[T any](ctx context.Context, done func() (answer T, finished bool, err error), hopeless func() error) (answer T, finished bool, err error) {
	for looks := 1; ; looks++ {
		if answer, finished, err = done(); finished || err != nil {
			return answer, finished, err
		}
		if looks%reportEvery == 0 {
			if err := hopeless(); err != nil {
				return answer, false, err
			}
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				err = hopeless()
			}
			return answer, false, err
		case <-time.After(pause):
		}
	}
}

// volumeOf returns the PersistentVolume of a name from the cache; nil if there is none.
func (m *Maker) volumeOf(name string) (*corev1.PersistentVolume, error) {
	object, exists, err := m.PersistentVolumes.GetByKey(name)
	if err != nil || !exists {
		return nil, err
	}
	pv, ok := object.(*corev1.PersistentVolume)
	if !ok {
		return nil, fmt.Errorf("the cache of PersistentVolumes holds a %T", object)
	}
	return pv, nil
}
