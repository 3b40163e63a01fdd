package proof

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/provisioner/nodeuse"
	"github.com/standalone-cinder/standalone-cinder/provisioner/record"
	"github.com/standalone-cinder/standalone-cinder/provisioner/secrets"
)

// Unrecorded removes volumes of one backend that no PersistentVolume names;
// *backends.Lifecycle does.
type Unrecorded interface {
	RemoveUnrecorded(ctx context.Context, volumeID string, stamp backends.Stamp, connector cinder.Connector, permit backends.Permit) error
}

// Nodes tells which nodes use a volume.
type Nodes interface {
	// Users asks the API server.
	Users(ctx context.Context, v nodeuse.Volume) ([]string, error)
}

// Cleaner removes what is provably nobody's. Every path that removes a volume
// without a PersistentVolume that says so asks it for the proof, when the turn
// of the first change has come: undoing, second volumes, what a listing shows,
// and audits.
type Cleaner struct {
	Client          kubernetes.Interface
	ProvisionerName string
	Cluster         string
	// ClusterUID is the UID of namespace kube-system.
	ClusterUID string
	// Namespace is where the volumes' Secrets are.
	Namespace string
	// RecordedBy tells from a cache which PersistentVolume names a volume, or
	// did so; empty means that none is known.
	RecordedBy func(v cinder.Volume) (pv string)
	Nodes      Nodes
	// UseOf tells as what nodes may use a volume that no PersistentVolume records,
	// and nil if none can: nobody was told of the volume. Where the function is nil
	// itself, nothing more is known than what the PersistentVolume would be called.
	UseOf func(stamp backends.Stamp) *nodeuse.Volume
	// Volumes gives a backend's volumes and the connector they are connected to.
	Volumes func(backend string) (Unrecorded, cinder.Connector, error)
}

// keptError says why a volume or Secret stays. Nothing that is tried again
// changes that.
type keptError struct{ message string }

func (e *keptError) Error() string { return e.message }

func kept(format string, arguments ...any) error {
	return &keptError{fmt.Sprintf(format, arguments...)}
}

// IsKept reports whether an error says that something stays on purpose.
func IsKept(err error) bool {
	var reason *keptError
	return errors.As(err, &reason) || cinder.IsKind(err, backends.KindNotOurs) || cinder.IsKind(err, backends.KindRecorded)
}

// ErrMayBeServed says that a volume's claim may still get it, or another.
var ErrMayBeServed = errors.New("its claim is pending and may still get it")

// NobodyNeeds is the proof that a volume may go: no PersistentVolume records it,
// and its claim is gone or served by another. That the volume carries the
// claim's stamp, was never attached and is no copy of another is the backend's
// to prove (backends.EverAttached), and proven each time it is looked at.
func (c Cleaner) NobodyNeeds(ctx context.Context, v cinder.Volume) error {
	second, err := c.isSecond(ctx, v)
	if err != nil || second {
		return err
	}
	stamp := backends.StampOf(v)
	if stamp.Namespace == "" || stamp.Claim == "" {
		return kept("volume %s: its stamp names no claim, which may still get it", v.ID)
	}
	claim, err := record.ClaimOf(ctx, c.Client, stamp)
	switch {
	case err != nil:
		return err
	case claim != nil && claim.Spec.VolumeName == stamp.PV:
		return c.servedByForeign(ctx, stamp, v)
	case claim != nil && claim.Spec.VolumeName != "":
		return nil
	case claim != nil:
		return fmt.Errorf("volume %s of claim %s/%s: %w", v.ID, stamp.Namespace, stamp.Claim, ErrMayBeServed)
	// That a claim is absent here says nothing about one of another cluster.
	case stamp.ClusterUID == "" && stamp.Cluster != c.ClusterUID:
		return kept("volume %s was made by an earlier version, whose stamps do not tell two clusters of one clusterID apart; remove it by hand if no other cluster has clusterID %q", v.ID, stamp.Cluster)
	case stamp.ClusterUID != "" && stamp.ClusterUID != c.ClusterUID:
		return kept("volume %s is stamped by cluster %q under kube-system UID %q, and this cluster's is %q: two clusters seem to share one clusterID; give each its own in the policy",
			v.ID, stamp.Cluster, stamp.ClusterUID, c.ClusterUID)
	}
	return nil
}

// servedByForeign is the proof that a claim that is bound under the name of its
// own PersistentVolume is served by another provisioner's of that name. Where
// there is none, its own has existed, and may have been used.
func (c Cleaner) servedByForeign(ctx context.Context, stamp backends.Stamp, v cinder.Volume) error {
	_, err := c.Client.CoreV1().PersistentVolumes().Get(ctx, stamp.PV, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return kept("volume %s: claim %s/%s was bound to PersistentVolume %s, which is gone", v.ID, stamp.Namespace, stamp.Claim, stamp.PV)
	}
	return err
}

