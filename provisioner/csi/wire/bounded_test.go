package wire

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestAnErrorKeepsItsCause, and is JSON in the 4096 bytes of a termination message.
func TestAnErrorKeepsItsCause(t *testing.T) {
	for name, text := range map[string]string{
		"a long path":         strings.Repeat("directory/", 300) + ": no space left on device",
		"what JSON escapes":   strings.Repeat("<&>", 2000) + ": no space left on device",
		"characters of bytes": strings.Repeat("é", 3000) + ": no space left on device",
		"a short one":         "no space left on device",
	} {
		bounded := Bounded(text)
		if said, err := json.Marshal(Copied{Error: bounded}); err != nil || len(said) > 4096 || !strings.HasPrefix(bounded, text[:20]) || !strings.HasSuffix(bounded, "no space left on device") {
			t.Errorf("%s: %d bytes of JSON (%v): %s", name, len(said), err, bounded)
		}
	}
}
