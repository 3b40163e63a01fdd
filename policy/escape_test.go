package policy

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"
	"pgregory.net/rapid"
)

// escapePolicy gives every tenant a backend of its own, so that a decision
// shows whose it is.
const escapePolicy = `
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
backends:
  - {name: for-a, auth: {cloud: a}}
  - {name: for-b, auth: {cloud: b}}
  - {name: for-shop, auth: {cloud: shop}}
  - {name: for-rest, auth: {cloud: rest}}
tenants:
  - name: a
    namespaces: [team-a, team-a-own]
    classes: [{storageClasses: [fast], backends: [for-a], volumeType: ssd, availabilityZone: az1, fsType: xfs}]
  - name: b
    namespaces: ["team-a-*", "b*b", "*-prod"]
    namespaceSelector: {matchLabels: {tenant: b}}
    classes: [{storageClasses: [fast, "b-*"], backends: [for-b]}]
  # Its name is that of tenant a's namespace.
  - name: team-a
    namespaces: [shop]
    classes: [{storageClasses: [fast], backends: [for-shop]}]
`

// TestEscapeNamespaceThatLooksLikeAnothersIsNotTheirs compares names that somebody
// could choose in order to be taken for another tenant's.
func TestEscapeNamespaceThatLooksLikeAnothersIsNotTheirs(t *testing.T) {
	long := strings.Repeat("x", 63-len("team-a-"))
	p := mustParse(t, escapePolicy)
	for _, test := range []struct {
		namespace string
		labels    map[string]string
		want      string // the tenant or the reason
	}{
		{"team-a", nil, "a"},
		{"team-a", map[string]string{"tenant": "b"}, "a"}, // a label takes nothing from a tenant that names the namespace
		{"team-a-evil", nil, "b"},                         // the pattern's, and not the name's
		{"team-a-own", nil, "a"},                          // the name's, and not the pattern's
		{"team-a-owner", nil, "b"},
		{"team-aevil", nil, "NoMatchingTenant"},
		{"eteam-a", nil, "NoMatchingTenant"},
		{"my-team-a-x", nil, "NoMatchingTenant"},
		{"team", nil, "NoMatchingTenant"},
		{"team-b", nil, "NoMatchingTenant"},
		{"a", nil, "NoMatchingTenant"}, // a tenant's name is not a namespace
		{"team-a.", nil, "InvalidClaim"},
		{"team-a.x", nil, "InvalidClaim"},
		{"team-a-", nil, "InvalidClaim"},
		{"team-a-*", nil, "InvalidClaim"},
		{"Team-A", nil, "InvalidClaim"},
		{"team-a ", nil, "InvalidClaim"},
		{"team-a\n", nil, "InvalidClaim"},
		{"team-a/x", nil, "InvalidClaim"},
		{"team-\u0430", nil, "InvalidClaim"}, // a Cyrillic letter
		{"b", nil, "NoMatchingTenant"},       // one b cannot begin and end the name
		{"bb", nil, "b"},
		{"bxbx", nil, "NoMatchingTenant"},
		{"prod", nil, "NoMatchingTenant"},
		{"shop", nil, "team-a"},
		{"shop-prod", nil, "b"},
		{"shop-prod-2", nil, "NoMatchingTenant"},
		{"shop-production", nil, "NoMatchingTenant"},
		{"team-a-" + long, nil, "b"},
		{"team-a-" + long + "x", nil, "InvalidClaim"},
		{"x", map[string]string{"tenant": "b"}, "b"},
		{"x", map[string]string{"tenant": "B"}, "NoMatchingTenant"},
		{"x", map[string]string{"tenant": "b-"}, "NoMatchingTenant"},
		{"x", map[string]string{"Tenant": "b"}, "NoMatchingTenant"},
		{"x", map[string]string{"example.org/tenant": "b"}, "NoMatchingTenant"},
	} {
		t.Run(test.namespace, func(t *testing.T) {
			d := p.Decide(claim(func(r *Request) {
				r.Namespace, r.NamespaceLabels, r.StorageClass = test.namespace, test.labels, "fast"
			}))
			got := d.Tenant
			if d.Denial != nil {
				got = string(d.Denial.Reason)
			}
			if got != test.want {
				t.Errorf("%q is %s, want %s", test.namespace, got, test.want)
			}
		})
	}
}

