package backends

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/auth"
	"github.com/standalone-cinder/standalone-cinder/backends/auth/authtest"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder/cindertest"
)

// TestASilentKeystoneOpensEveryBreaker: two backends log in with one account, and
// its Keystone accepts connections but does not answer. While the login of gold
// waits for its answer, those of zinc give up waiting for their turn. That counts
// as "not sent", which says nothing about the backend, so the breaker of zinc does
// not open. While it is closed, claims do not go on to the next backend of their
// rule, and each holds a worker for two request timeouts (2.5 minutes). With many
// backends on one account, most logins end this way whatever the timeouts are.
func TestASilentKeystoneOpensEveryBreaker(t *testing.T) {
	cloud := cindertest.NewCloud(t)
	over, asked := make(chan struct{}), make(chan struct{}, 1)
	cloud.Keystone = func(_ http.ResponseWriter, r *http.Request) {
		select {
		case asked <- struct{}{}:
		default:
		}
		select {
		case <-over:
		case <-r.Context().Done():
		}
	}
	metrics := testMetrics()
	pool := NewPool(PoolOptions{Sources: cloud.Clouds(cindertest.PasswordCloud), Metrics: metrics})
	var group sync.WaitGroup
	t.Cleanup(group.Wait)
	t.Cleanup(func() { close(over) })
	group.Go(func() { _, _ = pool.Client(context.Background(), gold) })
	<-asked

	zinc := Config{Name: "zinc", Auth: gold.Auth, Timeouts: Timeouts{Request: 20 * time.Millisecond}}
	l := NewLifecycle(LifecycleOptions{Config: zinc, Pool: pool, Cluster: "cluster-1", Fence: func() error { return nil }, Term: t.Context(), Logger: discard(), Metrics: metrics})
	var last error
	for range 2 * defaultFailuresToOpen {
		if _, last = l.Volumes(t.Context()); last == nil {
			t.Fatal("a silent Keystone gave a token")
		}
	}
	if l.Health() == nil {
		t.Errorf("%d requests have failed in a row, and the breaker is closed; last failure: %v", 2*defaultFailuresToOpen, last)
	}
}

// TestEarlierKeptCredentialsDoNotReplaceLaterOnes: the pool remembers a bounded
// number of readings. One that is forgotten, and whose file is bad by then, is
// replaced by what was kept when the process started, perhaps months ago: a
// password that was rotated since is sent to Keystone again.
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

// TestOneUserOfManyProjectsIsNotLocked: a service user often has a project for each
// tenant, hence a backend for each. Its password is changed at Keystone. Keystone
// counts failures by user, whatever project they ask for, but logins with
// another project count as another account here: twelve backends send twelve
// wrong passwords at once, and a Keystone that locks after five
// (lockout_failure_attempts) locks the user, also for everybody else.
func TestOneUserOfManyProjectsIsNotLocked(t *testing.T) {
	const projects, lockedAfter = 12, 5
	cloud := cindertest.NewCloud(t)
	cloud.Password = "changed"
	text := "clouds:\n"
	for i := range projects {
		text += fmt.Sprintf("  p%d: {region_name: RegionOne, auth: {auth_url: $URL, username: kube, password: s3cr3t, user_domain_name: Default, project_name: p%d, project_domain_name: Default}}\n", i, i)
	}
	pool := NewPool(PoolOptions{Sources: cloud.Clouds(text), Metrics: testMetrics()})
	for i := range projects {
		name := fmt.Sprintf("p%d", i)
		if _, err := pool.Client(t.Context(), Config{Name: name, Auth: auth.Source{Cloud: name}}); !cinder.IsKind(err, cinder.KindUnauthorized) {
			t.Fatal(err)
		}
	}
	if got := cloud.LoginCount(); got >= lockedAfter {
		t.Errorf("%d logins with one user and a wrong password, and %d lock it", got, lockedAfter)
	}
}
