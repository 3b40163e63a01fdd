package provisioner

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/mappers"
)

// Annotations of a PersistentVolume. They are all that deleting reads, so that
// a volume outlives the rule, the tenant and the StorageClass that made it.
const (
	annotationPrefix  = "standalone-cinder.openstack.org/"
	annotationVolume  = annotationPrefix + "volume-id"
	annotationBackend = annotationPrefix + "backend"
	// annotationEndpoint and annotationProject are where the volume lives: the
	// same backend may lead elsewhere tomorrow.
	annotationEndpoint = annotationPrefix + "endpoint"
	annotationProject  = annotationPrefix + "project-id"
	annotationTenant   = annotationPrefix + "tenant"
	annotationRule     = annotationPrefix + "rule"
	annotationProtocol = annotationPrefix + "protocol"
	// annotationConnector is the connector as JSON: terminating a connection
	// takes the same connector that initialised it.
	annotationConnector = annotationPrefix + "connector"
	annotationCluster   = annotationPrefix + "cluster"
	// annotationAttachment tells an operator which attachment at Cinder is the
	// volume's; deleting asks Cinder itself.
	annotationAttachment = annotationPrefix + "attachment-id"
	annotationClaimUID   = annotationPrefix + "claim-uid"
	annotationRevision   = annotationPrefix + "policy-revision"
	// annotationSecret names the Secret that was made for this volume, or that
	// it shares with others of its backend; absent when there is none.
	annotationSecret          = annotationPrefix + "secret"
	annotationSecretNamespace = annotationPrefix + "secret-namespace"
	// annotationProvisionedBy is written by the library.
	annotationProvisionedBy = "pv.kubernetes.io/provisioned-by"
)

// Annotations of the historic provisioner, and the connector that it used.
const (
	historicAnnotationIdentity = "standaloneCinderProvisionerIdentity"
	historicAnnotationVolume   = "cinderVolumeId"
)

func historicConnector() backends.Connector {
	return backends.Connector{Host: "localhost", IP: "127.0.0.1", Initiator: "iqn.2018-01.io.k8s:a13fc3d1cc22"}
}

// Origin is what a PersistentVolume records about its volume.
type Origin struct {
	PVName   string
	VolumeID string
	Backend  string
	// Place is where the volume lives; zero if that was never recorded.
	Place     backends.Place
	Tenant    string
	Protocol  string
	Cluster   string
	ClaimUID  string
	Connector backends.Connector
	// Secret is empty when none was made.
	Secret          string
	SecretNamespace string
	// Historic says that the historic provisioner wrote the object.
	Historic bool
}

// target is what the backend needs to remove the volume, proof included.
func (o Origin) target() backends.Target {
	return backends.Target{
		VolumeID:  o.VolumeID,
		Stamp:     backends.Stamp{Cluster: o.Cluster, ClaimUID: o.ClaimUID, PV: o.PVName},
		Historic:  o.Historic,
		Connector: o.Connector,
		Place:     o.Place,
	}
}

// sharesSecret reports whether the Secret is one that volumes of the backend may
// share. What is deleted must carry that mark itself.
func (o Origin) sharesSecret() bool {
	return !o.Historic && o.Secret != secretName(o.PVName) && mappers.IsSharedSecretName(o.Secret, o.Backend)
}

// isOurs reports whether this program, in its present form, wrote the object.
func isOurs(pv *corev1.PersistentVolume) bool { return pv.Annotations[annotationVolume] != "" }

// originOf reads the annotations back. What is missing or damaged is named;
// nothing is guessed, since a deletion follows.
func originOf(pv *corev1.PersistentVolume) (Origin, error) {
	annotations := pv.Annotations
	if !isOurs(pv) {
		return historicOrigin(pv)
	}
	origin := Origin{
		PVName:          pv.Name,
		VolumeID:        annotations[annotationVolume],
		Backend:         annotations[annotationBackend],
		Place:           placeOf(pv),
		Tenant:          annotations[annotationTenant],
		Protocol:        annotations[annotationProtocol],
		Cluster:         annotations[annotationCluster],
		ClaimUID:        annotations[annotationClaimUID],
		Secret:          annotations[annotationSecret],
		SecretNamespace: annotations[annotationSecretNamespace],
	}
	for _, key := range []string{annotationBackend, annotationCluster, annotationClaimUID, annotationConnector} {
		if annotations[key] == "" {
			return origin, damaged(pv, key, "is missing")
		}
	}
	if err := json.Unmarshal([]byte(annotations[annotationConnector]), &origin.Connector); err != nil {
		return origin, damaged(pv, annotationConnector, "is not JSON")
	}
	if pv.Spec.ClaimRef != nil && string(pv.Spec.ClaimRef.UID) != "" && string(pv.Spec.ClaimRef.UID) != origin.ClaimUID {
		return origin, damaged(pv, annotationClaimUID, fmt.Sprintf("is %s, but spec.claimRef has %s", origin.ClaimUID, pv.Spec.ClaimRef.UID))
	}
	if origin.Secret != "" && (origin.Secret != secretName(pv.Name) && !origin.sharesSecret() || origin.SecretNamespace == "") {
		return origin, damaged(pv, annotationSecret, "names a Secret that was not made for this volume")
	}
	return origin, nil
}

