package csisanity

import (
	"context"
	"encoding/json"
	"flag"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/uuid"
	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
	"google.golang.org/grpc"
)

// Replica describes the replica whose controller is tested. It comes from the
// environment variable CSI_SANITY_REPLICA, as JSON.
type Replica struct {
	// Endpoint is its socket, Backend one of its backends.
	Endpoint, Backend string
	// Skip leaves out tests by their names, and Focus all others; both may be empty.
	Skip, Focus string
	// NodeID is registered in a CSINode.
	NodeID string
	// NodeEndpoint is the socket of the node that TestNode tests. NodePaths is the URL of
	// a server that answers 200 if that node has the directory of the URL's path, else 404.
	NodeEndpoint, NodePaths string
	// Parameters are those of CreateVolume, SnapshotParameters those of CreateSnapshot,
	// and MutableParameters those of ControllerModifyVolume.
	Parameters, SnapshotParameters, MutableParameters map[string]string
}

func replica(t *testing.T) Replica {
	t.Helper()
	text := os.Getenv("CSI_SANITY_REPLICA")
	if text == "" {
		t.Skip("no replica is named in CSI_SANITY_REPLICA; tests in test/integration and test/e2e do")
	}
	var r Replica
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// noNode says which node it is, and does nothing: what nodes do has another test.
type noNode struct {
	csi.UnimplementedNodeServer
	id string
}

func (n *noNode) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: n.id}, nil
}

func (n *noNode) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{}, nil
}

func (n *noNode) NodePublishVolume(context.Context, *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	return &csi.NodePublishVolumeResponse{}, nil
}

func (n *noNode) NodeUnpublishVolume(context.Context, *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

// ids makes IDs that the driver could have made: unknown ones must be told apart from
// those that cannot be read.
type ids struct{ backend string }

func (i *ids) GenerateUniqueValidVolumeID() string { return i.backend + "/" + uuid.NewString() }
func (i *ids) GenerateInvalidVolumeID() string     { return "no-volume" }
func (i *ids) GenerateUniqueValidNodeID() string {
	return "v1 node-" + uuid.NewString()[:8] + " i=iqn.2026-01.example:unknown"
}
func (i *ids) GenerateInvalidNodeID() string { return "no-node" }

// lacking is what the suite says when it skips a test for a capability that the driver
// does not have, or for the limit of a node, which this one does not have. No other test
// may be skipped.
var lacking = regexp.MustCompile(`not supported|^testnodevolumeattachlimit not enabled$`)

// reportSkipped says what was not tested.
func reportSkipped(t *testing.T) {
	ginkgo.ReportAfterSuite("skipped", func(report types.Report) {
		ran := 0
		for _, spec := range report.SpecReports {
			switch {
			case spec.LeafNodeType != types.NodeTypeIt:
			case spec.State != types.SpecStateSkipped:
				ran++
				if spec.RunTime > 2*time.Second {
					t.Logf("took %s: %s", spec.RunTime.Round(100*time.Millisecond), spec.FullText())
				}
			case spec.Failure.Message != "":
				t.Logf("skipped: %s: %s", spec.FullText(), spec.Failure.Message)
				if !lacking.MatchString(spec.Failure.Message) {
					t.Errorf("%s was skipped: %s", spec.FullText(), spec.Failure.Message)
				}
			}
		}
		t.Logf("ran %d tests", ran)
	})
}

// TestController runs the part of the suite that is about controllers.
func TestController(t *testing.T) {
	r := replica(t)
	skip := "Node Service|Identity Service"
	if r.Skip != "" {
		skip += "|" + r.Skip
	}
	for name, value := range map[string]string{"ginkgo.skip": skip, "ginkgo.focus": r.Focus} {
		if value == "" {
			continue
		}
		if err := flag.Set(name, value); err != nil {
			t.Fatal(err)
		}
	}
	socket := filepath.Join(t.TempDir(), "node.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	csi.RegisterIdentityServer(server, &identity{services: []csi.PluginCapability_Service_Type{csi.PluginCapability_Service_CONTROLLER_SERVICE, csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE}})
	csi.RegisterNodeServer(server, &noNode{id: r.NodeID})
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()

	config := sanity.NewTestConfig()
	config.Address, config.ControllerAddress = "unix://"+socket, r.Endpoint
	config.TargetPath, config.StagingPath = filepath.Join(t.TempDir(), "mount"), filepath.Join(t.TempDir(), "staging")
	config.TestVolumeSize, config.TestVolumeExpandSize = 1<<30, 2<<30
	config.TestVolumeParameters, config.TestSnapshotParameters, config.TestVolumeMutableParameters = r.Parameters, r.SnapshotParameters, r.MutableParameters
	config.IDGen = &ids{r.Backend}
	config.IdempotentCount = 3
	reportSkipped(t)
	sanity.Test(t, config)
}

// TestIdentity runs the part of the suite that is about the program as a plugin.
func TestIdentity(t *testing.T) {
	r := replica(t)
	if err := flag.Set("ginkgo.focus", "Identity Service"); err != nil {
		t.Fatal(err)
	}
	config := sanity.NewTestConfig()
	config.Address = r.Endpoint
	config.TargetPath, config.StagingPath = filepath.Join(t.TempDir(), "mount"), filepath.Join(t.TempDir(), "staging")
	reportSkipped(t)
	sanity.Test(t, config)
}
