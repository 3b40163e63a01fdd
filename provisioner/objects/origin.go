package objects

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/mappers"
)

// Origin is what a PersistentVolume records about its volume.
type Origin struct {
	PVName   string
	VolumeID string
	Backend  string
	// Place is where the volume lives; zero if not recorded.
	Place    cinder.Place
	Tenant   string
	Protocol string
	Cluster  string
	// ClaimUID is the UID of the claim that the volume was created for.
	ClaimUID  string
	Connector cinder.Connector
	// Secret is empty if there is none.
	Secret          string
	SecretNamespace string
	// SecretUID is empty if not recorded.
	SecretUID types.UID
	// Historic means that the historic provisioner wrote the object.
	Historic bool
	// CSI means that the CSI driver attaches the volume to nodes. It has no Connector.
	CSI bool
}

// Target returns what the backend needs to remove the volume, including its part of the
// proof.
func (o Origin) Target() backends.Target {
	return backends.Target{
		VolumeID:  o.VolumeID,
		Stamp:     stamps.Volume{Cluster: o.Cluster, ClaimUID: o.ClaimUID, PV: o.PVName},
		Historic:  o.Historic,
		Connector: o.Connector,
		Place:     o.Place,
	}
}

// SharesSecret reports whether the backend's volumes may share the Secret. Before such a
// Secret is deleted, it must itself be marked as shared.
func (o Origin) SharesSecret() bool {
	return !o.Historic && !o.CSI && o.Secret != SecretName(o.PVName) && mappers.IsSharedSecretName(o.Secret, o.Backend)
}

// ownSecret returns the name of a Secret that no other volume shares.
func (o Origin) ownSecret() string {
	if o.CSI {
		return NodeSecretName(o.PVName)
	}
	return SecretName(o.PVName)
}

// MadeFor returns the UID of the claim that a volume was created for. With the
// PersistentVolume's name it identifies the volume throughout its life, regardless of the
// claim that has it. Most names contain the UID, and then the annotation does not matter;
// only an imported volume's PersistentVolume needs it.
func MadeFor(pv *corev1.PersistentVolume) types.UID {
	if uid := ClaimInName(pv.Name); uid != "" && IsOurs(pv) {
		return uid
	}
	return types.UID(pv.Annotations[AnnotationClaimUID])
}

// ClaimInName returns the claim's UID in the name of its PersistentVolume; empty if the
// name contains none.
func ClaimInName(pvName string) types.UID {
	uid, _ := strings.CutPrefix(pvName, PVNamePrefix)
	if len(uid) == len(pvName) {
		return ""
	}
	return types.UID(uid)
}

// HolderOf returns the UID of a volume's claim according to the record: the one it was
// created for, or the one that the leader last gave it to.
func HolderOf(pv *corev1.PersistentVolume) types.UID {
	return cmp.Or(types.UID(pv.Annotations[AnnotationReboundTo]), MadeFor(pv))
}

// IsOurs reports whether this program, rather than the historic one, wrote the object.
func IsOurs(pv *corev1.PersistentVolume) bool { return pv.Annotations[AnnotationVolume] != "" }

// OriginOf reads the annotations back. It names what is missing or damaged instead of
// guessing, because a deletion may follow.
func OriginOf(pv *corev1.PersistentVolume) (Origin, error) {
	annotations := pv.Annotations
	if !IsOurs(pv) {
		return historicOrigin(pv)
	}
	origin := Origin{
		PVName:          pv.Name,
		VolumeID:        annotations[AnnotationVolume],
		Backend:         annotations[AnnotationBackend],
		Place:           PlaceOf(pv),
		Tenant:          annotations[AnnotationTenant],
		Protocol:        annotations[AnnotationProtocol],
		Cluster:         annotations[AnnotationCluster],
		ClaimUID:        string(MadeFor(pv)),
		Secret:          annotations[AnnotationSecret],
		SecretNamespace: annotations[AnnotationSecretNamespace],
		SecretUID:       types.UID(annotations[AnnotationSecretUID]),
		CSI:             IsCSI(pv),
	}
	if origin.ClaimUID == "" {
		return origin, Damaged(pv, AnnotationClaimUID, fmt.Sprintf("is missing; volume %s has its value in the metadata %s", origin.VolumeID, stamps.KeyClaimUID))
	}
	for _, key := range []string{AnnotationBackend, AnnotationCluster, AnnotationConnector} {
		if annotations[key] == "" && !(origin.CSI && key == AnnotationConnector) {
			return origin, Damaged(pv, key, "is missing")
		}
	}
	if origin.CSI {
		if _, err := LocationOf(pv); err != nil {
			return origin, err
		}
	} else if err := json.Unmarshal([]byte(annotations[AnnotationConnector]), &origin.Connector); err != nil {
		return origin, Damaged(pv, AnnotationConnector, "is not JSON")
	}
	if origin.Secret != "" && (origin.Secret != origin.ownSecret() && !origin.SharesSecret() || origin.SecretNamespace == "") {
		return origin, Damaged(pv, AnnotationSecret, "names a Secret that was not made for this volume")
	}
	return origin, nil
}

