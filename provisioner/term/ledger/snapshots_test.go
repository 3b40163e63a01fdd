package ledger

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

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
	denial, err := l.ReserveSnapshot(types.UID(uid), "gold", Snapshot{Tenant: "a", StorageClass: class}, Decided{Decision: decision, Revision: inForce.Revision()})
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
	// A recorded snapshot counts in place of its reservation.
	l.RecordSnapshot("1", "gold", Snapshot{Tenant: "a", StorageClass: "fast"})
	used(2)
	// A listed snapshot counts, unless it counts already.
	l.FoundSnapshots("gold", map[types.UID]Snapshot{"1": {Tenant: "a", StorageClass: "fast"}, "9": {Tenant: "a", StorageClass: "slow"}}, time.Now())
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
	l.ContentGone("1")
	used(2)
	if freed := l.FoundSnapshots("gold", nil, time.Now()); fmt.Sprint(freed) != "[a a]" || l.FoundSnapshots("gold", nil, time.Now()) != nil {
		t.Error("the room of vanished snapshots was not freed once")
	}
	used(0)
	take("5", "fast", "")
	// Under another policy, the same snapshots count again.
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
	_, err := l.ReserveSnapshot("1", "gold", Snapshot{Tenant: "a", StorageClass: "fast"}, Decided{Revision: "older"})
	if !errors.Is(err, ErrPolicyChanged) || l.Usage(policy.TenantScope, "a").Snapshots != 0 {
		t.Error(fmt.Errorf("error %w", err))
	}
}

// TestFoundSnapshotCountsForATenantThatMayUseItsBackend: it does not matter in which order
// the backends are listed and the policy changes.
func TestFoundSnapshotCountsForATenantThatMayUseItsBackend(t *testing.T) {
	for name, test := range listings {
		t.Run(name, func(t *testing.T) {
			l := listed(t, test.begin, test.steps, func(l *Ledger, backend string) {
				if freed := l.FoundSnapshots(backend, map[types.UID]Snapshot{"1": {Tenant: "a", StorageClass: "fast"}}, time.Now()); freed != nil {
					t.Errorf("the room of a snapshot that is there was freed for %q", freed)
				}
			})
			if got := l.Usage(policy.TenantScope, "a").Snapshots; got != test.counts {
				t.Errorf("%d snapshots count for the tenant, want %d", got, test.counts)
			}
			tenant := ""
			if test.counts == 1 {
				tenant = "a"
			}
			if got, want := fmt.Sprint(l.Census().Shares), fmt.Sprintf("map[{%s %s}:{0 0 1 0}]", tenant, test.backend); got != want {
				t.Errorf("the census has the shares %s, want %s", got, want)
			}
			// The room is the tenant's only if the snapshot counted for it.
			if freed := l.FoundSnapshots(test.backend, nil, time.Now()); fmt.Sprint(freed) != "["+tenant+"]" || l.Usage(policy.TenantScope, "a").Snapshots != 0 {
				t.Errorf("when the snapshot is gone, room is freed for %q, want %q", freed, tenant)
			}
		})
	}
}

// TestSnapshotWhoseContentIsGoneCountsWhateverItsTenantMayUse: the content recorded whose
// the snapshot is.
func TestSnapshotWhoseContentIsGoneCountsWhateverItsTenantMayUse(t *testing.T) {
	current := mayUse(t, "gold")
	l := New(func() *policy.Policy { return current })
	l.RecordSnapshot("1", "gold", Snapshot{Tenant: "a", StorageClass: "fast"})
	l.ContentGone("1")
	current = mayUse(t, "silver")
	l.FoundSnapshots("silver", map[types.UID]Snapshot{"1": {Tenant: "a", StorageClass: "fast"}}, time.Now())
	if got, want := fmt.Sprint(l.Census().Shares), "map[{a gold}:{0 0 1 0}]"; got != want {
		t.Errorf("the census has the shares %s, want %s", got, want)
	}
}

