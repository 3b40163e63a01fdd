package record

import (
	"errors"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// FailureKind is what the CSI driver takes a failure for: the kind that a refusal of
// this program names by its method FailureKind, or Cinder's. It is empty for nil.
func FailureKind(err error) (kind string, refused bool) {
	var refusal interface {
		error
		FailureKind() string
	}
	switch {
	case err == nil:
		return "", false
	case errors.As(err, &refusal):
		return refusal.FailureKind(), true
	}
	return string(cinder.KindOf(err)), false
}
