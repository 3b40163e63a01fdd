// Package lastgood keeps the policy that was last in force in the cluster, for replicas
// that start while the file is bad.
package lastgood

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
)

// SecretType marks the Secret. The API server never changes the type of a Secret, so a
// Secret that has this one was made by this program.
const SecretType corev1.SecretType = "standalone-cinder.openstack.org/last-good"

// Kept is what the cluster has.
type Kept struct {
	// Policy is the text of the policy; empty if none is kept. It is at most one byte
	// longer than a policy may be.
	Policy []byte
	// Unusable is why nothing that is kept can be used; nil if it can be used, or if
	// nothing is kept.
	Unusable error

	secret *corev1.Secret
}

// Store reads and writes one Secret.
type Store struct {
	Client          kubernetes.Interface
	Namespace, Name string
	// ClusterUID is the UID of namespace kube-system. A Secret of another cluster,
	// restored from a backup, does not count.
	ClusterUID string
	// Labels are those of the Secret.
	Labels map[string]string
	// MaxPolicySize is the largest size of a policy.
	MaxPolicySize int64
}

// String names the Secret in messages.
func (s Store) String() string { return fmt.Sprintf("Secret %s/%s", s.Namespace, s.Name) }

// Load reads what is kept. Without a Secret, nothing is kept. A Secret that cannot be
// used is not an error, but sets Unusable.
func (s Store) Load(ctx context.Context) (Kept, error) {
	secret, err := s.Client.CoreV1().Secrets(s.Namespace).Get(ctx, s.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return Kept{}, nil
	case err != nil:
		return Kept{}, fmt.Errorf("cannot read %s: %w", s, err)
	}
	kept, err := s.decode(secret)
	if err != nil {
		kept = Kept{Unusable: err}
	}
	kept.secret = secret
	return kept, nil
}

func (s Store) foreign(secret *corev1.Secret) error {
	return fmt.Errorf("it has the type %q, so this program did not write it; rename or remove it", secret.Type)
}

// Save replaces what was loaded. It fails if somebody else has written since. If what
// is kept can never be replaced, Save removes it: a replica that cannot start is better
// than one that brings back what was revoked.
func (s Store) Save(ctx context.Context, loaded Kept, policy []byte) error {
	next := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: s.Name, Namespace: s.Namespace}, Type: SecretType}
	if loaded.secret != nil {
		if loaded.secret.Type != SecretType {
			return fmt.Errorf("%s is in the way: %w", s, s.foreign(loaded.secret))
		}
		next = loaded.secret.DeepCopy()
	}
	data, err := s.encode(policy)
	if err != nil {
		return s.remove(ctx, loaded, err)
	}
	next.Data, next.Labels = data, labels.Merge(next.Labels, s.Labels)
	if loaded.secret != nil && equality.Semantic.DeepEqual(next, loaded.secret) {
		return nil
	}
	if secrets := s.Client.CoreV1().Secrets(s.Namespace); loaded.secret == nil {
		_, err = secrets.Create(ctx, next, metav1.CreateOptions{})
	} else {
		_, err = secrets.Update(ctx, next, metav1.UpdateOptions{})
	}
	if err == nil {
		return nil
	}
	err = fmt.Errorf("cannot write %s: %w", s, err)
	if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsRequestEntityTooLargeError(err) {
		return s.remove(ctx, loaded, err)
	}
	return err
}

// remove removes what cannot be replaced, and adds to the reason what is kept now.
func (s Store) remove(ctx context.Context, loaded Kept, reason error) error {
	if loaded.secret != nil {
		err := s.Client.CoreV1().Secrets(s.Namespace).Delete(ctx, s.Name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &loaded.secret.UID, ResourceVersion: &loaded.secret.ResourceVersion},
		})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("%w; it still has what was in force earlier, and cannot be removed: %w; remove it", reason, err)
		}
	}
	return fmt.Errorf("%w; nothing is kept", reason)
}
