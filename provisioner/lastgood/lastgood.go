// Package lastgood keeps the policy and the credentials that were last in force
// in the cluster, for replicas that start while a file is bad.
package lastgood

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// SecretType marks the Secret. The API server never changes the type of a
// Secret, so one that has it was made by this program.
const SecretType corev1.SecretType = "standalone-cinder.openstack.org/last-good"

// The keys of the Secret. The policy is compressed, since it may be as large as
// a whole Secret.
const (
	policyKey         = "policy.yaml.gz"
	credentialsPrefix = "credentials."
)

// Kept is what the cluster has.
type Kept struct {
	// Policy is the text of the policy, at most one byte longer than a policy may
	// be; empty if none is kept.
	Policy []byte
	// Credentials are texts by backend, all of them secret.
	Credentials map[string][]byte
	// Damage is why the policy cannot be read.
	Damage error

	secret *corev1.Secret
}

// Store reads and writes one Secret.
type Store struct {
	Client          kubernetes.Interface
	Namespace, Name string
	// Labels are those of the Secret.
	Labels map[string]string
	// MaxPolicySize is the largest size of a policy.
	MaxPolicySize int64
}

// String names the Secret in messages.
func (s Store) String() string { return fmt.Sprintf("Secret %s/%s", s.Namespace, s.Name) }

// Load reads what is kept. Nothing is kept if there is no Secret; a damaged one
// is no error, but says so.
func (s Store) Load(ctx context.Context) (Kept, error) {
	secret, err := s.Client.CoreV1().Secrets(s.Namespace).Get(ctx, s.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return Kept{}, nil
	case err != nil:
		return Kept{}, fmt.Errorf("cannot read %s: %w", s, err)
	case secret.Type != SecretType:
		return Kept{secret: secret, Damage: s.foreign(secret)}, nil
	}
	kept := Kept{secret: secret, Credentials: map[string][]byte{}}
	for key, text := range secret.Data {
		if backend, ok := strings.CutPrefix(key, credentialsPrefix); ok {
			kept.Credentials[backend] = text
		}
	}
	if compressed, ok := secret.Data[policyKey]; ok {
		kept.Policy, kept.Damage = s.decompress(compressed)
	}
	return kept, nil
}

func (s Store) foreign(secret *corev1.Secret) error {
	return fmt.Errorf("it has the type %q, so this program did not write it; rename or remove it", secret.Type)
}

func (s Store) decompress(compressed []byte) ([]byte, error) {
	reader, err := gzip.NewReader(bytes.NewReader(compressed))
	if err != nil {
		return nil, fmt.Errorf("its key %s is not compressed by gzip: %w", policyKey, err)
	}
	text, err := io.ReadAll(io.LimitReader(reader, s.MaxPolicySize+1))
	if err != nil {
		return nil, fmt.Errorf("its key %s cannot be decompressed: %w", policyKey, err)
	}
	return text, nil
}

// Save replaces what was loaded. It fails if somebody else has written since.
func (s Store) Save(ctx context.Context, loaded Kept, policy []byte, credentials map[string][]byte) error {
	if loaded.secret != nil && loaded.secret.Type != SecretType {
		return fmt.Errorf("%s is in the way: %w", s, s.foreign(loaded.secret))
	}
	if loaded.secret != nil && loaded.Damage == nil && bytes.Equal(loaded.Policy, policy) &&
		maps.EqualFunc(loaded.Credentials, credentials, bytes.Equal) {
		return nil
	}
	compressed, err := compress(policy)
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", s, err)
	}
	data := map[string][]byte{policyKey: compressed}
	size := len(compressed)
	for backend, text := range credentials {
		data[credentialsPrefix+backend] = text
		size += len(text)
	}
	if size > corev1.MaxSecretSize {
		return fmt.Errorf("cannot write %s: the policy, compressed, and the credentials of %d backends have %d bytes, and a Secret holds %d; make the policy smaller",
			s, len(credentials), size, corev1.MaxSecretSize)
	}
	secrets := s.Client.CoreV1().Secrets(s.Namespace)
	if loaded.secret == nil {
		_, err = secrets.Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: s.Name, Namespace: s.Namespace, Labels: s.Labels},
			Type:       SecretType, Data: data,
		}, metav1.CreateOptions{})
	} else {
		next := loaded.secret.DeepCopy()
		next.Data = data
		_, err = secrets.Update(ctx, next, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", s, err)
	}
	return nil
}

// compress gives the same bytes for the same text.
func compress(text []byte) ([]byte, error) {
	var compressed bytes.Buffer
	writer := gzip.NewWriter(&compressed)
	if _, err := writer.Write(text); err != nil {
		return nil, err
	}
	if err := writer.Close(); err != nil {
		return nil, err
	}
	return compressed.Bytes(), nil
}
