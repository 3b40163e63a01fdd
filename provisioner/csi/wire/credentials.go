package wire

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
)

// Credentials are a node's login to a target, or a Ceph user with its key as the
// password; or what opens an encrypted volume. They print as a placeholder, because a
// password must not reach a log.
type Credentials struct {
	User, Password string
	// DiscoveryUser and DiscoveryPassword are for asking a portal which targets it has;
	// empty if the portal requires none.
	DiscoveryUser, DiscoveryPassword string
	// Passphrase opens an encrypted volume. Then there may be no user and password.
	Passphrase string
	// AlsoPassphrase and FormerPassphrase are of a volume that gets a new passphrase; at most
	// one is not empty. The node makes its header have AlsoPassphrase, too, or no longer have
	// FormerPassphrase. Any of the three may be the one that opens a copy. Earlier releases
	// ignore both.
	AlsoPassphrase, FormerPassphrase string
}

const redacted = "(credentials)"

// String hides the credentials.
func (Credentials) String() string { return redacted }

// GoString hides the credentials.
func (Credentials) GoString() string { return redacted }

// LogValue hides the credentials.
func (Credentials) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalJSON hides the credentials.
func (Credentials) MarshalJSON() ([]byte, error) { return json.Marshal(redacted) }

// credentialsEntry is an entry of a volume's Secret.
type credentialsEntry struct {
	User              string `json:"user,omitempty"`
	Password          string `json:"password,omitempty"`
	DiscoveryUser     string `json:"discoveryUser,omitempty"`
	DiscoveryPassword string `json:"discoveryPassword,omitempty"`
	Passphrase        string `json:"passphrase,omitempty"`
	AlsoPassphrase    string `json:"alsoPassphrase,omitempty"`
	FormerPassphrase  string `json:"formerPassphrase,omitempty"`
}

// SecretEntry returns the key and the value under which a volume's Secret holds the
// credentials for one node. The Secret reaches every node that stages the volume, so
// each node has its own entry.
func SecretEntry(node string, c Credentials) (key string, value []byte, err error) {
	value, err = json.Marshal(credentialsEntry(c))
	return SecretKey(node), value, err
}

// SecretKey returns the key of a node's entry.
func SecretKey(node string) string { return "node." + NodeKey(node) }

// CredentialsFor finds a node's entry in the Secret that kubelet passes on.
func CredentialsFor(node string, secret map[string]string) (Credentials, error) {
	text, found := secret[SecretKey(node)]
	if !found {
		return Credentials{}, fmt.Errorf("the volume's Secret has no entry for node %s; the volume is not attached to it, or is being attached again", node)
	}
	var entry credentialsEntry
	// The decoder's error might quote the entry.
	if json.Unmarshal([]byte(text), &entry) != nil || (entry.User == "") != (entry.Password == "") || entry.User == "" && entry.Passphrase == "" {
		return Credentials{}, errors.New("the node's entry in the volume's Secret cannot be read")
	}
	return Credentials(entry), nil
}

// Passphrases returns what may open an encrypted volume, in the order in which it is tried.
func (c Credentials) Passphrases() []string {
	return slices.DeleteFunc([]string{c.Passphrase, c.AlsoPassphrase, c.FormerPassphrase}, func(p string) bool { return p == "" })
}

// PassphraseName names a passphrase in reports. It proves nothing to whoever does not have
// the passphrase, which is a random key, and cannot be traced back to it.
func PassphraseName(passphrase string) string {
	mac := hmac.New(sha256.New, []byte(passphrase))
	mac.Write([]byte("name of a volume's passphrase"))
	return hex.EncodeToString(mac.Sum(nil)[:8])
}

// Absent turns the name of a passphrase into the statement that it does not open the volume.
func Absent(name string) string { return "!" + name }
