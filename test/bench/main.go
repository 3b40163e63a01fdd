// Command bench measures the provisioner against a real control plane and the
// simulated Cinder, and, in the same run, the limit: the same requests sent by
// a bare loop. Absolute times depend on the machine; quote the ratios.
// docs/explanation/sizing.md explains what it prints.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/controlplane"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

type options struct {
	claims int
	// rounds is how often these claims are made and deleted again, replicas how many
	// of the program run.
	rounds, replicas int
	createDelay      time.Duration
	latency          time.Duration
	bindQPS          int
	// streamed is the number of claims of the tenant that the neighbors disturb,
	// pending those that a neighbor has, admitted how many of them are served, and
	// stranded those on each of the two failing backends.
	streamed, pending, admitted, stranded int
	// handOvers is how often the leader is stopped.
	handOvers int
	// attached is how many volumes in mode csi are attached at once, and exportDelay
	// how long Cinder takes to export one to a node.
	attached    int
	exportDelay time.Duration
	only        string
	// claimPolicy means that claims have the provisioner's name when they are created.
	claimPolicy bool
	// pods is a file with the waits of pods on real kubelets.
	pods string
	// json, svg and record are the files to write; empty means none.
	json, svg, record string
}

// fewClaims is the smallest number of claims for a measurement: a single one says
// more about the moment than about the program.
const fewClaims = 10

// complete fills in what was left open, and reports what makes no sense.
func (o *options) complete() error {
	if o.claims < 1 || o.rounds < 0 || o.replicas < 1 || o.handOvers < 1 || o.attached < 1 {
		return errors.New("-claims, -replicas, -hand-overs and -attached must be positive, and -rounds must not be negative")
	}
	if o.rounds == 0 {
		o.rounds = (fewClaims + o.claims - 1) / o.claims
	}
	if o.svg != "" && o.only != "" && o.only != "throughput" {
		return fmt.Errorf("-svg shows the throughput, which -only %s leaves out", o.only)
	}
	return nil
}

func main() {
	o := options{}
	flag.IntVar(&o.claims, "claims", 500, "claims created at once")
	flag.IntVar(&o.rounds, "rounds", 0, "how often they are created and deleted; 0 is once, or often enough for 10 claims")
	flag.IntVar(&o.replicas, "replicas", 3, "replicas of the program; one leads")
	flag.DurationVar(&o.createDelay, "create-delay", time.Second, "time from a create to available at the simulated Cinder")
	flag.DurationVar(&o.latency, "latency", 20*time.Millisecond, "latency of every request to the simulated Cinder")
	flag.IntVar(&o.bindQPS, "controller-manager-qps", 2000, "client rate of the controller-manager, which binds the claims")
	flag.IntVar(&o.streamed, "streamed", 60, "claims of the tenant whose neighbors have failing backends")
	flag.IntVar(&o.pending, "pending", 1000, "claims that a neighbor has")
	flag.IntVar(&o.admitted, "admitted", 20, "how many of these its quota admits")
	flag.IntVar(&o.stranded, "stranded", 100, "claims on a backend that never answers, and as many on one that answers 500")
	flag.IntVar(&o.handOvers, "hand-overs", 4, "how often the leader is stopped; it is killed half as often")
	flag.IntVar(&o.attached, "attached", 50, "volumes in mode csi attached at once")
	flag.DurationVar(&o.exportDelay, "export-delay", time.Second, "time that the simulated Cinder takes to export a volume to a node")
	flag.BoolVar(&o.claimPolicy, "claim-policy", false, "install the component claim-policy for the throughput")
	flag.StringVar(&o.only, "only", "", "measure only one thing: throughput, tenancy, handover, attach or pods")
	flag.StringVar(&o.pods, "pods", "", "`file` that TestHowLongPodsWait of test/e2e wrote, for the figures and the chart")
	flag.StringVar(&o.json, "json", "", "`file` for all figures and ratios")
	flag.StringVar(&o.svg, "svg", "", "`file` for a chart of the throughput")
	flag.StringVar(&o.record, "record", "", "measure nothing, but record metrics of five minutes in a `file`, for the dashboard's picture")
	flag.Parse()
	if err := o.complete(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options, out io.Writer) error {
	suite, err := harness.StartSuite(ctx, harness.SuiteOptions{
		Log:          os.Stderr,
		Attacher:     o.only == "" || o.only == "attach",
		ControlPlane: controlplane.Options{ControllerManagerQPS: o.bindQPS, AuditPolicy: auditPolicy},
	})
	if err != nil {
		return err
	}
	defer func() {
		if err := suite.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
		}
	}()
	if o.record != "" {
		return record(ctx, suite, o, out)
	}
	known, r := false, newResults(o)
	for _, part := range []struct {
		name    string
		measure func(context.Context, *harness.Suite, options, *results, io.Writer) error
	}{{"throughput", throughput}, {"tenancy", tenancy}, {"handover", handOver}, {"attach", attach}, {"pods", pods}} {
		if o.only != "" && o.only != part.name {
			continue
		}
		known = true
		if err := part.measure(ctx, suite, o, r, out); err != nil {
			return err
		}
	}
	if !known {
		return fmt.Errorf("-only %s: must be throughput, tenancy, handover, attach or pods", o.only)
	}
	if o.json == "" {
		return nil
	}
	return r.write(o.json)
}

// scene is one measurement's namespace, class and simulator.
type scene struct {
	suite       *harness.Suite
	sim         *cindersim.Simulator
	observer    *observer
	namespace   string
	class       string
	provisioner string
	// mode is that of the volumes; empty is native.
	mode string
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
	s.observer = observe(ctx, suite, s.namespace, s.class)
	return s, suite.CreateClass(ctx, s.class, s.provisioner, nil)
}

// createClaims creates claims whose names have a prefix.
func (s *scene) createClaims(ctx context.Context, prefix string, n int) ([]*corev1.PersistentVolumeClaim, error) {
	claims := make([]*corev1.PersistentVolumeClaim, n)
	return claims, parallel(ctx, n, 32, func(i int) (err error) {
		at := time.Now()
		claims[i], err = s.suite.CreateClaim(ctx, harness.Claim(s.namespace, fmt.Sprintf("%s-%d", prefix, i), s.class, "1Gi", nil))
		if err == nil {
			s.observer.note(claims[i].UID, filed, at)
		}
		return err
	})
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
	mode := ""
	if s.mode != "" {
		mode = "\n    mode: " + s.mode
	}
	return fmt.Sprintf(`
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
clusterID: bench
backends:
  - name: sim
    auth: {noauth: {endpoint: %q, project: %s}}
    limits: {concurrency: 64}%s
tenants:
  - name: bench
    namespaces: [%s]
    classes:
      - {storageClasses: [%s], backends: [sim]}
`, s.sim.NoauthEndpoint(), cindersim.DefaultNoauthProject, mode, s.namespace, s.class)
}
