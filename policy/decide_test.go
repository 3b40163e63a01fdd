package policy

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
)

// decidePolicy has one of everything that a decision may depend on.
const decidePolicy = `
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
defaults:
  volumeSize: {min: 2Gi, max: 1Ti}
  metadata: {owner: platform, stage: test}
backends:
  - {name: gold, auth: {cloud: gold}, limits: {volumes: 100, gigabytes: 1000}}
  - {name: silver, auth: {cloud: silver}, volumeSize: {max: 50Gi}}
  - {name: large, auth: {cloud: large}, volumeSize: {min: 100Gi}}
  - {name: off, auth: {cloud: off}, suspended: true}
tenants:
  - name: team-a
    namespaces: [team-a, "team-a-*", shared]
    namespaceSelector: {matchLabels: {tenant: a}}
    quota: {volumes: 20, gigabytes: 500, snapshots: 10}
    volumeSize: {max: 200Gi}
    metadata: {costcenter: "4711", stage: prod}
    classes:
      - storageClasses: [fast]
        backends: [off, gold, silver]
        volumeType: ssd
        availabilityZone: az1
        fsType: xfs
        quota: {gigabytes: 100}
      - storageClasses: ["small-*"]
        backends: [silver]
        volumeSize: {max: 10Gi}
      - storageClasses: [sized]
        backends: [silver, large]
      - storageClasses: [stopped]
        backends: [off]
      - storageClasses: [partly]
        backends: [off, silver]
      - storageClasses: [fast, open]
        backends: [gold]
  - name: team-b
    namespaces: [team-b, team-a-b]
    namespaceSelector: {matchLabels: {team: b}}
    volumeSize: {min: 1Gi, max: 4Ti}
    classes:
      - storageClasses: ["*"]
        backends: [gold]
  - name: prod
    namespaces: [prod]
    classes:
      - storageClasses: [only]
        backends: [gold]
`

