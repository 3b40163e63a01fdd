// Package removal decides what may be removed: unrecorded volumes and their Secrets
// (Cleaner), and the volumes of released PersistentVolumes (Release).
package removal

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
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodeuse"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/paging"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/secrets"
)

// Unrecorded removes volumes of one backend that no PersistentVolume names;
// *backends.Lifecycle implements it.
type Unrecorded interface {
	RemoveUnrecorded(ctx context.Context, volumeID string, stamp stamps.Volume, connector cinder.Connector, permit backends.Permit) error
}

// Nodes determines which nodes use a volume.
type Nodes interface {
	// Users reads from the API server.
	Users(ctx context.Context, v nodeuse.Volume) ([]string, error)
}

// Cleaner removes what is proven unneeded. Every path that removes a volume without a
// PersistentVolume (undoing, duplicates, listings, audits) asks it for the proof when the
// turn of the first change has come.
type Cleaner struct {
	Client          kubernetes.Interface
	ProvisionerName string
	Cluster         string
	// ClusterUID is the UID of namespace kube-system.
	ClusterUID string
	// Namespace is where the volumes' Secrets are.
	Namespace string
	// RecordedBy returns, from a cache, the PersistentVolume that names or named a
	// volume; empty if none is known.
	RecordedBy func(v cinder.Volume) (pv string)
	Nodes      Nodes
	// UseOf returns what nodes may list for an unrecorded volume; nil if no node can list
	// it, because its connection was never published. If the function itself is nil, only
	// the name of the potential PersistentVolume is known.
	UseOf func(stamp stamps.Volume) *nodeuse.Volume
	// Volumes returns a backend's volumes and their connector.
	Volumes func(backend string) (Unrecorded, cinder.Connector, error)
}

// keptError explains why a volume or Secret stays. Retrying does not help.
type keptError struct{ message string }

func (e *keptError) Error() string { return e.message }

func kept(format string, arguments ...any) error {
	return &keptError{fmt.Sprintf(format, arguments...)}
}

// IsKept reports whether an error means that something stays on purpose.
func IsKept(err error) bool {
	var reason *keptError
	return errors.As(err, &reason) || cinder.IsKind(err, backends.KindNotOurs) || cinder.IsKind(err, backends.KindRecorded)
}

// ErrMayBeServed means that a volume's claim may still get this volume, or another.
var ErrMayBeServed = errors.New("its claim is pending and may still be bound to it")

// IsUnneeded proves that a volume may be removed: no PersistentVolume records it, and
// its claim is gone or served by another volume. The backend proves each time it reads
// the volume that it carries the claim's stamp, was never attached and is not a copy of
// another (backends.EverAttached).
//
// The claim is read before the PersistentVolume: one that is saved in between could
// otherwise be bound, used and released before the claim is found to be gone.
func (c Cleaner) IsUnneeded(ctx context.Context, v cinder.Volume) error {
	if err := c.mayBeUnrecorded(v); err != nil {
		return err
	}
	stamp := stamps.Of(v)
	isNamed := stamp.Namespace != "" && stamp.Claim != ""
	var claim *corev1.PersistentVolumeClaim
	var err error
	switch {
	case isNamed:
		claim, err = objects.ClaimOf(ctx, c.Client, stamp)
	case stamps.IsUnstamped(v):
		claim, err = c.claimWithUID(ctx, stamp.ClaimUID)
		isNamed = true
	}
	if err != nil {
		return err
	}
	if claim != nil {
		stamp.Namespace, stamp.Claim = claim.Namespace, claim.Name
	}
	second, err := c.isSecond(ctx, v)
	switch {
	case err != nil || second:
		return err
	case !isNamed:
		return kept("volume %s: its stamp does not name its claim, so the claim may still need it", v.ID)
	case claim != nil && claim.Spec.VolumeName == stamp.PV:
		return c.servedByForeign(ctx, stamp, v)
	case claim != nil && claim.Spec.VolumeName != "":
		return nil
	case claim != nil:
		return fmt.Errorf("volume %s of claim %s/%s: %w", v.ID, stamp.Namespace, stamp.Claim, ErrMayBeServed)
	// The absence of a claim here proves nothing about a claim of another cluster.
	case stamp.ClusterUID == "" && stamp.Cluster != c.ClusterUID:
		return kept("volume %s was made by an earlier version, whose stamps do not distinguish two clusters with the same clusterID; remove it by hand if no other cluster has clusterID %q", v.ID, stamp.Cluster)
	case stamp.ClusterUID != "" && stamp.ClusterUID != c.ClusterUID:
		return kept("volume %s is stamped by cluster %q under kube-system UID %q, but this cluster's is %q: two clusters seem to share one clusterID; give each its own in the policy",
			v.ID, stamp.Cluster, stamp.ClusterUID, c.ClusterUID)
	}
	return nil
}

// claimWithUID finds the claim of a volume whose stamp Cinder has replaced, at the API
// server; nil if there is none.
func (c Cleaner) claimWithUID(ctx context.Context, uid string) (*corev1.PersistentVolumeClaim, error) {
	found, err := paging.List(ctx, "claims", c.Client.CoreV1().PersistentVolumeClaims(metav1.NamespaceAll).List, func(page *corev1.PersistentVolumeClaimList) (found []*corev1.PersistentVolumeClaim) {
		for i := range page.Items {
			if string(page.Items[i].UID) == uid {
				found = append(found, &page.Items[i])
			}
		}
		return found
	})
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return found[0], nil
}

