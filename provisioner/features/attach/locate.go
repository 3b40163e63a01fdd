package attach

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/controller"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// Kubernetes and the nodes know a volume by its handle, and so does all of this package.
// Where it is at Cinder, its PersistentVolume says: after a swap, that is not what the
// handle names.

// locator leads from one to the other.
type locator struct{ pvs cache.Indexer }

// locate returns where a volume is. Without a PersistentVolume, the handle says so, unless
// another PersistentVolume has the volume that it names.
func (l locator) locate(volume wire.Handle) (wire.Handle, error) {
	found := objects.ByHandle(l.pvs, wire.DriverName, volume.String())
	if len(found) > 0 {
		at, err := objects.LocationOf(found[0])
		if err != nil {
			return wire.Handle{}, damaged("%s", err)
		}
		return at, nil
	}
	for _, pv := range objects.ByVolumeID(l.pvs, volume.ID) {
		if objects.IsSwapped(pv) {
			return wire.Handle{}, &controller.Failure{Kind: string(cinder.KindNotFound), Message: fmt.Sprintf("no PersistentVolume has the handle %s, and the volume of that ID is by now that of PersistentVolume %s", volume, pv.Name)}
		}
	}
	return volume, nil
}

// backendOf returns the backend of a volume. If nothing says where the volume is, that is
// the one in its handle.
func (l locator) backendOf(volume wire.Handle) string {
	at, err := l.locate(volume)
	if err != nil {
		return volume.Backend
	}
	return at.Backend
}

// handleFor returns the handle of a volume that a backend shows. All backends of a project
// show the same volumes, and nodes know a volume by the handle of its PersistentVolume. If
// that is gone, and its volume was swapped, nobody knows the handle any more.
func (l locator) handleFor(v cinder.Volume, shownBy string) (handle wire.Handle, known bool) {
	if pv := cachedPV(l.pvs, stamps.Of(v).PV); pv != nil && objects.IsCSI(pv) {
		handle, err := wire.ParseHandle(pv.Spec.CSI.VolumeHandle)
		id := handle.ID
		if objects.IsSwapped(pv) {
			id = pv.Annotations[objects.AnnotationVolume]
		}
		if err == nil && id == v.ID {
			return handle, true
		}
	}
	handle = wire.Handle{Backend: shownBy, ID: v.ID}
	at, err := l.locate(handle)
	return handle, err == nil && at.ID == v.ID
}

// handleAt returns the handle of a volume as a backend names it, which is the backend's own
// unless the volume was swapped. A volume that several backends show has one at each.
func (l locator) handleAt(backend, id string) wire.Handle {
	for _, pv := range objects.ByVolumeID(l.pvs, id) {
		if handle, err := wire.ParseHandle(csiHandle(pv)); err == nil && objects.IsSwapped(pv) {
			return handle
		}
	}
	return wire.Handle{Backend: backend, ID: id}
}

// HandleAt returns the handle of a volume as a backend names it. Snapshots have that.
func HandleAt(e *Engine, backend, id string) wire.Handle { return e.handleAt(backend, id) }

// Locate returns where the volume with a handle is.
func Locate(e *Engine, volume wire.Handle) (wire.Handle, error) { return e.locate(volume) }

// csiHandle returns the handle of a PersistentVolume of the driver; empty for any other.
func csiHandle(pv *corev1.PersistentVolume) string {
	if !objects.IsCSI(pv) {
		return ""
	}
	return pv.Spec.CSI.VolumeHandle
}
