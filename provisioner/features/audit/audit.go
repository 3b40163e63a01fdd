// Package audit compares what Kubernetes records about volumes with what Cinder
// has, in both directions. The comparison is pure and only reports what could be
// removed. Remove removes it, with the proof that nothing needs it.
package audit

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// Kind says what a finding is about. Its values are stable.
type Kind string

// The kinds of findings.
const (
	// BackendUnreadable: a backend cannot be listed, so the audit does not judge its
	// volumes.
	BackendUnreadable Kind = "BackendUnreadable"
	// BackendMissing: a PersistentVolume's backend is not in the policy.
	BackendMissing Kind = "BackendMissing"
	// DamagedRecord: a PersistentVolume does not say where its volume is.
	DamagedRecord Kind = "DamagedRecord"
	// MissingVolume: a PersistentVolume names a volume that does not exist.
	MissingVolume Kind = "MissingVolume"
	// VolumeElsewhere: a PersistentVolume names a volume that does not exist where its
	// backend leads now, but may exist elsewhere.
	VolumeElsewhere Kind = "VolumeElsewhere"
	// ForeignVolume: a PersistentVolume names a volume with another stamp.
	ForeignVolume Kind = "ForeignVolume"
	// StuckVolume: a recorded volume is in a state that it will not leave by itself.
	StuckVolume Kind = "StuckVolume"
	// SecondVolume: a duplicate; the PersistentVolume of its claim names another
	// volume.
	SecondVolume Kind = "SecondVolume"
	// SharedClusterID: a volume was made by another cluster with the same clusterID.
	SharedClusterID Kind = "SharedClusterID"
	// UnfinishedVolume: a volume of a claim that has been pending for longer than the
	// grace.
	UnfinishedVolume Kind = "UnfinishedVolume"
	// OrphanVolume: a volume whose claim is gone and that no PersistentVolume
	// names.
	OrphanVolume Kind = "OrphanVolume"
	// LeakedAttachment: a volume of the CSI driver is attached to a node, or records
	// that it is, but no VolumeAttachment asks for that, so somebody may still write to
	// it.
	LeakedAttachment Kind = "LeakedAttachment"
	// MissingAttachment: a VolumeAttachment is attached, but the volume is not.
	MissingAttachment Kind = "MissingAttachment"
	// OrphanSnapshot: a snapshot or a backup that was handed out, and that no
	// VolumeSnapshotContent names any more. Only the leader finds it.
	OrphanSnapshot Kind = "OrphanSnapshot"
	// OrphanSecret: a Secret of a PersistentVolume that is gone, or a shared Secret that
	// the leader was to remove by now.
	OrphanSecret Kind = "OrphanSecret"
)

// Finding is one thing that is wrong.
type Finding struct {
	Kind    Kind   `json:"kind"`
	Backend string `json:"backend,omitempty"`
	// Volume is Cinder's ID.
	Volume           string `json:"volume,omitempty"`
	PersistentVolume string `json:"persistentVolume,omitempty"`
	// Claim is namespace/name.
	Claim  string `json:"claim,omitempty"`
	Tenant string `json:"tenant,omitempty"`
	Secret string `json:"secret,omitempty"`
	// Snapshot is Cinder's ID, as the command `snapshot` takes it.
	Snapshot string `json:"snapshot,omitempty"`
	// Removable means that removing it loses nothing: it is proven that no
	// PersistentVolume ever named the volume, or that nothing needs the Secret.
	Removable bool `json:"removable,omitempty"`
	// Message is a full sentence.
	Message string `json:"message"`
	// Stamp is the volume's stamp.
	Stamp stamps.Volume `json:"-"`
}

// IsUnrecorded reports whether the finding is about a volume that no PersistentVolume names.
func (f Finding) IsUnrecorded() bool {
	return f.Kind == OrphanVolume || f.Kind == SecondVolume || f.Kind == UnfinishedVolume
}

// State is the input of Compare.
type State struct {
	Now time.Time
	// Cluster is the ID that is stamped on volumes and Secrets. ClusterUID is the UID
	// of namespace kube-system, which is stamped next to it.
	Cluster    string
	ClusterUID string
	// Grace is the age from which something can become a finding, because anything
	// younger may be in progress.
	Grace    time.Duration
	Backends map[string]Listing
	Records  objects.Records
}

// Listing is a backend's volumes of the cluster.
type Listing struct {
	Volumes []cinder.Volume
	// Place is where the backend leads.
	Place cinder.Place
	// Unstamped contains recorded volumes, by ID, that exist but are not in
	// Volumes; a volume in neither does not exist.
	Unstamped map[string]bool
	// Again contains, by ID, the volumes with doubtful attachments as they were after
	// the VolumeAttachments were read.
	Again map[string]cinder.Volume
	Err   error
}