// TestSnapshotThatWasLeftNeedsNoMoreRoom: whoever imports a snapshot that the tenant
// left behind gets its room, and nobody else does.
func TestSnapshotThatWasLeftNeedsNoMoreRoom(t *testing.T) {
	p := parsePolicy(t, snapshotPolicy)
	for name, test := range map[string]struct {
		left     types.UID
		tenant   string
		recorded bool
		admitted bool
	}{
		"left by the tenant":     {left: "1", tenant: "a", admitted: true},
		"left by another tenant": {left: "1", tenant: "b"},
		"a content names it":     {left: "1", tenant: "a", recorded: true},
		"another one":            {left: "9", tenant: "a"},
		"nobody left it":         {tenant: "a"},
	} {
		t.Run(name, func(t *testing.T) {
			l := New(func() *policy.Policy { return p })
			l.FoundSnapshots("gold", map[types.UID]Snapshot{"1": {Tenant: test.tenant, StorageClass: "fast"}, "2": {Tenant: "a", StorageClass: "fast"}, "3": {Tenant: "a", StorageClass: "fast"}}, time.Now())
			if test.recorded {
				l.RecordSnapshot("1", "gold", Snapshot{Tenant: test.tenant, StorageClass: "fast"})
			}
			before := l.Usage(policy.TenantScope, "a").Snapshots
			decision := p.DecideSnapshot(policy.SnapshotRequest{Namespace: "team-a", StorageClass: "slow", Backend: "gold", Tenant: "a"})
			if test.tenant == "b" {
				l.FoundSnapshots("gold", map[types.UID]Snapshot{"1": {Tenant: "b", StorageClass: "fast"}, "2": {Tenant: "a", StorageClass: "fast"}, "3": {Tenant: "a", StorageClass: "fast"}, "4": {Tenant: "a", StorageClass: "fast"}}, time.Now())
				before = 3
			}
			denial, err := l.ReserveSnapshot("5", "gold", Snapshot{Tenant: "a", StorageClass: "slow"}, Decided{Decision: decision, Revision: p.Revision(), LeftBy: test.left})
			if err != nil || (denial == nil) != test.admitted {
				t.Errorf("denial %+v, error %v", denial, err)
			}
			if after := l.Usage(policy.TenantScope, "a").Snapshots; after != before {
				t.Errorf("%d snapshots count, and %d did before", after, before)
			}
			// An import that ends before anything was written changes nothing.
			l.ReleaseSnapshotReservation("5")
			if after := l.Usage(policy.TenantScope, "a").Snapshots; after != before {
				t.Errorf("%d snapshots count after the import was given up, and %d did before", after, before)
			}
		})
	}
}

// TestImportThatWasRecordedAfterAllCountsOnce: the answer to the request that records
// an import may be lost. The import is then given up and tried again.
func TestImportThatWasRecordedAfterAllCountsOnce(t *testing.T) {
	p := parsePolicy(t, snapshotPolicy)
	l := New(func() *policy.Policy { return p })
	l.FoundSnapshots("gold", map[types.UID]Snapshot{"1": {Tenant: "a", StorageClass: "fast"}}, time.Now())
	reserve := func() {
		t.Helper()
		decision := p.DecideSnapshot(policy.SnapshotRequest{Namespace: "team-a", StorageClass: "slow", Backend: "gold", Tenant: "a"})
		if denial, err := l.ReserveSnapshot("5", "gold", Snapshot{Tenant: "a", StorageClass: "slow"}, Decided{Decision: decision, Revision: p.Revision(), LeftBy: "1"}); denial != nil || err != nil {
			t.Errorf("denial %+v, error %v", denial, err)
		}
	}
	reserve()
	l.ReleaseSnapshotReservation("5")
	l.RecordSnapshot("5", "gold", Snapshot{Tenant: "a", StorageClass: "slow"})
	p = parsePolicy(t, snapshotPolicy+"\n      # changed\n")
	reserve()
	reserve()
	if used := l.Usage(policy.TenantScope, "a").Snapshots; used != 1 {
		t.Errorf("%d snapshots count, and there is 1", used)
	}
	// Until it has its new stamp, it may be given up. Then a listing shows whose it is.
	l.ContentGone("5")
	l.FoundSnapshots("gold", map[types.UID]Snapshot{"1": {Tenant: "a", StorageClass: "fast"}}, time.Now())
	if used := l.Usage(policy.TenantScope, "a").Snapshots; used != 1 {
		t.Errorf("%d snapshots count after it was given up, and there is 1", used)
	}
}

// TestSnapshotThatWasLeftDuringAListingStillCounts: it may have been taken after the
// page that would have shown it.
func TestSnapshotThatWasLeftDuringAListingStillCounts(t *testing.T) {
	p := parsePolicy(t, snapshotPolicy)
	l := New(func() *policy.Policy { return p })
	began := time.Now()
	l.RecordSnapshot("1", "gold", Snapshot{Tenant: "a", StorageClass: "fast"})
	l.ContentGone("1")
	for _, listing := range []struct {
		began time.Time
		want  int64
	}{{time.Time{}, 1}, {began, 1}, {time.Now(), 0}} {
		l.FoundSnapshots("gold", nil, listing.began)
		if used := l.Usage(policy.TenantScope, "a").Snapshots; used != listing.want {
			t.Errorf("%d snapshots count after a listing that began at %s, want %d", used, listing.began, listing.want)
		}
	}
}

