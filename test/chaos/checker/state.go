// Package checker judges what a campaign left and did: pure functions over
// observed state, which neither contact a server nor wait.
//
// Where the right outcome cannot be known, nothing is judged: a flip to Retain, or a node
// that begins to use a volume, if the first request to remove the volume reached Cinder
// before, or up to 2 s after, the API server acknowledged it (20 s at the noauth Cinder,
// whose network is slow at times); a volume that was never in use when its
// PersistentVolume was deleted by hand, because the program marks it at Cinder, but if it
// dies before that, the next leader cannot know; a PersistentVolume that a late request
// saves with the policy Retain after its claim was deleted and its volume undone, because
// no pod can have used it. That object must not stay without its volume, unless another
// replica has led since; then the audit reports MissingVolume.
package checker

import (
	"slices"
	"time"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
)

// The stamp on a volume, as operators read it.
const (
	StampCluster      = policy.StampPrefix + "cluster"
	StampClaimUID     = policy.StampPrefix + "claim-uid"
	StampReboundTo    = policy.StampPrefix + "rebound-to"
	StampTenant       = policy.StampPrefix + "tenant"
	StampStorageClass = policy.StampPrefix + "storage-class"
	StampNamespace    = "csi.storage.k8s.io/pvc/namespace"
	StampClaim        = "csi.storage.k8s.io/pvc/name"
	StampPV           = "csi.storage.k8s.io/pv/name"
)

// State is everything at one moment.
type State struct {
	// Cluster is the ID on our stamps.
	Cluster string
	// Host is the connector's host, to which volumes are connected.
	Host    string
	Claims  []Claim
	PVs     []PV
	Volumes []cindersim.Volume
	Secrets []Secret
	// Snapshots and Backups are Cinder's; tenants asked for VolumeSnapshots and Groups.
	Snapshots       []cindersim.Snapshot
	Backups         []cindersim.Backup
	VolumeSnapshots []VolumeSnapshot
	Contents        []SnapshotContent
	Groups          []Group
	GroupContents   []GroupContent
	// Attachments are the VolumeAttachments of pods.
	Attachments []Attachment
	// Machines are the nodes that really stage volumes, Reports what they say, Writes where
	// their kernels write, and Pods what is meant to run on them.
	Machines []string
	Reports  []Report
	Writes   []Write
	Pods     []Pod
	// Foreign are the volumes that are not ours, as they were put there, by ID. A
	// PersistentVolume may name one that was ours and was given away; then it can
	// be neither served nor deleted.
	Foreign map[string]cindersim.Volume
	// Fates are what the campaign did to PersistentVolumes by hand, by name.
	Fates map[string]Fate
	// DeletionRequestedAt is when a claim's deletion was first requested, by its UID; nil means
	// never. LedSince is when the leader took the lease.
	DeletionRequestedAt func(claimUID string) time.Time
	LedSince            time.Time
	// TooLate reports that a fate came too late, see CameTooLate; nil means never.
	TooLate func(Fate) bool
	// Counted is what the leader counts for tenants, as far as that is judged; nil if it
	// does not say.
	Counted map[string]*policy.Usage
}

// Claim is a PersistentVolumeClaim.
type Claim struct {
	UID, Namespace, Name string
	// Tenant is the one that the policy gives it to, and Metadata what the tenant's
	// volumes carry; keys that only other tenants' volumes carry are empty.
	Tenant   string
	Metadata map[string]string
	Bound    bool
	// Asked means that its deletion was requested.
	Asked bool
	// Denial is why the policy now gives it nothing; empty when it should be
	// bound. Explained means that an event says the same.
	Denial    string
	Explained bool
	// Copies is the UID of the claim whose content it wants, if that exists;
	// IsCopy that it wants some.
	Copies string
	IsCopy bool
	// ToldQuota means that an event says that a quota has no room.
	ToldQuota bool
	// WantsGiB is the size that it asks for, if that can be judged: it is bound to a
	// volume in use. GrowthDenial is why the policy does not let the volume become
	// that large now, and GrowthExplained means that an event says the same.
	WantsGiB        int
	GrowthDenial    string
	GrowthExplained bool
}

// PV is a PersistentVolume that the program made.
type PV struct {
	// UID is the object's: a PersistentVolume that was deleted by hand may be
	// created again under its name.
	UID string
	// ClaimUID is the claim that its volume was made for.
	Name, ClaimUID, VolumeID string
	// Holder is the claim that it names by its UID, if any. ReboundTo and Tenant are whose
	// the volume is according to the record; ReboundTo is empty if the claim that it was
	// made for has it.
	Holder, ReboundTo, Tenant string
	Retain                    bool
	Deleting                  bool      // the object was deleted, but finalizers keep it
	Created                   time.Time // to the second, rounded down
	// Place is where the volume is recorded to live: the ID of a project, or the
	// campaign's name for another address.
	Place string
	// GiB is its capacity, rounded down.
	GiB int
	// Target is the iSCSI target's name.
	Target string
	// Secret is the Secret it refers to, Attachment the attachment of its volume
	// that it names, if any.
	Secret     string
	Attachment string
	// CSI means that it names the CSI driver.
	CSI bool
}

// Secret is a Secret that the program made.
type Secret struct{ Name, PV string }

// Kind is what is wrong.
type Kind string