// Compare returns what is wrong, sorted by kind, backend and volume.
func Compare(s State) []Finding {
	c := &comparison{State: s, recorded: map[string]bool{}, byClaim: map[string]*objects.Volume{}, volumes: map[place]*cinder.Volume{}}
	for _, record := range s.Records.Volumes {
		c.recorded[record.VolumeID] = true
		c.byClaim[record.ClaimUID] = record
	}
	for name, listing := range s.Backends {
		if listing.Err != nil {
			c.add(Finding{Kind: BackendUnreadable, Backend: name, Message: listing.Err.Error() + "; its volumes are not compared"})
			continue
		}
		for i := range listing.Volumes {
			v := &listing.Volumes[i]
			c.volumes[place{name, v.ID}] = v
			c.volume(name, *v)
		}
	}
	for _, record := range s.Records.Volumes {
		c.record(*record)
	}
	for _, secret := range s.Records.Secrets {
		c.secret(secret)
	}
	slices.SortFunc(c.findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Backend, b.Backend), cmp.Compare(a.PersistentVolume, b.PersistentVolume),
			cmp.Compare(a.Volume, b.Volume), cmp.Compare(a.Secret, b.Secret))
	})
	return c.findings
}

type comparison struct {
	State
	// recorded holds IDs rather than places, because two backends may show the same
	// volumes.
	recorded map[string]bool
	volumes  map[place]*cinder.Volume
	byClaim  map[string]*objects.Volume // by claim UID
	findings []Finding
}

// place is where a volume is.
type place struct{ backend, volume string }

func (c *comparison) add(f Finding) { c.findings = append(c.findings, f) }

func (c *comparison) young(at time.Time) bool { return c.Now.Sub(at) < c.Grace }

// volume judges a stamped volume that no PersistentVolume names.
func (c *comparison) volume(backend string, v cinder.Volume) {
	if c.recorded[v.ID] || c.young(v.CreatedAt) {
		return
	}
	stamp := stamps.Of(v)
	other, recorded := c.byClaim[stamp.ClaimUID]
	f := Finding{
		Backend: backend, Volume: v.ID, Claim: stamp.Namespace + "/" + stamp.Claim, Tenant: stamp.Tenant, Stamp: stamp,
		// Only a volume that a PersistentVolume names is ever attached.
		Removable: !stamps.EverAttached(v) && !stamps.IsCopy(v) && stamp.PV == objects.PVNameFor(stamp.ClaimUID) && (recorded && other.Damage == nil || !c.Records.Names[stamp.PV]),
	}
	claim, pending := c.Records.Claims[stamp.ClaimUID]
	switch {
	case stamp.ClusterUID != "" && stamp.ClusterUID != c.ClusterUID:
		f.Kind, f.Removable = SharedClusterID, false
		f.Message = fmt.Sprintf("it is stamped under kube-system UID %q, but this cluster's is %q: two clusters share clusterID %q; give each its own in the policy", stamp.ClusterUID, c.ClusterUID, stamp.Cluster)
	case recorded:
		f.Kind, f.PersistentVolume = SecondVolume, other.PVName
		f.Message = fmt.Sprintf("PersistentVolume %s of the same claim names volume %s on backend %s", other.PVName, other.VolumeID, other.Backend)
	case pending && !claim.Elsewhere:
		f.Kind, f.Removable = UnfinishedVolume, false
		f.Message = fmt.Sprintf("its claim is pending, and the volume is %s and %s old", v.Status, c.age(v.CreatedAt))
	default:
		f.Kind = OrphanVolume
		f.Message = fmt.Sprintf("no PersistentVolume names it and its claim is gone; it is %s and %s old; %s", v.Status, c.age(v.CreatedAt), c.history(f, v))
	}
	c.add(f)
}

// history describes what is known about an orphan's data.
func (c *comparison) history(f Finding, v cinder.Volume) string {
	switch {
	case f.Removable:
		return "it was never attached, so it contains no data written from this cluster"
	case stamps.IsCopy(v):
		return "it is younger than its stamp and looks like a restored backup"
	case stamps.EverAttached(v):
		return "it has been attached and may contain data; it may have been kept on purpose"
	}
	return "its stamp contradicts itself, so it may not be this program's volume"
}

func (c *comparison) age(at time.Time) string { return c.Now.Sub(at).Round(time.Minute).String() }

