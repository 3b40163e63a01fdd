// Package tour is the guided tour that `make demo` runs: it shows what the
// program does with real components, verifies everything it says, and cleans
// up.
package tour

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// Options say where the tour takes place.
type Options struct {
	// Kubeconfig uses an existing cluster instead of a local control plane.
	// Everything made there has unique names and is removed at the end.
	Kubeconfig string
}

// replicaCount is that of the Deployment in deploy/base.
const replicaCount = 3

// logTailLines is how much of each replica's log a failure shows.
const logTailLines = 15

// tour is one run.
type tour struct {
	options Options
	out     *Printer
	names   names
	// abort ends the run with a cause.
	abort context.CancelCauseFunc

	// password is the only secret that is known beforehand.
	password string
	policy   string

	suite    *harness.Suite
	sim      *cindersim.Simulator
	replicas []*replica
	// changed means that there may be something in the cluster to clean up.
	changed bool
	// madeNamespace means that the program's own namespace did not exist before.
	madeNamespace bool
	// built is when everything was compiled and the control plane was running.
	built time.Time
	// filed is how many claims the tenants have created; the failover creates some
	// on a separate goroutine.
	filed atomic.Int64
}

// replica is a replica and what is expected of it.
type replica struct {
	*harness.Replica
	number int
	// dismissed is closed when the replica is meant to end.
	dismissed chan struct{}
}

// Run runs the tour and describes it on out. The error says which expectation
// failed; everything that was started and made is gone by then, even if the
// context ends early.
func Run(ctx context.Context, options Options, out io.Writer) error {
	parent := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	t := &tour{
		options:  options,
		out:      NewPrinter(out, cancel),
		names:    namesOf(""),
		abort:    cancel,
		password: rand.Text(),
	}
	if options.Kubeconfig != "" {
		t.names = namesOf(strings.ToLower(rand.Text()[:6]))
	}
	fmt.Fprintln(out, "A guided tour of standalone-cinder: claims of two tenants become Cinder volumes, whatever happens.")
	err := t.walk(ctx)
	switch {
	case parent.Err() != nil:
		err = context.Cause(parent)
		t.out.Say("")
		t.out.Say("Stopped: %s. Cleaning up%s; a second interrupt leaves at once.", err, t.cleanUpHint())
	case ctx.Err() != nil:
		err = context.Cause(ctx)
		t.showLogs(err)
	case err != nil:
		t.showLogs(err)
	default:
		t.out.Step("The end")
	}
	toured := time.Since(t.built)
	if left := t.tearDown(context.WithoutCancel(ctx)); left != nil || err != nil {
		if left == nil && t.changed && t.names.id != "" {
			t.out.Say("Your cluster is as it was.")
		}
		return errors.Join(err, left)
	}
	t.out.Say("All processes and temporary files are gone%s.", t.cleanUpDone())
	t.out.Say("Building and starting took %.0f s, the tour %.0f s.", t.built.Sub(t.out.started).Seconds(), toured.Seconds())
	return nil
}

func (t *tour) walk(ctx context.Context) error {
	for _, step := range []func(context.Context) error{
		t.startServers,
		t.showPolicy,
		t.startReplicas,
		t.provision,
		t.deny,
		t.failOver,
		t.deleteAll,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (t *tour) cleanUpDone() string {
	if t.names.id != "" {
		return ", and so are the tour's objects in your cluster"
	}
	return ""
}

func (t *tour) cleanUpHint() string {
	if t.changed && t.names.id != "" {
		return " (up to a minute, to restore the cluster)"
	}
	return ""
}

// showLogs shows what failed and the last lines of the replicas' logs.
func (t *tour) showLogs(err error) {
	t.out.Say("")
	t.out.Say("NOT AS EXPECTED: %s", strings.SplitN(err.Error(), "\n", 2)[0])
	for _, r := range t.replicas {
		lines := slices.DeleteFunc(strings.Split(strings.TrimRight(r.Log(), "\n"), "\n"), isDetail)
		lines = lines[max(0, len(lines)-logTailLines):]
		t.out.Say("replica %d logged last:", r.number)
		t.out.Quote(strings.Join(lines, "\n"))
	}
}

// isDetail reports whether a log line is a library's detail, not an event of
// the program.
func isDetail(line string) bool { return strings.Contains(line, `"level":"DEBUG`) }

// start starts one more replica, and fails the tour if it exits by itself.
func (t *tour) start(ctx context.Context) error {
	number := len(t.replicas) + 1
	started, err := t.suite.StartReplica(ctx, harness.ReplicaOptions{
		Policy:      t.policy,
		Clouds:      t.sim.CloudsYAML(),
		Provisioner: t.names.provisioner,
	})
	if err != nil {
		return fmt.Errorf("replica %d does not start: %w", number, err)
	}
	r := &replica{Replica: started, number: number, dismissed: make(chan struct{})}
	t.replicas = append(t.replicas, r)
	go func() {
		select {
		case <-r.dismissed:
		case <-r.Exited():
			select {
			case <-r.dismissed:
			default:
				t.abort(fmt.Errorf("replica %d exited by itself", number))
			}
		}
	}()
	return nil
}

func (r *replica) dismiss() {
	select {
	case <-r.dismissed:
	default:
		close(r.dismissed)
	}
}

func (r *replica) running() bool {
	select {
	case <-r.Exited():
		return false
	default:
		return true
	}
}

// leader waits until exactly one of the running replicas leads.
func (t *tour) leader(ctx context.Context, seconds int) (*replica, error) {
	ctx, cancel := within(ctx, seconds)
	defer cancel()
	var leader *replica
	err := harness.Eventually(ctx, func() (string, error) {
		var leaders []*replica
		for _, r := range t.replicas {
			if r.running() && r.Leads(ctx) {
				leaders = append(leaders, r)
			}
		}
		if len(leaders) != 1 {
			return fmt.Sprintf("%d replicas lead", len(leaders)), nil
		}
		leader = leaders[0]
		return "", nil
	})
	if err != nil {
		return nil, fmt.Errorf("no single replica leads after %d s: %w", seconds, err)
	}
	return leader, nil
}

// within bounds one wait; normally none takes nearly as long.
func within(ctx context.Context, seconds int) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, time.Duration(seconds)*time.Second)
}
