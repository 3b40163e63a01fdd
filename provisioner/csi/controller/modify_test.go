package controller

import (
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

func TestModificationRequests(t *testing.T) {
	for name, test := range map[string]struct {
		volume     string
		parameters map[string]string
		err        error
		asked      string
		code       codes.Code
		message    string
	}{
		"a type":                     {volume: "gold/v1", parameters: map[string]string{"type": "ssd"}, asked: "retype gold/v1 to ssd"},
		"no volume":                  {parameters: map[string]string{"type": "ssd"}, code: codes.InvalidArgument, message: "the request has no volume_id"},
		"another parameter":          {volume: "gold/v1", parameters: map[string]string{"type": "ssd", "iops": "3"}, code: codes.InvalidArgument, message: `unknown parameter "iops" of a VolumeAttributesClass; only type is supported`},
		"no parameter":               {volume: "gold/v1", code: codes.InvalidArgument, message: "a VolumeAttributesClass must name a volume type of Cinder by its parameter type"},
		"an empty type":              {volume: "gold/v1", parameters: map[string]string{"type": ""}, code: codes.InvalidArgument, message: "a VolumeAttributesClass must name a volume type of Cinder by its parameter type"},
		"a volume of another driver": {volume: "vol-1", parameters: map[string]string{"type": "ssd"}, code: codes.NotFound, message: `handle "vol-1" is not <backend>/<ID at Cinder>`},
		"a type that the rule does not list": {volume: "gold/v1", parameters: map[string]string{"type": "ssd"}, err: &Failure{Kind: "Invalid", Message: "not listed"},
			asked: "retype gold/v1 to ssd", code: codes.InvalidArgument, message: "not listed"},
		"a volume with another change under way": {volume: "gold/v1", parameters: map[string]string{"type": "ssd"}, err: &Failure{Kind: "Conflict", Message: "busy"},
			asked: "retype gold/v1 to ssd", code: codes.Aborted, message: "busy"},
		"Cinder's quota": {volume: "gold/v1", parameters: map[string]string{"type": "ssd"}, err: &Failure{Kind: "OverQuota", Message: "full"},
			asked: "retype gold/v1 to ssd", code: codes.ResourceExhausted, message: "full"},
	} {
		t.Run(name, func(t *testing.T) {
			e := &engine{err: test.err}
			_, err := newServer(e).ControllerModifyVolume(t.Context(), &csi.ControllerModifyVolumeRequest{VolumeId: test.volume, MutableParameters: test.parameters})
			check(t, err, test.code, test.message)
			if asked := strings.Join(e.asked, "; "); asked != test.asked {
				t.Errorf("asked %q, want %q", asked, test.asked)
			}
		})
	}
}