// record judges the volume of a PersistentVolume.
func (c *comparison) record(r objects.Volume) {
	f := Finding{Backend: r.Backend, Volume: r.VolumeID, PersistentVolume: r.PVName, Tenant: r.Tenant}
	if r.Damage != nil {
		f.Kind, f.Message = DamagedRecord, r.Damage.Error()
		c.add(f)
		return
	}
	listing, ok := c.Backends[r.Backend]
	switch {
	case !ok:
		f.Kind, f.Message = BackendMissing, "its backend is not in the policy, so its volume cannot be deleted; add the backend back, with suspended: true if it is to take no more volumes"
		c.add(f)
		return
	case listing.Err != nil:
		return
	}
	v, listed := c.volumes[place{r.Backend, r.VolumeID}]
	switch {
	case !listed && listing.Unstamped[r.VolumeID]:
		f.Kind, f.Message = ForeignVolume, "its volume exists but does not carry this cluster's stamp; it will not be deleted"
	case !listed && elsewhere(r, listing) != "":
		f.Kind, f.Message = VolumeElsewhere, elsewhere(r, listing)+"; "+r.Remedy(listing.Place)
	case !listed && r.Deleted:
		return // the PersistentVolume goes next
	case !listed:
		f.Kind, f.Message = MissingVolume, "its volume does not exist; its data is lost unless the storage array has a copy"
		if i := slices.IndexFunc(listing.Volumes, r.Stamp().Owns); i >= 0 {
			f.Message = fmt.Sprintf("its volume does not exist, but volume %s has its stamp; if somebody edited the PersistentVolume, correct its annotation %s", listing.Volumes[i].ID, objects.AnnotationVolume)
		}
	case stamps.IsBeingSwapped(*v):
		f.Kind, f.Message = StuckVolume, fmt.Sprintf("its volume is being swapped with that of PersistentVolume %s; if nobody does that now, run standalone-cinder volume swap or move again", v.Metadata[stamps.KeySwap])
	case !r.Stamp().Owns(*v):
		f.Kind, f.Message = ForeignVolume, "its volume is stamped for something else; it will not be deleted"
	default:
		if r.CSI {
			c.attachments(r, *v)
		}
		stuck := c.stuck(r, *v)
		if stuck == "" {
			return
		}
		f.Kind, f.Message = StuckVolume, stuck
	}
	c.add(f)
}

// elsewhere explains why a volume that its backend does not show may still exist. It
// returns an empty string if the volume is gone. Deletion applies the same rule.
func elsewhere(r objects.Volume, listing Listing) string {
	switch {
	case r.Place.IsKnown() && r.Place != listing.Place:
		return fmt.Sprintf("its volume was recorded at %s, but the backend points to %s, where it does not exist", r.Place, listing.Place)
	case !r.Place.IsKnown() && len(listing.Volumes) == 0:
		return fmt.Sprintf("its volume does not exist at %s, but nothing shows that it was ever there: the PersistentVolume does not record where it was made, and there is no other volume of this cluster", listing.Place)
	}
	return ""
}

// stuck says what is wrong with a recorded volume's state; empty if nothing is.
func (c *comparison) stuck(r objects.Volume, v cinder.Volume) string {
	switch v.Status {
	case cinder.StatusError, cinder.StatusErrorDeleting, cinder.StatusErrorExtending:
		return fmt.Sprintf("its volume is %s", v.Status)
	case cinder.StatusInUse:
		return ""
	}
	if r.CSI && v.Status != cinder.StatusDeleting {
		// Such a volume is available as long as no node uses it.
		return ""
	}
	if c.young(r.CreatedAt) || r.Released && v.Status != cinder.StatusDeleting {
		return ""
	}
	return fmt.Sprintf("its volume is still %s, %s after the PersistentVolume was created", v.Status, c.age(r.CreatedAt))
}

func (c *comparison) secret(s objects.Secret) {
	if c.Records.Names[s.PV] || c.young(s.CreatedAt) || s.Cluster != c.Cluster {
		return
	}
	if s.SharedBy != "" {
		_, inUse := c.Backends[s.SharedBy]
		if !inUse && !c.Records.NeededSecrets[s.Name] && !s.UnneededSince.IsZero() && c.Now.Sub(s.UnneededSince) > objects.UnneededKept+c.Grace {
			c.add(Finding{Kind: OrphanSecret, Backend: s.SharedBy, Secret: s.Name, Message: fmt.Sprintf(
				"its backend is not in the policy, and no PersistentVolume has referred to it for %s; the leader's next audit removes it", c.age(s.UnneededSince))})
		}
		return
	}
	for uid := range c.Records.Claims {
		if objects.PVNameFor(uid) == s.PV {
			return // its claim is not served yet
		}
	}
	c.add(Finding{Kind: OrphanSecret, Secret: s.Name, PersistentVolume: s.PV, Removable: c.volumeIsGone(s.PV), Message: "its PersistentVolume is gone, and so is the claim"})
}

// volumeIsGone reports whether no backend has a volume for a PersistentVolume of that
// name. An operator may have kept such a volume together with its credentials.
func (c *comparison) volumeIsGone(pv string) bool {
	for _, listing := range c.Backends {
		if listing.Err != nil {
			return false
		}
		for _, v := range listing.Volumes {
			if stamps.Of(v).PV == pv {
				return false
			}
		}
	}
	return true
}
