package stamps

import (
	"encoding/base64"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// KeyEncryption is the key under which a volume of mode csi, or a snapshot of one, records
// the wrapped key with which nodes open it. The content of a copy has the same key, so a
// copy has the record of its source. The metadata of a project is no secret, and whoever may
// write it can write a record, too: see Origin.
const KeyEncryption = Prefix + "encryption"

// The keys of what is recorded besides while a volume gets a new key (passphrase). All of it
// is written together with KeyEncryption, in one request, and Cinder cannot delete such keys,
// so an empty value means that there is none. Earlier releases ignore these keys, and open
// the volume with what KeyEncryption says.
const (
	// KeyEncryptionNext records the key that the header of the volume is to get besides.
	KeyEncryptionNext = Prefix + "encryption-next"
	// KeyEncryptionFormer records the key that the header of the volume is to lose.
	KeyEncryptionFormer = Prefix + "encryption-former"
	// KeyEncryptionSince is when these records were last written; see KeyRecords.Settled.
	KeyEncryptionSince = Prefix + "encryption-since"
)

// KeyRecords are all records of the keys of a volume or snapshot, as the metadata has them.
//
// A new key takes three steps: it is recorded as the next one; after the header has got it,
// the next key becomes the recorded one, and that the former one; after the header has
// lost the former key, so has the metadata. So at any moment the header of a volume has the
// key of Main. A copy has the records that its source had a moment before or after its
// content was copied, and any of them may be the one that opens it.
type KeyRecords struct {
	Main, Next, Former, Since string
}

// KeyRecordsOf reads the records of metadata.
func KeyRecordsOf(metadata map[string]string) KeyRecords {
	return KeyRecords{metadata[KeyEncryption], metadata[KeyEncryptionNext], metadata[KeyEncryptionFormer], metadata[KeyEncryptionSince]}
}

// Changes returns the metadata that makes the records those of next.
func (k KeyRecords) Changes(next KeyRecords) map[string]string {
	changes := map[string]string{}
	for key, values := range map[string][2]string{
		KeyEncryption: {k.Main, next.Main}, KeyEncryptionNext: {k.Next, next.Next}, KeyEncryptionFormer: {k.Former, next.Former}, KeyEncryptionSince: {k.Since, next.Since},
	} {
		if values[0] != values[1] {
			changes[key] = values[1]
		}
	}
	return changes
}

// All returns the records that there are, that of KeyEncryption first.
func (k KeyRecords) All() []string {
	return slices.DeleteFunc([]string{k.Main, k.Next, k.Former}, func(text string) bool { return text == "" })
}

// IsChanging reports whether there is more than one record.
func (k KeyRecords) IsChanging() bool { return k.Next != "" || k.Former != "" }

// Settling is how long the records stay as they are, at least, before the next step may make
// anything depend on them alone. Whoever read or listed the former ones has used them up by
// then: copies that were begun have their content, and writers of metadata have written.
const Settling = time.Hour

// Settled returns when the next step may be made.
func (k KeyRecords) Settled(now time.Time) (at time.Time, settled bool) {
	since, err := time.Parse(time.RFC3339, k.Since)
	if err != nil || since.After(now) {
		// Whoever wrote it has another clock. It counts from now on.
		return now.Add(Settling), false
	}
	at = since.Add(Settling)
	return at, !at.After(now)
}

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

// InheritEncryption gives the metadata of a copy the records of its source, if that has any.
// They are copied as they are, even if they cannot be read: nothing else opens the copy.
func InheritEncryption(metadata, source map[string]string) {
	for _, key := range []string{KeyEncryption, KeyEncryptionNext, KeyEncryptionFormer, KeyEncryptionSince} {
		if record, has := source[key]; has {
			metadata[key] = record
		}
	}
}
