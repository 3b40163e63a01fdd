package main

import (
	"bufio"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

const (
	recordedFor = 5 * time.Minute
	scrapeEvery = 5 * time.Second
	// A tenant creates a claim every filingPause and deletes it after claimLife.
	filingPause, claimLife = 1500 * time.Millisecond, 30 * time.Second
)

// scraped matches what the dashboard may show; buckets that it does not use would be
// most of the file.
var (
	scraped = regexp.MustCompile(`^(standalone_cinder_|process_|rest_client_|workqueue_depth)`)
	omitted = regexp.MustCompile(`^(standalone_cinder_(provision|delete)|rest_client_request)_duration_seconds_bucket`)
)

// record runs two replicas, two backends and three tenants for some minutes, and writes
// what Prometheus would have scraped. A tenant fills its quota, then a backend fails
// for a minute, then the leader is killed.
func record(ctx context.Context, suite *harness.Suite, o options, out io.Writer) error {
	n, err := newTown(ctx, suite, o)
	if err != nil {
		return err
	}
	defer n.close()
	file, err := os.Create(o.record)
	if err != nil {
		return err
	}
	defer file.Close()
	packed, err := gzip.NewWriterLevel(file, gzip.BestCompression)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "recording for %s\n", recordedFor)

	ctx, stop := context.WithTimeout(ctx, recordedFor)
	defer stop()
	var tenants sync.WaitGroup
	defer tenants.Wait()
	for _, tenant := range townTenants {
		tenants.Go(func() { n.live(ctx, tenant) })
	}
	events := []struct {
		at     time.Duration
		happen func() error
	}{
		{recordedFor / 4, func() error {
			n.broken = n.silver.Inject(cindersim.Fault{Kind: cindersim.RespondBefore, Code: 500})
			return nil
		}},
		{recordedFor / 2, func() error { n.broken.Remove(); return nil }},
		{recordedFor * 3 / 4, func() error { return n.killLeader(ctx) }},
	}
	started, next := time.Now(), time.NewTicker(scrapeEvery)
	defer next.Stop()
	for ctx.Err() == nil {
		if len(events) > 0 && time.Since(started) >= events[0].at {
			if err := events[0].happen(); err != nil {
				return err
			}
			events = events[1:]
		}
		if err := n.scrape(ctx, packed); err != nil {
			return err
		}
		select {
		case <-next.C:
		case <-ctx.Done():
		}
	}
	if err := packed.Close(); err != nil {
		return err
	}
	return file.Close()
}

var townTenants = []string{"team-a", "team-b", "team-c"}

// town is what record records.
type town struct {
	suite        *harness.Suite
	gold, silver *cindersim.Simulator
	broken       *cindersim.Injection
	replicas     map[string]*harness.Replica
	started      int
}

const townProvisioner = "bench.example/record"

func newTown(ctx context.Context, suite *harness.Suite, o options) (*town, error) {
	n := &town{suite: suite, replicas: map[string]*harness.Replica{}}
	for _, sim := range []**cindersim.Simulator{&n.gold, &n.silver} {
		s, err := cindersim.New(cindersim.Options{CreateDelay: o.createDelay, DeleteDelay: o.createDelay / 2, Latency: o.latency})
		if err != nil {
			return nil, err
		}
		if err := s.Start(); err != nil {
			return nil, err
		}
		*sim = s
	}
	for _, tenant := range townTenants {
		if err := suite.CreateNamespace(ctx, tenant, nil); err != nil {
			return nil, err
		}
	}
	if err := suite.CreateClass(ctx, "cinder", townProvisioner, nil); err != nil {
		return nil, err
	}
	for range 2 {
		if err := n.startReplica(ctx); err != nil {
			return nil, err
		}
	}
	return n, nil
}

func (n *town) close() {
	for _, replica := range n.replicas {
		replica.Kill()
	}
	n.gold.Close()
	n.silver.Close()
}

func (n *town) startReplica(ctx context.Context) error {
	replica, err := n.suite.StartReplica(ctx, harness.ReplicaOptions{Clouds: n.gold.CloudsYAML(), Provisioner: townProvisioner, Policy: fmt.Sprintf(`
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
clusterID: recorded
backends:
  - {name: gold, auth: {cloud: team-a}}
  - {name: silver, auth: {noauth: {endpoint: %q, project: %s}}}
tenants:
  - {name: team-a, namespaces: [team-a], quota: {volumes: 50}, classes: [{storageClasses: ["*"], backends: [gold]}]}
  - {name: team-b, namespaces: [team-b], quota: {volumes: 12}, classes: [{storageClasses: ["*"], backends: [gold]}]}
  - {name: team-c, namespaces: [team-c], quota: {volumes: 50}, classes: [{storageClasses: ["*"], backends: [silver]}]}
`, n.silver.NoauthEndpoint(), cindersim.DefaultNoauthProject)})
	if err != nil {
		return err
	}
	n.started++
	n.replicas[fmt.Sprintf("standalone-cinder-%d", n.started)] = replica
	return nil
}

// killLeader kills the leader and starts another replica, as a Deployment does.
func (n *town) killLeader(ctx context.Context) error {
	for pod, replica := range n.replicas {
		if replica.Leads(ctx) {
			replica.Kill()
			delete(n.replicas, pod)
			return n.startReplica(ctx)
		}
	}
	return nil
}

// live creates and deletes a tenant's claims until ctx ends.
func (n *town) live(ctx context.Context, tenant string) {
	next := time.NewTicker(filingPause)
	defer next.Stop()
	claims := n.suite.Client.CoreV1().PersistentVolumeClaims(tenant)
	for i, kept := 0, int(claimLife/filingPause); ctx.Err() == nil; i++ {
		// The end of ctx fails them, and a recording misses nothing by a claim.
		_, _ = n.suite.CreateClaim(ctx, harness.Claim(tenant, fmt.Sprintf("data-%d", i), "cinder", "1Gi", nil))
		if i >= kept {
			_ = claims.Delete(ctx, fmt.Sprintf("data-%d", i-kept), metav1.DeleteOptions{})
		}
		select {
		case <-next.C:
		case <-ctx.Done():
		}
	}
}

// scrape writes the metrics of all replicas, each after a line with its pod and the
// time in milliseconds.
func (n *town) scrape(ctx context.Context, to io.Writer) error {
	for pod, replica := range n.replicas {
		at := time.Now().UnixMilli()
		status, body, err := replica.Get(ctx, "/metrics")
		if err != nil || status != 200 {
			continue // as a target that is down
		}
		if _, err := fmt.Fprintf(to, "# scrape %s %d\n", pod, at); err != nil {
			return err
		}
		lines := bufio.NewScanner(strings.NewReader(body))
		for lines.Scan() {
			if line := lines.Text(); !scraped.MatchString(line) || omitted.MatchString(line) {
				continue
			}
			if _, err := fmt.Fprintln(to, lines.Text()); err != nil {
				return err
			}
		}
		if err := lines.Err(); err != nil {
			return err
		}
	}
	return nil
}
