package controller

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

// maker records what it is asked for, and answers as it is told.
type maker struct {
	wanted  Creation
	deleted string
	taken   string
	err     error
	// wait makes calls last until their contexts end; begun signals each call.
	wait  bool
	begun chan struct{}
	until time.Duration
}

func (m *maker) work(ctx context.Context) error {
	if !m.wait {
		return m.err
	}
	deadline, _ := ctx.Deadline()
	m.until = time.Until(deadline)
	m.begun <- struct{}{}
	<-ctx.Done()
	return &Failure{Kind: "Conflict", Message: "not yet"}
}

func (m *maker) Create(ctx context.Context, wanted Creation) (Created, error) {
	m.wanted = wanted
	return Created{Volume: wire.Handle{Backend: "gold", ID: "v1"}, Bytes: 2 << 30, Context: map[string]string{"k": "v"}}, m.work(ctx)
}

func (m *maker) Delete(ctx context.Context, volume wire.Handle) error {
	m.deleted = volume.String()
	return m.work(ctx)
}

func (m *maker) MakesSnapshot(parameters map[string]string) bool { return parameters["trusted"] != "" }

func (m *maker) TakeSnapshot(ctx context.Context, volume wire.Handle, name string, _ map[string]string) (Snapshot, error) {
	m.taken = name + " of " + volume.String()
	return Snapshot{Handle: wire.Handle{Backend: "gold", ID: "s1"}, Volume: volume, Bytes: 1 << 30}, m.work(ctx)
}

func (m *maker) RemoveSnapshot(ctx context.Context, snapshot wire.Handle) (bool, error) {
	return snapshot.ID == "trusted", m.work(ctx)
}

func making(m *maker) *Server {
	s := newServer(&engine{})
	s.Maker = m
	return s
}

func of(capabilities ...*csi.VolumeCapability) []*csi.VolumeCapability { return capabilities }

func TestCreateRequests(t *testing.T) {
	const onePod = csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
	fromVolume := &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: "gold/v0"}}}
	fromSnapshot := &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: "gold/s0"}}}
	for name, test := range map[string]struct {
		request *csi.CreateVolumeRequest
		wanted  Creation
		err     error
		code    codes.Code
		message string
	}{
		"any size": {request: &csi.CreateVolumeRequest{Name: "n", VolumeCapabilities: of(mode(oneWriter)), Parameters: map[string]string{"a": "b"}},
			wanted: Creation{Name: "n", Bytes: 1 << 30, AccessModes: []AccessMode{OneNode}, Parameters: map[string]string{"a": "b"}}},
		"a range": {request: &csi.CreateVolumeRequest{Name: "n", VolumeCapabilities: of(mode(onePod)), CapacityRange: &csi.CapacityRange{RequiredBytes: 1<<30 + 1, LimitBytes: 2 << 30}},
			wanted: Creation{Name: "n", Bytes: 1<<30 + 1, AtMost: 2 << 30, AccessModes: []AccessMode{OnePod}}},
		"block for many": {request: &csi.CreateVolumeRequest{Name: "n", VolumeCapabilities: of(block(manyWriters), block(manyReaders), block(oneWriter)), VolumeContentSource: fromVolume},
			wanted: Creation{Name: "n", Bytes: 1 << 30, Block: true, AccessModes: []AccessMode{ManyWriters, ManyReaders, OneNode}, FromVolume: "gold/v0"}},
		"from a snapshot": {request: &csi.CreateVolumeRequest{Name: "n", VolumeCapabilities: of(mode(oneWriter), mode(oneWriter)), VolumeContentSource: fromSnapshot},
			wanted: Creation{Name: "n", Bytes: 1 << 30, AccessModes: []AccessMode{OneNode}, FromSnapshot: "gold/s0"}},
		"no name":       {request: &csi.CreateVolumeRequest{VolumeCapabilities: of(mode(oneWriter))}, code: codes.InvalidArgument, message: "the request has no name"},
		"no capability": {request: &csi.CreateVolumeRequest{Name: "n"}, code: codes.InvalidArgument, message: "the request has no volume_capabilities"},
		"a filesystem for many writers": {request: &csi.CreateVolumeRequest{Name: "n", VolumeCapabilities: of(mode(manyWriters))}, code: codes.InvalidArgument,
			message: "a volume that several nodes write to must be a raw block device: the filesystems of nodes destroy each other's data"},
		"both types": {request: &csi.CreateVolumeRequest{Name: "n", VolumeCapabilities: of(mode(oneWriter), block(oneWriter))}, code: codes.InvalidArgument,
			message: "the volume_capabilities have both access types, and a volume has one"},
		"no size between": {request: &csi.CreateVolumeRequest{Name: "n", VolumeCapabilities: of(mode(oneWriter)), CapacityRange: &csi.CapacityRange{RequiredBytes: 1<<30 + 1, LimitBytes: 1<<30 + 2}},
			code: codes.OutOfRange, message: "volumes have whole GiB, and the capacity_range includes no such size"},
		"less than the smallest": {request: &csi.CreateVolumeRequest{Name: "n", VolumeCapabilities: of(mode(oneWriter)), CapacityRange: &csi.CapacityRange{LimitBytes: 1 << 20}},
			code: codes.OutOfRange, message: "volumes have whole GiB, and the capacity_range includes no such size"},
		"a range that ends first": {request: &csi.CreateVolumeRequest{Name: "n", VolumeCapabilities: of(mode(oneWriter)), CapacityRange: &csi.CapacityRange{RequiredBytes: 2, LimitBytes: 1}},
			code: codes.InvalidArgument, message: "the capacity_range ends before it begins"},
		"a negative size": {request: &csi.CreateVolumeRequest{Name: "n", VolumeCapabilities: of(mode(oneWriter)), CapacityRange: &csi.CapacityRange{RequiredBytes: -1}},
			code: codes.InvalidArgument, message: "the capacity_range is negative"},
		"an empty source": {request: &csi.CreateVolumeRequest{Name: "n", VolumeCapabilities: of(mode(oneWriter)), VolumeContentSource: &csi.VolumeContentSource{}},
			code: codes.InvalidArgument, message: "the volume_content_source names neither a volume nor a snapshot"},
		"topology": {request: &csi.CreateVolumeRequest{Name: "n", VolumeCapabilities: of(mode(oneWriter)), AccessibilityRequirements: &csi.TopologyRequirement{}},
			code: codes.InvalidArgument, message: "the request has accessibility_requirements, but the driver has no topology of its own"},
		"denied": {request: &csi.CreateVolumeRequest{Name: "n", VolumeCapabilities: of(mode(oneWriter))}, err: &Failure{Kind: Denied, Message: "no"}, code: codes.PermissionDenied, message: "no",
			wanted: Creation{Name: "n", Bytes: 1 << 30, AccessModes: []AccessMode{OneNode}}},
		"no room": {request: &csi.CreateVolumeRequest{Name: "n", VolumeCapabilities: of(mode(oneWriter))}, err: &Failure{Kind: NoRoom, Message: "full"}, code: codes.ResourceExhausted, message: "full",
			wanted: Creation{Name: "n", Bytes: 1 << 30, AccessModes: []AccessMode{OneNode}}},
		"no answer": {request: &csi.CreateVolumeRequest{Name: "n", VolumeCapabilities: of(mode(oneWriter))}, err: errors.New("no answer"), code: codes.Unavailable, message: "no answer",
			wanted: Creation{Name: "n", Bytes: 1 << 30, AccessModes: []AccessMode{OneNode}}},
	} {
		t.Run(name, func(t *testing.T) {
			m := &maker{err: test.err}
			response, err := making(m).CreateVolume(t.Context(), test.request)
			check(t, err, test.code, test.message)
			if !reflect.DeepEqual(m.wanted, test.wanted) {
				t.Errorf("wanted %+v, want %+v", m.wanted, test.wanted)
			}
			want := &csi.Volume{VolumeId: "gold/v1", CapacityBytes: 2 << 30, VolumeContext: map[string]string{"k": "v"}, ContentSource: test.request.GetVolumeContentSource()}
			if err == nil && fmt.Sprint(response.GetVolume()) != fmt.Sprint(want) {
				t.Errorf("got %v, want %v", response.GetVolume(), want)
			}
		})
	}
}

