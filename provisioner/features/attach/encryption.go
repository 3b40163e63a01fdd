package attach

import (
	"context"
	"encoding/hex"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
// encrypted. What the volume itself records comes first: Cinder knows nothing of it.
func encryptionOf(ctx context.Context, keys Keys, connection mappers.Connection, v cinder.Volume, fixed operatorsSecret) (*mappers.Encryption, string, error) {
	encrypted, err := objects.IsEncrypted(connection, v)
	if record, has := v.Metadata[stamps.KeyEncryption]; err == nil && has {
		return recordedEncryption(ctx, v.ID, record, encrypted, operatorsSecret{client: fixed.client, namespace: fixed.namespace})
	}
	if err != nil || !encrypted {
		return nil, "", err
	}
	of, key, err := keys.Encryption(ctx, v.ID, objects.HasManagedKey)
	if err != nil {
		return nil, "", err
	}
	how, err := objects.EncryptionOf(of)
	if err != nil || how.LUKS == 0 {
		return how, "", err
	}
	if of.KeyID == objects.FixedKeyID {
		if key, err = fixed.readKey(ctx); err != nil {
			return nil, "", err
		}
	}
	return how, key.Passphrase(), nil
}

// recordedEncryption reads the key that a volume's metadata holds, with the key-encryption
// key of the Secret that the record names. Nothing is formatted without it.
func recordedEncryption(ctx context.Context, volumeID, text string, twice bool, keys operatorsSecret) (*mappers.Encryption, string, error) {
	record, err := stamps.ParseEncryptionRecord(text)
	if err != nil {
		return nil, "", damaged("volume %s is encrypted, and %v", volumeID, err)
	}
	if twice {
		return nil, "", damaged("volume %s is encrypted both by its volume type and, with Secret %s/%s, by its rule; restore it with a volume type without encryption", volumeID, keys.namespace, record.Secret)
	}
	keys.name = record.Secret
	secret, err := keys.client.CoreV1().Secrets(keys.namespace).Get(ctx, keys.name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, "", damaged("Secret %s/%s does not exist, whose entry %s opens volume %s; restore it", keys.namespace, keys.name, record.Entry, volumeID)
	case err != nil:
		return nil, "", fmt.Errorf("cannot read Secret %s/%s, whose entry %s opens volume %s: %w", keys.namespace, keys.name, record.Entry, volumeID, err)
	}
	entry, has := secret.Data[record.Entry]
	if !has {
		return nil, "", damaged("Secret %s/%s has no entry %s, which opens volume %s; restore it", keys.namespace, keys.name, record.Entry, volumeID)
	}
	key, err := volumekeys.Unwrap(record, entry)
	if err != nil {
		return nil, "", damaged("entry %s of Secret %s/%s does not open volume %s: %v", record.Entry, keys.namespace, keys.name, volumeID, err)
	}
	return &mappers.Encryption{LUKS: 2}, key.Passphrase(), nil
}

// withPassphrase adds what opens a volume to a node's credentials.
func withPassphrase(credentials *mappers.NodeCredentials, passphrase string) *mappers.NodeCredentials {
	if passphrase == "" {
		return credentials
	}
	var with mappers.NodeCredentials
	if credentials != nil {
		with = *credentials
	}
	with.Passphrase = passphrase
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
