package node

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/host"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

// Options configure a Service.
type Options struct {
	// Root is the node, Files its files, and RBD its client of Ceph.
	Root  host.Root
	Files Files
	RBD   host.RBDKernel
	// StateDir is the directory of the records on the node.
	StateDir string
	// NodeName is the name of the Node object.
	NodeName string
	// Replacement is how long an iSCSI session may be lost before its commands fail; zero
	// means the value in the node's iscsid.conf.
	Replacement time.Duration
	// MakeOptions are extra mkfs options, by filesystem.
	MakeOptions map[string][]string
	// Reporter may be nil; then staged volumes are not reported.
	Reporter Reporter
	// Observer may be nil.
	Observer Observer
	Logger   *slog.Logger
}

// Reporter tells the leader what the node has staged (package staged).
type Reporter interface {
	// Staging returns when the leader can know all volumes that have state files. No
	// volume must be staged if it fails.
	Staging(ctx context.Context, attachment string) error
	// Changed signals that state files have changed.
	Changed()
}

// unreported is a Reporter that does nothing.
type unreported struct{}

func (unreported) Staging(context.Context, string) error { return nil }
func (unreported) Changed()                              {}

// Service is the CSI Node service.
type Service struct {
	csi.UnimplementedNodeServer

	host      *host.SCSI
	state     *state
	encrypted encrypted
	limiter   limiter
	name      string
	make      map[string][]string
	protocols map[string]protocol
	reporter  Reporter
	observer  Observer
	logger    *slog.Logger
	turns     turns
}

// New returns a Service.
func New(o Options) (*Service, error) {
	if o.Observer == nil {
		o.Observer = nobody{}
	}
	if o.Reporter == nil {
		o.Reporter = unreported{}
	}
	node := host.New(o.Root, o.Logger)
	h := &host.SCSI{Host: node}
	boot, err := h.BootID()
	if err != nil {
		return nil, err
	}
	s := &Service{host: h, state: &state{o.Files, o.StateDir, boot, h.MapID}, name: o.NodeName, make: o.MakeOptions, reporter: o.Reporter, observer: o.Observer, logger: o.Logger, turns: newTurns()}
	s.limiter = limiter{h, o.Observer, o.Logger, cgroupPatience}
	s.encrypted = encrypted{h, host.NewCrypt(node), s.state, o.Logger}
	common := scsi{h, s.state, o.Observer, o.Logger}
	s.protocols = map[string]protocol{
		protocolISCSI:        by(&iscsi{scsi: common, sessions: &host.ISCSI{SCSI: h}, iface: "default", replacement: o.Replacement, failed: map[host.Target]time.Time{}}),
		protocolISER:         by(&iscsi{scsi: common, sessions: &host.ISCSI{SCSI: h}, iface: "iser", replacement: o.Replacement, failed: map[host.Target]time.Time{}}),
		protocolNVMeOF:       by(&nvme{&host.NVMe{Host: node}, s.state, o.Observer, o.Logger}),
		protocolFibreChannel: by(&fibreChannel{common, &host.FibreChannel{SCSI: h}}),
		protocolRBD:          by(&rbd{host.NewRBD(node, o.RBD), s.state, o.Observer, o.Logger}),
	}
	return s, nil
}

// NodeGetCapabilities lists what the node can do.
func (s *Service) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	var capabilities []*csi.NodeServiceCapability
	for _, kind := range []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		csi.NodeServiceCapability_RPC_EXPAND_VOLUME,
		csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	} {
		capabilities = append(capabilities, &csi.NodeServiceCapability{Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: kind}}})
	}
	return &csi.NodeGetCapabilitiesResponse{Capabilities: capabilities}, nil
}

// NodeGetInfo returns the names by which the storage knows the node.
func (s *Service) NodeGetInfo(ctx context.Context, _ *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	var errs []error
	for _, tool := range host.MountTools() {
		errs = append(errs, s.host.Need(tool, "the package that provides it"))
	}
	n := wire.Node{Name: s.name, Multipath: s.host.MultipathRuns(ctx)}
	if n.Multipath {
		errs = append(errs, s.host.NeedMultipath())
	}
	errs = append(errs, s.identify(ctx, &n)...)
	id, err := "", errors.Join(errs...)
	if err == nil {
		id, err = n.NodeID()
	}
	if err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	return &csi.NodeGetInfoResponse{NodeId: id}, nil
}

