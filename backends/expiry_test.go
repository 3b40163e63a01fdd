package backends

import (
	"crypto/x509"
	"net/http/httptest"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/test/authtest"
	"github.com/standalone-cinder/standalone-cinder/test/cindertest"
)

// TestExpiry: the client certificate is known once the credentials are read, the
// rest once the backend has answered.
func TestExpiry(t *testing.T) {
	ca := authtest.NewAuthority(t)
	var own *x509.Certificate
	own, _, cert, key := ca.Issue("client", false)
	dir := authtest.WriteFiles(t, map[string]string{"ca.pem": ca.PEM, "cert.pem": cert, "key.pem": key})
	cloud := cindertest.NewTLSCloud(t, func(server *httptest.Server) { ca.Secure(server, true) })
	pool := NewPool(PoolOptions{Metrics: testMetrics(), Sources: cloud.Clouds("clouds:\n  gold:\n    auth: {auth_url: $URL, user_id: u, password: p, project_id: x}\n" +
		"    cacert: " + dir + "/ca.pem\n    cert: " + dir + "/cert.pem\n    key: " + dir + "/key.pem\n")})
	if got := pool.Expiry(gold); got != (Expiry{}) {
		t.Errorf("before anything was read, it is known that %v", got)
	}
	if _, err := pool.CheckCredentials(gold); err != nil {
		t.Fatal(err)
	}
	if got := pool.Expiry(gold); !got.ClientCertificate.Equal(own.NotAfter) || !got.Token.IsZero() || !got.Keystone.IsZero() {
		t.Errorf("after the credentials were read, it is known that %v; want the client certificate's %s alone", got, own.NotAfter)
	}
	if _, err := pool.Client(t.Context(), gold); err != nil {
		t.Fatal(err)
	}
	if got := pool.Expiry(gold); got.Token.IsZero() || got.Keystone.IsZero() {
		t.Errorf("after a login, it is known that %v; want the token's and the server's expiry", got)
	}
}
