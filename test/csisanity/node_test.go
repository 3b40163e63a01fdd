package csisanity

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/uuid"
	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/node"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/test/csinode"
)

const portal = "10.0.0.1:3260"

// identity says which services there are, so that the suite uses them.
type identity struct {
	node.Identity
	services []csi.PluginCapability_Service_Type
}

func (i *identity) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	answer := &csi.GetPluginCapabilitiesResponse{}
	for _, service := range i.services {
		answer.Capabilities = append(answer.Capabilities, &csi.PluginCapability{Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: service}}})
	}
	return answer, nil
}

// controller makes volumes on the storage of the node for tests.
type controller struct {
	csi.UnimplementedControllerServer
	mu      sync.Mutex
	node    *csinode.Node
	volumes map[string]string
}

func (c *controller) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	response := &csi.ControllerGetCapabilitiesResponse{}
	for _, kind := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME, csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
	} {
		response.Capabilities = append(response.Capabilities, &csi.ControllerServiceCapability{Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: kind}}})
	}
	return response, nil
}

func (c *controller) CreateVolume(_ context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	// It has room for the expansion that the suite asks the node for.
	bytes := 2 * max(r.GetCapacityRange().GetRequiredBytes(), 1<<30)
	id, known := c.volumes[r.GetName()]
	if !known {
		id = uuid.NewString()
		c.volumes[r.GetName()] = id
		c.node.Targets[target(id)] = &csinode.Target{Portals: []string{portal}, LUNs: map[int]*csinode.Volume{1: {Bytes: bytes}}}
	}
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: "gold/" + id, CapacityBytes: bytes}}, nil
}

func (c *controller) DeleteVolume(context.Context, *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	return &csi.DeleteVolumeResponse{}, nil
}

func target(id string) string { return "iqn.2026-01.org.example:" + id }

func (c *controller) ControllerPublishVolume(_ context.Context, r *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	handle, err := wire.ParseHandle(r.GetVolumeId())
	if err != nil {
		return nil, status.Error(codes.NotFound, err.Error())
	}
	published, err := wire.Connection{Protocol: "iscsi", Paths: []wire.Path{{Portal: portal, Target: target(handle.ID), LUN: 1}}}.PublishContext()
	return &csi.ControllerPublishVolumeResponse{PublishContext: published}, err
}

func (c *controller) ControllerUnpublishVolume(context.Context, *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	return &csi.ControllerUnpublishVolumeResponse{}, nil
}

// TestNodeService runs the part of the suite that is about nodes.
func TestNodeService(t *testing.T) {
	// The other parts are about the controller for tests.
	if err := flag.Set("ginkgo.focus", "Node Service|Identity Service"); err != nil {
		t.Fatal(err)
	}
	fixture := csinode.New()
	service, err := node.New(node.Options{Root: fixture.Root(), Files: fixture, RBD: fixture, StateDir: "/var/lib/standalone-cinder", NodeName: "node-1", Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "csi.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	csi.RegisterIdentityServer(server, &identity{services: []csi.PluginCapability_Service_Type{csi.PluginCapability_Service_CONTROLLER_SERVICE}})
	csi.RegisterNodeServer(server, service)
	csi.RegisterControllerServer(server, &controller{node: fixture, volumes: map[string]string{}})
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()

	config := sanity.NewTestConfig()
	config.Address = "unix://" + socket
	config.TargetPath, config.StagingPath = "/pods/mount", "/staging"
	useForeignPaths(&config, func(path string) (bool, error) {
		_, _, _, found := fixture.MountedAt(path)
		return found || fixture.Exists(path), nil
	})
	sanity.Test(t, config)
	if left := fixture.Left(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	if harm := fixture.Harm(); len(harm) > 0 {
		t.Errorf("harm: %q", harm)
	}
}

// useForeignPaths tells the suite that its paths are another machine's, on which it makes
// and removes nothing. exists reports whether that has a directory.
func useForeignPaths(config *sanity.TestConfig, exists func(path string) (bool, error)) {
	same := func(path string) (string, error) { return path, nil }
	nothing := func(string) error { return nil }
	config.CreateTargetDir, config.CreateStagingDir = same, same
	config.RemoveTargetPath, config.RemoveStagingPath = nothing, nothing
	config.CheckPath = func(path string) (sanity.PathKind, error) {
		found, err := exists(path)
		if !found || err != nil {
			return sanity.PathIsNotFound, err
		}
		return sanity.PathIsDir, nil
	}
}

// TestNode runs the part of the suite that is about nodes against a node that really
// mounts, and a replica's controller. The server that takes the calls makes the
// directories.
func TestNode(t *testing.T) {
	r := replica(t)
	if err := flag.Set("ginkgo.focus", "Node Service"); err != nil {
		t.Fatal(err)
	}
	config := sanity.NewTestConfig()
	config.Address, config.ControllerAddress = r.NodeEndpoint, r.Endpoint
	config.TargetPath, config.StagingPath = "/var/lib/kubelet/pods/1/volumes/sanity", "/var/lib/kubelet/plugins/kubernetes.io/csi/sanity/globalmount"
	useForeignPaths(&config, func(path string) (bool, error) {
		response, err := http.Get(r.NodePaths + path)
		if err != nil {
			return false, err
		}
		defer response.Body.Close()
		switch response.StatusCode {
		case http.StatusOK:
			return true, nil
		case http.StatusNotFound:
			return false, nil
		}
		return false, fmt.Errorf("the node cannot tell whether it has %s: %s", path, response.Status)
	})
	config.TestVolumeSize, config.TestVolumeExpandSize = 1<<30, 2<<30
	config.TestVolumeParameters = r.Parameters
	config.IDGen = &ids{r.Backend}
	config.IdempotentCount = 3
	reportSkipped(t)
	sanity.Test(t, config)
}
