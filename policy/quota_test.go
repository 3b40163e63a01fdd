package policy

import (
	"math"
	"testing"
)

func TestQuotaCheck(t *testing.T) {
	p := mustParse(t, `
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
backends: [{name: gold, auth: {cloud: gold}, limits: {volumes: 5000, gigabytes: 0}}]
tenants:
  - name: team-a
    namespaces: [team-a]
    quota: {volumes: 20, gigabytes: 500, snapshots: 10, snapshotGigabytes: 100}
    classes:
      - {storageClasses: [fast, "fast-*"], backends: [gold], quota: {volumes: 2}}
`)
	scopes := p.QuotaScopes("team-a", "fast-1", "gold")
	if len(scopes) != 3 {
		t.Fatalf("scopes %v", scopes)
	}
	tenant, class, backend := scopes[0], scopes[1], scopes[2]
	tests := map[string]struct {
		scope      QuotaScope
		used, more Usage
		path, want string // empty where there is room
	}{
		"room":            {tenant, Usage{19, 490, 10, 0, 0, 0}, Usage{1, 10, 0, 0, 0, 0}, "", ""},
		"too many GiB":    {tenant, Usage{3, 490, 0, 0, 0, 0}, Usage{1, 20, 0, 0, 0, 0}, "tenants[0].quota.gigabytes", "tenant team-a would use 510 of 500 GiB (tenants[0].quota.gigabytes)"},
		"too many":        {tenant, Usage{20, 20, 0, 0, 0, 0}, Usage{1, 1, 0, 0, 0, 0}, "tenants[0].quota.volumes", "tenant team-a would use 21 of 20 volumes (tenants[0].quota.volumes)"},
		"snapshots":       {tenant, Usage{0, 0, 10, 0, 0, 0}, Usage{0, 0, 1, 0, 0, 0}, "tenants[0].quota.snapshots", "tenant team-a would use 11 of 10 snapshots (tenants[0].quota.snapshots)"},
		"snapshots' GiB":  {tenant, Usage{0, 500, 1, 90, 0, 0}, Usage{0, 0, 1, 11, 0, 0}, "tenants[0].quota.snapshotGigabytes", "tenant team-a would use 101 of 100 GiB of snapshots (tenants[0].quota.snapshotGigabytes)"},
		"over already":    {tenant, Usage{20, 600, 0, 0, 0, 0}, Usage{0, 0, 1, 0, 0, 0}, "", ""},
		"growing a bit":   {tenant, Usage{30, 490, 0, 0, 0, 0}, Usage{0, 10, 0, 0, 0, 0}, "", ""},
		"a rule's":        {class, Usage{2, 0, 0, 0, 0, 0}, Usage{1, 1000, 0, 0, 0, 0}, "tenants[0].classes[0].quota.volumes", "StorageClasses [fast, fast-*] of tenant team-a would use 3 of 2 volumes (tenants[0].classes[0].quota.volumes)"},
		"without limits":  {class, Usage{0, math.MaxInt64, 0, 0, 0, 0}, Usage{1, math.MaxInt64, 5, 0, 0, 0}, "", ""},
		"a backend's":     {backend, Usage{5000, 0, 0, 0, 0, 0}, Usage{1, 1, 0, 0, 0, 0}, "backends[0].limits.volumes", "backend gold would use 5001 of 5000 volumes (backends[0].limits.volumes)"},
		"nothing allowed": {backend, Usage{}, Usage{1, 1, 0, 0, 0, 0}, "backends[0].limits.gigabytes", "backend gold would use 1 of 0 GiB (backends[0].limits.gigabytes)"},
		"overflow":        {tenant, Usage{0, math.MaxInt64, 0, 0, 0, 0}, Usage{0, math.MaxInt64, 0, 0, 0, 0}, "tenants[0].quota.gigabytes", "tenant team-a would use 9223372036854775807 of 500 GiB (tenants[0].quota.gigabytes)"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			denial := test.scope.Check(test.used, test.more)
			if test.want == "" {
				if denial != nil {
					t.Errorf("got %v, want room", denial)
				}
				return
			}
			if want := (Denial{QuotaExceeded, test.path, test.want}); denial == nil || *denial != want {
				t.Errorf("\n got %+v\nwant %+v", denial, want)
			}
		})
	}
}

// TestQuotaScopesOfExistingVolumes: a volume keeps counting where the policy
// still knows its tenant, StorageClass or backend.
func TestQuotaScopesOfExistingVolumes(t *testing.T) {
	p := mustParse(t, decidePolicyWithoutBounds)
	for _, test := range []struct {
		tenant, class, backend string
		want                   int
	}{{"a", "x", "gold", 3}, {"a", "x", "gone", 2}, {"gone", "x", "gold", 1}, {"gone", "x", "gone", 0}, {"a", "x", "", 2}} {
		if got := p.QuotaScopes(test.tenant, test.class, test.backend); len(got) != test.want {
			t.Errorf("%+v: scopes %v", test, got)
		}
	}
}

func TestUsageArithmetic(t *testing.T) {
	a, b := Usage{1, 10, 2, 20, 0, 0}, Usage{3, 5, math.MaxInt64, 30, 0, 0}
	if got, want := a.Add(b), (Usage{4, 15, math.MaxInt64, 50, 0, 0}); got != want {
		t.Errorf("Add = %v, want %v", got, want)
	}
	if got, want := a.Sub(b), (Usage{0, 5, 0, 0, 0, 0}); got != want {
		t.Errorf("Sub = %v, want %v", got, want)
	}
	if got := a.Add(Usage{3, 5, 7, 0, 0, 0}).Sub(Usage{3, 5, 7, 0, 0, 0}); got != a {
		t.Errorf("Add and Sub = %v, want %v", got, a)
	}
}
