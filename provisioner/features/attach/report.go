package attach

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// Attachments are the volumes on nodes, according to the caches.
type Attachments struct {
	// Attached has the PersistentVolume of each VolumeAttachment that is attached.
	Attached []*corev1.PersistentVolume
	Waiting  []Waiting
}

// Waiting is a volume that waits to be attached to a node or detached from it.
type Waiting struct {
	Backend, Node string
	// Volume is the PersistentVolume; nil if there is none any more.
	Volume    *corev1.PersistentVolume
	Detaching bool
	// StillStaged means that the node has the volume staged, although Kubernetes has
	// detached it.
	StillStaged bool
	// Failure is why the last attempt failed, as csi-attacher records it.
	Failure string
	// Since is when the wait began; zero if that is not known.
	Since time.Time
}

// Report describes the volumes on nodes. It returns false until the caches are filled.
func Report(e *Engine) (Attachments, bool) {
	if !e.Attachments.Known() || !e.Nodes.Known() || !e.Reports.Known() {
		return Attachments{}, false
	}
	var all Attachments
	for a := range e.Attachments.All() {
		volume, ours := e.handleOf(a)
		if !ours {
			continue
		}
		pv := cachedPV(e.PersistentVolumes, *a.Spec.Source.PersistentVolumeName)
		if a.Status.Attached && a.DeletionTimestamp == nil {
			all.Attached = append(all.Attached, pv)
		} else {
			all.Waiting = append(all.Waiting, waitingFor(a, e.backendOf(volume), pv))
		}
	}
	known := e.Backends()
	for _, at := range (rounds{e}).unattached() {
		backend := e.backendOf(at.volume)
		if !slices.Contains(known, backend) {
			continue // A node could report any backend.
		}
		waits := Waiting{Backend: backend, Node: at.node, Detaching: true, StillStaged: true}
		if pvs := objects.ByHandle(e.PersistentVolumes, wire.DriverName, at.volume.String()); len(pvs) > 0 {
			waits.Volume = pvs[0]
		}
		all.Waiting = append(all.Waiting, waits)
	}
	return all, true
}

func waitingFor(a *storagev1.VolumeAttachment, backend string, pv *corev1.PersistentVolume) Waiting {
	waits := Waiting{Backend: backend, Node: a.Spec.NodeName, Volume: pv, Since: a.CreationTimestamp.Time}
	failure := a.Status.AttachError
	if a.DeletionTimestamp != nil {
		waits.Detaching, waits.Since, failure = true, a.DeletionTimestamp.Time, a.Status.DetachError
	}
	if failure != nil {
		waits.Failure = failure.Message
	}
	return waits
}
