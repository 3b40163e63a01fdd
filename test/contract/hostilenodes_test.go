package contract

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/test/hostile"
	"github.com/standalone-cinder/standalone-cinder/test/sample"
)

// attackedOnNodes are the operations of a volume that goes from node to node.
var attackedOnNodes = []string{"volume.get", "version.get", "attachment.create", "attachment.list", "attachment.get", "attachment.complete", "attachment.delete", "metadata.update"}

// TestHostileTableOfNodes lets the attachments of nodes meet every attack at every
// operation of the simulator. Whatever Cinder answers, one node at a time has the
// volume, what was detached is detached, and nobody else's attachment is touched.
// Afterwards the same calls, repeated, leave nothing. FAULT_SAMPLE=3 makes a third of
// the attacks.
//
//tier:matrix
func TestHostileTableOfNodes(t *testing.T) {
	target := simulatorTargets(t, 0)[0].ready(t)
	sampled := sample.New(t)
	var cells []nodesCell
	for _, attack := range hostile.Attacks() {
		for _, operation := range attackedOnNodes {
			if attack.Suits(operation) && sampled.Takes(operation) {
				cells = append(cells, nodesCell{cell{target: target, attack: attack, operation: operation, workflow: cinder.WorkflowAttachment}})
			}
		}
	}
	queue := make(chan nodesCell, len(cells))
	for _, c := range cells {
		queue <- c
	}
	close(queue)
	// Most attacks take time rather than work.
	const lanes = 16
	var running sync.WaitGroup
	for range lanes {
		running.Go(func() {
			for c := range queue {
				t.Run(c.operation+"/"+c.attack.Name, c.run)
			}
		})
	}
	running.Wait()
	t.Logf("%d attacks", len(cells))
}

// nodesCell is one attack at one operation of a volume of nodes.
type nodesCell struct{ cell }

// nodesRun is one cell under way.
type nodesRun struct {
	nodesCell
	*testing.T
	ctx   context.Context
	front *front
	pool  *backends.Pool
	lives *backends.Lifecycle
}

func (c nodesCell) run(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*c.target.Wait)
	defer cancel()
	r := &nodesRun{nodesCell: c, T: t, ctx: ctx, front: newFront(t, c.target)}
	r.newPool()
	r.lives = r.term(ctx, r.front, r.pool)
	// Somebody else's volume, and another one of ours, both on nodes. The first is what
	// misdirected answers are about.
	stranger, first, second := r.make(), r.make(), r.make()
	newAttachment(t, c.target.client(), stranger.VolumeID, "3.44", object{"connector": connector("n1", nil)}).want(t, http.StatusOK)
	others := r.attachments(stranger)

	r.front.attack(c.attack, c.operation)
	for tries := 0; r.front.used() == 0 && tries < 5; tries++ {
		r.wander(first)
		r.wander(second)
	}
	if r.front.used() == 0 {
		t.Error("the attack was never made")
	}
	r.front.attack(hostile.Attack{}, "")
	if c.attack.RejectsCredentials(c.operation) {
		r.newPool()
	}
	r.lives = r.term(ctx, r.front, r.pool)
	for _, of := range []backends.Target{first, second} {
		for _, node := range []string{"n1", "n2"} {
			c.insist(t, ctx, "unpublish "+node, func() error { return r.unpublish(of, node) })
		}
		if left := r.attachments(of); len(left) > 0 {
			t.Errorf("after everybody let go of it, the volume has the attachments %v", left)
		}
		for _, node := range []string{"n2", "n1"} {
			c.insist(t, ctx, "publish "+node, func() error { return r.publish(of, node) })
			r.has(of, node)
			c.insist(t, ctx, "unpublish "+node, func() error { return r.unpublish(of, node) })
			r.has(of)
		}
	}
	if now := r.attachments(stranger); !maps.Equal(now, others) {
		t.Errorf("the attachments of somebody else's volume were %v and are %v", others, now)
	}
}

func (r *nodesRun) newPool() {
	r.pool = backends.NewPool(backends.PoolOptions{Sources: r.front.sources(), Metrics: backends.NewMetrics(prometheus.NewRegistry())})
}