func mustParse(t testing.TB, text string) *Policy {
	t.Helper()
	p, err := Parse([]byte(text), "p.yaml", protocols())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// claim returns a request that is granted on backend gold.
func claim(change func(*Request)) Request {
	r := Request{Namespace: "team-a", StorageClass: "open", Bytes: 10 * gib, VolumeMode: Filesystem}
	if change != nil {
		change(&r)
	}
	return r
}

func number(n int64) *int64 { return &n }

// TestDecideGrants shows a whole decision.
func TestDecideGrants(t *testing.T) {
	got := mustParse(t, decidePolicy).Explain(Request{
		Namespace: "team-a-dev", NamespaceLabels: map[string]string{"tenant": "a"}, StorageClass: "fast",
		Parameters: map[string]string{"type": "ssd", "smartclone": "false"},
		Bytes:      10*gib + 1, LimitBytes: 11 * gib,
	})
	want := Decision{
		Tenant: "team-a", Rule: "tenants[0].classes[0]", Backends: []string{"gold", "silver"},
		Volume: VolumeProperties{
			SizeGiB: 11, Type: "ssd", AvailabilityZone: "az1", FSType: "xfs",
			Metadata: map[string]string{"costcenter": "4711", "owner": "platform", "stage": "prod"},
		},
		Quotas: []QuotaScope{
			{
				Kind: TenantScope, Name: "team-a", Path: "tenants[0].quota", subject: "tenant team-a",
				Limits: Quota{Volumes: number(20), Gigabytes: number(500), Snapshots: number(10)},
			},
			{
				Kind: ClassScope, Name: "tenants[0].classes[0]", Path: "tenants[0].classes[0].quota",
				subject: "StorageClasses [fast] of tenant team-a", Limits: Quota{Gigabytes: number(100)},
			},
			{
				Kind: BackendScope, Name: "gold", Path: "backends[0].limits", subject: "backend gold",
				Limits: Quota{Volumes: number(100), Gigabytes: number(1000)},
			},
			{Kind: BackendScope, Name: "silver", Path: "backends[1].limits", subject: "backend silver"},
		},
		Trace: []TraceStep{
			{"tenants[0]", "team-a", true, `its name matches the pattern "team-a-*"`, false},
			{"tenants[1]", "team-b", false, "namespaces [team-b, team-a-b] do not include it, and namespaceSelector {team=b} does not select its labels", false},
			{"tenants[2]", "prod", false, "namespaces [prod] do not include it", false},
			{"tenants[0].classes[0]", "[fast]", true, "storageClasses include it", false},
			{"backends[3]", "off", false, "it is suspended", false},
			{"backends[0]", "gold", true, "it may take the volume", false},
			{"backends[1]", "silver", true, "it may take the volume", false},
		},
	}
	if !reflect.DeepEqual(got, want) {
		g, _ := json.MarshalIndent(got, "", " ")
		w, _ := json.MarshalIndent(want, "", " ")
		t.Errorf("\n got %s\nwant %s", g, w)
	}
	if !got.Allowed() {
		t.Error("a decision without denial is not allowed")
	}
}

func TestWhichTenant(t *testing.T) {
	p := mustParse(t, decidePolicy+`
  - name: selected
    namespaceSelector: {matchExpressions: [{key: team, operator: In, values: [c]}, {key: tenant, operator: DoesNotExist}]}
    classes: [{storageClasses: [only], backends: [gold]}]
`)
	tests := map[string]struct {
		namespace string
		labels    map[string]string
		want      string // the tenant or the reason
	}{
		"a name":                                  {"team-a", nil, "team-a"},
		"a pattern":                               {"team-a-dev", nil, "team-a"},
		"a selector":                              {"x", map[string]string{"tenant": "a"}, "team-a"},
		"a name over another's pattern":           {"team-a-b", nil, "team-b"},
		"a name over another's selector":          {"team-b", map[string]string{"tenant": "a"}, "team-b"},
		"a pattern over another's selector":       {"team-a-dev", map[string]string{"team": "b"}, "team-a"},
		"two selectors":                           {"x", map[string]string{"tenant": "a", "team": "b"}, "AmbiguousTenant"},
		"a name over two selectors":               {"team-a", map[string]string{"tenant": "a", "team": "b"}, "team-a"},
		"a selector with expressions":             {"x", map[string]string{"team": "c"}, "selected"},
		"nobody":                                  {"x", map[string]string{"tenant": "b"}, "NoMatchingTenant"},
		"a name that only begins like a listed":   {"team-a2", nil, "NoMatchingTenant"},
		"a name that only ends like a listed":     {"my-team-a", nil, "NoMatchingTenant"},
		"a pattern's prefix alone":                {"team-a-", nil, "InvalidClaim"},
		"a namespace in other letters":            {"TEAM-A", nil, "InvalidClaim"},
		"no namespace":                            {"", nil, "InvalidClaim"},
		"a label's value in other letters":        {"x", map[string]string{"tenant": "A"}, "NoMatchingTenant"},
		"a namespace named like the pattern text": {"team-a-*", nil, "InvalidClaim"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			d := p.Decide(claim(func(r *Request) { r.Namespace, r.NamespaceLabels, r.StorageClass = test.namespace, test.labels, "only" }))
			got := d.Tenant
			if got == "" {
				got = string(d.Denial.Reason)
			}
			if got != test.want {
				t.Errorf("got %s, want %s; trace %v", got, test.want, d.Trace)
			}
		})
	}
}

