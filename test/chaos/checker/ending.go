package checker

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
)

// Ending reports what is wrong with a settled state.
func Ending(s State) []Finding {
	e := ending{State: s, pvs: map[string]PV{}, held: map[string]PV{}, claims: map[string]Claim{}, volumes: map[string]cindersim.Volume{}, secrets: map[string]bool{}}
	for _, pv := range s.PVs {
		e.pvs[pv.Name], e.held[pv.HeldBy()] = pv, pv
	}
	for _, claim := range s.Claims {
		e.claims[claim.UID] = claim
	}
	for _, v := range s.Volumes {
		e.volumes[v.ID] = v
	}
	for _, secret := range s.Secrets {
		e.secrets[secret.Name] = true
	}
	var findings []Finding
	findings = append(findings, e.checkVolumes()...)
	findings = append(findings, e.checkPVs()...)
	findings = append(findings, e.checkClaims()...)
	findings = append(findings, e.checkSecrets()...)
	findings = append(findings, e.checkSnapshots()...)
	findings = append(findings, e.checkBackups()...)
	findings = append(findings, e.checkGroups()...)
	findings = append(findings, e.checkAttachments()...)
	findings = append(findings, e.checkMachines()...)
	findings = append(findings, e.checkHolders()...)
	return append(findings, Foreign(s)...)
}

// EndingAt returns the part of Ending that concerns volumes at some places, and
// claims. A volume is where its project is, but for another address of the same Cinder,
// which only the PersistentVolume records. A recorded project is not asked: in a project
// without Keystone, the program finds, and records there, the volumes of all projects.
//
// A claim that was denied for a quota is not judged. Volumes whose deletion
// began before their backend led elsewhere count until it leads there again,
// because only then does the program see that they are gone. Nor is judged what the
// leader counts for tenants: a volume may have to wait for its backend until its record
// follows its stamp.
func EndingAt(s State, there func(place string) bool) []Finding {
	places := map[string]string{}
	for _, v := range s.Volumes {
		places[v.ID] = v.Project
	}
	for _, pv := range s.PVs {
		if places[pv.VolumeID] == "" || strings.Contains(pv.Place, "://") {
			places[pv.VolumeID] = pv.Place
		}
	}
	s.Claims = slices.DeleteFunc(slices.Clone(s.Claims), func(c Claim) bool { return !c.Bound && !c.Asked && c.ToldQuota })
	return slices.DeleteFunc(Ending(s), func(f Finding) bool {
		return f.Kind == Touched || f.Kind == LeakedSecret || f.Kind == Miscounted && f.VolumeID == "" || f.VolumeID != "" && !there(places[f.VolumeID])
	})
}

type ending struct {
	State
	pvs map[string]PV
	// held are the PersistentVolumes by the claims that have them.
	held    map[string]PV
	claims  map[string]Claim
	volumes map[string]cindersim.Volume
	secrets map[string]bool
}

// checkVolumes finds volumes that nothing names.
func (e ending) checkVolumes() []Finding {
	var findings []Finding
	seen := map[string]bool{}
	for _, v := range e.Volumes {
		if !e.isOurs(v) {
			continue
		}
		uid := v.Metadata[StampClaimUID]
		pv, recorded := e.pvs[pvNameFor(uid)]
		switch {
		case recorded && pv.VolumeID == v.ID:
		case e.mustStay(pvNameFor(uid), v.ID) && (!recorded || e.Fates[pv.Name].leftElsewhere(pv)):
			continue
		case recorded:
			findings = append(findings, Finding{Duplicate, describe(v), fmt.Sprintf("PersistentVolume %s names volume %s", pv.Name, pv.VolumeID), v.ID, uid})
		case seen[uid]:
			findings = append(findings, Finding{Duplicate, describe(v), "another volume of this claim, and no PersistentVolume", v.ID, uid})
		default:
			findings = append(findings, Finding{Leaked, describe(v), "no PersistentVolume names it; " + e.whatOf(uid), v.ID, uid})
		}
		seen[uid] = true
	}
	return findings
}

// mustStay reports whether a volume outlives a PersistentVolume that was
// deleted by hand.
func (e ending) mustStay(pv, volumeID string) bool {
	fate := e.Fates[pv]
	return fate.MustStay() && fate.PV.VolumeID == volumeID
}

func (e ending) whatOf(claimUID string) string {
	claim, exists := e.claims[claimUID]
	switch {
	case !exists:
		return "its claim is gone"
	case claim.Bound:
		return "its claim is bound"
	}
	return "its claim is pending"
}

