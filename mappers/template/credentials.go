package template

import "regexp"

// credentialWords mark a field as a credential. This is the only list: what the language
// rejects outside of Secrets is what the mappers withhold from messages. Keys are
// credentials under any name.
var credentialWords = regexp.MustCompile(`(?i)passw|passphrase|passcode|pwd|(^|_)(pass|pw)($|_)|(?-i:[a-z](Pass|Pw)($|[A-Z_]))|` +
	`secret|keyring|token|jwt|credential|cephx|private|psk|provider_auth|key$`)

// harmlessFields are fields of Cinder's connections, and common names, that only sound
// like credentials. The RBD driver names libvirt's secret and its type.
var harmlessFields = regexp.MustCompile(`(?i)^(secret_(type|uuid)|.*public_?key|monkey)$`)

// IsCredential reports whether a field of that name holds a credential.
func IsCredential(field string) bool {
	return credentialWords.MatchString(field) && !harmlessFields.MatchString(field)
}