// servedByForeign proves that a claim bound to a PersistentVolume with the name that this
// program would use is served by another provisioner's object of that name. If there is
// no such object, the claim's own PersistentVolume existed and may have been used.
func (c Cleaner) servedByForeign(ctx context.Context, stamp stamps.Volume, v cinder.Volume) error {
	pv, err := c.Client.CoreV1().PersistentVolumes().Get(ctx, stamp.PV, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return kept("volume %s: claim %s/%s was bound to PersistentVolume %s, which is gone", v.ID, stamp.Namespace, stamp.Claim, stamp.PV)
	case err == nil && !objects.IsForeign(pv, c.ProvisionerName):
		// It was saved during the proof.
		return fmt.Errorf("volume %s of claim %s/%s: %w", v.ID, stamp.Namespace, stamp.Claim, ErrMayBeServed)
	}
	return err
}

// IsUnrecorded proves that no PersistentVolume records a volume. That suffices for a
// caller that works on the claim and creates, or keeps, another volume.
func (c Cleaner) IsUnrecorded(ctx context.Context, v cinder.Volume) error {
	_, err := c.isSecond(ctx, v)
	return err
}

// isSecond proves the same as IsUnrecorded, and also reports whether the claim's
// PersistentVolume names another volume. It looks in the cache by the volume's ID, and
// at the API server by the name of this claim's PersistentVolume.
func (c Cleaner) isSecond(ctx context.Context, v cinder.Volume) (second bool, err error) {
	if err := c.mayBeUnrecorded(v); err != nil {
		return false, err
	}
	stamp := stamps.Of(v)
	pv, err := c.Record(ctx, stamp.PV)
	if use := c.mayUse(stamp, v); err == nil && pv == nil && use != nil {
		if err := c.unused(ctx, *use, v); err != nil {
			return false, err
		}
		// Reading the nodes may take a while, and the PersistentVolume may have been
		// saved meanwhile.
		pv, err = c.Record(ctx, stamp.PV)
	}
	if err != nil || pv == nil {
		return false, err
	}
	origin, err := objects.OriginOf(pv)
	switch {
	case err != nil:
		return false, kept("volume %s: it may belong to PersistentVolume %s: %s", v.ID, pv.Name, err)
	case origin.VolumeID == v.ID:
		return false, kept("volume %s is recorded by PersistentVolume %s", v.ID, pv.Name)
	}
	return true, nil
}

// mayBeUnrecorded makes the part of the proof that needs no request.
func (c Cleaner) mayBeUnrecorded(v cinder.Volume) error {
	stamp := stamps.Of(v)
	if stamp.Cluster != c.Cluster || stamp.PV != objects.PVNameFor(stamp.ClaimUID) {
		return kept("volume %s: its stamp was not written by this program for this cluster", v.ID)
	}
	return c.notRecorded(v)
}

// notRecorded makes the part of the proof that relies on the cache.
func (c Cleaner) notRecorded(v cinder.Volume) error {
	if pv := c.RecordedBy(v); pv != "" {
		return kept("volume %s is recorded by PersistentVolume %s", v.ID, pv)
	}
	return nil
}

// Record reads the PersistentVolume of that name from the API server. It returns nil if
// there is none, or if it is another provisioner's, which records no volume of this
// program.
func (c Cleaner) Record(ctx context.Context, name string) (*corev1.PersistentVolume, error) {
	pv, err := c.Client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && objects.IsForeign(pv, c.ProvisionerName) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot tell whether PersistentVolume %s exists: %w", name, err)
	}
	return pv, nil
}

// mayUse returns what nodes may list for an unrecorded volume. It returns nil if no node
// can list the volume, because it was never connected.
func (c Cleaner) mayUse(stamp stamps.Volume, v cinder.Volume) *nodeuse.Volume {
	switch {
	case v.Status != cinder.StatusAttaching && v.Status != cinder.StatusReserved:
		return nil
	case c.UseOf != nil:
		return c.UseOf(stamp)
	}
	return &nodeuse.Volume{PV: stamp.PV, MayAttach: true}
}

// unused proves that no node uses a volume.
func (c Cleaner) unused(ctx context.Context, use nodeuse.Volume, v cinder.Volume) error {
	if len(use.Names) == 0 {
		use.ID = v.ID
	}
	users, err := c.Nodes.Users(ctx, use)
	if err == nil && len(users) > 0 {
		err = fmt.Errorf("volume %s is still in use by node %s", v.ID, strings.Join(users, ", "))
	}
	return err
}

// RemoveVolume removes a volume proven unneeded. Its claim's Secret stays, because it may
// belong to another volume.
func (c Cleaner) RemoveVolume(ctx context.Context, backend, volumeID string, stamp stamps.Volume) error {
	volumes, connector, err := c.Volumes(backend)
	if err != nil {
		return err
	}
	return volumes.RemoveUnrecorded(ctx, volumeID, stamp, connector, c.Permit(c.IsUnneeded))
}

// Timeout bounds a proof's requests to the API server.
const Timeout = time.Minute

// Permit requires the proof before the first change of each volume. Before every later
// change it checks whether the cache now shows a record, because an earlier leader's
// request may arrive late.
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

// RemoveSecret removes the Secret of a nonexistent PersistentVolume.
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
