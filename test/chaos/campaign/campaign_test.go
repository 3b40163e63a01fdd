package campaign

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/plan"
	"github.com/standalone-cinder/standalone-cinder/test/faultproxy"
)

func planOf(seed uint64) plan.Plan {
	return Options{Duration: time.Minute, ClaimEvery: time.Second}.Plan(seed)
}

func TestPoliciesGrantWhatTenantsAreMeantToGet(t *testing.T) {
	n := names{1}
	want := map[string]map[string][]string{
		"a": {plan.Fast: {plan.Gold}, plan.Dual: {plan.Silver, plan.Lab}, plan.Kept: {plan.Gold}},
		"b": {plan.Fast: {plan.Silver}, plan.Dual: {plan.Gold, plan.Lab}, plan.Kept: {plan.Lab}},
		"c": {plan.Fast: {plan.Lab}, plan.Dual: {plan.Lab, plan.Silver}, plan.Kept: {plan.Silver}},
	}
	for variant := range plan.PolicyVariants {
		p, err := policy.Parse([]byte(policyText(planOf(1), n, variant, nil)), "policy.yaml", mappers.BuiltIn().Describe())
		if err != nil {
			t.Fatalf("variant %d: %v", variant, err)
		}
		for _, warning := range p.Warnings {
			// Campaigns have volumes in both modes, and no kubelets. Their backends have no quota
			// that snapshots could fill.
			if !strings.Contains(warning.Error(), "has volumes in both modes") && !strings.Contains(warning.Error(), "limits volumes and not snapshots") {
				t.Errorf("variant %d: %v", variant, warning)
			}
		}
		decide := func(tenant, class string, mi int) policy.Decision {
			return p.Decide(policy.Request{
				Namespace: n.namespace(tenant), NamespaceLabels: n.labels(tenant), StorageClass: n.class(class),
				Parameters: classParameters(), VolumeMode: policy.Filesystem, Bytes: int64(mi) << 20,
			})
		}
		for tenant, classes := range want {
			for class, backends := range classes {
				d := decide(tenant, class, plan.LargestMi)
				if d.Denial != nil || d.Tenant != tenant || !slices.Equal(d.Backends, backends) {
					t.Errorf("variant %d: tenant %s gets %v for class %s, want %v: %v", variant, tenant, d.Backends, class, backends, d.Denial)
				}
			}
			if d := decide(tenant, plan.Unlisted, 100); d.Denial == nil || d.Denial.Reason != policy.NoMatchingClass {
				t.Errorf("variant %d: tenant %s gets an unlisted class: %+v", variant, tenant, d)
			}
			if d := decide(tenant, plan.Fast, plan.TooLargeMi); d.Denial == nil || d.Denial.Reason != policy.VolumeTooLarge {
				t.Errorf("variant %d: tenant %s gets a volume that is too large: %+v", variant, tenant, d)
			}
		}
	}
}

func TestPoliciesGiveMachinesVolumesOfBothArrays(t *testing.T) {
	n := names{1}
	for variant := range plan.PolicyVariants {
		p, err := policy.Parse([]byte(policyText(planOf(1), n, variant, nil)), "policy.yaml", mappers.BuiltIn().Describe())
		if err != nil {
			t.Fatalf("variant %d: %v", variant, err)
		}
		for class, fencing := range map[string]policy.Fencing{plan.Shown: policy.FencingExport, plan.Masked: policy.FencingInitiator, plan.Sealed: policy.FencingInitiator} {
			d := p.Decide(policy.Request{Namespace: n.namespace(plan.Stager), StorageClass: n.class(class), Parameters: map[string]string{"type": plan.ArrayOf(class)}, VolumeMode: policy.Filesystem, Bytes: 1 << 30})
			if d.Denial != nil || !slices.Equal(d.Backends, []string{plan.ArrayOf(class)}) || (d.Volume.Encrypt != nil) != (class == plan.Sealed) {
				t.Errorf("variant %d: class %s: %+v", variant, class, d)
			}
			for _, b := range p.Backends {
				if b.Name == plan.ArrayOf(class) && b.Fencing() != fencing {
					t.Errorf("variant %d: backend %s has fencing %s", variant, class, b.Fencing())
				}
			}
		}
	}
}

func TestPoliciesLetVolumesGoToAllClaimsOfMovers(t *testing.T) {
	n := names{1}
	for variant := range plan.PolicyVariants {
		p, err := policy.Parse([]byte(policyText(planOf(1), n, variant, nil)), "policy.yaml", mappers.BuiltIn().Describe())
		if err != nil {
			t.Fatalf("variant %d: %v", variant, err)
		}
		for _, tenant := range plan.MoverNames() {
			for class, backends := range map[string][]string{plan.Moved: {plan.Gold, plan.Lab}, plan.MovedOnNodes: {plan.Pods}} {
				for _, backend := range backends {
					d := p.DecideHolder(policy.Request{Namespace: n.namespace(tenant), NamespaceLabels: n.labels(tenant), StorageClass: n.class(class), Bytes: 1 << 30}, backend)
					if d.Denial != nil || d.Tenant != tenant {
						t.Errorf("variant %d: a volume of class %s on backend %s does not go to tenant %s: %v", variant, class, backend, tenant, d.Denial)
					}
					for _, quota := range d.Quotas {
						if limits := quota.Limits; quota.Kind != policy.BackendScope && (limits.Volumes != nil || limits.Gigabytes != nil) {
							t.Errorf("variant %d: tenant %s has a quota: %+v", variant, tenant, quota)
						}
					}
				}
			}
		}
		if got := chargedBy(p, "e"); !maps.Equal(got, map[string]string{"costcenter": "4713", "owner": ""}) {
			t.Errorf("volumes of tenant e carry %v", got)
		}
	}
}

