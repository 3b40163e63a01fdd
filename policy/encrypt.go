package policy

import (
	"regexp"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/standalone-cinder/standalone-cinder/policy/document"
)

// SecretEntryPattern matches the keys of a Secret (IsConfigMapKey of apimachinery).
const SecretEntryPattern = `^[-._a-zA-Z0-9]+$`

var secretEntry = regexp.MustCompile(SecretEntryPattern)

// LongestKeyName is how many characters keySecret and entry may have together: they are
// recorded beside a volume's key in one metadata value.
const LongestKeyName = 134

// EncryptOf returns what the tenant's rule for a StorageClass says of encryption, and where.
// The path is empty if there is no such rule.
func (t *Tenant) EncryptOf(storageClass string) (path string, encrypt *Encrypt) {
	if c := t.rule(storageClass); c != nil {
		return c.path, c.Encrypt
	}
	return "", nil
}

// validateEncrypt checks what names a rule's key-encryption key. validateModes checks that
// the rule makes no native volumes.
func (v *validator) validateEncrypt(path string, c *Class) {
	e := c.Encrypt
	if e == nil {
		return
	}
	secret, entry := document.Child(path, "keySecret"), document.Child(path, "entry")
	switch {
	case e.KeySecret == "":
		v.Errorf(secret, "is missing; name a Secret of the program's namespace with key-encryption keys")
	case len(validation.IsDNS1123Subdomain(e.KeySecret)) > 0:
		v.Errorf(secret, "%q cannot be the name of a Secret of the program's namespace", e.KeySecret)
	}
	switch {
	case e.Entry == "":
		v.Errorf(entry, "is missing; name the entry of the Secret that wraps the keys of new volumes")
	case !secretEntry.MatchString(e.Entry):
		v.Errorf(entry, "%q cannot be the key of a Secret's entry; use letters, digits, '-', '_' and '.'", e.Entry)
	}
	if n := len(e.KeySecret) + len(e.Entry); n > LongestKeyName {
		v.Errorf(path, "keySecret and entry have %d characters together, and at most %d are possible, because they are recorded on each volume; give one of them a shorter name", n, LongestKeyName)
	}
	if c.Import != nil {
		v.Errorf(path, "a rule with encrypt cannot have import: what exists at Cinder is not encrypted; give import a rule of its own")
	}
}
