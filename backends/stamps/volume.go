package stamps

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// Volume identifies the cluster, claim and PersistentVolume that a volume belongs to. The
// create request contains it, so every volume of the program has it from the start.
//
// Cluster, ClaimUID and PV identify the volume throughout its life, unless it is swapped
// (IsBeingSwapped). The other fields follow its PersistentVolume when that is bound to
// another claim.
type Volume struct {
	Cluster string
	// ClusterUID is the UID of the cluster's namespace kube-system. Cluster is
	// configured, and may accidentally be the same for two clusters.
	ClusterUID string
	Namespace  string // the holder's
	Claim      string // the holder's name
	// ClaimUID is the UID of the claim that the volume was created for.
	ClaimUID string
	PV       string
	// ReboundTo is the UID of the holder, if that is another claim.
	ReboundTo    string
	Tenant       string
	StorageClass string
}

// Metadata adds the stamp to the operator's metadata; the stamp wins. It leaves
// Cinder's own keys to Cinder: they show whether a volume was ever attached.
func (s Volume) Metadata(own map[string]string) map[string]string {
	metadata := make(map[string]string, len(own)+7)
	maps.Copy(metadata, own)
	delete(metadata, cinder.MetadataReadOnly)
	delete(metadata, cinder.MetadataAttachedMode)
	metadata[KeyCluster] = s.Cluster
	if s.ClusterUID != "" {
		metadata[KeyClusterUID] = s.ClusterUID
	}
	metadata[KeyNamespace] = s.Namespace
	metadata[KeyClaim] = s.Claim
	metadata[KeyClaimUID] = s.ClaimUID
	if s.ReboundTo != "" {
		metadata[KeyReboundTo] = s.ReboundTo
	}
	metadata[KeyPV] = s.PV
	metadata[KeyTenant] = s.Tenant
	metadata[KeyStorageClass] = s.StorageClass
	return metadata
}

// Of reads a volume's stamp; missing keys give empty fields.
func Of(v cinder.Volume) Volume {
	return Volume{
		Cluster:      v.Metadata[KeyCluster],
		ClusterUID:   v.Metadata[KeyClusterUID],
		Namespace:    v.Metadata[KeyNamespace],
		Claim:        v.Metadata[KeyClaim],
		ClaimUID:     v.Metadata[KeyClaimUID],
		PV:           v.Metadata[KeyPV],
		ReboundTo:    v.Metadata[KeyReboundTo],
		Tenant:       v.Metadata[KeyTenant],
		StorageClass: v.Metadata[KeyStorageClass],
	}
}

// Holder returns the UID of the volume's current claim: the one it was created for, until
// its PersistentVolume is bound to another.
func (s Volume) Holder() string { return cmp.Or(s.ReboundTo, s.ClaimUID) }

// Owns reports whether the volume provably belongs to the same cluster and
// PersistentVolume, and was created for the same claim. It ignores the volume's current
// claim, and tenant and StorageClass, which may be renamed in the policy during a
// volume's life. While a volume is being swapped, it belongs to nobody.
func (s Volume) Owns(v cinder.Volume) bool {
	other := Of(v)
	return !IsBeingSwapped(v) && s.Cluster != "" && s.Cluster == other.Cluster &&
		s.ClaimUID != "" && s.ClaimUID == other.ClaimUID &&
		s.PV != "" && s.PV == other.PV
}

// IsBeingSwapped reports whether two PersistentVolumes are exchanging their volumes, of
// which this is one. Until that is done, its stamp may name either of them.
func IsBeingSwapped(v cinder.Volume) bool { return v.Metadata[KeySwap] != "" }

// Holds reports whether Owns does and the volume still belongs to its original claim.
func (s Volume) Holds(v cinder.Volume) bool { return s.Owns(v) && Of(v).Holder() == s.ClaimUID }

// EverAttached reports whether the volume is or was in use. It is brought into use only
// after a PersistentVolume that names it was seen, so a volume that was never in use was
// never recorded. For os-attach, see attach_volume in Cinder's cinder/volume/manager.py;
// Cinder leaves no mark when an attachment is completed, so the program first writes its
// own.
func EverAttached(v cinder.Volume) bool {
	_, attached := v.Metadata[cinder.MetadataReadOnly]
	_, marked := v.Metadata[KeyAttached]
	return attached || marked || v.Status == cinder.StatusInUse
}

// AttachedMark returns the metadata written on a volume before it comes into use.
func AttachedMark() map[string]string { return map[string]string{KeyAttached: "true"} }

