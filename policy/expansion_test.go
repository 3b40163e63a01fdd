package policy

import (
	"testing"
)

const expansionPolicy = `
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
backends:
  - {name: gold, auth: {cloud: gold}, volumeSize: {max: 50Gi}, limits: {gigabytes: 100}}
  - {name: silver, auth: {cloud: silver}, suspended: true}
  - {name: other, auth: {cloud: other}}
tenants:
  - name: a
    namespaces: [team-a]
    volumeSize: {min: 4Gi, max: 40Gi}
    quota: {gigabytes: 60}
    classes:
      - {storageClasses: [fast], backends: [gold, silver], volumeType: ssd, volumeSize: {max: 30Gi}, quota: {gigabytes: 20}}
      - {storageClasses: [plain], backends: [gold]}
      - {storageClasses: [huge], backends: [other]}
  - name: b
    namespaces: [team-b]
    classes:
      - {storageClasses: ["*"], backends: [gold]}
`

func TestDecideExpansion(t *testing.T) {
	p, err := Parse([]byte(expansionPolicy), "policy.yaml", nil)
	if err != nil {
		t.Fatal(err)
	}
	of := Holding{Tenant: "a", Backend: "gold"}
	for name, c := range map[string]struct {
		request Request
		of      Holding
		reason  Reason
		message string
		size    int64
	}{
		"granted, rounded up":              {request: Request{StorageClass: "fast", Bytes: 9*gib + 1}, of: of, size: 10},
		"smaller than a new volume may be": {request: Request{StorageClass: "fast", Bytes: 2 * gib}, of: of, size: 2},
		"backend suspended":                {request: Request{StorageClass: "fast", Bytes: 10 * gib}, of: Holding{"a", "silver"}, size: 10},
		"parameters of new volumes": {request: Request{StorageClass: "fast", Bytes: 10 * gib, Parameters: map[string]string{"type": "hdd", "odd": "x"}},
			of: of, size: 10},
		"too large for the rule": {request: Request{StorageClass: "fast", Bytes: 31 * gib}, of: of, reason: VolumeTooLarge,
			message: "the volume would have 31 GiB, more than the 30Gi that tenants[0].classes[0].volumeSize.max allows"},
		"too large for the tenant": {request: Request{StorageClass: "plain", Bytes: 41 * gib}, of: of, reason: VolumeTooLarge,
			message: "the volume would have 41 GiB, more than the 40Gi that tenants[0].volumeSize.max allows"},
		"too large for the backend": {request: Request{StorageClass: "any", Namespace: "team-b", Bytes: 51 * gib}, of: Holding{"b", "gold"}, reason: VolumeTooLarge,
			message: "the volume would have 51 GiB, more than the 50Gi that backends[0].volumeSize.max allows"},
		"beyond the claim's limit": {request: Request{StorageClass: "fast", Bytes: 9*gib + 1, LimitBytes: 9*gib + 2}, of: of, reason: ClaimLimitTooSmall,
			message: "Cinder creates volumes in whole GiB, and the 10 GiB that hold the requested 9663676417 bytes are more than the claim's limit of 9663676418 bytes"},
		"no rule any more": {request: Request{StorageClass: "gone", Bytes: 10 * gib}, of: of, reason: NoMatchingClass,
			message: "tenant a has no rule for StorageClass gone (tenants[0].classes)"},
		"no tenant any more": {request: Request{StorageClass: "fast", Namespace: "team-c", Bytes: 10 * gib}, of: of, reason: NoMatchingTenant,
			message: "namespace team-c belongs to no tenant of the policy: none lists its name, has a pattern for it or selects its labels"},
		"another tenant's now": {request: Request{StorageClass: "fast", Namespace: "team-b", Bytes: 10 * gib}, of: of, reason: NoMatchingTenant,
			message: "namespace team-b belongs to tenant b now, but the volume counts for tenant a (tenants[1])"},
		"the rule dropped the backend": {request: Request{StorageClass: "huge", Bytes: 10 * gib}, of: of, reason: NoMatchingClass,
			message: "tenant a may not use backend gold, which has the volume, for StorageClass huge (tenants[0].classes[2].backends)"},
		"the policy dropped the backend": {request: Request{StorageClass: "huge", Bytes: 10 * gib}, of: Holding{"a", "retired"}, reason: NoMatchingClass,
			message: "tenant a may not use backend retired, which has the volume, for StorageClass huge (tenants[0].classes[2].backends)"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.request.Namespace == "" {
				c.request.Namespace = "team-a"
			}
			d := p.DecideExpansion(c.request, c.of)
			if c.reason == "" {
				if d.Denial != nil || d.Volume.SizeGiB != c.size || len(d.Backends) != 1 || d.Backends[0] != c.of.Backend || len(d.Quotas) != 3 {
					t.Fatalf("%+v, denial %+v", d, d.Denial)
				}
				return
			}
			if d.Denial == nil || d.Denial.Reason != c.reason || d.Denial.Message != c.message {
				t.Errorf("denial %+v, want %s: %s", d.Denial, c.reason, c.message)
			}
		})
	}
}