func TestDenials(t *testing.T) {
	p := mustParse(t, decidePolicy)
	tests := map[string]struct {
		request Request
		want    Denial
	}{
		"no namespace": {claim(func(r *Request) { r.Namespace = "" }), Denial{InvalidClaim, "",
			`"" cannot be the name of a namespace`}},
		"no StorageClass": {claim(func(r *Request) { r.StorageClass = "" }), Denial{InvalidClaim, "",
			`"" cannot be the name of a StorageClass`}},
		"a volume mode that is none": {claim(func(r *Request) { r.VolumeMode = "block" }), Denial{InvalidClaim, "",
			`volume mode "block" is neither Filesystem nor Block`}},
		"no size": {claim(func(r *Request) { r.Bytes = 0 }), Denial{InvalidClaim, "",
			"the claim asks for 0 bytes; it must ask for more than 0"}},
		"a negative size": {claim(func(r *Request) { r.Bytes = -gib }), Denial{InvalidClaim, "",
			"the claim asks for -1073741824 bytes; it must ask for more than 0"}},
		"a negative limit": {claim(func(r *Request) { r.LimitBytes = -1 }), Denial{InvalidClaim, "",
			"the claim's limit of -1 bytes is negative"}},
		"a size beyond Cinder": {claim(func(r *Request) { r.Bytes = math.MaxInt64 }), Denial{VolumeTooLarge, "",
			"the volume would have 8589934592 GiB, more than the 2147483647 GiB that Cinder can express"}},
		"a limit below the rounded size": {claim(func(r *Request) { r.Bytes, r.LimitBytes = 2*gib+1, 3*gib-1 }), Denial{ClaimLimitTooSmall, "",
			"Cinder creates volumes in whole GiB, and the 3 GiB that hold the requested 2147483649 bytes are more than the claim's limit of 3221225471 bytes"}},
		"nobody's namespace": {claim(func(r *Request) { r.Namespace = "x" }), Denial{NoMatchingTenant, "tenants",
			"namespace x belongs to no tenant of the policy: none lists its name, has a pattern for it or selects its labels"}},
		"two tenants' namespace": {claim(func(r *Request) {
			r.Namespace, r.NamespaceLabels = "x", map[string]string{"tenant": "a", "team": "b"}
		}), Denial{AmbiguousTenant, "tenants[0]",
			"namespace x matches several tenants equally well: team-a (tenants[0]), team-b (tenants[1]); list its name in one of them, or exclude it from the selectors of the others"}},
		"no rule": {claim(func(r *Request) { r.Namespace = "prod" }), Denial{NoMatchingClass, "tenants[2].classes",
			"tenant prod has no rule for StorageClass open (tenants[2].classes)"}},
		"unknown parameters": {claim(func(r *Request) {
			r.Parameters = map[string]string{"type": "ssd", "iops": "5", "csi.storage.k8s.io/provisioner-secret-name": "x", "Zone": "y"}
		}), Denial{ParameterNotAllowed, "tenants[0].classes[5]",
			"StorageClass open has parameters that this provisioner does not take: Zone, csi.storage.k8s.io/provisioner-secret-name, iops; it takes type, availability, fsType, csi.storage.k8s.io/fstype, smartclone"}},
		"a parameter against the rule": {claim(func(r *Request) {
			r.StorageClass, r.Parameters = "fast", map[string]string{"Type": "hdd"}
		}), Denial{ParameterNotAllowed, "tenants[0].classes[0].volumeType",
			`StorageClass fast sets the parameter Type to "hdd", but the policy fixes it at "ssd" (tenants[0].classes[0].volumeType)`}},
		"a filesystem against the rule, for a block volume too": {claim(func(r *Request) {
			r.StorageClass, r.Parameters, r.VolumeMode = "fast", map[string]string{"csi.storage.k8s.io/fstype": "ext4"}, Block
		}), Denial{ParameterNotAllowed, "tenants[0].classes[0].fsType",
			`StorageClass fast sets the parameter csi.storage.k8s.io/fstype to "ext4", but the policy fixes it at "xfs" (tenants[0].classes[0].fsType)`}},
		"an unknown filesystem": {claim(func(r *Request) { r.Parameters = map[string]string{"fsType": "ntfs"} }), Denial{ParameterInvalid, "tenants[0].classes[5]",
			`StorageClass open sets the parameter fsType to "ntfs", which is not one of ext2, ext3, ext4, xfs, btrfs`}},
		"two filesystems": {claim(func(r *Request) {
			r.Parameters = map[string]string{"fsType": "xfs", "csi.storage.k8s.io/fstype": "ext4"}
		}), Denial{ParameterInvalid, "tenants[0].classes[5]",
			`StorageClass open sets csi.storage.k8s.io/fstype to "ext4" and fsType to "xfs", which mean the same; keep one of them`}},
		"a parameter twice in different letters": {claim(func(r *Request) {
			r.Parameters = map[string]string{"type": "ssd", "TYPE": "hdd"}
		}), Denial{ParameterInvalid, "tenants[0].classes[5]",
			`StorageClass open sets TYPE to "hdd" and type to "ssd", which mean the same; keep one of them`}},
		"a parameter with a line break": {claim(func(r *Request) { r.Parameters = map[string]string{"type": "a\nb"} }), Denial{ParameterInvalid, "tenants[0].classes[5]",
			"StorageClass open sets the parameter type to an unusable value: it has control characters"}},
		"smartclone": {claim(func(r *Request) { r.Parameters = map[string]string{"smartclone": "maybe"} }), Denial{ParameterInvalid, "tenants[0].classes[5]",
			`StorageClass open sets the parameter smartclone to "maybe", which is neither true nor false`}},
		"above the tenant's size": {claim(func(r *Request) { r.Bytes = 200*gib + 1 }), Denial{VolumeTooLarge, "tenants[0].volumeSize.max",
			"the volume would have 201 GiB, more than the 200Gi that tenants[0].volumeSize.max allows"}},
		"below the default size": {claim(func(r *Request) { r.Bytes = gib }), Denial{VolumeTooSmall, "defaults.volumeSize.min",
			"the volume would have 1 GiB, less than the 2Gi that defaults.volumeSize.min demands"}},
		"above the rule's size": {claim(func(r *Request) { r.StorageClass, r.Bytes = "small-1", 11*gib }), Denial{VolumeTooLarge, "tenants[0].classes[1].volumeSize.max",
			"the volume would have 11 GiB, more than the 10Gi that tenants[0].classes[1].volumeSize.max allows"}},
		"between the backends' sizes": {claim(func(r *Request) { r.StorageClass, r.Bytes = "sized", 60*gib }), Denial{VolumeTooLarge, "backends[1].volumeSize.max",
			"the volume would have 60 GiB, more than the 50Gi that backends[1].volumeSize.max allows"}},
		"too large for the only backend that is not suspended": {claim(func(r *Request) { r.StorageClass, r.Bytes = "partly", 60*gib }), Denial{VolumeTooLarge, "backends[1].volumeSize.max",
			"the volume would have 60 GiB, more than the 50Gi that backends[1].volumeSize.max allows"}},
		"suspended": {claim(func(r *Request) { r.StorageClass = "stopped" }), Denial{BackendsSuspended, "tenants[0].classes[3].backends",
			"every backend of tenants[0].classes[3] is suspended: off"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			d := p.Decide(test.request)
			if d.Denial == nil || *d.Denial != test.want {
				t.Errorf("\n got %+v\nwant %+v", d.Denial, test.want)
			}
			if d.Allowed() || d.Backends != nil || d.Quotas != nil || d.Volume.SizeGiB != 0 {
				t.Errorf("a denial grants something: %+v", d)
			}
		})
	}
}

