package cinder

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/backends/auth"
	"github.com/standalone-cinder/standalone-cinder/test/authtest"
	"github.com/standalone-cinder/standalone-cinder/test/cindertest"
)

// TestCertificates logs in over TLS with every way of configuring certificates.
func TestCertificates(t *testing.T) {
	ca := authtest.NewAuthority(t)
	_, _, clientCert, clientKey := ca.Issue("client", false)
	dir := authtest.WriteFiles(t, map[string]string{"ca.pem": ca.PEM, "cert.pem": clientCert, "key.pem": clientKey, "both.pem": clientCert + clientKey})
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
		"authority in the file":      {entry: "    cacert: " + indented(ca.PEM)},
		"unknown authority":          {entry: "    verify: true", wantErr: "backend gold: auth.login: the server's certificate is not trusted: x509: certificate signed by unknown authority"},
		"client certificate":         {clientCertificate: true, entry: "    cacert: " + dir + "/ca.pem\n    cert: " + dir + "/cert.pem\n    key: " + dir + "/key.pem"},
		"client certificate and key": {clientCertificate: true, entry: "    cacert: " + dir + "/ca.pem\n    cert: " + dir + "/both.pem"},
		"client key in the file":     {clientCertificate: true, entry: "    cacert: " + dir + "/ca.pem\n    cert: " + dir + "/cert.pem\n    key: " + indented(clientKey)},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			cloud := cindertest.NewTLSCloud(t, func(server *httptest.Server) { ca.Secure(server, test.clientCertificate) })
			sources := cloud.Clouds("clouds:\n  gold:\n    auth: {auth_url: $URL, user_id: u, password: p, project_id: x}\n" + test.entry + "\n")
			_, err := logInFrom(t, sources, auth.Config{Source: auth.Source{Cloud: "gold"}})
			if got := authtest.ErrorText(err); got != test.wantErr {
				t.Errorf("error %q, want %q", got, test.wantErr)
			}
			if test.wantErr != "" && (!IsKind(err, KindConfig) || effectUnknown(err)) {
				t.Errorf("kind %s, effect unknown %v; want Config and a known effect", KindOf(err), effectUnknown(err))
			}
		})
	}
}
