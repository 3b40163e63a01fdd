package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/controller"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/socket"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/attach"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/createvolume"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/outofservice"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/retype"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/snapshot"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodeuse"
	"github.com/standalone-cinder/standalone-cinder/provisioner/statusreport"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

// listenForSidecars opens the socket of the CSI driver, if one is configured. Until a
// term serves it, calls are answered with an error that this replica does not lead.
func (s *server) listenForSidecars() error {
	if s.options.CSIEndpoint == "" {
		return nil
	}
	path, err := socket.PathOf(s.options.CSIEndpoint)
	if err != nil {
		return err
	}
	if s.options.Network == nil {
		s.csiSocket, err = socket.Listen(path, s.logger)
	} else {
		var listener net.Listener
		if listener, err = s.options.Network.Listen("unix", path); err == nil {
			s.csiSocket = socket.New(listener, s.logger)
		}
	}
	if err != nil {
		return err
	}
	s.csiSocket.Introduce(wire.DriverName, s.options.Build.Version)
	return nil
}

// closeToSidecars removes the socket if there is one.
func (s *server) closeToSidecars() {
	if s.csiSocket == nil {
		return
	}
	if err := s.csiSocket.Close(); err != nil {
		s.logger.Warn("Could not remove the CSI socket", "error", err)
	}
}

// csiTerm serves the sidecars for one term.
type csiTerm struct {
	socket *socket.Socket
	server *controller.Server
	engine *attach.Engine
	// term ends with the lease.
	term context.Context
	// silent is called if csi-attacher is silent for longer than patience, with a
	// VolumeAttachment that waits for it; patience is zero for never.
	silent   func(attachment string)
	patience *patience
}

// patience is how long a leader waits for its csi-attacher; zero means for ever. It
// doubles whenever it was in vain, because the other replicas may have none either, and
// each hand-over interrupts what works.
type patience struct{ initial, now time.Duration }

// maxPatience bounds how often the leader changes in a cluster without csi-attacher.
const maxPatience = time.Hour

func newPatience(initial time.Duration) *patience { return &patience{initial, initial} }

func (p *patience) wasInVain() { p.now = max(p.initial, min(2*p.now, maxPatience)) }
func (p *patience) wasRight()  { p.now = p.initial }

// watchAttacher hands over if VolumeAttachments wait and csi-attacher does not call: its
// container may be dead, hang, or lack its image, and those beside other replicas may
// work. Its own liveness probe would not see that.
func (c *csiTerm) watchAttacher(work context.Context) {
	if c.patience.initial == 0 {
		return
	}
	heard := time.Now()
	waits := heard // since when something has waited
	for {
		select {
		case <-work.Done():
			return
		case <-time.After(c.patience.initial / 10):
		}
		called := c.server.AttacherCalled()
		if called.After(heard) {
			heard = called
			c.patience.wasRight()
		}
		attachment := c.engine.Awaited()
		if attachment == "" || called.After(waits) {
			waits = time.Now()
		}
		if time.Since(waits) > c.patience.now {
			c.silent(attachment)
			c.patience.wasInVain()
			waits = time.Now()
		}
	}
}

// attacherIsSilent tells that the csi-attacher of this pod does nothing, and lets another
// replica lead.
func (e *elector) attacherIsSilent(attachment string, handOver func()) {
	message := fmt.Sprintf("VolumeAttachment %s has waited for %s without a call from the csi-attacher beside replica %s; see why that container does not work",
		attachment, e.patience.now, e.identity)
	if e.options.LeaderElect {
		message += "; another replica takes over"
	}
	e.logger.Warn("The csi-attacher of this pod is silent", "volumeAttachment", attachment, "for", e.patience.now)
	e.tell(corev1.EventTypeWarning, "AttacherSilent", message)
	if e.options.LeaderElect {
		e.standsBack = true
		handOver()
	}
}

