package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// neighbors share the program with the quiet tenant: a backend that never
// answers and one that answers everything with 500, each with claims of its
// own, and a tenant with many pending claims on the quiet tenant's backend.
type neighbors struct {
	suite                  *harness.Suite
	healthy, black, broken *cindersim.Simulator
	provisioner            string
	replica                *harness.Replica
	clouds                 string
	options                options
}

func newNeighbors(ctx context.Context, suite *harness.Suite, o options) (*neighbors, error) {
	n := &neighbors{suite: suite, provisioner: "bench.example/tenancy", options: o}
	for _, sim := range []**cindersim.Simulator{&n.healthy, &n.black, &n.broken} {
		s, err := cindersim.New(cindersim.Options{CreateDelay: o.createDelay, DeleteDelay: o.createDelay / 2, Latency: o.latency})
		if err != nil {
			return nil, err
		}
		if err := s.Start(); err != nil {
			return nil, err
		}
		*sim = s
	}
	for _, tenant := range []string{"quiet", "noisy", "black", "broken", "late"} {
		if err := suite.CreateNamespace(ctx, "bench-"+tenant, nil); err != nil {
			return nil, err
		}
	}
	if err := suite.CreateClass(ctx, "bench-tenancy", n.provisioner, nil); err != nil {
		return nil, err
	}
	n.clouds = n.healthy.CloudsYAML()
	var err error
	n.replica, err = suite.StartReplica(ctx, harness.ReplicaOptions{Policy: n.policy(0), Clouds: n.clouds, Provisioner: n.provisioner})
	if err != nil {
		return nil, err
	}
	return n, harness.Eventually(ctx, func() (string, error) {
		if n.replica.Leads(ctx) {
			return "", nil
		}
		return "the replica does not lead", nil
	})
}

func (n *neighbors) close() {
	n.replica.Kill()
	for _, sim := range []*cindersim.Simulator{n.healthy, n.black, n.broken} {
		sim.Close()
	}
}

// policy gives tenant late this many volumes.
func (n *neighbors) policy(late int) string {
	return fmt.Sprintf(`
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
clusterID: bench-tenancy
backends:
  - {name: healthy, auth: {cloud: team-a}}
  - {name: black, auth: {noauth: {endpoint: %q, project: %s}}}
  - {name: broken, auth: {noauth: {endpoint: %q, project: %s}}}
tenants:
  - {name: quiet, namespaces: [bench-quiet], classes: [{storageClasses: ["*"], backends: [healthy]}]}
  - {name: noisy, namespaces: [bench-noisy], quota: {volumes: %d}, classes: [{storageClasses: ["*"], backends: [healthy]}]}
  - {name: black, namespaces: [bench-black], classes: [{storageClasses: ["*"], backends: [black]}]}
  - {name: broken, namespaces: [bench-broken], classes: [{storageClasses: ["*"], backends: [broken]}]}
  - {name: late, namespaces: [bench-late], quota: {volumes: %d}, classes: [{storageClasses: ["*"], backends: [healthy]}]}
`, n.black.NoauthEndpoint(), cindersim.DefaultNoauthProject, n.broken.NoauthEndpoint(), cindersim.DefaultNoauthProject, n.options.admitted, late)
}

