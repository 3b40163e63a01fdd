package review

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/policy"
)

const gib = int64(1) << 30

// roomPolicy has limits of every kind.
const roomPolicy = `
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
backends:
  - {name: gold, auth: {cloud: gold}, limits: {volumes: 10}}
  - {name: silver, auth: {cloud: silver}, limits: {gigabytes: 100}}
tenants:
  - name: a
    namespaces: [a]
    quota: {volumes: 5}
    classes:
      - {storageClasses: [both], backends: [gold, silver], quota: {gigabytes: 50}}
      - {storageClasses: [one], backends: [silver]}
`

func mustParse(t testing.TB, text string) *policy.Policy {
	t.Helper()
	p, err := policy.Parse([]byte(text), "p.yaml", mappers.BuiltIn().Describe())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

const reviewPolicy = `
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
clusterID: prod
backends:
  - {name: gold, auth: {cloud: gold}, limits: {volumes: 4}}
  - {name: silver, auth: {cloud: silver}, volumeSize: {max: 50Gi}}
tenants:
  - name: a
    namespaces: [a]
    quota: {volumes: 3, gigabytes: 30}
    classes:
      - {storageClasses: [fast], backends: [gold, silver], quota: {gigabytes: 20}}
  - name: b
    namespaceSelector: {matchLabels: {team: b}}
    classes:
      - {storageClasses: ["*"], backends: [silver], volumeType: hdd}
`

// existingOf makes an Existing from short descriptions.
type existingOf struct {
	claims  []Claim
	volumes []Volume
}

func bound(namespace, name, class string, change func(*Claim)) Claim {
	c := Claim{
		Request: policy.Request{Namespace: namespace, StorageClass: class, Bytes: 10 * gib, VolumeMode: policy.Filesystem},
		Name:    name, UID: "uid-" + name, ClassExists: true, Bound: true, Volume: "pv-" + name,
	}
	if change != nil {
		change(&c)
	}
	return c
}

func pending(namespace, name, class string, change func(*Claim)) Claim {
	return bound(namespace, name, class, func(c *Claim) {
		c.Bound, c.Volume = false, ""
		if change != nil {
			change(c)
		}
	})
}

// volumeOf returns the volume of a claim called name.
func volumeOf(name, tenant, class, backend string, change func(*Volume)) Volume {
	v := Volume{
		Name: "pv-" + name, Backend: backend, Tenant: tenant, StorageClass: class, GiB: 10, Cluster: "prod",
		ClaimUID: "uid-" + name,
	}
	if change != nil {
		change(&v)
	}
	return v
}

func TestReview(t *testing.T) {
	teamB := func(c *Claim) { c.Request.NamespaceLabels = map[string]string{"team": "b"} }
	for name, test := range map[string]struct {
		policy   string // empty is reviewPolicy
		existing existingOf
		want     []string // kind, subject, path:line, sentence
	}{
		"nothing exists": {},
		"all is as the policy has it": {
			existing: existingOf{[]Claim{bound("a", "one", "fast", nil)}, []Volume{volumeOf("one", "a", "fast", "gold", nil)}},
		},
		"volumes of a backend that is gone": {
			existing: existingOf{nil, []Volume{
				volumeOf("4", "b", "x", "bronze", nil), volumeOf("2", "b", "x", "bronze", nil),
				volumeOf("1", "b", "x", "bronze", nil), volumeOf("3", "b", "x", "bronze", nil), volumeOf("5", "b", "x", "copper", nil),
			}},
			want: []string{
				"BackendGone bronze backends:6 backend bronze is not in the policy, so 4 PersistentVolumes (pv-1, pv-2, pv-3 and 1 more) cannot be deleted; keep the backend, with suspended: true, until they are gone [pv-1 pv-2 pv-3 pv-4]",
				"BackendGone copper backends:6 backend copper is not in the policy, so 1 PersistentVolume (pv-5) cannot be deleted; keep the backend, with suspended: true, until they are gone [pv-5]",
			},
		},
		"retained volumes of a backend that is gone": {
			existing: existingOf{nil, []Volume{volumeOf("1", "b", "x", "bronze", func(v *Volume) { v.Retain = true })}},
			want:     []string{"RetainedBackendGone bronze backends:6 backend bronze is not in the policy, but has the volumes of 1 PersistentVolume (pv-1); nothing deletes them, because their reclaim policy is Retain [pv-1]"},
		},
		"a historic volume counts for nobody and may name no backend": {
			existing: existingOf{nil, []Volume{{Name: "pv-old", Historic: true, GiB: 999, ClaimUID: "uid-old"}}},
		},
		"a historic volume that was found at a backend which is gone": {
			existing: existingOf{nil, []Volume{{Name: "pv-old", Historic: true, Backend: "bronze", ClaimUID: "uid-old"}}},
			want:     []string{"BackendGone bronze backends:6 backend bronze is not in the policy, so 1 PersistentVolume (pv-old) cannot be deleted; keep the backend, with suspended: true, until they are gone [pv-old]"},
		},
		"volumes of another cluster's id count for nobody": {
			existing: existingOf{nil, []Volume{volumeOf("1", "a", "fast", "gold", func(v *Volume) { v.Cluster, v.GiB = "test", 100 })}},
			want:     []string{"ClusterChanged test clusterID:4 the cluster's id is prod under this policy, so no quota counts 1 PersistentVolume (pv-1), made under the id test; volumes still being made under that id are not recognized [pv-1]"},
		},
		"a volume that records too little": {
			existing: existingOf{nil, []Volume{volumeOf("1", "a", "fast", "", func(v *Volume) { v.Damage = "PersistentVolume pv-1: annotation x is missing" })}},
			want:     []string{"DamagedVolume pv-1 PersistentVolume pv-1: annotation x is missing"},
		},
		"a tenant that is gone": {
			existing: existingOf{nil, []Volume{volumeOf("1", "c", "fast", "gold", nil), volumeOf("2", "c", "slow", "gold", nil), volumeOf("3", "", "slow", "gold", nil)}},
			want: []string{
				"TenantGone (none recorded) tenants:9 tenant (none recorded) is not in the policy, so no tenant's quota counts 1 PersistentVolume (pv-3) [pv-3]",
				"TenantGone c tenants:9 tenant c is not in the policy, so no tenant's quota counts 2 PersistentVolumes (pv-1, pv-2) [pv-1 pv-2]",
			},
		},
		"a rule that is gone": {
			existing: existingOf{nil, []Volume{volumeOf("1", "a", "slow", "gold", nil)}},
			want:     []string{"RuleGone a/slow tenants[0].classes:13 tenant a has no rule for StorageClass slow, so only the quotas of the tenant and the backend count 1 PersistentVolume (pv-1) [pv-1]"},
		},
		"limits that are exceeded": {
			existing: existingOf{nil, []Volume{
				volumeOf("1", "a", "fast", "gold", nil), volumeOf("2", "a", "fast", "gold", nil),
				volumeOf("3", "a", "fast", "gold", func(v *Volume) { v.GiB = 11 }), volumeOf("4", "c", "x", "gold", nil),
				volumeOf("5", "b", "x", "gold", nil),
			}},
			want: []string{
				"TenantGone c tenants:9 tenant c is not in the policy, so no tenant's quota counts 1 PersistentVolume (pv-4) [pv-4]",
				"OverQuota StorageClasses [fast] of tenant a, gigabytes tenants[0].classes[0].quota.gigabytes:13 31 of 20 GiB are used by StorageClasses [fast] of tenant a (tenants[0].classes[0].quota.gigabytes); existing volumes stay, and no more are added until enough of them are gone",
				"OverQuota backend gold, volumes backends[0].limits.volumes:6 5 of 4 volumes are used by backend gold (backends[0].limits.volumes); existing volumes stay, and no more are added until enough of them are gone",
				"OverQuota tenant a, gigabytes tenants[0].quota.gigabytes:11 31 of 30 GiB are used by tenant a (tenants[0].quota.gigabytes); existing volumes stay, and no more are added until enough of them are gone",
			},
		},
		"limits that are just met": {
			existing: existingOf{nil, []Volume{volumeOf("1", "a", "fast", "gold", nil), volumeOf("2", "a", "fast", "silver", nil)}},
		},
		"two volumes that name one claim count once": {
			existing: existingOf{nil, []Volume{
				volumeOf("1", "a", "fast", "gold", func(v *Volume) { v.GiB = 20 }),
				volumeOf("2", "a", "fast", "gold", func(v *Volume) { v.GiB, v.ClaimUID = 20, "uid-1" }),
			}},
		},
		"a volume that names no claim counts for nobody": {
			existing: existingOf{nil, []Volume{volumeOf("1", "a", "fast", "gold", func(v *Volume) { v.GiB, v.ClaimUID = 1000, "" })}},
		},
		"bound claims that would be denied": {
			existing: existingOf{
				[]Claim{bound("x", "one", "fast", nil), bound("a", "two", "slow", nil)},
				[]Volume{volumeOf("one", "a", "fast", "gold", nil), volumeOf("two", "a", "fast", "gold", nil)},
			},
			want: []string{
				"NewlyDenied a/two NoMatchingClass tenants[0].classes:13 the claim would be denied today: tenant a has no rule for StorageClass slow (tenants[0].classes); its volume pv-two is not affected",
				"NewlyDenied x/one NoMatchingTenant tenants:9 the claim would be denied today: namespace x belongs to no tenant of the policy: none lists its name, has a pattern for it or selects its labels; its volume pv-one is not affected",
			},
		},
		"bound claims are not denied for want of room, as they have theirs": {
			existing: existingOf{
				[]Claim{bound("a", "one", "fast", nil), bound("a", "two", "fast", nil)},
				[]Volume{volumeOf("one", "a", "fast", "gold", nil), volumeOf("two", "a", "fast", "gold", nil)},
			},
		},
		"a bound claim without its StorageClass": {
			existing: existingOf{
				[]Claim{bound("x", "one", "fast", func(c *Claim) { c.ClassExists = false })},
				[]Volume{volumeOf("one", "a", "fast", "gold", nil)},
			},
		},
		"a claim that is bound to a volume of somebody else": {
			existing: existingOf{[]Claim{bound("x", "one", "fast", nil)}, nil},
		},
		"a namespace that went over to another tenant": {
			existing: existingOf{
				[]Claim{bound("n", "one", "fast", teamB)},
				[]Volume{volumeOf("one", "a", "fast", "gold", nil)},
			},
			want: []string{"MovedTenant n/one tenants[1]:14 namespace n belongs to tenant b (tenants[1]), but volume pv-one was made for tenant a and still counts against that tenant"},
		},
		"a historic volume was made for no tenant": {
			existing: existingOf{[]Claim{bound("a", "one", "fast", nil)}, []Volume{{Name: "pv-one", Historic: true, ClaimUID: "uid-one"}}},
		},
		"pending claims get what room there is, in order": {
			existing: existingOf{
				[]Claim{
					pending("a", "z", "fast", nil), pending("a", "y", "fast", nil),
					pending("n", "large", "any", func(c *Claim) { teamB(c); c.Request.Bytes = 51 * gib }),
					pending("n", "typed", "any", func(c *Claim) { teamB(c); c.Request.Parameters = map[string]string{"type": "ssd"} }),
				},
				[]Volume{volumeOf("1", "a", "fast", "gold", nil)},
			},
			want: []string{
				"PendingDenied a/y QuotaExceeded tenants[0].classes[0].quota.gigabytes:13 StorageClasses [fast] of tenant a would use 30 of 20 GiB (tenants[0].classes[0].quota.gigabytes)",
				"PendingDenied n/large VolumeTooLarge backends[1].volumeSize.max:7 the volume would have 51 GiB, more than the 50Gi that backends[1].volumeSize.max allows",
				`PendingDenied n/typed ParameterNotAllowed tenants[1].classes[0].volumeType:17 StorageClass any sets the parameter type to "ssd", but the policy fixes it at "hdd" (tenants[1].classes[0].volumeType)`,
				"PendingGranted a/z tenants[0].classes[0]:13 the claim gets 10 GiB from backend gold for tenant a (tenants[0].classes[0])",
			},
		},
		"a full backend passes pending claims on": {
			existing: existingOf{
				[]Claim{pending("a", "z", "fast", nil)},
				[]Volume{volumeOf("1", "b", "x", "gold", nil), volumeOf("2", "b", "x", "gold", nil), volumeOf("3", "b", "x", "gold", nil), volumeOf("4", "b", "x", "gold", nil)},
			},
			want: []string{"PendingGranted a/z tenants[0].classes[0]:13 the claim gets 10 GiB from backend silver for tenant a (tenants[0].classes[0])"},
		},
		"a pending claim that the provisioner itself refuses": {
			existing: existingOf{[]Claim{pending("a", "z", "fast", func(c *Claim) {
				c.Refusal = &policy.Denial{Reason: "UnsupportedSelector", Message: "spec.selector cannot be honored"}
			})}, nil},
			want: []string{"PendingDenied a/z UnsupportedSelector spec.selector cannot be honored"},
		},
		"a pending claim without its StorageClass": {
			existing: existingOf{[]Claim{pending("a", "z", "fast", func(c *Claim) { c.ClassExists = false })}, nil},
			want:     []string{"StorageClassGone a/z the claim waits for StorageClass fast, which does not exist"},
		},
		"a pending claim that names no StorageClass": {
			existing: existingOf{[]Claim{pending("a", "z", "", func(c *Claim) { c.ClassExists = false })}, nil},
			want:     []string{"StorageClassGone a/z the claim names no StorageClass, so nothing creates a volume for it"},
		},
		"a pending claim that waits for the volume it names": {
			existing: existingOf{[]Claim{pending("x", "z", "fast", func(c *Claim) { c.Volume = "pv-static" })}, nil},
		},
		"claims that ask for volumes that exist": {
			policy: strings.Replace(reviewPolicy, "quota: {gigabytes: 20}}", "quota: {gigabytes: 20}, import: {names: [\"a-*\"], types: [ssd]}}", 1),
			existing: existingOf{[]Claim{
				pending("a", "z", "fast", func(c *Claim) { c.Asks, c.Import = true, "a-data" }),
				pending("n", "y", "any", func(c *Claim) { teamB(c); c.Asks, c.Import = true, "a-data" }),
				pending("x", "y", "any", func(c *Claim) { c.Asks, c.Import = true, "a-data" }),
			}, nil},
			want: []string{
				"PendingDenied n/y ImportNotGranted tenants[1].classes[0]:17 tenants[1].classes[0] grants no volumes that exist at Cinder; ask an operator to add import to the rule, or for standalone-cinder volume import",
				"PendingDenied x/y NoMatchingTenant tenants:9 namespace x belongs to no tenant of the policy: none lists its name, has a pattern for it or selects its labels",
				`PendingGranted a/z tenants[0].classes[0].import:13 the claim asks for the volume "a-data" at Cinder, and gets it if it is one with a name like a-*, of type ssd, on backend gold or silver, and there is room for it (tenant a, tenants[0].classes[0].import)`,
			},
		},
		"a claim whose imported volume the rule no longer grants": {
			existing: existingOf{
				[]Claim{bound("a", "one", "fast", func(c *Claim) { c.Asks, c.Import = true, "a-data" })},
				[]Volume{volumeOf("one", "a", "fast", "gold", nil)},
			},
			want: []string{"NewlyDenied a/one ImportNotGranted tenants[0].classes[0]:13 the claim would be denied today: tenants[0].classes[0] grants no volumes that exist at Cinder; ask an operator to add import to the rule, or for standalone-cinder volume import; its volume pv-one is not affected"},
		},
		"rules that got or lost encrypt": {
			policy: strings.Replace(reviewPolicy, "quota: {gigabytes: 20}}", "quota: {gigabytes: 20}, mode: csi, encrypt: {keySecret: keys, entry: a}}", 1),
			existing: existingOf{nil, []Volume{
				volumeOf("one", "a", "fast", "gold", nil),
				volumeOf("two", "a", "fast", "gold", func(v *Volume) { v.Encrypted = true }),
				volumeOf("three", "b", "x", "gold", func(v *Volume) { v.Encrypted = true }),
				volumeOf("four", "b", "x", "gold", nil),
			}},
			want: []string{
				"EncryptionDiffers a/fast tenants[0].classes[0]:13 nodes do not encrypt 1 PersistentVolume (pv-one), only new volumes, because tenants[0].classes[0] has encrypt now; to encrypt existing data, move it (volume move --to-backend) [pv-one]",
				"EncryptionDiffers b/x tenants[1].classes[0]:17 nodes encrypt 1 PersistentVolume (pv-three), but not new volumes, because tenants[1].classes[0] has no encrypt; keep the key-encryption keys [pv-three]",
			},
		},
		"a pending claim whose volume is about to be bound counts once": {
			existing: existingOf{[]Claim{pending("a", "z", "fast", nil), pending("a", "y", "fast", nil)}, []Volume{volumeOf("z", "a", "fast", "gold", nil)}},
			want:     []string{"PendingGranted a/y tenants[0].classes[0]:13 the claim gets 10 GiB from backend gold for tenant a (tenants[0].classes[0])"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			review := Of(mustParse(t, cmp.Or(test.policy, reviewPolicy)), Existing{Cluster: "uid-of-kube-system", Claims: test.existing.claims, Volumes: test.existing.volumes})
			if got := describeFindings(review.Findings); !slices.Equal(got, test.want) {
				t.Errorf("\n got %s\nwant %s", strings.Join(got, "\n     "), strings.Join(test.want, "\n     "))
			}
			if review.Claims != len(test.existing.claims) || review.Volumes != len(test.existing.volumes) || review.Findings == nil {
				t.Errorf("%+v", review)
			}
		})
	}
}

// TestGrantedClaimsCountOnOneBackend: backends that come later in a rule keep
// their room for others.
func TestGrantedClaimsCountOnOneBackend(t *testing.T) {
	existing := Existing{Claims: []Claim{
		pending("a", "one", "both", nil), pending("a", "two", "both", nil),
		pending("a", "three", "one", func(c *Claim) { c.Request.Bytes = 100 * gib }),
	}}
	got := describeFindings(Of(mustParse(t, roomPolicy), existing).Findings)
	want := []string{
		"PendingGranted a/one tenants[0].classes[0]:12 the claim gets 10 GiB from backend gold for tenant a (tenants[0].classes[0])",
		"PendingGranted a/three tenants[0].classes[1]:13 the claim gets 100 GiB from backend silver for tenant a (tenants[0].classes[1])",
		"PendingGranted a/two tenants[0].classes[0]:12 the claim gets 10 GiB from backend gold for tenant a (tenants[0].classes[0])",
	}
	if !slices.Equal(got, want) {
		t.Errorf("\n got %s\nwant %s", strings.Join(got, "\n     "), strings.Join(want, "\n     "))
	}
}

func describeFindings(findings []Finding) []string {
	var all []string
	for _, f := range findings {
		text := string(f.Kind) + " " + f.Subject
		if f.Reason != "" {
			text += " " + string(f.Reason)
		}
		if f.Path != "" {
			text += fmt.Sprintf(" %s:%d", f.Path, f.Line)
		}
		text += " " + f.Message
		if f.Volumes != nil {
			text += fmt.Sprintf(" %v", f.Volumes)
		}
		all = append(all, text)
	}
	return all
}

// TestReviewTakesTheClusterFromKubernetes: without a clusterID the UID of
// kube-system is the cluster's id, as for the running program.
func TestReviewTakesTheClusterFromKubernetes(t *testing.T) {
	p := mustParse(t, strings.Replace(reviewPolicy, "clusterID: prod\n", "", 1))
	volumes := []Volume{volumeOf("1", "a", "fast", "gold", func(v *Volume) { v.Cluster, v.GiB = "uid-1", 21 })}
	for cluster, want := range map[string]FindingKind{"uid-1": OverQuota, "uid-2": ClusterChanged, "": OverQuota} {
		review := Of(p, Existing{Cluster: cluster, Volumes: volumes})
		if len(review.Findings) != 1 || review.Findings[0].Kind != want {
			t.Errorf("cluster %q: %v, want one finding %s", cluster, describeFindings(review.Findings), want)
		}
	}
}

func TestOnlyAMissingBackendFailsAReview(t *testing.T) {
	for _, kind := range FindingKinds() {
		if got, want := (Finding{Kind: kind}).Fails(), kind == BackendGone || kind == BackendElsewhere; got != want {
			t.Errorf("%s fails: %t", kind, got)
		}
	}
	review := Review{Findings: []Finding{{Kind: BackendGone}, {Kind: BackendGone}, {Kind: TenantGone}}}
	if review.Failing() != 2 {
		t.Errorf("%d fail", review.Failing())
	}
}

func placed(name, backend, endpoint, project string, change func(*Volume)) Volume {
	return volumeOf(name, "a", "fast", backend, func(v *Volume) {
		v.Place = Place{endpoint, project}
		if change != nil {
			change(v)
		}
	})
}

// TestBackendsThatLeadElsewhere: a volume that is recorded at another place
// could not be deleted, and that is known before the policy is in force.
func TestBackendsThatLeadElsewhere(t *testing.T) {
	const old = "http://old:8776/v3"
	volumes := []Volume{
		placed("1", "gold", old, "a", nil), placed("2", "gold", old, "a", nil), placed("3", "gold", old, "b", nil), placed("4", "gold", "http://new:8776/v3", "b", nil),
		placed("5", "gold", "", "", nil), placed("6", "gold", old, "a", func(v *Volume) { v.Retain = true }), placed("7", "bronze", old, "a", nil),
	}
	const gone = "BackendGone bronze backends:6 backend bronze is not in the policy, so 1 PersistentVolume (pv-7) cannot be deleted; keep the backend, with suspended: true, until they are gone [pv-7]"
	for name, test := range map[string]struct {
		places map[string]Place
		want   []string
	}{
		"nothing is known": {want: []string{gone}},
		"all is known": {places: map[string]Place{"gold": {"http://new:8776/v3", "b"}}, want: []string{gone,
			"BackendElsewhere gold backends[0].auth:6 backend gold points to http://new:8776/v3 (project b), but the volumes of 2 PersistentVolumes (pv-1, pv-2) were recorded at http://old:8776/v3 (project a) " +
				"and cannot be deleted unless they are found at the new place, too; keep the backend as it was until they are gone, and give the new place a backend of its own [pv-1 pv-2]",
			"BackendElsewhere gold backends[0].auth:6 backend gold points to http://new:8776/v3 (project b), but the volumes of 1 PersistentVolume (pv-3) were recorded at http://old:8776/v3 (project b) " +
				"and cannot be deleted unless they are found at the new place, too; keep the backend as it was until they are gone, and give the new place a backend of its own [pv-3]"}},
		"the project is known": {places: map[string]Place{"gold": {"", "b"}}, want: []string{gone,
			"BackendElsewhere gold backends[0].auth:6 backend gold points to project b, but the volumes of 2 PersistentVolumes (pv-1, pv-2) were recorded at http://old:8776/v3 (project a) " +
				"and cannot be deleted unless they are found at the new place, too; keep the backend as it was until they are gone, and give the new place a backend of its own [pv-1 pv-2]"}},
		"another backend's is known": {places: map[string]Place{"silver": {"http://new:8776/v3", "b"}}, want: []string{gone}},
	} {
		t.Run(name, func(t *testing.T) {
			review := Of(mustParse(t, reviewPolicy), Existing{Volumes: volumes, Places: test.places})
			var got []string
			for _, f := range describeFindings(review.Findings) {
				if strings.HasPrefix(f, "Backend") {
					got = append(got, f)
				}
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("\n got %s\nwant %s", strings.Join(got, "\n     "), strings.Join(test.want, "\n     "))
			}
		})
	}
}

// TestBackendsOfWhichAnotherEndpointIsChosen: where a catalog leads is not
// known offline, but whether it is asked for something else is.
func TestBackendsOfWhichAnotherEndpointIsChosen(t *testing.T) {
	const old = "http://old:8776/v3"
	existing := Existing{Cluster: "prod", Volumes: []Volume{
		placed("1", "gold", old, "a", nil), placed("2", "gold", "", "", nil), placed("3", "gold", old, "a", func(v *Volume) { v.Retain = true }), placed("4", "silver", old, "a", nil),
	}}
	const recorded = "backend gold changed, so the volumes of 1 PersistentVolume (pv-1), recorded at http://old:8776/v3 (project a), may no longer be found; volumes that are not found are not deleted until the backend points there again [pv-1]"
	const unrecorded = "backend gold changed, so the volumes of 1 PersistentVolume (pv-2), which do not record where they are, may no longer be found; volumes that are not found are not deleted until the backend points there again [pv-2]"
	for name, test := range map[string]struct {
		gold   string
		places map[string]Place
		want   []string
	}{
		"the same":          {gold: "{name: gold, auth: {cloud: gold}, suspended: true}"},
		"another cloud":     {gold: "{name: gold, auth: {cloud: other}}", want: []string{"BackendChanged gold backends[0]:6 auth of " + recorded, "BackendChanged gold backends[0]:6 auth of " + unrecorded}},
		"region, interface": {gold: "{name: gold, auth: {cloud: gold}, region: two, interface: admin}", want: []string{"BackendChanged gold backends[0]:6 region and interface of " + recorded, "BackendChanged gold backends[0]:6 region and interface of " + unrecorded}},
		"known to be there": {gold: "{name: gold, auth: {noauth: {endpoint: \"http://old:8776/v3\", project: a}}}", places: map[string]Place{"gold": {old, "a"}},
			want: []string{"BackendChanged gold backends[0]:6 auth of " + unrecorded}},
		"known to be elsewhere": {gold: "{name: gold, auth: {cloud: other}}", places: map[string]Place{"gold": {"", "b"}}, want: []string{
			"BackendElsewhere gold backends[0].auth:6 backend gold points to project b, but the volumes of 1 PersistentVolume (pv-1) were recorded at http://old:8776/v3 (project a) " +
				"and cannot be deleted unless they are found at the new place, too; keep the backend as it was until they are gone, and give the new place a backend of its own [pv-1]",
			"BackendChanged gold backends[0]:6 auth of " + unrecorded}},
	} {
		t.Run(name, func(t *testing.T) {
			before := mustParse(t, reviewPolicy)
			after := mustParse(t, strings.Replace(reviewPolicy, "{name: gold, auth: {cloud: gold}", strings.TrimSuffix(test.gold, "}"), 1))
			now := existing
			now.Places = test.places
			review := Change(before, after, existing, now)
			if got := describeFindings(review.Findings); !slices.Equal(got, test.want) {
				t.Errorf("\n got %s\nwant %s", strings.Join(got, "\n     "), strings.Join(test.want, "\n     "))
			}
			if back := Change(before, before, existing, existing); len(back.Findings)+len(back.Ended) > 0 {
				t.Errorf("against itself %+v", back)
			}
		})
	}
}

// TestSince compares the policy with others about the same objects.
func TestSince(t *testing.T) {
	existing := Existing{
		Claims: []Claim{bound("a", "one", "fast", nil), bound("n", "odd", "fast", nil), pending("a", "z", "fast", nil), pending("x", "w", "fast", nil)},
		Volumes: []Volume{
			volumeOf("one", "a", "fast", "gold", nil), volumeOf("two", "a", "fast", "silver", nil), volumeOf("odd", "a", "fast", "silver", nil),
			volumeOf("gone", "a", "fast", "bronze", nil),
		},
	}
	for name, test := range map[string]struct {
		from, to    string
		added, gone []string
	}{
		"the same file": {},
		// All paths change, and nothing else.
		"a tenant and a backend in front": {
			from: "tenants:\n", to: "  - {name: bronze-2, auth: {cloud: x}, suspended: true}\ntenants:\n  - {name: first, namespaces: [first], classes: [{storageClasses: [\"*\"], backends: [silver]}]}\n",
		},
		"room for the pending claim, but still too little by another count": {
			from: "quota: {gigabytes: 20}", to: "quota: {gigabytes: 2000}",
			gone: []string{"OverQuota StorageClasses [fast] of tenant a, gigabytes"},
		},
		"more room": {
			from: "quota: {volumes: 3, gigabytes: 30}\n    classes:\n      - {storageClasses: [fast], backends: [gold, silver], quota: {gigabytes: 20}}",
			to:   "classes:\n      - {storageClasses: [fast], backends: [gold, silver]}",
			// The claim in namespace a was denied before.
			added: []string{"PendingGranted a/z"},
			gone:  []string{"OverQuota StorageClasses [fast] of tenant a, gigabytes", "OverQuota tenant a, gigabytes", "OverQuota tenant a, volumes"},
		},
		"less room": {
			from:  "gigabytes: 30",
			to:    "gigabytes: 25",
			added: []string{"OverQuota tenant a, gigabytes"},
		},
		"another backend is gone, and one is back": {
			from: "  - {name: silver, auth: {cloud: silver}, volumeSize: {max: 50Gi}}", to: "  - {name: bronze, auth: {cloud: silver}}",
			added: []string{"BackendGone silver"},
			gone:  []string{"BackendGone bronze"},
		},
		"a namespace is let in": {
			from: "namespaces: [a]", to: "namespaces: [a, n]",
			gone: []string{"NewlyDenied n/odd"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := mustParse(t, reviewPolicy)
			text := strings.Replace(reviewPolicy, test.from, test.to, 1)
			if test.from != "" && text == reviewPolicy {
				t.Fatal("the policy does not have what is replaced")
			}
			if name == "another backend is gone, and one is back" {
				text = strings.ReplaceAll(text, "[silver]", "[bronze]")
				text = strings.ReplaceAll(text, "[gold, silver]", "[gold, bronze]")
			}
			after := mustParse(t, text)
			changed := Of(after, existing).Since(Of(before, existing))
			if got := names(changed.Findings); !slices.Equal(got, test.added) {
				t.Errorf("found\n got %v\nwant %v", got, test.added)
			}
			if got := names(changed.Ended); !slices.Equal(got, test.gone) {
				t.Errorf("ended\n got %v\nwant %v", got, test.gone)
			}
			if changed.Claims != 4 || changed.Volumes != 4 || changed.Findings == nil {
				t.Errorf("%+v", changed)
			}
		})
	}
}

func names(findings []Finding) []string {
	var all []string
	for _, f := range findings {
		all = append(all, string(f.Kind)+" "+f.Subject)
	}
	return all
}

// TestReviewProperties: the order of volumes does not matter, no kind has two
// findings about a claim, and granted pending claims exceed no limit.
func TestReviewProperties(t *testing.T) {
	p := mustParse(t, reviewPolicy)
	rapid.Check(t, func(t *rapid.T) {
		var existing Existing
		sum := policy.Usages{}
		for i := range rapid.IntRange(0, 8).Draw(t, "volumes") {
			name := fmt.Sprint(i)
			v := volumeOf(name, rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "tenant"), rapid.SampledFrom([]string{"fast", "x"}).Draw(t, "class"),
				rapid.SampledFrom([]string{"gold", "silver", "bronze"}).Draw(t, "backend"), nil)
			v.Historic = rapid.Bool().Draw(t, "historic")
			v.GiB = rapid.Int64Range(1, 15).Draw(t, "GiB")
			existing.Volumes = append(existing.Volumes, v)
			if !v.Historic {
				for _, scope := range p.QuotaScopes(v.Tenant, v.StorageClass, v.Backend) {
					sum.Add(scope, policy.Usage{Volumes: 1, Gigabytes: v.GiB})
				}
			}
			if rapid.Bool().Draw(t, "claimed") {
				existing.Claims = append(existing.Claims, bound("a", name, v.StorageClass, nil))
			}
		}
		for i := range rapid.IntRange(0, 8).Draw(t, "pending") {
			existing.Claims = append(existing.Claims, pending("a", fmt.Sprintf("p%d", i), "fast", func(c *Claim) {
				c.Request.Bytes = rapid.Int64Range(1, 15).Draw(t, "size") * gib
			}))
		}
		review := Of(p, existing)

		shuffled := existing
		shuffled.Volumes = slices.Clone(existing.Volumes)
		rand.Shuffle(len(shuffled.Volumes), func(i, j int) {
			shuffled.Volumes[i], shuffled.Volumes[j] = shuffled.Volumes[j], shuffled.Volumes[i]
		})
		if again := Of(p, shuffled); !reflect.DeepEqual(again, review) {
			t.Fatalf("another order of volumes:\n%v\n%v", names(again.Findings), names(review.Findings))
		}
		if changed := review.Since(review); len(changed.Findings)+len(changed.Ended) > 0 {
			t.Fatalf("changed against itself: %v, %v", names(changed.Findings), names(changed.Ended))
		}

		seen := map[string]bool{}
		for _, name := range names(review.Findings) {
			if seen[name] {
				t.Fatalf("%s twice", name)
			}
			seen[name] = true
		}
		over := map[string]bool{}
		for _, f := range review.Findings {
			over[f.Path] = over[f.Path] || f.Kind == OverQuota
		}
		granted := int64(0)
		for _, c := range existing.Claims {
			if seen["PendingGranted "+c.subject()] {
				granted += (c.Request.Bytes + gib - 1) / gib
			}
		}
		used := sum.Of(policy.QuotaScope{Kind: policy.TenantScope, Name: p.Tenants[0].Name}).Gigabytes
		if over["tenants[0].quota.gigabytes"] != (used > 30) {
			t.Fatalf("%d of 30 GiB are in use, findings %v", used, names(review.Findings))
		}
		if granted > 0 && used+granted > 30 {
			t.Fatalf("%d GiB in use and %d granted, of 30", used, granted)
		}
	})
}
