package provisioner

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/ledger"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/placement"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

func (f *fixture) wantRequeued(want ...string) {
	f.t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if strings.Join(f.requeued, " ") != strings.Join(want, " ") {
		f.t.Errorf("came back: %v, want %v", f.requeued, want)
	}
	f.requeued = nil
}

func TestOutageParksAClaimUntilTheBackendAnswers(t *testing.T) {
	f := newFixture(t)
	gold := f.backends["gold"]
	gold.health = errGoldDown
	claim := f.claim(nil)
	for range 3 {
		if f.admits(claim) {
			t.Fatal("a claim was admitted although its only backend does not answer")
		}
	}
	f.wantEvent("Warning BackendUnavailable backend gold: requests are held back")
	f.wantRequeued()
	gold.health = nil
	f.publish(parking.Backend, "gold")
	f.wantRequeued("data")
	if !f.admits(claim) {
		t.Error("not admitted after the outage")
	}
}

func TestOutageDuringAnAttemptForgetsNothing(t *testing.T) {
	f := newFixture(t)
	gold := f.backends["gold"]
	gold.err = errGoldDown
	gold.onCall = func() { gold.health = errGoldDown }
	gold.hasVolumeOf, gold.touched = map[string]bool{"uid-1": true}, map[string]bool{"uid-1": true}
	claim := f.claim(nil)
	if _, err := f.provision(claim); !isIgnored(err) {
		t.Errorf("error %v, want one that the library ignores", err)
	}
	if _, begun := f.journal.Beginning(claim.UID); !begun {
		t.Error("the attempt is forgotten")
	}
	if _, counts := f.ledger.PositionOf(claim.UID); !counts {
		t.Error("the room of a volume that may exist was freed")
	}
}

// TestOutageComesBeforeAFullQuota: what a backend answered before it went down no
// longer decides about its claims.
func TestOutageComesBeforeAFullQuota(t *testing.T) {
	f := newFixture(t)
	gold := f.backends["gold"]
	gold.err = errGoldAtLimit
	gold.onCall = func() { gold.health = errGoldDown }
	claim := f.both()
	if _, err := f.provision(claim); !isIgnored(err) {
		t.Errorf("error %v, want one that the library ignores", err)
	}
	if len(f.requeued) > 0 {
		t.Errorf("claims that came back: %v, want the claim parked", f.requeued)
	}
	gold.health = nil
	onGold := f.decide(claim, f.class, f.askerOf(claim)).Only([]string{"gold"}, nil)
	if !f.placement.CouldGoElsewhere("another-claim", onGold) {
		t.Error("a backend that was silent counts as full")
	}
}

// TestTriggerJustBeforeParkingIsNotMissed fires a trigger between the decision
// about a claim and its parking.
func TestTriggerJustBeforeParkingIsNotMissed(t *testing.T) {
	for name, happens := range map[string]func(f *fixture){
		"the policy changes":      func(f *fixture) { f.PolicyChanged() },
		"a backend answers again": func(f *fixture) { f.publish(parking.Backend, "gold") },
		"credentials change":      func(f *fixture) { f.publish(parking.Credentials, "gold") },
		"a backend is elsewhere":  func(f *fixture) { f.Recount("gold") },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			claim, pv := f.claim(nil), f.recorded()
			before, beforeDeletion := f.turn(claim), f.parkedVolumes.loop.Attempt(pv.Name)
			happens(f)
			f.parkedClaims.park(before, claim, parking.Failing, []parking.Trigger{{Kind: parking.Policy}, {Kind: parking.Backend, Name: "gold"}, {Kind: parking.Credentials, Name: "gold"}})
			f.wantRequeued("data")
			f.parkForBackend(beforeDeletion, pv, "gold", errGoldDown)
			f.wantRequeued("pvc-uid-1")
			f.deny(f.turn(claim), claim, placement.Denial{Reason: "Any", Message: "any"})
			f.wantRequeued()
		})
	}
	for name, happens := range map[string]func(f *fixture){
		"the namespace changes":  func(f *fixture) { f.publish(parking.Namespace, "team-a") },
		"the class is recreated": func(f *fixture) { f.publish(parking.Class, "one") },
		"the claim is a new one": func(f *fixture) { f.noteEarlier() },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			claim := f.claim(nil)
			before := f.turn(claim)
			happens(f)
			f.deny(before, claim, *f.placement.Unavailable(nil, nil))
			f.wantRequeued("data")
		})
	}
}