// newCSI makes a term's CSI controller; nil without a socket. handOver ends the term.
func (e *elector) newCSI(work, termCtx context.Context, t *term, handOver func()) *csiTerm {
	if e.csiSocket == nil {
		return nil
	}
	engine := attach.New(attach.Options{
		Gate:              t.gate,
		Cluster:           e.cluster,
		Namespace:         e.namespace,
		Volumes:           func(backend string) (attach.Volumes, error) { return t.backends.current(backend) },
		Backends:          func() []string { return e.policy.Load().CSIBackends() },
		OnBehalfOf:        t.provisioner.OnBehalfOf,
		Client:            e.client,
		PersistentVolumes: e.factory.Core().V1().PersistentVolumes().Informer().GetIndexer(),
		CSINodes:          attach.Cache[storagev1.CSINode]{Store: e.nodes.csiNodes.GetStore(), Known: e.nodes.csiNodes.HasSynced},
		Attachments:       attach.Cache[storagev1.VolumeAttachment]{Store: e.nodes.attachments.GetStore(), Known: e.nodes.attachments.HasSynced},
		Nodes:             attach.Cache[corev1.Node]{Store: e.nodes.nodes.GetStore(), Known: e.nodes.nodes.HasSynced},
		Reports:           attach.Cache[coordinationv1.Lease]{Store: e.nodes.reports.GetStore(), Known: e.nodes.reports.HasSynced},
		Rules:             t.backends.attachRules,
		Reach:             t.reach,
		Expansions:        t.expander,
		Types: func() attach.Types {
			return &retype.Retyper{
				Client: e.client, Policy: e.policy.Load(), ProvisionerName: e.options.ProvisionerName, Cluster: e.cluster,
				Volumes: func(backend string) (retype.Volumes, error) {
					lifecycle, err := t.backends.current(backend)
					return lifecycle.Snapshots(), err
				},
			}
		},
		Recorder: e.recorder,
		Metrics:  e.attachMetrics,
		Logger:   e.logger,
	})
	snapshots := csiSnapshots{snapshot.Sidecar{Controller: t.snapshots}, engine}
	silent := func(attachment string) { e.attacherIsSilent(attachment, handOver) }
	return &csiTerm{socket: e.csiSocket, term: termCtx, engine: engine, silent: silent, patience: e.patience, server: controller.New(controller.Options{
		Attacher:  engine,
		Expander:  engine,
		Modifier:  engine,
		Snapshots: snapshots,
		Groups:    snapshots,
		Maker:     e.newMaker(t),
		Version:   e.options.Build.Version,
		Work:      work,
		Logger:    e.logger,
		Observe:   e.attachMetrics.Observe,
	})}
}

// newOutOfService makes a term's controller that takes lost nodes out of service.
func (e *elector) newOutOfService(t *term) *outofservice.Controller {
	return outofservice.New(outofservice.Options{
		Namespace:   e.namespace,
		Client:      e.client,
		Attachments: attach.FenceOf(t.sidecars.engine),
		Nodes:       e.nodes.nodes.GetStore(),
		NodesKnown:  e.nodes.nodes.HasSynced,
		Claims:      e.factory.Core().V1().PersistentVolumeClaims().Lister(),
		Volumes:     e.factory.Core().V1().PersistentVolumes().Lister(),
		Share:       e.options.TaintLostNodesShare,
		Recorder:    e.recorder,
		Metrics:     e.outOfServiceMetrics,
		Logger:      e.logger,
		Board:       t.board,
		Monitor:     e.monitor,
		MaxWorkTime: e.maxWorkTime,
	})
}

// csiSnapshots takes the term's snapshots for the CSI driver.
type csiSnapshots struct {
	of     snapshot.Sidecar
	engine *attach.Engine
}

// TakeSnapshot implements controller.Snapshotter.
func (s csiSnapshots) TakeSnapshot(ctx context.Context, volume wire.Handle, name string, parameters map[string]string) (controller.Snapshot, error) {
	pv, err := attach.Changeable(s.engine, volume)
	if err != nil {
		return controller.Snapshot{}, attach.Failure(err)
	}
	taken, err := s.of.Take(ctx, pv, name, parameters)
	return s.answer(taken), attach.Failure(err)
}

// RemoveSnapshot implements controller.Snapshotter.
func (s csiSnapshots) RemoveSnapshot(ctx context.Context, snapshot wire.Handle) error {
	return attach.Failure(s.of.Remove(ctx, snapshot.Backend, snapshot.ID))
}

// ListSnapshots implements controller.Snapshotter.
func (s csiSnapshots) ListSnapshots(ctx context.Context, wanted controller.Listing) ([]controller.Snapshot, error) {
	if wanted.Volume.Backend != "" {
		var err error
		if wanted.Volume, err = attach.Locate(s.engine, wanted.Volume); err != nil {
			return nil, attach.Failure(err)
		}
	}
	if wanted.Snapshot.Backend != "" && wanted.Volume.Backend != "" && wanted.Snapshot.Backend != wanted.Volume.Backend {
		return nil, nil
	}
	found, err := s.of.List(ctx, cmp.Or(wanted.Snapshot.Backend, wanted.Volume.Backend), wanted.Snapshot.ID, wanted.Volume.ID, wanted.Again)
	return s.answers(found, err)
}

// TakeGroup implements controller.Grouper.
func (s csiSnapshots) TakeGroup(ctx context.Context, volumes []wire.Handle, name string, parameters map[string]string) ([]controller.Snapshot, error) {
	var pvs []*corev1.PersistentVolume
	for _, volume := range volumes {
		pv, err := attach.Changeable(s.engine, volume)
		if err != nil {
			return nil, attach.Failure(err)
		}
		pvs = append(pvs, pv)
	}
	return s.answers(s.of.TakeGroup(ctx, pvs, name, parameters))
}

