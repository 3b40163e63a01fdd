package backends

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
	"strings"
	"testing"
	"time"
)

// authority signs certificates for one test.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  string
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t}
	a.cert, a.key, a.pem, _ = a.issue("test authority", true)
	return a
}

// issue makes a certificate for loopback, self-signed when it is the
// authority's own.
func (a *authority) issue(name string, isCA bool) (cert *x509.Certificate, key *ecdsa.PrivateKey, certPEM, keyPEM string) {
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

// secure gives a server a certificate of the authority, and has it ask for one
// of the client when wanted.
func (a *authority) secure(server *httptest.Server, clientCertificate bool) {
	_, _, certPEM, keyPEM := a.issue("server", false)
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

// TestCertificates logs in over TLS with every way of giving certificates.
func TestCertificates(t *testing.T) {
	ca := newAuthority(t)
	_, _, clientCert, clientKey := ca.issue("client", false)
	dir := writeFiles(t, map[string]string{"ca.pem": ca.pem, "cert.pem": clientCert, "key.pem": clientKey, "both.pem": clientCert + clientKey})
	indented := func(text string) string {
		return "|\n      " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n      ")
	}
	tests := map[string]struct {
		clientCertificate bool
		entry             string // further lines of the cloud
		wantErr           string
	}{
		"own authority":              {entry: "    cacert: " + dir + "/ca.pem"},
		"not verified":               {entry: "    verify: false"},
		"verify no, as YAML 1.1":     {entry: "    verify: no"},
		"authority in the file":      {entry: "    cacert: " + indented(ca.pem)},
		"unknown authority":          {entry: "    verify: true", wantErr: "backend gold: auth.login: the server's certificate is not trusted: x509: certificate signed by unknown authority"},
		"client certificate":         {clientCertificate: true, entry: "    cacert: " + dir + "/ca.pem\n    cert: " + dir + "/cert.pem\n    key: " + dir + "/key.pem"},
		"client certificate and key": {clientCertificate: true, entry: "    cacert: " + dir + "/ca.pem\n    cert: " + dir + "/both.pem"},
		"client key in the file":     {clientCertificate: true, entry: "    cacert: " + dir + "/ca.pem\n    cert: " + dir + "/cert.pem\n    key: " + indented(clientKey)},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			cloud := newTLSCloudServer(t, func(server *httptest.Server) { ca.secure(server, test.clientCertificate) })
			sources := cloud.clouds("clouds:\n  gold:\n    auth: {auth_url: $URL, user_id: u, password: p, project_id: x}\n" + test.entry + "\n")
			pool := NewPool(PoolOptions{Sources: sources, Metrics: testMetrics()})
			_, err := pool.Client(t.Context(), Config{Name: "gold", Auth: Auth{Cloud: "gold"}})
			if got := errorText(err); got != test.wantErr {
				t.Errorf("error %q, want %q", got, test.wantErr)
			}
			if test.wantErr != "" && (!IsKind(err, KindConfig) || effectUnknown(err)) {
				t.Errorf("kind %s, effect unknown %v; want Config and a known effect", KindOf(err), effectUnknown(err))
			}
		})
	}
}

func TestCertificateInTheHomeDirectory(t *testing.T) {
	ca := newAuthority(t)
	t.Setenv("HOME", writeFiles(t, map[string]string{"ca.pem": ca.pem}))
	dir := writeFiles(t, map[string]string{"clouds.yaml": "clouds: {gold: {cacert: ~/ca.pem, auth: {auth_url: https://k, user_id: u, password: p}}}"})
	found, err := Sources{CloudsFile: dir + "/clouds.yaml"}.resolve(Config{Name: "b", Auth: Auth{Cloud: "gold"}})
	if err != nil {
		t.Fatal(err)
	}
	if found.tls.RootCAs == nil {
		t.Error("the authority was not read")
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
