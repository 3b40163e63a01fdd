package policy

import (
	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/mappers/mapping"
)

// protocols returns the protocols that the program supports.
func protocols() mapping.Protocols { return mappers.BuiltIn().Describe() }
