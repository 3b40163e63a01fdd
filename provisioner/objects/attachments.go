package objects

import (
	"context"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/paging"
)

// Attachment is a VolumeAttachment of the CSI driver.
type Attachment struct {
	Name, PV, Node string
	// NodeKey is the node's short name in the volume's metadata.
	NodeKey string
	// Attached means that the driver has reported it attached; Ends means that it is to
	// be detached.
	Attached, Ends bool
	CreatedAt      time.Time
}

// listAttachments lists the VolumeAttachments of the CSI driver by PersistentVolume.
func listAttachments(ctx context.Context, client kubernetes.Interface) (map[string][]Attachment, error) {
	all, err := paging.List(ctx, "VolumeAttachments", client.StorageV1().VolumeAttachments().List, func(page *storagev1.VolumeAttachmentList) (found []Attachment) {
		for i := range page.Items {
			a := &page.Items[i]
			if a.Spec.Attacher == wire.DriverName && a.Spec.Source.PersistentVolumeName != nil {
				found = append(found, Attachment{
					Name: a.Name, PV: *a.Spec.Source.PersistentVolumeName, Node: a.Spec.NodeName, NodeKey: wire.NodeKey(a.Spec.NodeName),
					Attached: a.Status.Attached, Ends: a.DeletionTimestamp != nil, CreatedAt: a.CreationTimestamp.Time,
				})
			}
		}
		return found
	})
	if err != nil {
		return nil, err
	}
	byPV := map[string][]Attachment{}
	for _, a := range all {
		byPV[a.PV] = append(byPV[a.PV], a)
	}
	return byPV, nil
}
