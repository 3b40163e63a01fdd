package datasource

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/provisioner/parking"
)

// A populator's claim needs another claim, as a copy does. It knows the UID of that
// claim, which has no slash, so the keys of the two never meet.

// AwaitPopulated makes changes of a claim count as a trigger. Call it before reading the
// claim, so that no later change is missed.
func (r *Resolver) AwaitPopulated(claim types.UID) { r.awaited.add(string(claim)) }

// PopulatedTriggers returns what may unblock a populator's claim that was denied because
// of the claim that it is to fill.
func (r *Resolver) PopulatedTriggers(claim types.UID) []parking.Trigger {
	return []parking.Trigger{{Kind: parking.Source, Name: string(claim)}}
}

// PopulatedChanged returns the trigger that fires if a populator's claim is to fill this
// one.
func (r *Resolver) PopulatedChanged(claim types.UID) []parking.Trigger {
	return r.changed(string(claim))
}
