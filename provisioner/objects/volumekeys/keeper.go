package volumekeys

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// UnusableError means that an operator must restore or correct a key-encryption key, or a
// record of a volume's key.
type UnusableError struct{ message string }

func (e *UnusableError) Error() string { return e.message }

func unusable(format string, arguments ...any) error {
	return &UnusableError{fmt.Sprintf(format, arguments...)}
}

// Keeper reads key-encryption keys. It holds none: each use reads the Secret, so that what
// is removed is used no longer.
type Keeper struct {
	Client kubernetes.Interface
	// Namespace is the program's.
	Namespace string
	// Now is the clock; nil for that of the machine.
	Now func() time.Time
}

// Opened are the keys of a volume. Those that there are none of are zero.
type Opened struct {
	// Main is the volume's key.
	Main cinder.Key
	// Also is a key that must open the volume, too, and Former one that must not open it
	// any more. There is at most one of them.
	Also, Former cinder.Key
	// Unusable is why another record than that of Main is left out.
	Unusable error
}

// entry reads a key-encryption key from a Secret that an operator has labeled. purpose says
// what it does.
func (k Keeper) entry(ctx context.Context, secret, entry, purpose string) ([]byte, error) {
	found, err := k.Client.CoreV1().Secrets(k.Namespace).Get(ctx, secret, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, unusable("Secret %s/%s does not exist, whose entry %s %s; make or restore it", k.Namespace, secret, entry, purpose)
	case err != nil:
		return nil, fmt.Errorf("cannot read Secret %s/%s, whose entry %s %s: %w", k.Namespace, secret, entry, purpose, err)
	case !isLabeled(found):
		return nil, unusable("Secret %s/%s, whose entry %s %s, has no label %s=true, which says that its entries are key-encryption keys; add it", k.Namespace, secret, entry, purpose, objects.LabelKeyEncryption)
	}
	value, has := found.Data[entry]
	if !has {
		return nil, unusable("Secret %s/%s has no entry %s, which %s; add or restore it", k.Namespace, secret, entry, purpose)
	}
	return value, nil
}

func isLabeled(secret *corev1.Secret) bool {
	return secret.Labels[objects.LabelKeyEncryption] == "true"
}

// New makes the key of a claim's new volume.
func (k Keeper) New(ctx context.Context, secret, entry, claimUID string) (stamps.EncryptionRecord, error) {
	with, err := k.entry(ctx, secret, entry, "wraps the keys of new volumes")
	if err != nil {
		return stamps.EncryptionRecord{}, err
	}
	record, err := New(stamps.EncryptionRecord{Secret: secret, Entry: entry, Origin: claimUID}, with)
	if err != nil {
		return stamps.EncryptionRecord{}, unusable("entry %s of Secret %s/%s cannot wrap the key of a new volume: %v", entry, k.Namespace, secret, err)
	}
	return record, nil
}

// Open returns the keys of a volume with the metadata that it has at Cinder. The origin is
// what its PersistentVolume says; empty if it says nothing of encryption. Keys are opened
// only if both agree.
//
// Former is returned as Also until its record has settled: until then, whatever else writes
// records may still bring back those of before.
func (k Keeper) Open(ctx context.Context, volumeID, origin string, metadata map[string]string) (Opened, error) {
	records := stamps.KeyRecordsOf(metadata)
	var opened Opened
	var err error
	if opened.Main, err = k.open(ctx, volumeID, origin, metadata, stamps.KeyEncryption); err != nil || !records.IsChanging() {
		return opened, err
	}
	name, other := stamps.KeyEncryptionNext, &opened.Also
	if records.Former != "" {
		name = stamps.KeyEncryptionFormer
		now := time.Now
		if k.Now != nil {
			now = k.Now
		}
		if _, settled := records.Settled(now()); settled {
			other = &opened.Former
		}
	}
	if *other, opened.Unusable = k.open(ctx, volumeID, origin, metadata, name); other.Passphrase() == opened.Main.Passphrase() {
		*other = cinder.Key{}
	}
	return opened, nil
}

// open opens the record under a key of the metadata.
func (k Keeper) open(ctx context.Context, volumeID, origin string, metadata map[string]string, name string) (cinder.Key, error) {
	text, has := metadata[name]
	switch {
	case !has && origin == "":
		return cinder.Key{}, unusable("volume %s is not encrypted", volumeID)
	case !has:
		return cinder.Key{}, unusable("volume %s is encrypted, but its metadata has no record of its key (%s) any more; restore it from a copy of the volume", volumeID, stamps.KeyEncryption)
	}
	record, err := stamps.ParseEncryptionRecord(text)
	switch {
	case err != nil:
		return cinder.Key{}, unusable("volume %s is encrypted, and %v", volumeID, err)
	case origin == "":
		return cinder.Key{}, unusable("the metadata of volume %s has the record of a key (%s), but its PersistentVolume does not say that it is encrypted; keep a copy of the record, and remove it if it was put there by hand", volumeID, stamps.KeyEncryption)
	case record.Origin != origin:
		return cinder.Key{}, unusable("the metadata of volume %s has the record of another volume's key (%s): it was made for claim UID %s, and that of the PersistentVolume for %s; restore it from a copy of the volume", volumeID, stamps.KeyEncryption, record.Origin, origin)
	}
	with, err := k.entry(ctx, record.Secret, record.Entry, "opens volume "+volumeID)
	if err != nil {
		return cinder.Key{}, err
	}
	key, err := Unwrap(record, with)
	if err != nil {
		return cinder.Key{}, unusable("entry %s of Secret %s/%s does not open volume %s: %v", record.Entry, k.Namespace, record.Secret, volumeID, err)
	}
	return key, nil
}

// Rewrapper returns what wraps the keys of one entry with another one. Both are read now.
func (k Keeper) Rewrapper(ctx context.Context, from, to stamps.EncryptionRecord) (func(stamps.EncryptionRecord) (stamps.EncryptionRecord, error), error) {
	with, err := k.entry(ctx, from.Secret, from.Entry, "wraps the keys until now")
	if err != nil {
		return nil, err
	}
	by, err := k.entry(ctx, to.Secret, to.Entry, "is to wrap the keys")
	if err != nil {
		return nil, err
	}
	return func(record stamps.EncryptionRecord) (stamps.EncryptionRecord, error) {
		return Rewrap(record, with, to.Secret, to.Entry, by)
	}, nil
}
