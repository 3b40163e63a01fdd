package integration

import (
	"context"
	"errors"
	"time"

	"github.com/standalone-cinder/standalone-cinder/test/faultproxy"
)

// mishap is what happens to a step. test/simulate does it to all that replicas do; here it
// befalls commands, sidecars and what else needs processes.
type mishap struct {
	name    string
	verdict faultproxy.Verdict
	// kill ends the replica that made the request, abandon deletes the claim; both while the
	// request, or its answer, is held.
	kill, abandon bool
}

// attachMishaps are what happens to each step of an attachment and its end.
var attachMishaps = []mishap{
	{name: "killed before", verdict: faultproxy.HoldBefore, kill: true},
	{name: "killed after", verdict: faultproxy.HoldAfter, kill: true},
	{name: "request lost", verdict: faultproxy.LoseBefore},
	{name: "answer lost", verdict: faultproxy.LoseAfter},
	{name: "late", verdict: faultproxy.Late},
	{name: "twice", verdict: faultproxy.Twice},
}

// befalls reports whether a mishap makes sense for a step.
func (m mishap) befalls(at step) bool {
	if !at.reads() {
		return true
	}
	// It matters only to the sender whether, when and how often a read was
	// performed.
	switch m.verdict {
	case faultproxy.LoseAfter, faultproxy.Late, faultproxy.Twice:
		return false
	case faultproxy.HoldAfter:
		return !m.kill
	}
	return true
}

const (
	// matrixTime bounds the whole matrix, caseTime every wait of one case. What a
	// late request left is noticed 15 s or 90 s after a term begins; a slow machine
	// is no finding.
	matrixTime = 20 * time.Minute
	caseTime   = 150 * time.Second
	// attempts is how often a case is begun if its step is not reached: not
	// every run takes every step.
	attempts = 3
)

// errNotReached means that a run did not take the step that was to fail.
var errNotReached = errors.New("the step was not reached")

// reaches waits until the trap has caught the step, and reports false if the
// phase passes without it.
func (s *site) reaches(ctx context.Context, t *trap, goal func(context.Context) error) (bool, error) {
	caught := t.caught()
	ctx, cancel := context.WithTimeout(ctx, caseTime)
	defer cancel()
	passed := make(chan error, 1)
	go func() {
		err := goal(ctx)
		// The last step may come after the last change.
		_ = pause(ctx, time.Second)
		passed <- err
	}()
	select {
	case <-caught:
		cancel()
		<-passed
		return true, nil
	case err := <-passed:
		select {
		case <-caught:
			return true, nil
		default:
			return false, err
		}
	}
}

// replace sees to it that there are two replicas again.
func (s *site) replace(ctx context.Context) error {
	for len(s.living()) < 2 {
		if _, err := s.start(ctx); err != nil {
			return err
		}
	}
	return nil
}

// wait waits for a channel.
func wait(ctx context.Context, until <-chan struct{}) error {
	select {
	case <-until:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// pause waits for a while.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