// TestDenialNamesWhatWasFound: a denial that comes late still says which tenant
// and rule it came from, for events and for explaining.
func TestDenialNamesWhatWasFound(t *testing.T) {
	p := mustParse(t, decidePolicy)
	d := p.Decide(claim(func(r *Request) { r.StorageClass = "stopped" }))
	if d.Tenant != "team-a" || d.Rule != "tenants[0].classes[3]" {
		t.Errorf("tenant %q, rule %q", d.Tenant, d.Rule)
	}
	d = p.Explain(claim(func(r *Request) { r.StorageClass = "other" }))
	if d.Tenant != "team-a" || d.Rule != "" {
		t.Errorf("tenant %q, rule %q", d.Tenant, d.Rule)
	}
	want := []TraceStep{
		{"tenants[0]", "team-a", true, "its name is listed", false},
		{"tenants[1]", "team-b", false, "namespaces [team-b, team-a-b] do not include it, and namespaceSelector {team=b} does not select its labels", false},
		{"tenants[2]", "prod", false, "namespaces [prod] do not include it", false},
		{"tenants[0].classes[0]", "[fast]", false, `storageClasses do not include "other"`, false},
		{"tenants[0].classes[1]", "[small-*]", false, `storageClasses do not include "other"`, false},
		{"tenants[0].classes[2]", "[sized]", false, `storageClasses do not include "other"`, false},
		{"tenants[0].classes[3]", "[stopped]", false, `storageClasses do not include "other"`, false},
		{"tenants[0].classes[4]", "[partly]", false, `storageClasses do not include "other"`, false},
		{"tenants[0].classes[5]", "[fast, open]", false, `storageClasses do not include "other"`, false},
	}
	if !slices.Equal(d.Trace, want) {
		t.Errorf("trace\n got %v\nwant %v", d.Trace, want)
	}
}

