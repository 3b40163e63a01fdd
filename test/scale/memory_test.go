// Package scale measures replicas in clusters that are too large for a test's
// control plane to fill in reasonable time.
package scale

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// TestHandOverAtTwentyThousandVolumes makes a follower take over a cluster of
// 20,000 PersistentVolumes with waiting claims, and measures its peak memory
// until the end of its first audit. It runs as in deploy/base.
//
//tier:matrix
func TestHandOverAtTwentyThousandVolumes(t *testing.T) {
	if testing.Short() {
		t.Skip("starts the program and fills a cluster")
	}
	const (
		served  = 20_000
		pending = 500
		// In MiB, of the container's 512. On two processors, 236 to 259 were
		// measured.
		most = 290
	)
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	sim, err := cindersim.New(cindersim.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := sim.Start(); err != nil {
		t.Fatal(err)
	}
	defer sim.Close()
	server := startAPIServer()
	defer server.close()
	prepare(server)
	for i := range served {
		if err := serve(server, sim, i); err != nil {
			t.Fatal(err)
		}
	}
	giveUp := server.holdLease(harness.Namespace, strings.ReplaceAll(provisioner, "/", "-"))
	kubeconfig, err := server.kubeconfig(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	suite, err := harness.StartSuite(ctx, harness.SuiteOptions{Kubeconfig: kubeconfig})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := suite.Stop(); err != nil {
			t.Error(err)
		}
	}()
	profiles := newProfiles(t)
	started := time.Now()
	replica, err := suite.StartReplica(ctx, harness.ReplicaOptions{
		Policy: policyFor(sim, 10*time.Second), Provisioner: provisioner, Arguments: append(deployed(t), profiles.arguments()...),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer replica.Kill()
	ready := time.Since(started)
	follower := peak(t, replica)
	profiles.take(t, "follower")

	for i := range pending {
		// Of every other tenant: of those on the large backend, and of others.
		server.put("persistentvolumeclaims", claimOf(served+2*i, uuid.NewString()))
	}
	began := time.Now()
	giveUp()
	var first time.Duration
	until(ctx, t, func() string {
		bound := server.bound()
		if bound > served && first == 0 {
			first = time.Since(began)
		}
		if bound < served+pending {
			return fmt.Sprintf("%d of %d claims are bound", bound, served+pending)
		}
		return ""
	})
	bound, serving := time.Since(began), peak(t, replica)
	profiles.take(t, "new-leader")
	until(ctx, t, func() string {
		// A page of metrics takes megabytes, and Prometheus asks for one far less often.
		time.Sleep(time.Second)
		_, metrics, err := replica.Get(ctx, "/metrics")
		if err != nil {
			return err.Error()
		}
		for _, line := range strings.Split(metrics, "\n") {
			if strings.HasPrefix(line, "standalone_cinder_audit_timestamp_seconds ") {
				return ""
			}
		}
		return "no audit is done"
	})
	audited := time.Since(began)
	leader := peak(t, replica)
	profiles.take(t, "audited")
	t.Logf("%d PersistentVolumes in %d namespaces of %d tenants, on %d backends: a follower was ready after %.1f s and needed %d MiB, a new leader needed %d MiB until it had served all claims, %d in all, and then has %d; of %d claims the first was bound after %.1f s and the last after %.1f s, and an audit was done after %.1f s",
		served, namespaces, tenants, servers, ready.Seconds(), follower, serving, leader, memory(t, replica, "VmRSS:"), pending, first.Seconds(), bound.Seconds(), audited.Seconds())
	if leader > most {
		t.Errorf("a new leader needed %d MiB, more than %d", leader, most)
	}
	if err := replica.Stop(ctx); err != nil {
		t.Error(err)
	}
}

// deployed returns what the Deployment says about memory.
func deployed(t *testing.T) []string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("..", "..", "deploy", "base", "deployment.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var deployment appsv1.Deployment
	if err := yaml.Unmarshal(content, &deployment); err != nil {
		t.Fatal(err)
	}
	container := deployment.Spec.Template.Spec.Containers[0]
	if !slices.Contains(container.Args, "--memory-limit=$(MEMORY_LIMIT)") {
		t.Fatalf("the Deployment does not tell the program its memory limit: %s", container.Args)
	}
	return []string{"--memory-limit=" + container.Resources.Limits.Memory().String()}
}

func until(ctx context.Context, t *testing.T, condition func() string) {
	t.Helper()
	if err := harness.Eventually(ctx, func() (string, error) { return condition(), nil }); err != nil {
		t.Fatal(err)
	}
}

// heaps is a directory for profiles of the heap.
var heaps = flag.String("heaps", "", "`directory` for profiles of the replica's heap as a follower, as a new leader, and after an audit")

// profiles takes heap profiles of a replica; nil if none are wanted.
type profiles struct{ address string }

func newProfiles(t *testing.T) *profiles {
	t.Helper()
	if *heaps == "" {
		return nil
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer free.Close()
	return &profiles{free.Addr().String()}
}

func (p *profiles) arguments() []string {
	if p == nil {
		return nil
	}
	return []string{"--pprof-address=" + p.address}
}

// take writes a profile of what is alive.
func (p *profiles) take(t *testing.T, name string) {
	t.Helper()
	if p == nil {
		return
	}
	answer, err := http.Get("http://" + p.address + "/debug/pprof/heap?gc=1")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	file, err := os.Create(filepath.Join(*heaps, name+".pprof"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := io.Copy(file, answer.Body); err != nil {
		t.Fatal(err)
	}
}

// peak returns a replica's peak memory, in MiB.
func peak(t *testing.T, replica *harness.Replica) int {
	t.Helper()
	return memory(t, replica, "VmHWM:")
}

// memory returns a replica's memory, in MiB, as proc(5) names it.
func memory(t *testing.T, replica *harness.Replica, kind string) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", replica.PID()))
	if err != nil {
		t.Skip("only Linux tells the memory of a process: ", err)
	}
	for _, line := range strings.Split(string(status), "\n") {
		if value, ok := strings.CutPrefix(line, kind); ok {
			kib, err := strconv.Atoi(strings.Fields(value)[0])
			if err != nil {
				t.Fatal(err)
			}
			return kib / 1024
		}
	}
	t.Fatalf("no %s in %s", kind, status)
	return 0
}
