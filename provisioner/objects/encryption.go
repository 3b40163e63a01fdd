package objects

import (
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/mappers"
)

// LabelKeyEncryption has the value "true" on the Secrets of the program's namespace
// whose entries are key-encryption keys. No other Secret is used as one, whatever a volume's
// metadata at Cinder names: whoever may write that could otherwise have any Secret tried.
const LabelKeyEncryption = Prefix + "key-encryption"

// FixedKeyID is the ID of every key of Cinder's own key manager
// (cinder/keymgr/conf_key_mgr.py).
const FixedKeyID = "00000000-0000-0000-0000-000000000000"

// EncryptionOf returns how nodes open a volume. The error is a *mappers.Refusal.
func EncryptionOf(of cinder.Encryption) (*mappers.Encryption, error) {
	return mappers.EncryptionOf(mappers.EncryptionFrom{Provider: of.Provider, ControlLocation: of.ControlLocation, Cipher: of.Cipher, KeyBits: of.KeyBits, KeyID: of.KeyID})
}

// HasManagedKey reports whether nodes open a volume with a key of the key manager.
func HasManagedKey(of cinder.Encryption) bool {
	how, err := EncryptionOf(of)
	return err == nil && how.LUKS != 0 && of.KeyID != FixedKeyID
}

// IsEncrypted reports whether Cinder says that a volume is encrypted. The error is a
// *mappers.Refusal.
func IsEncrypted(connection mappers.Connection, v cinder.Volume) (bool, error) {
	says, err := connection.Encrypted()
	return says || v.Encrypted, err
}