func TestTraceSaysWhyTheOthersLost(t *testing.T) {
	p := mustParse(t, decidePolicy)
	details := func(r Request) []string {
		var lines []string
		for _, step := range p.Explain(r).Trace {
			if step.Path == "tenants[0]" || step.Path == "tenants[1]" {
				lines = append(lines, fmt.Sprint(step.Matched, " ", step.Outranked, " ", step.Detail))
			}
		}
		return lines
	}
	tests := map[string]struct {
		request Request
		want    []string
	}{
		"a stronger match": {claim(func(r *Request) { r.Namespace = "team-a-b" }), []string{
			`false true its name matches the pattern "team-a-*"; a stronger match wins: team-b (tenants[1])`,
			"true false its name is listed",
		}},
		"no single winner": {claim(func(r *Request) {
			r.Namespace, r.NamespaceLabels = "x", map[string]string{"tenant": "a", "team": "b"}
		}), []string{
			"false true its labels are selected by {tenant=a}; several tenants match it equally well: team-a (tenants[0]), team-b (tenants[1])",
			"false true its labels are selected by {team=b}; several tenants match it equally well: team-a (tenants[0]), team-b (tenants[1])",
		}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := details(test.request); !slices.Equal(got, test.want) {
				t.Errorf("\n got %q\nwant %q", got, test.want)
			}
		})
	}
}

