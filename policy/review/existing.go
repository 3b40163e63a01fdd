package review

import (
	"fmt"

	"github.com/standalone-cinder/standalone-cinder/policy"
)

// Existing is what exists in a cluster for one provisioner.
type Existing struct {
	// Cluster is the UID of the namespace kube-system, which replaces a missing
	// clusterID. It is empty if it is not known.
	Cluster string
	// Claims are in the order in which pending ones get the remaining room:
	// the oldest first.
	Claims  []Claim
	Volumes []Volume
	// Classes are the provisioner's StorageClasses.
	Classes []policy.StorageClass
	// Places are the places that the backends of the policy lead to, by name, as
	// far as they are known without a request.
	Places map[string]Place
	// CSI is what the cluster has for mode csi; nil if it was not read.
	CSI *CSI
}

// CSI is what a cluster has for mode csi.
type CSI struct {
	// Driver reports whether the CSIDriver object exists.
	Driver bool
	// Nodes is the number of nodes on which the driver is registered.
	Nodes int
}

// Place is the place of a backend's volumes: Cinder's endpoint and a project
// there, in the form in which PersistentVolumes record them. A part that is not
// known is empty.
type Place struct {
	Endpoint string
	Project  string
}

// String describes what is known about the place.
func (p Place) String() string {
	switch {
	case p.Endpoint == "":
		return "project " + p.Project
	case p.Project == "":
		return p.Endpoint
	}
	return fmt.Sprintf("%s (project %s)", p.Endpoint, p.Project)
}

// excludes reports whether a volume that was recorded at another place is
// certainly not at this one.
func (p Place) excludes(recorded Place) bool {
	return recorded != Place{} &&
		(p.Endpoint != "" && p.Endpoint != recorded.Endpoint || p.Project != "" && p.Project != recorded.Project)
}

// Claim is a claim that a StorageClass of the provisioner serves.
type Claim struct {
	// Request is the request to the policy. Without a StorageClass object it has
	// no parameters.
	Request policy.Request
	Name    string
	UID     string
	// ClassExists reports whether the StorageClass that the claim names exists.
	ClassExists bool
	// Asks reports whether the claim asks for a volume that exists at Cinder, or has
	// one that it asked for. Import names the volume, which is all that is known about
	// it.
	Asks   bool
	Import string
	// OnePod reports whether the claim has the access mode ReadWriteOncePod.
	OnePod bool
	// Refusal is the reason why the provisioner rejects the claim before it asks
	// any policy, or nil.
	Refusal *policy.Denial
	// Bound reports whether the claim has its volume. A claim that is not bound
	// but names a Volume waits for that PersistentVolume, whatever the policy.
	Bound  bool
	Volume string
}

// subject returns how findings name the claim.
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
	// Retain means that nothing deletes the volume when its claim is gone.
	Retain bool
	// Phase is the PersistentVolume's, such as Bound or Released.
	Phase string
	// Historic means that the historic provisioner made it. It names no tenant
	// and counts against no quota. It may name no backend, because deletion
	// searches for it.
	Historic bool
	// Damage is the reason why no policy lets the volume be deleted: its
	// PersistentVolume lacks a record that deletion needs. It is empty if there
	// is none.
	Damage string
}

// usage returns what the volume counts for.
func (v Volume) usage() policy.Usage { return policy.Usage{Volumes: 1, Gigabytes: v.GiB} }

// counts reports whether the volume counts against quotas if the provisioner runs
// under this cluster's ID. The provisioner's ledger decides in the same way.
func (v Volume) counts(cluster string) bool {
	return !v.Historic && v.ClaimUID != "" && (cluster == "" || v.Cluster == cluster)
}