func TestDeleteRequests(t *testing.T) {
	m := &maker{}
	s := making(m)
	_, err := s.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{})
	check(t, err, codes.InvalidArgument, "the request has no volume_id")
	_, err = s.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: "vol-1"})
	check(t, err, codes.OK, "")
	if m.deleted != "" {
		t.Errorf("deleted %s", m.deleted)
	}
	_, err = s.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: "gold/v1"})
	check(t, err, codes.OK, "")
	if m.deleted != "gold/v1" {
		t.Errorf("deleted %q", m.deleted)
	}
	m.err = &Failure{Kind: "InUse", Message: "a node has it"}
	_, err = s.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: "gold/v1"})
	check(t, err, codes.FailedPrecondition, "a node has it")
}

// TestCallsThatWaitAreAnsweredInTime: they are answered before their callers give up,
// and when the term ends. Until then, the same call is refused.
func TestCallsThatWaitAreAnsweredInTime(t *testing.T) {
	m := &maker{wait: true, begun: make(chan struct{}, 1)}
	s := making(m)
	work, end := context.WithCancel(t.Context())
	s.Work = work
	ctx, cancel := context.WithTimeout(t.Context(), answerBefore+50*time.Millisecond)
	defer cancel()
	request := &csi.CreateVolumeRequest{Name: "n", VolumeCapabilities: of(mode(oneWriter))}
	_, err := s.CreateVolume(ctx, request)
	check(t, err, codes.Aborted, "not yet")
	<-m.begun
	if ctx.Err() != nil {
		t.Error("its caller had given up")
	}

	done := make(chan error, 1)
	go func() {
		_, err := s.CreateVolume(context.WithoutCancel(t.Context()), request)
		done <- err
	}()
	<-m.begun
	if m.until > patience || m.until < patience/2 {
		t.Errorf("it waits for %s", m.until)
	}
	_, err = s.CreateVolume(t.Context(), request)
	check(t, err, codes.Aborted, "an earlier call for the volume named n is still under way")
	end()
	check(t, <-done, codes.Aborted, "not yet")
	s.Wait()
}
