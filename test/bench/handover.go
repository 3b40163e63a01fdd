package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// handOver measures the effect on claims when three replicas, at the program's
// default settings, are stopped, rolled and killed.
func handOver(ctx context.Context, suite *harness.Suite, o options, r *results, out io.Writer) error {
	s, err := newScene(ctx, suite, o, "handover")
	if err != nil {
		return err
	}
	defer s.sim.Close()
	d := &deployment{scene: s}
	defer d.close()
	if err := d.fill(ctx); err != nil {
		return err
	}
	file := func(meanwhile func() error) ([]life, error) {
		times, err := stream{suite: suite, namespace: s.namespace, class: s.class, atLeast: o.streamed, meanwhile: meanwhile}.run(ctx)
		if err != nil {
			return nil, err
		}
		if n, distinct := len(s.sim.Volumes()), len(times); n > distinct {
			return nil, fmt.Errorf("%d volumes for %d claims", n, distinct)
		}
		return times, suite.WaitForNoPersistentVolumes(ctx, s.provisioner)
	}
	fmt.Fprintf(out, "\nthree replicas at default settings, a claim every %s; the leader is stopped %d times, killed %d times, and all three are rolled\n\n", streamPause, o.handOvers, o.handOvers/2)
	quiet, err := file(nil)
	if err != nil {
		return fmt.Errorf("undisturbed: %w", err)
	}
	var stops, kills []time.Duration
	for range o.handOvers {
		took, err := d.change(ctx, func(leader *harness.Replica) error { return leader.Stop(ctx) })
		if err != nil {
			return fmt.Errorf("stopping the leader: %w", err)
		}
		stops = append(stops, took)
	}
	for range o.handOvers / 2 {
		took, err := d.change(ctx, func(leader *harness.Replica) error { leader.Kill(); return nil })
		if err != nil {
			return fmt.Errorf("killing the leader: %w", err)
		}
		kills = append(kills, took)
	}
	rolled, err := file(func() error { return d.roll(ctx) })
	if err != nil {
		return fmt.Errorf("rolling restart: %w", err)
	}

	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "until the next leader requests a volume from Cinder\tmedian\tslowest")
	for _, row := range []struct {
		name, figure string
		times        []time.Duration
	}{{"leader stopped (SIGTERM)", "stopped", stops}, {"leader killed (SIGKILL)", "killed", kills}} {
		slices.Sort(row.times)
		r.setTimes("handover.until_next_volume_seconds."+row.figure, row.times)
		fmt.Fprintf(table, "%s\t%.2f s\t%.2f s\n", row.name, quantile(row.times, 0.5).Seconds(), quantile(row.times, 1).Seconds())
	}
	fmt.Fprintln(table, "time to Bound\tmedian\tslowest")
	for _, row := range []struct {
		name, figure string
		lives        []life
	}{{"undisturbed", "undisturbed", quiet}, {"rolling restart", "rolling_restart", rolled}} {
		took := took(row.lives, filed, bound)
		r.setTimes("handover.time_to_bound_seconds."+row.figure, took)
		fmt.Fprintf(table, "%s (%d claims)\t%.2f s\t%.2f s\n", row.name, len(took), quantile(took, 0.5).Seconds(), quantile(took, 1).Seconds())
	}
	_ = table.Flush()
	before, during := took(quiet, filed, bound), took(rolled, filed, bound)
	r.setRatios("handover.time_to_bound_ratio.rolling_restart", during, before)
	fmt.Fprintf(out, "the rolling restart delayed no claim by more than %.2f s beyond the undisturbed median\n", (quantile(during, 1) - quantile(before, 0.5)).Seconds())
	return nil
}

// deployment is three replicas, like the Deployment's.
type deployment struct {
	*scene
	claims int

	mu       sync.Mutex
	replicas []*harness.Replica
}

func (d *deployment) start(ctx context.Context) (*harness.Replica, error) {
	return d.suite.StartReplica(ctx, harness.ReplicaOptions{Policy: policyFor(d.scene), Provisioner: d.provisioner})
}

// fill brings the number of replicas to three.
func (d *deployment) fill(ctx context.Context) error {
	for {
		d.mu.Lock()
		n := len(d.replicas)
		d.mu.Unlock()
		if n >= 3 {
			_, err := d.leader(ctx)
			return err
		}
		replica, err := d.start(ctx)
		if err != nil {
			return err
		}
		d.mu.Lock()
		d.replicas = append(d.replicas, replica)
		d.mu.Unlock()
	}
}

func (d *deployment) leader(ctx context.Context) (leader *harness.Replica, err error) {
	err = harness.Eventually(ctx, func() (string, error) {
		d.mu.Lock()
		defer d.mu.Unlock()
		for _, replica := range d.replicas {
			if replica.Leads(ctx) {
				leader = replica
				return "", nil
			}
		}
		return "no replica leads", nil
	})
	return leader, err
}

func (d *deployment) drop(replica *harness.Replica) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.replicas = slices.DeleteFunc(d.replicas, func(r *harness.Replica) bool { return r == replica })
}

// change ends the leader, creates a claim at that moment, and returns how long
// it took until the next leader requested its volume from Cinder.
func (d *deployment) change(ctx context.Context, end func(*harness.Replica) error) (time.Duration, error) {
	leader, err := d.leader(ctx)
	if err != nil {
		return 0, err
	}
	d.drop(leader)
	d.sim.ResetJournal()
	started := time.Now()
	ended := make(chan error, 1)
	go func() { ended <- end(leader) }()
	// A moment after the signal to stop, the leader takes no more work; this claim
	// is for its successor.
	time.Sleep(50 * time.Millisecond)
	d.claims++
	if _, err := d.suite.CreateClaim(ctx, harness.Claim(d.namespace, fmt.Sprintf("next-%d", d.claims), d.class, "1Gi", nil)); err != nil {
		return 0, err
	}
	var asked time.Time
	err = harness.Eventually(ctx, func() (string, error) {
		for _, entry := range d.sim.Journal() {
			if entry.Operation == "volume.create" {
				asked = entry.Time
				return "", nil
			}
		}
		return "no leader requests a volume", nil
	})
	if err := errors.Join(err, <-ended); err != nil {
		return 0, err
	}
	if _, err := d.suite.WaitBound(ctx, d.namespace, 1); err != nil {
		return 0, err
	}
	if err := d.suite.DeleteClaims(ctx, d.namespace); err != nil {
		return 0, err
	}
	if err := d.suite.WaitForNoPersistentVolumes(ctx, d.provisioner); err != nil {
		return 0, err
	}
	return asked.Sub(started), d.fill(ctx)
}

// roll replaces every replica with a new one, like a rolling upgrade with
// maxSurge 1: the new one is ready before an old one is stopped.
func (d *deployment) roll(ctx context.Context) error {
	d.mu.Lock()
	old := slices.Clone(d.replicas)
	d.mu.Unlock()
	for _, replica := range old {
		fresh, err := d.start(ctx)
		if err != nil {
			return err
		}
		d.mu.Lock()
		d.replicas = append(d.replicas, fresh)
		d.mu.Unlock()
		d.drop(replica)
		if err := replica.Stop(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (d *deployment) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, replica := range d.replicas {
		replica.Kill()
	}
}
