// Package attach attaches the volumes of CSI PersistentVolumes to nodes, and detaches
// them, when a sidecar calls the CSI driver's controller. It works beside the hub.
//
// As everywhere in the program, a volume's stamp must prove whose the volume is before
// it is changed; the PersistentVolume only says where to look. Credentials reach the
// node through the Secret that the PersistentVolume names, and in no other way.
package attach

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	eventrecord "k8s.io/client-go/tools/record"

	storagelisters "k8s.io/client-go/listers/storage/v1"

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
	CSINodes          storagelisters.CSINodeLister
	// CSINodesKnown reports whether the cache shows all CSINodes.
	CSINodesKnown func() bool
	// Attachments is the cache of VolumeAttachments; AttachmentsKnown reports whether it
	// shows all.
	Attachments      cache.Store
	AttachmentsKnown func() bool
	// Nodes is the cache of Nodes; NodesKnown reports whether it shows all.
	Nodes      cache.Store
	NodesKnown func() bool
	// Reports is the cache of the Leases in which node plugins report what they have
	// staged (package staged); ReportsKnown reports whether it shows all.
	Reports      cache.Store
	ReportsKnown func() bool
	// Rules returns what the policy in force says about a backend.
	Rules func(backend string) Rules
	// Reach is told which volume types nodes can use.
	Reach      *Reach
	Expansions Expansions
	// Types returns what changes volume types under the policy in force.
	Types     func() Types
	Snapshots Snapshots
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

var _ controller.Engine = (*Engine)(nil)

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

