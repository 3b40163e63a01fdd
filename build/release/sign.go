package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// signer signs the checksums, and so everything that they list. Nothing but OpenSSL is
// needed to make such a key and to verify its signatures.
type signer struct{ key *ecdsa.PrivateKey }

// readSigner reads a private key. It returns nil if there is none to read.
func readSigner(file string) (*signer, error) {
	if file == "" {
		return nil, nil
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("the signing key cannot be read: %w", err)
	}
	block, _ := pem.Decode(content)
	if block == nil || block.Type != "PRIVATE KEY" {
		return nil, errors.New(file + " has no PEM block PRIVATE KEY (PKCS #8); make a key with: openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, errors.New(file + " has no private key in PKCS #8") // the parser may quote the key
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || key.Curve != elliptic.P256() {
		return nil, errors.New(file + " has no ECDSA key of the curve P-256")
	}
	return &signer{key}, nil
}

// sign writes the signature of the checksums in the form that openssl dgst reads, what
// cosign attaches to the image, and the public key. The same key and release give the same
// signatures.
func (s *signer) sign(out, image string) error {
	content, err := os.ReadFile(filepath.Join(out, checksums))
	if err != nil {
		return err
	}
	signature, err := s.signatureOf(content)
	if err != nil {
		return err
	}
	payload, err := payloadOf(filepath.Join(out, image+".digest"))
	if err != nil {
		return err
	}
	ofImage, err := s.signatureOf(payload)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(s.key.Public())
	if err != nil {
		return err
	}
	encoded := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})
	return errors.Join(
		os.WriteFile(filepath.Join(out, checksums+".sig"), signature, 0o644),
		os.WriteFile(filepath.Join(out, image+".cosign.json"), payload, 0o644),
		os.WriteFile(filepath.Join(out, image+".cosign.sig"), []byte(base64.StdEncoding.EncodeToString(ofImage)), 0o644),
		os.WriteFile(filepath.Join(out, program+"-release.pub"), encoded, 0o644),
	)
}

func (s *signer) signatureOf(content []byte) ([]byte, error) {
	digest := sha256.Sum256(content)
	// Without a source of randomness, the signature is that of RFC 6979.
	return s.key.Sign(nil, digest[:], crypto.SHA256)
}

// payloadOf returns what a signature by cosign states, in the format "simple signing" of
// containers/image: that the repository has an image of the digest in the file. cosign
// compares only the digest, so the signature also holds in a mirror.
func payloadOf(file string) ([]byte, error) {
	digest, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return json.Marshal(map[string]any{
		"critical": map[string]any{
			"identity": map[string]string{"docker-reference": repository},
			"image":    map[string]string{"docker-manifest-digest": strings.TrimSpace(string(digest))},
			"type":     "cosign container image signature",
		},
		"optional": nil,
	})
}
