package attach

import (
	"context"
	"encoding/hex"
	"errors"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/volumekeys"
)

// Keys says how volumes are encrypted, and reads their keys. Only the Secret of a volume
// gets one, when the volume is attached to a node, and has it until it is detached.
type Keys interface {
	// Encryption returns the key only if managed says that the key manager has it.
	Encryption(ctx context.Context, volumeID string, managed func(cinder.Encryption) bool) (cinder.Encryption, cinder.Key, error)
}

// fixedKeyKey is the key of the operator's Secret with the fixed key, as in cinder.conf.
const fixedKeyKey = "fixedKey"

// encryptionOf returns how a node opens a volume, and with what; nil if the volume is not
// encrypted. The origin is that of its PersistentVolume (objects.EncryptedOf): if that, or
// the volume's metadata, says that nodes encrypt the volume, Cinder knows nothing of it.
func encryptionOf(ctx context.Context, keys Keys, connection mappers.Connection, v cinder.Volume, origin string, fixed operatorsSecret) (*mappers.Encryption, passphrases, error) {
	encrypted, err := objects.IsEncrypted(connection, v)
	if _, has := v.Metadata[stamps.KeyEncryption]; err == nil && (has || origin != "") {
		return recordedEncryption(ctx, v, origin, encrypted, volumekeys.Keeper{Client: fixed.client, Namespace: fixed.namespace})
	}
	if err != nil || !encrypted {
		return nil, passphrases{}, err
	}
	of, key, err := keys.Encryption(ctx, v.ID, objects.HasManagedKey)
	if err != nil {
		return nil, passphrases{}, err
	}
	how, err := objects.EncryptionOf(of)
	if err != nil || how.LUKS == 0 {
		return how, passphrases{}, err
	}
	if of.KeyID == objects.FixedKeyID {
		if key, err = fixed.readKey(ctx); err != nil {
			return nil, passphrases{}, err
		}
	}
	return how, passphrases{Main: key}, nil
}

// passphrases are what a node gets for an encrypted volume; zero if nothing.
type passphrases = volumekeys.Opened

// recordedEncryption reads the key that a volume's metadata holds, with the key-encryption
// key of the Secret that the record names. Nothing is formatted without it.
func recordedEncryption(ctx context.Context, v cinder.Volume, origin string, twice bool, keys volumekeys.Keeper) (*mappers.Encryption, passphrases, error) {
	if twice {
		return nil, passphrases{}, damaged("volume %s is encrypted both by its volume type and by its rule; restore it with a volume type without encryption", v.ID)
	}
	opened, err := keys.Open(ctx, v.ID, origin, v.Metadata)
	if unusable := new(volumekeys.UnusableError); errors.As(err, &unusable) {
		return nil, passphrases{}, damaged("%v", unusable)
	}
	if err != nil {
		return nil, passphrases{}, err
	}
	return &mappers.Encryption{LUKS: 2}, opened, nil
}

// withPassphrases adds what opens a volume to a node's credentials.
func withPassphrases(credentials *mappers.NodeCredentials, opened passphrases) *mappers.NodeCredentials {
	if opened.Main.Passphrase() == "" {
		return credentials
	}
	var with mappers.NodeCredentials
	if credentials != nil {
		with = *credentials
	}
	with.Passphrase, with.AlsoPassphrase, with.FormerPassphrase = opened.Main.Passphrase(), opened.Also.Passphrase(), opened.Former.Passphrase()
	return &with
}

// readKey reads the fixed key. Its errors do not repeat what the Secret holds.
func (s operatorsSecret) readKey(ctx context.Context) (cinder.Key, error) {
	if s.name == "" {
		return cinder.Key{}, damaged("the volume has the fixed key of Cinder's own key manager; make a Secret in namespace %s with %s, which is fixed_key of cinder.conf, and name it in csi.encryption.fixedKeySecret of the backend", s.namespace, fixedKeyKey)
	}
	secret, err := s.get(ctx, "csi.encryption.fixedKeySecret", fixedKeyKey)
	if err != nil {
		return cinder.Key{}, err
	}
	bytes, err := hex.DecodeString(strings.TrimSpace(string(secret.Data[fixedKeyKey])))
	if err != nil || len(bytes) < cinder.MinKeySize || len(bytes) > cinder.MaxKeySize {
		return cinder.Key{}, damaged("Secret %s/%s, which csi.encryption.fixedKeySecret of the backend names, cannot be used: its %s is not a key of %d bytes or more in hexadecimal digits, as fixed_key of cinder.conf is", s.namespace, s.name, fixedKeyKey, cinder.MinKeySize)
	}
	return cinder.KeyOf(bytes), nil
}
