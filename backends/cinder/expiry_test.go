package cinder

import (
	"net/http/httptest"
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/auth"
	"github.com/standalone-cinder/standalone-cinder/test/authtest"
	"github.com/standalone-cinder/standalone-cinder/test/cindertest"
)

// TestExpiryIsLearnedFromAnswers: nothing is known before a server has answered,
// and plain HTTP has no certificate.
func TestExpiryIsLearnedFromAnswers(t *testing.T) {
	ca := authtest.NewAuthority(t)
	dir := authtest.WriteFiles(t, map[string]string{"ca.pem": ca.PEM})
	cloud := cindertest.NewTLSCloud(t, func(server *httptest.Server) { ca.Secure(server, false) })
	client, err := logInFrom(t, cloud.Clouds("clouds:\n  gold:\n    auth: {auth_url: $URL, user_id: u, password: p, project_id: x}\n    cacert: "+dir+"/ca.pem\n"),
		auth.Config{Source: auth.Source{Cloud: "gold"}})
	if err != nil {
		t.Fatal(err)
	}
	got := client.Expiry()
	if left := time.Until(got.Keystone); left < 50*time.Minute || left > time.Hour {
		t.Errorf("the certificate expires in %s, want the authority's hour", left)
	}
	if !got.Token.After(time.Now()) {
		t.Errorf("the token expires at %s, want in the future", got.Token)
	}

	plain, err := logInFrom(t, cindertest.NewCloud(t).Clouds(cindertest.PasswordCloud), auth.Config{Source: auth.Source{Cloud: "gold"}})
	if err != nil {
		t.Fatal(err)
	}
	if got := plain.Expiry(); !got.Keystone.IsZero() || !got.Cinder.IsZero() {
		t.Errorf("without TLS, certificates expire at %v", got)
	}
}
