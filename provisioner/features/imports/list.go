package imports

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
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
func (l Listed) Owner() string { return owner(l.PersistentVolume, l.Claim, l.Cluster) }

// List judges volumes of the importer's backend.
func (i *Importer) List(volumes []cinder.Volume, known objects.Objects) []Listed {
	listed := make([]Listed, 0, len(volumes))
	for _, v := range volumes {
		stamp := stamps.Of(v)
		l := Listed{
			Backend: i.Backend.Name, ID: v.ID, Name: v.Name, SizeGiB: v.SizeGiB, Status: string(v.Status), Type: v.Type, Zone: v.Zone,
			Cluster: stamp.Cluster,
		}
		if naming := objects.Naming(known.PersistentVolumes, v.ID); len(naming) > 0 {
			l.PersistentVolume = naming[0].Name
		}
		if stamp.Cluster != "" {
			l.Claim = stamp.Namespace + "/" + stamp.Claim
		}
		l.Why = i.against(v, l.PersistentVolume, known)
		l.Importable = l.Why == ""
		listed = append(listed, l)
	}
	return listed
}

// against returns what prevents an import; empty if nothing does.
func (i *Importer) against(v cinder.Volume, naming string, known objects.Objects) string {
	stamp := stamps.Of(v)
	waiting := objects.ClaimsFor(known.Claims, objects.ImportedPVName(v.ID))
	switch {
	case naming != "":
		return fmt.Sprintf("PersistentVolume %s names it", naming)
	case len(waiting) > 0:
		return fmt.Sprintf("claim %s/%s waits for it; import it for that claim", waiting[0].Namespace, waiting[0].Name)
	}
	if err := i.Volumes.Importable(v, stamps.Volume{Cluster: i.Cluster, ClusterUID: i.ClusterUID}, i.Connector, false); err != nil {
		return err.Error()
	}
	_, exists := objects.Cached[*corev1.PersistentVolume](known.PersistentVolumes, stamp.PV)
	switch {
	case stamp.Cluster == "" || stamps.IsCopy(v) && exists:
	case exists:
		return fmt.Sprintf("it is stamped for PersistentVolume %s, which exists", stamp.PV)
	case objects.ClaimByUID(known.Claims, types.UID(stamp.ClaimUID)) != nil:
		return fmt.Sprintf("it is stamped for claim %s/%s, which exists", stamp.Namespace, stamp.Claim)
	}
	return ""
}
