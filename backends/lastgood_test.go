package backends

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/auth/authtest"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder/cindertest"
)

// TestBrokenFileLeavesTheCredentialsThatWereRead: a follower reads credentials,
// but logs in only when it leads.
func TestBrokenFileLeavesTheCredentialsThatWereRead(t *testing.T) {
	cloud := cindertest.NewCloud(t)
	sources := cloud.Clouds(cindertest.PasswordCloud)
	pool := NewPool(PoolOptions{Sources: sources, Metrics: testMetrics(), CredentialsAge: time.Nanosecond})
	if _, err := pool.CheckCredentials(gold); err != nil {
		t.Fatal(err)
	}
	authtest.WriteFile(t, sources.CloudsFile, "clouds: [")
	if _, err := pool.Client(t.Context(), gold); err != nil {
		t.Errorf("the first login after the file broke: %v", err)
	}
	// A change of something else does not lose them.
	slower := gold
	slower.Limits.RequestsPerSecond = 5
	if _, err := pool.Client(t.Context(), slower); err != nil {
		t.Errorf("with another limit: %v", err)
	}
	if _, err := pool.CheckCredentials(gold); !cinder.IsKind(err, cinder.KindConfig) {
		t.Errorf("a check of the broken file gives %v", err)
	}
	if last, ok := pool.LastGood(gold); !ok || last.Current || last.Restored {
		t.Errorf("in use: %+v, %t", last, ok)
	}
}

// TestKeptCredentialsServeUntilTheFileIsGood uses a pool that has never read
// the file.
func TestKeptCredentialsServeUntilTheFileIsGood(t *testing.T) {
	cloud := cindertest.NewCloud(t)
	sources := cloud.Clouds(cindertest.PasswordCloud)
	good, err := os.ReadFile(sources.CloudsFile)
	equal(t, err, nil)
	before := NewPool(PoolOptions{Sources: sources, Metrics: testMetrics()})
	if _, ok := before.LastGood(gold); ok {
		t.Error("credentials were never read, but are good")
	}
	if _, err := before.CheckCredentials(gold); err != nil {
		t.Fatal(err)
	}
	last, ok := before.LastGood(gold)
	if !ok || !last.Current || last.Restored {
		t.Fatalf("in use: %+v, %t", last, ok)
	}

	equal(t, os.Remove(sources.CloudsFile), nil)
	pool := NewPool(PoolOptions{Sources: sources, Metrics: testMetrics(), CredentialsAge: time.Nanosecond, Kept: map[string][]byte{"gold": last.Kept}})
	first, err := pool.Client(t.Context(), gold)
	if err != nil {
		t.Fatal(err)
	}
	if in, ok := pool.LastGood(gold); !ok || in.Current || !in.Restored || string(in.Kept) != string(last.Kept) {
		t.Errorf("in use: %+v, %t", in, ok)
	}
	other := gold
	other.Auth.Cloud = "zinc"
	_, err = pool.CheckCredentials(other)
	equal(t, authtest.ErrorText(err), "backend gold: cannot read "+sources.CloudsFile+": no such file or directory; "+
		"the last good credentials cannot be used either: they were read for another configuration of the backend")

	// The file wins as soon as it is good, and keeps winning.
	authtest.WriteFile(t, sources.CloudsFile, strings.ReplaceAll(string(good), "s3cr3t", "n3w"))
	second, err := pool.Client(t.Context(), gold)
	if err != nil || second == first {
		t.Errorf("client %p and error %v, want another than %p", second, err, first)
	}
	authtest.WriteFile(t, sources.CloudsFile, "clouds: [")
	if client, err := pool.Client(t.Context(), gold); err != nil || client != second {
		t.Errorf("after the file broke again: client %p and error %v, want %p", client, err, second)
	}
	if in, ok := pool.LastGood(gold); !ok || in.Current || in.Restored {
		t.Errorf("in use: %+v, %t", in, ok)
	}
}

// TestEarlierKeptCredentialsDoNotReplaceLaterOnes: the pool remembers a bounded
// number of readings. One that is forgotten, and whose file is bad by then, must
// not give way to what was kept when the process started, perhaps months ago.
func TestEarlierKeptCredentialsDoNotReplaceLaterOnes(t *testing.T) {
	cloud := cindertest.NewCloud(t)
	sources := cloud.Clouds(cindertest.PasswordCloud)
	good, err := os.ReadFile(sources.CloudsFile)
	equal(t, err, nil)
	before := NewPool(PoolOptions{Sources: sources, Metrics: testMetrics()})
	if _, err := before.CheckCredentials(gold); err != nil {
		t.Fatal(err)
	}
	last, _ := before.LastGood(gold)

	authtest.WriteFile(t, sources.CloudsFile, strings.ReplaceAll(string(good), "s3cr3t", "r0tated"))
	pool := NewPool(PoolOptions{Size: 1, Sources: sources, Metrics: testMetrics(), Kept: map[string][]byte{"gold": last.Kept}})
	zinc := gold
	zinc.Name = "zinc"
	for _, config := range []Config{gold, zinc} {
		if _, err := pool.CheckCredentials(config); err != nil {
			t.Fatal(err)
		}
	}
	authtest.WriteFile(t, sources.CloudsFile, "clouds: [")
	_, _ = pool.Client(t.Context(), gold)
	if in, ok := pool.LastGood(gold); ok && strings.Contains(string(in.Kept), "s3cr3t") {
		t.Error("the password from before the rotation is in use again")
	}
}

func TestUnusableKeptCredentialsAreNamedWithTheFile(t *testing.T) {
	sources := cindertest.NewCloud(t).Clouds(cindertest.PasswordCloud)
	authtest.WriteFile(t, sources.CloudsFile, "clouds: {}")
	pool := NewPool(PoolOptions{Sources: sources, Metrics: testMetrics(), Kept: map[string][]byte{"gold": []byte("hunter2: [")}})
	_, err := pool.Client(t.Context(), gold)
	equal(t, authtest.ErrorText(err), "backend gold: "+sources.CloudsFile+` has no cloud "gold"; it has none; the last good credentials cannot be used either: they are damaged`)
}
