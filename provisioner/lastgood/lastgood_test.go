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
	return Store{Client: client, Namespace: "storage", Name: "cinder-last-good", MaxPolicySize: largest}, client
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
	if err != nil || nothing.Policy != nil || nothing.Credentials != nil || nothing.Damage != nil {
		t.Fatalf("at first: %+v, %v", nothing, err)
	}
	policy := strings.Repeat("kind: Policy\n", largest/13)
	credentials := map[string][]byte{"gold": []byte("s3cr3t"), "lab-2": []byte("other")}
	if err := store.Save(t.Context(), nothing, []byte(policy), credentials); err != nil {
		t.Fatal(err)
	}
	kept, err := store.Load(t.Context())
	if err != nil || string(kept.Policy) != policy || len(kept.Credentials) != 2 || string(kept.Credentials["gold"]) != "s3cr3t" || kept.Damage != nil {
		t.Fatalf("loaded %d bytes and %d credentials; damage %v, error %v", len(kept.Policy), len(kept.Credentials), kept.Damage, err)
	}
	if err := store.Save(t.Context(), kept, []byte(policy), credentials); err != nil || writes(client) != 1 {
		t.Errorf("the same again is written: error %v", err)
	}
	// What is no longer used is no longer kept.
	if err := store.Save(t.Context(), kept, []byte("new"), map[string][]byte{"gold": []byte("rotated")}); err != nil {
		t.Fatal(err)
	}
	kept, err = store.Load(t.Context())
	if err != nil || string(kept.Policy) != "new" || len(kept.Credentials) != 1 || string(kept.Credentials["gold"]) != "rotated" {
		t.Errorf("loaded %q and %d credentials, error %v", kept.Policy, len(kept.Credentials), err)
	}
}

func TestDamageIsToldAndRepaired(t *testing.T) {
	for name, c := range map[string]struct{ data, want string }{
		"not compressed": {"kind: Policy", "its key policy.yaml.gz is not compressed by gzip: gzip: invalid header"},
		"cut off":        {"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff\x01", "its key policy.yaml.gz cannot be decompressed: unexpected EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			store, _ := newStore(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "storage", Name: "cinder-last-good"}, Type: SecretType,
				Data: map[string][]byte{"policy.yaml.gz": []byte(c.data), "credentials.gold": []byte("s3cr3t")}})
			kept, err := store.Load(t.Context())
			if err != nil || kept.Damage == nil || kept.Damage.Error() != c.want || string(kept.Credentials["gold"]) != "s3cr3t" {
				t.Fatalf("damage %v, error %v", kept.Damage, err)
			}
			if err := store.Save(t.Context(), kept, []byte("good"), kept.Credentials); err != nil {
				t.Fatal(err)
			}
			if kept, err = store.Load(t.Context()); err != nil || kept.Damage != nil || string(kept.Policy) != "good" {
				t.Errorf("after it was saved: %q, damage %v, error %v", kept.Policy, kept.Damage, err)
			}
		})
	}
}

// TestABombIsNotDecompressed: a policy is never read further than it may be long.
func TestABombIsNotDecompressed(t *testing.T) {
	bomb, err := compress(make([]byte, 8*largest))
	if err != nil {
		t.Fatal(err)
	}
	store, _ := newStore(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "storage", Name: "cinder-last-good"}, Type: SecretType,
		Data: map[string][]byte{"policy.yaml.gz": bomb}})
	kept, err := store.Load(t.Context())
	if err != nil || len(kept.Policy) != largest+1 {
		t.Errorf("%d bytes, error %v", len(kept.Policy), err)
	}
}

func TestASecretOfOthersIsLeftAlone(t *testing.T) {
	store, client := newStore(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "storage", Name: "cinder-last-good"}, Type: corev1.SecretTypeOpaque,
		Data: map[string][]byte{"credentials.gold": []byte("s3cr3t")}})
	kept, err := store.Load(t.Context())
	if err != nil || kept.Damage == nil || len(kept.Credentials) > 0 {
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

func TestWhatASecretCannotHoldIsRefused(t *testing.T) {
	store, client := newStore()
	noise := make([]byte, largest)
	_, _ = rand.Read(noise)
	err := store.Save(t.Context(), Kept{}, noise, map[string][]byte{"gold": []byte("s3cr3t")})
	if err == nil || !strings.Contains(err.Error(), "and a Secret holds 1048576; make the policy smaller") || writes(client) > 0 {
		t.Errorf("error %v", err)
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
