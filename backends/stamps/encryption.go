package stamps

import (
	"encoding/base64"
	"fmt"
	"regexp"
	"strings"
)

// KeyEncryption is the key under which a volume of mode csi, or a snapshot of one, records
// the wrapped key with which nodes open it. The content of a copy has the same key, so a
// copy has the record of its source. The metadata of a project is no secret, and whoever may
// write it can write a record, too: see Origin.
const KeyEncryption = Prefix + "encryption"

// EncryptionRecord is a volume's own key, wrapped by a key-encryption key. Only a node
// encrypts such a volume; Cinder does not know of it.
type EncryptionRecord struct {
	// Secret and Entry name the key-encryption key.
	Secret, Entry string
	// Origin is the UID of the claim for whose volume the key was made. The key is wrapped
	// together with it, and a PersistentVolume says which one its volume has, so a record
	// opens nothing but that volume and its copies, wherever it is moved to.
	Origin  string
	Wrapped []byte
}

const encryptionVersion = "1"

var (
	secretName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`)
	entryName  = regexp.MustCompile(`^[-._a-zA-Z0-9]+$`)
	originUID  = regexp.MustCompile(`^[-a-zA-Z0-9]{1,64}$`)
)

// String returns the record in the form of the metadata.
func (r EncryptionRecord) String() string {
	return fmt.Sprintf("%s %s/%s %s %s", encryptionVersion, r.Secret, r.Entry, r.Origin, base64.StdEncoding.EncodeToString(r.Wrapped))
}

// Check returns an error if the record does not fit into the metadata, or would be read
// differently.
func (r EncryptionRecord) Check() error {
	switch n := len(r.String()); {
	case !secretName.MatchString(r.Secret) || !entryName.MatchString(r.Entry):
		return fmt.Errorf("%.80q with the entry %.80q cannot be a Secret with a key-encryption key", r.Secret, r.Entry)
	case !originUID.MatchString(r.Origin):
		return fmt.Errorf("%.80q cannot be the UID of the claim that the key was made for", r.Origin)
	case len(r.Wrapped) == 0:
		return fmt.Errorf("the record of Secret %s, entry %s, holds no key", r.Secret, r.Entry)
	case n > LongestValue:
		return fmt.Errorf("the record of a key takes %d characters, and metadata has room for %d; give Secret %s or its entry %s a shorter name", n, LongestValue, r.Secret, r.Entry)
	}
	return nil
}

// ParseEncryptionRecord reads what String writes.
func ParseEncryptionRecord(text string) (EncryptionRecord, error) {
	fields := strings.Split(text, " ")
	if len(fields) != 4 || fields[0] != encryptionVersion {
		return EncryptionRecord{}, fmt.Errorf("the record of its key (%s) is damaged, or of a later release; restore it from a copy of the volume", KeyEncryption)
	}
	secret, entry, _ := strings.Cut(fields[1], "/")
	wrapped, err := base64.StdEncoding.Strict().DecodeString(fields[3])
	r := EncryptionRecord{Secret: secret, Entry: entry, Origin: fields[2], Wrapped: wrapped}
	if err == nil {
		err = r.Check()
	}
	if err == nil && r.String() != text {
		err = fmt.Errorf("it is not in the form in which it was written")
	}
	if err != nil {
		return EncryptionRecord{}, fmt.Errorf("the record of its key (%s) under Secret %.80q, entry %.80q, is damaged: %w", KeyEncryption, secret, entry, err)
	}
	return r, nil
}

// InheritEncryption gives the metadata of a copy the record of its source, if that has one.
// It is copied as it is, even if it cannot be read: nothing else opens the copy.
func InheritEncryption(metadata, source map[string]string) {
	if record, has := source[KeyEncryption]; has {
		metadata[KeyEncryption] = record
	}
}
