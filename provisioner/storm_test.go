package provisioner

import (
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/ledger"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/placement"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

// TestFullBackendAndFullQuotaCauseADelay: Cinder's quota rejects volumes on one
// backend, and the policy's limit leaves no room on the other.
func TestFullBackendAndFullQuotaCauseADelay(t *testing.T) {
	f := newFixture(t)
	f.inForce("auth: {cloud: silver}", "auth: {cloud: silver}\n    limits: {volumes: 0}")
	f.count()
	f.backends["gold"].err = errGoldAtLimit
	claim := f.both()
	for range 3 {
		if _, err := f.provision(claim); err == nil || isIgnored(err) {
			t.Fatalf("error %v, want one with a delay", err)
		}
		f.wantRequeued()
	}
	if got := len(f.backends["gold"].calls); got != 3 {
		t.Errorf("%d requests in 3 rounds", got)
	}
}

// TestRecoveryOfAnotherBackendHelpsNothing: a claim comes back only for a backend that
// it waits for.
func TestRecoveryOfAnotherBackendHelpsNothing(t *testing.T) {
	f := newFixture(t)
	gold := f.backends["gold"]
	gold.err = &cinder.Error{Kind: cinder.KindInvalid, Backend: "gold", Message: "no such type"}
	failing := f.named("failing")
	gold.onCall = func() { f.publish(parking.Backend, "silver") } // in the middle of the attempt
	if _, err := f.provision(failing); err == nil {
		t.Fatal("the attempt succeeded")
	}
	gold.onCall = nil
	f.wantRequeued()
	pv := f.pvOf("deleting")
	if err := f.delete(pv); err == nil {
		t.Fatal("deleted")
	}
	f.publish(parking.Backend, "silver")
	f.publish(parking.Credentials, "silver")
	f.wantRequeued()
	f.publish(parking.Backend, "gold")
	f.wantRequeued("failing", pv.Name)
}

// pvOf returns a PersistentVolume of another claim.
func (f *fixture) pvOf(claim string) *corev1.PersistentVolume {
	f.t.Helper()
	gold := f.backends["gold"]
	failure := gold.err
	gold.err = nil
	defer func() { gold.err = failure }()
	pv, err := f.provision(f.named(claim))
	f.must(err)
	pv.UID = types.UID("pv-of-" + claim)
	pv.Annotations[objects.AnnotationProvisionedBy] = "test"
	return pv
}

// TestFreedRoomIsOfferedToClaimsThatWaitForIt: no other claims come back.
func TestFreedRoomIsOfferedToClaimsThatWaitForIt(t *testing.T) {
	for _, c := range []struct {
		name  string
		freed ledger.Scope
		want  []string
	}{
		{"in the tenant's quota", ledger.Scope{Kind: policy.TenantScope, Name: "a"}, []string{"second"}},
		{"on a backend", ledger.Scope{Kind: policy.BackendScope, Name: "gold"}, nil},
		{"in another tenant's quota", ledger.Scope{Kind: policy.TenantScope, Name: "b"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t)
			f.limit("1")
			f.count()
			f.admits(f.named("first"))
			if f.admits(f.named("second")) {
				t.Fatal("admitted")
			}
			f.Board.Publish(placement.RoomIn(c.freed))
			f.wantRequeued(c.want...)
		})
	}
}

// TestClaimDeletedInMidProvisionKeepsItsTurnUntilTheWorkEnds: otherwise a tenant
// that creates and deletes claims could exceed its concurrency.
func TestClaimDeletedInMidProvisionKeepsItsTurnUntilTheWorkEnds(t *testing.T) {
	f := newFixture(t)
	f.inForce("volumeSize: {max: 10Gi}", "limits: {concurrency: 1}")
	first, second := f.named("first"), f.named("second")
	if !f.admits(first) || f.admits(second) {
		t.Fatal("not one claim of two is worked on")
	}
	f.backends["gold"].onCall = func() {
		f.backends["gold"].onCall = nil
		f.forgetClaim(first)
		f.must(f.claimGone(t.Context(), first.UID))
		f.wantRequeued()
		if f.admits(second) {
			t.Error("another claim of the tenant is worked on at the same time")
		}
	}
	_, _ = f.provision(first)
	f.wantRequeued("second")
}

// TestClaimThatProvisionParksComesBack: the claim's turn lapsed between the
// invitation and the work, and another claim has it.
func TestClaimThatProvisionParksComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.inForce("volumeSize: {max: 10Gi}", "limits: {concurrency: 1}")
		first, second := f.named("first"), f.named("second")
		f.admits(first)
		synctest.Wait()
		f.parkedClaims.loop.Turns.End(string(first.UID)) // lapsed
		if !f.admits(second) {
			t.Fatal("the turn that lapsed was not given to the second claim")
		}
		if _, err := f.provision(first); !isIgnored(err) {
			t.Fatalf("error %v, want one that the library ignores", err)
		}
		if _, err := f.provision(second); err != nil {
			t.Fatal(err)
		}
		f.wantRequeued("first")
	})
}
