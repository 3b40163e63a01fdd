package install

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/test/controlplane"
	"github.com/standalone-cinder/standalone-cinder/test/docs"
)

// TestTutorial follows the tutorial in a fresh clone.
func TestTutorial(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	tutorial, err := docs.Read("docs/tutorial.md")
	if err != nil {
		t.Fatal(err)
	}
	// The clone would build Kubernetes again.
	binary, err := controlplane.Binary(ctx, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	session := &docs.Session{
		Dir:         clone(ctx, t),
		Environment: append(os.Environ(), controlplane.BinaryVariable+"="+binary, "KUBECONFIG=tutorial/admin.kubeconfig", "KUBECACHEDIR="+t.TempDir()),
		// Other programs of this machine may use the ports of the page.
		Replaced: strings.NewReplacer("18776", freePort(t), "18080", freePort(t)),
		Log:      t.Logf,
	}
	defer session.Close()
	if err := session.Follow(ctx, tutorial, tutorial.Blocks); err != nil {
		t.Fatal(err)
	}
	for _, left := range []string{"policy.yaml", "tutorial"} {
		if _, err := os.Stat(filepath.Join(session.Dir, left)); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", left, err)
		}
	}
}

// freePort returns a port that nothing listens on now.
func freePort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}
