package review

import (
	"fmt"

	"github.com/standalone-cinder/standalone-cinder/policy"
)

// Existing is what a cluster has of one provisioner, for Of.
type Existing struct {
	// Cluster is the UID of the namespace kube-system, which stands in where
	// a policy has no clusterID; empty if it is not known.
	Cluster string
	// Claims are in the order in which pending ones get what room there is:
	// the eldest first.
	Claims  []Claim
	Volumes []Volume
	// Places are where the backends of the policy under review lead, by name, as
	// far as that is known without asking them.
	Places map[string]Place
}

// Place is where a backend's volumes live: Cinder's endpoint and a project there,
// in the form in which PersistentVolumes record them. A part that is not known is
// empty.
type Place struct {
	Endpoint string
	Project  string
}

// String names what is known of the place.
func (p Place) String() string {
	switch {
	case p.Endpoint == "":
		return "project " + p.Project
	case p.Project == "":
		return p.Endpoint
	}
	return fmt.Sprintf("%s (project %s)", p.Endpoint, p.Project)
}

// excludes says whether a volume that was recorded at another place is
// certainly not at this one.
func (p Place) excludes(recorded Place) bool {
	return recorded != Place{} &&
		(p.Endpoint != "" && p.Endpoint != recorded.Endpoint || p.Project != "" && p.Project != recorded.Project)
}

// Claim is a claim that a StorageClass of the provisioner serves.
type Claim struct {
	// Request is what the policy is asked about the claim. Without a
	// StorageClass object it has no parameters.
	Request policy.Request
	Name    string
	UID     string
	// ClassExists says whether there is a StorageClass of the name that the
	// claim gives.
	ClassExists bool
	// Refusal is why the provisioner turns the claim away before it asks any
	// policy, or nil.
	Refusal *policy.Denial
	// Bound says that the claim has its volume. One that is not bound and
	// names a Volume waits for that PersistentVolume, and no policy is asked.
	Bound  bool
	Volume string
}

// subject is how findings name the claim.
func (c Claim) subject() string { return c.Request.Namespace + "/" + c.Name }

// Volume is a PersistentVolume that the provisioner made, with what it
// records about itself.
type Volume struct {
	Name    string
	Backend string
	// Place is where the volume was recorded; zero if it was not.
	Place  Place
	Tenant string
	// Rule is the path of the class rule in the policy that granted the
	// volume; in another policy it may mean another rule.
	Rule         string
	StorageClass string
	GiB          int64
	// Cluster is the id under which the volume was stamped; historic ones have
	// no stamp.
	Cluster string
	// Claim is the namespace and name of the claim that the volume is or was
	// for, ClaimUID its UID.
	Claim    string
	ClaimUID string
	// Retain says that the volume stays when its claim is gone: nothing ever
	// deletes it.
	Retain bool
	// Phase is the PersistentVolume's, such as Bound or Released.
	Phase string
	// Historic says that the historic provisioner made it. It names no
	// tenant, counts against no quota, and may name no backend, as its
	// backend is looked for when it is deleted.
	Historic bool
	// Damage is why the volume cannot be deleted whatever the policy says,
	// because of what its PersistentVolume fails to record; empty if it can.
	Damage string
}

// usage is what the volume counts for.
func (v Volume) usage() policy.Usage { return policy.Usage{Volumes: 1, Gigabytes: v.GiB} }

// counts says whether the volume counts against quotas where the provisioner
// runs under this cluster's id, as its ledger decides it.
func (v Volume) counts(cluster string) bool {
	return !v.Historic && v.ClaimUID != "" && (cluster == "" || v.Cluster == cluster)
}
