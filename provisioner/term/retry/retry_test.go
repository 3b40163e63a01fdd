package retry

import (
	"errors"
	"fmt"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/volumekeys"
)

// allKinds must list every kind of backends, so that the test notices if one is missing
// from the table.
var allKinds = []cinder.Kind{
	cinder.KindNotFound, cinder.KindInvalid, cinder.KindConflict, cinder.KindOverQuota, cinder.KindRateLimited,
	cinder.KindUnauthorized, cinder.KindForbidden, cinder.KindUnavailable, cinder.KindConfig, backends.KindVolumeFailed,
	backends.KindTimeout, backends.KindNotOurs, backends.KindRestored, backends.KindInUse, backends.KindHasSnapshots, backends.KindContested, cinder.KindInternal, backends.KindElsewhere, cinder.KindFenced, backends.KindPending, backends.KindHasBackups,
}

func TestEveryKindOfErrorHasARetryOfItsOwn(t *testing.T) {
	for _, kind := range allKinds {
		r := For(fmt.Errorf("wrapped: %w", &cinder.Error{Kind: kind}))
		if r.Outcome == "" || r.Outcome == "other" || r.First <= 0 || r.Most < r.First {
			t.Errorf("%s: %+v", kind, r)
		}
	}
	for _, err := range []error{&mappers.Refusal{}, &objects.DamagedError{}, &volumekeys.UnusableError{}, errors.New("anything"), nil} {
		if r := For(err); r.Outcome == "" || r.First <= 0 || r.Most < r.First {
			t.Errorf("%v: %+v", err, r)
		}
	}
}
