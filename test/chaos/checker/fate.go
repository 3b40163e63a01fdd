package checker

import (
	"fmt"
	"time"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
)

// Fate is what a campaign did by hand to a PersistentVolume whose volume may
// have to outlive claim and object.
type Fate struct {
	// PV is the object when the campaign chose it.
	PV PV
	// Kept is when the API server acknowledged that the volume is to stay: that
	// the reclaim policy is Retain, or that the object of a claim that stays is
	// gone. Zero if neither happened.
	Kept time.Time
	// Keeping means that a request for the reclaim policy Retain is under way. If its
	// answer is lost, the object may show Retain long before Kept.
	Keeping bool
	// Freed means that the reclaim policy is Delete again, or may be: actors
	// record that before the request.
	Freed bool
	// Removed means that the object was deleted by hand, or may be.
	Removed bool
	// Replaced means that the object was removed before its claim was bound, and
	// that a second one records the same volume for the claim. The second one
	// determines what becomes of the volume.
	Replaced bool
}

// MustStay reports whether the volume must outlive its claim.
func (f Fate) MustStay() bool { return !f.Kept.IsZero() && !f.Freed && !f.Replaced }

// SeenWith returns the fate after an object of the name was seen.
func (f Fate) SeenWith(pv PV) Fate {
	second := pv.UID != f.PV.UID && pv.VolumeID == f.PV.VolumeID && !pv.Created.Before(f.PV.Created)
	f.Replaced = f.Replaced || f.Removed && second
	return f
}

// leftElsewhere reports whether the volume of a PersistentVolume that was deleted by hand
// is at another place than that of the present one.
func (f Fate) leftElsewhere(present PV) bool {
	return f.Removed && f.PV.VolumeID != present.VolumeID && f.PV.Place != present.Place
}

// reason says why the volume must stay.
func (f Fate) reason() string {
	if f.Removed {
		return "its PersistentVolume was deleted by hand"
	}
	return "its reclaim policy was changed to Retain"
}

// CameTooLate reports whether the program may have begun to remove a volume
// before it could know that the volume is to stay. The program asks the API
// server right before the first request about a released volume. The journal
// shows when that request arrived, which is later by the network's delay.
func CameTooLate(f Fate, asked time.Time, journal []cindersim.Entry) bool {
	return began(f.PV.VolumeID, f.Kept, asked, journal)
}

// began reports whether the removal of a volume whose claim's deletion was
// requested had already begun when something was acknowledged.
func began(volumeID string, acknowledged, asked time.Time, journal []cindersim.Entry) bool {
	if asked.IsZero() || acknowledged.Before(asked) {
		return false
	}
	for _, e := range journal {
		if takes(e, volumeID, asked) && e.Time.Before(acknowledged.Add(maxKept(e))) {
			return true
		}
	}
	return false
}

// takes reports whether a request disconnects or deletes a volume whose claim's
// deletion was requested.
func takes(e cindersim.Entry, volumeID string, asked time.Time) bool {
	if e.VolumeID != volumeID || asked.IsZero() || !e.Time.After(asked) {
		return false
	}
	switch e.Operation {
	case "action.os-terminate_connection", "action.os-begin_detaching", "action.os-detach", "action.os-force_detach",
		"action.os-unreserve", "action.os-force_delete", "attachment.delete", "volume.delete":
		return true
	}
	return false
}

// maxKept returns the longest time between its proof and a request's arrival.
// Requests to the noauth Cinder go through a network that campaigns stall and
// delay.
func maxKept(e cindersim.Entry) time.Duration {
	if e.Endpoint == cindersim.Noauth {
		return 20 * time.Second
	}
	return 2 * time.Second
}

// NodeUse is the time during which a node reported that it uses a volume.
type NodeUse struct {
	Node     string
	PV       PV
	From     time.Time // acknowledged by the API server
	Until    time.Time // before the node was asked to release it
	Released string    // how the node released it
}

// Disconnected finds volumes that were taken from a node that was using them.
// asked returns when the deletion of a claim was requested.
func Disconnected(uses []NodeUse, asked func(claimUID string) time.Time, journal []cindersim.Entry) []Finding {
	var findings []Finding
	for _, use := range uses {
		since := asked(use.PV.ClaimUID)
		if began(use.PV.VolumeID, use.From, since, journal) {
			continue
		}
		for _, e := range journal {
			if takes(e, use.PV.VolumeID, since) && e.Time.After(use.From) && e.Time.Before(use.Until) {
				findings = append(findings, Finding{FromNode, "PersistentVolume " + use.PV.Name,
					fmt.Sprintf("%s at %s, although node %s used volume %s from %s until %s (%s)", e.Operation, clock(e.Time), use.Node,
						use.PV.VolumeID, clock(use.From), clock(use.Until), use.Released), use.PV.VolumeID, use.PV.ClaimUID})
				break
			}
		}
	}
	return findings
}

func clock(at time.Time) string { return at.Format("15:04:05.000") }