// checkPVs finds PersistentVolumes without what they name, and some that should
// be gone or are not finished.
func (e ending) checkPVs() []Finding {
	var findings []Finding
	owners := map[string]string{}
	for _, pv := range e.PVs {
		report := func(kind Kind, format string, arguments ...any) {
			findings = append(findings, Finding{kind, "PersistentVolume " + pv.Name, fmt.Sprintf(format, arguments...), pv.VolumeID, pv.ClaimUID})
		}
		if other, taken := owners[pv.VolumeID]; taken {
			report(Duplicate, "names volume %s, and so does PersistentVolume %s", pv.VolumeID, other)
		}
		owners[pv.VolumeID] = pv.Name
		if held := e.held[pv.HeldBy()]; held.Name != pv.Name {
			report(Duplicate, "belongs to the same claim as PersistentVolume %s", held.Name)
		}
		if _, given := e.Foreign[pv.VolumeID]; given {
			continue
		}
		claim, exists := e.claims[pv.HeldBy()]
		v, there := e.volumes[pv.VolumeID]
		switch {
		case !exists && (!pv.Retain || pv.Deleting):
			report(Stuck, "its claim is gone and it is still there; %s", e.stateOf(pv.VolumeID))
			continue
		case !there && (e.cameTooLate(pv.Name) || !exists && e.isForgotten(pv)):
			continue
		case !there:
			report(Lost, "volume %s does not exist", pv.VolumeID)
			continue
		case v.Metadata[StampCluster] != e.Cluster || v.Metadata[StampClaimUID] != pv.ClaimUID || v.Metadata[StampPV] != pv.Name:
			report(Lost, "%s is not stamped for it", describe(v))
		case pv.Target != "" && !strings.HasSuffix(pv.Target, pv.VolumeID):
			report(Lost, "target %s is not that of volume %s", pv.Target, pv.VolumeID)
		}
		if pv.Secret != "" && !e.secrets[pv.Secret] {
			report(Lost, "Secret %s does not exist", pv.Secret)
		}
		// One that was released before it was complete stays as it was.
		if exists && claim.Bound && !claim.Asked {
			if problem := e.unfinished(pv, v); problem != "" {
				report(Stuck, "its claim %s/%s is bound and %s %s", claim.Namespace, claim.Name, describe(v), problem)
			}
		}
	}
	return findings
}

// cameTooLate reports whether a volume was gone, or half gone, before the
// campaign asked to keep it.
func (e ending) cameTooLate(pv string) bool {
	fate := e.Fates[pv]
	return fate.MustStay() && e.TooLate != nil && e.TooLate(fate)
}

// isForgotten reports whether a PersistentVolume was saved after its claim's deletion
// was requested, when its volume may already have been undone; the current leader
// cannot know by whom. The program only reports such an object: it could be a volume
// that somebody lost.
func (e ending) isForgotten(pv PV) bool {
	if e.DeletionRequestedAt == nil || !pv.Retain {
		return false
	}
	asked := e.DeletionRequestedAt(pv.HeldBy())
	return !asked.IsZero() && !pv.Created.Before(asked.Truncate(time.Second)) && e.LedSince.After(pv.Created)
}

func (e ending) stateOf(volumeID string) string {
	if v, there := e.volumes[volumeID]; there {
		return describe(v)
	}
	return "volume " + volumeID + " is gone"
}

// unfinished returns what is missing for a volume to serve a node.
func (e ending) unfinished(pv PV, v cindersim.Volume) string {
	switch {
	case pv.CSI:
		return unfinishedOnNodes(v)
	case !isInUse(v):
		return "is not in use"
	case len(v.Attachments) != 1:
		return fmt.Sprintf("has %d attachments", len(v.Attachments))
	case pv.Attachment != "" && v.Attachments[0].ID != pv.Attachment:
		return fmt.Sprintf("has attachment %s in place of %s", v.Attachments[0].ID, pv.Attachment)
	case !isConnected(v, e.Host):
		return "is not connected"
	}
	return ""
}

func isConnected(v cindersim.Volume, host string) bool {
	return v.Export.Present && slices.Contains(v.Export.ConnectedHosts, host)
}

