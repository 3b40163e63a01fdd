package controller

import (
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

func TestExpansionRequests(t *testing.T) {
	sized := func(volume string, required, limit int64) *csi.ControllerExpandVolumeRequest {
		return &csi.ControllerExpandVolumeRequest{VolumeId: volume, CapacityRange: &csi.CapacityRange{RequiredBytes: required, LimitBytes: limit}}
	}
	for name, test := range map[string]struct {
		request *csi.ControllerExpandVolumeRequest
		engine  engine
		asked   string
		code    codes.Code
		message string
	}{
		"larger":                   {request: sized("gold/v1", 3<<30, 0), asked: "expand gold/v1 to 3221225472"},
		"a limit that fits":        {request: sized("gold/v1", 3<<30-1, 3<<30), asked: "expand gold/v1 to 3221225471"},
		"a limit that fits no GiB": {request: sized("gold/v1", 2<<30+1, 3<<30-1), code: codes.OutOfRange, message: "Cinder makes volumes of whole GiB, and no such size is from 2147483649 to 3221225471 bytes"},
		"no volume":                {request: sized("", 1, 0), code: codes.InvalidArgument, message: "the request has no volume_id"},
		"no size":                  {request: sized("gold/v1", 0, 1<<30), code: codes.InvalidArgument, message: "the request has no capacity_range with required_bytes"},
		"no range":                 {request: &csi.ControllerExpandVolumeRequest{VolumeId: "gold/v1"}, code: codes.InvalidArgument, message: "the request has no capacity_range with required_bytes"},
		"a volume of another driver": {request: sized("vol-1", 1, 0), code: codes.NotFound,
			message: `handle "vol-1" is not <backend>/<ID at Cinder>`},
		"a full quota": {request: sized("gold/v1", 1, 0), engine: engine{err: &Failure{Kind: NoRoom, Message: "full"}}, asked: "expand gold/v1 to 1", code: codes.ResourceExhausted, message: "full"},
		"Cinder's quota": {request: sized("gold/v1", 1, 0), engine: engine{err: &Failure{Kind: "OverQuota", Message: "full"}}, asked: "expand gold/v1 to 1",
			code: codes.ResourceExhausted, message: "full"},
		"too large for the policy": {request: sized("gold/v1", 1, 0), engine: engine{err: &Failure{Kind: OutOfRange, Message: "large"}}, asked: "expand gold/v1 to 1",
			code: codes.OutOfRange, message: "large"},
		"denied by the policy": {request: sized("gold/v1", 1, 0), engine: engine{err: &Failure{Kind: Denied, Message: "no"}}, asked: "expand gold/v1 to 1", code: codes.PermissionDenied, message: "no"},
	} {
		t.Run(name, func(t *testing.T) {
			response, err := newServer(&test.engine).ControllerExpandVolume(t.Context(), test.request)
			check(t, err, test.code, test.message)
			if asked := strings.Join(test.engine.asked, "; "); asked != test.asked {
				t.Errorf("asked %q, want %q", asked, test.asked)
			}
			if err == nil && (response.GetCapacityBytes() != 3<<30 || !response.GetNodeExpansionRequired()) {
				t.Errorf("answered %v", response)
			}
		})
	}
}
