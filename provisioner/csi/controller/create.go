package controller

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

// Maker creates and removes volumes. For each name or volume there is one call at a time.
type Maker interface {
	// Create returns the volume of that name once it can be used.
	Create(ctx context.Context, wanted Creation) (Created, error)
	// Delete removes a volume, and returns once it is gone.
	Delete(ctx context.Context, volume wire.Handle) error

	// MakesSnapshot reports whether TakeSnapshot, rather than that of the Snapshotter,
	// handles a call with these parameters.
	MakesSnapshot(parameters map[string]string) bool
	// TakeSnapshot returns the snapshot of that name once it is ready.
	TakeSnapshot(ctx context.Context, volume wire.Handle, name string, parameters map[string]string) (Snapshot, error)
	// RemoveSnapshot removes a snapshot taken by TakeSnapshot. If removed is false, the
	// Snapshotter handles the call.
	RemoveSnapshot(ctx context.Context, snapshot wire.Handle) (removed bool, err error)
}

// Creation is the request to Create.
type Creation struct {
	Name string
	// Bytes is the minimum size of the volume. AtMost is the maximum size, unless it is
	// 0.
	Bytes, AtMost int64
	Parameters    map[string]string
	Block         bool
	AccessModes   []AccessMode
	// FromVolume and FromSnapshot name the source of a copy; at most one of them is set.
	FromVolume, FromSnapshot string
	// Type is the volume type that a VolumeAttributesClass names; empty without one.
	Type string
}

// AccessMode is one of the access modes that Kubernetes also has.
type AccessMode int

// The access modes.
const (
	OneNode AccessMode = iota
	OnePod
	ManyReaders
	ManyWriters
)

// Created describes a volume that Create returns.
type Created struct {
	Volume  wire.Handle
	Bytes   int64
	Context map[string]string
}

const gib = 1 << 30

// patience is the longest time that a call waits.
const patience = time.Minute

// answerBefore is how long before the caller's deadline a call is answered.
const answerBefore = 500 * time.Millisecond

// CreateVolume implements csi.ControllerServer.
func (s *Server) CreateVolume(ctx context.Context, request *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	wanted, err := creationOf(request)
	if err != nil {
		return nil, err
	}
	return whileWaiting(ctx, s, "the volume named "+wanted.Name, func(ctx context.Context) (*csi.CreateVolumeResponse, error) {
		created, err := s.Maker.Create(ctx, wanted)
		if err != nil {
			return nil, answerWithoutRoom(err)
		}
		return &csi.CreateVolumeResponse{Volume: &csi.Volume{
			VolumeId: created.Volume.String(), CapacityBytes: created.Bytes, VolumeContext: created.Context, ContentSource: request.GetVolumeContentSource(),
		}}, nil
	})
}

func creationOf(request *csi.CreateVolumeRequest) (Creation, error) {
	refuse := func(code codes.Code, message string) (Creation, error) {
		return Creation{}, status.Error(code, message)
	}
	wanted := Creation{Name: request.GetName(), Parameters: request.GetParameters()}
	switch {
	case request.GetName() == "":
		return refuse(codes.InvalidArgument, "the request has no name")
	case len(request.GetVolumeCapabilities()) == 0:
		return refuse(codes.InvalidArgument, "the request has no volume_capabilities")
	case request.GetAccessibilityRequirements() != nil:
		return refuse(codes.InvalidArgument, "the request has accessibility_requirements, but the driver has no topology of its own")
	}
	if len(request.GetMutableParameters()) > 0 {
		var err error
		if wanted.Type, err = typeOf(request.GetMutableParameters()); err != nil {
			return Creation{}, err
		}
	}
	for i, capability := range request.GetVolumeCapabilities() {
		_, mistake := accessFor(capability)
		block := capability.GetBlock() != nil
		switch {
		case mistake != "":
			return refuse(codes.InvalidArgument, mistake)
		case i > 0 && block != wanted.Block:
			return refuse(codes.InvalidArgument, "the volume_capabilities have both access types, and a volume has one")
		}
		wanted.Block = block
		if mode := modeOf(capability.GetAccessMode().GetMode()); !slices.Contains(wanted.AccessModes, mode) {
			wanted.AccessModes = append(wanted.AccessModes, mode)
		}
	}
	required, most := request.GetCapacityRange().GetRequiredBytes(), request.GetCapacityRange().GetLimitBytes()
	switch {
	case required < 0 || most < 0:
		return refuse(codes.InvalidArgument, "the capacity_range is negative")
	case most > 0 && most < required:
		return refuse(codes.InvalidArgument, "the capacity_range ends before it begins")
	}
	wanted.Bytes, wanted.AtMost = cmp.Or(required, gib), most
	if whole := wanted.Bytes/gib + min(wanted.Bytes%gib, 1); most > 0 && whole > most/gib {
		return refuse(codes.OutOfRange, "volumes have whole GiB, and the capacity_range includes no such size")
	}
	switch source := request.GetVolumeContentSource(); {
	case source == nil:
	case source.GetVolume().GetVolumeId() != "":
		wanted.FromVolume = source.GetVolume().GetVolumeId()
	case source.GetSnapshot().GetSnapshotId() != "":
		wanted.FromSnapshot = source.GetSnapshot().GetSnapshotId()
	default:
		return refuse(codes.InvalidArgument, "the volume_content_source names neither a volume nor a snapshot")
	}
	return wanted, nil
}

// modeOf converts an access mode of the specification that accessFor knows.
func modeOf(mode csi.VolumeCapability_AccessMode_Mode) AccessMode {
	switch mode {
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER:
		return OnePod
	case csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY:
		return ManyReaders
	case csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER, csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER:
		return ManyWriters
	}
	return OneNode
}

// whileWaiting does work that mostly waits and can be canceled cleanly. It ends the work
// with the term, and before its caller gives up, so that the caller learns what the work
// is waiting for. Until then, it refuses other calls for the same thing.
func whileWaiting[T any](ctx context.Context, s *Server, what string, work func(context.Context) (T, error)) (T, error) {
	if err := s.begin(what); err != nil {
		var none T
		return none, err
	}
	defer s.end(what)
	return untilAnswer(ctx, s, work)
}

// untilAnswer does work that mostly waits, until its caller must get an answer or the
// term ends.
func untilAnswer[T any](ctx context.Context, s *Server, work func(context.Context) (T, error)) (T, error) {
	s.running.Add(1)
	defer s.running.Done()
	until := time.Now().Add(patience)
	if deadline, has := ctx.Deadline(); has && deadline.Add(-answerBefore).Before(until) {
		until = deadline.Add(-answerBefore)
	}
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	defer context.AfterFunc(s.Work, cancel)()
	return work(ctx)
}
