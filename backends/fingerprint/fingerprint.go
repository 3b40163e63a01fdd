// Package fingerprint hashes values, so that they can be compared without being
// kept.
package fingerprint

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
)

// Of is a hash over the values. JSON gives them a stable form. Fingerprints are
// written on volumes: the same values must give the same one in every release.
func Of(values ...any) string {
	encoded, err := json.Marshal(values)
	if err != nil {
		// Only channels, functions and cycles fail to encode; configuration
		// and requests have none of these.
		panic(fmt.Sprintf("value cannot be encoded: %v", err))
	}
	sum := sha256.Sum256(encoded)
	return hex.EncodeToString(sum[:12])
}