// Publish implements controller.Engine.
func (e *Engine) Publish(ctx context.Context, to controller.PublishRequest) (wire.Connection, error) {
	of, err := e.volumeOf(to.Volume)
	if err != nil {
		return wire.Connection{}, failure(err)
	}
	node, shared, err := e.admits(to.Node)
	if err != nil {
		return wire.Connection{}, failure(err)
	}
	to.Node = node
	asked, err := e.isAskedFor(ctx, of.pv.Name, to)
	if err != nil {
		return wire.Connection{}, failure(err)
	}
	if by, known := e.routes.of(to.Volume); known {
		if err := e.fits(to.Node, shared, by); err != nil {
			return wire.Connection{}, failure(err)
		}
	}
	backend := of.at.Backend
	volumes, err := e.Volumes(backend)
	if err != nil {
		return wire.Connection{}, failure(err)
	}
	at := place{backend, to.Node.Name}
	placed, err := e.room.takePlace(ctx, volumes, to.Volume, at)
	if err != nil {
		return wire.Connection{}, failure(err)
	}
	if !e.Gate.Close(to.Volume) {
		return wire.Connection{}, failure(&controller.Failure{Kind: string(cinder.KindConflict), Message: fmt.Sprintf("volume %s is being detached from a node that has let go of it, or its group is being snapshotted", to.Volume)})
	}
	defer e.Gate.Open(to.Volume)
	target := of.target
	target.Permit = e.stillThere(of.pv)
	started, begun := time.Now(), false
	useless := false      // the attachment that the node has, which it may not stage
	var released []string // nodes
	var found mappers.NodeConnection
	taken := false // from a node that may still write to it
	published, err := volumes.Publish(e.OnBehalfOf(ctx, of.tenant), target, backends.PublishRequest{
		Node: to.Node.Name, Key: to.Node.Key(), Connector: e.connectorOf(to.Node), ReadOnly: to.ReadOnly, Shared: to.Shared,
		// A node that already has the volume gets the same answer again, even if it gets no
		// other.
		Admit: func(ctx context.Context) error {
			err := e.lost.barred(ctx, to.Volume, at.node)
			begun = begun || err == nil
			return err
		},
		Release: func(ctx context.Context, node, key string) (bool, error) {
			// Nothing but Kubernetes shows that the other node has let go.
			if node = e.nameOfNode(node, key); node == "" || !asked {
				return false, nil
			}
			lets, err := e.lost.release(ctx, of.pv.Name, to.Volume, node, to.Node)
			if err == nil && lets {
				released = append(released, node)
				err = e.drop(ctx, of.pv.Name, node)
			}
			return lets, err
		},
		HandOut: func(ctx context.Context, published backends.Published) (err error) {
			if begun && len(e.unsettled.takenFrom(at.node)) > 0 {
				return justTaken(at.node)
			}
			if !begun {
				if useless, err = e.lost.mayNotStage(ctx, at.node, published.AttachmentID); err != nil || useless {
					return cmp.Or(err, endedBefore(to.Volume, at.node))
				}
			}
			rules := e.Rules(backend)
			cephSecret := rules.CephSecret
			var opened passphrases
			connection, err := mappers.ParseConnection(published.Document)
			if err == nil {
				request := mappers.NodeRequest{Encrypted: published.Volume.Encrypted, Ports: to.Node.PortNames}
				fixed := operatorsSecret{e.Client, e.Namespace, rules.FixedKeySecret}
				request.Encryption, opened, err = encryptionOf(ctx, volumes, connection, published.Volume, objects.EncryptedOf(of.pv), fixed)
				if err == nil {
					found, err = operatorsSecret{e.Client, e.Namespace, cephSecret}.forNode(ctx, connection, request)
				}
			}
			e.Reach.note(backend, published.Volume, cephSecret, err)
			if refused := new(mappers.Refusal); errors.As(err, &refused) {
				e.routes.remember(to.Volume, route{refused: err, node: to.Node.Name, seen: time.Now()})
				tell(e.Recorder, of.pv, refused)
			}
			if err == nil {
				by := routeOf(found)
				if err = e.fits(to.Node, shared, by); err != nil {
					e.routes.remember(to.Volume, by)
				}
			}
			if err == nil {
				err = asBefore(to, published.ReadOnly, found.ReadOnly)
			}
			if err == nil && found.Protocol == mappers.ProtocolRBD && !to.Shared {
				taken, err = takenByLock(e, to.Volume, to.Node.Name)
			}
			if err != nil {
				return err
			}
			if opened.Unusable != nil {
				e.Logger.Warn("A volume that gets a new key is opened with only one of its keys", "volume", to.Volume.String(), "persistentVolume", of.pv.Name, "error", opened.Unusable)
			}
			found.Credentials = withPassphrases(found.Credentials, opened)
			return e.keep(ctx, of.pv, to.Node.Name, found.Credentials)
		},
	})
	if useless {
		// The volume was not staged with it, and never can be. The next call makes another.
		from := backends.UnpublishRequest{Node: at.node, Key: to.Node.Key(), Others: e.detaching.keysThatStay(of.pv.Name, to.Volume, at.node)}
		if err := volumes.Unpublish(e.OnBehalfOf(ctx, of.tenant), of.target, from); err != nil {
			return wire.Connection{}, failure(err)
		}
	}
	if err != nil {
		// An attachment that was begun may exist at Cinder until the volume is
		// detached.
		if placed && !begun {
			e.places.leave(at, to.Volume.String())
		}
		return wire.Connection{}, shared.explain(failure(err))
	}
	for _, node := range released {
		e.unsettled.paid(node, to.Volume)
	}
	if !begun {
		// It was never taken from the node.
		e.unsettled.over(to.Node.Name, to.Volume)
		// The node may have mapped its image as an earlier answer said.
		taken = taken || keepsOut(e, to.Node.Name, to.Volume)
	}
	e.unsettled.lock(to.Node.Name, to.Volume, taken)
	if begun {
		e.Metrics.attached(backend, found.Protocol, time.Since(started))
	}
	e.Logger.Info("Attached a volume to a node", "volume", to.Volume.String(), "persistentVolume", of.pv.Name, "node", to.Node.Name,
		"attachment", published.AttachmentID, "protocol", found.Protocol, "paths", len(found.Paths), "warnings", found.Warnings)
	connection := wire.Connection{
		Protocol: found.Protocol, Identities: found.Identities, Credentials: found.Credentials != nil, ReadOnly: found.ReadOnly || to.ReadOnly, Bytes: published.Volume.SizeGiB << 30,
		Attachment: published.AttachmentID, Shared: to.Shared, Taken: taken,
	}
	if found.Encryption != nil {
		connection.Encryption = &wire.Encryption{LUKS: found.Encryption.LUKS, Cipher: found.Encryption.Cipher, KeyBits: found.Encryption.KeyBits}
	}
	if found.Limits != (mappers.Limits{}) {
		connection.Limits = new(wire.Limits(found.Limits))
	}
	if objects.IsSwapped(of.pv) {
		about := objects.VolumeContextOf(of.pv)
		connection.Volume = &wire.SwappedVolume{ID: of.at.ID, FilesystemUUIDs: about.FilesystemUUIDs, NeverFormat: about.NeverFormat}
	}
	warn(e.Recorder, of.pv, found.Unenforced)
	for _, path := range found.Paths {
		connection.Paths = append(connection.Paths, wire.Path{Portal: path.Portal, Target: path.Target, LUN: path.LUN})
	}
	return connection, nil
}

