package ledger

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/standalone-cinder/standalone-cinder/policy"
)

const quotaPolicy = `
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
backends:
  - {name: gold, auth: {cloud: gold}, limits: {volumes: 5}}
  - {name: silver, auth: {cloud: silver}, limits: {gigabytes: 40}}
tenants:
  - name: a
    namespaces: [team-a]
    quota: {volumes: 6, gigabytes: 50}
    classes:
      - {storageClasses: [fast], backends: [gold, silver], quota: {gigabytes: 20}}
      - {storageClasses: ["*"], backends: [gold, silver]}
  - name: b
    namespaces: [team-b]
    classes:
      - {storageClasses: ["*"], backends: [gold]}
`

func parsePolicy(t interface{ Fatal(...any) }, text string) *policy.Policy {
	p, err := policy.Parse([]byte(text), "policy.yaml", nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func ledgerOf(t interface{ Fatal(...any) }) *Ledger {
	p := parsePolicy(t, quotaPolicy)
	return New(func() *policy.Policy { return p })
}

// reserve asks the policy first and then the ledger, as the daemon does.
func (l *Ledger) reserve(claim types.UID, h Volume) (string, []PassedOver, *policy.Denial) {
	inForce := l.policy()
	decision := inForce.Decide(policy.Request{Namespace: "team-" + h.Tenant, StorageClass: h.StorageClass, Bytes: h.GiB << 30})
	backend, passedOver, denied, err := l.Reserve(claim, h.StorageClass, Decided{Decision: decision, Revision: inForce.Revision()})
	if err != nil {
		panic(err)
	}
	if denied == nil {
		return backend, passedOver, nil
	}
	return backend, passedOver, denied.Denial
}

func TestReservationTakesTheFirstBackendWithRoom(t *testing.T) {
	l := ledgerOf(t)
	for i := range 5 {
		if backend, _, denied := l.reserve(types.UID(fmt.Sprint(i)), Volume{Tenant: "b", StorageClass: "x", GiB: 1}); backend != "gold" || denied != nil {
			t.Fatalf("reservation %d: %q, %v", i, backend, denied)
		}
	}
	backend, passedOver, denied := l.reserve("a-1", Volume{Tenant: "a", StorageClass: "x", GiB: 1})
	if backend != "silver" || denied != nil {
		t.Fatalf("%q, %v", backend, denied)
	}
	const want = "backend gold would use 6 of 5 volumes (backends[0].limits.volumes)"
	if len(passedOver) != 1 || passedOver[0].Backend != "gold" || passedOver[0].Why != want {
		t.Errorf("passed over %+v", passedOver)
	}
	_, _, denied = l.reserve("b-6", Volume{Tenant: "b", StorageClass: "x", GiB: 1})
	if denied == nil || denied.Reason != policy.QuotaExceeded || denied.Message != want {
		t.Errorf("denial %+v", denied)
	}
	// Released room is available.
	if !l.Release("0") || l.Release("0") {
		t.Error("a reservation must be given back once")
	}
	if backend, _, denied := l.reserve("b-6", Volume{Tenant: "b", StorageClass: "x", GiB: 1}); backend != "gold" {
		t.Errorf("%q, %v", backend, denied)
	}
}

func TestClaimCountsOnceWhateverItIs(t *testing.T) {
	l := ledgerOf(t)
	volume := Volume{Tenant: "a", StorageClass: "fast", GiB: 10}
	l.Found("1", volume, "silver")
	// The volume is on silver, so the claim stays there.
	if backend, _, denied := l.reserve("1", volume); backend != "silver" || denied != nil {
		t.Errorf("%q, %v", backend, denied)
	}
	l.Record("1", Volume{Tenant: "a", StorageClass: "fast", GiB: 11}, "silver")
	l.Record("1", Volume{Tenant: "a", StorageClass: "fast", GiB: 11}, "silver")
	l.Found("1", volume, "silver")
	for name, kind := range map[string]policy.ScopeKind{"a": policy.TenantScope, "tenants[0].classes[0]": policy.ClassScope, "silver": policy.BackendScope} {
		if got := l.Usage(kind, name); got != (policy.Usage{Volumes: 1, Gigabytes: 11}) {
			t.Errorf("%s %s: %+v", kind, name, got)
		}
	}
	_, _, denied := l.reserve("2", volume)
	const want = "StorageClasses [fast] of tenant a would use 21 of 20 GiB (tenants[0].classes[0].quota.gigabytes)"
	if denied == nil || denied.Message != want {
		t.Errorf("denial %+v, want %s", denied, want)
	}
}

func TestAnotherPolicyCountsTheSameVolumesByItsOwnRules(t *testing.T) {
	current := parsePolicy(t, quotaPolicy)
	l := New(func() *policy.Policy { return current })
	l.Record("1", Volume{Tenant: "a", StorageClass: "fast", GiB: 15}, "gold")
	// The rules swap positions, and so their paths in the policy swap as well.
	current = parsePolicy(t, `
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
backends:
  - {name: gold, auth: {cloud: gold}}
tenants:
  - name: a
    namespaces: [team-a]
    classes:
      - {storageClasses: [slow], backends: [gold]}
      - {storageClasses: [fast], backends: [gold], quota: {gigabytes: 20}}
`)
	if _, _, denied := l.reserve("2", Volume{Tenant: "a", StorageClass: "fast", GiB: 6}); denied == nil {
		t.Error("21 of 20 GiB were granted")
	}
	if got := l.Usage(policy.ClassScope, "tenants[0].classes[0]"); got != (policy.Usage{}) {
		t.Errorf("the other rule is charged with %+v", got)
	}
}

func TestConcurrentClaimsNeverShareTheLastRoom(t *testing.T) {
	l := ledgerOf(t)
	var group sync.WaitGroup
	granted := make(chan string, 100)
	for i := range 100 {
		group.Go(func() {
			if backend, _, _ := l.reserve(types.UID(fmt.Sprint(i)), Volume{Tenant: "a", StorageClass: "x", GiB: 1}); backend != "" {
				granted <- backend
			}
		})
	}
	group.Wait()
	if len(granted) != 6 {
		t.Errorf("%d claims got a volume, the tenant may have 6", len(granted))
	}
}

// mayUse returns a policy under which tenant a may use only some of the backends, and
// tenant b only silver.
func mayUse(t *testing.T, backends string) *policy.Policy {
	t.Helper()
	return parsePolicy(t, `
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
backends:
  - {name: gold, auth: {cloud: gold}}
  - {name: silver, auth: {cloud: silver}}
tenants:
  - name: a
    namespaces: [team-a]
    classes:
      - {storageClasses: ["*"], backends: [`+backends+`]}
  - name: b
    namespaces: [team-b]
    classes:
      - {storageClasses: ["*"], backends: [silver]}
`)
}

// listings are the cases of a volume or snapshot of tenant a that nothing records. Every
// step lists a backend, or puts a policy in force that lets the tenant use the backends
// that follow "=". Only the stamp says whose it is, so it counts for the tenant only where
// the tenant may use it, but it always counts at one backend.
var listings = map[string]struct {
	begin   string
	steps   []string
	backend string
	counts  int64
}{
	"where the tenant may use it":                  {"gold", []string{"gold"}, "gold", 1},
	"where the tenant may not use it":              {"gold", []string{"silver"}, "silver", 0},
	"there first":                                  {"gold", []string{"silver", "gold", "silver", "gold"}, "gold", 1},
	"there last":                                   {"gold", []string{"gold", "silver", "gold", "silver"}, "gold", 1},
	"on two backends that the tenant may use":      {"gold, silver", []string{"silver", "gold"}, "silver", 1},
	"before the policy lets the tenant use it":     {"silver", []string{"gold", "=gold"}, "gold", 1},
	"until the policy lets the tenant use another": {"gold", []string{"gold", "=silver"}, "gold", 0},
	"when the other backend is listed after that":  {"gold", []string{"gold", "=silver", "silver"}, "silver", 1},
	"when the policy is as it was":                 {"gold", []string{"gold", "=silver", "=gold"}, "gold", 1},
	"again where it counts":                        {"silver", []string{"gold", "=gold", "silver"}, "gold", 1},
}

// listed returns a ledger after the steps of one of these cases.
func listed(t *testing.T, begin string, steps []string, list func(l *Ledger, backend string)) *Ledger {
	t.Helper()
	current := mayUse(t, begin)
	l := New(func() *policy.Policy { return current })
	for _, step := range steps {
		if backends, reload := strings.CutPrefix(step, "="); reload {
			current = mayUse(t, backends)
		} else {
			list(l, step)
		}
	}
	return l
}

// TestFoundVolumeCountsForATenantThatMayUseItsBackend: it does not matter in which order
// the backends are listed and the policy changes.
func TestFoundVolumeCountsForATenantThatMayUseItsBackend(t *testing.T) {
	for name, test := range listings {
		t.Run(name, func(t *testing.T) {
			l := listed(t, test.begin, test.steps, func(l *Ledger, backend string) {
				l.Found("1", Volume{Tenant: "a", StorageClass: "fast", GiB: 2, VolumeID: "volume"}, backend)
			})
			if got := l.Usage(policy.TenantScope, "a").Volumes; got != test.counts {
				t.Errorf("%d volumes count for the tenant, want %d", got, test.counts)
			}
			position, _ := l.PositionOf("1")
			if position.Backend != test.backend || (position.Tenant == "a") != (test.counts == 1) {
				t.Errorf("the claim counts for tenant %q on %s, want %s", position.Tenant, position.Backend, test.backend)
			}
			for _, backend := range []string{"gold", "silver"} {
				want := policy.Usage{}
				if backend == test.backend {
					want = policy.Usage{Volumes: 1, Gigabytes: 2}
				}
				if got := l.Usage(policy.BackendScope, backend); got != want || l.HasFound(backend) != (got.Volumes == 1) {
					t.Errorf("backend %s: %+v, want %+v", backend, got, want)
				}
			}
			if shares := l.Census().Shares; len(shares) != 1 || shares[Share{position.Tenant, test.backend}].Volumes != 1 {
				t.Errorf("the census has the shares %v", shares)
			}
		})
	}
}

// TestVolumeThatMovesFreesRoom: claims may wait for the room of the backend where a volume
// counted for no tenant.
func TestVolumeThatMovesFreesRoom(t *testing.T) {
	p := mayUse(t, "gold")
	l := New(func() *policy.Policy { return p })
	volume := Volume{Tenant: "a", StorageClass: "fast", GiB: 2}
	for i, listing := range []struct {
		backend string
		frees   bool
	}{{"silver", false}, {"gold", true}, {"silver", false}, {"gold", false}} {
		if freed := l.Found("1", volume, listing.backend); freed != listing.frees {
			t.Errorf("listing %d, of %s: room was freed: %t", i, listing.backend, freed)
		}
	}
	if freed := l.TakeFreed(); !slices.Equal(freed, []Scope{{policy.BackendScope, "silver"}}) {
		t.Errorf("room was freed in %v", freed)
	}
}

// TestVolumeThatIsRecordedCountsWhateverItsTenantMayUse: the program itself recorded whose
// the volume is, and a policy never changes volumes that exist.
func TestVolumeThatIsRecordedCountsWhateverItsTenantMayUse(t *testing.T) {
	volume := Volume{Tenant: "a", StorageClass: "fast", GiB: 2}
	for name, happens := range map[string]func(l *Ledger){
		"it is recorded":                 func(l *Ledger) { l.Record("1", volume, "gold") },
		"its PersistentVolume is gone":   func(l *Ledger) { l.Record("1", volume, "gold"); l.PersistentVolumeGone("1") },
		"it was found and then recorded": func(l *Ledger) { l.Found("1", volume, "gold"); l.Record("1", volume, "gold") },
		"it is kept without a PersistentVolume": func(l *Ledger) {
			l.reserve("1", volume)
			l.Keep("1")
		},
	} {
		t.Run(name, func(t *testing.T) {
			current := mayUse(t, "gold")
			l := New(func() *policy.Policy { return current })
			happens(l)
			current = mayUse(t, "silver")
			for _, backend := range []string{"silver", "gold"} {
				l.Found("1", volume, backend)
			}
			if position, _ := l.PositionOf("1"); position.Tenant != "a" || position.Backend != "gold" {
				t.Errorf("the volume counts for tenant %q on %s", position.Tenant, position.Backend)
			}
			if got := l.Usage(policy.TenantScope, "a").Volumes; got != 1 {
				t.Errorf("%d volumes count for the tenant, want 1", got)
			}
		})
	}
}

// TestNoInterleavingExceedsALimitOrLosesRoom runs random histories of claims
// and reloads against a model that keeps a plain list, and checks every limit after every
// step.
func TestNoInterleavingExceedsALimitOrLosesRoom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := parsePolicy(t, quotaPolicy)
		// Under the other policy, tenant a may use only silver.
		other := parsePolicy(t, strings.ReplaceAll(quotaPolicy, "[gold, silver]", "[silver]"))
		l := New(func() *policy.Policy { return p })
		model := map[types.UID]entry{}
		gone := map[types.UID]bool{}
		uids := rapid.SampledFrom([]types.UID{"1", "2", "3", "4", "5", "6", "7", "8"})
		volumes := rapid.Custom(func(t *rapid.T) Volume {
			return Volume{
				Tenant:       rapid.SampledFrom([]string{"a", "b"}).Draw(t, "tenant"),
				StorageClass: rapid.SampledFrom([]string{"fast", "x"}).Draw(t, "class"),
				GiB:          rapid.Int64Range(1, 30).Draw(t, "GiB"),
			}
		})
		forced := false
		t.Repeat(map[string]func(*rapid.T){
			"reserve": func(t *rapid.T) {
				uid, volume := uids.Draw(t, "uid"), volumes.Draw(t, "holding")
				backend, _, denied := l.reserve(uid, volume)
				known, counted := model[uid]
				switch {
				case counted && backend != known.backend:
					t.Fatalf("claim %s moved from %s to %q", uid, known.backend, backend)
				case !counted && denied == nil:
					model[uid] = entry{Volume: volume, backend: backend}
				}
			},
			"the volume is recorded": func(t *rapid.T) {
				uid := uids.Draw(t, "uid")
				if known, counted := model[uid]; counted {
					known.byStamp = false
					model[uid] = known
					l.Record(uid, known.Volume, known.backend)
				}
			},
			"it failed, or is gone": func(t *rapid.T) {
				uid := uids.Draw(t, "uid")
				_, counted := model[uid]
				if l.Release(uid) != counted {
					t.Fatalf("claim %s: released, counted %t", uid, counted)
				}
				delete(model, uid)
				gone[uid] = true
			},
			"it comes to nothing": func(t *rapid.T) {
				uid := uids.Draw(t, "uid")
				if l.ReleaseReservation(uid) {
					delete(model, uid)
				}
			},
			"another leader counts": func(t *rapid.T) {
				l = New(func() *policy.Policy { return p })
				clear(gone)
				for uid, known := range model {
					known.byStamp = !rapid.Bool().Draw(t, "recorded")
					if !known.byStamp {
						l.Record(uid, known.Volume, known.backend)
					}
					model[uid] = known
					l.Found(uid, known.Volume, known.backend)
				}
			},
			"a volume is found": func(t *rapid.T) {
				uid, volume := uids.Draw(t, "uid"), volumes.Draw(t, "holding")
				backend := rapid.SampledFrom([]string{"gold", "silver"}).Draw(t, "backend")
				known, counted := model[uid]
				moves := known.byStamp && !p.MayUse(known.Tenant, known.backend) && p.MayUse(volume.Tenant, backend)
				if !counted && !gone[uid] || moves {
					// What exists counts, whatever the limits say.
					forced = true
					model[uid] = entry{Volume: volume, backend: backend, byStamp: true}
				}
				l.Found(uid, volume, backend)
			},
			"a reload": func(*rapid.T) {
				p, other = other, p
				// What did not count for its tenant may count now.
				forced = true
			},
			"": func(t *rapid.T) {
				sums := map[Scope]policy.Usage{}
				limits := map[Scope]policy.QuotaScope{}
				for _, known := range model {
					tenant := known.Tenant
					if known.byStamp && !p.MayUse(tenant, known.backend) {
						tenant = ""
					}
					for _, s := range p.QuotaScopes(tenant, known.StorageClass, known.backend) {
						key := Scope{s.Kind, s.Name}
						sums[key] = sums[key].Add(l.usageOf("", known))
						limits[key] = s
					}
				}
				for key, want := range sums {
					if got := l.Usage(key.Kind, key.Name); got != want {
						t.Fatalf("%v: the ledger says %+v, the volumes are %+v", key, got, want)
					}
					if exceeded := limits[key].Check(policy.Usage{}, want); exceeded != nil && !forced {
						t.Fatalf("%v: %s", key, exceeded.Message)
					}
				}
			},
		})
	})
}