func historicOrigin(pv *corev1.PersistentVolume) (Origin, error) {
	annotations := pv.Annotations
	origin := Origin{
		PVName:    pv.Name,
		VolumeID:  annotations[historicAnnotationVolume],
		Backend:   annotations[annotationBackend],
		Place:     placeOf(pv),
		Connector: historicConnector(),
		Historic:  true,
	}
	if origin.VolumeID == "" {
		return origin, damaged(pv, annotationVolume, "is missing, and so is "+historicAnnotationVolume)
	}
	if annotations[historicAnnotationIdentity] == "" {
		return origin, damaged(pv, historicAnnotationIdentity, "is missing, so that the volume cannot be told from a foreign one")
	}
	if pv.Spec.ClaimRef != nil {
		origin.ClaimUID = string(pv.Spec.ClaimRef.UID)
	}
	if iscsi := pv.Spec.ISCSI; iscsi != nil && iscsi.SecretRef != nil && iscsi.SecretRef.Name == pv.Name+"-secret" {
		origin.Protocol = "iscsi"
		origin.Secret = iscsi.SecretRef.Name
		origin.SecretNamespace = iscsi.SecretRef.Namespace
		// The historic program wrote no namespace; kubelet then looks into
		// the claim's, and so did it.
		if origin.SecretNamespace == "" && pv.Spec.ClaimRef != nil {
			origin.SecretNamespace = pv.Spec.ClaimRef.Namespace
		}
	}
	return origin, nil
}

// damagedError says that a PersistentVolume does not say what deleting needs.
type damagedError struct{ message string }

func (e *damagedError) Error() string { return e.message }

func damaged(pv *corev1.PersistentVolume, key, problem string) error {
	return &damagedError{fmt.Sprintf("PersistentVolume %s: annotation %s %s; nothing is deleted until it is put right", pv.Name, key, problem)}
}

// persistentVolume describes the volume to Kubernetes. The capacity is what
// Cinder made, which may be more than was asked for.
func (a *attempt) persistentVolume(connected backends.Connected, mapped mappers.Result) *corev1.PersistentVolume {
	v := connected.Volume
	connector, err := json.Marshal(a.connector)
	if err != nil {
		// A struct of strings and a bool always encodes.
		panic(err)
	}
	annotations := map[string]string{
		annotationVolume:    v.ID,
		annotationBackend:   a.backend,
		annotationTenant:    a.decision.Tenant,
		annotationRule:      a.decision.Rule,
		annotationProtocol:  a.protocol,
		annotationConnector: string(connector),
		annotationCluster:   a.p.Cluster,
		annotationClaimUID:  string(a.claim.UID),
		annotationRevision:  a.decision.Revision,
	}
	maps.Copy(annotations, placeAnnotations(connected.Place))
	if connected.AttachmentID != "" {
		annotations[annotationAttachment] = connected.AttachmentID
	}
	if mapped.Secret != nil {
		annotations[annotationSecret] = mapped.Secret.Name
		annotations[annotationSecretNamespace] = a.p.Namespace
	}
	reclaim := corev1.PersistentVolumeReclaimDelete
	if a.class.ReclaimPolicy != nil {
		reclaim = *a.class.ReclaimPolicy
	}
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: a.pvName, Annotations: annotations},
		Spec: PersistentVolumeSpec(mapped, corev1.PersistentVolumeSpec{
			Capacity:                      capacity(v.SizeGiB),
			AccessModes:                   a.claim.Spec.AccessModes,
			PersistentVolumeReclaimPolicy: reclaim,
			MountOptions:                  a.class.MountOptions,
			VolumeMode:                    a.claim.Spec.VolumeMode,
			NodeAffinity:                  nodeAffinity(a.p.Backends.NodeLabels(a.backend)),
		}),
	}
}

// nodeAffinity binds a PersistentVolume to the nodes that its volume is exported
// to; nil leaves it to all.
func nodeAffinity(labels map[string]string) *corev1.VolumeNodeAffinity {
	if len(labels) == 0 {
		return nil
	}
	var requirements []corev1.NodeSelectorRequirement
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		requirements = append(requirements, corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{labels[key]}})
	}
	return &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: requirements}}}}
}

func capacity(gib int64) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(gib<<30, resource.BinarySI)}
}

// PersistentVolumeSpec completes what claim and StorageClass say of a
// PersistentVolume with what its connection was mapped to.
func PersistentVolumeSpec(mapped mappers.Result, spec corev1.PersistentVolumeSpec) corev1.PersistentVolumeSpec {
	spec.PersistentVolumeSource = mapped.Source
	spec.MountOptions = slices.Clone(spec.MountOptions)
	for _, option := range mapped.MountOptions {
		if !slices.Contains(spec.MountOptions, option) {
			spec.MountOptions = append(spec.MountOptions, option)
		}
	}
	return spec
}

// readOnly reports whether nobody may write through the PersistentVolume.
func readOnly(pv *corev1.PersistentVolume) bool { return onlyReading(pv.Spec.AccessModes) }

func onlyReading(modes []corev1.PersistentVolumeAccessMode) bool {
	for _, mode := range modes {
		if mode != corev1.ReadOnlyMany {
			return false
		}
	}
	return len(modes) > 0
}