// IsCSI reports whether the CSI driver attaches the volume to nodes individually. Such a
// volume is available while no node uses it, and is never connected to the nodes' shared
// connector.
func IsCSI(v cinder.Volume) bool { return v.Metadata[KeyMode] == ModeCSI }

// WorkflowOf returns how the volume was or will be connected.
func WorkflowOf(v cinder.Volume) cinder.Workflow {
	if v.Metadata[KeyWorkflow] == string(cinder.WorkflowAttachment) || v.Metadata[KeyMode] == ModeCSI {
		return cinder.WorkflowAttachment
	}
	return cinder.WorkflowReserve
}

// copyAfter is how much later than its request a volume may be created. Both
// times are by Cinder's clock, and the request has a timeout.
const copyAfter = 15 * time.Minute

// IsCopy reports whether a volume carries the stamp of the volume that it was copied
// from: Cinder restores a backup together with the original's metadata (put_metadata in
// cinder/backup/driver.py). Such a volume contains a user's rescued data, and was created
// well after the request that the stamp records.
func IsCopy(v cinder.Volume) bool {
	return IsWellAfterRequest(v, v.CreatedAt)
}

// IsRestored reports whether a PersistentVolume was created well after its volume and was
// never seen before it was released: a user has re-created it from a backup or an export.
// If it names a claim that no longer exists, Kubernetes releases it at once, which does
// not mean that the user wants the data deleted.
func IsRestored(v cinder.Volume, pvUID string, createdAt time.Time) bool {
	return pvUID != "" && v.Metadata[KeyPVUID] != pvUID && IsWellAfterRequest(v, createdAt)
}

// IsWellAfterRequest reports whether a time is well after the request that created, or
// imported, the volume.
func IsWellAfterRequest(v cinder.Volume, at time.Time) bool {
	requested, err := time.Parse(time.RFC3339, v.Metadata[KeyRequestedAt])
	return err == nil && at.Sub(requested) > copyAfter
}

// Marks of a volume made by the historic provisioner, which wrote no stamp.
const (
	HistoricNamePrefix = "cinder-dynamic-pvc-"
	HistoricHost       = "standalone-cinder.k8s.io"
)

// LooksHistoric reports whether a volume carries the historic provisioner's
// marks and is attached nowhere else. The caller must also have a
// PersistentVolume that names this volume and that provisioner.
func LooksHistoric(v cinder.Volume) bool {
	if !strings.HasPrefix(v.Name, HistoricNamePrefix) || Of(v).Cluster != "" {
		return false
	}
	for _, attachment := range v.Attachments {
		if attachment.ServerID != "" || attachment.Host != "" && attachment.Host != HistoricHost {
			return false
		}
	}
	return true
}

// Describe names the volume's owner, for an error.
func (s Volume) Describe() string {
	if s.Cluster == "" && s.PV == "" {
		return "with nothing"
	}
	return fmt.Sprintf("cluster %q, PersistentVolume %q, claim UID %q", s.Cluster, s.PV, s.ClaimUID)
}

// FilesystemUUIDsOf returns the recorded UUIDs that a volume's filesystem may have
// besides the volume's own ID. They were recorded by the program, when it created the
// volume as a copy or imported it, or by an administrator of the project. Values that are
// not UUIDs are ignored.
func FilesystemUUIDsOf(v cinder.Volume) []string {
	var found []string
	for n := 0; ; n++ {
		recorded, exists := v.Metadata[filesystemsKey(n)]
		if !exists {
			return found
		}
		for text := range strings.SplitSeq(recorded, ",") {
			if id, err := uuid.Parse(strings.TrimSpace(text)); err == nil && id != uuid.Nil && !slices.Contains(found, id.String()) {
				found = append(found, id.String())
			}
		}
	}
}

// filesystemsKey returns the nth of the keys for filesystem UUIDs.
func filesystemsKey(n int) string {
	if n == 0 {
		return KeyFilesystemUUIDs
	}
	return KeyFilesystemUUIDs + "." + strconv.Itoa(n)
}

// uuidsPerKey is how many comma-separated UUIDs fit in a value.
const uuidsPerKey = (LongestValue + 1) / 37

// RecordFilesystems adds UUIDs to a volume's metadata.
func RecordFilesystems(metadata map[string]string, uuids []string) {
	n := 0
	for some := range slices.Chunk(uuids, uuidsPerKey) {
		metadata[filesystemsKey(n)] = strings.Join(some, ",")
		n++
	}
}
