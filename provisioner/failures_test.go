package provisioner

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// tried returns the zones in which volumes were requested, by backend.
func (f *fixture) tried() string {
	var all []string
	for _, name := range []string{"gold", "silver"} {
		for _, spec := range f.backends[name].specs {
			all = append(all, name+"/"+spec.Zone)
		}
		f.backends[name].specs = nil
	}
	return strings.Join(all, " ")
}

// untilItWaits provisions a claim until it no longer comes back at once.
func (f *fixture) untilItWaits(claim *corev1.PersistentVolumeClaim) (pv *corev1.PersistentVolume, err error) {
	f.t.Helper()
	for range 10 {
		f.requeued = nil
		pv, err = f.provision(claim)
		if len(f.requeued) == 0 {
			return pv, err
		}
		if !isIgnored(err) {
			f.t.Fatalf("the claim came back at once, and again after a delay: %v", err)
		}
	}
	f.t.Fatal("the claim comes back without a delay, again and again")
	return nil, nil
}

func TestVolumeThatCinderCannotMakeIsTriedElsewhere(t *testing.T) {
	none := map[string]bool{}
	for name, c := range map[string]struct {
		class, node  string
		spread       bool
		gold, silver map[string]bool // the zones without room
		change       func(*fixture)
		tried, event string
		err          string
	}{
		"the next zone": {class: "both", gold: map[string]bool{"az1": true}, silver: none, tried: "gold/az1 gold/az2",
			event: "Normal BackendChosen tenant a, rule tenants[0].classes[0]: 2 GiB on backend gold, availability zone az2; passed over: backend gold, availability zone az1: no host in az1"},
		"the next backend": {class: "both", gold: map[string]bool{"az1": true, "az2": true}, silver: none, tried: "gold/az1 gold/az2 silver/",
			event: "Normal BackendChosen tenant a, rule tenants[0].classes[0]: 2 GiB on backend silver; passed over: backend gold, availability zone az1: no host in az1, backend gold, availability zone az2: no host in az2"},
		"as the rule spreads": {class: "both", spread: true, gold: none, silver: map[string]bool{"": true}, tried: "gold/az2 silver/",
			event: "Normal BackendChosen tenant a, rule tenants[0].classes[0]: 2 GiB on backend gold, availability zone az2; passed over: backend silver: no host"},
		"only zones of the node": {class: "both", node: "node-b", gold: map[string]bool{"az2": true}, silver: none, tried: "gold/az2 silver/",
			event: "Normal BackendChosen tenant a, rule tenants[0].classes[0]: 2 GiB on backend silver; passed over: backend gold, availability zone az2: no host in az2"},
		"nowhere": {class: "both", gold: map[string]bool{"az1": true, "az2": true}, silver: map[string]bool{"": true}, tried: "gold/az1 gold/az2 silver/",
			event: "Normal BackendChosen tenant a, rule tenants[0].classes[0]: 2 GiB on backend silver; passed over: backend gold, availability zone az1: no host in az1, backend gold, availability zone az2: no host in az2",
			err:   "Cinder could not make the volume: backend gold, availability zone az1: no host in az1; backend gold, availability zone az2: no host in az2; backend silver: no host"},
		"the only location": {class: "one", node: "node-a", gold: map[string]bool{"az1": true}, silver: none, tried: "gold/az1",
			event: "Normal BackendChosen tenant a, rule tenants[0].classes[1]: 2 GiB on backend gold, availability zone az1",
			err:   "backend gold: volume volume-1 went to error and was removed: no host in az1"},
		"not where no request is answered": {class: "both", gold: map[string]bool{"az1": true, "az2": true}, silver: none, tried: "gold/az1 gold/az2",
			change: func(f *fixture) {
				f.backends["silver"].health = &cinder.Error{Kind: cinder.KindUnavailable, Backend: "silver", Message: "down"}
			},
			event: "Normal BackendChosen tenant a, rule tenants[0].classes[0]: 2 GiB on backend gold, availability zone az2; passed over: backend gold, availability zone az1: no host in az1",
			err:   "Cinder could not make the volume: backend gold, availability zone az1: no host in az1; backend gold, availability zone az2: no host in az2"},
		"not on another backend while a volume may exist": {class: "both", gold: map[string]bool{"az1": true, "az2": true}, silver: none, tried: "gold/az1 gold/az2",
			change: func(f *fixture) { f.backends["gold"].touched = map[string]bool{"uid-1": true} },
			event:  "Normal BackendChosen tenant a, rule tenants[0].classes[0]: 2 GiB on backend gold, availability zone az1",
			err:    "Cinder could not make the volume: backend gold, availability zone az1: no host in az1; backend gold, availability zone az2: no host in az2"},
	} {
		t.Run(name, func(t *testing.T) {
			f := zoned(t)
			if c.spread {
				f.current.Store(parsePolicy(t, strings.Replace(strings.Replace(testPolicy, "auth: {cloud: gold}", "auth: {cloud: gold}"+zones, 1), "backends: [gold, silver],", "backends: [gold, silver], pick: spread,", 1)))
			}
			f.class.Name = c.class
			f.backends["gold"].full, f.backends["silver"].full = c.gold, c.silver
			f.noteEarlier()
			claim := f.onNode(c.node)
			if c.change != nil {
				c.change(f)
			}
			pv, err := f.untilItWaits(claim)
			if got := f.tried(); got != c.tried {
				t.Errorf("requested at %s, want %s", got, c.tried)
			}
			if events := f.newEvents(); len(events) == 0 || events[len(events)-1] != c.event {
				t.Errorf("events %q\nwant last %q", events, c.event)
			}
			if c.err == "" {
				f.must(err)
			} else if pv != nil || err == nil || err.Error() != c.err {
				t.Errorf("error %v\n want %s", err, c.err)
			}
		})
	}
}

