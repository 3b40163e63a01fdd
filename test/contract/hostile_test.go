package contract

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/test/hostile"
	"github.com/standalone-cinder/standalone-cinder/test/sample"
)

// attacked lists the operations of a volume's life, by workflow.
var attacked = map[cinder.Workflow][]string{
	cinder.WorkflowReserve: {"login", "volume.list", "volume.create", "os-reserve", "os-initialize_connection", "os-attach", "volume.get",
		"os-terminate_connection", "os-detach", "os-unreserve", "volume.delete"},
	cinder.WorkflowAttachment: {"version.get", "attachment.create", "attachment.list", "attachment.get", "metadata.update",
		"attachment.complete", "attachment.delete"},
}

// maxHeap is how much the heap may grow under one attack, the attacking server
// included.
const maxHeap = 64 << 20

// TestHostileServerBeforeRealCinder lets the program's lifecycle meet every attack
// at one operation, a different one for each attack. Under attack, each step ends
// in time with an error of the program's own, or succeeds. Afterwards the claim
// gets exactly one volume, and its deletion leaves none. Each attack takes
// seconds, so short mode makes one in twelve.
func TestHostileServerBeforeRealCinder(t *testing.T) {
	attacks := hostile.Attacks()
	if testing.Short() {
		var some []hostile.Attack
		for chunk := range slices.Chunk(attacks, 12) {
			some = append(some, chunk[0])
		}
		attacks = some
	}
	for _, target := range realTargets(t) {
		t.Run(target.Name, func(t *testing.T) {
			target := target.ready(t)
			for i, attack := range attacks {
				if cells := cellsOf(target, attack); len(cells) > 0 {
					t.Run(attack.Name, func(t *testing.T) {
						t.Parallel()
						cells[i%len(cells)].run(t)
					})
				}
			}
		})
	}
}

// TestHostileTable lets the lifecycle meet every attack at every operation of the
// simulator. The attacks come one after the other, so that each can be held to account
// for the memory it takes. FAULT_SAMPLE=3 makes each at a third of the operations.
//
//tier:matrix
func TestHostileTable(t *testing.T) {
	for _, target := range simulatorTargets(t, 0) {
		t.Run(target.Name, func(t *testing.T) {
			target := target.ready(t)
			sampled := sample.New(t)
			for _, attack := range hostile.Attacks() {
				t.Run(attack.Name, func(t *testing.T) {
					taken := heapGrowth(func() {
						t.Run("at", func(t *testing.T) {
							for _, c := range cellsOf(target, attack) {
								if !target.noauth() && c.operation != "login" {
									continue // the same as without Keystone
								}
								if !sampled.Takes(c.operation) {
									continue
								}
								t.Run(c.operation, func(t *testing.T) {
									t.Parallel()
									c.run(t)
								})
							}
						})
					})
					if taken > maxHeap {
						t.Errorf("the heap grew by %d MiB", taken>>20)
					}
				})
			}
		})
	}
}

// cellsOf returns the operations at which an attack can be made.
func cellsOf(target Target, attack hostile.Attack) []cell {
	var cells []cell
	for workflow, operations := range attacked {
		for _, operation := range operations {
			if attack.Suits(operation) && (operation != "login" || !target.noauth()) {
				cells = append(cells, cell{target, attack, workflow, operation})
			}
		}
	}
	slices.SortFunc(cells, func(a, b cell) int { return strings.Compare(a.operation, b.operation) })
	return cells
}

// cell is one attack at one operation.
type cell struct {
	target    Target
	attack    hostile.Attack
	workflow  cinder.Workflow
	operation string
}

func (c cell) run(t *testing.T) {
	front := newFront(t, c.target)
	newPool := func() *backends.Pool {
		return backends.NewPool(backends.PoolOptions{Sources: front.sources(), Metrics: backends.NewMetrics(prometheus.NewRegistry())})
	}
	pool := newPool()
	// A step with a slow answer for each of its requests, and the limits of the
	// listing.
	ctx, cancel := context.WithTimeout(t.Context(), 10*c.target.Wait)
	defer cancel()
	spec := c.spec(t)
	term := func() *backends.Lifecycle { return c.term(ctx, front, pool) }
	lives := term()
	steps := map[string]func(*backends.Lifecycle) error{
		"connect": func(l *backends.Lifecycle) error {
			connected, err := l.Connect(ctx, spec)
			if err == nil && connected.Volume.Name != spec.Name {
				t.Errorf("connected %+v, not the claim's volume", connected.Volume)
			}
			return err
		},
		"complete": func(l *backends.Lifecycle) error { return l.Complete(ctx, c.stored(t, spec), false) },
		"remove":   func(l *backends.Lifecycle) error { return l.Remove(ctx, c.stored(t, spec)) },
	}
	// The volume is connected twice, the second time by the next leader.
	course := []string{"connect", "next", "connect", "complete", "remove"}
	if c.operation == "os-unreserve" || c.operation == "attachment.list" {
		course = []string{"connect", "next", "connect", "remove"}
	}
	front.attack(c.attack, c.operation)
	// A busy Cinder may not answer in time before it comes to the operation.
	for tries := 0; front.used() == 0 && tries < 5; tries++ {
		for _, step := range course {
			if step == "next" {
				lives = term()
				continue
			}
			if step != "connect" && len(c.volumes(t, spec)) == 0 {
				break
			}
			if err := steps[step](lives); err != nil && !isProper(err) {
				t.Errorf("%s under attack: %v", step, err)
			}
		}
	}
	if front.used() == 0 {
		t.Error("the attack was never made")
	}
	front.attack(hostile.Attack{}, "")
	if c.attack.RejectsCredentials(c.operation) {
		// The account waits for a minute or longer; a new process does not.
		pool = newPool()
		lives = term()
	}
	for _, step := range []string{"connect", "complete"} {
		c.insist(t, ctx, step, func() error { return steps[step](lives) })
	}
	if found := c.volumes(t, spec); len(found) != 1 || found[0]["status"] != "in-use" {
		t.Errorf("the claim has %d volumes: %v", len(found), found)
	}
	c.insist(t, ctx, "remove", func() error { return steps["remove"](lives) })
	if found := c.volumes(t, spec); len(found) != 0 {
		t.Errorf("%d volumes are left: %v", len(found), found)
	}
}

