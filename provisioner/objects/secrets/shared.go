package secrets

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// maxSharedWrites bounds how often others may write a Secret in between. All write the
// same content, unless the key is just being changed.
const maxSharedWrites = 5

// keepShared creates or updates a shared Secret. A new key replaces the old one for
// existing volumes, too. A connection that was stored with an attachment is not fresh:
// its key may have been replaced since. That key is better than none, but never replaces
// the present one. A Secret that was found unneeded is needed again, and the write makes
// a removal fail that was decided before.
func (k *Keeper) keepShared(ctx context.Context, backend string, secret mappers.Secret, fresh bool) error {
	wanted := k.newSecret(secret, objects.AnnotationSharedBy, backend)
	secrets := k.Client.CoreV1().Secrets(k.Namespace)
	for range maxSharedWrites {
		existing, err := secrets.Get(ctx, wanted.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			if _, err = secrets.Create(ctx, wanted, metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
				continue
			}
			return inNamespace(err, "create", wanted.Namespace, wanted.Name)
		case err != nil:
			return inNamespace(err, "read", wanted.Namespace, wanted.Name)
		case !objects.IsSharedSecret(existing, backend, k.Cluster) || existing.Type != wanted.Type:
			return fmt.Errorf("secret %s/%s exists but was not made by standalone-cinder for the volumes of backend %s; rename or remove it", wanted.Namespace, wanted.Name, backend)
		}
		_, unneeded := existing.Annotations[objects.AnnotationUnneededSince]
		outdated := fresh && !maps.EqualFunc(existing.Data, wanted.Data, slices.Equal)
		if !unneeded && !outdated {
			return nil
		}
		delete(existing.Annotations, objects.AnnotationUnneededSince)
		if outdated {
			existing.Data = wanted.Data
		}
		_, err = secrets.Update(ctx, existing, metav1.UpdateOptions{})
		if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return inNamespace(err, "update", wanted.Namespace, wanted.Name)
		}
	}
	return fmt.Errorf("secret %s/%s was changed %d times by others during the update", wanted.Namespace, wanted.Name, maxSharedWrites)
}

// sweepShared removes the shared Secrets of backends that are no longer in use. While a
// backend is in use, its Secrets stay, needed or not.
func (k *Keeper) sweepShared(ctx context.Context, secrets []objects.Secret) error {
	var failed []error
	for _, secret := range secrets {
		if secret.SharedBy == "" || secret.Cluster != k.Cluster || k.IsInUse(secret.SharedBy) {
			continue
		}
		failed = append(failed, k.removeUnneeded(ctx, secret.SharedBy, secret.Name))
	}
	return errors.Join(failed...)
}

// removeUnneeded marks a shared Secret that nothing needs, and removes it if it was
// marked objects.UnneededKept ago and nothing has needed it since. Until then, a former
// leader's last request may still save a PersistentVolume that names it.
//
// The Secret is changed only if it is still the one that was read. A use that began before
// the mark is seen: an attempt of this term in the ledger, an import of another process by
// its claim, and both by the PersistentVolumes that they have saved, which are listed last.
// A use that begins later takes the mark off, so that the removal fails, or does not find
// the Secret, and writes it again.
func (k *Keeper) removeUnneeded(ctx context.Context, backend, name string) error {
	secrets := k.Client.CoreV1().Secrets(k.Namespace)
	existing, err := secrets.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && !objects.IsSharedSecret(existing, backend, k.Cluster) {
		return nil
	}
	if err != nil {
		return inNamespace(err, "read", k.Namespace, name)
	}
	// Another replica's clock may be ahead.
	since := objects.UnneededSince(existing)
	marked := !since.IsZero() && !since.After(time.Now())
	if marked && time.Since(since) < objects.UnneededKept {
		return nil
	}
	// A claim that is bound by now has its PersistentVolume in the other listing.
	awaiting, _, err := objects.ListClaims(ctx, k.Client, objects.AwaitsImport)
	if err != nil || slices.Contains(awaiting, true) {
		return err
	}
	needed, err := objects.ListPersistentVolumes(ctx, k.Client, func(pv *corev1.PersistentVolume) bool { return objects.RefersTo(pv, k.Namespace, name) })
	if err != nil || slices.Contains(needed, true) {
		return err
	}
	if !marked {
		existing.Annotations[objects.AnnotationUnneededSince] = time.Now().UTC().Format(time.RFC3339)
		_, err = secrets.Update(ctx, existing, metav1.UpdateOptions{})
		if apierrors.IsConflict(err) {
			return nil
		}
		return inNamespace(err, "update", k.Namespace, name)
	}
	k.Logger.Info("Removing a shared Secret that nothing needs", "secret", name, "backend", backend, "unneededSince", since)
	err = secrets.Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &existing.UID, ResourceVersion: &existing.ResourceVersion}})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return inNamespace(err, "delete", k.Namespace, name)
}
