package rewrap

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/volumekeys"
)

const (
	first  = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
	second = "ff0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
)

// recorded fakes the records of a backend.
type recorded struct {
	keys    []backends.RecordedKey
	err     error
	fails   string // ID
	changes int
}

func (r *recorded) Recorded(context.Context) ([]backends.RecordedKey, error) {
	return slices.Clone(r.keys), r.err
}

func (r *recorded) Volumes(context.Context) ([]backends.KeyedVolume, error) { return nil, r.err }

func (r *recorded) Replace(_ context.Context, former backends.RecordedKey, next stamps.KeyRecords) error {
	if former.ID == r.fails {
		return errors.New("refused")
	}
	r.changes++
	r.keys[slices.Index(r.keys, former)].KeyRecords = next
	return nil
}

func keys(entries map[string]string) volumekeys.Keeper {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "own", Name: "keys", Labels: map[string]string{objects.LabelKeyEncryption: "true"}}, Data: map[string][]byte{}}
	for name, value := range entries {
		secret.Data[name] = []byte(value)
	}
	return volumekeys.Keeper{Client: fake.NewClientset(secret), Namespace: "own"}
}

func made(t *testing.T, entry, by string) string {
	t.Helper()
	record, err := volumekeys.New(stamps.EncryptionRecord{Secret: "keys", Entry: entry, Origin: "uid"}, []byte(by))
	if err != nil {
		t.Fatal(err)
	}
	return record.String()
}

// passphrase unwraps a record with the entry that it names.
func passphrase(t *testing.T, text string) string {
	t.Helper()
	key, err := keys(map[string]string{"a": first, "b": second}).Open(t.Context(), "v", "uid", map[string]string{stamps.KeyEncryption: text})
	if err != nil {
		t.Fatal(err)
	}
	return key.Main.Passphrase()
}

// TestKeysAreRewrapped: all of an entry, on every backend, and no others. A failure leaves
// what it concerns as it is, and does not stop the rest; the next run does it.
func TestKeysAreRewrapped(t *testing.T) {
	one := &recorded{keys: []backends.RecordedKey{{ID: "v1", KeyRecords: stamps.KeyRecords{Main: made(t, "a", first)}}, {ID: "v2", KeyRecords: stamps.KeyRecords{Main: made(t, "b", second)}}, {ID: "s1", IsSnapshot: true, KeyRecords: stamps.KeyRecords{Main: made(t, "a", first)}}, {ID: "v3", KeyRecords: stamps.KeyRecords{Main: "1 keys/a"}}}}
	two := &recorded{keys: []backends.RecordedKey{{ID: "v4", KeyRecords: stamps.KeyRecords{Main: made(t, "a", first)}}, {ID: "v5", KeyRecords: stamps.KeyRecords{Main: made(t, "a", first)}}}, fails: "v4"}
	var before []string
	for _, k := range slices.Concat(one.keys[:3], two.keys) {
		before = append(before, passphrase(t, k.Main))
	}
	var said []string
	r := &Rewrapper{Keeper: keys(map[string]string{"a": first, "b": second}), Backends: []Backend{{"one", one}, {"two", two}}, Say: func(what string) { said = append(said, what) }}
	uses := func(want string) {
		t.Helper()
		got, err := r.Uses(t.Context())
		if err != nil || fmt.Sprint(got) != want {
			t.Errorf("uses %v, %v\nwant %s", got, err, want)
		}
	}
	uses("[{one / 1 0 0} {one keys/a 1 1 0} {two keys/a 2 0 0} {one keys/b 1 0 0}]")
	from, to := Entry{"keys", "a"}, Entry{"keys", "b"}
	if n, err := r.Rewrap(t.Context(), from, to, false); n != 4 || err != nil || one.changes+two.changes > 0 || len(said) > 0 {
		t.Errorf("without apply: %d, %v, said %q", n, err, said)
	}
	if n, err := r.Rewrap(t.Context(), from, to, true); n != 3 || err == nil || err.Error() != "volume v4 of backend two: refused" {
		t.Errorf("with a failure: %d, %v", n, err)
	}
	want := []string{"volume v1 of backend one is opened by entry keys/b now", "snapshot s1 of backend one is opened by entry keys/b now", "volume v5 of backend two is opened by entry keys/b now"}
	if !slices.Equal(said, want) {
		t.Errorf("said %q", said)
	}
	uses("[{one / 1 0 0} {two keys/a 1 0 0} {one keys/b 2 1 0} {two keys/b 1 0 0}]")
	two.fails = ""
	if n, err := r.Rewrap(t.Context(), from, to, true); n != 1 || err != nil {
		t.Errorf("again: %d, %v", n, err)
	}
	if n, err := r.Rewrap(t.Context(), from, to, true); n != 0 || err != nil || one.changes+two.changes != 4 {
		t.Errorf("once more: %d, %v, %d changes", n, err, one.changes+two.changes)
	}
	var after []string
	for _, k := range slices.Concat(one.keys[:3], two.keys) {
		after = append(after, passphrase(t, k.Main))
	}
	if !slices.Equal(before, after) || one.keys[3].Main != "1 keys/a" {
		t.Error("a volume has another key than before, or an unreadable record was changed")
	}
}

// TestNothingIsRewrappedWithoutBothKeys: neither by a wrong key, nor by none, and what
// cannot be listed is told, because it may need any entry.
func TestNothingIsRewrappedWithoutBothKeys(t *testing.T) {
	for name, test := range map[string]struct {
		entries map[string]string
		err     error
		want    string
	}{
		"without the former": {map[string]string{"b": second}, nil, "Secret own/keys has no entry a, which wraps the keys until now"},
		"without the next":   {map[string]string{"a": first}, nil, "Secret own/keys has no entry b, which is to wrap the keys"},
		"by no key":          {map[string]string{"a": first, "b": "swordfish"}, nil, "volume v1 of backend one: it is not a key of 64 hexadecimal digits"},
		"with a wrong key":   {map[string]string{"a": second, "b": first}, nil, "volume v1 of backend one: its key does not open the record"},
		"without a listing":  {map[string]string{"a": first, "b": second}, errors.New("silence"), "backend one: silence"},
	} {
		t.Run(name, func(t *testing.T) {
			text := made(t, "a", first)
			one := &recorded{keys: []backends.RecordedKey{{ID: "v1", KeyRecords: stamps.KeyRecords{Main: text}}}, err: test.err}
			r := &Rewrapper{Keeper: keys(test.entries), Backends: []Backend{{"one", one}}, Say: func(string) {}}
			n, err := r.Rewrap(t.Context(), Entry{"keys", "a"}, Entry{"keys", "b"}, true)
			if n != 0 || err == nil || !strings.Contains(err.Error(), test.want) || one.keys[0].Main != text || strings.Contains(err.Error(), second) {
				t.Errorf("%d, %v", n, err)
			}
			if _, err := r.Uses(t.Context()); (err != nil) != (test.err != nil) {
				t.Errorf("uses: %v", err)
			}
		})
	}
}