// insist repeats a step of the same term as the provisioner does, until it
// succeeds.
func (c cell) insist(t *testing.T, ctx context.Context, step string, try func() error) {
	t.Helper()
	for deadline := time.Now().Add(c.target.Wait); ; time.Sleep(10 * c.target.Poll) {
		err := try()
		switch {
		case err == nil:
			return
		case time.Now().After(deadline) || ctx.Err() != nil:
			t.Fatalf("%s after the attack: %v", step, err)
		}
	}
}

// isProper reports whether an error is one of the program's own that says
// neither that the volume is gone nor that time ran out.
func isProper(err error) bool {
	var failed *cinder.Error
	if !errors.As(err, &failed) || len(err.Error()) > 2000 {
		return false
	}
	return failed.Kind != "" && failed.Kind != cinder.KindNotFound && failed.Kind != cinder.KindOverQuota && failed.Kind != cinder.KindFenced
}

func (c cell) spec(t *testing.T) backends.Spec {
	name := unique(t, "hostile")
	return backends.Spec{
		Name: name, SizeGiB: 1, Type: c.target.Types.ISCSI,
		Stamp:     stamps.Volume{Cluster: "contract", Namespace: "hostile", Claim: name, ClaimUID: name, PV: "pvc-" + name, Tenant: "t", StorageClass: "s"},
		Connector: cinder.Connector{Host: "node1", Initiator: "iqn.2026-01.example:contract"},
	}
}

// stored returns what a PersistentVolume records: the volume that really
// exists.
func (c cell) stored(t *testing.T, spec backends.Spec) backends.Target {
	t.Helper()
	stored := backends.Target{Stamp: spec.Stamp, Connector: spec.Connector, VolumeID: hostile.Someone}
	if found := c.volumes(t, spec); len(found) > 0 {
		stored.VolumeID = found[0]["id"].(string)
	}
	return stored
}

// volumes returns the claim's volumes, asked for without the hostile server.
func (c cell) volumes(t *testing.T, spec backends.Spec) []map[string]any {
	t.Helper()
	return listed(t, c.target.client(), "/volumes/detail?name="+spec.Name)
}

func (c cell) term(ctx context.Context, front *front, pool *backends.Pool) *backends.Lifecycle {
	config, _ := front.target.source(c.target.Project, c.target.account())
	return backends.NewLifecycle(backends.LifecycleOptions{
		Config: backends.Config{
			Name: "gold", Auth: config, Workflow: c.workflow,
			Timeouts: backends.Timeouts{Create: c.target.Wait, Delete: c.target.Wait, Request: c.target.requestTimeout()},
		},
		Pool: pool, Cluster: "contract", Fence: func() error { return nil }, Term: ctx, Logger: slog.New(slog.DiscardHandler),
		Metrics: backends.NewMetrics(prometheus.NewRegistry()), Poll: c.target.Poll,
		// The breaker has tests of its own.
		FailuresToOpen: math.MaxInt,
	})
}

// requestTimeout returns how long a request that no attack slows down may take.
func (target Target) requestTimeout() time.Duration { return target.Wait / 10 }

// heapGrowth returns the most that the heap grows while a function runs.
func heapGrowth(run func()) int64 {
	defer debug.SetGCPercent(debug.SetGCPercent(25))
	heap := func() int64 {
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return int64(stats.HeapAlloc)
	}
	runtime.GC()
	before := heap()
	var highest atomic.Int64
	done := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		for {
			highest.Store(max(highest.Load(), heap()-before))
			select {
			case <-done:
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	})
	run()
	close(done)
	watching.Wait()
	return highest.Load()
}

// TestAttacksAreNamedOnce rejects two attacks with one name, and attacks that
// suit no operation.
func TestAttacksAreNamedOnce(t *testing.T) {
	seen := map[string]bool{}
	for _, attack := range hostile.Attacks() {
		if seen[attack.Name] {
			t.Errorf("two attacks are called %q", attack.Name)
		}
		seen[attack.Name] = true
		if !slices.ContainsFunc(slices.Concat(attacked[cinder.WorkflowReserve], attacked[cinder.WorkflowAttachment]), attack.Suits) {
			t.Errorf("attack %q suits no operation", attack.Name)
		}
	}
	t.Logf("%d attacks", len(seen))
}
