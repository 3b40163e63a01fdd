package policy

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

const someUID = "0f6c2d3e-8a41-4c5b-9d7e-1234567890ab"

// populatorPolicy has tenants that would have the populators' namespaces if these were
// ordinary ones.
const populatorPolicy = `
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
backends:
  - {name: for-a, auth: {cloud: a}}
  - {name: for-b, auth: {cloud: b}}
  - {name: for-rest, auth: {cloud: rest}}
tenants:
  - name: a
    namespaces: [team-a]
    quota: {volumes: 2}
    classes:
      - {storageClasses: [fast], backends: [for-a], import: {names: ["*"]}, volumeTypes: [ssd], quota: {gigabytes: 10}}
      - {storageClasses: [turns], backends: [for-a, for-b], pick: spread}
  - name: b
    namespaceSelector: {matchLabels: {tenant: b}}
    classes: [{storageClasses: [fast], backends: [for-b]}]
  - name: rest
    namespaces: ["*"]
    classes: [{storageClasses: ["*"], backends: [for-rest], import: {names: ["*"]}, volumeTypes: [ssd]}]
populators:
  - {namespace: volume-populators}
  - {namespace: forklift}
`

func populators(change func(*Request)) Request {
	return claim(func(r *Request) {
		r.Namespace, r.NamespaceLabels, r.Claim, r.StorageClass = "volume-populators", map[string]string{"tenant": "b"}, "prime-"+someUID, "fast"
		r.Populated = &Populated{Namespace: "team-a", Claim: "data"}
		if change != nil {
			change(r)
		}
	})
}

func TestPopulatedUID(t *testing.T) {
	for name, want := range map[string]string{
		"prime-" + someUID:                                someUID,
		"vs-prime-" + someUID:                             someUID,
		"tmp-pvc-" + someUID:                              someUID,
		someUID:                                           someUID,
		"-" + someUID:                                     someUID,
		"prime-" + someUID + "-" + someUID[:35]:           "",
		someUID[:35] + "c-" + someUID:                     someUID,
		"prime" + someUID:                                 "",
		"prime." + someUID:                                "",
		"prime-" + someUID + "-scratch":                   "",
		"prime-" + someUID + "\n":                         "",
		"prime-" + strings.ToUpper(someUID):               "",
		"prime-" + someUID[:35]:                           "",
		"prime-0f6c2d3e8a414c5b9d7e1234567890ab":          "",
		"prime-0f6c2d3e-8a41-4c5b-9d7e-1234567890a\u0430": "",
		"":       "",
		"prime-": "",
	} {
		if got, ok := PopulatedUID(name); got != want || ok != (want != "") {
			t.Errorf("PopulatedUID(%q) = %q, %t, want %q", name, got, ok, want)
		}
	}
}

