package cindersim

import (
	"crypto/sha256"
	"net/http"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim/drivers"
)

// fixedKeyID is the ID of every key of Cinder's own key manager.
const fixedKeyID = "00000000-0000-0000-0000-000000000000"

// newKey gives a volume of an encrypted type its key.
func (c *cloud) newKey(v *volume) {
	switch of := v.kind.Encryption; {
	case of == nil:
	case of.KeyManager:
		v.keyID = c.ids.UUID()
	default:
		v.keyID = fixedKeyID
	}
}

// showEncryption answers like the extension os-volume-encryption-metadata.
func (c *cloud) showEncryption(q *call, id string) (*reply, error) {
	v, err := c.find(q, id)
	if err != nil {
		return nil, err
	}
	of := v.kind.Encryption
	if of == nil {
		return success(http.StatusOK, map[string]any{"encryption_key_id": nil}), nil
	}
	document := map[string]any{"encryption_key_id": v.keyID, "provider": of.Provider, "control_location": of.Location(), "cipher": nil, "key_size": nil}
	if of.Cipher != "" {
		document["cipher"] = of.Cipher
	}
	if of.KeyBits != 0 {
		document["key_size"] = of.KeyBits
	}
	return success(http.StatusOK, document), nil
}

// keyManagerPath is where the key manager is, beside Cinder.
const keyManagerPath = "/key-manager/v1/secrets/"

// KeyOf returns the bytes of a key of the key manager.
func KeyOf(id string) []byte {
	sum := sha256.Sum256([]byte(id))
	return sum[:]
}

// serveKey answers like Barbican, which shows a key to the project that made it.
func (s *Simulator) serveKey(x *exchange) *reply {
	_, project, _, ok := s.keystone.Validate(x.request.Header.Get("X-Auth-Token"))
	if !ok || x.endpoint == Noauth {
		return s.unauthorized()
	}
	fault := func(status int, message string) *reply {
		return &reply{status: status, bare: true, anonymous: true, body: encode(map[string]any{"code": status, "title": http.StatusText(status), "description": message})}
	}
	id, payload := strings.CutSuffix(strings.TrimPrefix(x.request.URL.Path, keyManagerPath), "/payload")
	s.cloud.lock()
	defer s.cloud.unlock()
	for _, v := range s.cloud.volumes {
		switch {
		case v.keyID != id || id == fixedKeyID:
		case v.project != project:
			return fault(http.StatusForbidden, "Secret payload retrieval attempt not allowed - please review your user/project privileges")
		case !payload || x.request.Method != http.MethodGet || x.request.Header.Get("Accept") != "application/octet-stream":
			return fault(http.StatusNotAcceptable, "Secret payload retrieval issue seen - Not Acceptable.")
		default:
			return &reply{status: http.StatusOK, bare: true, anonymous: true, contentType: "application/octet-stream", body: KeyOf(id)}
		}
	}
	return fault(http.StatusNotFound, "Not Found. Sorry but your secret is in another castle.")
}

func isEncrypted(kind *drivers.VolumeType) bool { return kind.Encryption != nil }