// TestCensusAddsUp: shares of tenants add up to the sums of backends and tenants,
// and kept volumes are part of them.
func TestCensusAddsUp(t *testing.T) {
	l := ledgerOf(t)
	l.Record("one", Volume{Tenant: "a", StorageClass: "fast", GiB: 3, VolumeID: "v1"}, "gold")
	l.Record("two", Volume{Tenant: "a", StorageClass: "slow", GiB: 4, VolumeID: "v2"}, "silver")
	l.Record("three", Volume{Tenant: "b", StorageClass: "x", GiB: 5, VolumeID: "v3"}, "gold")
	if _, _, denied := l.reserve("four", Volume{Tenant: "a", StorageClass: "fast", GiB: 6}); denied != nil {
		t.Fatal(denied)
	}
	l.PersistentVolumeGone("two")
	c := l.Census()
	if got, want := fmt.Sprint(c.Shares), "map[{a gold}:{2 9 0 0} {a silver}:{1 4 0 0} {b gold}:{1 5 0 0}]"; got != want {
		t.Errorf("shares %s, want %s", got, want)
	}
	if got, want := fmt.Sprint(c.Kept), "map[{a silver}:{1 4 0 0}]"; got != want {
		t.Errorf("kept %s, want %s", got, want)
	}
	for scope, want := range map[Scope]policy.Usage{
		{policy.TenantScope, "a"}:                    {Volumes: 3, Gigabytes: 13},
		{policy.BackendScope, "gold"}:                {Volumes: 3, Gigabytes: 14},
		{policy.ClassScope, "tenants[0].classes[0]"}: {Volumes: 2, Gigabytes: 9},
	} {
		if got := c.Sums[scope]; got != want || got != l.Usage(scope.Kind, scope.Name) {
			t.Errorf("%v: %v, want %v", scope, got, want)
		}
	}
}
