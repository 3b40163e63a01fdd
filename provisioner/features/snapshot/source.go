package snapshot

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

// everything selects all objects.
var everything = labels.Everything()

// denied says why no snapshot is taken now, although nothing is wrong with the program
// or a backend.
type denied struct {
	reason, message string
	// detail is for those who may read all objects of the cluster, and no tenant.
	detail string
	// triggers are what may admit the snapshot, in addition to another policy.
	triggers []parking.Trigger
	// silent means that no event is written.
	silent bool
	// again means that possibly no trigger will fire, so it is also retried, rarely.
	again bool
}

func (d *denied) Error() string { return d.reason + ": " + d.message }

func deniedBy(d *policy.Denial) *denied { return &denied{reason: string(d.Reason), message: d.Message} }

// source is the volume that a snapshot is to be taken of.
type source struct {
	pv     *corev1.PersistentVolume
	origin objects.Origin
}

// find finds the volume of the claim that a snapshot is to be taken of. If it returns
// neither a source nor a reason, the volume is not this program's.
func (c *Controller) find(namespace, name string) (*source, *denied, error) {
	waiting := func(format string, arguments ...any) (*source, *denied, error) {
		return nil, &denied{reason: "ClaimNotBound", message: fmt.Sprintf(format, arguments...), triggers: []parking.Trigger{claimTrigger(namespace, name)}}, nil
	}
	if len(validation.IsDNS1123Subdomain(name)) > 0 {
		return nil, &denied{reason: string(policy.InvalidClaim), message: fmt.Sprintf("%.60q cannot be the name of a claim; replace the VolumeSnapshot", name)}, nil
	}
	claim, err := c.Claims.PersistentVolumeClaims(namespace).Get(name)
	switch {
	case apierrors.IsNotFound(err):
		return waiting("claim %s does not exist; create it, or delete the VolumeSnapshot", name)
	case err != nil:
		return nil, nil, err
	case claim.Status.Phase != corev1.ClaimBound || claim.Spec.VolumeName == "":
		return waiting("claim %s is not bound; the snapshot is taken once it is", name)
	}
	pv, err := corelisters.NewPersistentVolumeLister(c.PersistentVolumes).Get(claim.Spec.VolumeName)
	switch {
	case apierrors.IsNotFound(err):
		return waiting("PersistentVolume %s of claim %s does not exist", claim.Spec.VolumeName, name)
	case err != nil:
		return nil, nil, err
	case !objects.IsOurs(pv) || pv.Annotations[objects.AnnotationProvisionedBy] != c.Name:
		return nil, nil, nil
	}
	origin, err := objects.OriginOf(pv)
	var problem string
	switch {
	case err != nil:
		problem = err.Error()
	case origin.Cluster != c.Cluster:
		problem = fmt.Sprintf("PersistentVolume %s was made for cluster %q, but this is %q", pv.Name, origin.Cluster, c.Cluster)
	case pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != claim.UID:
		return waiting("PersistentVolume %s is not bound to claim %s", pv.Name, name)
	case origin.CSI:
		return nil, &denied{reason: string(policy.UnsupportedMode), message: fmt.Sprintf(
			"claim %s has a volume in mode csi, whose snapshots need a VolumeSnapshotClass of driver %s; delete the VolumeSnapshot, and make one of such a class", name, policy.CSIDriver), triggers: []parking.Trigger{claimTrigger(namespace, name)}}, nil
	default:
		return &source{pv, origin}, nil, nil
	}
	return nil, &denied{reason: "ForeignVolume", message: problem, triggers: []parking.Trigger{claimTrigger(namespace, name)}}, nil
}

// classOf returns the class of a snapshot if its driver is this program. A snapshot
// without a class gets the default class of the volume's driver.
func (c *Controller) classOf(snapshot *snapshotv1.VolumeSnapshot) (*snapshotv1.VolumeSnapshotClass, *denied, error) {
	if name := snapshot.Spec.VolumeSnapshotClassName; name != nil {
		class, err := c.shown().classes.Get(*name)
		if apierrors.IsNotFound(err) || err == nil && class.Driver != c.Name {
			return nil, nil, nil // its creation brings the snapshot back
		}
		return class, nil, err
	}
	all, err := c.shown().classes.List(everything)
	if err != nil {
		return nil, nil, err
	}
	found := map[string]*snapshotv1.VolumeSnapshotClass{}
	for _, class := range all {
		if class.Driver == c.Name && class.Annotations[objects.AnnotationDefaultSnapshotClass] == "true" {
			found[class.Name] = class
		}
	}
	names := slices.Sorted(maps.Keys(found))
	switch len(names) {
	case 0:
		return nil, nil, nil
	case 1:
		return found[names[0]], nil, nil
	}
	return nil, &denied{reason: "AmbiguousSnapshotClass", message: fmt.Sprintf(
		"several VolumeSnapshotClasses of %s are the default: %s; name one in spec.volumeSnapshotClassName", c.Name, strings.Join(names, ", "))}, nil
}
