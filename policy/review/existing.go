package review

import (
	"fmt"

	"github.com/standalone-cinder/standalone-cinder/policy"
)

// Existing is what exists in a cluster for one provisioner.
type Existing struct {
	// Cluster is the UID of the namespace kube-system, which replaces a missing
	// clusterID; empty if unknown.
	Cluster string
	// Claims are in the order in which pending ones get the remaining room, oldest first.
	Claims  []Claim
	Volumes []Volume
	// Classes are the provisioner's StorageClasses.
	Classes []policy.StorageClass
	// Places are, by name, the places of the policy's backends that are known without a
	// request.
	Places map[string]Place
	// CSI is the cluster's part of mode csi; nil if it was not read.
	CSI *CSI
}

// CSI is a cluster's part of mode csi.
type CSI struct {
	// Driver reports whether the CSIDriver object exists.
	Driver bool
	// Nodes is the number of nodes on which the driver is registered.
	Nodes int
}

// Place is where a backend's volumes are: Cinder's endpoint and a project there, as
// PersistentVolumes record them. Unknown parts are empty.
type Place struct {
	Endpoint string
	Project  string
}

// String describes the known parts of the place.
func (p Place) String() string {
	switch {
	case p.Endpoint == "":
		return "project " + p.Project
	case p.Project == "":
		return p.Endpoint
	}
	return fmt.Sprintf("%s (project %s)", p.Endpoint, p.Project)
}

// excludes reports whether a volume recorded at another place is certainly not at this
// one.
func (p Place) excludes(recorded Place) bool {
	return recorded != Place{} &&
		(p.Endpoint != "" && p.Endpoint != recorded.Endpoint || p.Project != "" && p.Project != recorded.Project)
}

// Claim is a claim served by one of the provisioner's StorageClasses.
type Claim struct {
	// Request is the request to the policy. Without a StorageClass object it has
	// no parameters.
	Request policy.Request
	Name    string
	UID     string
	// ClassExists reports whether the StorageClass that the claim names exists.
	ClassExists bool
	// Asks reports whether the claim requests, or has, an existing Cinder volume. Import
	// names the volume; nothing else is known about it.
	Asks   bool
	Import string
	// OnePod reports whether the claim has the access mode ReadWriteOncePod.
	OnePod bool
	// Refusal is why the provisioner rejects the claim before it consults any policy, or
	// nil.
	Refusal *policy.Denial
	// Bound reports whether the claim has its volume. An unbound claim that names a
	// Volume waits for that PersistentVolume, regardless of the policy.
	Bound  bool
	Volume string
}

// subject returns the claim's name in findings.
func (c Claim) subject() string { return c.Request.Namespace + "/" + c.Name }

// Volume is a PersistentVolume of the provisioner, with its record.
type Volume struct {
	Name    string
	Backend string
	// Place is where the volume was recorded; zero if it was not.
	Place        Place
	Tenant       string
	StorageClass string
	GiB          int64
	// Cluster is the ID in the volume's stamp; historic volumes have no stamp.
	Cluster string
	// ClaimUID is the UID of the volume's present or former claim.
	ClaimUID string
	// Encrypted means that nodes encrypt the volume, by a rule with encrypt.
	Encrypted bool
	// Retain means that the volume outlives its claim.
	Retain bool
	// Historic means that the historic provisioner created it. It names no tenant and
	// counts against no quota. It may name no backend, because deletion searches for it.
	Historic bool
	// Damage is why the volume cannot be deleted under any policy: its PersistentVolume
	// lacks a record that deletion needs. It is empty if nothing is missing.
	Damage string
}

// usage returns what the volume counts.
func (v Volume) usage() policy.Usage { return policy.Usage{Volumes: 1, Gigabytes: v.GiB} }

// counts reports whether the volume counts against quotas under this cluster's ID. The
// provisioner's ledger decides in the same way.
func (v Volume) counts(cluster string) bool {
	return !v.Historic && v.ClaimUID != "" && (cluster == "" || v.Cluster == cluster)
}
