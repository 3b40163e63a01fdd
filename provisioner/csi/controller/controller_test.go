package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

// engine records what it is asked, and answers as it is told.
type engine struct {
	asked  []string
	err    error
	volume Volume
	// snapshots are those that ListSnapshots returns.
	snapshots []Snapshot
	listed    []Listed
	// wait holds up calls until it is closed; begun signals each call.
	begun, wait chan struct{}
	ended       chan error
}

func (e *engine) work(ctx context.Context, what string) error {
	e.asked = append(e.asked, what)
	if e.wait != nil {
		e.begun <- struct{}{}
		select {
		case <-e.wait:
		case <-ctx.Done():
			e.ended <- ctx.Err()
			return ctx.Err()
		}
		e.ended <- nil
	}
	return e.err
}

func (e *engine) Publish(ctx context.Context, p PublishRequest) (wire.Connection, error) {
	err := e.work(ctx, fmt.Sprintf("publish %s to %s, read-only %t, shared %t", p.Volume, p.Node.Name, p.ReadOnly, p.Shared))
	return wire.Connection{Protocol: "iscsi", Paths: []wire.Path{{Portal: "192.0.2.1:3260", Target: "iqn.a", LUN: 1}}}, err
}

func (e *engine) Unpublish(ctx context.Context, volume wire.Handle, node string) error {
	return e.work(ctx, fmt.Sprintf("unpublish %s from %q", volume, node))
}

func (e *engine) Volume(ctx context.Context, volume wire.Handle) (Volume, error) {
	return e.volume, e.work(ctx, "describe "+volume.String())
}

func (e *engine) Expand(ctx context.Context, volume wire.Handle, bytes int64) (int64, error) {
	err := e.work(ctx, fmt.Sprintf("expand %s to %d", volume, bytes))
	return 3 << 30, err
}

func (e *engine) Retype(ctx context.Context, volume wire.Handle, volumeType string) error {
	return e.work(ctx, fmt.Sprintf("retype %s to %s", volume, volumeType))
}

func (e *engine) TakeSnapshot(ctx context.Context, volume wire.Handle, name string, parameters map[string]string) (Snapshot, error) {
	err := e.work(ctx, fmt.Sprintf("snapshot %s as %s, parameters %v", volume, name, parameters))
	return Snapshot{Handle: wire.Handle{Backend: volume.Backend, ID: "s1"}, Volume: volume, Bytes: 2 << 30, Created: time.Unix(1000, 0)}, err
}

func (e *engine) RemoveSnapshot(ctx context.Context, snapshot wire.Handle) error {
	return e.work(ctx, fmt.Sprintf("remove snapshot %s", snapshot))
}

func (e *engine) ListSnapshots(ctx context.Context, wanted Listing) ([]Snapshot, error) {
	return e.snapshots, e.work(ctx, fmt.Sprintf("list snapshots of %v", wanted))
}

func (e *engine) TakeGroup(ctx context.Context, volumes []wire.Handle, name string, parameters map[string]string) ([]Snapshot, error) {
	return e.snapshots, e.work(ctx, fmt.Sprintf("group %v as %s, parameters %v", volumes, name, parameters))
}

func (e *engine) RemoveGroup(ctx context.Context, handle string) error {
	return e.work(ctx, "remove group "+handle)
}

func (e *engine) GroupStatus(ctx context.Context, handle string) ([]Snapshot, error) {
	return e.snapshots, e.work(ctx, "look at group "+handle)
}

func newServer(e *engine) *Server {
	return New(Options{Attacher: e, Expander: e, Modifier: e, Snapshots: e, Groups: e, Maker: &maker{}, Version: "v1", Work: context.Background(), Logger: slog.New(slog.DiscardHandler), Observe: func(string, string, time.Duration) {}})
}

func mode(of csi.VolumeCapability_AccessMode_Mode) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: of},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
	}
}

