package volumekeys

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/policy"
)

// sealed wraps a key by the documented format, independently of the package.
func sealed(t interface{ Fatal(...any) }, key, with, nonce []byte, purpose string) []byte {
	block, err := aes.NewCipher(with)
	if err != nil {
		t.Fatal(err)
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		t.Fatal(err)
	}
	return gcm.Seal(bytes.Clone(nonce), nonce, key, []byte(purpose))
}

func bytesOf(t *rapid.T, n int, name string) []byte {
	return rapid.SliceOfN(rapid.Byte(), n, n).Draw(t, name)
}

// TestKeysOpenOnlyTheirRecords: any other key, and any changed bit, is an error that shows
// nothing of the keys.
func TestKeysOpenOnlyTheirRecords(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key, with, other, nonce := bytesOf(t, 32, "key"), bytesOf(t, 32, "with"), bytesOf(t, 32, "other"), bytesOf(t, 12, "nonce")
		record := stamps.EncryptionRecord{Secret: "keys", Entry: "a", Origin: "o", Wrapped: sealed(t, key, with, nonce, "standalone-cinder.openstack.org/encryption 1 o")}
		entry := []byte(strings.ToUpper(hex.EncodeToString(with)) + "\n")
		got, err := Unwrap(record, entry)
		if err != nil || got.Passphrase() != hex.EncodeToString(key) {
			t.Fatalf("unwrapped with error %v", err)
		}
		damaged := record
		damaged.Wrapped = bytes.Clone(record.Wrapped)
		damaged.Wrapped[rapid.IntRange(0, len(record.Wrapped)-1).Draw(t, "at")] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		refused := func(r stamps.EncryptionRecord, entry []byte) {
			got, err := Unwrap(r, entry)
			if err == nil {
				t.Fatalf("unwrapped %v", r)
			}
			if text := fmt.Sprint(err, got); strings.Contains(text, hex.EncodeToString(key)) || strings.Contains(text, hex.EncodeToString(with)) {
				t.Fatalf("a key is shown: %s", text)
			}
		}
		refused(damaged, entry)
		if !bytes.Equal(other, with) {
			refused(record, []byte(hex.EncodeToString(other)))
		}
		moved := record
		moved.Origin = "p"
		refused(moved, entry)
		elsewhere := record
		elsewhere.Wrapped = sealed(t, key, with, nonce, "other")
		refused(elsewhere, entry)
		for _, bad := range []string{"", "swordfish", hex.EncodeToString(with)[1:], hex.EncodeToString(with) + "00", string(with)} {
			if hex.EncodeToString(with) != bad {
				refused(record, []byte(bad))
			}
		}
		short := record
		short.Wrapped = record.Wrapped[:rapid.IntRange(0, len(record.Wrapped)-1).Draw(t, "length")]
		refused(short, entry)
	})
}

// TestKeysAreWrappedAsTheyAreUnwrapped: each volume has a key of its own, and wrapping it
// anew changes only what opens its record.
func TestKeysAreWrappedAsTheyAreUnwrapped(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		first, second := []byte(hex.EncodeToString(bytesOf(t, 32, "first"))), []byte(hex.EncodeToString(bytesOf(t, 31, "second"))+"ff")
		made, err := New(stamps.EncryptionRecord{Secret: "keys", Entry: "a", Origin: "uid"}, first)
		if err != nil {
			t.Fatal(err)
		}
		another, err := New(stamps.EncryptionRecord{Secret: "keys", Entry: "a", Origin: "uid"}, first)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Rewrap(made, first, "others", "b", second)
		if err != nil || again.Secret != "others" || again.Entry != "b" || again.Origin != "uid" {
			t.Fatalf("rewrapped as %v, %v", again, err)
		}
		key := func(r stamps.EncryptionRecord, with []byte) string {
			parsed, err := stamps.ParseEncryptionRecord(r.String())
			if err != nil {
				t.Fatal(err)
			}
			key, err := Unwrap(parsed, with)
			if err != nil {
				t.Fatal(err)
			}
			return key.Passphrase()
		}
		if got := key(made, first); len(got) != 64 || got == key(another, first) || got != key(again, second) {
			t.Fatal("the keys are not what they must be")
		}
		if bytes.Equal(made.Wrapped[:12], again.Wrapped[:12]) || bytes.Equal(made.Wrapped[:12], another.Wrapped[:12]) {
			t.Fatal("a nonce is used twice")
		}
		if _, err := Rewrap(made, second, "others", "b", first); !bytes.Equal(first, second) && err == nil {
			t.Fatal("rewrapped with another key")
		}
		if _, err := Rewrap(made, first, "others", "b", []byte("swordfish")); err == nil {
			t.Fatal("rewrapped by what is no key")
		}
	})
	if _, err := New(stamps.EncryptionRecord{Secret: strings.Repeat("s", 100), Entry: strings.Repeat("e", 35), Origin: strings.Repeat("o", 36)}, []byte(strings.Repeat("00", 32))); err == nil {
		t.Error("a record is made that metadata cannot hold")
	}
	if _, err := New(stamps.EncryptionRecord{Secret: strings.Repeat("s", 100), Entry: strings.Repeat("e", policy.LongestKeyName-100), Origin: strings.Repeat("o", 36)}, []byte(strings.Repeat("00", 32))); err != nil {
		t.Errorf("the policy admits a name for which there is no room: %v", err)
	}
}
