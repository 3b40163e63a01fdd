package attach

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/controller"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// AnnotationNodeID is the annotation in which external-attacher keeps a node's ID on a
// VolumeAttachment, and which it uses when the node's CSINode is gone.
const AnnotationNodeID = "csi.alpha.kubernetes.io/node-id"

// List implements controller.Attacher. If a volume is missing from the list,
// external-attacher attaches it again, so the listings of all backends must be complete.
func (e *Engine) List(ctx context.Context, fresh bool) ([]controller.Listed, error) {
	ids, err := e.nodeIDs()
	if err != nil {
		return nil, incomplete(err)
	}
	names, err := e.backendsInUse()
	if err != nil {
		return nil, incomplete(err)
	}
	found := make([][]controller.Listed, len(names))
	group, ctx := errgroup.WithContext(ctx)
	for i, name := range names {
		group.Go(func() error {
			volumes, err := e.Volumes(name)
			if err != nil {
				return err
			}
			list := volumes.Volumes
			if fresh {
				list = volumes.Relist
			}
			all, err := list(ctx)
			if err != nil {
				return err
			}
			for _, v := range all {
				if !e.isOurs(v) {
					continue
				}
				handle := e.handleAt(name, v.ID)
				// Since a swap, another volume may have the handle that names this one.
				if at, err := e.locate(handle); err != nil || at.ID == v.ID {
					found[i] = append(found[i], listed(handle, v, ids))
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, incomplete(err)
	}
	return slices.Concat(found...), nil
}

// Listed implements controller.Attacher.
func (e *Engine) Listed(ctx context.Context, volume wire.Handle) (controller.Listed, error) {
	ids, err := e.nodeIDs()
	if err != nil {
		return controller.Listed{}, Failure(err)
	}
	at, err := e.locate(volume)
	if err != nil {
		return controller.Listed{}, Failure(err)
	}
	volumes, err := e.Volumes(at.Backend)
	if err != nil {
		return controller.Listed{}, Failure(err)
	}
	v, found, err := volumes.Find(ctx, at.ID)
	if err != nil {
		return controller.Listed{}, Failure(err)
	}
	if !found || !e.isOurs(v) {
		return controller.Listed{}, &controller.Failure{Kind: string(cinder.KindNotFound), Message: fmt.Sprintf("backend %s has no volume %s of the driver", at.Backend, at.ID)}
	}
	return listed(volume, v, ids), nil
}

// incomplete returns the failure for a list of which a part is missing. Whatever the
// reason, it is temporary.
func incomplete(err error) error {
	return &controller.Failure{Kind: string(cinder.KindUnavailable), Message: "the list of volumes would not be complete: " + cinder.TextOf(err)}
}

// isOurs reports whether a volume belongs to this cluster and the driver attaches it.
func (e *Engine) isOurs(v cinder.Volume) bool {
	return stamps.IsCSI(v) && stamps.Of(v).Cluster == e.Cluster
}

// backendsInUse returns the backends that have volumes in mode csi, or may get some. A
// backend without such volumes costs no request, and its outage does no harm.
func (e *Engine) backendsInUse() ([]string, error) {
	names := map[string]bool{}
	for _, name := range e.Backends() {
		names[name] = true
	}
	for _, object := range e.PersistentVolumes.List() {
		pv, ok := object.(*corev1.PersistentVolume)
		if !ok || !objects.IsCSI(pv) || pv.Annotations[objects.AnnotationCluster] != e.Cluster {
			continue
		}
		volume, err := wire.ParseHandle(pv.Spec.CSI.VolumeHandle)
		if err != nil {
			return nil, fmt.Errorf("PersistentVolume %s: %w", pv.Name, err)
		}
		names[e.backendOf(volume)] = true
	}
	return slices.Sorted(maps.Keys(names)), nil
}

// nodeIDs returns the IDs of nodes by their keys: those with which they are registered,
// or were when a volume was attached, as external-attacher reads them.
func (e *Engine) nodeIDs() (map[string]string, error) {
	if !e.CSINodes.Known() || !e.Attachments.Known() {
		return nil, errors.New("the CSINodes and VolumeAttachments are not read yet")
	}
	ids := map[string]string{}
	for a := range e.Attachments.All() {
		if id := a.Annotations[AnnotationNodeID]; id != "" && a.Spec.Attacher == wire.DriverName {
			ids[wire.NodeKey(a.Spec.NodeName)] = id
		}
	}
	for node := range e.CSINodes.All() {
		if id, has := nodeIDOf(node); has {
			ids[wire.NodeKey(node.Name)] = id
		}
	}
	return ids, nil
}

// listed describes a volume. A node has it if an attachment is recorded for the node
// and is complete at Cinder. A node without a known ID is left out, because nobody can
// ask for it.
func listed(volume wire.Handle, v cinder.Volume, ids map[string]string) controller.Listed {
	described := controller.Listed{Volume: volume, Bytes: v.SizeGiB << 30}
	for key, attached := range stamps.NodeRecordsOf(v) {
		complete := slices.ContainsFunc(v.Attachments, func(a cinder.Attachment) bool { return a.ID == attached.AttachmentID })
		if id := ids[key]; complete && id != "" {
			described.NodeIDs = append(described.NodeIDs, id)
		}
	}
	slices.Sort(described.NodeIDs)
	return described
}
