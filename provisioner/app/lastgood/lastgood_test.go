package lastgood

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

const largest = 1 << 20

func newStore(objects ...runtime.Object) (Store, *fake.Clientset) {
	client := fake.NewClientset(objects...)
	return Store{Client: client, Namespace: "storage", Name: "cinder-last-good", ClusterUID: "uid", MaxPolicySize: largest,
		Labels: map[string]string{"made-by": "us"}}, client
}

// writes counts the changes that were requested.
func writes(client *fake.Clientset) int {
	count := 0
	for _, action := range client.Actions() {
		if action.GetVerb() != "get" {
			count++
		}
	}
	return count
}

func TestWhatIsSavedIsLoaded(t *testing.T) {
	store, client := newStore()
	nothing, err := store.Load(t.Context())
	if err != nil || nothing.Policy != nil || nothing.Credentials != nil || nothing.Unusable != nil {
		t.Fatalf("at first: %+v, %v", nothing, err)
	}
	policy := strings.Repeat("kind: Policy\n", largest/13)
	credentials := map[string][]byte{"gold": []byte("s3cr3t"), "lab-2": []byte("other")}
	if err := store.Save(t.Context(), nothing, []byte(policy), credentials); err != nil {
		t.Fatal(err)
	}
	kept, err := store.Load(t.Context())
	if err != nil || string(kept.Policy) != policy || len(kept.Credentials) != 2 || string(kept.Credentials["gold"]) != "s3cr3t" || kept.Unusable != nil {
		t.Fatalf("loaded %d bytes and %d credentials; unusable %v, error %v", len(kept.Policy), len(kept.Credentials), kept.Unusable, err)
	}
	if err := store.Save(t.Context(), kept, []byte(policy), credentials); err != nil || writes(client) != 1 {
		t.Errorf("the same again is written: error %v", err)
	}
	// Credentials that are no longer used are no longer kept.
	if err := store.Save(t.Context(), kept, []byte("new"), map[string][]byte{"gold": []byte("rotated")}); err != nil {
		t.Fatal(err)
	}
	kept, err = store.Load(t.Context())
	if err != nil || string(kept.Policy) != "new" || len(kept.Credentials) != 1 || string(kept.Credentials["gold"]) != "rotated" {
		t.Errorf("loaded %q and %d credentials, error %v", kept.Policy, len(kept.Credentials), err)
	}
}

func secretOf(data map[string]string) *corev1.Secret {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "storage", Name: "cinder-last-good"}, Type: SecretType, Data: map[string][]byte{}}
	for key, text := range data {
		secret.Data[key] = []byte(text)
	}
	return secret
}

func TestDamageIsToldAndRepaired(t *testing.T) {
	for name, c := range map[string]struct{ cluster, policy, credentials, want string }{
		"not compressed":  {"uid", "kind: Policy", "", "its key policy.yaml.gz is not compressed by gzip: gzip: invalid header"},
		"cut off":         {"uid", "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff\x01", "", "its key policy.yaml.gz cannot be decompressed: unexpected EOF"},
		"no JSON":         {"uid", "", `{"lines": [s3cr3t`, "its key credentials.json.gz cannot be decoded"},
		"no such line":    {"uid", "", `{"lines": ["s3cr3t"], "backends": {"gold": [0, 1]}}`, "its key credentials.json.gz has no line 1"},
		"another cluster": {"other", "", "", `it was written in another cluster: the UID of namespace kube-system was "other" there, and is "uid" here`},
		"of no cluster":   {"", "", "", `it was written in another cluster: the UID of namespace kube-system was "" there, and is "uid" here`},
	} {
		t.Run(name, func(t *testing.T) {
			data := map[string]string{"kube-system-uid": c.cluster, "policy.yaml.gz": string(compress([]byte("earlier"))), "no key of ours": "s3cr3t"}
			if c.policy != "" {
				data["policy.yaml.gz"] = c.policy
			}
			if c.credentials != "" {
				data["credentials.json.gz"] = string(compress([]byte(c.credentials)))
			}
			store, client := newStore(secretOf(data))
			kept, err := store.Load(t.Context())
			if err != nil || kept.Unusable == nil || kept.Unusable.Error() != c.want || len(kept.Policy)+len(kept.Credentials) > 0 {
				t.Fatalf("unusable %v, error %v", kept.Unusable, err)
			}
			if err := store.Save(t.Context(), kept, []byte("good"), nil); err != nil {
				t.Fatal(err)
			}
			if kept, err = store.Load(t.Context()); err != nil || kept.Unusable != nil || string(kept.Policy) != "good" {
				t.Errorf("after it was saved: %q, unusable %v, error %v", kept.Policy, kept.Unusable, err)
			}
			secret, err := client.CoreV1().Secrets("storage").Get(t.Context(), "cinder-last-good", metav1.GetOptions{})
			if err != nil || len(secret.Data) != 2 {
				t.Errorf("after it was saved, it has %d keys, error %v", len(secret.Data), err)
			}
		})
	}
}