// TestUndoingAFailureDoesNotBringItsClaimBackAtOnce offers the room that an
// attempt frees while that attempt fails.
func TestUndoingAFailureDoesNotBringItsClaimBackAtOnce(t *testing.T) {
	f := newFixture(t)
	gold := f.backends["gold"]
	gold.document = `{"driver_volume_type": "vmdk", "data": {}}`
	gold.onCall = func() { f.Board.Publish(placement.RoomIn(ledger.Scope{Kind: policy.TenantScope, Name: "a"})) }
	if _, err := f.provision(f.claim(nil)); err == nil || isIgnored(err) {
		t.Errorf("error %v", err)
	}
	f.wantRequeued()
}

func TestReloadWhileABackendIsListedIsNotMissed(t *testing.T) {
	f := newFixture(t)
	gold := f.backends["gold"]
	f.class.Name = "both"
	claim := f.claim(nil)
	f.noteEarlier(claim)
	f.backends["silver"].health = errGoldDown
	gold.onList = func() {
		gold.onList = nil
		f.inForce("backends: [gold, silver]", "backends: [gold]")
		f.PolicyChanged()
	}
	if _, err := f.provision(claim); !isIgnored(err) {
		t.Errorf("error %v, want one that the library ignores", err)
	}
	f.wantRequeued("data")
}

func TestReloadDuringAFailingAttemptIsNotMissed(t *testing.T) {
	f := newFixture(t)
	gold := f.backends["gold"]
	gold.err = &cinder.Error{Kind: cinder.KindNotFound, Backend: "gold", Message: "no such type"}
	gold.onCall = f.PolicyChanged
	if _, err := f.provision(f.claim(nil)); err == nil {
		t.Fatal("the attempt succeeded")
	}
	f.wantRequeued("data")
}

func TestOutageParksADeletion(t *testing.T) {
	f := newFixture(t)
	pv := f.recorded()
	pv.Status.Phase = corev1.VolumeReleased
	gold := f.backends["gold"]
	gold.health = errGoldDown
	for range 3 {
		if f.ShouldDelete(t.Context(), pv) {
			t.Fatal("a deletion began although its backend does not answer")
		}
	}
	f.wantEvent("Warning BackendUnavailable backend gold: requests are held back")
	gold.health = nil
	f.publish(parking.Backend, "gold")
	f.wantRequeued(pv.Name)
	if !f.ShouldDelete(t.Context(), pv) {
		t.Error("not deleted after the outage")
	}
	f.must(f.delete(pv))
	wantCalls(t, gold, "remove volume-1 historic=false")
}

func TestOutageDuringADeletionParksIt(t *testing.T) {
	f := newFixture(t)
	pv := f.recorded()
	gold := f.backends["gold"]
	gold.err = errGoldDown
	gold.onCall = func() { gold.health = errGoldDown }
	if err := f.delete(pv); !isIgnored(err) {
		t.Errorf("error %v, want one that the library ignores", err)
	}
	f.wantEvent("Warning BackendUnavailable backend gold: requests are held back")
}

func TestReloadBringsBackTheDeniedAndTheFailing(t *testing.T) {
	f := newFixture(t)
	f.backends["gold"].err = &cinder.Error{Kind: cinder.KindNotFound, Backend: "gold", Message: "no such type"}
	failing := f.claim(func(c *corev1.PersistentVolumeClaim) {
		c.Name, c.UID, c.CreationTimestamp = "failing", "uid-failing", metav1.Now()
	})
	if _, err := f.provision(failing); err == nil {
		t.Fatal("the attempt succeeded")
	}
	denied := f.claim(func(c *corev1.PersistentVolumeClaim) { c.Namespace, c.Name, c.UID = "stranger", "denied", "uid-denied" })
	f.admits(denied)
	f.PolicyChanged()
	f.wantRequeued("denied", "failing")
	f.publish(parking.Credentials, "gold")
	f.wantRequeued()
	if _, err := f.provision(failing); err == nil {
		t.Fatal("the attempt succeeded")
	}
	f.publish(parking.Credentials, "gold")
	f.wantRequeued("failing")
}

func TestRecreatedClassBringsItsClaimsBack(t *testing.T) {
	f := newFixture(t)
	f.class.Parameters = map[string]string{"iops": "1000"}
	claim := f.claim(nil)
	if f.admits(claim) {
		t.Fatal("admitted")
	}
	f.publish(parking.Class, "both")
	f.wantRequeued()
	f.publish(parking.Class, "one")
	f.wantRequeued("data")
}

