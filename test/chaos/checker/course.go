package checker

import (
	"fmt"
	"slices"
	"time"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
)

// Course watches a campaign and finds what must not happen even for a moment.
// It takes one sample after the other.
type Course struct {
	host     string
	findings map[Finding]Finding
	order    []Finding
	// recorded are the volumes that a claim's PersistentVolumes have named, kept
	// the PersistentVolumes whose volumes must stay forever, used the volumes that
	// were seen in use, and served when a pod could last have used each of those seen.
	recorded map[string][]string
	kept     map[string]keptPV
	used     map[string]bool
	served   map[string]time.Time
	// excused are the PersistentVolumes that were to be kept too late, and when.
	excused map[string]time.Time
	// rebound are the claims that got the volume of another, and its PersistentVolume.
	rebound map[string]string
}

// keptPV is a PersistentVolume whose volume must stay, and why.
type keptPV struct {
	PV
	because string
}

// NewCourse begins to watch; host is the connector's.
func NewCourse(host string) *Course {
	return &Course{
		host: host, findings: map[Finding]Finding{}, recorded: map[string][]string{}, kept: map[string]keptPV{}, used: map[string]bool{},
		served: map[string]time.Time{}, excused: map[string]time.Time{}, rebound: map[string]string{},
	}
}

// Sample is one observation. What Kubernetes shows may be old; the volumes are
// not.
type Sample struct {
	At time.Time
	// PVs and Bound, the claims' UIDs, were read before the volumes.
	PVs   []PV
	Bound map[string]bool
	// Volumes are all of Cinder's at one moment, Foreign among them.
	Volumes []cindersim.Volume
	Foreign map[string]cindersim.Volume
	// Asked reports, after the volumes were read, which claims' deletion has been
	// requested. Actors record that before the request; so a claim that is not
	// among them existed when the volumes were read.
	Asked func(claimUID string) bool
	// Fates, by PersistentVolume, were read after the volumes; TooLate reports
	// that one came too late.
	Fates   map[string]Fate
	TooLate func(Fate) bool
	// Attachments were read before the volumes. AttachmentAsked reports, after the
	// volumes were read, which ones' deletion has been requested.
	Attachments     []Attachment
	AttachmentAsked func(uid string) bool
	// Writes are where the kernels of machines write, all at one moment.
	Writes []Write
}

// Note adds a finding from elsewhere, once.
func (c *Course) Note(f Finding) {
	if _, known := c.findings[f.key()]; !known {
		c.findings[f.key()] = f
		c.order = append(c.order, f)
	}
}

// Findings returns all findings so far, in order.
func (c *Course) Findings() []Finding { return slices.Clone(c.order) }

// Look checks one sample.
func (c *Course) Look(s Sample) {
	volumes := make(map[string]cindersim.Volume, len(s.Volumes))
	for _, v := range s.Volumes {
		volumes[v.ID] = v
		if _, seen := c.served[v.ID]; !seen || v.Status == attaching || isInUse(v) {
			c.served[v.ID] = s.At
		}
	}
	c.noteHolders(s.PVs)
	for _, pv := range s.PVs {
		c.noteRecorded(pv, s.Fates[pv.Name])
		if _, given := s.Foreign[pv.VolumeID]; given {
			continue // which must not change at all
		}
		if pv.Retain {
			if !s.Fates[pv.Name].Keeping && !c.isVoid(pv, s) {
				c.kept[pv.Name] = keptPV{pv, "it is to be retained"}
			}
			continue
		}
		if !s.Asked(pv.HeldBy()) {
			if f, wrong := c.mustServe(pv, volumes, s.Bound[pv.HeldBy()], "its claim was not deleted"); wrong {
				c.Note(f)
			}
		}
	}
	c.lookAtKept(s, volumes)
	c.lookAtAttachments(s, volumes)
	c.lookAtWrites(s.Writes)
	for _, f := range Foreign(State{Volumes: s.Volumes, Foreign: s.Foreign}) {
		c.Note(f)
	}
}

