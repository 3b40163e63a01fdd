package controller

import (
	"context"
	"path"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Intercept observes a call, and logs failures by method and volume only, because
// requests and answers may contain what must not be logged. It is a
// grpc.UnaryServerInterceptor.
func (s *Server) Intercept(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	method, started := path.Base(info.FullMethod), time.Now()
	switch method {
	case "ControllerPublishVolume", "ControllerUnpublishVolume", "ListVolumes":
		s.attacher.Store(started.UnixNano())
	}
	response, err := handler(ctx, request)
	code, took := status.Code(err), time.Since(started)
	s.Observe(method, code.String(), took)
	if code != codes.OK {
		volume := ""
		if of, ok := request.(interface{ GetVolumeId() string }); ok {
			volume = of.GetVolumeId()
		}
		s.Logger.Warn("A call of the CSI driver failed", "method", method, "volume", volume, "code", code.String(), "took", took, "error", status.Convert(err).Message())
	}
	return response, err
}
