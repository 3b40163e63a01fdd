package lastgood

import (
	"crypto/rand"
	"errors"
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
	if err != nil || nothing.Policy != nil || nothing.Unusable != nil {
		t.Fatalf("at first: %+v, %v", nothing, err)
	}
	policy := strings.Repeat("kind: Policy\n", largest/13)
	if err := store.Save(t.Context(), nothing, []byte(policy)); err != nil {
		t.Fatal(err)
	}
	kept, err := store.Load(t.Context())
	if err != nil || string(kept.Policy) != policy || kept.Unusable != nil {
		t.Fatalf("loaded %d bytes; unusable %v, error %v", len(kept.Policy), kept.Unusable, err)
	}
	if err := store.Save(t.Context(), kept, []byte(policy)); err != nil || writes(client) != 1 {
		t.Errorf("the same again is written: error %v", err)
	}
	if err := store.Save(t.Context(), kept, []byte("new")); err != nil {
		t.Fatal(err)
	}
	kept, err = store.Load(t.Context())
	if err != nil || string(kept.Policy) != "new" {
		t.Errorf("loaded %q, error %v", kept.Policy, err)
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
	for name, c := range map[string]struct{ cluster, policy, want string }{
		"not compressed":  {"uid", "kind: Policy", "its key policy.yaml.gz is not compressed by gzip: gzip: invalid header"},
		"cut off":         {"uid", "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff\x01", "its key policy.yaml.gz cannot be decompressed: unexpected EOF"},
		"another cluster": {"other", "", `it was written in another cluster: the UID of namespace kube-system was "other" there, and is "uid" here`},
		"of no cluster":   {"", "", `it was written in another cluster: the UID of namespace kube-system was "" there, and is "uid" here`},
	} {
		t.Run(name, func(t *testing.T) {
			data := map[string]string{"kube-system-uid": c.cluster, "policy.yaml.gz": string(compress([]byte("earlier"))), "no key of ours": "s3cr3t"}
			if c.policy != "" {
				data["policy.yaml.gz"] = c.policy
			}
			// An earlier release kept credentials, too.
			data["credentials.json.gz"] = string(compress([]byte("s3cr3t")))
			store, client := newStore(secretOf(data))
			kept, err := store.Load(t.Context())
			if err != nil || kept.Unusable == nil || kept.Unusable.Error() != c.want || len(kept.Policy) > 0 {
				t.Fatalf("unusable %v, error %v", kept.Unusable, err)
			}
			if err := store.Save(t.Context(), kept, []byte("good")); err != nil {
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
	if err := store.Save(t.Context(), Kept{}, []byte("policy")); err != nil {
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
	if err := store.Save(t.Context(), kept, []byte("policy")); err != nil {
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
	if err != nil || kept.Unusable == nil {
		t.Fatalf("%+v, %v", kept, err)
	}
	err = store.Save(t.Context(), kept, []byte("policy"))
	if want := `Secret storage/cinder-last-good is in the way: it has the type "Opaque", so this program did not write it; rename or remove it`; err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	if writes(client) > 0 {
		t.Error("it was changed")
	}
}

// TestAPolicyThatASecretCannotHoldIsNotKept: nothing that was replaced stays.
func TestAPolicyThatASecretCannotHoldIsNotKept(t *testing.T) {
	store, _ := newStore()
	if err := store.Save(t.Context(), Kept{}, []byte("earlier")); err != nil {
		t.Fatal(err)
	}
	kept, err := store.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	noise := make([]byte, 5*largest/4)
	_, _ = rand.Read(noise)
	err = store.Save(t.Context(), kept, noise)
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
			if err := store.Save(t.Context(), Kept{}, []byte("earlier")); err != nil {
				t.Fatal(err)
			}
			kept, err := store.Load(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for verb, err := range map[string]error{"update": c.write, "delete": c.remove} {
				client.PrependReactor(verb, "secrets", func(clienttesting.Action) (bool, runtime.Object, error) { return err != nil, nil, err })
			}
			err = store.Save(t.Context(), kept, []byte("policy"))
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
	if err := store.Save(t.Context(), Kept{}, nil); !apierrors.IsForbidden(err) || !strings.HasPrefix(err.Error(), "cannot write Secret storage/cinder-last-good: ") {
		t.Errorf("save: %v", err)
	}
}
