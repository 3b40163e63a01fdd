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
