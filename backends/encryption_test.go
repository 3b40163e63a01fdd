package backends

import (
	"net/http"
	"strings"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder/turns"
	"github.com/standalone-cinder/standalone-cinder/test/cindertest"
)

// TestAKeyManagerThatRefusesTheTokenCostsNoLogins: Cinder accepts the token, so a new one
// helps nobody. Nevertheless each attempt drops the client that the whole backend uses, and
// with it what its renewals have learned, and logs in twice.
func TestAKeyManagerThatRefusesTheTokenCostsNoLogins(t *testing.T) {
	cloud := cindertest.NewCloud(t)
	cloud.Catalog = []any{cindertest.Entry("volumev3", "RegionOne", cloud.URL+"/volume/v3/0123456789abcdef0123456789abcdef"),
		cindertest.Entry("key-manager", "RegionOne", cloud.URL+"/key-manager")}
	cloud.Cinder = func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/key-manager/") {
			cindertest.Answer(w, http.StatusUnauthorized, `{"error": {"code": 401, "title": "Unauthorized", "message": "The request you have made requires authentication."}}`)
			return
		}
		cindertest.Answer(w, http.StatusOK, `{"encryption_key_id": null}`)
	}
	pool := NewPool(PoolOptions{Sources: cloud.Clouds(cindertest.PasswordCloud), Metrics: testMetrics()})
	s := testSession(t.Context(), pool)
	before, err := s.login(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const attempts = 10
	for range attempts {
		err := s.exchange(t.Context(), turns.Admission{}, func(client Cinder) error {
			_, err := client.(encryptionRequests).Key(t.Context(), "9c2b1d2e-7a55-4b1c-8f0e-0f6a3c1d2e3f")
			return err
		})
		if err == nil || cinder.IsKind(err, cinder.KindNotFound) {
			t.Fatal(err)
		}
	}
	if after, err := s.login(t.Context()); err != nil || after != before {
		t.Errorf("the backend's client was replaced, although Cinder accepts its token (%v)", err)
	}
	if n := cloud.LoginCount(); n > 2 {
		t.Errorf("%d attempts to read a key cost %d logins", attempts, n-1)
	}
}
