//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// kubeletStandIn passes the calls of a test on to the plugin of a node, with what only a
// kubelet adds to them: the directories in which the plugin mounts, and the Secret that
// the PersistentVolume names.
type kubeletStandIn struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedNodeServer
	node  *csiNode
	suite *harness.Suite
	// socket is where it takes calls.
	socket string
	// paths is the URL of a server that tells whether the node has a directory.
	paths string
}

func startKubeletStandIn(t *testing.T, node *csiNode, suite *harness.Suite) *kubeletStandIn {
	t.Helper()
	k := &kubeletStandIn{node: node, suite: suite, socket: filepath.Join(t.TempDir(), "node.sock")}
	listener, err := net.Listen("unix", k.socket)
	must(t, err)
	server := grpc.NewServer()
	csi.RegisterIdentityServer(server, k)
	csi.RegisterNodeServer(server, k)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	paths := httptest.NewServer(http.HandlerFunc(k.tellPath))
	t.Cleanup(paths.Close)
	k.paths = paths.URL
	return k
}

// tellPath answers 200 if the node has a directory of that name, and 404 if not.
func (k *kubeletStandIn) tellPath(w http.ResponseWriter, r *http.Request) {
	found, err := k.node.Run(r.Context(), fmt.Sprintf("if test -d '%s'; then echo yes; fi", r.URL.Path))
	switch {
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	case found == "":
		http.NotFound(w, r)
	}
}

// secrets returns the entries of the Secret that the volume's PersistentVolume
// names.
func (k *kubeletStandIn) secrets(ctx context.Context, volume string) (map[string]string, error) {
	pvs, err := k.suite.Client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, pv := range pvs.Items {
		source := pv.Spec.CSI
		if source == nil || source.VolumeHandle != volume || source.NodeStageSecretRef == nil {
			continue
		}
		secret, err := k.suite.Client.CoreV1().Secrets(source.NodeStageSecretRef.Namespace).Get(ctx, source.NodeStageSecretRef.Name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		entries := map[string]string{}
		for name, value := range secret.Data {
			entries[name] = string(value)
		}
		return entries, nil
	}
	return nil, nil
}

// GetPluginCapabilities has the suite use the controller, too.
func (*kubeletStandIn) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{{
		Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_CONTROLLER_SERVICE}},
	}}}, nil
}

func (*kubeletStandIn) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

func (k *kubeletStandIn) NodeGetInfo(ctx context.Context, r *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return k.node.NodeGetInfo(ctx, r)
}

func (k *kubeletStandIn) NodeGetCapabilities(ctx context.Context, r *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return k.node.NodeGetCapabilities(ctx, r)
}

func (k *kubeletStandIn) NodeStageVolume(ctx context.Context, r *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	if path := r.GetStagingTargetPath(); path != "" {
		if _, err := k.node.Run(ctx, fmt.Sprintf("mkdir -p '%s'", path)); err != nil {
			return nil, err
		}
	}
	var err error
	if r.Secrets, err = k.secrets(ctx, r.GetVolumeId()); err != nil {
		return nil, err
	}
	return k.node.NodeStageVolume(ctx, r)
}

func (k *kubeletStandIn) NodeUnstageVolume(ctx context.Context, r *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	return k.node.NodeUnstageVolume(ctx, r)
}

func (k *kubeletStandIn) NodePublishVolume(ctx context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	if path := r.GetTargetPath(); path != "" {
		if _, err := k.node.Run(ctx, fmt.Sprintf("mkdir -p '%s'", filepath.Dir(path))); err != nil {
			return nil, err
		}
	}
	return k.node.NodePublishVolume(ctx, r)
}

func (k *kubeletStandIn) NodeUnpublishVolume(ctx context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	return k.node.NodeUnpublishVolume(ctx, r)
}

func (k *kubeletStandIn) NodeGetVolumeStats(ctx context.Context, r *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	return k.node.NodeGetVolumeStats(ctx, r)
}

func (k *kubeletStandIn) NodeExpandVolume(ctx context.Context, r *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	return k.node.NodeExpandVolume(ctx, r)
}