// TestEscapeNamespaceOfTwoTenantsIsNobodys covers what is refused when the policy is
// read, and what only a namespace's labels show.
func TestEscapeNamespaceOfTwoTenantsIsNobodys(t *testing.T) {
	if _, err := Parse([]byte(escapePolicy+`
  - name: rest
    namespaces: ["*"]
    classes: [{storageClasses: ["*"], backends: [for-rest]}]
`), "p.yaml", protocols()); err == nil || !strings.Contains(err.Error(), `"*" overlaps with "team-a-*"`) {
		t.Errorf("a pattern for everything beside another tenant's pattern: error %v", err)
	}
	for _, entry := range []string{"team-?", "team-[ab]", "team-a|team-b", "^team-a", "TEAM-A"} {
		if _, err := Parse([]byte(strings.Replace(escapePolicy, "namespaces: [team-a,", `namespaces: ["`+entry+`",`, 1)), "p.yaml", protocols()); err == nil {
			t.Errorf("%q is taken for a pattern or a name", entry)
		}
	}
	p := mustParse(t, escapePolicy+`
  - name: rest
    namespaceSelector: {matchLabels: {open: "yes"}}
    classes: [{storageClasses: ["*"], backends: [for-rest]}]
`)
	d := p.Decide(claim(func(r *Request) {
		r.Namespace, r.NamespaceLabels, r.StorageClass = "x", map[string]string{"tenant": "b", "open": "yes"}, "fast"
	}))
	const want = "namespace x matches several tenants equally well: b (tenants[1]), rest (tenants[3]); list its name in one of them, or exclude it from the selectors of the others"
	if d.Denial == nil || d.Denial.Message != want || d.Tenant != "" || d.Backends != nil {
		t.Errorf("decision %+v\nwant the denial %s", d, want)
	}
}

// TestEscapeNoNamespaceGetsMoreThanItsTenant compares, for names and labels close to
// those of the policy, the decision with what the policy says in plain words.
func TestEscapeNoNamespaceGetsMoreThanItsTenant(t *testing.T) {
	p := mustParse(t, escapePolicy)
	inB := regexp.MustCompile(`^(team-a-.*|b.*b|.*-prod)$`)
	rapid.Check(t, func(t *rapid.T) {
		namespace := strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"team", "-", "a", "b", "prod", "evil", "own", "shop", "*", "A", ".", "x"}), 1, 6).Draw(t, "namespace"), "")
		value := rapid.SampledFrom([]string{"", "a", "b", "B", "bb"}).Draw(t, "label")
		class := rapid.SampledFrom([]string{"fast", "fast-2", "fas", "b-", "b-1", "b"}).Draw(t, "class")
		tenant, backend := "", ""
		switch {
		case len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Subdomain(class)) > 0:
		case namespace == "team-a", namespace == "team-a-own":
			tenant, backend = "a", "for-a"
		case inB.MatchString(namespace):
			tenant, backend = "b", "for-b"
		case namespace == "shop":
			tenant, backend = "team-a", "for-shop"
		case value == "b":
			tenant, backend = "b", "for-b"
		}
		d := p.Decide(claim(func(r *Request) {
			r.Namespace, r.NamespaceLabels, r.StorageClass = namespace, map[string]string{"tenant": value}, class
		}))
		if d.Tenant != tenant {
			t.Fatalf("namespace %q with label %q is of tenant %q, want %q", namespace, value, d.Tenant, tenant)
		}
		granted := tenant != "" && (class == "fast" || tenant == "b" && strings.HasPrefix(class, "b-"))
		if d.Allowed() != granted || granted && !slices.Equal(d.Backends, []string{backend}) {
			t.Fatalf("namespace %q, class %q: backends %v, denial %v; want %q, granted %t", namespace, class, d.Backends, d.Denial, backend, granted)
		}
	})
}

