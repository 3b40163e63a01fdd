package mappers

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/standalone-cinder/standalone-cinder/mappers/mapping"
)

// newcomer describes a protocol that does not exist. This file and one entry
// are all that the program needs to know about a protocol; see
// TestNewProtocolNeedsOneEntry.
func newcomer() protocol {
	return protocol{
		about: mapping.Protocol{
			Native: true,
			Facts:  []string{"disk"},
			Fields: []string{"disk_path"},

			IdentityFacts: []string{"disk"},
		},
		builtIn: func(r request) (Result, error) {
			disk, err := r.Connection.text("disk_path")
			if err != nil {
				return Result{}, err
			}
			return Result{Source: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: disk}}}, nil
		},
		facts: func(r request) (facts, *Refusal, error) {
			disk, err := r.Connection.text("disk_path")
			return facts{"disk": known(disk)}, nil, err
		},
	}
}

// WithNewcomer returns the program's registry with one more entry.
func WithNewcomer() Protocols {
	protocols := BuiltIn()
	protocols["newcomer"] = newcomer()
	return protocols
}