// TestSizesOfSnapshots: a snapshot keeps the size that its volume had when it was taken,
// also in the next term, whatever becomes of the volume.
func TestSizesOfSnapshots(t *testing.T) {
	p := parsePolicy(t, strings.Replace(snapshotPolicy, "snapshots: 3}", "snapshots: 3, snapshotGigabytes: 100}", 1))
	decision := p.DecideSnapshot(policy.SnapshotRequest{Namespace: "team-a", StorageClass: "fast", Backend: "gold", Tenant: "a"})
	of := func(gib int64, estimated bool) Snapshot {
		return Snapshot{Tenant: "a", StorageClass: "fast", GiB: gib, Estimated: estimated}
	}
	reserve := func(l *Ledger) {
		if denial, err := l.ReserveSnapshot("1", "gold", of(40, true), Decided{Decision: decision, Revision: p.Revision()}); denial != nil || err != nil {
			t.Fatal(denial, err)
		}
	}
	record := func(gib int64, estimated bool) func(*Ledger) {
		return func(l *Ledger) { l.RecordSnapshot("1", "gold", of(gib, estimated)) }
	}
	listing := func(gib int64) func(*Ledger) {
		return func(l *Ledger) { l.FoundSnapshots("gold", map[types.UID]Snapshot{"1": of(gib, false)}, time.Now()) }
	}
	for name, test := range map[string]struct {
		steps []func(*Ledger)
		want  int64
	}{
		"reserved":                              {[]func(*Ledger){reserve}, 40},
		"recorded, and the volume has grown":    {[]func(*Ledger){reserve, record(70, true)}, 40},
		"its size is known":                     {[]func(*Ledger){reserve, record(70, true), record(41, false)}, 41},
		"known, then an older record":           {[]func(*Ledger){record(41, false), record(70, true)}, 41},
		"next term, not known":                  {[]func(*Ledger){record(70, true)}, 70},
		"next term, then listed":                {[]func(*Ledger){record(70, true), listing(41)}, 41},
		"listed on another backend of the name": {[]func(*Ledger){record(70, true), func(l *Ledger) { l.FoundSnapshots("silver", map[types.UID]Snapshot{"1": of(1, false)}, time.Now()) }}, 70},
		"next term, listed, then recorded":      {[]func(*Ledger){listing(41), record(70, true)}, 41},
		"next term, known":                      {[]func(*Ledger){record(41, false), listing(41)}, 41},
		"left behind":                           {[]func(*Ledger){record(41, false), func(l *Ledger) { l.ContentGone("1") }}, 41},
		"gone":                                  {[]func(*Ledger){record(41, false), func(l *Ledger) { l.ReleaseSnapshot("1") }}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			l := New(func() *policy.Policy { return p })
			for _, step := range test.steps {
				step(l)
			}
			if got := l.Usage(policy.TenantScope, "a").SnapshotGigabytes; got != test.want {
				t.Errorf("%d GiB of snapshots count, want %d", got, test.want)
			}
			denial, err := l.ReserveSnapshot("2", "gold", of(101-test.want, false), Decided{Decision: decision, Revision: p.Revision()})
			if err != nil || denial == nil || denial.Message != "tenant a would use 101 of 100 GiB of snapshots (tenants[0].quota.snapshotGigabytes)" {
				t.Errorf("denial %v, error %v", denial, err)
			}
		})
	}
}

// TestCorrectedEstimatesFreeRoom: whoever waits for it is to be told.
func TestCorrectedEstimatesFreeRoom(t *testing.T) {
	of := func(gib int64, estimated bool) Snapshot {
		return Snapshot{Tenant: "a", StorageClass: "fast", GiB: gib, Estimated: estimated}
	}
	for name, test := range map[string]struct {
		correct func(l *Ledger, to int64) (freed []string)
	}{
		"by a listing": {func(l *Ledger, to int64) []string {
			return l.FoundSnapshots("gold", map[types.UID]Snapshot{"1": of(to, false)}, time.Now())
		}},
		"by the status": {func(l *Ledger, to int64) []string {
			if tenant, freed := l.RecordSnapshot("1", "gold", of(to, false)); freed {
				return []string{tenant}
			}
			return nil
		}},
	} {
		for to, want := range map[int64]string{41: "[a]", 70: "[]", 80: "[]"} {
			p := parsePolicy(t, snapshotPolicy)
			l := New(func() *policy.Policy { return p })
			l.RecordSnapshot("1", "gold", of(70, true))
			if freed := test.correct(l, to); fmt.Sprint(freed) != want {
				t.Errorf("%s to %d GiB: %v have room, want %s", name, to, freed, want)
			}
		}
	}
}
