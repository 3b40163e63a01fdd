package policy

import "testing"

const typesPolicy = `
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
defaults: {limits: {concurrency: 4, requestsPerSecond: 2}}
backends: [{name: gold, auth: {cloud: gold}}]
tenants:
  - name: limited
    namespaces: [a]
    limits: {concurrency: 20, requestsPerSecond: 0.5}
    classes: [{storageClasses: ["*"], backends: [gold]}]
  - name: free
    namespaces: [b]
    limits: {requestsPerSecond: 0}
    classes: [{storageClasses: ["*"], backends: [gold]}]
`

// TestTenantsOwnLimits: the defaults' limits are for backends, and a tenant has
// none but its own.
func TestWhichBackendsATenantMayUse(t *testing.T) {
	p := mustParse(t, `
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
backends:
  - {name: gold, auth: {cloud: gold}}
  - {name: silver, auth: {cloud: silver}}
  - {name: lab, auth: {cloud: lab}}
tenants:
  - name: a
    namespaces: [team-a]
    classes:
      - {storageClasses: [fast], backends: [gold]}
      - {storageClasses: [slow], backends: [silver]}
  - name: b
    namespaces: [team-b]
    classes:
      - {storageClasses: [fast], backends: [lab]}
`)
	for _, test := range []struct {
		tenant, backend string
		want            bool
	}{
		{"a", "gold", true}, {"a", "silver", true}, {"a", "lab", false}, {"a", "gone", false},
		{"b", "lab", true}, {"b", "gold", false}, {"gone", "gold", false}, {"", "gold", false},
	} {
		if got := p.MayUse(test.tenant, test.backend); got != test.want {
			t.Errorf("tenant %q, backend %s: %t, want %t", test.tenant, test.backend, got, test.want)
		}
	}
}

func TestTenantsOwnLimits(t *testing.T) {
	p := mustParse(t, typesPolicy)
	for name, want := range map[string]TenantLimits{"limited": {Concurrency: 20, RequestsPerSecond: 0.5}, "free": {}} {
		if tenant, ok := p.Tenant(name); !ok || tenant.Name != name || tenant.Limits != want {
			t.Errorf("tenant %s: %v, %+v, want %+v", name, ok, tenant, want)
		}
	}
	if tenant, ok := p.Tenant("c"); ok || tenant != nil {
		t.Errorf("a tenant that there is not: %+v", tenant)
	}
}