func TestDecideOnBehalfOfAClaim(t *testing.T) {
	p := mustParse(t, populatorPolicy)
	d := p.Decide(populators(nil))
	if d.Denial != nil || d.Tenant != "a" || d.Rule != "tenants[0].classes[0]" || !slices.Equal(d.Backends, []string{"for-a"}) {
		t.Errorf("tenant %s, rule %s, backends %v, denial %+v", d.Tenant, d.Rule, d.Backends, d.Denial)
	}
	if own := p.Decide(claim(func(r *Request) { r.Namespace, r.StorageClass = "team-a", "fast" })); !reflect.DeepEqual(d.Quotas, own.Quotas) || !reflect.DeepEqual(d.Volume, own.Volume) {
		t.Errorf("the quotas and the volume are not those of a claim of the tenant: %+v, %+v", d.Quotas, d.Volume)
	}
	const detail = "namespace volume-populators is a populator's (populators[0]): what follows is about claim team-a/data, on whose behalf it asks"
	if step := d.Trace[0]; step.Path != "populators[0]" || step.Name != "volume-populators" || !step.Matched || step.Detail != detail {
		t.Errorf("traced as %+v", step)
	}

	t.Run("whose namespace is selected by labels", func(t *testing.T) {
		d := p.Decide(populators(func(r *Request) {
			r.Populated = &Populated{Namespace: "other", NamespaceLabels: map[string]string{"tenant": "b"}, Claim: "data"}
		}))
		// A pattern wins over a selector.
		if d.Tenant != "rest" {
			t.Errorf("tenant %s", d.Tenant)
		}
	})
	t.Run("with the turn of that claim", func(t *testing.T) {
		for ordinal := range 4 {
			name := fmt.Sprintf("data-web-%d", ordinal)
			own := p.Decide(claim(func(r *Request) { r.Namespace, r.StorageClass, r.Claim = "team-a", "turns", name }))
			on := p.Decide(populators(func(r *Request) { r.StorageClass, r.Populated.Claim = "turns", name }))
			if !slices.Equal(own.Backends, on.Backends) {
				t.Errorf("%s: backends %v, on its behalf %v", name, own.Backends, on.Backends)
			}
		}
	})
	t.Run("in a namespace that is no populator's", func(t *testing.T) {
		d := p.Decide(populators(func(r *Request) { r.Namespace = "volume-populator" }))
		if d.Tenant != "rest" {
			t.Errorf("a claim chose its own tenant: %s", d.Tenant)
		}
	})
}

func TestPopulatorWithoutAClaimGetsNothing(t *testing.T) {
	p := mustParse(t, populatorPolicy)
	const start = "namespace volume-populators is a populator's (populators[0]) and belongs to no tenant: its claims get volumes only on behalf of claims that wait to be filled"
	for name, test := range map[string]struct {
		of   *Populated
		want string
	}{
		"nothing is known":      {nil, start},
		"there is none":         {&Populated{Missing: "no claim has the UID 1"}, start + "; no claim has the UID 1"},
		"of a populator":        {&Populated{Namespace: "forklift", Claim: "x"}, start + "; namespace forklift of claim x is a populator's, too"},
		"of the same populator": {&Populated{Namespace: "volume-populators", Claim: "x"}, start + "; namespace volume-populators of claim x is a populator's, too"},
		"of no namespace":       {&Populated{Namespace: "a.b"}, start + `; "a.b" cannot be the name of a namespace`},
	} {
		t.Run(name, func(t *testing.T) {
			d := p.Decide(populators(func(r *Request) { r.Populated = test.of }))
			want := Denial{Reason: NoPopulatedClaim, Path: "populators[0]", Message: test.want}
			if d.Denial == nil || *d.Denial != want || d.Tenant != "" || d.Backends != nil {
				t.Errorf("\n got %+v\nwant %+v", d, want)
			}
		})
	}
}

// TestEscapePopulatorsNamespaceHasNoTenant: everything that a tenant may have is denied
// there, although a pattern and the namespace's labels name tenants that have it.
func TestEscapePopulatorsNamespaceHasNoTenant(t *testing.T) {
	p := mustParse(t, populatorPolicy)
	labels := map[string]string{"tenant": "b"}
	request := populators(func(r *Request) { r.NamespaceLabels, r.Populated = labels, nil })
	snapshot := SnapshotRequest{Namespace: "volume-populators", NamespaceLabels: labels, StorageClass: "fast", Backend: "for-rest", Tenant: "rest"}
	imported := snapshot
	imported.Import = &Existing{Wanted: "x", Name: "x"}
	at := Holding{Tenant: "rest", Backend: "for-rest"}
	_, tenantDenial := p.TenantOf("volume-populators", labels)
	for name, denial := range map[string]*Denial{
		"a volume":         p.Decide(request).Denial,
		"an explanation":   p.Explain(request).Denial,
		"an import":        p.DecideImport(request).Denial,
		"an expansion":     p.DecideExpansion(request, at).Denial,
		"a retype":         p.DecideRetype(request, at, "ssd").Denial,
		"a modification":   p.DecideModification(request, at, "ssd").Denial,
		"a snapshot":       p.DecideSnapshot(snapshot).Denial,
		"an existing one":  p.DecideSnapshot(imported).Denial,
		"any existing one": p.DecideSnapshotImport(imported).Denial,
		"a tenant":         tenantDenial,
		"a restored snapshot": p.Decide(populators(func(r *Request) {
			r.Populated = nil
			r.Source = &Source{IsSnapshot: true, Tenant: "rest", Backend: "for-rest", SizeGiB: 1}
		})).Denial,
	} {
		if denial == nil || denial.Reason != NoPopulatedClaim {
			t.Errorf("%s: %+v", name, denial)
		}
	}
}

