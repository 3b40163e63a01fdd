package stamps

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

func TestEncryptionRecords(t *testing.T) {
	wrapped := bytes.Repeat([]byte{7}, 60)
	const origin = "6f1d3c52-6f0e-4f0c-9a0d-8f4f7f1b2c3d"
	for name, test := range map[string]struct {
		record EncryptionRecord
		err    string
	}{
		"usual":        {EncryptionRecord{"team-a-keys", "2026-11", origin, wrapped}, ""},
		"longest":      {EncryptionRecord{strings.Repeat("s", 100), strings.Repeat("e", 34), origin, wrapped}, ""},
		"too long":     {EncryptionRecord{strings.Repeat("s", 100), strings.Repeat("e", 35), origin, wrapped}, "takes 256 characters"},
		"no Secret":    {EncryptionRecord{"", "2026-11", origin, wrapped}, "cannot be a Secret"},
		"a space":      {EncryptionRecord{"keys", "a b", origin, wrapped}, "cannot be a Secret"},
		"a slash":      {EncryptionRecord{"keys", "a/b", origin, wrapped}, "cannot be a Secret"},
		"without keys": {EncryptionRecord{"keys", "a", origin, nil}, "holds no key"},
		"no origin":    {EncryptionRecord{"keys", "a", "", wrapped}, "cannot be the UID"},
		"a long one":   {EncryptionRecord{"keys", "a", strings.Repeat("o", 65), wrapped}, "cannot be the UID"},
	} {
		t.Run(name, func(t *testing.T) {
			err := test.record.Check()
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("error %v", err)
				}
				return
			}
			back, parseErr := ParseEncryptionRecord(test.record.String())
			if err != nil || parseErr != nil || back.Secret != test.record.Secret || back.Entry != test.record.Entry || back.Origin != test.record.Origin || !bytes.Equal(back.Wrapped, wrapped) {
				t.Errorf("%v, %v, %v", err, back, parseErr)
			}
		})
	}
}

// TestDamagedEncryptionRecords: a record is never taken for another one, and what is
// wrong with it is said without its key.
func TestDamagedEncryptionRecords(t *testing.T) {
	for _, text := range []string{
		"", "1", "1 keys/a", "1 keys/a BwcH", "2 keys/a o BwcH", "1 keys o BwcH", "1 keys/a/b o BwcH", "1 keys/a o BwcH ", "1  keys/a o BwcH", "1 keys/a o B*cH", "1 keys/a o BwcH\n", "1 keys/a o BwcHBw", "1 keys/a o ", "1 ../a o BwcH",
		"1 keys/a  BwcH", "1 keys/a o/p BwcH",
	} {
		r, err := ParseEncryptionRecord(text)
		if err == nil {
			t.Errorf("%q is read as %v", text, r)
		} else if strings.Contains(err.Error(), "BwcH") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func FuzzEncryptionRecord(f *testing.F) {
	f.Add("1 keys/a o BwcH")
	f.Fuzz(func(t *testing.T, text string) {
		if r, err := ParseEncryptionRecord(text); err == nil && r.String() != text {
			t.Errorf("%q is %q", text, r)
		}
	})
}

// TestRecordsSettle an hour after they were written. A time that cannot be read, or has not
// come yet, counts from now on.
func TestRecordsSettle(t *testing.T) {
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	for since, settlesIn := range map[string]time.Duration{
		"2026-11-29T12:00:00Z":      time.Hour,
		"2026-11-29T11:00:01Z":      time.Second,
		"2026-11-29T11:00:00Z":      0,
		"2026-11-28T00:00:00Z":      -35 * time.Hour,
		"2026-11-29T12:30:00+01:00": 30 * time.Minute,
		"2026-11-29T12:00:01Z":      time.Hour,
		"9999-12-31T23:59:59Z":      time.Hour,
		"":                          time.Hour,
		"yesterday":                 time.Hour,
		"1764417600":                time.Hour,
	} {
		at, settled := KeyRecords{Main: "a", Next: "b", Since: since}.Settled(now)
		if !at.Equal(now.Add(settlesIn)) || settled != (settlesIn <= 0) {
			t.Errorf("%q settles at %s, settled: %t", since, at, settled)
		}
	}
}

// TestChangesOfRecords: what changes, and nothing else, since another key may be written by
// somebody else; and they make the one out of the other.
func TestChangesOfRecords(t *testing.T) {
	all := []KeyRecords{{}, {Main: "a"}, {Main: "a", Next: "b", Since: "1"}, {Main: "b", Former: "a", Since: "2"}, {Main: "b"}, {Main: "a", Next: "b", Former: "c"}}
	for _, from := range all {
		for _, to := range all {
			metadata := map[string]string{"another": "kept", KeyEncryption: from.Main, KeyEncryptionNext: from.Next, KeyEncryptionFormer: from.Former, KeyEncryptionSince: from.Since}
			for key, value := range from.Changes(to) {
				if metadata[key] == value {
					t.Errorf("%v to %v writes %s again", from, to, key)
				}
				metadata[key] = value
			}
			if got := KeyRecordsOf(metadata); got != to || metadata["another"] != "kept" {
				t.Errorf("%v to %v becomes %v", from, to, metadata)
			}
			copied := map[string]string{}
			InheritEncryption(copied, metadata)
			if KeyRecordsOf(copied) != to || copied["another"] != "" {
				t.Errorf("a copy of %v has %v", metadata, copied)
			}
		}
		if n := len(from.All()); from.IsChanging() != (n > 1) {
			t.Errorf("%v has %d records", from, n)
		}
	}
}
