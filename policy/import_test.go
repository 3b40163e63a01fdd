package policy

import (
	"reflect"
	"testing"
)

const importPolicy = `
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
backends:
  - {name: gold, auth: {cloud: gold}}
  - {name: silver, auth: {cloud: silver}}
  - {name: old, auth: {cloud: old}, suspended: true}
tenants:
  - name: a
    namespaces: [a]
    volumeSize: {max: 10Gi}
    classes:
      - storageClasses: [fast]
        backends: [gold, silver, old]
        import: {names: [data, "a-*"], types: [ssd, hdd], metadata: {owner: a}}
      - {storageClasses: [new], backends: [gold]}
      - {storageClasses: [old], backends: [old], import: {names: ["*"]}}
`

// TestImportGrants: names, types and metadata must all match.
func TestImportGrants(t *testing.T) {
	owned := map[string]string{"owner": "a", "more": "x"}
	full := &ImportFilter{Names: []string{"data", "a-*"}, Types: []string{"ssd", "hdd"}, Metadata: map[string]string{"owner": "a"}}
	for name, c := range map[string]struct {
		filter *ImportFilter
		volume Existing
		want   bool
	}{
		"all match":                  {full, Existing{Name: "data", Type: "ssd", Metadata: owned}, true},
		"a pattern":                  {full, Existing{Name: "a-1", Type: "hdd", Metadata: owned}, true},
		"another name":               {full, Existing{Name: "b-1", Type: "ssd", Metadata: owned}, false},
		"capitals":                   {full, Existing{Name: "Data", Type: "ssd", Metadata: owned}, false},
		"another type":               {full, Existing{Name: "data", Type: "tape", Metadata: owned}, false},
		"no metadata":                {full, Existing{Name: "data", Type: "ssd"}, false},
		"other metadata":             {full, Existing{Name: "data", Type: "ssd", Metadata: map[string]string{"owner": "b"}}, false},
		"every name":                 {&ImportFilter{Names: []string{"*"}}, Existing{}, true},
		"a type":                     {&ImportFilter{Types: []string{"ssd"}}, Existing{Name: "any", Type: "ssd"}, true},
		"metadata with an empty key": {&ImportFilter{Metadata: map[string]string{"note": ""}}, Existing{Name: "any"}, false},
		"nothing is said":            {&ImportFilter{}, Existing{Name: "any"}, false},
		"no filter":                  {nil, Existing{Name: "any"}, false},
	} {
		if got := c.filter.Grants(c.volume); got != c.want {
			t.Errorf("%s: granted %t, want %t", name, got, c.want)
		}
	}
}

// TestDecideImport: what can be said before the volume is known.
func TestDecideImport(t *testing.T) {
	p := mustParse(t, importPolicy)
	for name, c := range map[string]struct {
		request  Request
		backends []string
		reason   Reason
		path     string
		message  string
	}{
		"granted": {Request{Namespace: "a", StorageClass: "fast"}, []string{"gold", "silver"}, "", "", ""},
		"no import": {Request{Namespace: "a", StorageClass: "new"}, nil, ImportNotGranted, "tenants[0].classes[1]",
			"tenants[0].classes[1] grants no volumes that exist at Cinder; ask an operator to add import to the rule, or for standalone-cinder volume import"},
		"no rule": {Request{Namespace: "a", StorageClass: "none"}, nil, NoMatchingClass, "tenants[0].classes",
			"tenant a has no rule for StorageClass none (tenants[0].classes)"},
		"no tenant": {Request{Namespace: "b", StorageClass: "fast"}, nil, NoMatchingTenant, "tenants",
			"namespace b belongs to no tenant of the policy: none lists its name, has a pattern for it or selects its labels"},
		"suspended": {Request{Namespace: "a", StorageClass: "old"}, nil, BackendsSuspended, "tenants[0].classes[2].backends",
			"every backend of tenants[0].classes[2] is suspended: old"},
		"no namespace": {Request{StorageClass: "old"}, nil, InvalidClaim, "",
			`"" cannot be the name of a namespace, or "old" that of a StorageClass`},
	} {
		t.Run(name, func(t *testing.T) {
			d := p.DecideImport(c.request)
			if c.reason == "" {
				if d.Denial != nil || !reflect.DeepEqual(d.Backends, c.backends) || d.Import == nil || d.Tenant != "a" || d.Rule != "tenants[0].classes[0]" {
					t.Errorf("%+v", d)
				}
				return
			}
			if d.Denial == nil || *d.Denial != (Denial{Reason: c.reason, Path: c.path, Message: c.message}) {
				t.Errorf("%+v", d.Denial)
			}
		})
	}
}

// TestDecideAboutAnExistingVolume: its size and filter are checked like those of a
// new one, and a volume outside the filter is like one that does not exist.
func TestDecideAboutAnExistingVolume(t *testing.T) {
	p := mustParse(t, importPolicy)
	granted := Existing{Wanted: "id-1", Name: "data", Type: "ssd", Metadata: map[string]string{"owner": "a"}}
	outside := granted
	outside.Name = "secret"
	for name, c := range map[string]struct {
		class   string
		volume  Existing
		gib     int64
		reason  Reason
		message string
	}{
		"granted": {"fast", granted, 10, "", ""},
		"outside the filter": {"fast", outside, 10, ImportedVolumeNotFound,
			`tenants[0].classes[0].import grants no volume with the ID or the name "id-1" on the backends of the rule; correct the claim's annotation, or ask an operator`},
		"no import": {"new", granted, 1, ImportNotGranted,
			"tenants[0].classes[1] grants no volumes that exist at Cinder; ask an operator to add import to the rule, or for standalone-cinder volume import"},
		"too large": {"fast", granted, 11, VolumeTooLarge,
			"the volume would have 11 GiB, more than the 10Gi that tenants[0].volumeSize.max allows"},
	} {
		t.Run(name, func(t *testing.T) {
			d := p.Decide(Request{Namespace: "a", StorageClass: c.class, Bytes: c.gib << 30, Import: &c.volume})
			switch {
			case c.reason == "" && (d.Denial != nil || d.Import == nil):
				t.Errorf("%+v", d)
			case c.reason != "" && (d.Denial == nil || d.Denial.Reason != c.reason || d.Denial.Message != c.message):
				t.Errorf("%+v", d.Denial)
			}
		})
	}
}

// TestPolicyTestsKnowImports: a table of expectations may have volumes that exist.
func TestPolicyTestsKnowImports(t *testing.T) {
	f, err := ParseTests([]byte(`
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: PolicyTest
policy: p.yaml
tests:
  - name: granted
    claim: {namespace: a, storageClass: fast, size: 1Gi, import: {name: a-1, type: ssd, metadata: {owner: a}}}
    expect: {rule: "tenants[0].classes[0]"}
  - name: another owner
    claim: {namespace: a, storageClass: fast, size: 1Gi, import: {name: a-1, type: ssd, metadata: {owner: b}}}
    expect: {denied: ImportedVolumeNotFound}
  - name: not granted
    claim: {namespace: a, storageClass: new, size: 1Gi, import: {name: a-1}}
    expect: {denied: ImportNotGranted}
`), "t.yaml")
	if err != nil {
		t.Fatal(err)
	}
	p := mustParse(t, importPolicy)
	for _, test := range f.Tests {
		d := p.Decide(test.Claim.Request())
		if denied := d.Denial != nil; denied != (test.Expect.Denied != "") || denied && d.Denial.Reason != test.Expect.Denied {
			t.Errorf("%s: %+v", test.Name, d.Denial)
		}
	}
}