// TestEscapePopulatorReachesNoFurtherThanTheClaim compares decisions on behalf of a claim
// with those about the claim itself.
func TestEscapePopulatorReachesNoFurtherThanTheClaim(t *testing.T) {
	p := mustParse(t, populatorPolicy)
	rapid.Check(t, func(t *rapid.T) {
		pick := func(label string, from ...string) string { return rapid.SampledFrom(from).Draw(t, label) }
		namespace := pick("namespace", "team-a", "team-b", "volume-populators", "forklift", "", "x*", "kube-system")
		labels := map[string]string{"tenant": pick("label", "", "a", "b")}
		class := pick("class", "fast", "turns", "none")
		source := (*Source)(nil)
		if rapid.Bool().Draw(t, "copies") {
			source = &Source{Name: "it", IsSnapshot: rapid.Bool().Draw(t, "snapshot"), Tenant: pick("source's tenant", "a", "b", "rest"), Backend: pick("source's backend", "for-a", "for-b", "for-rest"), SizeGiB: 1}
		}
		own := p.Decide(claim(func(r *Request) {
			r.Namespace, r.NamespaceLabels, r.Claim, r.StorageClass, r.Source = namespace, labels, "data", class, source
		}))
		on := p.Decide(populators(func(r *Request) {
			r.NamespaceLabels = map[string]string{"tenant": pick("populator's label", "", "a", "b")}
			r.StorageClass, r.Source = class, source
			r.Populated = &Populated{Namespace: namespace, NamespaceLabels: labels, Claim: "data"}
		}))
		if (own.Denial == nil) != (on.Denial == nil) || own.Tenant != on.Tenant || own.Rule != on.Rule || !slices.Equal(own.Backends, on.Backends) {
			t.Fatalf("the claim itself: %s %s %v %+v\non its behalf: %s %s %v %+v", own.Tenant, own.Rule, own.Backends, own.Denial, on.Tenant, on.Rule, on.Backends, on.Denial)
		}
	})
}

func TestDecisionsOfTestFilesOnBehalfOfAClaim(t *testing.T) {
	p := mustParse(t, populatorPolicy)
	f, err := ParseTests([]byte(`
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: PolicyTest
tests:
  - name: on behalf of team-a
    claim: {namespace: forklift, populates: {namespace: team-a, name: data}, storageClass: fast, size: 1Gi}
    expect: {tenant: a}
  - name: on nobody's behalf
    claim: {namespace: forklift, storageClass: fast, size: 1Gi}
    expect: {denied: NoPopulatedClaim}
  - name: a snapshot
    claim: {namespace: team-a, storageClass: fast, size: 1Gi, source: {kind: VolumeSnapshot, tenant: b, backend: for-a}}
    expect: {denied: SourceNotAllowed}
`), "t.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if d := p.Decide(f.Tests[0].Claim.Request()); d.Tenant != "a" || d.Denial != nil {
		t.Errorf("%s: tenant %s, %+v", f.Tests[0].Name, d.Tenant, d.Denial)
	}
	if d := p.Decide(f.Tests[1].Claim.Request()); d.Denial == nil || d.Denial.Reason != NoPopulatedClaim {
		t.Errorf("%s: %+v", f.Tests[1].Name, d.Denial)
	}
	if r := f.Tests[2].Claim.Request(); !r.Source.IsSnapshot {
		t.Errorf("%s: source %+v", f.Tests[2].Name, r.Source)
	}
}
