package objects

import (
	"errors"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// FailureKind returns the kind of a failure for the CSI driver: from the FailureKind
// method of this program's refusals, or otherwise Cinder's. It is empty for nil.
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
