package stamps

import (
	"bytes"
	"strings"
	"testing"
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