// tell tells the owner of a claim why its pods do not start.
func tell(recorder eventrecord.EventRecorder, pv *corev1.PersistentVolume, refused *mappers.Refusal) {
	tellOwner(recorder, pv, string(refused.Reason), refused.Message)
}

// warn tells the owner of a claim which limits of its volume do not hold.
func warn(recorder eventrecord.EventRecorder, pv *corev1.PersistentVolume, warnings []string) {
	for _, warning := range warnings {
		tellOwner(recorder, pv, "ConnectionWarning", warning)
	}
}

func tellOwner(recorder eventrecord.EventRecorder, pv *corev1.PersistentVolume, reason, message string) {
	if claim := pv.Spec.ClaimRef; claim != nil {
		recorder.Event(&corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID},
			corev1.EventTypeWarning, reason, message)
	}
}

func routeOf(found mappers.NodeConnection) route {
	by := route{protocol: found.Protocol, seen: time.Now()}
	for _, path := range found.Paths {
		by.targets = append(by.targets, path.Target)
	}
	return by
}

// asBefore returns an error if a node has the volume for writing and is to have it for
// reading, or the reverse. Cinder before microversion 3.54 has no attachments for
// reading, so what is recorded counts, too. If Cinder itself grants a volume only for
// reading, a call may still ask for it as if for writing.
func asBefore(to controller.PublishRequest, recorded, granted bool) error {
	has, asked := "writing", "reading"
	switch {
	case recorded && !to.ReadOnly:
		has, asked = asked, has
	case !to.ReadOnly || recorded || granted:
		return nil
	}
	return &controller.Failure{Kind: controller.AlreadyExists, Message: fmt.Sprintf("node %s has volume %s for %s, and can get it for %s only after it is detached there", to.Node.Name, to.Volume, has, asked)}
}

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
		object, exists, err := e.PersistentVolumes.GetByKey(pv.Name)
		if err != nil {
			return err
		}
		now, ok := object.(*corev1.PersistentVolume)
		if !exists || !ok || now.UID != pv.UID || now.DeletionTimestamp != nil {
			return &controller.Failure{Kind: string(cinder.KindConflict), Message: fmt.Sprintf("PersistentVolume %s was deleted in the meantime", pv.Name)}
		}
		return nil
	}
}

// Unpublish implements controller.Engine. It needs neither the Node object nor the
// PersistentVolume, because it must be able to detach a volume after they are gone.
func (e *Engine) Unpublish(ctx context.Context, volume wire.Handle, nodeID string) error {
	volumes, of, err := e.attached(ctx, volume)
	if err != nil {
		return failure(err)
	}
	var nodes []string
	if nodeID != "" {
		nodes, err = e.detaching.leaving(ctx, of.target.Stamp.PV, nodeID)
	} else {
		nodes, err = e.having(ctx, volumes, volume, of)
	}
	if err != nil {
		return failure(err)
	}
	var first error
	for _, node := range nodes {
		// A node that must keep the volume does not stop the others from being
		// detached.
		if err := e.detach(ctx, volumes, volume, of, node, false); err != nil && first == nil {
			first = err
		}
	}
	return failure(first)
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

// Volume implements controller.Engine.
func (e *Engine) Volume(ctx context.Context, volume wire.Handle) (controller.Volume, error) {
	of, err := e.volumeOf(volume)
	if err != nil {
		return controller.Volume{}, failure(err)
	}
	volumes, err := e.Volumes(of.at.Backend)
	if err != nil {
		return controller.Volume{}, failure(err)
	}
	v, found, err := volumes.Find(e.OnBehalfOf(ctx, of.tenant), of.at.ID)
	switch {
	case err != nil:
		return controller.Volume{}, failure(err)
	case !found:
		return controller.Volume{}, &controller.Failure{Kind: string(cinder.KindNotFound), Message: fmt.Sprintf("backend %s has no volume %s", of.at.Backend, of.at.ID)}
	case !of.target.Stamp.Owns(v):
		return controller.Volume{}, &controller.Failure{Kind: string(backends.KindNotOurs), Message: fmt.Sprintf("volume %s does not carry the stamp of PersistentVolume %s", of.at.ID, of.pv.Name)}
	}
	return controller.Volume{MultiAttach: v.MultiAttach, Context: of.pv.Spec.CSI.VolumeAttributes}, nil
}

// failure turns an error into one that the controller knows. Errors of no known kind
// stay as they are, and are never final.
func failure(err error) error {
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