func block(of csi.VolumeCapability_AccessMode_Mode) *csi.VolumeCapability {
	return &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: of}, AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}}
}

const (
	oneWriter   = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	manyWriters = csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	manyReaders = csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
)

func check(t *testing.T, err error, code codes.Code, message string) {
	t.Helper()
	if status.Code(err) != code || status.Convert(err).Message() != message {
		t.Errorf("got  %s: %s\nwant %s: %s", status.Code(err), status.Convert(err).Message(), code, message)
	}
}

func TestPublishRequests(t *testing.T) {
	for name, test := range map[string]struct {
		request *csi.ControllerPublishVolumeRequest
		asked   string
		code    codes.Code
		message string
	}{
		"one writer": {request: &csi.ControllerPublishVolumeRequest{VolumeId: "gold/v1", NodeId: "v1 n1 i=iqn.a", VolumeCapability: mode(oneWriter)},
			asked: "publish gold/v1 to n1, read-only false, shared false"},
		"one pod": {request: &csi.ControllerPublishVolumeRequest{VolumeId: "gold/v1", NodeId: "v1 n1 i=iqn.a", VolumeCapability: mode(csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER)},
			asked: "publish gold/v1 to n1, read-only false, shared false"},
		"many readers": {request: &csi.ControllerPublishVolumeRequest{VolumeId: "gold/v1", NodeId: "v1 n1", VolumeCapability: mode(manyReaders)},
			asked: "publish gold/v1 to n1, read-only true, shared true"},
		"many writers": {request: &csi.ControllerPublishVolumeRequest{VolumeId: "gold/v1", NodeId: "v1 n1", VolumeCapability: block(manyWriters)},
			asked: "publish gold/v1 to n1, read-only false, shared true"},
		"many writers of a filesystem": {request: &csi.ControllerPublishVolumeRequest{VolumeId: "gold/v1", NodeId: "v1 n1", VolumeCapability: mode(manyWriters)},
			code: codes.InvalidArgument, message: "a volume that several nodes write to must be a raw block device: the filesystems of nodes destroy each other's data"},
		"no volume": {request: &csi.ControllerPublishVolumeRequest{NodeId: "v1 n1", VolumeCapability: mode(oneWriter)}, code: codes.InvalidArgument, message: "the request has no volume_id"},
		"no node":   {request: &csi.ControllerPublishVolumeRequest{VolumeId: "gold/v1", VolumeCapability: mode(oneWriter)}, code: codes.InvalidArgument, message: "the request has no node_id"},
		"no capability": {request: &csi.ControllerPublishVolumeRequest{VolumeId: "gold/v1", NodeId: "v1 n1"}, code: codes.InvalidArgument,
			message: "the request has no volume_capability"},
		"no access type": {request: &csi.ControllerPublishVolumeRequest{VolumeId: "gold/v1", NodeId: "v1 n1", VolumeCapability: &csi.VolumeCapability{AccessMode: mode(oneWriter).AccessMode}},
			code: codes.InvalidArgument, message: "the volume capability has no access type"},
		"no access mode": {request: &csi.ControllerPublishVolumeRequest{VolumeId: "gold/v1", NodeId: "v1 n1", VolumeCapability: mode(0)},
			code: codes.InvalidArgument, message: "the volume capability has no access mode that the driver knows"},
		"for reading, where another pod may write later": {request: &csi.ControllerPublishVolumeRequest{VolumeId: "gold/v1", NodeId: "v1 n1", VolumeCapability: mode(oneWriter), Readonly: true},
			asked: "publish gold/v1 to n1, read-only true, shared false"},
		"many readers for reading": {request: &csi.ControllerPublishVolumeRequest{VolumeId: "gold/v1", NodeId: "v1 n1", VolumeCapability: mode(manyReaders), Readonly: true},
			asked: "publish gold/v1 to n1, read-only true, shared true"},
		"a volume of another driver": {request: &csi.ControllerPublishVolumeRequest{VolumeId: "vol-1", NodeId: "v1 n1", VolumeCapability: mode(oneWriter)},
			code: codes.NotFound, message: `handle "vol-1" is not <backend>/<ID at Cinder>`},
		"a node of another driver": {request: &csi.ControllerPublishVolumeRequest{VolumeId: "gold/v1", NodeId: "node-1", VolumeCapability: mode(oneWriter)},
			code: codes.NotFound, message: `node ID "node-1" is not one of this driver`},
	} {
		t.Run(name, func(t *testing.T) {
			e := &engine{}
			response, err := newServer(e).ControllerPublishVolume(t.Context(), test.request)
			check(t, err, test.code, test.message)
			if asked := strings.Join(e.asked, "; "); asked != test.asked {
				t.Errorf("asked %q, want %q", asked, test.asked)
			}
			if err != nil {
				return
			}
			if c, err := wire.ParsePublishContext(response.GetPublishContext()); err != nil || c.Paths[0].Target != "iqn.a" {
				t.Errorf("the context is %v (%v)", response.GetPublishContext(), err)
			}
		})
	}
}

