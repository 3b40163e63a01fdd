// Package statusreport describes what a replica reports about its state: as JSON for
// programs, as a table for terminals, and as a page for browsers. Replicas make the
// report, and the status commands read it.
package statusreport

import (
	"strconv"
	"time"
)

// APIVersion and Kind identify the document. Within a version, fields may be added, but
// are neither removed nor given another meaning.
const (
	APIVersion = "standalone-cinder.openstack.org/v1alpha1"
	Kind       = "Status"
)

// Report is the state of one replica at one moment. Times are in UTC. What only a
// leader knows is absent from a follower's report, never zero.
type Report struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Time       time.Time `json:"time"`

	Program Program `json:"program"`
	Replica Replica `json:"replica"`
	// Leader is what this replica knows about the leader.
	Leader Leader `json:"leader"`
	// LeaderOnly says what is missing from a follower's report, and who knows it. It is
	// empty in a leader's report.
	LeaderOnly string `json:"leaderOnly,omitempty"`

	// Pods are those that run the program, of all replicas.
	Pods []Pod `json:"pods,omitempty"`

	Policy      Policy              `json:"policy"`
	Credentials []CredentialTrouble `json:"credentialTroubles"`

	// Selection is what was requested; nil means everything.
	Selection *Selection `json:"selection,omitempty"`

	Backends        []Backend  `json:"backends"`
	Tenants         []Tenant   `json:"tenants"`
	TenantsNotShown int        `json:"tenantsNotShown"`
	Claims          *Claims    `json:"claims,omitempty"`
	Deletions       *Deletions `json:"deletions,omitempty"`
	// Expansions are claims whose volumes cannot grow now. Snapshots are VolumeSnapshots
	// and VolumeSnapshotContents whose snapshots cannot be taken, imported or deleted now,
	// and claims whose scheduled snapshots are late.
	Expansions *Waiting `json:"expansions,omitempty"`
	Snapshots  *Waiting `json:"snapshots,omitempty"`
	// Attachments is nil without mode csi.
	Attachments *Attachments `json:"attachments,omitempty"`
	KeptVolumes []Kept       `json:"keptVolumes,omitempty"`
	// Moves are the volumes of the claims that moves between backends made. They are absent
	// from a report about a selection.
	Moves []Move `json:"moves,omitempty"`
	// Audit is nil before the term's first one.
	Audit *Audit `json:"audit,omitempty"`
}

// Program describes the running program.
type Program struct {
	Version string `json:"version"`
	Commit  string `json:"commit"`
}

// Replica describes the replica that made the report.
type Replica struct {
	Identity        string `json:"identity"`
	Namespace       string `json:"namespace"`
	ProvisionerName string `json:"provisionerName"`
	// Ready means that its caches are filled.
	Ready bool `json:"ready"`
	Leads bool `json:"leads"`
	// LeadsSince is when its term began to serve claims.
	LeadsSince time.Time `json:"leadsSince,omitzero"`
}

// Pod is a pod that runs the program.
type Pod struct {
	Name  string `json:"name"`
	Node  string `json:"node,omitempty"`
	Image string `json:"image"`
	Ready bool   `json:"ready"`
	// Ending means that the pod is being deleted.
	Ending   bool      `json:"ending,omitempty"`
	Restarts int32     `json:"restarts"`
	Created  time.Time `json:"created"`
}

// Leader is the holder of the lease.
type Leader struct {
	// Identity is empty if this replica knows no leader.
	Identity string `json:"identity,omitempty"`
	// Lease is the NAMESPACE/NAME of the lease, empty without leader election.
	Lease string `json:"lease,omitempty"`
}

// Policy describes the policy in force.
type Policy struct {
	File     string `json:"file"`
	Revision string `json:"revision,omitempty"`
	// Source is where this replica got the policy.
	Source PolicySource `json:"source"`
	// KeptIn names the Secret with the last good policy.
	KeptIn string `json:"keptIn"`
	// Refused lists what is wrong with the file if the file was refused, so that
	// another revision is in force.
	Refused []string `json:"refused,omitempty"`
	// RefusedRevision is the revision of the refused file; empty if it cannot be read.
	RefusedRevision string `json:"refusedRevision,omitempty"`
}

// PolicySource is where a policy comes from.
type PolicySource string

