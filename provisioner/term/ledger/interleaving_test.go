package ledger_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/ledger"
)

const quotas = `
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

func parse(t interface{ Fatal(...any) }, text string) *policy.Policy {
	p, err := policy.Parse([]byte("apiVersion: standalone-cinder.openstack.org/v1alpha1\nkind: Policy\n"+text+"\n"), "policy.yaml", nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// reserve asks the policy first and then the ledger, as the hub does. The backend is empty
// if there is no room.
func reserve(l *ledger.Ledger, p *policy.Policy, claim types.UID, v ledger.Volume) (backend string) {
	decision := p.Decide(policy.Request{Namespace: "team-" + v.Tenant, StorageClass: v.StorageClass, Bytes: v.GiB << 30})
	backend, _, _, err := l.Reserve(claim, v.StorageClass, ledger.Decided{Decision: decision, Revision: p.Revision()})
	if err != nil {
		panic(err)
	}
	return backend
}

func TestConcurrentClaimsNeverShareTheLastRoom(t *testing.T) {
	p := parse(t, quotas)
	l := ledger.New(func() *policy.Policy { return p })
	var group sync.WaitGroup
	granted := make(chan string, 100)
	for i := range 100 {
		group.Go(func() {
			if backend := reserve(l, p, types.UID(fmt.Sprint(i)), ledger.Volume{Tenant: "a", StorageClass: "x", GiB: 1}); backend != "" {
				granted <- backend
			}
		})
	}
	group.Wait()
	if len(granted) != 6 {
		t.Errorf("%d claims got a volume, the tenant may have 6", len(granted))
	}
}

// TestNoInterleavingExceedsALimitOrLosesRoom runs random histories of claims
// and reloads against a model that keeps a plain list, and checks every limit after every
// step.
func TestNoInterleavingExceedsALimitOrLosesRoom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := parse(t, quotas)
		// Under the other policy, tenant a may use only silver.
		other := parse(t, strings.ReplaceAll(quotas, "[gold, silver]", "[silver]"))
		l := ledger.New(func() *policy.Policy { return p })
		type entry struct {
			ledger.Volume
			backend string
			byStamp bool
		}
		model := map[types.UID]entry{}
		gone := map[types.UID]bool{}
		uids := rapid.SampledFrom([]types.UID{"1", "2", "3", "4", "5", "6", "7", "8"})
		volumes := rapid.Custom(func(t *rapid.T) ledger.Volume {
			return ledger.Volume{
				Tenant:       rapid.SampledFrom([]string{"a", "b"}).Draw(t, "tenant"),
				StorageClass: rapid.SampledFrom([]string{"fast", "x"}).Draw(t, "class"),
				GiB:          rapid.Int64Range(1, 30).Draw(t, "GiB"),
			}
		})
		forced := false
		t.Repeat(map[string]func(*rapid.T){
			"reserve": func(t *rapid.T) {
				uid, volume := uids.Draw(t, "uid"), volumes.Draw(t, "holding")
				backend := reserve(l, p, uid, volume)
				known, counted := model[uid]
				switch {
				case counted && backend != known.backend:
					t.Fatalf("claim %s moved from %s to %q", uid, known.backend, backend)
				case !counted && backend != "":
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
				l = ledger.New(func() *policy.Policy { return p })
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
				sums := map[ledger.Scope]policy.Usage{}
				limits := map[ledger.Scope]policy.QuotaScope{}
				for _, known := range model {
					tenant := known.Tenant
					if known.byStamp && !p.MayUse(tenant, known.backend) {
						tenant = ""
					}
					for _, s := range p.QuotaScopes(tenant, known.StorageClass, known.backend) {
						key := ledger.Scope{Kind: s.Kind, Name: s.Name}
						sums[key] = sums[key].Add(policy.Usage{Volumes: 1, Gigabytes: known.GiB})
						limits[key] = s
					}
				}
				for _, backend := range []string{"gold", "silver"} {
					counts := slices.ContainsFunc(slices.Collect(maps.Values(model)), func(e entry) bool { return e.backend == backend })
					if l.CountsOn(backend) != counts {
						t.Fatalf("volumes count on backend %s: %t", backend, !counts)
					}
				}
				census := l.Census()
				shares := map[ledger.Scope]policy.Usage{}
				for share, used := range census.Shares {
					for _, key := range []ledger.Scope{{Kind: policy.TenantScope, Name: share.Tenant}, {Kind: policy.BackendScope, Name: share.Backend}} {
						shares[key] = shares[key].Add(used)
					}
				}
				for key, want := range sums {
					if got := l.Usage(key.Kind, key.Name); got != want || census.Sums[key] != want || key.Kind != policy.ClassScope && shares[key] != want {
						t.Fatalf("%v: the ledger says %+v, its census %+v, of shares %+v, the volumes are %+v", key, got, census.Sums[key], shares[key], want)
					}
					if exceeded := limits[key].Check(policy.Usage{}, want); exceeded != nil && !forced {
						t.Fatalf("%v: %s", key, exceeded.Message)
					}
				}
			},
		})
	})
}

// TestNoInterleavingOfGrowthsExceedsALimit: in whichever order growths are reserved,
// given up, recorded and released, the sums are those of the volumes, and within the
// limits.
func TestNoInterleavingOfGrowthsExceedsALimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := parse(t, quotas)
		l := ledger.New(func() *policy.Policy { return p })
		recorded, reserved := map[types.UID]int64{}, map[types.UID]int64{}
		uids, sizes := rapid.SampledFrom([]types.UID{"1", "2", "3"}), rapid.Int64Range(1, 20)
		of := func(uid types.UID) ledger.Volume {
			return ledger.Volume{Tenant: "a", StorageClass: "fast", GiB: recorded[uid], VolumeID: "volume-" + string(uid)}
		}
		for _, uid := range []types.UID{"1", "2", "3"} {
			recorded[uid] = 2
			l.Record(uid, of(uid), "silver")
		}
		t.Repeat(map[string]func(*rapid.T){
			"grow": func(t *rapid.T) {
				uid, size := uids.Draw(t, "uid"), sizes.Draw(t, "size")
				decision := p.DecideExpansion(policy.Request{Namespace: "team-a", StorageClass: "fast", Bytes: size << 30}, policy.Holding{Tenant: "a", Backend: "silver"})
				if recorded[uid] == 0 {
					return
				}
				refused, err := l.Grow(uid, ledger.Decided{Decision: decision, Revision: p.Revision()})
				if err != nil {
					t.Fatal(err)
				}
				if refused == nil {
					reserved[uid] = size
				}
			},
			"give up": func(t *rapid.T) {
				uid := uids.Draw(t, "uid")
				l.GiveUpGrowth(uid)
				delete(reserved, uid)
			},
			"record": func(t *rapid.T) {
				uid := uids.Draw(t, "uid")
				if recorded[uid] > 0 && reserved[uid] > recorded[uid] {
					recorded[uid] = reserved[uid]
					l.SettleGrowth(uid, recorded[uid])
					l.Record(uid, of(uid), "silver")
					delete(reserved, uid)
				}
			},
			"release": func(t *rapid.T) {
				uid := uids.Draw(t, "uid")
				l.Release(uid)
				recorded[uid] = 0
				delete(reserved, uid)
			},
			"": func(t *rapid.T) {
				want := int64(0)
				for uid, size := range recorded {
					if size > 0 {
						want += max(size, reserved[uid])
					}
				}
				for _, s := range []ledger.Scope{{Kind: policy.TenantScope, Name: "a"}, {Kind: policy.ClassScope, Name: "tenants[0].classes[0]"}, {Kind: policy.BackendScope, Name: "silver"}} {
					if got := l.Usage(s.Kind, s.Name).Gigabytes; got != want {
						t.Fatalf("%v has %d GiB, the volumes have %d", s, got, want)
					}
				}
				if want > 20 {
					t.Fatalf("%d GiB of 20 are used", want)
				}
			},
		})
	})
}