func TestUnpublishRequests(t *testing.T) {
	for name, test := range map[string]struct {
		request *csi.ControllerUnpublishVolumeRequest
		asked   string
		code    codes.Code
		message string
	}{
		"of a node":                 {request: &csi.ControllerUnpublishVolumeRequest{VolumeId: "gold/v1", NodeId: "v1 n1 i=iqn.a"}, asked: `unpublish gold/v1 from "v1 n1 i=iqn.a"`},
		"of all":                    {request: &csi.ControllerUnpublishVolumeRequest{VolumeId: "gold/v1"}, asked: `unpublish gold/v1 from ""`},
		"no volume":                 {request: &csi.ControllerUnpublishVolumeRequest{}, code: codes.InvalidArgument, message: "the request has no volume_id"},
		"a node that says anything": {request: &csi.ControllerUnpublishVolumeRequest{VolumeId: "gold/v1", NodeId: "node-1"}, asked: `unpublish gold/v1 from "node-1"`},
		"a volume that the driver cannot have attached": {request: &csi.ControllerUnpublishVolumeRequest{VolumeId: "vol-1", NodeId: "v1 n1"}},
	} {
		t.Run(name, func(t *testing.T) {
			e := &engine{}
			_, err := newServer(e).ControllerUnpublishVolume(t.Context(), test.request)
			check(t, err, test.code, test.message)
			if asked := strings.Join(e.asked, "; "); asked != test.asked {
				t.Errorf("asked %q, want %q", asked, test.asked)
			}
		})
	}
}

