package policy

import (
	"strings"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/mappers/mapping"
)

// TestExpansionWarning: the warning is given only to tenants that may get
// volumes that the kubelet mounts by itself.
func TestExpansionWarning(t *testing.T) {
	const header = `
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
backends:
  - {name: native, auth: {cloud: a}}
  - {name: ceph, auth: {cloud: b}}
tenants:
  - name: a
    namespaces: [team-a]
    classes:
      - {storageClasses: [fast], backends: [ceph, native]}
      - {storageClasses: [ceph], backends: [ceph]}
  - name: b
    namespaces: [team-b]
    classes:
      - {storageClasses: [fast], backends: [ceph]}
`
	p, err := Parse([]byte(header), "policy.yaml", nil)
	if err != nil {
		t.Fatal(err)
	}
	p.Backends[1].Mapping = map[string]mapping.Mapping{"rbd": {As: mapping.CSI, Driver: "rbd.csi.ceph.com"}}
	for _, c := range []struct {
		class, tenant string
		fixed, want   bool
	}{
		{"fast", "", false, true}, {"fast", "a", false, true}, {"fast", "b", false, false}, {"ceph", "", false, false}, {"fast", "", true, false},
	} {
		warnings := strings.Join(p.ClassWarnings(StorageClass{Name: c.class, Expandable: !c.fixed}, c.tenant), "\n")
		if strings.Contains(warnings, "run kubectl cinder grow") != c.want {
			t.Errorf("%+v: %q", c, warnings)
		}
	}
}
