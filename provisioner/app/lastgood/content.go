package lastgood

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// The keys of the Secret. What may be large is compressed, because a policy alone may
// be as large as a whole Secret.
const (
	clusterKey     = "kube-system-uid"
	policyKey      = "policy.yaml.gz"
	credentialsKey = "credentials.json.gz"
)

// maxSharedSize is the largest size of the credentials before they are compressed.
// Certificates, which make up most of them, shrink by at least a quarter.
const maxSharedSize = 4 * corev1.MaxSecretSize

// shared holds texts by backend, and each line that they share only once: the entries
// of all backends often have the same CA bundle as one long line, and gzip itself does
// not look back further than 32 KiB.
type shared struct {
	Lines []string `json:"lines"`
	// Backends are the numbers of each text's lines.
	Backends map[string][]int `json:"backends"`
}

// share returns the same result for the same texts.
func share(texts map[string][]byte) shared {
	found := shared{Backends: map[string][]int{}}
	numbers := map[string]int{}
	for _, backend := range slices.Sorted(maps.Keys(texts)) {
		for line := range strings.SplitSeq(string(texts[backend]), "\n") {
			number, ok := numbers[line]
			if !ok {
				number = len(found.Lines)
				numbers[line] = number
				found.Lines = append(found.Lines, line)
			}
			found.Backends[backend] = append(found.Backends[backend], number)
		}
	}
	return found
}

// texts is the reverse of share.
func (s shared) texts() (map[string][]byte, error) {
	texts := map[string][]byte{}
	for backend, numbers := range s.Backends {
		lines := make([]string, len(numbers))
		for i, number := range numbers {
			if number < 0 || number >= len(s.Lines) {
				return nil, fmt.Errorf("its key %s has no line %d", credentialsKey, number)
			}
			lines[i] = s.Lines[number]
		}
		texts[backend] = []byte(strings.Join(lines, "\n"))
	}
	return texts, nil
}

// encode makes the content of the Secret. The error says what the content lacks because
// a Secret cannot hold it. If the content is nil, a Secret can hold nothing of it.
func (s Store) encode(policy []byte, credentials map[string][]byte) (map[string][]byte, error) {
	data := map[string][]byte{clusterKey: []byte(s.ClusterUID), policyKey: compress(policy)}
	size := len(s.ClusterUID) + len(data[policyKey])
	if size > corev1.MaxSecretSize {
		return nil, fmt.Errorf("cannot write %s: the policy has %d bytes when compressed, but a Secret holds at most %d; make the policy smaller",
			s, size, corev1.MaxSecretSize)
	}
	if len(credentials) == 0 {
		return data, nil
	}
	text, err := json.Marshal(share(credentials))
	if err != nil {
		return data, fmt.Errorf("%s has no credentials: %w", s, err)
	}
	compressed := compress(text)
	if size += len(compressed); size > corev1.MaxSecretSize || len(text) > maxSharedSize {
		return data, fmt.Errorf("%s has the policy, but no credentials: those of %d backends have %d bytes, %d when compressed and with the policy, but a Secret holds at most %d; "+
			"let clouds.yaml name smaller CA bundles, and the same one for many backends", s, len(credentials), len(text), size, corev1.MaxSecretSize)
	}
	data[credentialsKey] = compressed
	return data, nil
}

func (s Store) decode(secret *corev1.Secret) (kept Kept, err error) {
	if secret.Type != SecretType {
		return kept, s.foreign(secret)
	}
	if cluster := string(secret.Data[clusterKey]); cluster != s.ClusterUID {
		return kept, fmt.Errorf("it was written in another cluster: the UID of namespace kube-system was %q there, and is %q here", cluster, s.ClusterUID)
	}
	if kept.Policy, err = decompress(secret, policyKey, s.MaxPolicySize+1); err != nil {
		return kept, err
	}
	text, err := decompress(secret, credentialsKey, maxSharedSize)
	if err != nil || text == nil {
		return kept, err
	}
	var found shared
	if err := json.Unmarshal(text, &found); err != nil {
		// The parser's error may quote a secret.
		return kept, fmt.Errorf("its key %s cannot be decoded", credentialsKey)
	}
	kept.Credentials, err = found.texts()
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

// decompress reads no further than the limit; nil if the key is missing.
func decompress(secret *corev1.Secret, key string, limit int64) ([]byte, error) {
	compressed, ok := secret.Data[key]
	if !ok {
		return nil, nil
	}
	reader, err := gzip.NewReader(bytes.NewReader(compressed))
	if err != nil {
		return nil, fmt.Errorf("its key %s is not compressed by gzip: %w", key, err)
	}
	text, err := io.ReadAll(io.LimitReader(reader, limit))
	if err != nil {
		return nil, fmt.Errorf("its key %s cannot be decompressed: %w", key, err)
	}
	return text, nil
}
