// Package attach attaches the volumes of CSI PersistentVolumes to nodes, and detaches
// them, when a sidecar calls the CSI driver's controller. It works beside the hub.
//
// As everywhere in the program, a volume's stamp must prove whose the volume is before
// it is changed; the PersistentVolume only says where to look. Credentials reach the
// node through the Secret that the PersistentVolume names, and in no other way.
package attach

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	eventrecord "k8s.io/client-go/tools/record"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/controller"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// Volumes attaches the volumes of one backend; *backends.Lifecycle implements it.
type Volumes interface {
	Publish(ctx context.Context, target backends.Target, to backends.PublishRequest) (backends.Published, error)
	Unpublish(ctx context.Context, target backends.Target, from backends.UnpublishRequest) error
	// Place returns where the backend's volumes are.
	Place() cinder.Place
	// Find reads a volume of any owner by its ID.
	Find(ctx context.Context, id string) (v cinder.Volume, found bool, err error)
	// Volumes returns the term's last complete listing of the cluster's volumes, and
	// Relist a new one.
	Volumes(ctx context.Context) ([]cinder.Volume, error)
	Relist(ctx context.Context) ([]cinder.Volume, error)
	Keys
}

// Options configure an Engine.
type Options struct {
	// Cluster is the ID stamped on this cluster's volumes; Namespace is where the
	// Secrets of volumes are.
	Cluster, Namespace string

	// Volumes returns an error if no backend of that name is configured.
	Volumes func(backend string) (Volumes, error)
	// Backends returns the names of the backends that may have volumes in mode csi.
	Backends func() []string
	// OnBehalfOf marks requests to Cinder as a tenant's.
	OnBehalfOf func(ctx context.Context, tenant string) context.Context

	Client kubernetes.Interface
	// PersistentVolumes is the cache of PersistentVolumes, with the indexes of package
	// record.
	PersistentVolumes cache.Indexer
	CSINodes          Cache[storagev1.CSINode]
	Attachments       Cache[storagev1.VolumeAttachment]
	Nodes             Cache[corev1.Node]
	// Reports are the Leases in which node plugins report what they have staged (package
	// staged).
	Reports Cache[coordinationv1.Lease]
	// Rules returns what the policy in force says about a backend.
	Rules func(backend string) Rules
	// Reach is told which volume types nodes can use.
	Reach      *Reach
	Expansions Expansions
	// Types returns what changes volume types under the policy in force.
	Types func() Types
	// Gate is the term's; nil for one that only the Engine has.
	Gate *Gate

	Recorder eventrecord.EventRecorder
	Metrics  *Metrics
	Logger   *slog.Logger
}

// Rules is what the policy says about a backend.
type Rules struct {
	// VolumesPerNode is how many of its volumes a node can have; 0 means any number.
	VolumesPerNode int
	// FencedByInitiator means that the array keeps a node out of a volume that was
	// detached from it, even while another node has the volume.
	FencedByInitiator bool
	// CephSecret is the name of the Secret in the program's namespace that has the user
	// and the key with which nodes reach its images of Ceph; empty if there is none.
	CephSecret string
	// FixedKeySecret is the name of the Secret in the program's namespace with the fixed key
	// of the backend's Cinder; empty if there is none.
	FixedKeySecret string
}

// Engine attaches and detaches volumes for one term.
type Engine struct {
	Options
	locator
	places    places
	routes    routes
	unsettled *unsettled
	known     known

	detaching detaching
	lost      lostNodes
	rounds    rounds
	room      room
}

// known are the places to which the backends led when the records on their volumes were
// read.
type known struct {
	sync.Mutex
	places map[string]cinder.Place
}

// New makes the engine of one term.
func New(options Options) *Engine {
	if options.Gate == nil {
		options.Gate = NewGate()
	}
	e := &Engine{Options: options, locator: locator{options.PersistentVolumes}, places: places{taken: map[place]map[string]bool{}}, routes: routes{seen: map[wire.Handle]route{}}, unsettled: newUnsettled(),
		known: known{places: map[string]cinder.Place{}}}
	e.detaching, e.lost, e.rounds, e.room = detaching{e}, lostNodes{e}, rounds{e}, room{e}
	return e
}

// ReasonDuplicateInitiator is the reason of events about two nodes that have the same
// name for arrays.
const ReasonDuplicateInitiator = "DuplicateInitiator"

// connectorOf describes a node to Cinder.
func (e *Engine) connectorOf(node wire.Node) cinder.Connector {
	return cinder.Connector{
		Host: stamps.NodeHost(node.Name, e.Cluster), Initiator: node.InitiatorName, WWPNs: node.PortNames, WWNNs: node.NodeNames, NQN: node.HostNQN, Multipath: node.Multipath,
	}
}

// stillThere returns a permit for changes as long as the PersistentVolume is the same
// object and is not being deleted.
func (e *Engine) stillThere(pv *corev1.PersistentVolume) backends.Permit {
	return func(context.Context, cinder.Volume) error {
		if now := cachedPV(e.PersistentVolumes, pv.Name); now == nil || now.UID != pv.UID || now.DeletionTimestamp != nil {
			return &controller.Failure{Kind: string(cinder.KindConflict), Message: fmt.Sprintf("PersistentVolume %s was deleted in the meantime", pv.Name)}
		}
		return nil
	}
}

