package checker

import (
	"fmt"
	"maps"
	"slices"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
)

// HeldBy returns the UID of the claim that a PersistentVolume belongs to: the one that it
// names, or, while it names none by its UID, the one that its volume was made for.
func (pv PV) HeldBy() string {
	if pv.Holder != "" {
		return pv.Holder
	}
	return pv.ClaimUID
}

// HolderOf returns the UID of the claim that has a volume according to its stamp.
func HolderOf(v cindersim.Volume) string {
	if to := v.Metadata[StampReboundTo]; to != "" {
		return to
	}
	return v.Metadata[StampClaimUID]
}

// noteHolders finds volumes that were made for a claim that has another one's.
func (c *Course) noteHolders(pvs []PV) {
	for _, pv := range pvs {
		if pv.HeldBy() != pv.ClaimUID {
			c.rebound[pv.HeldBy()] = pv.Name
		}
	}
	for _, pv := range pvs {
		if other, rebound := c.rebound[pv.ClaimUID]; rebound {
			c.Note(Finding{Duplicate, "PersistentVolume " + pv.Name, "was made for a claim that got PersistentVolume " + other, pv.VolumeID, pv.ClaimUID})
		}
	}
}

// checkHolders finds volumes whose record or stamp does not name the claim that has
// them, and tenants for which the leader counts other volumes than those that are
// stamped for them.
func (e ending) checkHolders() []Finding {
	var findings []Finding
	for _, pv := range e.PVs {
		claim, exists := e.claims[pv.HeldBy()]
		v, there := e.volumes[pv.VolumeID]
		if _, given := e.Foreign[pv.VolumeID]; given || !exists || !claim.Bound || claim.Asked || claim.Tenant == "" || !there {
			continue
		}
		wrong := func(where, what, got, want string) {
			if got != want {
				findings = append(findings, Finding{Miscounted, "PersistentVolume " + pv.Name,
					fmt.Sprintf("claim %s/%s (%s) of tenant %s has it, and the %s of its %s is %q, not %q", claim.Namespace, claim.Name, claim.UID, claim.Tenant, what, where, got, want),
					pv.VolumeID, pv.ClaimUID})
			}
		}
		reboundTo := pv.HeldBy()
		if reboundTo == pv.ClaimUID {
			reboundTo = ""
		}
		wrong("record", "claim", pv.ReboundTo, reboundTo)
		wrong("record", "tenant", pv.Tenant, claim.Tenant)
		wrong("volume", "claim", v.Metadata[StampReboundTo], reboundTo)
		wrong("volume", "tenant", v.Metadata[StampTenant], claim.Tenant)
		wrong("volume", "namespace", v.Metadata[StampNamespace], claim.Namespace)
		wrong("volume", "claim's name", v.Metadata[StampClaim], claim.Name)
		for _, key := range slices.Sorted(maps.Keys(claim.Metadata)) {
			wrong("volume", key, v.Metadata[key], claim.Metadata[key])
		}
	}
	return append(findings, e.checkCounted()...)
}

// checkCounted compares what the leader counts for tenants with the volumes' stamps.
func (e ending) checkCounted() []Finding {
	stamped := map[string]policy.Usage{}
	for _, v := range e.Volumes {
		if e.isOurs(v) {
			tenant := v.Metadata[StampTenant]
			stamped[tenant] = stamped[tenant].Add(policy.Usage{Volumes: 1, Gigabytes: int64(v.SizeGiB)})
		}
	}
	var findings []Finding
	for _, tenant := range slices.Sorted(maps.Keys(e.Counted)) {
		counted, want := e.Counted[tenant], stamped[tenant]
		switch {
		case counted == nil:
			findings = append(findings, Finding{Kind: Miscounted, Object: "tenant " + tenant, Text: "no leader says what it counts"})
		case counted.Volumes != want.Volumes || counted.Gigabytes != want.Gigabytes:
			findings = append(findings, Finding{Kind: Miscounted, Object: "tenant " + tenant,
				Text: fmt.Sprintf("the leader counts %d volumes of %d GiB, and Cinder has %d of %d GiB", counted.Volumes, counted.Gigabytes, want.Volumes, want.Gigabytes)})
		}
	}
	return findings
}