// IsUnrecorded is the proof that no PersistentVolume records a volume. It is
// enough for whoever works on the claim and makes, or keeps, another volume.
func (c Cleaner) IsUnrecorded(ctx context.Context, v cinder.Volume) error {
	_, err := c.isSecond(ctx, v)
	return err
}

// isSecond is the same proof, and tells whether the claim's PersistentVolume
// names another volume. The cache is asked by the volume's id, the API server by
// the name that the PersistentVolume of this claim has.
func (c Cleaner) isSecond(ctx context.Context, v cinder.Volume) (second bool, err error) {
	stamp := backends.StampOf(v)
	if stamp.Cluster != c.Cluster || stamp.PV != record.PVNameFor(stamp.ClaimUID) {
		return false, kept("volume %s: its stamp is not one that this program wrote for this cluster", v.ID)
	}
	if err := c.notRecorded(v); err != nil {
		return false, err
	}
	pv, err := c.Record(ctx, stamp.PV)
	if use := c.mayUse(stamp, v); err == nil && pv == nil && use != nil {
		if err := c.unused(ctx, *use, v); err != nil {
			return false, err
		}
		// To ask the nodes may take long, and meanwhile it may have been saved.
		pv, err = c.Record(ctx, stamp.PV)
	}
	if err != nil || pv == nil {
		return false, err
	}
	origin, err := record.OriginOf(pv)
	switch {
	case err != nil:
		return false, kept("volume %s: it may belong to PersistentVolume %s: %s", v.ID, pv.Name, err)
	case origin.VolumeID == v.ID:
		return false, kept("volume %s is recorded by PersistentVolume %s", v.ID, pv.Name)
	}
	return true, nil
}

// notRecorded is as much of the proof as the cache tells.
func (c Cleaner) notRecorded(v cinder.Volume) error {
	if pv := c.RecordedBy(v); pv != "" {
		return kept("volume %s is recorded by PersistentVolume %s", v.ID, pv)
	}
	return nil
}

// Record asks the API server for the PersistentVolume of that name; nil if there
// is none, or one of another provisioner, which records no volume of ours.
func (c Cleaner) Record(ctx context.Context, name string) (*corev1.PersistentVolume, error) {
	pv, err := c.Client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && record.IsForeign(pv, c.ProvisionerName) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot tell whether PersistentVolume %s exists: %w", name, err)
	}
	return pv, nil
}

// mayUse is as what nodes may use a volume that no PersistentVolume records; nil
// if none can. One that was never connected is used by nobody.
func (c Cleaner) mayUse(stamp backends.Stamp, v cinder.Volume) *nodeuse.Volume {
	switch {
	case v.Status != cinder.StatusAttaching && v.Status != cinder.StatusReserved:
		return nil
	case c.UseOf != nil:
		return c.UseOf(stamp)
	}
	return &nodeuse.Volume{PV: stamp.PV, MayAttach: true}
}

// unused is the proof that no node uses a volume.
func (c Cleaner) unused(ctx context.Context, use nodeuse.Volume, v cinder.Volume) error {
	users, err := c.Nodes.Users(ctx, use)
	if err == nil && len(users) > 0 {
		err = fmt.Errorf("volume %s is still in use by node %s", v.ID, strings.Join(users, ", "))
	}
	return err
}

// RemoveVolume removes a volume that nobody needs. Its claim's Secret may belong
// to another volume, and stays.
func (c Cleaner) RemoveVolume(ctx context.Context, backend, volumeID string, stamp backends.Stamp) error {
	volumes, connector, err := c.Volumes(backend)
	if err != nil {
		return err
	}
	return volumes.RemoveUnrecorded(ctx, volumeID, stamp, connector, c.Permit(c.NobodyNeeds))
}

// Timeout bounds the questions to the API server that a proof asks.
const Timeout = time.Minute

// Permit asks for the proof before the first change of each volume, and before
// every later one whether the cache shows a record meanwhile: a request of a
// former leader may come late.
func (c Cleaner) Permit(prove backends.Permit) backends.Permit {
	proven := map[string]bool{}
	return func(ctx context.Context, v cinder.Volume) error {
		if proven[v.ID] {
			return c.notRecorded(v)
		}
		ctx, cancel := context.WithTimeout(ctx, Timeout)
		defer cancel()
		err := prove(ctx, v)
		proven[v.ID] = err == nil
		return err
	}
}

// RemoveSecret removes the Secret of a PersistentVolume that does not exist.
func (c Cleaner) RemoveSecret(ctx context.Context, pvName string) error {
	pv, err := c.Record(ctx, pvName)
	if err != nil {
		return err
	}
	if pv != nil {
		return kept("PersistentVolume %s still exists; its Secret is kept", pvName)
	}
	return secrets.DeleteOwn(ctx, c.Client, c.Namespace, pvName)
}
