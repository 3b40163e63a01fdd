package status

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPasswordsAreReadAsTheyAreWritten: what YAML takes for a number or a boolean is the text
// that the file has, and no error repeats a password.
func TestPasswordsAreReadAsTheyAreWritten(t *testing.T) {
	var got string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, got, _ = r.BasicAuth() }))
	defer server.Close()
	path := filepath.Join(t.TempDir(), "http.yaml")
	for text, want := range map[string]string{"0123456": "0123456", "1e6": "1e6", "12345678901234567890123": "12345678901234567890123", "yes": "yes", `"a b"`: "a b", "hunter2\r": "hunter2"} {
		if err := os.WriteFile(path, []byte("basic_auth:\n  username: operator\n  password: "+text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		o := connection{url: server.URL, httpConfigFile: path}
		if _, err := o.fetchURL(t.Context(), nil); err != nil || got != want {
			t.Errorf("%q is read as %q, %v", text, got, err)
		}
	}
	for _, wrong := range []string{"basic_auth: hunter2", "basic_auth: [hunter2]", "basic_auth: {password: [hunter2]}", "basic_auth: {password: {hunter2: x}}", "basic_auth: {password: &hunter2", "hunter2", "password: hunter2", "basic_auth: {password: 'hunter2"} {
		if err := os.WriteFile(path, []byte(wrong), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readHTTPConfig(path); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", wrong, err)
		}
	}
}

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
