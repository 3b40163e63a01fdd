package volumekeys

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// TestVolumesWithSeveralRecordsAreOpened: which key a node gets as which. A record beside the
// first one that cannot be used takes nothing away from the first; a first one that cannot is
// an error, whatever the others open: a volume may have more keys than it should, but nothing
// is guessed.
func TestVolumesWithSeveralRecordsAreOpened(t *testing.T) {
	first, second := []byte(strings.Repeat("01", 32)), []byte(strings.Repeat("02", 32))
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "own", Name: "keys", Labels: map[string]string{objects.LabelKeyEncryption: "true"}}, Data: map[string][]byte{"a": first, "b": second}}
	passphrases := map[string]string{"": "none"}
	made := func(name, entry, origin string, with []byte) string {
		record, err := New(stamps.EncryptionRecord{Secret: "keys", Entry: entry, Origin: origin}, with)
		if err != nil {
			t.Fatal(err)
		}
		key, err := Unwrap(record, with)
		if err != nil {
			t.Fatal(err)
		}
		passphrases[key.Passphrase()] = name
		return record.String()
	}
	old, next, another := made("old", "a", "uid", first), made("new", "b", "uid", second), made("another", "a", "other", first)
	gone := strings.Replace(next, "keys/b", "keys/c", 1)
	moved := strings.Replace(another, " other ", " uid ", 1) // wrapped for another volume
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	const settled, fresh = "2026-11-29T11:00:00Z", "2026-11-29T11:00:01Z"
	for name, test := range map[string]struct {
		records stamps.KeyRecords
		want    string // main, also, former
		without string // why another is left out
		err     string
	}{
		"one":                       {stamps.KeyRecords{Main: old}, "old none none", "", ""},
		"begun":                     {stamps.KeyRecords{Main: old, Next: next, Since: fresh}, "old new none", "", ""},
		"begun long ago":            {stamps.KeyRecords{Main: old, Next: next, Since: settled}, "old new none", "", ""},
		"switched":                  {stamps.KeyRecords{Main: next, Former: old, Since: fresh}, "new old none", "", ""},
		"settled":                   {stamps.KeyRecords{Main: next, Former: old, Since: settled}, "new none old", "", ""},
		"switched in the future":    {stamps.KeyRecords{Main: next, Former: old, Since: "2030-01-01T00:00:00Z"}, "new old none", "", ""},
		"switched at no time":       {stamps.KeyRecords{Main: next, Former: old}, "new old none", "", ""},
		"the same key twice":        {stamps.KeyRecords{Main: old, Former: old, Since: settled}, "old none none", "", ""},
		"all three":                 {stamps.KeyRecords{Main: next, Next: old, Former: old, Since: settled}, "new none old", "", ""},
		"another volume's, next":    {stamps.KeyRecords{Main: old, Next: another}, "old none none", "another volume's key", ""},
		"another volume's, renamed": {stamps.KeyRecords{Main: old, Next: moved}, "old none none", "does not open volume", ""},
		"another volume's, former":  {stamps.KeyRecords{Main: old, Former: another, Since: settled}, "old none none", "another volume's key", ""},
		"an entry that is gone":     {stamps.KeyRecords{Main: old, Next: gone}, "old none none", "has no entry c", ""},
		"damaged":                   {stamps.KeyRecords{Main: old, Former: "1 x", Since: settled}, "old none none", "damaged", ""},
		"another volume's, first":   {stamps.KeyRecords{Main: another, Next: old}, "", "", "another volume's key"},
		"first entry gone":          {stamps.KeyRecords{Main: gone, Former: old}, "", "", "has no entry c"},
		"no first one":              {stamps.KeyRecords{Next: old}, "", "", "damaged"},
	} {
		t.Run(name, func(t *testing.T) {
			keeper := Keeper{Client: fake.NewClientset(secret), Namespace: "own", Now: func() time.Time { return now }}
			metadata := map[string]string{stamps.KeyEncryption: test.records.Main, stamps.KeyEncryptionNext: test.records.Next, stamps.KeyEncryptionFormer: test.records.Former, stamps.KeyEncryptionSince: test.records.Since}
			opened, err := keeper.Open(t.Context(), "volume", "uid", metadata)
			if says(err, test.err) || says(opened.Unusable, test.without) {
				t.Errorf("%v, without another for %v", err, opened.Unusable)
			}
			got := strings.Join([]string{passphrases[opened.Main.Passphrase()], passphrases[opened.Also.Passphrase()], passphrases[opened.Former.Passphrase()]}, " ")
			if test.err == "" && got != test.want {
				t.Errorf("opened as %q; want %q", got, test.want)
			}
			for passphrase, name := range passphrases {
				if passphrase != "" && strings.Contains(fmt.Sprintf("%+v %#v %v %v", opened, opened, err, opened.Unusable), passphrase) {
					t.Errorf("the key %s is shown", name)
				}
			}
		})
	}
}

// says reports whether an error says anything else than it should.
func says(err error, want string) bool {
	return (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want)
}
