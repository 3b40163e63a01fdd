// Package volumekeys wraps and unwraps the keys of volumes that nodes encrypt and Cinder
// does not know to be encrypted. A volume's metadata holds its own key, wrapped by a
// key-encryption key of a Secret in the program's namespace.
//
// The format is permanent: a wrapped key is the nonce, the ciphertext and the tag of
// AES-256-GCM, with purpose, a space, and the record's origin as the additional data.
package volumekeys

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
)

// size is that of a volume's key and of a key-encryption key, in bytes.
const size = 32

// purpose rules out that anything else that was encrypted with the same key is taken for
// a volume's key.
const purpose = stamps.KeyEncryption + " 1"

// New makes a volume's key and wraps it with the key-encryption key that an entry of a
// Secret holds in hexadecimal digits. The names and the origin are the record's.
func New(names stamps.EncryptionRecord, entry []byte) (stamps.EncryptionRecord, error) {
	key := make([]byte, size)
	rand.Read(key) // never fails
	return wrap(key, names, entry)
}

// Rewrap wraps a record's key with another key-encryption key. The result opens what the
// record opens.
func Rewrap(record stamps.EncryptionRecord, with []byte, secret, entry string, by []byte) (stamps.EncryptionRecord, error) {
	key, err := open(record, with)
	if err != nil {
		return stamps.EncryptionRecord{}, err
	}
	return wrap(key, stamps.EncryptionRecord{Secret: secret, Entry: entry, Origin: record.Origin}, by)
}

func wrap(key []byte, names stamps.EncryptionRecord, entry []byte) (stamps.EncryptionRecord, error) {
	with, err := wrapper(entry)
	if err != nil {
		return stamps.EncryptionRecord{}, err
	}
	nonce := make([]byte, with.NonceSize(), with.NonceSize()+size+with.Overhead())
	rand.Read(nonce) // never fails
	names.Wrapped = with.Seal(nonce, nonce, key, additional(names.Origin))
	return names, names.Check()
}

// Unwrap returns a volume's key with the key-encryption key that an entry of a Secret
// holds in hexadecimal digits. No error repeats anything of a key.
func Unwrap(record stamps.EncryptionRecord, entry []byte) (cinder.Key, error) {
	key, err := open(record, entry)
	if err != nil {
		return cinder.Key{}, err
	}
	return cinder.KeyOf(key), nil
}

func open(record stamps.EncryptionRecord, entry []byte) ([]byte, error) {
	with, err := wrapper(entry)
	if err != nil {
		return nil, err
	}
	if len(record.Wrapped) != with.NonceSize()+size+with.Overhead() {
		return nil, fmt.Errorf("the record holds %d bytes, which cannot be a wrapped key", len(record.Wrapped))
	}
	nonce, sealed := record.Wrapped[:with.NonceSize()], record.Wrapped[with.NonceSize():]
	key, err := with.Open(nil, nonce, sealed, additional(record.Origin))
	if err != nil {
		return nil, errors.New("its key does not open the record: it was changed, or the record is damaged")
	}
	return key, nil
}

func additional(origin string) []byte { return []byte(purpose + " " + origin) }

// wrapper reads a key-encryption key.
func wrapper(entry []byte) (cipher.AEAD, error) {
	key, err := hex.DecodeString(strings.TrimSpace(string(entry)))
	if err != nil || len(key) != size {
		return nil, fmt.Errorf("it is not a key of %d hexadecimal digits, as openssl rand -hex %d makes one", 2*size, size)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, errors.New("its key cannot be used")
	}
	return cipher.NewGCM(block)
}
