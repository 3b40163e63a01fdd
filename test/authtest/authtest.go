// Package authtest helps test credentials: files, variables and certificates.
package authtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Authority signs certificates for one test.
type Authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	// PEM is its certificate.
	PEM string
}

// NewAuthority returns an Authority.
func NewAuthority(t *testing.T) *Authority {
	t.Helper()
	a := &Authority{t: t}
	a.cert, a.key, a.PEM, _ = a.Issue("test authority", true)
	return a
}

// Issue issues a certificate for loopback; the Authority's own is self-signed.
func (a *Authority) Issue(name string, isCA bool) (cert *x509.Certificate, key *ecdsa.PrivateKey, certPEM, keyPEM string) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		a.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(time.Hour),
		IsCA:                  isCA,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	parent, parentKey := a.cert, a.key
	if isCA {
		parent, parentKey = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, parentKey)
	if err != nil {
		a.t.Fatal(err)
	}
	if cert, err = x509.ParseCertificate(der); err != nil {
		a.t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	certPEM = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	keyPEM = string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}))
	return cert, key, certPEM, keyPEM
}

// ErrorText returns an error's text, or "".
func ErrorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// NoEnvironment returns an environment without variables.
func NoEnvironment(string) string { return "" }

// Environment returns an environment with the given variables.
func Environment(variables map[string]string) func(string) string {
	return func(name string) string { return variables[name] }
}

// WriteFiles writes files into a new directory and returns it.
func WriteFiles(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// WriteFile replaces a file atomically, as in a mounted Secret.
func WriteFile(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// Secure gives a server a certificate of the authority and, if wanted, makes it
// request a client certificate.
func (a *Authority) Secure(server *httptest.Server, clientCertificate bool) {
	_, _, certPEM, keyPEM := a.Issue("server", false)
	pair, err := tls.X509KeyPair([]byte(certPEM), []byte(keyPEM))
	if err != nil {
		a.t.Fatal(err)
	}
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	if clientCertificate {
		server.TLS.ClientAuth = tls.RequireAndVerifyClientCert
		server.TLS.ClientCAs = x509.NewCertPool()
		server.TLS.ClientCAs.AddCert(a.cert)
	}
}
