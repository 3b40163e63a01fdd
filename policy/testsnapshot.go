package policy

import (
	"github.com/standalone-cinder/standalone-cinder/policy/document"
)

// TestSnapshot describes a SnapshotRequest.
type TestSnapshot struct {
	Namespace       string            `json:"namespace"`
	NamespaceLabels map[string]string `json:"namespaceLabels"`
	// StorageClass and Backend are those of the volume.
	StorageClass string `json:"storageClass"`
	Backend      string `json:"backend"`
	// Tenant is the one that the volume was made for; empty means the one that
	// the namespace belongs to.
	Tenant string `json:"tenant"`
	// Parameters are the VolumeSnapshotClass's.
	Parameters map[string]string `json:"parameters"`
}

// Request returns the request that the daemon would make for the snapshot under
// the policy.
func (s TestSnapshot) Request(p *Policy) SnapshotRequest {
	r := SnapshotRequest{
		Namespace:       s.Namespace,
		NamespaceLabels: NamespaceLabels(s.Namespace, s.NamespaceLabels),
		StorageClass:    s.StorageClass,
		Backend:         s.Backend,
		Tenant:          s.Tenant,
		Parameters:      s.Parameters,
	}
	if r.Tenant == "" {
		d := &decider{policy: p, request: Request{Namespace: r.Namespace, NamespaceLabels: r.NamespaceLabels}}
		if tenant, _, denial := d.findTenant(); denial == nil {
			r.Tenant = tenant.Name
		}
	}
	return r
}

func (s TestSnapshot) validate(d *document.Document, path string) {
	for _, required := range []struct{ key, remedy string }{
		{"namespace", "name the namespace of the VolumeSnapshot"},
		{"storageClass", "name the StorageClass of the volume"},
		{"backend", "name the backend that has the volume"},
	} {
		if at := document.Child(path, required.key); !d.Has(at) {
			d.Errorf(at, "is missing; %s", required.remedy)
		}
	}
	validateLabels(d, document.Child(path, "namespaceLabels"), s.NamespaceLabels)
}
