package policy

import (
	"github.com/standalone-cinder/standalone-cinder/mappers/mapping"
	"github.com/standalone-cinder/standalone-cinder/policy/document"
)

// validateMapping adds places in the file to what is wrong with a mapping.
func validateMapping(d *document.Document, path, protocol string, m mapping.Mapping, protocols mapping.Protocols) {
	place := func(keys []string) string {
		at := path
		for _, key := range keys {
			at = document.Child(at, key)
		}
		return at
	}
	findings := m.Check(protocol, mapping.Context{
		Protocols: protocols,
		Has:       func(keys ...string) bool { return d.Has(place(keys)) },
		Suggest:   document.Suggest,
	})
	for _, finding := range findings {
		at := place(finding.Keys)
		if finding.Index >= 0 {
			at = document.Element(at, finding.Index)
		}
		if finding.Warning {
			d.Warnf(at, "%s", finding.Message)
		} else {
			d.Errorf(at, "%s", finding.Message)
		}
	}
}
