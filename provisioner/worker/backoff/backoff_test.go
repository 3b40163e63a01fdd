package backoff

import (
	"testing"
	"time"
)

func TestDelaysGrowUpToTheirLimitAndNeverEnd(t *testing.T) {
	l := New[string](Delay{Outcome: "unexplained", First: time.Second, Most: 30 * time.Second})
	r := Delay{Outcome: "x", First: time.Second, Most: 8 * time.Second}
	var last time.Duration
	for i := range 100 {
		l.Failed("claim", r)
		delay := l.When("claim")
		if delay < r.First || delay > r.Most+r.Most/10 {
			t.Fatalf("attempt %d is delayed by %s", i, delay)
		}
		if i < 3 && delay < last {
			t.Errorf("delay %d (%s) is shorter than the one before (%s)", i, delay, last)
		}
		last = delay
	}
	if l.NumRequeues("claim") != 100 {
		t.Errorf("%d requeues", l.NumRequeues("claim"))
	}
	// A different kind of error starts with its own first delay.
	l.Failed("claim", Delay{Outcome: "y", First: time.Millisecond, Most: time.Hour})
	if delay := l.When("claim"); delay > 2*time.Millisecond {
		t.Errorf("after another kind of error the delay is %s", delay)
	}
	l.Succeeded("claim")
	if l.NumRequeues("claim") != 0 {
		t.Error("a success is not forgotten")
	}
}

func TestServersWishIsHonored(t *testing.T) {
	l := New[string](Delay{Outcome: "unexplained", First: time.Second, Most: 30 * time.Second})
	l.Failed("claim", Delay{Outcome: "rate_limited", First: time.Second, Most: time.Minute, AtLeast: time.Minute})
	if delay := l.When("claim"); delay < time.Minute {
		t.Errorf("Retry-After of a minute, delay %s", delay)
	}
}

func TestFailureOfTheLibraryItselfIsDelayedToo(t *testing.T) {
	l := New[string](Delay{Outcome: "unexplained", First: time.Second, Most: 30 * time.Second})
	if delay := l.When("claim"); delay < time.Second {
		t.Errorf("delay %s", delay)
	}
}

func TestFailuresOfTheLibraryInARowAreDelayedMoreAndMore(t *testing.T) {
	l := New[string](Delay{Outcome: "unexplained", First: time.Second, Most: 30 * time.Second})
	before := time.Duration(0)
	for i := range 5 {
		delay := l.When("claim")
		if delay < before*3/2 || delay < time.Second {
			t.Errorf("failure %d of the library is retried after %s, the one before after %s", i+1, delay, before)
		}
		before = delay
		// In the meantime, this program's part succeeds each time.
		l.Succeeded("claim")
	}
	l.Forget("claim")
	if delay := l.When("claim"); delay > 2*time.Second {
		t.Errorf("after a success of the library: %s", delay)
	}
}

func TestParkingDoesNotForgetWhyAClaimFailed(t *testing.T) {
	l := New[string](Delay{Outcome: "unexplained", First: time.Second, Most: 30 * time.Second})
	for range 3 {
		l.Failed("claim", Delay{Outcome: "refused", First: time.Minute, Most: time.Hour})
		l.When("claim")
	}
	l.Forget("claim")
	l.Failed("claim", Delay{Outcome: "refused", First: time.Minute, Most: time.Hour})
	if delay := l.When("claim"); delay < 8*time.Minute {
		t.Errorf("the fourth failure is retried after %s", delay)
	}
	l.Gone("claim")
	if l.Len() != 0 {
		t.Error("an item that is gone is remembered")
	}
}
