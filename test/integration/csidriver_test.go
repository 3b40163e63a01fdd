package integration

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// errNobodyLeads means that there was nobody to call.
var errNobodyLeads = errors.New("no replica leads")

// csiDriver are the services of the driver beside the leader.
type csiDriver interface {
	csi.ControllerClient
	csi.GroupControllerClient
}

// driven makes a call to whichever replica leads.
func (s *site) driven(ctx context.Context, call func(csiDriver) error) error {
	err := errNobodyLeads
	for _, replica := range s.living() {
		connection, dialed := grpc.NewClient("unix://"+replica.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if dialed != nil {
			return dialed
		}
		probe, probed := csi.NewIdentityClient(connection).Probe(ctx, &csi.ProbeRequest{})
		if probed == nil && probe.GetReady().GetValue() {
			err = call(struct {
				csi.ControllerClient
				csi.GroupControllerClient
			}{csi.NewControllerClient(connection), csi.NewGroupControllerClient(connection)})
		}
		if closed := connection.Close(); closed != nil {
			return closed
		}
	}
	return err
}

// endpoint returns a socket of its own for a replica, if the site has sockets.
func (s *site) endpoint(n *node) []string {
	if s.options.sockets == "" {
		return nil
	}
	n.socket = filepath.Join(s.options.sockets, n.name+".sock")
	return []string{"--csi-endpoint", "unix://" + n.socket}
}