func TestClaimsBeyondTheTenantsConcurrencyWaitForTheirTurn(t *testing.T) {
	f := newFixture(t)
	f.inForce("volumeSize: {max: 10Gi}", "limits: {concurrency: 1}")
	first, second := f.named("first"), f.named("second")
	if !f.admits(first) || f.admits(second) {
		t.Fatal("not one claim of two is worked on")
	}
	if events := f.newEvents(); len(events) > 0 {
		t.Errorf("waiting for a turn was reported: %q", events)
	}
	_, err := f.provision(first)
	f.must(err)
	f.wantRequeued("second")
	// A claim that is deleted before it comes gives its turn back.
	third := f.named("third")
	if f.admits(third) {
		t.Error("the turn of the invited claim was given to another one")
	}
	f.forgetClaim(second)
	f.must(f.claimGone(t.Context(), second.UID))
	f.wantRequeued("third")
	if !f.admits(third) {
		t.Error("the claim does not get the turn that it was invited to")
	}
}

// TestDeniedClaimKeepsNoTurn: neither a denial by the policy nor one for lack of room
// keeps others from working.
func TestDeniedClaimKeepsNoTurn(t *testing.T) {
	for name, deny := range map[string]func(f *fixture){
		"by the policy":    func(f *fixture) { f.inForce("storageClasses: [one]", "storageClasses: [none]") },
		"for lack of room": func(f *fixture) { f.limit("0") },
		"while its backend is silent": func(f *fixture) {
			f.backends["gold"].health = errors.New("down")
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, _, gold := newCountedFixture(t)
			deny(f)
			claim := f.claim(nil)
			for range 3 {
				if _, err := f.provision(claim); !isIgnored(err) {
					t.Fatalf("error %v, want one that the library ignores", err)
				}
			}
			if held, waiting := f.parkedClaims.loop.Turns.Count(); held+waiting > 0 {
				t.Errorf("%d claims have a turn, %d wait for one", held, waiting)
			}
			if events := f.newEvents(); len(events) != 1 {
				t.Errorf("events %q, want one", events)
			}
			f.wantRequeued()
			wantCalls(t, gold)
		})
	}
}

// TestTurnCountsAgainstTheChosenBackend: a claim that passes over a silent backend takes
// no turn from those who wait for that one.
func TestTurnCountsAgainstTheChosenBackend(t *testing.T) {
	f, _, gold := newCountedFixture(t)
	gold.health = errors.New("down")
	f.backends["silver"].onCall = func() {
		for i := range 50 {
			if !f.parkedClaims.loop.Turns.Begin(fmt.Sprint("of-gold-", i), "b", "gold") {
				t.Errorf("%d claims work at gold, and no more may", i)
				return
			}
		}
	}
	if _, err := f.provision(f.both()); err != nil {
		t.Fatal(err)
	}
}

func TestTenantsRequestRateFollowsThePolicy(t *testing.T) {
	f := newFixture(t)
	if f.rates.of("a") != nil || f.rates.of("unknown") != nil {
		t.Error("a tenant without a limit has a limiter")
	}
	f.inForce("volumeSize: {max: 10Gi}", "limits: {requestsPerSecond: 5}")
	pace := f.rates.of("a")
	if pace == nil || pace.Limit() != 5 || f.rates.of("a") != pace {
		t.Fatalf("pace %v", pace)
	}
	f.inForce("volumeSize: {max: 10Gi}", "limits: {requestsPerSecond: 0.5}")
	if f.rates.of("a") != pace || pace.Limit() != 0.5 || pace.Burst() != 1 {
		t.Errorf("after a reload: %v, burst %d", pace.Limit(), pace.Burst())
	}
}

func TestFlappingBackendIsReportedOnce(t *testing.T) {
	f := newFixture(t)
	pv := f.recorded()
	pv.Status.Phase = corev1.VolumeReleased
	claim := f.named("pending")
	gold := f.backends["gold"]
	for range 3 {
		gold.health = errGoldDown
		f.ShouldDelete(t.Context(), pv)
		f.admits(claim)
		gold.health = nil
		f.publish(parking.Backend, "gold")
		f.admits(claim)
	}
	if events := f.newEvents(); len(events) != 2 {
		t.Errorf("%d events about one claim and one deletion: %q", len(events), events)
	}
}

