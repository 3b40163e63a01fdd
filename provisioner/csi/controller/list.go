package controller

import (
	"context"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

// Listed is a volume in a list.
type Listed struct {
	Volume wire.Handle
	Bytes  int64
	// NodeIDs are the IDs of the nodes that have the volume.
	NodeIDs []string
}

// ListVolumes implements csi.ControllerServer.
func (s *Server) ListVolumes(ctx context.Context, request *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	if request.GetMaxEntries() < 0 {
		return nil, status.Error(codes.InvalidArgument, "max_entries is negative")
	}
	last, err := s.pageAfter(request.GetStartingToken())
	if err != nil {
		return nil, err
	}
	// Later pages continue the first page's list.
	all, err := s.Attacher.List(ctx, last == "")
	if err != nil {
		return nil, answer(err)
	}
	slices.SortFunc(all, func(a, b Listed) int { return strings.Compare(a.Volume.String(), b.Volume.String()) })
	all = slices.DeleteFunc(all, func(v Listed) bool { return last != "" && v.Volume.String() <= last })
	response := &csi.ListVolumesResponse{}
	if most := pageOf(request.GetMaxEntries()); most < len(all) {
		all = all[:most]
		response.NextToken = s.tokenAfter(all[most-1].Volume.String())
	}
	for _, v := range all {
		response.Entries = append(response.Entries, &csi.ListVolumesResponse_Entry{
			Volume: volumeOf(v), Status: &csi.ListVolumesResponse_VolumeStatus{PublishedNodeIds: v.NodeIDs},
		})
	}
	return response, nil
}

func volumeOf(v Listed) *csi.Volume {
	return &csi.Volume{VolumeId: v.Volume.String(), CapacityBytes: v.Bytes}
}
