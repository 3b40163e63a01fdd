package provisioner

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/provisioner/record"
)

// ensureSecret writes the credentials of a volume into the program's own
// namespace, where tenants cannot read them. Kubelets may: the node authorizer
// follows the reference of a PersistentVolume into any namespace. An existing
// Secret of an earlier attempt is brought up to date.
func (p *Provisioner) ensureSecret(ctx context.Context, pvName string, secret mappers.Secret) error {
	wanted := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name:        record.SecretName(pvName),
			Namespace:   p.Namespace,
			Labels:      map[string]string{record.LabelManagedBy: record.ManagedBy},
			Annotations: map[string]string{record.AnnotationForPV: pvName, record.AnnotationCluster: p.Cluster},
		},
		Type: secret.Type,
		Data: secret.Data,
	}
	secrets := p.Client.CoreV1().Secrets(p.Namespace)
	_, err := secrets.Create(ctx, wanted, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		if err != nil {
			// It may arrive late, when nobody looks for it any more.
			p.secretDoubt.Store(time.Now().UnixNano())
		}
		return inNamespace(err, "create", wanted.Namespace, wanted.Name)
	}
	existing, err := secrets.Get(ctx, wanted.Name, metav1.GetOptions{})
	if err != nil {
		return inNamespace(err, "read", wanted.Namespace, wanted.Name)
	}
	if !record.IsSecretOf(existing, pvName) {
		return fmt.Errorf("secret %s/%s exists and was not made by standalone-cinder; rename or remove it", wanted.Namespace, wanted.Name)
	}
	if existing.Type == wanted.Type && maps.EqualFunc(existing.Data, wanted.Data, slices.Equal) {
		return nil
	}
	if existing.Type != wanted.Type {
		// The type is immutable; nothing mounts the volume yet.
		if err := secrets.Delete(ctx, wanted.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &existing.UID}}); err != nil {
			return inNamespace(err, "replace", wanted.Namespace, wanted.Name)
		}
		_, err = secrets.Create(ctx, wanted, metav1.CreateOptions{})
		return inNamespace(err, "create", wanted.Namespace, wanted.Name)
	}
	existing.Data = wanted.Data
	_, err = secrets.Update(ctx, existing, metav1.UpdateOptions{})
	return inNamespace(err, "update", wanted.Namespace, wanted.Name)
}

// deleteSecret removes the Secret that was made for a volume. None is fine. The
// historic provisioner left no mark on its Secrets; their names are the proof.
func (p *Provisioner) deleteSecret(ctx context.Context, origin record.Origin) error {
	if origin.Secret == "" || origin.SecretNamespace == "" {
		return nil
	}
	if !origin.Historic {
		return deleteOwnSecret(ctx, p.Client, origin.SecretNamespace, origin.PVName)
	}
	err := p.Client.CoreV1().Secrets(origin.SecretNamespace).Delete(ctx, origin.Secret, metav1.DeleteOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case apierrors.IsForbidden(err):
		return fmt.Errorf("volume is gone, but Secret %s/%s of the historic provisioner may not be deleted by this account; "+
			"add the historic-volumes component of the manifests, or delete the Secret by hand: %w", origin.SecretNamespace, origin.Secret, err)
	}
	return inNamespace(err, "delete", origin.SecretNamespace, origin.Secret)
}

// deleteOwnSecret removes the Secret that this program made for a
// PersistentVolume, and no other of that name.
func deleteOwnSecret(ctx context.Context, client kubernetes.Interface, namespace, pvName string) error {
	name := record.SecretName(pvName)
	existing, err := client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && !record.IsSecretOf(existing, pvName) {
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
