package lastgood

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
)

// The keys of the Secret. The policy is compressed, because it may be as large as a whole
// Secret.
const (
	clusterKey = "kube-system-uid"
	policyKey  = "policy.yaml.gz"
)

// encode makes the content of the Secret.
func (s Store) encode(policy []byte) (map[string][]byte, error) {
	data := map[string][]byte{clusterKey: []byte(s.ClusterUID), policyKey: compress(policy)}
	if size := len(s.ClusterUID) + len(data[policyKey]); size > corev1.MaxSecretSize {
		return nil, fmt.Errorf("cannot write %s: the policy has %d bytes when compressed, but a Secret holds at most %d; make the policy smaller",
			s, size, corev1.MaxSecretSize)
	}
	return data, nil
}

func (s Store) decode(secret *corev1.Secret) (kept Kept, err error) {
	if secret.Type != SecretType {
		return kept, s.foreign(secret)
	}
	if cluster := string(secret.Data[clusterKey]); cluster != s.ClusterUID {
		return kept, fmt.Errorf("it was written in another cluster: the UID of namespace kube-system was %q there, and is %q here", cluster, s.ClusterUID)
	}
	kept.Policy, err = decompress(secret.Data[policyKey], s.MaxPolicySize+1)
	return kept, err
}

// compress returns the same bytes for the same text.
func compress(text []byte) []byte {
	var compressed bytes.Buffer
	writer := gzip.NewWriter(&compressed)
	// Writing to a buffer never fails.
	_, _ = writer.Write(text)
	_ = writer.Close()
	return compressed.Bytes()
}

// decompress reads no further than the limit; nil if there is nothing.
func decompress(compressed []byte, limit int64) ([]byte, error) {
	if len(compressed) == 0 {
		return nil, nil
	}
	reader, err := gzip.NewReader(bytes.NewReader(compressed))
	if err != nil {
		return nil, fmt.Errorf("its key %s is not compressed by gzip: %w", policyKey, err)
	}
	text, err := io.ReadAll(io.LimitReader(reader, limit))
	if err != nil {
		return nil, fmt.Errorf("its key %s cannot be decompressed: %w", policyKey, err)
	}
	return text, nil
}