// identify adds the node's names for its protocols. It must have at least one.
func (s *Service) identify(ctx context.Context, n *wire.Node) []error {
	var missing []error
	has := false
	// Fibre Channel comes last: a node ID has little room, and a node with many ports can
	// still use the other protocols.
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(s.protocols)), func(name string) bool { return name == protocolFibreChannel })
	for _, name := range append(names, protocolFibreChannel) {
		with := *n
		err := s.protocols[name].identify(ctx, &with)
		if err == nil && name == protocolFibreChannel {
			_, err = with.NodeID()
		}
		if err == nil {
			*n = with
		}
		has = has || err == nil
		if err != nil && !slices.ContainsFunc(missing, func(e error) bool { return e.Error() == err.Error() }) {
			missing = append(missing, err)
		}
	}
	if !has {
		return missing
	}
	for _, err := range missing {
		s.logger.Info("node lacks some protocols", "error", err)
	}
	return nil
}

// Staged counts the staged volumes.
func (s *Service) Staged() (int, error) {
	records, err := s.state.all()
	staged := 0
	for _, r := range records {
		if r.Staged {
			staged++
		}
		err = errors.Join(err, r.unreadable)
	}
	return staged, err
}

// begin takes the volume's lock. The call continues even if its caller gives up, because
// interrupted work would have to be redone.
func (s *Service) begin(ctx context.Context, volume string) (context.Context, func(), error) {
	release, err := s.state.lock(ctx, "volume", volume, false)
	if errors.Is(err, host.ErrLocked) {
		err = status.Errorf(codes.Aborted, "another call for volume %s is in progress on this node", volume)
	}
	return context.WithoutCancel(ctx), release, err
}

// Tidy removes leftovers of calls that a crash of the plugin interrupted, unless the
// calls are repeated first. Staged volumes stay, because the kubelet knows them.
func (s *Service) Tidy(ctx context.Context) {
	booted, err := s.host.Booted()
	if err == nil {
		err = s.state.tidy(ctx, booted, func(r *record) error { return s.forget(ctx, r) })
	}
	if err != nil {
		s.logger.Warn("state files of an earlier boot could not be removed", "error", err)
	}
	records, err := s.state.all()
	if err != nil {
		s.logger.Warn("state files could not be read", "error", err)
	}
	for _, r := range records {
		if r.unreadable != nil {
			s.logger.Warn("state file of a volume could not be read", "volume", r.Volume, "error", r.unreadable)
			continue
		}
		if r.Staged || ctx.Err() != nil {
			continue
		}
		if err := s.tidyOne(ctx, r.Volume); err != nil && !errors.Is(err, host.ErrLocked) {
			// The next call for the volume tries again, and reports a failure.
			s.logger.Warn("interrupted staging of a volume could not be undone", "volume", r.Volume, "error", err)
		}
	}
}

// load reads a volume's record. First it removes what outlives the boot in which an
// earlier record was written, because only that record knows it.
func (s *Service) load(ctx context.Context, volume string) (*record, error) {
	if r := s.state.read(s.state.file(kindVolumes, volume)); r != nil && r.unreadable == nil && r.Boot != s.state.boot {
		if err := s.forget(ctx, r); err != nil {
			return nil, err
		}
		if err := s.state.remove(volume); err != nil {
			return nil, err
		}
	}
	return s.state.load(volume)
}

func (s *Service) forget(ctx context.Context, r *record) error {
	protocol, err := s.protocolOf(r)
	if err != nil {
		// A release that knew the protocol made the record.
		s.logger.Warn("record of an earlier boot is removed", "volume", r.Volume, "error", err)
		return nil
	}
	return protocol.forget(ctx, r)
}

func (s *Service) tidyOne(ctx context.Context, volume string) error {
	release, err := s.state.lock(ctx, "volume", volume, false)
	if err != nil {
		return err
	}
	defer release()
	defer s.reporter.Changed()
	r, err := s.state.load(volume)
	if err != nil || r == nil || r.Staged {
		return err
	}
	if err := s.takeDown(ctx, r); err != nil {
		return err
	}
	s.logger.Info("interrupted staging of a volume was undone", "volume", volume)
	return nil
}