func TestVolumeProperties(t *testing.T) {
	p := mustParse(t, decidePolicy)
	tests := map[string]struct {
		class      string
		mode       VolumeMode
		parameters map[string]string
		want       string // type, zone, filesystem
	}{
		"all left open":                 {"open", Filesystem, nil, "||ext4"},
		"no mode means a filesystem":    {"open", "", nil, "||ext4"},
		"a block volume":                {"open", Block, nil, "||"},
		"parameters fill in":            {"open", Filesystem, map[string]string{"type": "hdd", "availability": "nova", "fsType": "xfs"}, "hdd|nova|xfs"},
		"in any letters":                {"open", Filesystem, map[string]string{"TYPE": "hdd", "Availability": "nova", "fstype": "xfs"}, "hdd|nova|xfs"},
		"by the CSI key":                {"open", Filesystem, map[string]string{"csi.storage.k8s.io/fstype": "btrfs"}, "||btrfs"},
		"by both keys alike":            {"open", Filesystem, map[string]string{"csi.storage.k8s.io/fstype": "ext3", "fsType": "ext3"}, "||ext3"},
		"empty ones count as absent":    {"open", Filesystem, map[string]string{"type": "", "fsType": "", "smartclone": ""}, "||ext4"},
		"not cloning is no matter":      {"open", Filesystem, map[string]string{"smartclone": "False"}, "||ext4"},
		"nor is cloning":                {"open", Filesystem, map[string]string{"smartclone": "true"}, "||ext4"},
		"the rule sets all":             {"fast", Filesystem, nil, "ssd|az1|xfs"},
		"parameters repeat the rule":    {"fast", Filesystem, map[string]string{"type": "ssd", "availability": "az1", "fsType": "xfs"}, "ssd|az1|xfs"},
		"a block volume of such a rule": {"fast", Block, nil, "ssd|az1|"},
		"a filesystem for a block one":  {"open", Block, map[string]string{"fsType": "xfs"}, "||"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			d := p.Decide(claim(func(r *Request) { r.StorageClass, r.VolumeMode, r.Parameters = test.class, test.mode, test.parameters }))
			if d.Denial != nil {
				t.Fatal(d.Denial)
			}
			if got := d.Volume.Type + "|" + d.Volume.AvailabilityZone + "|" + d.Volume.FSType; got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

func TestSizesAreRoundedUp(t *testing.T) {
	p := mustParse(t, decidePolicyWithoutBounds)
	for _, test := range []struct{ bytes, limit, want int64 }{
		{1, 0, 1}, {gib, 0, 1}, {gib, gib, 1}, {gib + 1, 0, 2}, {gib + 1, 2 * gib, 2}, {maxGiB * gib, 0, maxGiB}, {maxGiB*gib - gib + 1, 0, maxGiB},
	} {
		d := p.Decide(claim(func(r *Request) { r.Bytes, r.LimitBytes = test.bytes, test.limit }))
		if d.Denial != nil || d.Volume.SizeGiB != test.want {
			t.Errorf("%d bytes: %d GiB, %v, want %d GiB", test.bytes, d.Volume.SizeGiB, d.Denial, test.want)
		}
	}
	d := p.Decide(claim(func(r *Request) { r.Bytes = maxGiB*gib + 1 }))
	if d.Denial == nil || d.Denial.Reason != VolumeTooLarge {
		t.Errorf("a byte more than Cinder can express: %v", d.Denial)
	}
}

const decidePolicyWithoutBounds = `
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
backends: [{name: gold, auth: {cloud: gold}}]
tenants: [{name: a, namespaces: [team-a], classes: [{storageClasses: ["*"], backends: [gold]}]}]
`

// TestBoundsOfVolumeSize: a tenant's own bound replaces the default, even when
// it is wider; what the rule and the backend say can only narrow that.
func TestBoundsOfVolumeSize(t *testing.T) {
	p := mustParse(t, decidePolicy)
	tests := []struct {
		namespace, class string
		gigabytes        int64
		want             string
	}{
		{"team-a", "open", 2, "[gold]"},
		{"team-a", "open", 200, "[gold]"},
		{"team-b", "any", 1, "[gold]"},
		{"team-b", "any", 4096, "[gold]"},
		{"team-b", "any", 4097, "VolumeTooLarge tenants[1].volumeSize.max"},
		{"prod", "only", 1024, "[gold]"},
		{"prod", "only", 1025, "VolumeTooLarge defaults.volumeSize.max"},
		{"team-a", "small-x", 10, "[silver]"},
		{"team-a", "sized", 50, "[silver]"},
		{"team-a", "sized", 99, "VolumeTooLarge backends[1].volumeSize.max"},
		{"team-a", "sized", 100, "[large]"},
		{"team-a", "fast", 51, "[gold]"},
	}
	for _, test := range tests {
		d := p.Decide(claim(func(r *Request) {
			r.Namespace, r.StorageClass, r.Bytes = test.namespace, test.class, test.gigabytes*gib
		}))
		got := fmt.Sprint(d.Backends)
		if d.Denial != nil {
			got = string(d.Denial.Reason) + " " + d.Denial.Path
		}
		if got != test.want {
			t.Errorf("%d GiB for %s in %s: %s, want %s", test.gigabytes, test.class, test.namespace, got, test.want)
		}
	}
}

func TestBytesOfQuantities(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "1": 1, "1Gi": gib, "1.5Gi": gib * 3 / 2, "100m": 1, "-1Gi": -gib, "9E": 9e18,
		"8Ei": math.MaxInt64, "10E": math.MaxInt64, "100Ei": math.MaxInt64, "18446744073709551617": math.MaxInt64, "99999999999999999999E": math.MaxInt64,
	} {
		if got := Bytes(resource.MustParse(text)); got != want {
			t.Errorf("Bytes(%s) = %d, want %d", text, got, want)
		}
	}
}

// randomRequest hits what decidePolicy knows about as often as not.
func randomRequest(r *rand.Rand) Request {
	pick := func(from ...string) string { return from[r.IntN(len(from))] }
	request := Request{
		Namespace:    pick("team-a", "team-a-dev", "team-b", "team-a-b", "prod", "x", "x-prod", "", "-", "shared"),
		StorageClass: pick("fast", "open", "small-1", "sized", "stopped", "partly", "only", "none", ""),
		Bytes:        []int64{0, -1, 1, gib, 10 * gib, 60 * gib, 150 * gib, math.MaxInt64, math.MinInt64}[r.IntN(9)],
		LimitBytes:   []int64{0, 0, 0, -1, gib, math.MaxInt64}[r.IntN(6)],
		VolumeMode:   VolumeMode(pick("", "Filesystem", "Block", "x")),
	}
	for range r.IntN(3) {
		request.NamespaceLabels = map[string]string{pick("tenant", "team", "x"): pick("a", "b", "c")}
	}
	if r.IntN(2) == 0 {
		request.Parameters = map[string]string{
			pick("type", "availability", "fsType", "csi.storage.k8s.io/fstype", "smartclone", "x", ""): pick("", "ssd", "az1", "xfs", "false"),
			pick("TYPE", "FSTYPE", "Availability", "type"):                                             pick("", "ssd", "hdd", "xfs", "\x00"),
		}
	}
	return request
}

// TestDecideHoldsItsPromises makes random claims and looks at what must hold
// for every answer.
func TestDecideHoldsItsPromises(t *testing.T) {
	p := mustParse(t, decidePolicy)
	r := rand.New(rand.NewPCG(5, 6))
	granted, reasons := 0, map[Reason]int{}
	for range 20000 {
		request := randomRequest(r)
		before := maps.Clone(request.Parameters)
		d := p.Decide(request)
		if !maps.Equal(before, request.Parameters) {
			t.Fatalf("%+v: the request was changed", request)
		}
		if again := p.Decide(request); !reflect.DeepEqual(again, d) {
			t.Fatalf("%+v: two answers: %+v, %+v", request, d, again)
		}
		winners := map[string]int{}
		for _, step := range d.Trace {
			if step.Matched {
				winners[step.Path[:strings.IndexByte(step.Path, '[')]+fmt.Sprint(strings.Contains(step.Path, "classes"))]++
			}
		}
		if winners["tenantsfalse"] > 1 || winners["tenantstrue"] > 1 {
			t.Fatalf("%+v: several tenants or rules: %v", request, d.Trace)
		}
		if d.Denial != nil {
			reasons[d.Denial.Reason]++
			if d.Denial.Message == "" || d.Backends != nil {
				t.Fatalf("%+v: %+v", request, d)
			}
			continue
		}
		granted++
		if d.Volume.Metadata["changed by the caller"] != "" {
			t.Fatalf("%+v: metadata of an earlier decision: %v", request, d.Volume.Metadata)
		}
		d.Volume.Metadata["changed by the caller"] = "yes"
		switch {
		case d.Tenant == "" || d.Rule == "" || len(d.Backends) == 0 || slices.Contains(d.Backends, "off"):
			t.Fatalf("%+v: %+v", request, d)
		case d.Volume.SizeGiB*gib < request.Bytes || (d.Volume.SizeGiB-1)*gib >= request.Bytes:
			t.Fatalf("%+v: %d GiB", request, d.Volume.SizeGiB)
		case (d.Volume.FSType == "") != (request.VolumeMode == Block):
			t.Fatalf("%+v: filesystem %q", request, d.Volume.FSType)
		}
		if got := d.Quotas[:2]; !reflect.DeepEqual(got, p.QuotaScopes(d.Tenant, request.StorageClass, "")) {
			t.Fatalf("%+v: quotas %v are not those of an existing volume", request, got)
		}
	}
	if granted < 300 {
		t.Errorf("only %d claims were granted", granted)
	}
	for _, reason := range []Reason{
		InvalidClaim, NoMatchingTenant, NoMatchingClass, ParameterNotAllowed, ParameterInvalid,
		VolumeTooLarge, VolumeTooSmall, ClaimLimitTooSmall, BackendsSuspended,
	} {
		if reasons[reason] < 10 {
			t.Errorf("only %d claims were denied as %s", reasons[reason], reason)
		}
	}
}

// TestOrderOfTenantsDoesNotMatter decides the same claims with the tenants in
// every order.
func TestOrderOfTenantsDoesNotMatter(t *testing.T) {
	text := decidePolicy
	head, tenants, _ := strings.Cut(text, "tenants:\n")
	parts := strings.Split(tenants, "  - name: ")[1:]
	if len(parts) != 3 {
		t.Fatalf("%d tenants", len(parts))
	}
	var policies []*Policy
	for _, order := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		shuffled := head + "tenants:\n"
		for _, i := range order {
			shuffled += "  - name: " + parts[i]
		}
		policies = append(policies, mustParse(t, shuffled))
	}
	summary := func(d Decision) string {
		if d.Denial != nil {
			return d.Tenant + " " + string(d.Denial.Reason)
		}
		return fmt.Sprint(d.Tenant, d.Backends, d.Volume)
	}
	r := rand.New(rand.NewPCG(7, 8))
	for range 2000 {
		request := randomRequest(r)
		want := summary(policies[0].Decide(request))
		for _, p := range policies[1:] {
			if got := summary(p.Decide(request)); got != want {
				t.Fatalf("%+v: %s in one order, %s in another", request, want, got)
			}
		}
	}
}

// TestDecideFromManyGoroutines lets the race detector look at a shared policy.
func TestDecideFromManyGoroutines(t *testing.T) {
	p := mustParse(t, decidePolicy)
	done := make(chan bool)
	for i := range 4 {
		go func() {
			defer func() { done <- true }()
			r := rand.New(rand.NewPCG(uint64(i), 9))
			for range 300 {
				p.Decide(randomRequest(r))
			}
		}()
	}
	for range 4 {
		<-done
	}
}