// RemoveGroup implements controller.Grouper.
func (s csiSnapshots) RemoveGroup(ctx context.Context, handle string) error {
	return attach.Failure(s.of.RemoveGroup(ctx, handle))
}

// GroupStatus implements controller.Grouper.
func (s csiSnapshots) GroupStatus(ctx context.Context, handle string) ([]controller.Snapshot, error) {
	return s.answers(s.of.GroupStatus(ctx, handle))
}

func (s csiSnapshots) answers(taken []snapshot.Taken, err error) (all []controller.Snapshot, _ error) {
	for _, one := range taken {
		all = append(all, s.answer(one))
	}
	return all, attach.Failure(err)
}

// answer names the volume by the handle that its claim's PersistentVolume has: by that,
// sidecars and snapshot-controller find the claim.
func (s csiSnapshots) answer(of snapshot.Taken) controller.Snapshot {
	return controller.Snapshot{
		Handle: wire.Handle{Backend: of.Backend, ID: of.ID}, Volume: attach.HandleAt(s.engine, of.Backend, of.VolumeID),
		Bytes: of.SizeGiB << 30, Created: of.CreatedAt, NotReady: of.Status != cinder.StatusAvailable, Group: of.Group,
	}
}

// newMaker makes the Maker that answers CreateVolume and DeleteVolume.
func (e *elector) newMaker(t *term) *createvolume.Maker {
	waits := func(pending []statusreport.Pending) (createvolume.Waits, bool) {
		if len(pending) == 0 {
			return createvolume.Waits{}, false
		}
		return createvolume.Waits{Denied: pending[0].State == string(parking.Denied), Reason: pending[0].Reason, Message: pending[0].Message}, true
	}
	attachments := nodeuse.New(nodeuse.Options{Client: e.client, Caches: e.nodes.caches()})
	return createvolume.New(createvolume.Options{
		Cluster:           e.cluster,
		TrustParameters:   e.options.CSITrustParameters,
		Client:            e.client,
		SnapshotClient:    e.snapshotClient,
		Classes:           e.factory.Storage().V1().StorageClasses().Lister(),
		PersistentVolumes: e.factory.Core().V1().PersistentVolumes().Informer().GetIndexer(),
		Serves: func(named string) bool {
			return named == e.options.ProvisionerName || named == policy.CSIDriver && e.policy.Load().UsesCSI()
		},
		ClaimWaits: func(namespace, claim string) (createvolume.Waits, bool) {
			return waits(t.provisioner.ReportClaims(provisioner.Selected{Namespace: namespace, Claim: claim, Limit: 1}).Pending)
		},
		DeletionWaits: func(namespace, claim string) (createvolume.Waits, bool) {
			return waits(t.provisioner.ReportDeletions(provisioner.Selected{Namespace: namespace, Claim: claim, Limit: 1}).Pending)
		},
		IsAttached: func(pv string) (bool, error) {
			found, known, err := attachments.KnownAttachments(pv)
			if err == nil && !known {
				err = errors.New("the VolumeAttachments are not read yet")
			}
			return len(found) > 0, err
		},
		Volumes:   func(backend string) (createvolume.Volumes, error) { return t.backends.current(backend) },
		Snapshots: t.snapshots,
		Logger:    e.logger,
	})
}

// Run serves until the work ends. Calls under way still get their answers, unless the
// lease is lost: then the fence keeps them from changing anything more. It returns when
// no connection is open and no call is under way.
func (c *csiTerm) Run(work context.Context) {
	c.socket.Lead(socket.Services{Identity: c.server, Controller: c.server, Groups: c.server, Intercept: c.server.Intercept})
	var watch sync.WaitGroup
	watch.Go(func() { c.watchAttacher(work) })
	c.engine.Run(work)
	watch.Wait()
	c.socket.Retire(c.term)
	c.socket.Follow()
	c.server.Wait()
}

// attachRules returns what the policy in force, or the last one that had the backend,
// says about attaching the backend's volumes.
func (t *termBackends) attachRules(name string) attach.Rules {
	_, backend, err := t.find(name)
	if err != nil {
		return attach.Rules{}
	}
	return attach.Rules{VolumesPerNode: backend.VolumesPerNode(), FencedByInitiator: backend.Fencing() == policy.FencingInitiator, CephSecret: backend.CephSecret(), FixedKeySecret: backend.FixedKeySecret()}
}

// onlyDriver keeps of a CSINode only what the driver itself registered.
func onlyDriver(node *storagev1.CSINode) *storagev1.CSINode {
	kept := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion}}
	for _, driver := range node.Spec.Drivers {
		if driver.Name == wire.DriverName {
			kept.Spec.Drivers = []storagev1.CSINodeDriver{{Name: driver.Name, NodeID: driver.NodeID}}
		}
	}
	return kept
}
