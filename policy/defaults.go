package policy

import (
	"maps"

	"github.com/standalone-cinder/standalone-cinder/mappers/mapping"
	"github.com/standalone-cinder/standalone-cinder/policy/document"
)

// inherit fills in what backends and tenants leave out: from the file's defaults
// if they have it, and from the built-in defaults otherwise.
func (p *Policy) inherit(d *document.Document, protocols mapping.Protocols) {
	fillBuiltIn(d, "audit.interval", &p.Audit.Interval, DefaultAuditInterval)
	fillBuiltIn(d, "audit.grace", &p.Audit.Grace, DefaultAuditGrace)
	for i := range p.Backends {
		b, from, path := &p.Backends[i], p.Defaults, document.Element("backends", i)
		fill(d, path, "region", &b.Region, from.Region, "")
		fill(d, path, "interface", &b.Interface, from.Interface, "")
		fill(d, path, "workflow", &b.Workflow, from.Workflow, WorkflowAuto)
		fill(d, path, "limits.volumes", &b.Limits.Volumes, from.Limits.Volumes, nil)
		fill(d, path, "limits.gigabytes", &b.Limits.Gigabytes, from.Limits.Gigabytes, nil)
		fill(d, path, "limits.concurrency", &b.Limits.Concurrency, from.Limits.Concurrency, DefaultConcurrency)
		fill(d, path, "limits.requestsPerSecond", &b.Limits.RequestsPerSecond, from.Limits.RequestsPerSecond, 0)
		fill(d, path, "timeouts.create", &b.Timeouts.Create, from.Timeouts.Create, DefaultCreateTimeout)
		fill(d, path, "timeouts.delete", &b.Timeouts.Delete, from.Timeouts.Delete, DefaultDeleteTimeout)
		fill(d, path, "timeouts.request", &b.Timeouts.Request, from.Timeouts.Request, DefaultRequestTimeout)
		fill(d, path, "connector.host", &b.Connector.Host, from.Connector.Host, DefaultConnectorHost)
		fill(d, path, "connector.initiator", &b.Connector.Initiator, from.Connector.Initiator, "")
		fill(d, path, "connector.ip", &b.Connector.IP, from.Connector.IP, "")
		fill(d, path, "connector.wwpns", &b.Connector.WWPNs, from.Connector.WWPNs, nil)
		fill(d, path, "connector.nqn", &b.Connector.NQN, from.Connector.NQN, "")
		fill(d, path, "connector.nodeLabels", &b.Connector.NodeLabels, from.Connector.NodeLabels, nil)
		fill(d, path, "connector.multipath", &b.Connector.Multipath, from.Connector.Multipath, false)
		if noauth := b.Auth.NoAuth; noauth != nil {
			fillBuiltIn(d, path+".auth.noauth.user", &noauth.User, DefaultNoAuthUser)
			fillBuiltIn(d, path+".auth.noauth.project", &noauth.Project, DefaultNoAuthProject)
		}
		for protocol, m := range b.Mapping {
			if protocols[protocol].CephCSI && m.As == mapping.CSI {
				fillBuiltIn(d, path+".mapping."+protocol+".driver", &m.Driver, mapping.DefaultCephDriver)
				b.Mapping[protocol] = m
			}
		}
	}
	for i := range p.Tenants {
		t := &p.Tenants[i]
		t.size = tenantSize(p.Defaults, t, document.Element("tenants", i))
		t.VolumeSize = VolumeSize{Min: t.size.min, Max: t.size.max}
		if len(p.Defaults.Metadata) == 0 {
			continue
		}
		own := t.Metadata
		t.Metadata = maps.Clone(p.Defaults.Metadata)
		maps.Copy(t.Metadata, own)
	}
}

// fill sets a value that the file does not give at its own place.
func fill[T any](d *document.Document, path, key string, value *T, inherited, builtIn T) {
	switch {
	case d.Has(path + "." + key):
	case d.Has("defaults." + key):
		*value = inherited
	default:
		*value = builtIn
	}
}

func fillBuiltIn[T any](d *document.Document, path string, value *T, builtIn T) {
	if !d.Has(path) {
		*value = builtIn
	}
}