func TestValidation(t *testing.T) {
	single, multi := Volume{Context: map[string]string{"a": "b"}}, Volume{MultiAttach: true}
	for name, test := range map[string]struct {
		volume  Volume
		request *csi.ValidateVolumeCapabilitiesRequest
		says    string // empty means confirmed
		err     error
		code    codes.Code
		message string
	}{
		"one writer": {volume: single, request: &csi.ValidateVolumeCapabilitiesRequest{VolumeId: "gold/v1", VolumeCapabilities: []*csi.VolumeCapability{mode(oneWriter)}, VolumeContext: map[string]string{"a": "b"}}},
		"many writers": {volume: multi, request: &csi.ValidateVolumeCapabilitiesRequest{VolumeId: "gold/v1",
			VolumeCapabilities: []*csi.VolumeCapability{mode(oneWriter), block(manyWriters)}}},
		"many writers without multiattach": {volume: single, request: &csi.ValidateVolumeCapabilitiesRequest{VolumeId: "gold/v1", VolumeCapabilities: []*csi.VolumeCapability{block(manyWriters)}},
			says: "only one node at a time can have the volume: its type has no multiattach"},
		"another context": {volume: single, request: &csi.ValidateVolumeCapabilitiesRequest{VolumeId: "gold/v1", VolumeCapabilities: []*csi.VolumeCapability{mode(oneWriter)}, VolumeContext: map[string]string{"a": "c"}},
			says: "the volume context is not that of the PersistentVolume"},
		"parameters": {volume: single, request: &csi.ValidateVolumeCapabilitiesRequest{VolumeId: "gold/v1", VolumeCapabilities: []*csi.VolumeCapability{mode(oneWriter)}, Parameters: map[string]string{"a": "c"}},
			says: "the driver has no parameters"},
		"a mode that is none": {volume: single, request: &csi.ValidateVolumeCapabilitiesRequest{VolumeId: "gold/v1", VolumeCapabilities: []*csi.VolumeCapability{mode(0)}},
			says: "the volume capability has no access mode that the driver knows"},
		"no volume": {request: &csi.ValidateVolumeCapabilitiesRequest{VolumeCapabilities: []*csi.VolumeCapability{mode(oneWriter)}}, code: codes.InvalidArgument, message: "the request has no volume_id"},
		"no capability": {request: &csi.ValidateVolumeCapabilitiesRequest{VolumeId: "gold/v1"}, code: codes.InvalidArgument,
			message: "the request has no volume_capabilities"},
		"a volume of another driver": {request: &csi.ValidateVolumeCapabilitiesRequest{VolumeId: "vol-1", VolumeCapabilities: []*csi.VolumeCapability{mode(oneWriter)}}, code: codes.NotFound,
			message: `handle "vol-1" is not <backend>/<ID at Cinder>`},
		"a volume that is gone": {request: &csi.ValidateVolumeCapabilitiesRequest{VolumeId: "gold/v1", VolumeCapabilities: []*csi.VolumeCapability{mode(oneWriter)}},
			err: &Failure{Kind: "NotFound", Message: "gone"}, code: codes.NotFound, message: "gone"},
	} {
		t.Run(name, func(t *testing.T) {
			response, err := newServer(&engine{volume: test.volume, err: test.err}).ValidateVolumeCapabilities(t.Context(), test.request)
			check(t, err, test.code, test.message)
			if confirmed := response.GetConfirmed() != nil; err == nil && (confirmed != (test.says == "") || response.GetMessage() != test.says) {
				t.Errorf("confirmed %t, %q; want %q", confirmed, response.GetMessage(), test.says)
			}
		})
	}
}

// TestCodes: the codes that a sidecar gets. No failure that may have had an effect is
// final.
func TestCodes(t *testing.T) {
	notFinal := map[codes.Code]bool{codes.Aborted: true, codes.DeadlineExceeded: true, codes.Unavailable: true, codes.Canceled: true}
	for kind, code := range codeOf {
		e := &engine{err: fmt.Errorf("wrapped: %w", &Failure{Kind: kind, Message: "why"})}
		_, err := newServer(e).ControllerUnpublishVolume(t.Context(), &csi.ControllerUnpublishVolumeRequest{VolumeId: "gold/v1"})
		check(t, err, code, "why")
		e.err = &Failure{Kind: kind, Message: "why", EffectUnknown: true}
		_, err = newServer(e).ControllerUnpublishVolume(t.Context(), &csi.ControllerUnpublishVolumeRequest{VolumeId: "gold/v1"})
		if !notFinal[status.Code(err)] {
			t.Errorf("%s without a known effect is %s, which is final", kind, status.Code(err))
		}
		if code == codes.ResourceExhausted && kind != NodeFull {
			t.Errorf("%s is ResourceExhausted, which kubelet takes for a full node", kind)
		}
	}
	for _, err := range []error{errors.New("of no kind"), &Failure{Kind: "Unheard", Message: "of no kind"}} {
		_, err = newServer(&engine{err: err}).ControllerUnpublishVolume(t.Context(), &csi.ControllerUnpublishVolumeRequest{VolumeId: "gold/v1"})
		check(t, err, codes.Unavailable, "of no kind")
	}
}

