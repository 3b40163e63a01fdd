package objects

import (
	"errors"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// FailureKind returns the kind of a failure for the CSI driver: the one that a refusal
// by this program returns from its own method FailureKind, or else Cinder's. It is
// empty for nil.
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
