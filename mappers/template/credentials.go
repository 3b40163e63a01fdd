package template

import "regexp"

// credentialWords mark a field as holding a credential. This is the only list:
// what the language refuses outside of Secrets is what the mappers withhold from
// messages. Keys are credentials whatever they are called.
var credentialWords = regexp.MustCompile(`(?i)passw|passphrase|passcode|pwd|(^|_)(pass|pw)($|_)|(?-i:[a-z](Pass|Pw)($|[A-Z_]))|` +
	`secret|keyring|token|jwt|credential|cephx|private|psk|provider_auth|key$`)

// harmlessFields are those of Cinder's connections, and common names, that only
// sound like a credential. The RBD driver names libvirt's secret and its type.
var harmlessFields = regexp.MustCompile(`(?i)^(secret_(type|uuid)|.*public_?key|monkey)$`)

// IsCredential reports whether a field of that name holds a credential.
func IsCredential(field string) bool {
	return credentialWords.MatchString(field) && !harmlessFields.MatchString(field)
}
