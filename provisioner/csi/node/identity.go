package node

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

// Identity is the CSI Identity service of the node.
type Identity struct {
	csi.UnimplementedIdentityServer
	// Version is the program's version.
	Version string
}

// GetPluginInfo returns the driver's name.
func (i *Identity) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: wire.DriverName, VendorVersion: i.Version}, nil
}

// GetPluginCapabilities returns none: there is no controller on this socket.
func (i *Identity) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{}, nil
}

// Probe answers that the plugin is ready.
func (i *Identity) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}