// checkClaims finds claims that are neither bound nor denied with a reason.
func (e ending) checkClaims() []Finding {
	var findings []Finding
	for _, claim := range e.Claims {
		report := func(kind Kind, text string) {
			findings = append(findings, Finding{kind, "claim " + claim.Namespace + "/" + claim.Name, text, "", claim.UID})
		}
		pv, recorded := e.held[claim.UID]
		switch {
		case claim.Asked && e.isCopied(claim.UID):
			// It stays as long as a claim waits for its content.
		case claim.Bound && recorded && claim.IsCopy && e.isEmpty(pv):
			report(Lost, "asked for the content of another and got an empty volume")
		case claim.Asked:
			report(Stuck, "is deleted and does not go")
		case claim.Bound && !recorded:
			report(Lost, "is bound and its PersistentVolume is gone")
		case !claim.Bound && claim.Denial == "":
			report(Stuck, "is pending though the policy grants it and there is room")
		case !claim.Bound && !claim.Explained:
			report(Stuck, "is pending and no event says why; it would be: "+claim.Denial)
		case claim.Bound:
			findings = append(findings, e.checkGrowth(claim, pv)...)
		}
	}
	return findings
}

// checkGrowth compares the sizes of a sound claim, its PersistentVolume and its
// volume.
func (e ending) checkGrowth(claim Claim, pv PV) []Finding {
	v, there := e.volumes[pv.VolumeID]
	if claim.WantsGiB == 0 || !there {
		return nil
	}
	finding := Finding{Stuck, "claim " + claim.Namespace + "/" + claim.Name, "", v.ID, claim.UID}
	sizes := fmt.Sprintf("wants %d GiB, and %s has %d", claim.WantsGiB, describe(v), v.SizeGiB)
	switch {
	case pv.GiB > v.SizeGiB:
		finding.Kind, finding.Text = Lost, fmt.Sprintf("has a PersistentVolume of %d GiB, and %s has %d", pv.GiB, describe(v), v.SizeGiB)
	case v.SizeGiB < claim.WantsGiB && claim.GrowthDenial == "":
		finding.Text = sizes + ", though the policy grants it and there is room"
	case v.SizeGiB < claim.WantsGiB && !claim.GrowthExplained:
		finding.Text = sizes + ", and no event says why; it would be: " + claim.GrowthDenial
	case v.SizeGiB >= claim.WantsGiB && pv.GiB < v.SizeGiB:
		finding.Text = fmt.Sprintf("has a PersistentVolume of %d GiB still, and %s has %d", pv.GiB, describe(v), v.SizeGiB)
	default:
		return nil
	}
	return []Finding{finding}
}

// isCopied reports whether a pending claim wants the content of a claim.
func (e ending) isCopied(uid string) bool {
	return slices.ContainsFunc(e.Claims, func(other Claim) bool { return !other.Bound && !other.Asked && other.Copies == uid })
}

// isEmpty reports whether the volume of a PersistentVolume exists and was made
// from nothing.
func (e ending) isEmpty(pv PV) bool {
	return slices.ContainsFunc(e.Volumes, func(v cindersim.Volume) bool {
		return v.ID == pv.VolumeID && v.SourceID == "" && v.SnapshotID == "" && v.BackupID == ""
	})
}

func (e ending) checkSecrets() []Finding {
	var findings []Finding
	for _, secret := range e.Secrets {
		// The Secret of a volume that stays is needed if the volume is recorded
		// again.
		if _, recorded := e.pvs[secret.PV]; !recorded && !e.Fates[secret.PV].MustStay() {
			findings = append(findings, Finding{Kind: LeakedSecret, Object: "Secret " + secret.Name,
				Text: fmt.Sprintf("PersistentVolume %s does not exist", secret.PV), ClaimUID: strings.TrimPrefix(secret.PV, "pvc-")})
		}
	}
	return findings
}

// Foreign finds foreign volumes that were changed.
func Foreign(s State) []Finding {
	present := map[string]cindersim.Volume{}
	for _, v := range s.Volumes {
		present[v.ID] = v
	}
	var findings []Finding
	for _, id := range slices.Sorted(maps.Keys(s.Foreign)) {
		before := s.Foreign[id]
		after, there := present[id]
		if !there {
			findings = append(findings, Finding{Touched, describe(before), "it is gone", id, ""})
			continue
		}
		if difference := differ(before, after); difference != "" {
			findings = append(findings, Finding{Touched, describe(before), difference, id, ""})
		}
	}
	return findings
}

// differ lists the changes to a volume, field by field. Snapshots of one that was
// given away are still ours.
func differ(before, after cindersim.Volume) string {
	before.Snapshots = after.Snapshots
	was, is := reflect.ValueOf(before), reflect.ValueOf(after)
	var changed []string
	for i := range was.NumField() {
		if old, now := was.Field(i).Interface(), is.Field(i).Interface(); !reflect.DeepEqual(old, now) {
			changed = append(changed, fmt.Sprintf("%s was %+v and is %+v", was.Type().Field(i).Name, old, now))
		}
	}
	return strings.Join(changed, "; ")
}