// TestACallThatIsAnsweredIsOver: whoever gets the answer may call again at once.
func TestACallThatIsAnsweredIsOver(t *testing.T) {
	s := newServer(&engine{})
	for range 20_000 {
		if _, err := s.ControllerUnpublishVolume(t.Context(), &csi.ControllerUnpublishVolumeRequest{VolumeId: "gold/v1"}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestACallOutlivesItsCaller: a change that a sidecar gives up on is finished. Until
// then, another change of the volume is refused.
func TestACallOutlivesItsCaller(t *testing.T) {
	e := &engine{begun: make(chan struct{}, 1), wait: make(chan struct{}), ended: make(chan error, 1)}
	s := newServer(e)
	ctx, cancel := context.WithCancel(t.Context())
	answered := make(chan error, 1)
	go func() {
		_, err := s.ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{VolumeId: "gold/v1", NodeId: "v1 n1", VolumeCapability: mode(oneWriter)})
		answered <- err
	}()
	<-e.begun
	cancel()
	check(t, <-answered, codes.Canceled, "context canceled")
	_, err := s.ControllerUnpublishVolume(t.Context(), &csi.ControllerUnpublishVolumeRequest{VolumeId: "gold/v1"})
	check(t, err, codes.Aborted, "an earlier call for volume gold/v1 is still under way")
	if len(e.ended) > 0 {
		t.Error("the call ended with its caller")
	}
	close(e.wait)
	if err := <-e.ended; err != nil {
		t.Errorf("the call ended with %v", err)
	}
	s.Wait()
	<-e.begunAgain(func() {
		_, err = s.ControllerUnpublishVolume(t.Context(), &csi.ControllerUnpublishVolumeRequest{VolumeId: "gold/v1"})
	})
	check(t, err, codes.OK, "")
}

// begunAgain makes a call, and drains its signals.
func (e *engine) begunAgain(call func()) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		call()
	}()
	<-e.begun
	<-e.ended
	return done
}

// TestACallEndsWithTheWork: no call waits longer than its replica leads.
func TestACallEndsWithTheWork(t *testing.T) {
	e := &engine{begun: make(chan struct{}, 1), wait: make(chan struct{}), ended: make(chan error, 1)}
	s := newServer(e)
	work, stop := context.WithCancel(t.Context())
	s.Work = work
	answered := make(chan error, 1)
	go func() {
		_, err := s.ControllerUnpublishVolume(t.Context(), &csi.ControllerUnpublishVolumeRequest{VolumeId: "gold/v1"})
		answered <- err
	}()
	<-e.begun
	stop()
	check(t, <-answered, codes.Unavailable, "context canceled")
	s.Wait()
}

func TestOnlyWhatWorksIsAdvertised(t *testing.T) {
	s := newServer(&engine{})
	identity, err := s.GetPluginInfo(t.Context(), nil)
	if err != nil || identity.GetName() != "standalone-cinder.openstack.org" || identity.GetVendorVersion() != "v1" {
		t.Errorf("identity %v (%v)", identity, err)
	}
	plugin, err := s.GetPluginCapabilities(t.Context(), nil)
	if err != nil || len(plugin.GetCapabilities()) != 3 || plugin.GetCapabilities()[0].GetService().GetType() != csi.PluginCapability_Service_CONTROLLER_SERVICE ||
		plugin.GetCapabilities()[1].GetService().GetType() != csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE || plugin.GetCapabilities()[2].GetVolumeExpansion().GetType() != csi.PluginCapability_VolumeExpansion_ONLINE {
		t.Errorf("capabilities %v (%v)", plugin, err)
	}
	if probe, err := s.Probe(t.Context(), nil); err != nil || !probe.GetReady().GetValue() {
		t.Errorf("probe %v (%v)", probe, err)
	}
	groups, err := s.GroupControllerGetCapabilities(t.Context(), nil)
	if err != nil || len(groups.GetCapabilities()) != 1 || groups.GetCapabilities()[0].GetRpc().GetType() != csi.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT {
		t.Errorf("capabilities for groups %v (%v)", groups, err)
	}
	controller, err := s.ControllerGetCapabilities(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var has []string
	for _, capability := range controller.GetCapabilities() {
		has = append(has, capability.GetRpc().GetType().String())
	}
	if want := []string{"CREATE_DELETE_VOLUME", "CLONE_VOLUME", "PUBLISH_UNPUBLISH_VOLUME", "PUBLISH_READONLY", "LIST_VOLUMES", "LIST_VOLUMES_PUBLISHED_NODES", "GET_VOLUME", "SINGLE_NODE_MULTI_WRITER", "EXPAND_VOLUME", "MODIFY_VOLUME", "CREATE_DELETE_SNAPSHOT", "LIST_SNAPSHOTS"}; !reflect.DeepEqual(has, want) {
		t.Errorf("capabilities %q, want %q", has, want)
	}
	_, err = s.GetCapacity(t.Context(), &csi.GetCapacityRequest{})
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("GetCapacity: %v", err)
	}
}

