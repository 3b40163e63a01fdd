package secrets

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// keepShared writes a Secret that the volumes of a backend share, and keeps it until
// the attempt is over. A new key replaces the old one for existing volumes, too. A key
// that is not fresh replaces nothing.
func (k *Keeper) keepShared(ctx context.Context, claim types.UID, backend string, secret mappers.Secret, fresh bool) error {
	entry := k.named(secret.Name)
	entry.use.RLock()
	defer entry.use.RUnlock()
	k.hold(entry, claim)
	return k.writeShared(ctx, backend, secret, fresh)
}

// KeepForImport writes the Secret that the PersistentVolume of an import will refer to.
// The import runs in another process than the leader, which may be removing a shared
// Secret as unneeded. The claim of the import must exist already: then either the
// leader sees that the claim waits, or it finds the Secret changed, or the Secret is
// gone by now and is written again.
func (k *Keeper) KeepForImport(ctx context.Context, pvName, backend string, secret mappers.Secret, fresh bool) error {
	if !secret.Shared {
		_, err := k.keepOwn(ctx, pvName, secret)
		return err
	}
	// A value that was never written before gives the object a new resource version.
	mark, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{
		objects.AnnotationLastImport: pvName + " " + time.Now().UTC().Format(time.RFC3339Nano),
	}}})
	if err != nil {
		// Maps of strings always encode.
		panic(err)
	}
	for range maxSharedWrites {
		if err := k.writeShared(ctx, backend, secret, fresh); err != nil {
			return err
		}
		_, err := k.Client.CoreV1().Secrets(k.Namespace).Patch(ctx, secret.Name, types.MergePatchType, mark, metav1.PatchOptions{})
		if !apierrors.IsNotFound(err) {
			return inNamespace(err, "patch", k.Namespace, secret.Name)
		}
	}
	return fmt.Errorf("secret %s/%s was removed %d times by others during the import", k.Namespace, secret.Name, maxSharedWrites)
}

// ImportEnded must be called when a claim is deleted that may have waited for an
// import, because that may have been the only use of a shared Secret.
func (k *Keeper) ImportEnded() { k.noteUncertain() }

// maxSharedWrites bounds how often others may write a Secret in between. All write the
// same content, unless the key is just being changed.
const maxSharedWrites = 5

// writeShared creates or updates a shared Secret. A connection that was stored with an
// attachment may have a key that was replaced since. That key is better than none, but
// never replaces the present one.
func (k *Keeper) writeShared(ctx context.Context, backend string, secret mappers.Secret, fresh bool) error {
	wanted := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name:        secret.Name,
			Namespace:   k.Namespace,
			Labels:      map[string]string{objects.LabelManagedBy: objects.ManagedBy},
			Annotations: map[string]string{objects.AnnotationSharedBy: backend, objects.AnnotationCluster: k.Cluster},
		},
		Type: secret.Type,
		Data: secret.Data,
	}
	secrets := k.Client.CoreV1().Secrets(k.Namespace)
	for range maxSharedWrites {
		existing, err := secrets.Get(ctx, wanted.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			if _, err = secrets.Create(ctx, wanted, metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
				continue
			}
			if err != nil {
				// The request may arrive late, when nothing needs the Secret any more.
				k.noteUncertain()
			}
			return inNamespace(err, "create", wanted.Namespace, wanted.Name)
		case err != nil:
			return inNamespace(err, "read", wanted.Namespace, wanted.Name)
		case !objects.IsSharedSecret(existing, backend, k.Cluster) || existing.Type != wanted.Type:
			return fmt.Errorf("secret %s/%s exists but was not made by standalone-cinder for the volumes of backend %s; rename or remove it", wanted.Namespace, wanted.Name, backend)
		case !fresh || maps.EqualFunc(existing.Data, wanted.Data, slices.Equal):
			return nil
		}
		existing.Data = wanted.Data
		_, err = secrets.Update(ctx, existing, metav1.UpdateOptions{})
		if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return inNamespace(err, "update", wanted.Namespace, wanted.Name)
		}
	}
	return fmt.Errorf("secret %s/%s was changed %d times by others during the update", wanted.Namespace, wanted.Name, maxSharedWrites)
}