// The sources of a policy.
const (
	FromFile     PolicySource = "file"
	FromLastGood PolicySource = "lastGood"
)

// CredentialTrouble is why a backend's credentials cannot be read, and what is in
// use instead.
type CredentialTrouble struct {
	Backend string `json:"backend"`
	Message string `json:"message"`
}

// Selection narrows a report to a tenant, to a namespace, or to one claim in it.
type Selection struct {
	Namespace string `json:"namespace,omitempty"`
	Claim     string `json:"claim,omitempty"`
	// Tenant is the selected one, or that of the namespace. If there is none, Message
	// says why.
	Tenant  string `json:"tenant,omitempty"`
	Message string `json:"message,omitempty"`
}

// Backend is a backend of the policy, or one that a reload removed.
type Backend struct {
	Name string `json:"name"`
	// Suspended is the setting in the policy.
	Suspended bool `json:"suspended"`
	// Retired means that the backend is no longer in the policy, but is kept for the
	// deletion of its volumes.
	Retired bool  `json:"retired"`
	State   State `json:"state"`
	// Since is when the state began.
	Since time.Time `json:"since,omitzero"`
	// FailuresInARow counts failures of a backend that still counts as answering.
	FailuresInARow int       `json:"failuresInARow"`
	LastFailure    string    `json:"lastFailure,omitempty"`
	LastFailureAt  time.Time `json:"lastFailureAt,omitzero"`
	Quotas         []Quota   `json:"quotas"`
	// Certificates are those that this replica has seen.
	Certificates []Certificate `json:"certificates,omitempty"`
}

// Certificate is one that a backend needs.
type Certificate struct {
	// Of is "client", for that of the credentials, or "keystone" or "cinder".
	Of      string    `json:"of"`
	Expires time.Time `json:"expires"`
}

// State says whether a backend answers.
type State string

// The states of a backend.
const (
	// Answers: requests are sent, and so far they are answered.
	Answers State = "answers"
	// CircuitOpen: the backend has failed so often that only probes are sent.
	CircuitOpen State = "circuitOpen"
	// Unused: this term has sent no request yet.
	Unused State = "unused"
	// Unknown: only the leader sends requests.
	Unknown State = "unknown"
)

// Quota is one limit of a tenant, rule or backend, and what counts against it.
type Quota struct {
	Resource Resource `json:"resource"`
	// Limit is nil if there is none.
	Limit *int64 `json:"limit,omitempty"`
	// Used is nil in a follower's report.
	Used *int64 `json:"used,omitempty"`
}

// String formats used and limit; a dash stands for what is not known or not limited.
func (q Quota) String() string {
	if q.Limit == nil {
		return quantity(q.Used) + ", no limit"
	}
	return quantity(q.Used) + " of " + quantity(q.Limit)
}

func quantity(n *int64) string {
	if n == nil {
		return "–"
	}
	return strconv.FormatInt(*n, 10)
}

// Resource is what a quota counts.
type Resource string

// The resources. Gigabytes counts GiB; each volume is rounded up, as at Cinder.
const (
	Volumes   Resource = "volumes"
	Gigabytes Resource = "gigabytes"
	Snapshots Resource = "snapshots" // not of backends
	// SnapshotGigabytes are the sizes of the volumes when the snapshots were taken.
	SnapshotGigabytes Resource = "snapshotGigabytes" // not of backends
	Backups           Resource = "backups"           // not of backends
	BackupGigabytes   Resource = "backupGigabytes"   // not of backends
)

// Tenant is a tenant of the policy.
type Tenant struct {
	Name   string  `json:"name"`
	Quotas []Quota `json:"quotas"`
	Rules  []Rule  `json:"rules"`
	// Shares is what the tenant uses on each backend.
	Shares []Share `json:"usedByBackend,omitempty"`
}

// Rule is a class rule of a tenant.
type Rule struct {
	// Path is the rule's place in the policy.
	Path           string   `json:"path"`
	StorageClasses []string `json:"storageClasses"`
	Backends       []string `json:"backends"`
	Quotas         []Quota  `json:"quotas"`
}

// Share is what a tenant uses on a backend.
type Share struct {
	Backend   string `json:"backend"`
	Volumes   int64  `json:"volumes"`
	Gigabytes int64  `json:"gigabytes"`
}