func TestWhatALeaderCountsIsRead(t *testing.T) {
	const metrics = `# TYPE standalone_cinder_quota gauge
standalone_cinder_quota{name="d",resource="gigabytes",scope="backend",type="used"} 9
standalone_cinder_quota{name="d",resource="gigabytes",scope="tenant",type="used"} 7
standalone_cinder_quota{name="d",resource="volumes",scope="tenant",type="hard"} 8
standalone_cinder_quota{name="d",resource="volumes",scope="tenant",type="used"} 3
standalone_cinder_quota{name="e",resource="volumes",scope="tenant",type="used"} 1
`
	if got := countedIn(metrics, "d"); got == nil || *got != (policy.Usage{Volumes: 3, Gigabytes: 7}) {
		t.Errorf("tenant d: %+v", got)
	}
	for _, tenant := range []string{"e", "f"} {
		if got := countedIn(metrics, tenant); got != nil {
			t.Errorf("tenant %s: %+v", tenant, got)
		}
	}
}

func TestPolicyVariantsDifferInTheirQuotas(t *testing.T) {
	var limits []int64
	for variant := range plan.PolicyVariants {
		p, err := policy.Parse([]byte(policyText(planOf(1), names{1}, variant, nil)), "policy.yaml", mappers.BuiltIn().Describe())
		if err != nil {
			t.Fatal(err)
		}
		tenant, _ := p.Tenant("a")
		limits = append(limits, *tenant.Quota.Volumes)
	}
	if limits[1] >= limits[0] || limits[2] <= limits[0] {
		t.Errorf("limits are %v, want a lower and a higher one after the first", limits)
	}
}

func TestSeedsShareNoNames(t *testing.T) {
	one, other := names{1}, names{11}
	for _, pair := range [][2]string{
		{one.cluster(), other.cluster()}, {one.provisioner(), other.provisioner()}, {one.lease(), other.lease()},
		{one.namespace("a"), other.namespace("a")}, {one.class("fast"), other.class("fast")},
	} {
		if pair[0] == pair[1] {
			t.Errorf("both seeds use %s", pair[0])
		}
	}
	if one.isNamespace(other.namespace("a")) || !one.isNamespace(one.namespace("a")) {
		t.Error("a seed does not know its own namespaces")
	}
}

func TestIdentityIsReadFromTheLog(t *testing.T) {
	log := `not JSON
{"msg":"Serving health and metrics","address":"127.0.0.1:1"}
{"msg":"Ready","identity":"vm_1","cluster":"c"}
{"msg":"Leading","identity":"vm_2"}
`
	if got := identityIn(log); got != "vm_1" {
		t.Errorf("identity %q", got)
	}
	if got := identityIn("nothing"); got != "" {
		t.Errorf("identity %q of nothing", got)
	}
}

func TestLateCreatesAreRemembered(t *testing.T) {
	w := &world{late: map[string]bool{}}
	for _, body := range []string{
		`{"volume":{"metadata":{"standalone-cinder.openstack.org/claim-uid":"u1"}}}`,
		`{"volume":{"metadata":{}}}`,
		`{"os-reserve":{}}`,
		`nothing`,
	} {
		w.noteLate(faultproxy.Request{Body: []byte(body)})
	}
	if len(w.late) != 1 || !w.late["u1"] {
		t.Errorf("late are %v", w.late)
	}
}

func TestBackendsLeadElsewhere(t *testing.T) {
	const clouds = "clouds:\n  \"team-a\":\n    auth: a\n  \"team-b\":\n    auth: b\n  \"team-a-elsewhere\":\n    auth: c\n  \"team-b-elsewhere\":\n    auth: d\n"
	if got := places(nil).clouds(clouds); got != clouds {
		t.Errorf("at home clouds.yaml is\n%s", got)
	}
	const away = "clouds:\n  \"team-a-elsewhere\":\n    auth: a\n  \"team-b\":\n    auth: b\n  \"team-a\":\n    auth: c\n  \"team-b-elsewhere\":\n    auth: d\n"
	if got := (places{plan.Gold: plan.OtherProject}).clouds(clouds); got != away {
		t.Errorf("elsewhere clouds.yaml is\n%s\nwant\n%s", got, away)
	}
	lines := map[string]bool{}
	for _, to := range []plan.Place{plan.Home, plan.OtherProject, plan.OtherAddress} {
		text := policyText(planOf(1), names{1}, 0, places{plan.Lab: to})
		if _, err := policy.Parse([]byte(text), "policy.yaml", mappers.BuiltIn().Describe()); err != nil {
			t.Errorf("%s: %v", to, err)
		}
		for line := range strings.Lines(text) {
			if strings.Contains(line, "name: lab,") {
				lines[line] = true
			}
		}
	}
	if len(lines) != 3 {
		t.Errorf("three places, and the policy says %q", slices.Collect(maps.Keys(lines)))
	}
}

func TestPersistentVolumesSayWhereTheirVolumesAre(t *testing.T) {
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{annotationEndpoint: labEndpoint, annotationProject: "p"}}}
	if got := pvOf(pv).Place; got != "p" {
		t.Errorf("place %q", got)
	}
	pv.Annotations[annotationEndpoint] = otherLabEndpoint
	if got := pvOf(pv).Place; got != otherLabEndpoint {
		t.Errorf("place %q", got)
	}
}
