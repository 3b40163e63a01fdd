package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/faultproxy"
)

// attachMishaps are what happens to each step of an attachment and its end.
var attachMishaps = []mishap{
	{name: "killed before", verdict: faultproxy.HoldBefore, kill: true},
	{name: "killed after", verdict: faultproxy.HoldAfter, kill: true},
	{name: "request lost", verdict: faultproxy.LoseBefore},
	{name: "answer lost", verdict: faultproxy.LoseAfter},
	{name: "late", verdict: faultproxy.Late},
	{name: "twice", verdict: faultproxy.Twice},
}

// attachSteps are the changes that an attachment and its end are made of.
var attachSteps = []string{
	"cinder POST attachments", "cinder POST volumes/ID/metadata", "kubernetes PUT api/v1/namespaces/standalone-cinder/secrets/pvc-csicrash-uid-0-node",
	"cinder POST attachments/ID/action os-complete", "cinder DELETE attachments/ID",
}

// TestCrashMatrixOfAttachments lets the leader die, and requests and answers be lost,
// late or doubled, at every step of an attachment and of its end. When asked again,
// the next leader ends with the one attachment that is asked for, or with none.
//
//tier:matrix
func TestCrashMatrixOfAttachments(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), matrixTime)
	defer cancel()
	dir, err := os.MkdirTemp("", "csi-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := openSite(ctx, t, "csicrash", siteOptions{requestTimeout: time.Second, apiPatience: time.Second, sockets: dir})
	c := csiCluster{name: s.name, cluster: "cluster-" + s.name, sim: s.sim, project: cindersim.DefaultNoauthProject, backend: "gold"}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%v\n%s", err, s.news())
		}
	}
	must(suite.AllowCSINodes(ctx, s.provisioner))
	must(c.register(ctx, 2))
	v, err := c.volume(ctx, 0)
	must(err)
	defer func() {
		if err := c.remove(context.Background(), []csiVolume{v}, 2); err != nil {
			t.Error(err)
		}
	}()
	must(s.replace(ctx))

	seen := map[string]bool{}
	for _, ending := range []bool{false, true} {
		if ending {
			must(s.attach(ctx, c, v, 0))
		}
		s.begin()
		if ending {
			must(s.detach(ctx, c, v, 0))
		} else {
			must(s.attach(ctx, c, v, 0))
		}
		steps := s.steps()
		if !ending {
			must(s.detach(ctx, c, v, 0))
		}
		for _, at := range steps {
			seen[at.what] = true
		}
		crashTable{
			name: fmt.Sprintf("ending %t/", ending), site: s, steps: steps, mishaps: attachMishaps, fits: fitsLeader, mayMiss: vary,
			run: func(at step, m mishap) error { return s.attachThrough(ctx, c, v, ending, at, m) },
		}.runAll(t)
	}
	for _, what := range attachSteps {
		if !seen[what] {
			t.Errorf("the undisturbed runs have no step %q", what)
		}
	}
}

// attachThrough attaches a volume, or detaches it, while a mishap befalls a step. Then
// it goes to another node, and from there to none.
func (s *site) attachThrough(ctx context.Context, c csiCluster, v csiVolume, ending bool, at step, m mishap) error {
	ctx, cancel := context.WithTimeout(ctx, caseTime)
	defer cancel()
	if ending {
		if err := s.attach(ctx, c, v, 0); err != nil {
			return fmt.Errorf("before anything went wrong: %w", err)
		}
	}
	change := s.attach
	if ending {
		change = s.detach
	}
	trap, reached, err := s.during(ctx, at, m, func(ctx context.Context) error { return change(ctx, c, v, 0) })
	if err == nil && reached && m.verdict == faultproxy.Late {
		s.release()
		if err = wait(ctx, trap.done); err == nil && !ending {
			// What arrives late gives the volume to no other node.
			if err = s.call(ctx, c, v, 1, true); err == nil {
				return errors.New("two nodes have the volume")
			}
			err = s.attach(ctx, c, v, 0)
		}
	}
	if err == nil {
		err = s.detach(ctx, c, v, 0)
	}
	if err == nil {
		err = s.attach(ctx, c, v, 1)
	}
	if err == nil {
		err = s.detach(ctx, c, v, 1)
	}
	if err == nil && !reached {
		err = errNotReached
	}
	return err
}

// attach attaches a volume to a node, as a sidecar does: again and again. After
// that, exactly that node has the volume and its credentials.
func (s *site) attach(ctx context.Context, c csiCluster, v csiVolume, n int) error {
	if err := s.persist(ctx, c, v, n, true); err != nil {
		return err
	}
	entries, err := c.credentials(ctx, v)
	if err == nil {
		_, err = wire.CredentialsFor(c.node(n), entries)
	}
	return errors.Join(err, c.onlyOn(v, c.node(n)))
}

// detach detaches a volume from a node. After that, nothing is left.
func (s *site) detach(ctx context.Context, c csiCluster, v csiVolume, n int) error {
	if err := s.persist(ctx, c, v, n, false); err != nil {
		return err
	}
	entries, err := c.credentials(ctx, v)
	if err == nil && len(entries) > 0 {
		err = fmt.Errorf("the Secret has %d entries", len(entries))
	}
	return errors.Join(err, c.onlyOn(v))
}

func (s *site) persist(ctx context.Context, c csiCluster, v csiVolume, n int, publish bool) error {
	for {
		err := s.call(ctx, c, v, n, publish)
		if err == nil {
			return nil
		}
		if paused := pause(ctx, 50*time.Millisecond); paused != nil {
			return fmt.Errorf("%w; the last call: %w", paused, err)
		}
	}
}

// call makes one call to whichever replica leads.
func (s *site) call(ctx context.Context, c csiCluster, v csiVolume, n int, publish bool) error {
	return s.driven(ctx, func(driver csiDriver) error { return s.callAt(ctx, driver, c, v, n, publish) })
}

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

func (s *site) callAt(ctx context.Context, client csi.ControllerClient, c csiCluster, v csiVolume, n int, publish bool) error {
	handle := wire.Handle{Backend: c.backend, ID: v.id}.String()
	id, err := wire.Node{Name: c.node(n), InitiatorName: "iqn.2026-01.example:" + c.node(n)}.NodeID()
	if err != nil {
		return err
	}
	if !publish {
		_, err := client.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: handle, NodeId: id})
		return err
	}
	_, err = client.ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{VolumeId: handle, NodeId: id, VolumeCapability: &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
	}})
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
