// Command bench measures the provisioner against a real control plane and the
// simulated Cinder, and, in the same run, the limit: the same requests sent by
// a bare loop. Absolute times depend on the machine; quote the ratios.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/controlplane"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

type options struct {
	claims      int
	createDelay time.Duration
	latency     time.Duration
	bindQPS     int
	// streamed is the number of claims of the tenant that the neighbors disturb,
	// pending those that a neighbor has, admitted how many of them are served, and
	// stranded those on each of the two failing backends.
	streamed, pending, admitted, stranded int
	// handOvers is how often the leader is stopped.
	handOvers int
	only      string
}

func main() {
	o := options{}
	flag.IntVar(&o.claims, "claims", 500, "claims created at once")
	flag.DurationVar(&o.createDelay, "create-delay", time.Second, "time from a create to available at the simulated Cinder")
	flag.DurationVar(&o.latency, "latency", 20*time.Millisecond, "latency of every request to the simulated Cinder")
	flag.IntVar(&o.bindQPS, "controller-manager-qps", 2000, "client rate of the controller-manager, which binds the claims")
	flag.IntVar(&o.streamed, "streamed", 60, "claims of the tenant whose neighbors have failing backends")
	flag.IntVar(&o.pending, "pending", 1000, "claims that a neighbor has")
	flag.IntVar(&o.admitted, "admitted", 20, "how many of these its quota admits")
	flag.IntVar(&o.stranded, "stranded", 100, "claims on a backend that never answers, and as many on one that answers 500")
	flag.IntVar(&o.handOvers, "hand-overs", 4, "how often the leader is stopped; it is killed half as often")
	flag.StringVar(&o.only, "only", "", "measure only one thing: throughput, tenancy or handover")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// figures are the measurements of one way of provisioning.
type figures struct {
	name          string
	recorded      time.Duration // until the last PersistentVolume was created
	bound         time.Duration
	gone          time.Duration
	createdBy     float64 // requests to Cinder per claim
	deletedBy     float64
	cpu           float64 // seconds, while provisioning
	resident      int     // MiB, at the end of provisioning
	listsToCreate int
}

func run(ctx context.Context, o options, out io.Writer) error {
	suite, err := harness.StartSuite(ctx, harness.SuiteOptions{
		Log:          os.Stderr,
		ControlPlane: controlplane.Options{ControllerManagerQPS: o.bindQPS},
	})
	if err != nil {
		return err
	}
	defer func() {
		if err := suite.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
		}
	}()
	known := false
	for _, part := range []struct {
		name    string
		measure func(context.Context, *harness.Suite, options, io.Writer) error
	}{{"throughput", throughput}, {"tenancy", tenancy}, {"handover", handOver}} {
		if o.only != "" && o.only != part.name {
			continue
		}
		known = true
		if err := part.measure(ctx, suite, o, out); err != nil {
			return err
		}
	}
	if !known {
		return fmt.Errorf("-only %s: must be throughput, tenancy or handover", o.only)
	}
	return nil
}

// throughput measures many claims at once against the limit.
func throughput(ctx context.Context, suite *harness.Suite, o options, out io.Writer) error {
	fmt.Fprintf(out, "%d claims at once; Cinder takes %s to available and %s per request; controller-manager at %d QPS\n\n",
		o.claims, o.createDelay, o.latency, o.bindQPS)
	var all []figures
	for _, measure := range []func(context.Context, *harness.Suite, options) (figures, error){limit, program} {
		f, err := measure(ctx, suite, o)
		if err != nil {
			return err
		}
		all = append(all, f)
	}
	report(out, all)
	return nil
}

func report(out io.Writer, all []figures) {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\tlast PV created\tall Bound\tdeleted until gone\trequests/claim\trequests/delete\tlistings\tCPU s\tRSS MiB")
	for _, f := range all {
		fmt.Fprintf(table, "%s\t%.1f s\t%.1f s\t%.1f s\t%.2f\t%.2f\t%d\t%.1f\t%d\n", f.name, f.recorded.Seconds(), f.bound.Seconds(), f.gone.Seconds(),
			f.createdBy, f.deletedBy, f.listsToCreate, f.cpu, f.resident)
	}
	base, ours := all[0], all[1]
	fmt.Fprintf(table, "ratio to the limit\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\n", ratio(ours.recorded, base.recorded), ratio(ours.bound, base.bound),
		ratio(ours.gone, base.gone), ours.createdBy/base.createdBy, ours.deletedBy/base.deletedBy)
	_ = table.Flush()
}

func ratio(a, b time.Duration) float64 { return float64(a) / float64(b) }

// scene is one measurement's namespace, class and simulator.
type scene struct {
	suite       *harness.Suite
	sim         *cindersim.Simulator
	namespace   string
	class       string
	provisioner string
}

func newScene(ctx context.Context, suite *harness.Suite, o options, name string) (*scene, error) {
	sim, err := cindersim.New(cindersim.Options{CreateDelay: o.createDelay, DeleteDelay: o.createDelay / 2, Latency: o.latency})
	if err != nil {
		return nil, err
	}
	if err := sim.Start(); err != nil {
		return nil, err
	}
	s := &scene{suite: suite, sim: sim, namespace: "bench-" + name, class: "bench-" + name, provisioner: "bench.example/" + name}
	if err := suite.CreateNamespace(ctx, s.namespace, nil); err != nil {
		return nil, err
	}
	return s, suite.CreateClass(ctx, s.class, s.provisioner, nil)
}

func (s *scene) createClaims(ctx context.Context, n int) error {
	return parallel(ctx, n, 32, func(i int) error {
		_, err := s.suite.CreateClaim(ctx, harness.Claim(s.namespace, fmt.Sprintf("data-%d", i), s.class, "1Gi", nil))
		return err
	})
}

// waitRecorded waits until n PersistentVolumes exist. It uses an informer, so
// that the measurement does not load the API server and survives a watch that
// the server ends.
func (s *scene) waitRecorded(ctx context.Context, n int) error {
	seen := map[string]bool{}
	_, err := watchtools.UntilWithSync(ctx, cache.NewListWatchFromClient(s.suite.Client.CoreV1().RESTClient(), "persistentvolumes", "", fields.Everything()),
		&corev1.PersistentVolume{}, nil, func(event watch.Event) (bool, error) {
			if pv, ok := event.Object.(*corev1.PersistentVolume); ok && pv.Spec.StorageClassName == s.class {
				seen[pv.Name] = true
			}
			return len(seen) >= n, nil
		})
	if err != nil {
		return fmt.Errorf("saw %d of %d PersistentVolumes: %w", len(seen), n, err)
	}
	return nil
}

// requests counts the requests to Cinder, without logins.
func (s *scene) requests() (all, lists int) {
	for operation, n := range s.sim.CountByOperation() {
		if !strings.HasPrefix(operation, "auth.") {
			all += n
		}
		if operation == "volume.list" {
			lists += n
		}
	}
	return all, lists
}

func policyFor(s *scene) string {
	return fmt.Sprintf(`
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
clusterID: bench
backends:
  - name: sim
    auth: {noauth: {endpoint: %q, project: %s}}
    limits: {concurrency: 64}
tenants:
  - name: bench
    namespaces: [%s]
    classes:
      - {storageClasses: [%s], backends: [sim]}
`, s.sim.NoauthEndpoint(), cindersim.DefaultNoauthProject, s.namespace, s.class)
}