// TestClaimBeginsAgainInOrder: after a delay, locations are tried in the policy's order
// again, and each delay is longer although it follows several failures.
func TestClaimBeginsAgainInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := zoned(t)
		f.class.Name = "both"
		f.noteEarlier()
		f.backends["gold"].full, f.backends["silver"].full = map[string]bool{"az1": true, "az2": true}, map[string]bool{"": true}
		claim := f.onNode("")
		for _, least := range []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second, 80 * time.Second, 2 * time.Minute, 2 * time.Minute} {
			if _, err := f.untilItWaits(claim); err == nil {
				t.Fatal("there was room")
			}
			if got := f.tried(); got != "gold/az1 gold/az2 silver/" {
				t.Errorf("requested at %s", got)
			}
			if delay := f.limiter.When(string(claim.UID)); delay < least || delay > least+least/9 {
				t.Errorf("the claim waits %s, want %s", delay, least)
			}
		}
		f.backends["gold"].full = nil
		_, err := f.untilItWaits(claim)
		f.must(err)
		if got := f.tried(); got != "gold/az1" {
			t.Errorf("requested at %s", got)
		}
	})
}

func TestWhatFailedIsForgotten(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*fixture, *corev1.PersistentVolumeClaim)
		tried  string
	}{
		"not before the next attempt": {func(*fixture, *corev1.PersistentVolumeClaim) {}, "gold/az2"},
		"with another policy": {func(f *fixture, _ *corev1.PersistentVolumeClaim) {
			f.inForce("auth: {cloud: gold}", "auth: {cloud: gold}\n    limits: {volumes: 99}"+zones)
		}, "gold/az1"},
		"with the claim": {func(f *fixture, claim *corev1.PersistentVolumeClaim) {
			f.forgetClaim(claim)
			f.must(f.claimGone(t.Context(), claim.UID))
			f.onNode("")
		}, "gold/az1"},
		"when the claim is denied": {func(f *fixture, claim *corev1.PersistentVolumeClaim) {
			f.limit("0")
			if _, err := f.provision(claim); !isIgnored(err) {
				t.Errorf("error %v", err)
			}
			f.inForce("auth: {cloud: gold}", "auth: {cloud: gold}"+zones)
		}, "gold/az1"},
		"when the next attempt fails otherwise": {func(f *fixture, claim *corev1.PersistentVolumeClaim) {
			f.backends["gold"].err = &cinder.Error{Kind: cinder.KindInvalid, Backend: "gold", Message: "Availability zone 'az2' is invalid."}
			if _, err := f.provision(claim); err == nil || isIgnored(err) {
				t.Errorf("error %v", err)
			}
			f.backends["gold"].err = nil
			f.tried()
		}, "gold/az1"},
	} {
		t.Run(name, func(t *testing.T) {
			f := zoned(t)
			f.noteEarlier()
			f.backends["gold"].full = map[string]bool{"az1": true}
			claim := f.onNode("")
			if _, err := f.provision(claim); !isIgnored(err) {
				t.Fatalf("error %v", err)
			}
			f.tried()
			c.change(f, claim)
			f.newEvents()
			_, _ = f.provision(claim)
			if events := strings.Join(f.newEvents(), "\n"); strings.Contains(events, "passed over") != (c.tried == "gold/az2") {
				t.Errorf("events %s", events)
			}
			if got := f.tried(); got != c.tried {
				t.Errorf("requested at %s, want %s", got, c.tried)
			}
		})
	}
}

// TestFailureOfOneClaimConcernsNoOther: a zone that looks full may be fine, and the
// cause may be in the claim itself, such as its size.
func TestFailureOfOneClaimConcernsNoOther(t *testing.T) {
	f := zoned(t)
	f.noteEarlier()
	gold := f.backends["gold"]
	gold.full, gold.apart = map[string]bool{"az1": true}, true
	if _, err := f.provision(f.onNode("")); !isIgnored(err) {
		t.Fatalf("error %v", err)
	}
	f.tried()
	gold.full = nil
	_, err := f.provision(f.named("other"))
	f.must(err)
	if got := f.tried(); got != "gold/az1" {
		t.Errorf("the other claim's volume was requested at %s", got)
	}
}