// What can be wrong.
const (
	// Leaked is a volume of ours that nothing names.
	Leaked Kind = "leaked"
	// Duplicate is a second volume of a claim.
	Duplicate Kind = "duplicate"
	// Lost is a PersistentVolume without what it names.
	Lost Kind = "lost"
	// WronglyDeleted is a volume in use that was deleted or disconnected.
	WronglyDeleted Kind = "wrongly deleted"
	// FromNode is a volume that was disconnected while a node was using it.
	FromNode Kind = "taken from a node"
	// Touched is a foreign volume that was changed.
	Touched Kind = "foreign touched"
	// Unusable is a claim bound to a volume that is in error.
	Unusable Kind = "unusable"
	// WrongType is a volume that does not have the type that a command reported.
	WrongType Kind = "wrong type"
	// Stuck is a claim or a PersistentVolume that never settles.
	Stuck Kind = "stuck"
	// LeakedSecret is a Secret without a PersistentVolume.
	LeakedSecret Kind = "leaked Secret"
	// LeakedSnapshot is a snapshot of ours that no VolumeSnapshotContent names.
	LeakedSnapshot Kind = "leaked snapshot"
	// LeakedGroup is a snapshot that was taken for a VolumeGroupSnapshot, and nothing names.
	LeakedGroup Kind = "leaked group snapshot"
	// LeakedBackup is a backup of ours that no VolumeSnapshotContent names.
	LeakedBackup Kind = "leaked backup"
	// LostSnapshot is a VolumeSnapshot or its content without the snapshot, or the backup.
	LostSnapshot Kind = "lost snapshot"
	// TornGroup is a VolumeGroupSnapshot that is ready without one of its snapshots.
	TornGroup Kind = "torn group"
	// LeakedAttachment is an attachment, or a record of one, that no VolumeAttachment
	// wants: somebody may still write.
	LeakedAttachment Kind = "leaked attachment"
	// LostAttachment is a node that was told that it has a volume, and does not
	// have it.
	LostAttachment Kind = "lost attachment"
	// DoubledAttachment is a volume that two nodes have, or one has twice.
	DoubledAttachment Kind = "doubled attachment"
	// TwoWriters is a volume to which two nodes may write.
	TwoWriters Kind = "two writers"
	// WrongContent is a node that writes to, or shows a pod, another volume than it should.
	WrongContent Kind = "wrong content"
	// InTheClear is a volume of a rule that encrypts with content that is not encrypted.
	InTheClear Kind = "in the clear"
	// KeyShown is a passphrase of a volume in a log.
	KeyShown Kind = "key shown"
	// HeldForEver is a volume that no pod gets, a node that gets no volume, an attachment
	// that stays, or a report of what is gone, because of a node that was lost.
	HeldForEver Kind = "held for ever"
	// Miscounted is a volume that does not count for the claim that has it, and its tenant,
	// or that the leader counts otherwise.
	Miscounted Kind = "miscounted"
	// OverQuota is a limit of the policy that was exceeded.
	OverQuota Kind = "over quota"
	// Stale is a change at Cinder by a replica that no longer led.
	Stale Kind = "stale leader"
	// Crashed is a replica that exited by itself, or would not exit.
	Crashed Kind = "crashed"
)

// Kinds returns all kinds, in the order of a report.
func Kinds() []Kind {
	return []Kind{Leaked, Duplicate, Lost, WronglyDeleted, FromNode, Touched, Unusable, WrongType, Stuck, LeakedSecret, LeakedSnapshot, LeakedGroup, LeakedBackup, LostSnapshot, TornGroup,
		LeakedAttachment, LostAttachment, DoubledAttachment, TwoWriters, WrongContent, InTheClear, KeyShown, HeldForEver, Miscounted, OverQuota, Stale, Crashed}
}

// Finding is one thing that is wrong.
type Finding struct {
	Kind Kind
	// Object is the claim, PersistentVolume, Secret, limit or replica.
	Object string
	Text   string
	// VolumeID and ClaimUID, if known, lead to journal and logs.
	VolumeID, ClaimUID string
}

// key returns what makes two findings the same.
func (f Finding) key() Finding { return Finding{Kind: f.Kind, Object: f.Object, VolumeID: f.VolumeID} }

// pvNameFor returns the name that the provisioning library gives a claim's
// PersistentVolume.
func pvNameFor(claimUID string) string { return "pvc-" + claimUID }

// Cinder's states of a volume.
const (
	available = "available"
	attaching = "attaching"
	inUse     = "in-use"
	// Only volumes in use are retyped and extended here.
	retyping       = "retyping"
	extending      = "extending"
	errorExtending = "error_extending"
)

// isInUse reports whether nodes may use a volume: it stays connected while its type
// or size changes.
func isInUse(v cindersim.Volume) bool {
	return slices.Contains([]string{inUse, retyping, extending, errorExtending}, v.Status)
}

func describe(v cindersim.Volume) string {
	return "volume " + v.ID + " (" + v.Name + ", " + v.Status + ")"
}

// isOurs reports whether a volume carries the cluster's stamp and is not one of
// the foreign ones, some of which carry half of it.
func (s State) isOurs(v cindersim.Volume) bool {
	_, foreign := s.Foreign[v.ID]
	return !foreign && v.Metadata[StampCluster] == s.Cluster
}
