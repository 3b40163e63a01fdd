package integration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/test/sample"
)

// crashTable lets every mishap befall every step of what a site does, one case after the
// other.
type crashTable struct {
	// name begins the names of the cases; it may be empty.
	name    string
	site    *site
	steps   []step
	mishaps []mishap
	// must are steps that an undisturbed run takes.
	must []string
	// fits reports whether a mishap makes sense for a step; nil means that each does.
	fits func(m mishap, at step) bool
	// mayMiss reports whether a run may do without the step; nil means that none may.
	mayMiss func(at step) bool
	// first ends the table at the first failure, if what is left there would only fail the
	// next case.
	first bool
	// run does it all. If nothing befell, the error is errNotReached.
	run func(at step, m mishap) error
}

func (c crashTable) runAll(t *testing.T) {
	t.Helper()
	for _, what := range c.must {
		if !slices.Contains(c.steps, step{what, 1}) {
			t.Errorf("the undisturbed run has no step %q: %q", what, c.steps)
		}
	}
	sampled := sample.New(t)
	for _, at := range c.steps {
		for _, m := range c.mishaps {
			if (c.fits == nil || c.fits(m, at)) && sampled.Takes(at.what) {
				c.runOne(t, at, m)
			}
			if c.first && t.Failed() {
				return
			}
		}
	}
}

func (c crashTable) runOne(t *testing.T, at step, m mishap) {
	t.Helper()
	t.Run(fmt.Sprintf("%s%s/%s", c.name, at, m.name), func(t *testing.T) {
		err := c.run(at, m)
		switch {
		case errors.Is(err, errNotReached) && c.mayMiss != nil && c.mayMiss(at):
			t.Log("this run did not take the step")
		case err != nil:
			t.Errorf("%v\n%s", err, c.site.news())
		}
		c.site.news()
	})
}

// vary is for steps of which an undisturbed run need not take the same ones.
func vary(step) bool { return true }

// fitsLeader reports whether a mishap makes sense for a step of a leader.
func fitsLeader(m mishap, at step) bool { return m.befalls(at) }

// openSite makes a site that lasts until the test ends.
func openSite(ctx context.Context, t *testing.T, name string, options siteOptions) *site {
	t.Helper()
	s, err := newSite(ctx, name, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// during makes a change while a mishap befalls a step of it, if there is one. If the
// leader dies, another follows. reached reports whether the change took the step.
func (s *site) during(ctx context.Context, at step, m mishap, change func(context.Context) error) (t *trap, reached bool, err error) {
	s.begin()
	caught := make(<-chan struct{})
	if at != (step{}) {
		t = s.set(at, m.verdict)
		caught = t.caught()
	}
	done := make(chan error, 1)
	go func() { done <- change(ctx) }()
	select {
	case <-caught:
		if m.kill {
			s.kill(t.by)
		}
		return t, true, errors.Join(s.replace(ctx), <-done)
	case err = <-done:
		return t, t == nil || !m.kill && t.isCaught(), err
	}
}

// isCaught reports whether the request is where the verdict wants it.
func (t *trap) isCaught() bool {
	select {
	case <-t.caught():
		return true
	default:
		return false
	}
}
