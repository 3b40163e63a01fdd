package provisioner

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/ledger"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/placement"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

var (
	errGoldDown    = &cinder.Error{Kind: cinder.KindUnavailable, Backend: "gold", Message: "requests are held back"}
	errGoldAtLimit = &cinder.Error{Kind: cinder.KindOverQuota, Backend: "gold", Operation: "volume.create", Message: "VolumeLimitExceeded", Status: 413}
)

// both returns a claim of the rule with two backends, created in this term.
func (f *fixture) both() *corev1.PersistentVolumeClaim {
	f.class.Name = "both"
	f.noteEarlier()
	return f.claim(nil)
}

// wantEvent expects exactly one event since the last check.
func (f *fixture) wantEvent(want string) {
	f.t.Helper()
	if events := f.newEvents(); len(events) != 1 || events[0] != want {
		f.t.Errorf("events %q\nwant %q", events, want)
	}
}

func TestUnhealthyBackendIsPassedOver(t *testing.T) {
	f := newFixture(t)
	f.backends["gold"].health = errGoldDown
	_, err := f.provision(f.both())
	f.must(err)
	wantCalls(t, f.backends["silver"], "connect pvc-uid-1 2 GiB")
	f.wantEvent("Normal BackendChosen tenant a, rule tenants[0].classes[0]: 2 GiB on backend silver; passed over: backend gold: requests are held back")

	// The claim stays there after the outage.
	f.backends["gold"].health = nil
	_, err = f.provision(f.both())
	f.must(err)
	wantCalls(t, f.backends["gold"])
}

func TestClaimOfAnEarlierTermWaitsForABackendThatMayHaveItsVolume(t *testing.T) {
	f := newFixture(t)
	f.class.Name = "both"
	f.backends["gold"].health = errGoldDown
	claim := f.claim(nil)
	f.noteEarlier(claim)
	if _, err := f.provision(claim); !isIgnored(err) {
		t.Errorf("error %v, want one that the library ignores", err)
	}
	f.wantEvent("Warning BackendUnavailable cannot determine whether an earlier leader created a volume for this claim: backend gold: requests are held back")
	wantCalls(t, f.backends["silver"])

	// Once the backend is listed, the claim continues where its volume is.
	f.backends["gold"].health = nil
	f.backends["gold"].listed = []cinder.Volume{f.stamped("uid-1")}
	f.publish(parking.Backend, "gold")
	if strings.Join(f.requeued, " ") != "data" {
		t.Errorf("claims that came back: %v", f.requeued)
	}
	_, err := f.provision(claim)
	f.must(err)
	wantCalls(t, f.backends["gold"], "connect pvc-uid-1 2 GiB")
}

func TestCountedBackendThatFailsIsPassedOverAlsoForEarlierClaims(t *testing.T) {
	f := newFixture(t)
	f.count()
	f.class.Name = "both"
	f.backends["gold"].health = errGoldDown
	claim := f.claim(nil)
	f.noteEarlier(claim)
	_, err := f.provision(claim)
	f.must(err)
	wantCalls(t, f.backends["silver"], "connect pvc-uid-1 2 GiB")
}

func TestClaimLeavesABackendOnlyIfNothingWasCreatedThere(t *testing.T) {
	for _, c := range []struct {
		name    string
		touched bool
		moves   bool
	}{
		{name: "nothing created", moves: true},
		{name: "something may have been created", touched: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t)
			gold, silver := f.backends["gold"], f.backends["silver"]
			gold.touched = map[string]bool{"uid-1": c.touched}
			gold.hasVolumeOf = map[string]bool{"uid-1": true} // keeps the room reserved
			gold.err = errGoldDown
			gold.onCall = func() { gold.health = errGoldDown }
			claim := f.both()
			if _, err := f.provision(claim); !isIgnored(err) {
				t.Errorf("error %v, want one that the library ignores", err)
			}
			f.newEvents()
			_, err := f.provision(claim)
			if c.moves {
				f.must(err)
				wantCalls(t, silver, "connect pvc-uid-1 2 GiB")
				return
			}
			if !isIgnored(err) {
				t.Errorf("error %v, want one that the library ignores", err)
			}
			wantCalls(t, silver)
		})
	}
}

