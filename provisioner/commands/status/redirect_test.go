package status

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
)

// TestTheLoginGoesToTheReplicaOnly: an answer may redirect to any host.
func TestTheLoginGoesToTheReplicaOnly(t *testing.T) {
	var got string
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, got, _ = r.BasicAuth() }))
	defer other.Close()
	replica := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusFound))
	defer replica.Close()
	path := filepath.Join(t.TempDir(), "http.yaml")
	if err := os.WriteFile(path, []byte("basic_auth: {username: operator, password: hidden}"), 0o600); err != nil {
		t.Fatal(err)
	}
	o := connection{url: replica.URL, httpConfigFile: path}
	if _, err := o.fetchURL(t.Context(), nil); err == nil || got != "" {
		t.Errorf("the other host got %q, %v", got, err)
	}
}