// TestARemovedLabelComesBack: admission policies depend on it.
func TestARemovedLabelComesBack(t *testing.T) {
	store, client := newStore()
	if err := store.Save(t.Context(), Kept{}, []byte("policy"), nil); err != nil {
		t.Fatal(err)
	}
	secrets := client.CoreV1().Secrets("storage")
	secret, err := secrets.Get(t.Context(), store.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	secret.Labels = map[string]string{"of": "others"}
	if _, err := secrets.Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	kept, err := store.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Save(t.Context(), kept, []byte("policy"), nil); err != nil {
		t.Fatal(err)
	}
	if secret, err = secrets.Get(t.Context(), store.Name, metav1.GetOptions{}); err != nil || secret.Labels["made-by"] != "us" || secret.Labels["of"] != "others" {
		t.Errorf("labels %v, error %v", secret.Labels, err)
	}
}

// TestABombIsNotDecompressed: no more of a policy is read than its largest size.
func TestABombIsNotDecompressed(t *testing.T) {
	store, _ := newStore(secretOf(map[string]string{"kube-system-uid": "uid", "policy.yaml.gz": string(compress(make([]byte, 8*largest)))}))
	kept, err := store.Load(t.Context())
	if err != nil || len(kept.Policy) != largest+1 {
		t.Errorf("%d bytes, error %v", len(kept.Policy), err)
	}
}

func TestASecretOfOthersIsLeftAlone(t *testing.T) {
	store, client := newStore(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "storage", Name: "cinder-last-good"}, Type: corev1.SecretTypeOpaque,
		Data: map[string][]byte{"credentials.gold": []byte("s3cr3t")}})
	kept, err := store.Load(t.Context())
	if err != nil || kept.Unusable == nil || len(kept.Credentials) > 0 {
		t.Fatalf("%+v, %v", kept, err)
	}
	err = store.Save(t.Context(), kept, []byte("policy"), nil)
	if want := `Secret storage/cinder-last-good is in the way: it has the type "Opaque", so this program did not write it; rename or remove it`; err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	if writes(client) > 0 {
		t.Error("it was changed")
	}
}

func noise(size int) []byte {
	bytes := make([]byte, size/2)
	_, _ = rand.Read(bytes)
	return []byte(hex.EncodeToString(bytes))
}

// TestEqualLinesAreKeptOnce: gzip does not find equal lines that are far apart.
func TestEqualLinesAreKeptOnce(t *testing.T) {
	store, _ := newStore()
	bundle := noise(largest / 4)
	credentials := map[string][]byte{}
	for i := range 40 {
		name := fmt.Sprintf("backend-%d", i)
		credentials[name] = fmt.Appendf(nil, "{\n%s\n%s\n}", name, bundle)
	}
	if err := store.Save(t.Context(), Kept{}, []byte("policy"), credentials); err != nil {
		t.Fatal(err)
	}
	kept, err := store.Load(t.Context())
	if err != nil || !maps.EqualFunc(kept.Credentials, credentials, bytes.Equal) {
		t.Errorf("loaded %d credentials; unusable %v, error %v", len(kept.Credentials), kept.Unusable, err)
	}
}

