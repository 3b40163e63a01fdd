package controller

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

// ControllerPublishVolume implements csi.ControllerServer.
func (s *Server) ControllerPublishVolume(ctx context.Context, request *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	switch {
	case request.GetNodeId() == "":
		return nil, status.Error(codes.InvalidArgument, "the request has no node_id")
	case request.GetVolumeCapability() == nil:
		return nil, status.Error(codes.InvalidArgument, "the request has no volume_capability")
	}
	of, mistake := accessFor(request.GetVolumeCapability())
	if mistake != "" {
		return nil, status.Error(codes.InvalidArgument, mistake)
	}
	volume, err := handleIn("volume_id", request.GetVolumeId())
	if err != nil {
		return nil, err
	}
	node, err := wire.ParseNodeID(request.GetNodeId())
	if err != nil {
		return nil, status.Error(codes.NotFound, err.Error())
	}
	return alone(ctx, s, volume.String(), func(ctx context.Context) (*csi.ControllerPublishVolumeResponse, error) {
		connection, err := s.Attacher.Publish(ctx, PublishRequest{Volume: volume, Node: node, ReadOnly: of.readOnly || request.GetReadonly(), Shared: of.shared})
		if err != nil {
			return nil, answer(err)
		}
		published, err := connection.PublishContext()
		if err != nil {
			return nil, status.Error(codes.FailedPrecondition, err.Error())
		}
		return &csi.ControllerPublishVolumeResponse{PublishContext: published}, nil
	})
}
