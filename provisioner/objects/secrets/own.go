package secrets

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// keepOwn writes the credentials of a volume into the program's own namespace, where
// tenants cannot read them. Kubelets can: the node authorizer follows the reference of
// a PersistentVolume into any namespace. It updates the Secret of an earlier attempt,
// and returns its UID. A Secret without data is for others to fill, so an existing one
// keeps what it has.
func (k *Keeper) keepOwn(ctx context.Context, pvName string, secret mappers.Secret) (types.UID, error) {
	wanted := k.newSecret(secret, objects.AnnotationForPV, pvName)
	secrets := k.Client.CoreV1().Secrets(k.Namespace)
	created, err := secrets.Create(ctx, wanted, metav1.CreateOptions{})
	if err == nil {
		return created.UID, nil
	}
	if !apierrors.IsAlreadyExists(err) {
		// The request may arrive late, when nothing looks for the Secret any more.
		k.noteUncertain()
		return "", inNamespace(err, "create", wanted.Namespace, wanted.Name)
	}
	existing, err := secrets.Get(ctx, wanted.Name, metav1.GetOptions{})
	if err != nil {
		return "", inNamespace(err, "read", wanted.Namespace, wanted.Name)
	}
	if !objects.IsSecretOf(existing, pvName) {
		return "", fmt.Errorf("secret %s/%s exists but was not made by standalone-cinder; rename or remove it", wanted.Namespace, wanted.Name)
	}
	if wanted.Data == nil || existing.Type == wanted.Type && maps.EqualFunc(existing.Data, wanted.Data, slices.Equal) {
		return existing.UID, nil
	}
	if existing.Type != wanted.Type {
		// The type is immutable; nothing mounts the volume yet.
		if err := secrets.Delete(ctx, wanted.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &existing.UID}}); err != nil {
			return "", inNamespace(err, "replace", wanted.Namespace, wanted.Name)
		}
		created, err := secrets.Create(ctx, wanted, metav1.CreateOptions{})
		if err != nil {
			return "", inNamespace(err, "create", wanted.Namespace, wanted.Name)
		}
		return created.UID, nil
	}
	existing.Data = wanted.Data
	_, err = secrets.Update(ctx, existing, metav1.UpdateOptions{})
	return existing.UID, inNamespace(err, "update", wanted.Namespace, wanted.Name)
}

// VolumeRemoved removes the Secret that was made for a volume that is gone, if there is
// one. The historic provisioner left no mark on its Secrets; their names are the proof.
func (k *Keeper) VolumeRemoved(ctx context.Context, origin objects.Origin) error {
	if origin.Secret == "" || origin.SecretNamespace == "" || origin.SharesSecret() {
		return nil
	}
	if !origin.Historic {
		return deleteNamed(ctx, k.Client, origin.SecretNamespace, origin.Secret, origin.PVName, origin.SecretUID)
	}
	err := k.Client.CoreV1().Secrets(origin.SecretNamespace).Delete(ctx, origin.Secret, metav1.DeleteOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case apierrors.IsForbidden(err):
		return fmt.Errorf("the volume is deleted, but the service account is not allowed to delete Secret %s/%s of the historic provisioner; "+
			"add the historic-volumes component of the manifests, or delete the Secret by hand: %w", origin.SecretNamespace, origin.Secret, err)
	}
	return inNamespace(err, "delete", origin.SecretNamespace, origin.Secret)
}

// DeleteOwn removes the Secrets that this program made, in either mode, for a
// PersistentVolume that does not exist, and no others of these names.
func DeleteOwn(ctx context.Context, client kubernetes.Interface, namespace, pvName string) error {
	return errors.Join(
		deleteNamed(ctx, client, namespace, objects.SecretName(pvName), pvName, ""),
		deleteNamed(ctx, client, namespace, objects.NodeSecretName(pvName), pvName, ""),
	)
}

// deleteNamed removes the Secret that this program made for a PersistentVolume, and no
// other of that name. recorded is the UID that the PersistentVolume records. If it is
// empty, or the Secret cannot be deleted by it, the Secret is read first: it may have
// come from a backup and have another UID, or somebody may have taken it over, with its
// marks.
func deleteNamed(ctx context.Context, client kubernetes.Interface, namespace, name, pvName string, recorded types.UID) error {
	if recorded != "" {
		err := client.CoreV1().Secrets(namespace).Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &recorded}})
		if err == nil || apierrors.IsNotFound(err) {
			return nil
		}
	}
	existing, err := client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && !objects.IsSecretOf(existing, pvName) {
		return nil
	}
	if err != nil {
		return inNamespace(err, "read", namespace, name)
	}
	err = client.CoreV1().Secrets(namespace).Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &existing.UID}})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return inNamespace(err, "delete", namespace, name)
}

func inNamespace(err error, verb, namespace, name string) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("cannot %s Secret %s/%s: %w", verb, namespace, name, err)
}

// sweepOwn removes Secrets of claims that disappeared while they were
// provisioned. Undoing removes a claim's Secret, but the request that creates
// it may arrive later. If a volume of the claim exists, the Secret may have
// been kept on purpose, with the volume.
func (k *Keeper) sweepOwn(ctx context.Context, secrets []objects.Secret) error {
	left := map[types.UID]string{} // PersistentVolumes' names by claim UID
	for _, secret := range secrets {
		claimUID, named := strings.CutPrefix(secret.PV, objects.PVNamePrefix)
		uid := types.UID(claimUID)
		_, err := k.PersistentVolumes.Get(secret.PV)
		if named && err != nil && !k.IsWanted(uid) && secret.Cluster == k.Cluster && time.Since(secret.CreatedAt).Abs() < k.MostAge {
			left[uid] = secret.PV
		}
	}
	if len(left) == 0 {
		return nil
	}
	kept, err := k.ClaimsOfVolumes(ctx)
	if err != nil {
		return err
	}
	// The cache of claims may be late.
	existing, err := objects.ListEarlierClaims(ctx, k.Client)
	if err != nil {
		return err
	}
	maps.DeleteFunc(left, func(uid types.UID, _ string) bool { return kept[uid] || existing.Present(uid) })
	var failed []error
	for _, pv := range left {
		k.Logger.Info("Removing the Secret of a claim that is gone", "persistentVolume", pv)
		failed = append(failed, k.RemoveOwn(ctx, pv))
	}
	return errors.Join(failed...)
}
