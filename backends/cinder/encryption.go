package cinder

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"slices"
	"time"

	"github.com/gophercloud/gophercloud/v2"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder/catalog"
)

// Encryption is what Cinder says about how a volume is encrypted; empty fields are not
// known.
type Encryption struct {
	// KeyID is the key's ID at Cinder's key manager.
	KeyID string
	// Provider names the format, and ControlLocation who encrypts.
	Provider, ControlLocation string
	Cipher                    string
	KeyBits                   int
}

// encryptionDocument is an Encryption in the API's JSON form. A volume that is not
// encrypted has only the first field, which is null.
type encryptionDocument struct {
	KeyID           *string `json:"encryption_key_id"`
	Provider        *string `json:"provider"`
	ControlLocation *string `json:"control_location"`
	Cipher          *string `json:"cipher"`
	KeyBits         *int    `json:"key_size"`
}

// Encryption reads how a volume is encrypted.
func (c encryptionClient) Encryption(ctx context.Context, volumeID string) (Encryption, error) {
	const operation = "volume.encryption"
	var answer encryptionDocument
	err := c.about(ctx, volumeID, request{operation: operation, path: []string{"volumes", volumeID, "encryption"}, answer: &answer})
	if err != nil {
		return Encryption{}, err
	}
	return Encryption{
		KeyID: valueOf(answer.KeyID), Provider: valueOf(answer.Provider), ControlLocation: valueOf(answer.ControlLocation), Cipher: valueOf(answer.Cipher), KeyBits: valueOf(answer.KeyBits),
	}, nil
}

func valueOf[T any](of *T) (value T) {
	if of != nil {
		value = *of
	}
	return value
}

// Key is a volume's key. Printing it shows nothing.
type Key struct{ bytes []byte }

// KeyOf returns the key with the given bytes.
func KeyOf(bytes []byte) Key { return Key{bytes} }

// Passphrase is what opens the volume: os-brick's (_get_passphrase in
// os_brick/encryptors/cryptsetup.py).
func (k Key) Passphrase() string { return hex.EncodeToString(k.bytes) }

const hiddenKey = "(key)"

// String hides the key.
func (Key) String() string { return hiddenKey }

// GoString hides the key.
func (Key) GoString() string { return hiddenKey }

// LogValue hides the key.
func (Key) LogValue() slog.Value { return slog.StringValue(hiddenKey) }

// MarshalJSON hides the key.
func (Key) MarshalJSON() ([]byte, error) { return json.Marshal(hiddenKey) }

// MinKeySize and MaxKeySize bound a key, in bytes. Cinder's have 32 or 64.
const (
	MinKeySize = 16
	MaxKeySize = 512
)

// keyTimeout bounds a request for a key, which is answered from memory.
const keyTimeout = 15 * time.Second

// isKey reports whether a key manager's answer can be a key of Cinder's. A new volume is
// encrypted with whatever counts as its key, and the page of a proxy would open it never
// again.
func isKey(contentType string, bytes []byte) bool {
	media, _, err := mime.ParseMediaType(contentType)
	return err == nil && media == octets && slices.Contains([]int{16, 24, 32, 64}, len(bytes))
}

const octets = "application/octet-stream"

// Key reads a key from the key manager (Barbican) that the service catalog names. None of
// its failures says anything about Cinder, and none is KindNotFound, which means that the
// volume is gone.
func (c encryptionClient) Key(ctx context.Context, id string) (Key, error) {
	const operation = "key.get"
	if !usableID.MatchString(id) {
		return Key{}, &Error{Backend: c.backend, Operation: operation, Kind: KindInternal, Message: fmt.Sprintf("%.80q is not the ID of a key", id)}
	}
	if c.service.GetAuthResult() == nil {
		return Key{}, &Error{Backend: c.backend, Operation: operation, Kind: KindConfig,
			Message: "a Cinder without Keystone has no key manager; use a fixed key, and name its Secret in csi.encryption.fixedKeySecret of the backend"}
	}
	endpoint, err := catalog.KeyManager(c.service.GetAuthResult(), c.wanted, c.entry)
	if err != nil {
		return Key{}, &Error{Backend: c.backend, Operation: operation, Kind: KindConfig, Message: err.Error()}
	}
	service := &gophercloud.ServiceClient{ProviderClient: c.service.ProviderClient, Endpoint: endpoint, Type: "key-manager"}
	ctx = withExchange(c.outgoing(ctx, operation), func(e *exchange) { e.elsewhere, e.timeout = true, e.atMost(keyTimeout) })
	response, err := service.Request(ctx, http.MethodGet, service.ServiceURL("secrets", id, "payload"), &gophercloud.RequestOpts{
		MoreHeaders: map[string]string{"Accept": octets}, OkCodes: []int{http.StatusOK}, KeepResponseBody: true,
	})
	if err != nil {
		return Key{}, ofKeyManager(operation, id, translate(c.backend, operation, err))
	}
	defer response.Body.Close() //nolint:errcheck // Everything that matters was read.
	bytes, err := io.ReadAll(io.LimitReader(response.Body, MaxKeySize+1))
	switch {
	case err != nil:
		return Key{}, ofKeyManager(operation, id, translate(c.backend, operation, err))
	case !isKey(response.Header.Get("Content-Type"), bytes):
		return Key{}, c.wrong(operation, fmt.Sprintf("the key manager's answer for key %s cannot be a key: it is not %s with the length of an AES key; look at the secret there", id, octets))
	}
	return Key{bytes}, nil
}

// ofKeyManager says that a failure is the key manager's, and what helps.
func ofKeyManager(operation, id string, err error) error {
	return altered(err, func(e *Error) {
		e.EffectUnknown = false
		switch {
		case e.Status == http.StatusNotFound:
			e.Kind, e.Message = KindConfig, fmt.Sprintf("the key manager has no key %s, or does not show it to the backend's account: use the account, or a user of its project with a role such as creator, that made the volume", id)
		case e.Operation == operation && e.Kind == KindUnauthorized:
			// The client has renewed its token, which Cinder accepts: another login helps
			// no more.
			e.Kind, e.Message = KindForbidden, "the key manager rejects the token of the backend's account; see why it does not validate tokens of this Keystone"
		case e.Kind == KindForbidden:
			e.Message = fmt.Sprintf("the key manager does not give key %s to the backend's account; give its user a role such as creator in the project that made the volume", id)
		default:
			e.Message = "the key manager: " + e.Message
		}
	})
}