// leaveShared records that a PersistentVolume's volume is gone, and removes the Secret
// together with the last of them. It records this first, so that of two that leave at
// once, the later one sees that the other is gone.
func (k *Keeper) leaveShared(ctx context.Context, pv types.UID, origin objects.Origin) error {
	if origin.SecretNamespace != k.Namespace {
		// Another instance of this program keeps it; its attempts are not known here.
		return nil
	}
	k.leave(k.named(origin.Secret), pv)
	settled, err := k.removeUnneeded(ctx, origin.Backend, origin.Secret)
	if err == nil && !settled {
		k.noteUncertain()
	}
	return err
}

// AttemptUndone removes the Secrets that an attempt needed and nothing else
// needs. If it cannot determine that now, a later sweep does.
func (k *Keeper) AttemptUndone(ctx context.Context, backend string, names []string) {
	for _, name := range names {
		settled, err := k.removeUnneeded(ctx, backend, name)
		if err != nil || !settled {
			k.noteUncertain()
		}
		if err != nil {
			k.Logger.Warn("A shared Secret may no longer be needed; it will be checked again", "secret", name, "backend", backend, "error", err)
		}
	}
}

// removeUnneeded removes a shared Secret if it exists and nothing needs it. It decides
// nothing while a former leader's last request may still record a PersistentVolume that
// names the Secret.
//
// The order matters. While removeUnneeded has the write lock of use, no attempt begins
// to need the Secret. An attempt that ended before the check has left its
// PersistentVolume in the API server, where the listing that follows shows it. The
// Secret is read before the listings, and removed only if it is still the same: an
// import, which is another process, creates its claim, then writes the Secret, and then
// records the PersistentVolume. Claims are listed first, because a claim that is bound
// by then has its PersistentVolume in the other listing.
func (k *Keeper) removeUnneeded(ctx context.Context, backend, name string) (settled bool, err error) {
	entry := k.named(name)
	// The cache already shows most of what needs it, without a request.
	cached, err := k.PersistentVolumes.List(labels.Everything())
	if err != nil {
		return false, err
	}
	for _, pv := range cached {
		if k.needsShared(pv, entry, name) {
			return true, nil
		}
	}
	entry.use.Lock()
	defer entry.use.Unlock()
	if k.isHeld(entry) {
		return true, nil
	}
	if k.MayBeUnrecorded(backend) {
		return false, nil
	}
	secrets := k.Client.CoreV1().Secrets(k.Namespace)
	existing, err := secrets.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && !objects.IsSharedSecret(existing, backend, k.Cluster) {
		return true, nil
	}
	if err != nil {
		return false, inNamespace(err, "read", k.Namespace, name)
	}
	awaiting, _, err := objects.ListClaims(ctx, k.Client, objects.AwaitsImport)
	if err != nil || slices.Contains(awaiting, true) {
		return err == nil, err
	}
	needed, err := objects.ListPersistentVolumes(ctx, k.Client, func(pv *corev1.PersistentVolume) bool { return k.needsShared(pv, entry, name) })
	if err != nil || slices.Contains(needed, true) {
		return err == nil, err
	}
	err = secrets.Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &existing.UID, ResourceVersion: &existing.ResourceVersion}})
	switch {
	case apierrors.IsNotFound(err):
		return true, nil
	case apierrors.IsConflict(err):
		// It may be needed again; a later sweep finds out.
		k.noteUncertain()
		return false, nil
	}
	return err == nil, inNamespace(err, "delete", k.Namespace, name)
}

// needsShared reports whether a PersistentVolume names a shared Secret and its
// volume still exists.
func (k *Keeper) needsShared(pv *corev1.PersistentVolume, entry *holding, name string) bool {
	return objects.RefersTo(pv, k.Namespace, name) && !k.hasLeft(entry, pv.UID)
}

// sweepShared removes shared Secrets that nothing needs: those that remain when a
// process dies between the last deletion and the Secret's, or when PersistentVolumes
// are removed by hand. Their age does not matter, because Cinder provides their content
// with every new volume.
func (k *Keeper) sweepShared(ctx context.Context, secrets []objects.Secret) error {
	var failed []error
	for _, secret := range secrets {
		if secret.SharedBy == "" || secret.Cluster != k.Cluster {
			continue
		}
		_, err := k.removeUnneeded(ctx, secret.SharedBy, secret.Name)
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}