func historicOrigin(pv *corev1.PersistentVolume) (Origin, error) {
	annotations := pv.Annotations
	origin := Origin{
		PVName:    pv.Name,
		VolumeID:  annotations[HistoricVolume],
		Backend:   annotations[AnnotationBackend],
		Place:     PlaceOf(pv),
		Connector: HistoricConnector(),
		Historic:  true,
	}
	if origin.VolumeID == "" {
		return origin, Damaged(pv, AnnotationVolume, "is missing, and so is "+HistoricVolume)
	}
	if annotations[HistoricIdentity] == "" {
		return origin, Damaged(pv, HistoricIdentity, "is missing, so the volume cannot be distinguished from a foreign one")
	}
	if pv.Spec.ClaimRef != nil {
		origin.ClaimUID = string(pv.Spec.ClaimRef.UID)
	}
	if iscsi := pv.Spec.ISCSI; iscsi != nil && iscsi.SecretRef != nil && iscsi.SecretRef.Name == pv.Name+"-secret" {
		origin.Protocol = "iscsi"
		origin.Secret = iscsi.SecretRef.Name
		origin.SecretNamespace = iscsi.SecretRef.Namespace
		// The historic program wrote no namespace. Like kubelet, it then looked in the
		// claim's namespace.
		if origin.SecretNamespace == "" && pv.Spec.ClaimRef != nil {
			origin.SecretNamespace = pv.Spec.ClaimRef.Namespace
		}
	}
	return origin, nil
}

// DamagedError means that a PersistentVolume lacks what its deletion needs.
type DamagedError struct{ Message string }

func (e *DamagedError) Error() string { return e.Message }

// Damaged returns an error about one annotation of a PersistentVolume.
func Damaged(pv *corev1.PersistentVolume, key, problem string) error {
	return &DamagedError{fmt.Sprintf("PersistentVolume %s: annotation %s %s; nothing is deleted until it is fixed", pv.Name, key, problem)}
}

// PlaceAnnotations returns the annotations that record where a volume lives.
func PlaceAnnotations(at cinder.Place) map[string]string {
	if !at.IsKnown() {
		return nil
	}
	return map[string]string{AnnotationEndpoint: at.Endpoint, AnnotationProject: at.Project}
}

// PlaceOf returns where a volume lives; zero if not recorded.
func PlaceOf(pv *corev1.PersistentVolume) cinder.Place {
	if pv.Annotations[AnnotationEndpoint] == "" {
		return cinder.Place{}
	}
	return cinder.NewPlace(pv.Annotations[AnnotationEndpoint], pv.Annotations[AnnotationProject])
}

// WithRemedy adds the remedy to an error about a volume that does not exist where its
// backend points, but may exist elsewhere. Other errors stay as they are.
func WithRemedy(err error, origin Origin) error {
	var failed *cinder.Error
	if !errors.As(err, &failed) || failed.Kind != backends.KindElsewhere {
		return err
	}
	return fmt.Errorf("%w; its PersistentVolume stays; %s", err, origin.Remedy(failed.Place))
}

// Remedy returns the remedy for a volume that does not exist where its backend points,
// but may exist elsewhere.
func (o Origin) Remedy(present cinder.Place) string {
	return fmt.Sprintf("put the configuration and credentials of backend %s back to what they were, or, "+
		"if the volume is certainly gone, run: kubectl annotate pv %s --overwrite %s=%s %s=%s",
		o.Backend, o.PVName, AnnotationEndpoint, present.Endpoint, AnnotationProject, present.Project)
}