// TestWhatASecretCannotHoldIsTold: credentials give way to the policy. Nothing that was
// replaced stays.
func TestWhatASecretCannotHoldIsTold(t *testing.T) {
	store, _ := newStore()
	earlier := func() Kept {
		t.Helper()
		kept, err := store.Load(t.Context())
		if err == nil {
			err = store.Save(t.Context(), kept, []byte("earlier"), map[string][]byte{"gold": []byte("s3cr3t")})
		}
		if err == nil {
			kept, err = store.Load(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		return kept
	}
	for name, text := range map[string][]byte{"incompressible": noise(5 * largest / 2), "too much": bytes.Repeat([]byte("a"), maxSharedSize)} {
		err := store.Save(t.Context(), earlier(), []byte("policy"), map[string][]byte{"gold": text})
		if err == nil || !strings.HasPrefix(err.Error(), "Secret storage/cinder-last-good has the policy, but no credentials: those of 1 backends have ") {
			t.Errorf("%s: error %v", name, err)
		}
		if kept, err := store.Load(t.Context()); err != nil || string(kept.Policy) != "policy" || len(kept.Credentials) > 0 {
			t.Errorf("%s: kept %q and %d credentials, error %v", name, kept.Policy, len(kept.Credentials), err)
		}
	}
	err := store.Save(t.Context(), earlier(), noise(5*largest/2), nil)
	if err == nil || !strings.HasSuffix(err.Error(), "but a Secret holds at most 1048576; make the policy smaller; nothing is kept") {
		t.Errorf("error %v", err)
	}
	if kept, err := store.Load(t.Context()); err != nil || kept.Policy != nil {
		t.Errorf("kept %q, error %v", kept.Policy, err)
	}
}

// TestWhatCannotBeReplacedIsRemoved: it stays only if the API server refuses the
// removal, too.
func TestWhatCannotBeReplacedIsRemoved(t *testing.T) {
	for name, c := range map[string]struct {
		write, remove error
		want          string
		left          bool
	}{
		"refused":        {apierrors.NewForbidden(corev1.Resource("secrets"), "x", errors.New("no")), nil, "; nothing is kept", false},
		"too large":      {apierrors.NewRequestEntityTooLargeError("no"), nil, "; nothing is kept", false},
		"both refused":   {apierrors.NewForbidden(corev1.Resource("secrets"), "x", errors.New("no")), errors.New("never"), "; it still has what was in force earlier, and cannot be removed: never; remove it", true},
		"somebody wrote": {apierrors.NewConflict(corev1.Resource("secrets"), "x", errors.New("again")), nil, "again", true},
		"no answer":      {errors.New("timeout"), nil, "timeout", true},
	} {
		t.Run(name, func(t *testing.T) {
			store, client := newStore()
			if err := store.Save(t.Context(), Kept{}, []byte("earlier"), nil); err != nil {
				t.Fatal(err)
			}
			kept, err := store.Load(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for verb, err := range map[string]error{"update": c.write, "delete": c.remove} {
				client.PrependReactor(verb, "secrets", func(clienttesting.Action) (bool, runtime.Object, error) { return err != nil, nil, err })
			}
			err = store.Save(t.Context(), kept, []byte("policy"), nil)
			if err == nil || !strings.HasPrefix(err.Error(), "cannot write Secret storage/cinder-last-good: ") || !strings.HasSuffix(err.Error(), c.want) {
				t.Errorf("error %v", err)
			}
			if kept, err = store.Load(t.Context()); err != nil || (kept.Policy != nil) != c.left {
				t.Errorf("kept %q, error %v", kept.Policy, err)
			}
		})
	}
}

func TestErrorsOfTheAPIServerNameTheSecret(t *testing.T) {
	store, client := newStore()
	forbidden := apierrors.NewForbidden(corev1.Resource("secrets"), store.Name, errors.New("no"))
	client.PrependReactor("*", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, forbidden })
	_, err := store.Load(t.Context())
	if !apierrors.IsForbidden(err) || !strings.HasPrefix(err.Error(), "cannot read Secret storage/cinder-last-good: ") {
		t.Errorf("load: %v", err)
	}
	if err := store.Save(t.Context(), Kept{}, nil, nil); !apierrors.IsForbidden(err) || !strings.HasPrefix(err.Error(), "cannot write Secret storage/cinder-last-good: ") {
		t.Errorf("save: %v", err)
	}
}
