package nodeuse

import (
	"context"
	"fmt"
	"slices"
	"strings"

	storagev1 "k8s.io/api/storage/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/paging"
)

// Attachment is a VolumeAttachment: Kubernetes has attached a volume to a node, is about
// to, or has not detached it completely. The node need not exist.
type Attachment struct {
	Name, Node string
	// Taken means that the volume was taken from a lost node, so that the node of this
	// attachment keeps out all others, even Cinder.
	Taken bool
}

func (a Attachment) String() string { return fmt.Sprintf("%s (node %s)", a.Name, a.Node) }

// KnownAttachments lists the VolumeAttachments that name a PersistentVolume according
// to the cache. known is false if there is no cache, or if it is not complete.
func (t *Tracker) KnownAttachments(pv string) (attachments []Attachment, known bool, err error) {
	if !t.Watches() {
		return nil, false, nil
	}
	attachments, err = t.cached(pv)
	return attachments, err == nil, err
}

// cached lists the VolumeAttachments in the cache that name a PersistentVolume.
func (t *Tracker) cached(pv string) (attachments []Attachment, err error) {
	found, err := t.options.Caches.Attachments.ByIndex(byPersistentVolume, pv)
	for _, object := range found {
		attachments = append(attachments, attachmentOf(object.(*storagev1.VolumeAttachment)))
	}
	slices.SortFunc(attachments, byName)
	return attachments, err
}

// Attachments lists the VolumeAttachments that name a PersistentVolume, read after the
// call. Concurrent calls share one read.
func (t *Tracker) Attachments(ctx context.Context, pv string) ([]Attachment, error) {
	seen, err := t.attachments.get(ctx)
	if err != nil {
		return nil, fmt.Errorf("cannot tell whether the volume of PersistentVolume %s is still attached to a node: %w", pv, err)
	}
	return seen[pv], nil
}

// readAttachments reads all attachments, by the name of the PersistentVolume.
func (t *Tracker) readAttachments(ctx context.Context) (map[string][]Attachment, error) {
	all, err := paging.List(ctx, "the VolumeAttachments", t.options.Client.StorageV1().VolumeAttachments().List,
		func(page *storagev1.VolumeAttachmentList) []storagev1.VolumeAttachment { return page.Items })
	seen := map[string][]Attachment{}
	for i := range all {
		if source := all[i].Spec.Source.PersistentVolumeName; source != nil {
			seen[*source] = append(seen[*source], attachmentOf(&all[i]))
		}
	}
	for _, attachments := range seen {
		slices.SortFunc(attachments, byName)
	}
	return seen, err
}

func attachmentOf(a *storagev1.VolumeAttachment) Attachment {
	return Attachment{Name: a.Name, Node: a.Spec.NodeName, Taken: wire.IsTaken(a.Status.AttachmentMetadata)}
}

func byName(a, b Attachment) int { return strings.Compare(a.Name, b.Name) }