// TestCallsAreObservedAndLoggedWithoutSecrets: neither a request nor an answer is
// logged.
func TestCallsAreObservedAndLoggedWithoutSecrets(t *testing.T) {
	var log strings.Builder
	var observed []string
	s := newServer(&engine{})
	s.Logger = slog.New(slog.NewTextHandler(&log, nil))
	s.Observe = func(method, code string, _ time.Duration) { observed = append(observed, method+" "+code) }
	request := &csi.ControllerPublishVolumeRequest{VolumeId: "gold/v1", Secrets: map[string]string{"k": "secret-1"}, VolumeContext: map[string]string{"k": "secret-2"}}
	info := &grpc.UnaryServerInfo{FullMethod: "/csi.v1.Controller/ControllerPublishVolume"}
	_, err := s.Intercept(t.Context(), request, info, func(context.Context, any) (any, error) {
		return nil, status.Error(codes.FailedPrecondition, "why")
	})
	check(t, err, codes.FailedPrecondition, "why")
	_, _ = s.Intercept(t.Context(), request, info, func(context.Context, any) (any, error) { return "secret-3", nil })
	if want := []string{"ControllerPublishVolume FailedPrecondition", "ControllerPublishVolume OK"}; !reflect.DeepEqual(observed, want) {
		t.Errorf("observed %q", observed)
	}
	if strings.Contains(log.String(), "secret-") || !strings.Contains(log.String(), "gold/v1") || !strings.Contains(log.String(), "error=why") {
		t.Errorf("logged %s", log.String())
	}
}

// slowEngine does not answer for one backend.
type slowEngine struct{ engine }

func (e *slowEngine) Unpublish(ctx context.Context, volume wire.Handle, _ string) error {
	if volume.Backend == "slow" {
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

// TestASlowBackendDoesNotKeepAllWorkersBusy: those of a sidecar serve all backends.
func TestASlowBackendDoesNotKeepAllWorkersBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		work, stop := context.WithCancel(t.Context())
		s := New(Options{Attacher: &slowEngine{}, Work: work, Logger: slog.New(slog.DiscardHandler), Observe: func(string, string, time.Duration) {}})
		detach := func(volume string) error {
			_, err := s.ControllerUnpublishVolume(t.Context(), &csi.ControllerUnpublishVolumeRequest{VolumeId: volume})
			return err
		}
		var group sync.WaitGroup
		for i := range 3 * callsIfSlow {
			group.Go(func() { _ = detach(fmt.Sprintf("slow/%d", i)) })
		}
		synctest.Wait()
		time.Sleep(slow + time.Second)
		check(t, detach("slow/next"), codes.Aborted, "30 earlier calls are still under way for volumes of backend slow, which answers slowly")
		check(t, detach("gold/next"), codes.OK, "")
		stop()
		group.Wait()
		check(t, detach("gold/next"), codes.OK, "")
	})
}