// lookAtKept checks the volumes that must outlive their claims.
func (c *Course) lookAtKept(s Sample, volumes map[string]cindersim.Volume) {
	for name, fate := range s.Fates {
		if fate.MustStay() {
			c.kept[name] = keptPV{fate.PV, fate.reason()}
		}
	}
	for name, pv := range c.kept {
		fate := s.Fates[name]
		if fate.Freed || fate.Replaced && pv.UID == fate.PV.UID {
			delete(c.kept, name)
			continue
		}
		if _, given := s.Foreign[pv.VolumeID]; given || fate.MustStay() && fate.Kept.Equal(c.excused[name]) {
			continue
		}
		f, wrong := c.mustServe(pv.PV, volumes, s.Bound[pv.HeldBy()] && !s.Asked(pv.HeldBy()), pv.because)
		switch {
		case !wrong:
		case fate.Removed && !c.used[pv.VolumeID]:
			// Then no record shows the next leader that it was ever recorded.
		case fate.MustStay() && s.TooLate != nil && s.TooLate(fate):
			c.excused[name] = fate.Kept
		default:
			c.Note(f)
		}
	}
}

// isVoid reports whether a late request saved a PersistentVolume when its claim
// was to be deleted and its volume, which no pod can have used, was already being
// undone.
func (c *Course) isVoid(pv PV, s Sample) bool {
	last, was := c.served[pv.VolumeID]
	_, kept := c.kept[pv.Name]
	return was && !kept && pv.Created.After(last) && !c.used[pv.VolumeID] && s.Asked(pv.HeldBy())
}

// noteRecorded finds claims for which two volumes were recorded, one after the
// other. If somebody deletes the first record and the backend leads elsewhere from
// then on, the claim needs another volume.
func (c *Course) noteRecorded(pv PV, fate Fate) {
	known := c.recorded[pv.ClaimUID]
	if slices.Contains(known, pv.VolumeID) || fate.leftElsewhere(pv) {
		return
	}
	if c.recorded[pv.ClaimUID] = append(known, pv.VolumeID); len(known) > 0 {
		c.Note(Finding{Duplicate, "PersistentVolume " + pv.Name, fmt.Sprintf("names volume %s and named %s before", pv.VolumeID, known[0]), pv.VolumeID, pv.ClaimUID})
	}
}

// staleAfter is how long after another replica took the lease a request that
// was sent in time may still arrive.
const staleAfter = 500 * time.Millisecond

// IsStale reports whether a replica's change came too late: another replica had
// then held the lease for a while. No replica holds it before its predecessor
// has released it.
func IsStale(by string, at time.Time, holder string, since time.Time) bool {
	return holder != "" && holder != by && at.Sub(since) > staleAfter
}

// mustServe checks the volume of a PersistentVolume that is still wanted.
func (c *Course) mustServe(pv PV, volumes map[string]cindersim.Volume, bound bool, because string) (found Finding, wrong bool) {
	report := func(kind Kind, format string, arguments ...any) {
		found, wrong = Finding{kind, "PersistentVolume " + pv.Name, fmt.Sprintf(format, arguments...), pv.VolumeID, pv.ClaimUID}, true
	}
	if pv.CSI {
		return c.mustBeKept(pv, volumes, because)
	}
	v, there := volumes[pv.VolumeID]
	switch {
	case !there:
		report(WronglyDeleted, "volume %s is gone; %s", pv.VolumeID, because)
	case isInUse(v):
		c.used[v.ID] = true
		if len(v.Attachments) == 0 || !isConnected(v, c.host) {
			report(WronglyDeleted, "%s was disconnected; %s", describe(v), because)
		}
	case c.used[v.ID]:
		report(WronglyDeleted, "%s was in use; %s", describe(v), because)
	case v.Status == attaching:
		// It was recorded a moment ago; its last step is yet to come.
	case v.Status == available:
		report(WronglyDeleted, "%s lost its reservation; %s", describe(v), because)
	case bound && v.Status == "error":
		report(Unusable, "its claim is bound and %s failed", describe(v))
	default:
		report(WronglyDeleted, "%s; %s", describe(v), because)
	}
	return found, wrong
}