// Claims covers claims without a PersistentVolume, or whose volume is not in use yet.
type Claims struct {
	// InFlight counts claims that are being worked on, by step, in the order of the
	// steps.
	InFlight []Step `json:"inFlight"`
	Waiting
}

// Deletions covers the deletions of released PersistentVolumes.
type Deletions struct {
	// InProgress counts deletions that are being worked on.
	InProgress int `json:"inProgress"`
	Waiting
}

// Attachments covers the volumes of mode csi on nodes. Besides VolumeAttachments, volumes
// wait that nodes have staged although Kubernetes has detached them.
type Attachments struct {
	// Attached counts VolumeAttachments, and InProgress those that began a short time ago.
	Attached   int `json:"attached"`
	InProgress int `json:"inProgress"`
	Waiting
}

// StillStaged is the reason of a volume that a node has not let go of.
const StillStaged = "StillStaged"

// Audit is what the last audit of the term found.
type Audit struct {
	Time time.Time `json:"time"`
	// Total counts all findings, and NotShown is how many are left out.
	Total    int       `json:"findingsTotal"`
	Findings []Finding `json:"findings"`
	NotShown int       `json:"findingsNotShown"`
}

// Finding is a difference between what Kubernetes records and what Cinder has.
type Finding struct {
	Kind string `json:"kind"`
	// Subject names the object that the finding is about.
	Subject string `json:"subject"`
	Backend string `json:"backend,omitempty"`
	Message string `json:"message"`
}

// Step is one step of a claim's path.
type Step struct {
	Step  StepName `json:"step"`
	Count int      `json:"count"`
	// OldestSeconds is how long ago the oldest of them began, if that is known.
	OldestSeconds float64 `json:"oldestSeconds,omitzero"`
}

// StepName names a step.
type StepName string

// The steps.
const (
	// Choosing: a backend is being listed or chosen.
	Choosing StepName = "choosing"
	// Connecting: the volume is being created and connected.
	Connecting StepName = "connecting"
	// Saving: the PersistentVolume is being saved.
	Saving StepName = "saving"
	// Queued: the next step waits for a worker.
	Queued StepName = "queued"
	// Completing: the volume is being brought into use.
	Completing StepName = "completing"
	// Undoing: what was made for a claim that is gone or moved is being removed.
	Undoing StepName = "undoing"
)

// Waiting lists what cannot continue now.
type Waiting struct {
	// Total counts all objects that wait, Pending lists the oldest, and NotShown is how
	// many are left out.
	Total    int       `json:"pendingTotal"`
	Pending  []Pending `json:"pending"`
	NotShown int       `json:"pendingNotShown"`
}

// Pending is an object that cannot continue now.
type Pending struct {
	// Namespace and Name are those of the claim, or of the VolumeSnapshot.
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	// PersistentVolume is set for a deletion and for an attachment.
	PersistentVolume string `json:"persistentVolume,omitempty"`
	// Kind is VolumeGroupSnapshot if Name is that of one.
	Kind string `json:"kind,omitempty"`
	// Content is a VolumeSnapshotContent, or a VolumeGroupSnapshotContent.
	Content string `json:"volumeSnapshotContent,omitempty"`
	// Node is set for an attachment.
	Node         string `json:"node,omitempty"`
	StorageClass string `json:"storageClass,omitempty"`
	Backend      string `json:"backend,omitempty"`
	// State is waiting (for a worker), denied, failing (and retried), blocked, or left (to
	// another program).
	State string `json:"state"`
	// Reason is the reason of the event. Message is its text, or the last failure.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// Since is when it began to wait for this reason; Created is when the claim or
	// PersistentVolume was created.
	Since   time.Time `json:"since,omitzero"`
	Created time.Time `json:"created,omitzero"`
}

// Move covers the volumes on a backend that are partial copies, or former volumes, which
// somebody deletes when the copies are trusted.
type Move struct {
	Copy string `json:"copy"`
	Share
	// Oldest is when the first of these moves began.
	Oldest time.Time `json:"oldest"`
}

// Kept covers a tenant's volumes on a backend that count although their
// PersistentVolumes are gone.
type Kept struct {
	Tenant string `json:"tenant"`
	Share
}
