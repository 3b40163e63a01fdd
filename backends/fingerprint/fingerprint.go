// Package fingerprint hashes values, so they can be compared without being stored.
package fingerprint

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
)

// Of returns a hash of the values. JSON gives them a stable form. Volumes carry
// fingerprints, so the same values must yield the same fingerprint in every release.
func Of(values ...any) string {
	encoded, err := json.Marshal(values)
	if err != nil {
		// Only channels, functions and cycles cannot be encoded; configuration and
		// requests contain none.
		panic(fmt.Sprintf("value cannot be encoded: %v", err))
	}
	sum := sha256.Sum256(encoded)
	return hex.EncodeToString(sum[:12])
}