// Unpublish implements controller.Attacher. It needs neither the Node object nor the
// PersistentVolume, because it must be able to detach a volume after they are gone.
func (e *Engine) Unpublish(ctx context.Context, volume wire.Handle, nodeID string) error {
	volumes, of, err := e.attached(ctx, volume)
	if err != nil {
		return Failure(err)
	}
	var nodes []string
	if nodeID != "" {
		nodes, err = e.detaching.leaving(ctx, of.target.Stamp.PV, nodeID)
	} else {
		nodes, err = e.having(ctx, volumes, volume, of)
	}
	if err != nil {
		return Failure(err)
	}
	var first error
	for _, node := range nodes {
		// A node that must keep the volume does not stop the others from being
		// detached.
		if err := e.detach(ctx, volumes, volume, of, node, false); err != nil && first == nil {
			first = err
		}
	}
	return Failure(first)
}

// having returns the names of the nodes for which a volume records attachments, or an
// empty name, which stands for all, if all of them let go of it.
func (e *Engine) having(ctx context.Context, volumes Volumes, volume wire.Handle, of source) ([]string, error) {
	v, _, err := volumes.Find(ctx, of.at.ID)
	if err != nil {
		return nil, err
	}
	var nodes []string
	all := true
	for key, attached := range stamps.NodeRecordsOf(v) {
		node := e.nameOfNode(attached.Node, key)
		if node == "" {
			continue // it is gone
		}
		lets, err := e.lost.letsGo(ctx, volume, node)
		if err != nil {
			return nil, err
		}
		all = all && lets
		nodes = append(nodes, node)
	}
	if all {
		return []string{""}, nil
	}
	slices.Sort(nodes)
	return nodes, nil
}

// detach detaches a volume from a node, or from all if the name is empty. If the node may
// still write to it, the detachment stays owed. had means that the node is known to have
// had the volume, although no VolumeAttachment says so.
func (e *Engine) detach(ctx context.Context, volumes Volumes, volume wire.Handle, of source, node string, had bool) error {
	var from backends.UnpublishRequest
	if node != "" {
		lets, err := e.lost.letsGo(ctx, volume, node)
		if err != nil {
			return err
		}
		if !lets {
			e.Logger.Info("A volume stays attached at Cinder, because the node may still write to it", "volume", volume.String(), "persistentVolume", of.target.Stamp.PV, "node", node)
			return nil
		}
		asked := e.detachment(of.target.Stamp.PV, node)
		from = backends.UnpublishRequest{
			Node: node, Key: wire.NodeKey(node), Others: e.detaching.keysThatStay(of.target.Stamp.PV, volume, node), Attached: had || asked != nil && asked.Status.Attached,
		}
	}
	return e.detaching.end(ctx, volumes, volume, of, from)
}

// Volume implements controller.Attacher.
func (e *Engine) Volume(ctx context.Context, volume wire.Handle) (controller.Volume, error) {
	of, err := e.volumeOf(volume)
	if err != nil {
		return controller.Volume{}, Failure(err)
	}
	volumes, err := e.Volumes(of.at.Backend)
	if err != nil {
		return controller.Volume{}, Failure(err)
	}
	v, found, err := volumes.Find(e.OnBehalfOf(ctx, of.tenant), of.at.ID)
	switch {
	case err != nil:
		return controller.Volume{}, Failure(err)
	case !found:
		return controller.Volume{}, &controller.Failure{Kind: string(cinder.KindNotFound), Message: fmt.Sprintf("backend %s has no volume %s", of.at.Backend, of.at.ID)}
	case !of.target.Stamp.Owns(v):
		return controller.Volume{}, &controller.Failure{Kind: string(backends.KindNotOurs), Message: fmt.Sprintf("volume %s does not carry the stamp of PersistentVolume %s", of.at.ID, of.pv.Name)}
	}
	return controller.Volume{MultiAttach: v.MultiAttach, Context: of.pv.Spec.CSI.VolumeAttributes}, nil
}

// Failure turns an error into one that the controller knows. Errors of no known kind
// stay as they are, and are never final.
func Failure(err error) error {
	var known *controller.Failure
	var failed *cinder.Error
	var refusal *mappers.Refusal
	kind, refused := objects.FailureKind(err)
	switch {
	case err == nil:
		return nil
	case errors.As(err, &known):
		return known
	case errors.As(err, &failed):
		// The text becomes the status of an object.
		return &controller.Failure{Kind: string(failed.Kind), Message: cinder.TextOf(err), EffectUnknown: failed.EffectUnknown}
	case errors.As(err, &refusal):
		return &controller.Failure{Kind: controller.Unmappable, Message: refusal.Message}
	case refused:
		return &controller.Failure{Kind: kind, Message: err.Error()}
	case apierrors.IsForbidden(err):
		return &controller.Failure{Kind: string(cinder.KindForbidden), Message: err.Error()}
	}
	return err
}
