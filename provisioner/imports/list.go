package imports

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/record"
)

// Listed is a volume of a backend's project, and whether it can be imported.
type Listed struct {
	Backend string `json:"backend"`
	ID      string `json:"id"`
	Name    string `json:"name,omitempty"`
	SizeGiB int64  `json:"sizeGiB"`
	Status  string `json:"status"`
	Type    string `json:"type,omitempty"`
	Zone    string `json:"zone,omitempty"`
	// Cluster and Claim (namespace/name) come from the stamp; empty without one.
	// PersistentVolume is the one of this cluster that names the volume.
	Cluster          string `json:"cluster,omitempty"`
	Claim            string `json:"claim,omitempty"`
	PersistentVolume string `json:"persistentVolume,omitempty"`
	Importable       bool   `json:"importable"`
	// Why is a sentence about what prevents an import.
	Why string `json:"why,omitempty"`
}

// Owner says in a few words whose volume it is.
func (l Listed) Owner() string {
	switch {
	case l.PersistentVolume != "" && l.Claim != "":
		return l.Claim + " (" + l.PersistentVolume + ")"
	case l.PersistentVolume != "":
		return l.PersistentVolume
	case l.Cluster != "":
		return fmt.Sprintf("%s of cluster %s", l.Claim, l.Cluster)
	}
	return "nobody"
}

// Known holds the objects of a cluster to which volumes may belong.
type Known struct {
	// naming is keyed by volume ID, waiting by the name of the PersistentVolume.
	naming, waiting map[string]string
	names, claims   map[string]bool
}

// Read reads those objects from a cluster. Claims come first, so that a volume whose
// import finishes in between shows as recorded.
func Read(ctx context.Context, client kubernetes.Interface) (*Known, error) {
	known := &Known{naming: map[string]string{}, waiting: map[string]string{}, names: map[string]bool{}, claims: map[string]bool{}}
	type claim struct{ uid, name, wants string }
	claims, _, err := record.ListClaims(ctx, client, func(c *corev1.PersistentVolumeClaim) claim {
		return claim{string(c.UID), c.Namespace + "/" + c.Name, c.Spec.VolumeName}
	})
	if err != nil {
		return nil, err
	}
	for _, c := range claims {
		known.claims[c.uid] = true
		if c.wants != "" {
			known.waiting[c.wants] = c.name
		}
	}
	type object struct {
		name    string
		volumes []string
	}
	objects, err := record.ListPersistentVolumes(ctx, client, func(pv *corev1.PersistentVolume) object { return object{pv.Name, record.VolumeIDs(pv)} })
	for _, pv := range objects {
		known.names[pv.name] = true
		for _, id := range pv.volumes {
			known.naming[id] = pv.name
		}
	}
	return known, err
}

// List judges volumes of the importer's backend.
func (i *Importer) List(volumes []cinder.Volume, known *Known) []Listed {
	listed := make([]Listed, 0, len(volumes))
	for _, v := range volumes {
		stamp := stamps.Of(v)
		l := Listed{
			Backend: i.Backend.Name, ID: v.ID, Name: v.Name, SizeGiB: v.SizeGiB, Status: string(v.Status), Type: v.Type, Zone: v.Zone,
			Cluster: stamp.Cluster, PersistentVolume: known.naming[v.ID],
		}
		if stamp.Cluster != "" {
			l.Claim = stamp.Namespace + "/" + stamp.Claim
		}
		l.Why = i.against(v, known)
		l.Importable = l.Why == ""
		listed = append(listed, l)
	}
	return listed
}

// against returns what prevents an import; empty if nothing does.
func (i *Importer) against(v cinder.Volume, known *Known) string {
	stamp := stamps.Of(v)
	waiting, isAwaited := known.waiting[record.ImportedPVName(v.ID)]
	switch {
	case known.naming[v.ID] != "":
		return fmt.Sprintf("PersistentVolume %s names it", known.naming[v.ID])
	case isAwaited:
		return fmt.Sprintf("claim %s waits for it; import it for that claim", waiting)
	}
	if err := i.Volumes.Importable(v, stamps.Volume{Cluster: i.Cluster, ClusterUID: i.ClusterUID}, i.Connector, false); err != nil {
		return err.Error()
	}
	switch {
	case stamp.Cluster == "" || stamps.IsCopy(v) && known.names[stamp.PV]:
	case known.names[stamp.PV]:
		return fmt.Sprintf("it is stamped for PersistentVolume %s, which exists", stamp.PV)
	case known.claims[stamp.ClaimUID]:
		return fmt.Sprintf("it is stamped for claim %s/%s, which exists", stamp.Namespace, stamp.Claim)
	}
	return ""
}