func TestFencedWorkIsRetried(t *testing.T) {
	f := newFixture(t)
	gold := f.backends["gold"]
	gold.err = &cinder.Error{Kind: cinder.KindFenced, Backend: "gold", Message: "the lease has run out without being renewed"}
	if _, err := f.provision(f.claim(nil)); err == nil || isIgnored(err) {
		t.Errorf("error %v: the claim leaves the queue although the term continues", err)
	}
	gold.err = nil
	pv := f.recorded()
	gold.err = &cinder.Error{Kind: cinder.KindFenced, Backend: "gold", Message: "the lease has run out without being renewed"}
	if err := f.delete(pv); err == nil || isIgnored(err) {
		t.Errorf("error %v: the deletion leaves the queue although the term continues", err)
	}
}

func TestRoomThatADenialFreesIsOffered(t *testing.T) {
	f := newFixture(t)
	f.count()
	claim := f.claim(nil)
	if !f.admits(claim) {
		t.Fatal("not admitted")
	}
	f.inForce("namespaces: [team-a]", "namespaces: [team-b]")
	if f.admits(claim) {
		t.Fatal("admitted")
	}
	select {
	case <-f.ledger.Freed():
	default:
		t.Error("freed room is not offered")
	}
}

// TestPendingGroupsNameTheLastEvent: a claim that fails has an event of the library,
// whatever was reported before.
func TestPendingGroupsNameTheLastEvent(t *testing.T) {
	f := newFixture(t)
	claim := f.claim(nil)
	f.deny(f.turn(claim), claim, placement.Denial{Reason: "QuotaExceeded", Message: "full"})
	if got := f.PendingClaims(); len(got) != 1 || got[0].Reason != "QuotaExceeded" || got[0].State != parking.Denied {
		t.Errorf("pending are %v, want one that is denied for its quota", got)
	}
	f.parkedClaims.park(f.turn(claim), claim, parking.Failing, nil)
	if got := f.PendingClaims(); len(got) != 1 || got[0].Reason != "ProvisioningFailed" || got[0].State != parking.Failing {
		t.Errorf("pending are %v, want one that fails", got)
	}
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv", UID: "pv-uid"}}
	f.parkedVolumes.park(f.parkedVolumes.loop.Attempt(pv.Name), pv, parking.Failing, nil)
	if got := f.PendingDeletions(); len(got) != 1 || got[0].Reason != "VolumeFailedDelete" {
		t.Errorf("pending deletions are %v, want one that fails", got)
	}
	f.parkedVolumes.lot.IsNews(pv.UID, "VolumeStillInUse", "", false)
	if got := f.PendingDeletions(); len(got) != 1 || got[0].Reason != "VolumeStillInUse" {
		t.Errorf("pending deletions are %v, want one that a node uses", got)
	}
}

// TestClaimThatTheCacheShowsLaterThanItsVolumeIsNotForgotten: a new leader lists the
// volume of an unfinished attempt before its cache shows the claim, and takes the volume
// for an orphan. Until the follow-up's turn comes, the claim waits for its backend.
func TestClaimThatTheCacheShowsLaterThanItsVolumeIsNotForgotten(t *testing.T) {
	for name, wait := range map[string]func(f *fixture, gold *fakeVolumes, claim *corev1.PersistentVolumeClaim){
		"before its attempt": func(f *fixture, gold *fakeVolumes, claim *corev1.PersistentVolumeClaim) {
			gold.health = errGoldDown
			if f.admits(claim) {
				f.t.Error("the claim was admitted although its only backend does not answer")
			}
		},
		"during its attempt": func(f *fixture, gold *fakeVolumes, claim *corev1.PersistentVolumeClaim) {
			gold.err = errGoldDown
			gold.onCall = func() { gold.health = errGoldDown }
			if _, err := f.provision(claim); !isIgnored(err) {
				f.t.Errorf("error %v, want one that the library ignores", err)
			}
			gold.err, gold.onCall = nil, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			gold := f.backends["gold"]
			gold.listed = []cinder.Volume{f.orphanVolume("uid-1")}
			f.count()
			if f.followup.loop.Queue.Len() == 0 {
				t.Fatal("the volume is not taken for an orphan")
			}
			claim := f.claim(nil)
			wait(f, gold, claim)
			f.wantRequeued()
			f.follow(f.followup)
			gold.health = nil
			f.publish(parking.Backend, "gold")
			f.wantRequeued("data")
			if !f.admits(claim) {
				t.Error("not admitted after the outage")
			}
		})
	}
}