// tenancy measures how much other tenants' failures, a reload and a rotation of
// credentials affect one tenant.
func tenancy(ctx context.Context, suite *harness.Suite, o options, r *results, out io.Writer) error {
	n, err := newNeighbors(ctx, suite, o)
	if err != nil {
		return err
	}
	defer n.close()
	fmt.Fprintf(out, "\na quiet tenant creates %d claims, one every %s; the neighbors: %d claims on a backend that never answers, %d on one that answers 500,\nand a tenant with %d claims on the quiet tenant's backend, %d of which its quota admits\n\n",
		o.streamed, streamPause, o.stranded, o.stranded, o.pending, o.admitted)

	alone, err := n.stream(ctx, o.streamed, nil)
	if err != nil {
		return fmt.Errorf("alone: %w", err)
	}
	rotated, err := n.stream(ctx, o.streamed, func() error {
		if err := n.healthy.SetPassword("team-a", "team-a-new-pass"); err != nil {
			return err
		}
		return n.replica.WriteClouds(strings.ReplaceAll(n.clouds, "team-a-pass", "team-a-new-pass"))
	})
	if err != nil {
		return fmt.Errorf("rotation: %w", err)
	}
	failed := strings.Count(n.replica.Log(), `"reason":"ProvisioningFailed"`)
	reloaded, err := n.reload(ctx)
	if err != nil {
		return fmt.Errorf("reload: %w", err)
	}
	if err := n.trouble(ctx, o); err != nil {
		return err
	}
	disturbed, err := n.stream(ctx, o.streamed, nil)
	if err != nil {
		return fmt.Errorf("with failing neighbors: %w", err)
	}

	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "time to Bound\tmedian\tp95\tslowest")
	for _, row := range []struct {
		name, figure string
		times        []time.Duration
	}{{"alone", "alone", alone}, {"password rotated meanwhile", "rotated", rotated}, {"failing neighbors", "failing_neighbors", disturbed}} {
		r.setTimes("tenancy.time_to_bound_seconds."+row.figure, row.times)
		fmt.Fprintf(table, "%s\t%.2f s\t%.2f s\t%.2f s\n", row.name, quantile(row.times, 0.5).Seconds(), quantile(row.times, 0.95).Seconds(), quantile(row.times, 1).Seconds())
	}
	for _, row := range []struct {
		name, figure string
		times        []time.Duration
	}{{"rotated", "rotated", rotated}, {"failing neighbors", "failing_neighbors", disturbed}} {
		ratios := r.setRatios("tenancy.time_to_bound_ratio."+row.figure, row.times, alone)
		fmt.Fprintf(table, "ratio, %s to alone\t%.2f\t%.2f\t%.2f\n", row.name, ratios[0], ratios[1], ratios[2])
	}
	_ = table.Flush()
	r.set("tenancy.claims_failed_during_rotation", float64(failed))
	r.set("tenancy.reload_until_bound_seconds", reloaded.Seconds())
	r.set("tenancy.reload_until_bound_ratio", ratio(reloaded, quantile(alone, 0.5)))
	fmt.Fprintf(out, "claims that failed during the rotation: %d\na reload admits a denied claim: Bound %.2f s after the change of the file (%.2f of an ordinary claim's median)\n",
		failed, reloaded.Seconds(), ratio(reloaded, quantile(alone, 0.5)))
	return nil
}

// trouble starts the neighbors' failures, and waits until each neighbor has
// claims with an event that says why they wait.
func (n *neighbors) trouble(ctx context.Context, o options) error {
	n.black.BlackHole()
	n.broken.Inject(cindersim.Fault{Kind: cindersim.RespondBefore, Code: 500})
	for tenant, claims := range map[string]int{"black": o.stranded, "broken": o.stranded, "noisy": o.pending} {
		if err := parallel(ctx, claims, 32, func(i int) error {
			_, err := n.suite.CreateClaim(ctx, harness.Claim("bench-"+tenant, fmt.Sprintf("data-%d", i), "bench-tenancy", "1Gi", nil))
			return err
		}); err != nil {
			return err
		}
	}
	return harness.Eventually(ctx, func() (string, error) {
		claims, err := n.suite.Client.CoreV1().PersistentVolumeClaims("bench-noisy").List(ctx, metav1.ListOptions{})
		if err != nil {
			return "", err
		}
		bound := 0
		for _, claim := range claims.Items {
			if claim.Status.Phase == corev1.ClaimBound {
				bound++
			}
		}
		if want := min(o.admitted, o.pending); bound < want {
			return fmt.Sprintf("%d of the noisy tenant's claims are bound, want %d", bound, want), nil
		}
		return "", nil
	})
}

// reload creates a claim that the quota denies, raises the quota, and returns
// how long it took from there until the claim was Bound.
func (n *neighbors) reload(ctx context.Context) (time.Duration, error) {
	if _, err := n.suite.CreateClaim(ctx, harness.Claim("bench-late", "data", "bench-tenancy", "1Gi", nil)); err != nil {
		return 0, err
	}
	if _, err := n.suite.WaitEvent(ctx, "bench-late", "data", "QuotaExceeded", ""); err != nil {
		return 0, err
	}
	started := time.Now()
	if err := n.replica.WritePolicy(n.policy(1)); err != nil {
		return 0, err
	}
	_, err := n.suite.WaitBound(ctx, "bench-late", 1)
	return time.Since(started), err
}

// stream creates claims of the quiet tenant at a steady rate, runs something
// halfway through, and returns how long each claim took to be Bound. It deletes
// the claims afterwards.
func (n *neighbors) stream(ctx context.Context, count int, meanwhile func() error) ([]time.Duration, error) {
	lives, err := stream{suite: n.suite, namespace: "bench-quiet", class: "bench-tenancy", atLeast: count, meanwhile: meanwhile}.run(ctx)
	if err != nil {
		return nil, err
	}
	return took(lives, filed, bound), harness.Eventually(ctx, func() (string, error) {
		for _, v := range n.healthy.Volumes() {
			if v.Metadata["standalone-cinder.openstack.org/tenant"] == "quiet" {
				return "volume " + v.Name + " is still there", nil
			}
		}
		return "", nil
	})
}
