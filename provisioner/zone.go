package provisioner

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/ledger"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/placement"
)

// nodeLabels returns the labels of the nodes that may use the new volume. On a backend
// that maps zones to nodes, the volume's actual zone decides: an earlier attempt may have
// requested another zone than this one would.
//
// A volume in a zone that the claim cannot use is an error. Cinder may be configured to
// replace an unknown zone with another one, and it copies a volume within the source's
// zone.
func (a *attempt) nodeLabels() (map[string]string, error) {
	placement, mapped := a.decision.PlacementOn(a.backend)
	if !mapped {
		return a.backends.NodeLabels(a.backend), nil
	}
	zone, usable := placement.Zone(a.made.Zone)
	if !usable {
		return nil, &cinder.Error{Kind: backends.KindVolumeFailed, Backend: a.backend, Message: fmt.Sprintf(
			"volume %s is in availability zone %q, but the claim can use only %s, so the program removes it; correct the zones of the backend in the policy, or allow_availability_zone_fallback in cinder.conf",
			a.made.ID, a.made.Zone, strings.Join(placement.Names(), ", "))}
	}
	return zone.NodeLabels, nil
}

// zoneText adds the zone of a new volume to a sentence about the backend, if the backend
// maps its zones.
func (a *attempt) zoneText() string {
	placement, mapped := a.decision.PlacementOn(a.backend)
	switch {
	case !mapped:
		return ""
	case placement.AtSource:
		return ", in the availability zone of its source"
	}
	return ", availability zone " + a.decision.VolumeOn(a.backend).AvailabilityZone
}

// noteFailure records where Cinder could not create the volume and what comes next:
// another location for the claim's node, another node, or a pause.
func (a *attempt) noteFailure(ctx context.Context, err error) error {
	var failed *backends.NotMadeError
	if !errors.As(err, &failed) {
		return err
	}
	isNews := a.placement.NoteFailure(a.claim.UID, a.decision, placement.Failure{
		Location: policy.Location{Backend: a.backend, Zone: failed.Zone}, Reason: failed.Reason,
	})
	failures := a.placement.Failures(a.claim.UID)
	a.logger.Info("Cinder could not make a volume, and it was removed", "claim", a.claim.Namespace+"/"+a.claim.Name, "claimUID", a.claim.UID,
		"backend", a.backend, "zone", failed.Zone, "reason", failed.Reason, "failuresInARow", len(failures))
	if len(failures) > 1 {
		err = newRoundError(failures, err)
	}
	if a.goesOn = isNews && a.placement.HasAnother(a.claim.UID, a.decision); !a.goesOn {
		a.rescheduled = a.reschedule(ctx, a.claim, a.class, err.Error())
	}
	return err
}

// roundError is the failure at every location that a claim tried in a row.
type roundError struct {
	all  string
	last error
}

func newRoundError(failures []placement.Failure, last error) error {
	var all []string
	for _, failure := range failures {
		all = append(all, failure.PassedOver().Why)
	}
	return &roundError{strings.Join(all, "; "), last}
}

func (e *roundError) Error() string { return "Cinder could not make the volume: " + e.all }
func (e *roundError) Unwrap() error { return e.last }

// failedBefore returns the locations that failed before this one.
func (a *attempt) failedBefore() []ledger.PassedOver {
	present := policy.Location{Backend: a.backend, Zone: a.decision.VolumeOn(a.backend).AvailabilityZone}
	var before []ledger.PassedOver
	for _, failure := range a.placement.Failures(a.claim.UID) {
		if failure.Location != present {
			before = append(before, failure.PassedOver())
		}
	}
	return before
}
