package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/faultproxy"
)

// TestCrashMatrixOfLostNodes lets the leader die, and requests and answers be lost, late
// or doubled, at every step of a volume's way from a lost node to another one. However
// that goes, no other node gets the volume before the lost one has let go of it, and
// then it gets it.
//
//tier:matrix
func TestCrashMatrixOfLostNodes(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), matrixTime)
	defer cancel()
	dir, err := os.MkdirTemp("", "csi-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := openSite(ctx, t, "csilostcrash", siteOptions{requestTimeout: time.Second, apiPatience: time.Second, sockets: dir})
	c := csiCluster{name: s.name, cluster: "cluster-" + s.name, sim: s.sim, project: cindersim.DefaultNoauthProject, backend: "gold"}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%v\n%s", err, s.news())
		}
	}
	must(suite.AllowCSINodes(ctx, s.provisioner))
	must(c.register(ctx, 2))
	v, err := c.volume(ctx, 0)
	must(err)
	defer func() {
		if err := errors.Join(c.remove(context.Background(), []csiVolume{v}, 2), c.removeMachine(context.Background(), 0)); err != nil {
			t.Error(err)
		}
	}()
	must(s.replace(ctx))

	must(s.useOn(ctx, c, v))
	s.begin()
	must(s.lose(ctx, c, v))
	steps := s.steps()
	must(s.detach(ctx, c, v, 1))
	seen := map[string]int{}
	for _, at := range steps {
		seen[at.what]++
	}
	crashTable{
		site: s, steps: steps, mishaps: attachMishaps, fits: fitsLeader, mayMiss: vary,
		run: func(at step, m mishap) error { return s.loseThrough(ctx, c, v, at, m) },
	}.runAll(t)
	// The end of one record, and the other one.
	ended := slices.ContainsFunc(steps, func(at step) bool { return strings.HasPrefix(at.what, "cinder DELETE volumes/ID/metadata/") })
	if !ended || seen["cinder POST volumes/ID/metadata"] == 0 || seen["cinder DELETE attachments/ID"] == 0 || seen["cinder POST attachments"] == 0 {
		t.Errorf("the undisturbed run has the steps %v", seen)
	}
}

// useOn attaches a volume to the first node, which then stages it.
func (s *site) useOn(ctx context.Context, c csiCluster, v csiVolume) error {
	if err := c.machine(ctx, 0, "boot-1"); err != nil {
		return err
	}
	if err := s.attach(ctx, c, v, 0); err != nil {
		return err
	}
	return c.machine(ctx, 0, "boot-1", v)
}

// lose takes a volume from the node that has it staged, and gives it to the other one
// when the first one has let go of it, and not before.
func (s *site) lose(ctx context.Context, c csiCluster, v csiVolume) error {
	if err := s.persist(ctx, c, v, 0, false); err != nil {
		return err
	}
	if err := errors.Join(s.refuses(ctx, c, v, 1, true), c.onlyOn(v, c.node(0)), c.machine(ctx, 0, "boot-1")); err != nil {
		return err
	}
	return s.attach(ctx, c, v, 1)
}

// refuses repeats a call until it is refused. It must not succeed.
func (s *site) refuses(ctx context.Context, c csiCluster, v csiVolume, n int, publish bool) error {
	for {
		err := s.call(ctx, c, v, n, publish)
		if err == nil {
			return fmt.Errorf("the volume was moved for node %d while the lost one could write to it (publish: %t)", n, publish)
		}
		if status.Code(err) == codes.FailedPrecondition {
			return nil
		}
		if paused := pause(ctx, 50*time.Millisecond); paused != nil {
			return fmt.Errorf("%w; the last call: %w", paused, err)
		}
	}
}

// loseThrough loses a node while a mishap befalls a step. Then the volume goes back and
// forth.
func (s *site) loseThrough(ctx context.Context, c csiCluster, v csiVolume, at step, m mishap) error {
	ctx, cancel := context.WithTimeout(ctx, caseTime)
	defer cancel()
	if err := s.useOn(ctx, c, v); err != nil {
		return fmt.Errorf("before anything went wrong: %w", err)
	}
	trap, reached, err := s.during(ctx, at, m, func(ctx context.Context) error { return s.lose(ctx, c, v) })
	if err == nil && reached && m.verdict == faultproxy.Late {
		s.release()
		if err = wait(ctx, trap.done); err == nil {
			err = s.attach(ctx, c, v, 1)
		}
	}
	if err == nil {
		err = s.detach(ctx, c, v, 1)
	}
	if err == nil {
		err = s.attach(ctx, c, v, 0)
	}
	if err == nil {
		err = s.detach(ctx, c, v, 0)
	}
	if err == nil && !reached {
		err = errNotReached
	}
	return err
}