// make makes a volume that each node gets for itself, bypassing the hostile
// server.
func (r *nodesRun) make() backends.Target {
	r.Helper()
	spec, raw := r.spec(r.T), r.target.client()
	metadata := spec.Stamp.Metadata(nil)
	metadata[stamps.KeyMode] = stamps.ModeCSI
	id := raw.call(r.T, http.MethodPost, "/volumes", object{"volume": object{"name": spec.Name, "size": 1, "volume_type": spec.Type, "metadata": metadata}}).
		want(r.T, http.StatusAccepted).object(r.T, "volume")["id"].(string)
	for r.volume(id)["status"] != "available" {
		time.Sleep(r.target.Poll)
	}
	return backends.Target{Stamp: spec.Stamp, VolumeID: id}
}

func (r *nodesRun) volume(id string) map[string]any {
	r.Helper()
	return r.target.client().call(r.T, http.MethodGet, "/volumes/"+id, nil).want(r.T, http.StatusOK).object(r.T, "volume")
}

// attachments returns the true attachments, with their states.
func (r *nodesRun) attachments(of backends.Target) map[string]string {
	r.Helper()
	found := map[string]string{}
	answer := r.target.client().call(r.T, http.MethodGet, "/attachments?volume_id="+of.VolumeID, nil, "3.44").want(r.T, http.StatusOK)
	for _, a := range answer.list(r.T, "attachments") {
		found[a["id"].(string)] = a["status"].(string)
	}
	return found
}

// has checks that exactly these nodes have a volume.
func (r *nodesRun) has(of backends.Target, nodes ...string) {
	r.Helper()
	var hosts []string
	for _, a := range r.volume(of.VolumeID)["attachments"].([]any) {
		host, _ := a.(map[string]any)["host_name"].(string)
		node, _, _ := strings.Cut(host, ".")
		hosts = append(hosts, node)
	}
	slices.Sort(hosts)
	if all := r.attachments(of); !slices.Equal(hosts, nodes) || len(all) != len(nodes) {
		r.Errorf("the nodes %q have the volume, which has the attachments %v; want %q", hosts, all, nodes)
	}
}

// wander moves a volume from one node to the other, and checks at every step what
// must be true whatever Cinder says.
func (r *nodesRun) wander(of backends.Target) {
	r.Helper()
	holder := "" // whom the volume was given to
	try := func(node string, publish bool) {
		r.Helper()
		var err error
		what := "unpublish " + node
		if publish {
			what = "publish " + node
			err = r.publish(of, node)
		} else {
			err = r.unpublish(of, node)
		}
		switch {
		case err != nil && !isProper(err):
			r.Errorf("%s under attack: %v", what, err)
		case err != nil && !publish && holder == node && len(r.attachments(of)) == 0:
			holder = "" // although it cannot be known
		case err != nil:
		case publish && holder != "" && holder != node:
			r.Errorf("%s succeeded while %s had the volume", what, holder)
		case publish:
			holder = node
		case holder == node:
			holder = ""
			r.has(of)
		}
		if holder != "" {
			r.has(of, holder)
		}
	}
	next := func() { r.lives = r.term(r.ctx, r.front, r.pool) }
	try("n1", true)
	try("n2", true)
	next()
	try("n1", true)
	try("n1", false)
	try("n1", false)
	next()
	try("n2", true)
	try("n1", true)
	try("n2", false)
}

func (r *nodesRun) publish(of backends.Target, node string) error {
	handed := ""
	published, err := r.lives.Publish(r.ctx, of, backends.PublishRequest{
		Node: node, Key: "key-of-" + node,
		Connector: cinder.Connector{Host: stamps.NodeHost(node, "contract"), Initiator: "iqn.2026-01.example:" + node},
		Admit:     func(context.Context) error { return nil },
		Release:   func(context.Context, string, string) (bool, error) { return false, nil },
		HandOut: func(_ context.Context, published backends.Published) error {
			handed = published.AttachmentID
			return nil
		},
	})
	if err == nil && (handed != published.AttachmentID || !strings.Contains(string(published.Document), of.VolumeID)) {
		return fmt.Errorf("attachment %s was handed out, and %s published with a connection of %d bytes", handed, published.AttachmentID, len(published.Document))
	}
	return err
}

func (r *nodesRun) unpublish(of backends.Target, node string) error {
	return r.lives.Unpublish(r.ctx, of, backends.UnpublishRequest{Node: node, Key: "key-of-" + node})
}