// TestEscapeStorageClassOverridesNothingThatTheRuleSets tries every spelling of every
// parameter, alone and together.
func TestEscapeStorageClassOverridesNothingThatTheRuleSets(t *testing.T) {
	p := mustParse(t, escapePolicy)
	keys := []string{"type", "availability", "fsType", "csi.storage.k8s.io/fstype", "smartclone",
		"volumeType", "availabilityZone", "fs-type", "csi.storage.k8s.io/fsType", "backend", "tenant", "volume-id", "cinderVolumeId",
		"standalone-cinder.openstack.org/backend", "type ", " type", "ty\u0440e", "csi.storage.\u212a8s.io/fstype"}
	values := []string{"", "ssd", "az1", "xfs", "hdd", "az2", "ext4", "SSD", "ssd ", "true", "false", "for-b"}
	spelt := func(keys ...string) *rapid.Generator[string] {
		return rapid.Custom(func(t *rapid.T) string {
			key := []byte(rapid.SampledFrom(keys).Draw(t, "key"))
			for i := range key {
				if key[i] >= 'a' && key[i] <= 'z' && rapid.Bool().Draw(t, "capital") {
					key[i] -= 'a' - 'A'
				}
			}
			return string(key)
		})
	}
	// Most others are denied.
	right := rapid.MapOfN(spelt("type"), rapid.Just("ssd"), 1, 1)
	granted := 0
	rapid.Check(t, func(t *rapid.T) {
		parameters := rapid.OneOf(right, rapid.MapOfN(spelt(keys...), rapid.SampledFrom(values), 1, 3)).Draw(t, "parameters")
		d := p.Decide(claim(func(r *Request) { r.Namespace, r.StorageClass, r.Parameters = "team-a", "fast", parameters }))
		if d.Denial != nil {
			if d.Denial.Reason != ParameterNotAllowed && d.Denial.Reason != ParameterInvalid {
				t.Fatalf("denied for %s", d.Denial.Reason)
			}
			return
		}
		granted++
		if d.Volume.Type != "ssd" || d.Volume.AvailabilityZone != "az1" || d.Volume.FSType != "xfs" || !slices.Equal(d.Backends, []string{"for-a"}) {
			t.Fatalf("%q makes %+v on %v", parameters, d.Volume, d.Backends)
		}
	})
	if granted == 0 {
		t.Error("nothing was granted; this test would prove nothing")
	}
	// One at a time the answer is certain.
	for _, key := range []string{"type", "TYPE", "Type", "availability", "Availability", "fsType", "fstype", "FSTYPE", "csi.storage.k8s.io/fstype", "CSI.storage.k8s.io/FsType"} {
		d := p.Decide(claim(func(r *Request) {
			r.Namespace, r.StorageClass, r.Parameters = "team-a", "fast", map[string]string{key: "ext4"}
		}))
		if d.Denial == nil || d.Denial.Reason != ParameterNotAllowed {
			t.Errorf("parameter %s against the rule: %+v", key, d)
		}
	}
	for _, key := range []string{"volumeType", "availabilityZone", "fs-type", "csi.storage.k8s.io/fs-type", "backend", "tenant", "cinderVolumeId", "type ", "ty\u0440e"} {
		d := p.Decide(claim(func(r *Request) {
			r.Namespace, r.StorageClass, r.Parameters = "team-a", "fast", map[string]string{key: "ssd"}
		}))
		if d.Denial == nil || d.Denial.Reason != ParameterNotAllowed {
			t.Errorf("unknown parameter %q: %+v", key, d)
		}
	}
}

// TestEscapeClaimCannotChooseItsZone: a claim's author writes its name and, with a
// pod, chooses its node. Neither leads to a zone or backend other than the rule's.
func TestEscapeClaimCannotChooseItsZone(t *testing.T) {
	p := mustParse(t, zonedPolicy)
	rapid.Check(t, func(t *rapid.T) {
		r := Request{Namespace: "team-a", StorageClass: rapid.SampledFrom([]string{"spread-fixed", "fixed"}).Draw(t, "class"), Bytes: gib}
		r.Claim = rapid.StringMatching(`[a-z][a-z0-9-]{0,20}(az1|az2|-[0-9]{1,11})`).Draw(t, "claim")
		if rapid.Bool().Draw(t, "has a node") {
			r.Node = &Node{Name: "n", Labels: map[string]string{"rack": rapid.SampledFrom([]string{"a", "b", "z", ""}).Draw(t, "rack"), "site": "north"}}
		}
		if availability := rapid.SampledFrom([]string{"", "az2"}).Draw(t, "availability"); availability != "" {
			r.Parameters = map[string]string{"availability": availability}
		}
		d := p.Decide(r)
		if d.Allowed() != (r.Node == nil || r.Node.Labels["rack"] == "b") {
			t.Fatalf("%+v: denial %v", r, d.Denial)
		}
		if d.Allowed() && where(d) != "lab/az2" {
			t.Fatalf("%+v leads to %s", r, where(d))
		}
	})
}
