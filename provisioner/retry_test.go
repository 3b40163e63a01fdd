package provisioner

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/mappers"
)

// allKinds must list every kind of backends, so that none falls through the
// table unseen.
var allKinds = []backends.Kind{
	backends.KindNotFound, backends.KindInvalid, backends.KindConflict, backends.KindOverQuota, backends.KindRateLimited,
	backends.KindUnauthorized, backends.KindForbidden, backends.KindUnavailable, backends.KindConfig, backends.KindVolumeFailed,
	backends.KindTimeout, backends.KindNotOurs, backends.KindInUse, backends.KindInternal, backends.KindElsewhere, backends.KindFenced,
}

func TestEveryKindOfErrorHasARetryOfItsOwn(t *testing.T) {
	for _, kind := range allKinds {
		r := retryFor(fmt.Errorf("wrapped: %w", &backends.Error{Kind: kind}))
		if r.outcome == "" || r.outcome == "other" || r.first <= 0 || r.most < r.first {
			t.Errorf("%s: %+v", kind, r)
		}
	}
	for _, err := range []error{&mappers.Refusal{}, &damagedError{}, errors.New("anything"), nil} {
		if r := retryFor(err); r.outcome == "" || r.first <= 0 || r.most < r.first {
			t.Errorf("%v: %+v", err, r)
		}
	}
}

func TestDelaysGrowUpToTheirLimitAndNeverEnd(t *testing.T) {
	l := NewRetryLimiter()
	r := retry{outcome: "x", first: time.Second, most: 8 * time.Second}
	var last time.Duration
	for i := range 100 {
		l.Failed("claim", r)
		delay := l.When("claim")
		if delay < r.first || delay > r.most+r.most/10 {
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
	// Another kind of trouble starts from its own beginning.
	l.Failed("claim", retry{outcome: "y", first: time.Millisecond, most: time.Hour})
	if delay := l.When("claim"); delay > 2*time.Millisecond {
		t.Errorf("after another kind of error the delay is %s", delay)
	}
	l.Succeeded("claim")
	if l.NumRequeues("claim") != 0 {
		t.Error("a success is not forgotten")
	}
}

func TestServersWishIsHonoured(t *testing.T) {
	l := NewRetryLimiter()
	l.Failed("claim", retryFor(&backends.Error{Kind: backends.KindRateLimited, RetryAfter: time.Minute}))
	if delay := l.When("claim"); delay < time.Minute {
		t.Errorf("Retry-After of a minute, delay %s", delay)
	}
}

func TestFailureOfTheLibraryItselfIsDelayedToo(t *testing.T) {
	l := NewRetryLimiter()
	if delay := l.When("claim"); delay < time.Second {
		t.Errorf("delay %s", delay)
	}
}

func TestFailuresOfTheLibraryInARowAreDelayedMoreAndMore(t *testing.T) {
	l := NewRetryLimiter()
	before := time.Duration(0)
	for i := range 5 {
		delay := l.When("claim")
		if delay < before*3/2 || delay < time.Second {
			t.Errorf("failure %d of the library is retried after %s, the one before after %s", i+1, delay, before)
		}
		before = delay
		// What this package does meanwhile succeeds each time.
		l.Succeeded("claim")
	}
	l.Forget("claim")
	if delay := l.When("claim"); delay > 2*time.Second {
		t.Errorf("after a success of the library: %s", delay)
	}
}

func TestParkingDoesNotForgetWhyAClaimFailed(t *testing.T) {
	l := NewRetryLimiter()
	for range 3 {
		l.Failed("claim", retry{outcome: "refused", first: time.Minute, most: time.Hour})
		l.When("claim")
	}
	l.Forget("claim")
	l.Failed("claim", retry{outcome: "refused", first: time.Minute, most: time.Hour})
	if delay := l.When("claim"); delay < 8*time.Minute {
		t.Errorf("the fourth failure is retried after %s", delay)
	}
	l.Gone("claim")
	if len(l.items) != 0 {
		t.Error("an item that is gone is remembered")
	}
}