func TestCindersOwnQuotaSendsAClaimToTheNextBackend(t *testing.T) {
	f := newFixture(t)
	f.backends["gold"].err = errGoldAtLimit
	claim := f.both()
	if _, err := f.provision(claim); !isIgnored(err) {
		t.Errorf("error %v, want one that the library ignores", err)
	}
	if strings.Join(f.requeued, " ") != "data" {
		t.Errorf("claims that came back: %v", f.requeued)
	}
	f.newEvents()
	_, err := f.provision(claim)
	f.must(err)
	f.wantEvent("Normal BackendChosen tenant a, rule tenants[0].classes[0]: 2 GiB on backend silver; passed over: backend gold: volume.create: VolumeLimitExceeded (HTTP 413)")

	// If a rule has only this backend, it is tried again, and Cinder's answer is
	// reported.
	f.class.Name = "one"
	if _, err := f.provision(f.named("alone")); !errors.Is(err, errGoldAtLimit) {
		t.Errorf("error %v", err)
	}
}

func TestReservationFollowsAPolicyThatSuspendsItsBackend(t *testing.T) {
	f := newFixture(t)
	f.count()
	claim := f.both()
	f.must(f.factory.Storage().V1().StorageClasses().Informer().GetStore().Add(f.class))
	if !f.admits(claim) {
		t.Fatal("not admitted")
	}
	if position, _ := f.ledger.PositionOf(claim.UID); position.Backend != "gold" {
		t.Fatalf("reserved on %s", position.Backend)
	}
	f.inForce("auth: {cloud: gold}", "auth: {cloud: gold}\n    suspended: true")
	_, err := f.provision(claim)
	f.must(err)
	wantCalls(t, f.backends["gold"])
	wantCalls(t, f.backends["silver"], "connect pvc-uid-1 2 GiB")
}

func TestDecisionOfAnOldPolicyReservesNothing(t *testing.T) {
	f := newFixture(t)
	f.count()
	claim := f.both()
	stale := f.decide(claim, f.class, f.askerOf(claim))
	f.limit("0")
	if _, err := f.placement.Choose(t.Context(), claim, "both", stale); !errors.Is(err, ledger.ErrPolicyChanged) {
		t.Errorf("error %v, want %v", err, ledger.ErrPolicyChanged)
	}
	if _, counts := f.ledger.PositionOf(claim.UID); counts {
		t.Error("room was reserved by a policy that is not in force")
	}
}

func TestBackendThatCannotBeListedIsPassedOverByNewClaims(t *testing.T) {
	f := newFixture(t)
	f.backends["gold"].listErr = &cinder.Error{Kind: cinder.KindUnavailable, Backend: "gold", Message: "down"}
	_, err := f.provision(f.both())
	f.must(err)
	f.wantEvent("Normal BackendChosen tenant a, rule tenants[0].classes[0]: 2 GiB on backend silver; passed over: cannot list the volumes that backend gold already has: backend gold: down")
}

func TestSuspendedBackendThatMayHaveTheVolumeIsListedFirst(t *testing.T) {
	f := newFixture(t)
	f.class.Name = "both"
	f.inForce("auth: {cloud: gold}", "auth: {cloud: gold}\n    suspended: true")
	f.backends["gold"].listed = []cinder.Volume{f.stamped("uid-1")} // the earlier leader's
	claim := f.claim(nil)
	f.noteEarlier(claim)
	_, err := f.provision(claim)
	f.must(err)
	wantCalls(t, f.backends["silver"])
	wantCalls(t, f.backends["gold"], "connect pvc-uid-1 2 GiB")
}

