package ledger

import (
	"errors"
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/policy"
)

const snapshotPolicy = `
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
backends:
  - {name: gold, auth: {cloud: gold}}
tenants:
  - name: a
    namespaces: [team-a]
    quota: {volumes: 1, snapshots: 3}
    classes:
      - {storageClasses: [fast], backends: [gold], quota: {snapshots: 2}}
      - {storageClasses: ["*"], backends: [gold]}
`

func (l *Ledger) takeSnapshot(uid, class string) string {
	inForce := l.policy()
	decision := inForce.DecideSnapshot(policy.SnapshotRequest{Namespace: "team-a", StorageClass: class, Backend: "gold", Tenant: "a"})
	denial, err := l.ReserveSnapshot(types.UID(uid), "gold", Snapshot{"a", class}, Decided{Decision: decision, Revision: inForce.Revision()})
	switch {
	case err != nil:
		return err.Error()
	case denial != nil:
		return denial.Message
	}
	return ""
}

func TestSnapshotsCountAgainstTenantAndRule(t *testing.T) {
	p := parsePolicy(t, snapshotPolicy)
	l := New(func() *policy.Policy { return p })
	const rule = "StorageClasses [fast] of tenant a would use 3 of 2 snapshots (tenants[0].classes[0].quota.snapshots)"
	const tenant = "tenant a would use 4 of 3 snapshots (tenants[0].quota.snapshots)"
	take := func(uid, class, want string) {
		t.Helper()
		if got := l.takeSnapshot(uid, class); got != want {
			t.Errorf("snapshot %s: %q, want %q", uid, got, want)
		}
	}
	used := func(want int64) {
		t.Helper()
		if got := l.Usage(policy.TenantScope, "a"); got.Snapshots != want || got.Volumes != 0 {
			t.Errorf("the tenant uses %+v, want %d snapshots", got, want)
		}
	}
	take("1", "fast", "")
	take("2", "fast", "")
	take("2", "fast", "")
	used(2)
	take("3", "fast", rule)
	// What is recorded counts in place of the reservation.
	l.RecordSnapshot("1", "gold", Snapshot{"a", "fast"})
	used(2)
	// What a listing shows counts, unless it counts already.
	l.FoundSnapshots("gold", map[types.UID]Snapshot{"1": {"a", "fast"}, "9": {"a", "slow"}})
	used(3)
	take("4", "slow", tenant)
	released := func(_ string, freed bool) bool { return freed }
	if released(l.ReleaseSnapshotReservation("1")) {
		t.Error("a recorded snapshot was released as if it were a reservation")
	}
	if !released(l.ReleaseSnapshotReservation("2")) || released(l.ReleaseSnapshotReservation("2")) {
		t.Error("the reservation was not released once")
	}
	used(2)
	// A retained snapshot counts until a listing shows that it is gone.
	l.ForsakeSnapshot("1")
	used(2)
	if freed := l.FoundSnapshots("gold", nil); fmt.Sprint(freed) != "[a a]" || l.FoundSnapshots("gold", nil) != nil {
		t.Error("the room of vanished snapshots was not freed once")
	}
	used(0)
	take("5", "fast", "")
	// Another policy counts the same snapshots again.
	p = parsePolicy(t, snapshotPolicy+"\n      # changed\n")
	used(1)
	if census := l.Census(); census.Shares[Share{"a", "gold"}].Snapshots != 1 {
		t.Errorf("the census is %+v", census)
	}
	if tenant, freed := l.ReleaseSnapshot("5"); tenant != "a" || !freed || released(l.ReleaseSnapshot("5")) {
		t.Error("the snapshot was not released once")
	}
	used(0)
}

func TestSnapshotOfAnOlderPolicyReservesNothing(t *testing.T) {
	p := parsePolicy(t, snapshotPolicy)
	l := New(func() *policy.Policy { return p })
	_, err := l.ReserveSnapshot("1", "gold", Snapshot{"a", "fast"}, Decided{Revision: "older"})
	if !errors.Is(err, ErrPolicyChanged) || l.Usage(policy.TenantScope, "a").Snapshots != 0 {
		t.Error(fmt.Errorf("error %w", err))
	}
}
