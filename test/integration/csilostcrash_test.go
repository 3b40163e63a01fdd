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
	"github.com/standalone-cinder/standalone-cinder/test/sample"
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
	defer os.RemoveAll(dir)
	s, err := newSite(ctx, "csilostcrash", siteOptions{requestTimeout: time.Second, apiPatience: time.Second, sockets: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	}()
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
	sampled := sample.New(t)
	seen := map[string]int{}
	for _, at := range steps {
		seen[at.what]++
		for _, m := range attachMishaps {
			if !m.befalls(provisioning, at) || !sampled.Takes(at.what) {
				continue
			}
			t.Run(fmt.Sprintf("%s/%s", at, m.name), func(t *testing.T) {
				err := s.loseThrough(ctx, c, v, at, m)
				switch {
				case errors.Is(err, errNotReached):
					t.Log("this run did not take the step")
				case err != nil:
					t.Errorf("%v\n%s", err, s.news())
				}
				s.news()
			})
		}
	}
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
	s.begin()
	t := s.set(at, m.verdict)
	caught := t.caught()
	done := make(chan error, 1)
	go func() { done <- s.lose(ctx, c, v) }()
	var err error
	reached := true
	select {
	case <-caught:
		if m.kill {
			s.kill(t.by)
		}
		err = errors.Join(s.replace(ctx), <-done)
	case err = <-done:
		select {
		case <-caught:
		default:
			reached = false
		}
	}
	if err == nil && reached && m.verdict == faultproxy.Late {
		s.release()
		if err = wait(ctx, t.done); err == nil {
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