func TestLostCreateKeepsTheClaimWhereItIs(t *testing.T) {
	f := newFixture(t)
	f.count()
	gold := f.backends["gold"]
	gold.err = &cinder.Error{Kind: backends.KindTimeout, Backend: "gold", Operation: "volume.create", Message: "no answer in time", EffectUnknown: true}
	gold.touched = map[string]bool{"uid-1": true}
	claim := f.both()
	if _, err := f.provision(claim); err == nil {
		t.Fatal("the attempt succeeded")
	}
	gold.health = errGoldDown
	if _, err := f.provision(claim); !isIgnored(err) {
		t.Errorf("error %v, want one that the library ignores", err)
	}
	wantCalls(t, f.backends["silver"])
}

func TestCindersQuotaIsNotTriedAgainWithoutAPause(t *testing.T) {
	t.Run("when a found volume was discarded", func(t *testing.T) {
		f := newFixture(t)
		f.class.Name = "both"
		gold := f.backends["gold"]
		gold.listed = []cinder.Volume{f.stamped("uid-1")}
		f.count()
		claim := f.claim(nil)
		f.noteEarlier(claim)
		gold.err = errGoldAtLimit
		_, _ = f.provision(claim)
		f.wantRequeued("data")
		_, err := f.provision(claim)
		f.must(err)
		wantCalls(t, f.backends["silver"], "connect pvc-uid-1 2 GiB")
	})
	t.Run("when the other backend cannot be listed", func(t *testing.T) {
		f := newFixture(t)
		f.backends["gold"].err = errGoldAtLimit
		f.backends["silver"].listErr = &cinder.Error{Kind: cinder.KindForbidden, Backend: "silver", Status: 403, Message: "no"}
		claim := f.both()
		_, _ = f.provision(claim)
		f.wantRequeued("data")
		for range 3 {
			if _, err := f.provision(claim); err == nil || isIgnored(err) {
				t.Errorf("error %v, want one that is retried with a delay", err)
			}
		}
		f.wantRequeued()
	})
}

func TestFullnessThatPassesBringsDeniedClaimsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go f.offerFreedRoom(ctx)
		claim := f.claim(nil)
		f.parkedClaims.park(f.turn(claim), claim, parking.Denied, []parking.Trigger{placement.RoomIn(ledger.Scope{Kind: policy.BackendScope, Name: "gold"})})
		f.placement.NoteFull("gold", policy.VolumeProperties{SizeGiB: 1}, errGoldAtLimit)
		time.Sleep(time.Minute + gatherFreedRoom)
		synctest.Wait()
		f.wantRequeued("data")
	})
}

func TestNextBackendIsNotListedWhileTheFirstCanServe(t *testing.T) {
	f := newFixture(t)
	f.must(f.placement.CountBackend(t.Context(), "gold"))
	f.backends["silver"].onList = func() { t.Error("a new claim waited for a listing of a backend that it does not go to") }
	_, err := f.provision(f.both())
	f.must(err)
}

func TestEveryBackendWithoutRoomIsNamed(t *testing.T) {
	f := newFixture(t)
	f.inForce("auth: {cloud: gold}", "auth: {cloud: gold}\n    limits: {volumes: 0}")
	f.backends["silver"].health = &cinder.Error{Kind: cinder.KindUnavailable, Backend: "silver", Message: "down"}
	if _, err := f.provision(f.both()); !isIgnored(err) {
		t.Errorf("error %v, want one that the library ignores", err)
	}
	f.wantEvent("Warning QuotaExceeded backend gold would use 1 of 0 volumes (backends[0].limits.volumes); backend silver: down")
}

func TestEndpointThatChangesDuringItsListingIsListedAgain(t *testing.T) {
	f := newFixture(t)
	gold := f.backends["gold"]
	lists := 0
	gold.onList = func() {
		if lists++; lists == 1 {
			f.Recount("gold")
		}
	}
	f.must(f.placement.CountBackend(t.Context(), "gold"))
	if lists != 2 || !f.placement.IsCounted("gold") {
		t.Errorf("listed %d times", lists)
	}
	<-f.placement.Wanted()
	if names := f.placement.TakeWanted(); !slices.Equal(names, []string{"gold"}) {
		t.Errorf("%s are counted again in the background", names)
	}
}
