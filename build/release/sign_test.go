package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// newSigner makes a key, and reads it as the release does.
func newSigner(t *testing.T) (*signer, *ecdsa.PublicKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	by, err := readSigner(writeKey(t, key))
	if err != nil {
		t.Fatal(err)
	}
	return by, &key.PublicKey
}

func writeKey(t *testing.T, key any) string {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "release.key")
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// checkSignature verifies as docs/releases.md says.
func checkSignature(t *testing.T, out string, public *ecdsa.PublicKey) {
	t.Helper()
	listed, err := os.ReadFile(filepath.Join(out, checksums))
	if err != nil {
		t.Fatal(err)
	}
	signature, err := os.ReadFile(filepath.Join(out, checksums+".sig"))
	if err != nil {
		t.Fatal(err)
	}
	digest := sha256.Sum256(listed)
	if !ecdsa.VerifyASN1(public, digest[:], signature) {
		t.Error("the signature is not the key's")
	}
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("this machine has no openssl")
	}
	verify := func(file string) (string, error) {
		output, err := exec.CommandContext(t.Context(), "openssl", "dgst", "-sha256", "-verify", filepath.Join(out, program+"-release.pub"),
			"-signature", filepath.Join(out, checksums+".sig"), file).CombinedOutput()
		return string(output), err
	}
	if output, err := verify(filepath.Join(out, checksums)); err != nil || output != "Verified OK\n" {
		t.Errorf("openssl says %q (%v)", output, err)
	}
	changed := filepath.Join(t.TempDir(), checksums)
	if err := os.WriteFile(changed, bytes.Replace(listed, listed[:1], []byte{listed[0] ^ 1}, 1), 0o600); err != nil {
		t.Fatal(err)
	}
	if output, err := verify(changed); err == nil {
		t.Errorf("openssl says %q about other checksums", output)
	}
}

// checkImageSignature reads what cosign would: the payload, byte for byte in the form that
// cosign writes, and its signature in base64.
func checkImageSignature(t *testing.T, out, image string, public *ecdsa.PublicKey) {
	t.Helper()
	read := func(suffix string) string {
		content, err := os.ReadFile(filepath.Join(out, image+suffix))
		if err != nil {
			t.Fatal(err)
		}
		return string(content)
	}
	payload := read(".cosign.json")
	want := `{"critical":{"identity":{"docker-reference":"ghcr.io/standalone-cinder/standalone-cinder"},"image":{"docker-manifest-digest":"` +
		strings.TrimSpace(read(".digest")) + `"},"type":"cosign container image signature"},"optional":null}`
	if payload != want {
		t.Errorf("the payload is %s, want %s", payload, want)
	}
	signature, err := base64.StdEncoding.DecodeString(read(".cosign.sig"))
	if digest := sha256.Sum256([]byte(payload)); err != nil || !ecdsa.VerifyASN1(public, digest[:], signature) {
		t.Errorf("the signature of the image is not the key's (%v)", err)
	}
}

// TestSignatures signs checksums and an image without building a release.
func TestSignatures(t *testing.T) {
	by, public := newSigner(t)
	out := t.TempDir()
	if err := os.WriteFile(filepath.Join(out, checksums), []byte("0a  file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(out, "image.digest"), []byte("sha256:"+strings.Repeat("0a", 32)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := by.sign(out, "image"); err != nil {
		t.Fatal(err)
	}
	checkImageSignature(t, out, "image", public)
	first, err := os.ReadFile(filepath.Join(out, checksums+".sig"))
	if err != nil {
		t.Fatal(err)
	}
	if err := by.sign(out, "image"); err != nil {
		t.Fatal(err)
	}
	if second, err := os.ReadFile(filepath.Join(out, checksums+".sig")); err != nil || !bytes.Equal(first, second) {
		t.Errorf("two signatures differ (%v)", err)
	}
	checkSignature(t, out, public)
}

// TestKeysThatCannotSign: no release is built with them, and no message has any of them.
func TestKeysThatCannotSign(t *testing.T) {
	if by, err := readSigner(""); by != nil || err != nil {
		t.Errorf("no key: %v %v", by, err)
	}
	_, other, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	wide, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	text := filepath.Join(t.TempDir(), "text")
	damaged := filepath.Join(t.TempDir(), "damaged")
	for path, content := range map[string]string{text: "hunter2", damaged: "-----BEGIN PRIVATE KEY-----\naHVudGVyMg==\n-----END PRIVATE KEY-----\n"} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]string{
		writeKey(t, other): "has no ECDSA key of the curve P-256",
		writeKey(t, wide):  "has no ECDSA key of the curve P-256",
		text:               "has no PEM block PRIVATE KEY",
		damaged:            "has no private key in PKCS #8",
		text + "-missing":  "the signing key cannot be read",
	} {
		if _, err := readSigner(path); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
