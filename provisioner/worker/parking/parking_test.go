package parking

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func claim(uid types.UID) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: string(uid), UID: uid}}
}

func TestObjectsAreParkedForOneReason(t *testing.T) {
	lot := NewLot[*corev1.PersistentVolumeClaim]()
	lot.Park(claim("waiting"), Waiting)
	lot.Park(claim("denied"), Denied)
	if _, ok := lot.Take("waiting", Denied, Failing); ok {
		t.Error("taken for another reason than it is in for")
	}
	if _, ok := lot.Take("waiting", Waiting); !ok {
		t.Error("what waits is not in")
	}
	lot.Park(claim("denied"), Failing)
	var parked []string
	lot.Each(func(_ *corev1.PersistentVolumeClaim, reason Reason, reported string) {
		parked = append(parked, string(reason)+" "+reported)
	})
	if !slices.Equal(parked, []string{"failing "}) {
		t.Errorf("parked is %q", parked)
	}
}

func TestAnUnchangedReasonIsNewsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lot := NewLot[*corev1.PersistentVolumeClaim]()
		for i, c := range []struct {
			reason, message string
			passing         bool
			after           time.Duration
			want            bool
		}{
			{"Quota", "1 of 1", false, 0, true},
			{"Quota", "1 of 1", false, 0, false},
			{"Quota", "2 of 2", false, 0, true},
			{"Quota", "3 of 3", true, 0, false},
			{"Backend", "down", true, 0, true},
			{"Backend", "down", true, repeatAfter - time.Second, false},
			{"Backend", "down", true, time.Second, true},
		} {
			time.Sleep(c.after)
			if got := lot.IsNews("uid", c.reason, c.message, c.passing); got != c.want {
				t.Errorf("%d: news %t, want %t", i, got, c.want)
			}
		}
		lot.Forget("uid")
		if !lot.IsNews("uid", "Backend", "down", true) {
			t.Error("no news after it was forgotten")
		}
	})
}

func TestHelpAfterAMomentIsKnown(t *testing.T) {
	h := NewBoard()
	gold := []Trigger{{Kind: Backend, Name: "gold"}}
	before := h.Now()
	h.Publish(gold...)
	if !h.Since(before, gold) || h.Since(h.Now(), gold) || h.Since(before, []Trigger{{Kind: Backend, Name: "silver"}}) {
		t.Error("a trigger was missed, or made up")
	}
}

func TestHelpsAreForgottenRatherThanGathered(t *testing.T) {
	h := NewBoard()
	start := h.Now()
	for i := range 3 * maxTriggers {
		h.Publish(Trigger{Kind: Namespace, Name: fmt.Sprint(i)})
	}
	if len(h.last) > maxTriggers {
		t.Errorf("%d triggers are remembered", len(h.last))
	}
	// A forgotten moment counts as a trigger.
	if !h.Since(start, []Trigger{{Kind: Namespace, Name: "0"}}) || h.Since(h.Now(), []Trigger{{Kind: Namespace, Name: "0"}}) {
		t.Error("a trigger was missed, or made up")
	}
}

// TestTheListSaysWhySinceWhen: it shows the latest message, news or not, and when its
// reason began.
func TestTheListSaysWhySinceWhen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lot := NewLot[*corev1.PersistentVolumeClaim]()
		began := time.Now()
		one := func() string {
			all := lot.List()
			if len(all) != 1 {
				return fmt.Sprintf("%d are parked", len(all))
			}
			p := all[0]
			return fmt.Sprintf("%s %s %q after %s", p.State, p.Reason, p.Message, p.Since.Sub(began))
		}
		step := func(what, want string, do func()) {
			t.Helper()
			time.Sleep(time.Minute)
			do()
			if got := one(); got != want {
				t.Errorf("%s: %s, want %s", what, got, want)
			}
		}
		park := func(reason Reason) { lot.Park(claim("c"), reason) }
		step("waiting", `waiting  "" after 1m0s`, func() { park(Waiting) })
		step("denied", `denied Full "3 of 2" after 2m0s`, func() { lot.IsNews("c", "Full", "3 of 2", true); park(Denied) })
		step("denied again", `denied Full "4 of 2" after 2m0s`, func() {
			if lot.IsNews("c", "Full", "4 of 2", true) {
				t.Error("passing numbers are news")
			}
			park(Denied)
		})
		step("denied for another reason", `denied NoTenant "none" after 4m0s`, func() { lot.IsNews("c", "NoTenant", "none", false); park(Denied) })
		step("failing", `failing  "HTTP 500" after 5m0s`, func() { lot.NoteFailure("c", "HTTP 500"); park(Failing) })
		step("failing again", `failing  "HTTP 503" after 5m0s`, func() { lot.NoteFailure("c", "HTTP 503"); park(Failing) })
		step("denied after failures", `denied NoTenant "none" after 7m0s`, func() {
			if lot.IsNews("c", "NoTenant", "none", false) {
				t.Error("an unchanged reason is news after a failure")
			}
			park(Denied)
		})
		step("another object of that UID", `failing  "new" after 8m0s`, func() { lot.Forget("c"); lot.NoteFailure("c", "new"); park(Failing) })
	})
}

// TestTheListSaysWhatTheEventSaid: numbers that are no news reach no event.
func TestTheListSaysWhatTheEventSaid(t *testing.T) {
	lot := NewLot[*corev1.PersistentVolumeClaim]()
	for _, step := range []struct {
		do   func()
		want string
	}{
		{func() { lot.Park(claim("c"), Waiting) }, `"" ""`},
		{func() { lot.IsNews("c", "Full", "3 of 2", true); lot.Park(claim("c"), Denied) }, `"Full" "3 of 2"`},
		{func() { lot.IsNews("c", "Full", "9 of 2", true) }, `"Full" "3 of 2"`},
		{func() { lot.NoteFailure("c", "HTTP 500"); lot.Park(claim("c"), Failing) }, `"Full" "3 of 2"`},
		{func() { lot.IsNews("c", "NoTenant", "none", false) }, `"NoTenant" "none"`},
	} {
		step.do()
		if one := lot.List()[0]; fmt.Sprintf("%q %q", one.EventReason, one.Event) != step.want {
			t.Errorf("the event is %q %q, want %s", one.EventReason, one.Event, step.want)
		}
	}
}
