package policy

import (
	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/mappers/mapping"
)

// protocols are those of the program.
func protocols() mapping.Protocols { return mappers.BuiltIn().Describe() }
