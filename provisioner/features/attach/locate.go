package attach

import (
	"fmt"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/controller"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// Kubernetes and the nodes know a volume by its handle, and so does all of this package.
// Where it is at Cinder, its PersistentVolume says: after a swap, that is not what the
// handle names. Only what follows leads from one to the other.

// locate returns where a volume is. Without a PersistentVolume, the handle says so, unless
// another PersistentVolume has the volume that it names.
func (e *Engine) locate(volume wire.Handle) (wire.Handle, error) {
	found := objects.ByHandle(e.PersistentVolumes, wire.DriverName, volume.String())
	if len(found) > 0 {
		at, err := objects.LocationOf(found[0])
		if err != nil {
			return wire.Handle{}, damaged("%s", err)
		}
		return at, nil
	}
	for _, pv := range objects.ByVolumeID(e.PersistentVolumes, volume.ID) {
		if objects.IsSwapped(pv) {
			return wire.Handle{}, &controller.Failure{Kind: string(cinder.KindNotFound), Message: fmt.Sprintf("no PersistentVolume has the handle %s, and the volume of that ID is by now that of PersistentVolume %s", volume, pv.Name)}
		}
	}
	return volume, nil
}

// backendOf returns the backend of a volume. If nothing says where the volume is, that is
// the one in its handle.
func (e *Engine) backendOf(volume wire.Handle) string {
	at, err := e.locate(volume)
	if err != nil {
		return volume.Backend
	}
	return at.Backend
}

// handleFor returns the handle of a volume that a backend shows. All backends of a project
// show the same volumes, and nodes know a volume by the handle of its PersistentVolume.
func (e *Engine) handleFor(v cinder.Volume, shownBy string) wire.Handle {
	if pv := cachedPV(e.PersistentVolumes, stamps.Of(v).PV); pv != nil && objects.IsCSI(pv) {
		handle, err := wire.ParseHandle(pv.Spec.CSI.VolumeHandle)
		id := handle.ID
		if objects.IsSwapped(pv) {
			id = pv.Annotations[objects.AnnotationVolume]
		}
		if err == nil && id == v.ID {
			return handle
		}
	}
	return wire.Handle{Backend: shownBy, ID: v.ID}
}
