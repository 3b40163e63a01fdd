package policy

import (
	"reflect"
	"strings"
	"testing"
)

func TestDecideAboutASource(t *testing.T) {
	p := mustParse(t, decidePolicy)
	from := func(change func(*Source)) Request {
		return claim(func(r *Request) {
			r.StorageClass = "fast"
			r.Source = &Source{Name: "claim team-a/data", Tenant: "team-a", Backend: "silver", SizeGiB: 10, VolumeMode: Filesystem}
			if change != nil {
				change(r.Source)
			}
		})
	}
	t.Run("only the source's backend remains", func(t *testing.T) {
		d := p.Decide(from(nil))
		if d.Denial != nil || !reflect.DeepEqual(d.Backends, []string{"silver"}) || len(d.Quotas) != 3 {
			t.Errorf("denial %+v, backends %v, quotas %v", d.Denial, d.Backends, d.Quotas)
		}
		if step := d.Trace[len(d.Trace)-2]; step.Name != "gold" || step.Matched || step.Detail != "claim team-a/data is on backend silver" {
			t.Errorf("gold is traced as %+v", step)
		}
	})
	t.Run("another tenant's, for one that restores any snapshot", func(t *testing.T) {
		const of = "    namespaces: [team-a, \"team-a-*\", shared]\n    namespaceSelector: {matchLabels: {tenant: a}}\n"
		if !strings.Contains(decidePolicy, of) {
			t.Fatalf("the policy has no %q", of)
		}
		restorer := mustParse(t, strings.Replace(decidePolicy, of, "    namespaces: [team-a]\n    restoreAnySnapshot: true\n", 1))
		others := func(isSnapshot bool) Request {
			return from(func(s *Source) { s.Tenant, s.IsSnapshot = "team-b", isSnapshot })
		}
		if d := restorer.Decide(others(true)); d.Denial != nil || d.Tenant != "team-a" {
			t.Errorf("a snapshot: tenant %s, %+v", d.Tenant, d.Denial)
		}
		if d := restorer.Decide(others(false)); d.Denial == nil || d.Denial.Reason != SourceNotAllowed {
			t.Errorf("a claim: %+v", d.Denial)
		}
		if d := p.Decide(others(true)); d.Denial == nil || d.Denial.Reason != SourceNotAllowed {
			t.Errorf("without restoreAnySnapshot: %+v", d.Denial)
		}
	})
	for name, test := range map[string]struct {
		request Request
		want    Denial
	}{
		"another tenant's": {from(func(s *Source) { s.Tenant = "team-b" }), Denial{SourceNotAllowed, "tenants[0].classes[0]",
			`claim team-a/data was made for tenant "team-b", and namespace team-a belongs to tenant team-a; content is never copied from one tenant to another`}},
		"of no tenant": {from(func(s *Source) { s.Tenant = "" }), Denial{SourceNotAllowed, "tenants[0].classes[0]",
			`claim team-a/data was made for tenant "", and namespace team-a belongs to tenant team-a; content is never copied from one tenant to another`}},
		"of another mode": {from(func(s *Source) { s.VolumeMode = Block }), Denial{SourceNotAllowed, "tenants[0].classes[0]",
			"claim team-a/data has volume mode Block, but the claim asks for Filesystem; ask for the same mode"}},
		"larger": {from(func(s *Source) { s.SizeGiB = 11 }), Denial{VolumeTooSmall, "tenants[0].classes[0]",
			"the volume would have 10 GiB, but claim team-a/data has 11 GiB; ask for at least that"}},
		"on a backend that the rule does not use": {from(func(s *Source) { s.Backend = "bronze" }), Denial{SourceOnOtherBackend, "tenants[0].classes[0].backends",
			"claim team-a/data is on backend bronze, which tenants[0].classes[0] does not use (off, gold, silver)"}},
		"on a suspended backend": {from(func(s *Source) { s.Backend = "off" }), Denial{BackendsSuspended, "tenants[0].classes[0].backends",
			"claim team-a/data is on backend off, which is suspended"}},
	} {
		t.Run(name, func(t *testing.T) {
			d := p.Decide(test.request)
			if d.Denial == nil || *d.Denial != test.want {
				t.Errorf("\n got %+v\nwant %+v", d.Denial, test.want)
			}
		})
	}
}
