package mappers

import (
	"regexp"
	"strings"
)

// Encryption is how a node opens an encrypted volume. The zero value means that the storage
// encrypts, so that nodes have nothing to open.
type Encryption struct {
	// LUKS is the version of the format: 1 or 2.
	LUKS int
	// Cipher and KeyBits are those of a volume without a header; empty means cryptsetup's
	// default.
	Cipher  string
	KeyBits int
}

// EncryptionFrom is what Cinder says about an encryption.
type EncryptionFrom struct {
	Provider, ControlLocation, Cipher string
	KeyBits                           int
	// KeyID is the key's ID at Cinder's key manager.
	KeyID string
}

// Limits of what Cinder may say. Cinder's own forms are shorter.
var cipherName = regexp.MustCompile(`^[a-z0-9][a-z0-9_:()-]{0,63}$`)

const maxKeyBits = 4096

// versionOf returns the version of LUKS by what Cinder calls an encryption. Earlier releases
// name a class, such as nova.volume.encryptors.luks with an encryptor of LUKS in it
// (LEGACY_PROVIDER_CLASS_TO_FORMAT_MAP of os_brick/encryptors).
func versionOf(provider string) (luks int, known bool) {
	name := strings.ToLower(provider[strings.LastIndex(provider, ".")+1:])
	luks, known = map[string]int{"luks": 1, "luks2": 2}[strings.TrimSuffix(name, "encryptor")]
	return luks, known
}

// EncryptionOf reads how a node opens an encrypted volume. The error is a *Refusal.
func EncryptionOf(from EncryptionFrom) (*Encryption, error) {
	if from.ControlLocation != "" && !strings.EqualFold(from.ControlLocation, "front-end") {
		return &Encryption{}, nil
	}
	luks, known := versionOf(from.Provider)
	switch {
	case from.Provider == "":
		return nil, refuse(EncryptedVolume, "Cinder says that the volume is encrypted, but not how; check the encryption of its volume type (openstack volume type show --encryption-type)")
	case !known:
		return nil, refuse(EncryptedVolume, "the volume's encryption has the provider %.80q, and nodes open luks and luks2; use a volume type with one of these", from.Provider)
	case from.Cipher != "" && !cipherName.MatchString(from.Cipher):
		return nil, refuse(EncryptedVolume, "the volume's encryption has the cipher %.80q, which cannot be one; correct its volume type", from.Cipher)
	case from.KeyBits < 0 || from.KeyBits > maxKeyBits:
		return nil, refuse(EncryptedVolume, "the volume's encryption has keys of %d bits, which cannot be; correct its volume type", from.KeyBits)
	}
	if from.KeyID == "" {
		return nil, refuse(EncryptedVolume, "Cinder says that the volume is encrypted, but names no key for it; look for its encryption_key_id in cinder-volume's log")
	}
	return &Encryption{LUKS: luks, Cipher: from.Cipher, KeyBits: from.KeyBits}, nil
}

// EncryptedTwice refuses a volume that a rule encrypts, and its volume type, too. Only
// one of the layers would be opened.
func EncryptedTwice(volumeType string) error {
	return refuse(EncryptedVolume, "the rule encrypts its volumes (encrypt), and so does Cinder by the volume type %.80q; use a type without encryption, or a rule without encrypt", volumeType)
}

// Encrypted reports whether the connection says that the volume is encrypted. The error is
// a *Refusal.
func (c Connection) Encrypted() (bool, error) { return c.flag("encrypted", false) }
