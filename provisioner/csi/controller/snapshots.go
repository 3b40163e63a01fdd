package controller

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

// Snapshotter takes and removes snapshots.
type Snapshotter interface {
	// TakeSnapshot takes the snapshot of that name, or finds it, and returns when it is
	// ready.
	TakeSnapshot(ctx context.Context, volume wire.Handle, name string, parameters map[string]string) (Snapshot, error)
	// RemoveSnapshot removes a snapshot. It succeeds if the snapshot is already gone.
	RemoveSnapshot(ctx context.Context, snapshot wire.Handle) error
	// ListSnapshots lists snapshots in the order of their handles.
	ListSnapshots(ctx context.Context, wanted Listing) ([]Snapshot, error)
}

// Snapshot describes a snapshot, ready unless stated otherwise.
type Snapshot struct {
	Handle, Volume wire.Handle
	Bytes          int64
	Created        time.Time
	NotReady       bool
	// Group is the handle of the group that it was taken with; empty without one.
	Group string
}

// Listing selects the snapshots to list: the one with a handle, those of a volume, or all
// if both are zero.
type Listing struct {
	Snapshot, Volume wire.Handle
	// Again means that a later page continues the first page's list.
	Again bool
}

func (s Snapshot) message() *csi.Snapshot {
	return &csi.Snapshot{SnapshotId: s.Handle.String(), SourceVolumeId: s.Volume.String(), SizeBytes: s.Bytes, CreationTime: timestamppb.New(s.Created), ReadyToUse: !s.NotReady, GroupSnapshotId: s.Group}
}

// CreateSnapshot implements csi.ControllerServer.
func (s *Server) CreateSnapshot(ctx context.Context, request *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	if request.GetName() == "" {
		return nil, status.Error(codes.InvalidArgument, "the request has no name")
	}
	volume, err := handleIn("source_volume_id", request.GetSourceVolumeId())
	if err != nil {
		return nil, err
	}
	if s.Maker.MakesSnapshot(request.GetParameters()) {
		return whileWaiting(ctx, s, "the snapshot named "+request.GetName(), func(ctx context.Context) (*csi.CreateSnapshotResponse, error) {
			taken, err := s.Maker.TakeSnapshot(ctx, volume, request.GetName(), request.GetParameters())
			if err != nil {
				return nil, answerWithoutRoom(err)
			}
			return &csi.CreateSnapshotResponse{Snapshot: taken.message()}, nil
		})
	}
	return aloneWith(ctx, s, "snapshot "+request.GetName(), func(ctx context.Context) (*csi.CreateSnapshotResponse, error) {
		taken, err := s.Snapshots.TakeSnapshot(ctx, volume, request.GetName(), request.GetParameters())
		if err != nil {
			return nil, answerWithoutRoom(err)
		}
		return &csi.CreateSnapshotResponse{Snapshot: taken.message()}, nil
	})
}

// DeleteSnapshot implements csi.ControllerServer.
func (s *Server) DeleteSnapshot(ctx context.Context, request *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	if request.GetSnapshotId() == "" {
		return nil, status.Error(codes.InvalidArgument, "the request has no snapshot_id")
	}
	snapshot, err := wire.ParseHandle(request.GetSnapshotId())
	if err != nil {
		// The driver never creates snapshots with such handles.
		return &csi.DeleteSnapshotResponse{}, nil
	}
	removed, err := untilAnswer(ctx, s, func(ctx context.Context) (bool, error) { return s.Maker.RemoveSnapshot(ctx, snapshot) })
	switch {
	case err != nil:
		return nil, answer(err)
	case removed:
		return &csi.DeleteSnapshotResponse{}, nil
	}
	return aloneWith(ctx, s, "snapshot "+snapshot.String(), func(ctx context.Context) (*csi.DeleteSnapshotResponse, error) {
		if err := s.Snapshots.RemoveSnapshot(ctx, snapshot); err != nil {
			return nil, answer(err)
		}
		return &csi.DeleteSnapshotResponse{}, nil
	})
}

// ListSnapshots implements csi.ControllerServer.
func (s *Server) ListSnapshots(ctx context.Context, request *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	if request.GetMaxEntries() < 0 {
		return nil, status.Error(codes.InvalidArgument, "max_entries is negative")
	}
	after, err := s.pageAfter(request.GetStartingToken())
	if err != nil {
		return nil, err
	}
	wanted := Listing{Again: after != ""}
	for _, by := range []struct {
		text string
		to   *wire.Handle
	}{{request.GetSnapshotId(), &wanted.Snapshot}, {request.GetSourceVolumeId(), &wanted.Volume}} {
		if by.text == "" {
			continue
		}
		handle, err := wire.ParseHandle(by.text)
		if err != nil {
			return &csi.ListSnapshotsResponse{}, nil // there are none of another driver
		}
		*by.to = handle
	}
	all, err := s.Snapshots.ListSnapshots(ctx, wanted)
	if err != nil {
		return nil, answer(err)
	}
	all = slices.DeleteFunc(slices.Clone(all), func(s Snapshot) bool { return s.Handle.String() <= after })
	slices.SortFunc(all, func(a, b Snapshot) int { return strings.Compare(a.Handle.String(), b.Handle.String()) })
	response := &csi.ListSnapshotsResponse{}
	if most := pageOf(request.GetMaxEntries()); most < len(all) {
		all = all[:most]
		response.NextToken = s.tokenAfter(all[most-1].Handle.String())
	}
	for _, found := range all {
		response.Entries = append(response.Entries, &csi.ListSnapshotsResponse_Entry{Snapshot: found.message()})
	}
	return response, nil
}
