package backends

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/auth"
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
