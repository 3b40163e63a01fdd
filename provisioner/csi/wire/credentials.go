package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
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
