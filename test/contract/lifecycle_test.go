package contract

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
)

// lifecycleCases run the program's own lifecycle, so that the real state
// machine cannot drift from the one in its tests unnoticed.
func lifecycleCases() []testCase {
	var cases []testCase
	for _, workflow := range []cinder.Workflow{cinder.WorkflowReserve, cinder.WorkflowAttachment} {
		for _, c := range []struct {
			name string
			run  func(*testing.T, Target, cinder.Workflow)
		}{
			{"a claim's volume is made, connected, completed and removed", lifecycleWhole},
			{"whatever state an earlier attempt left is gone on from", lifecycleAdoption},
			{"what was asked for otherwise is made anew", lifecycleAskedAnew},
			{"every state is undone", lifecycleUndo},
			{"a volume that another project does not show is not gone", lifecycleElsewhere},
			{"completing twice is completing once", lifecycleCompleteTwice},
			{"a volume that was in use is never abandoned", lifecycleUsed},
			{"a volume of another stamp is not touched", lifecycleForeign},
			{"of two volumes of one claim one stays", lifecycleDuplicate},
			{"a volume in error is removed and its reason told", lifecycleError},
			{"a volume with a snapshot is kept and said so", lifecycleSnapshot},
			{"a volume that nobody may write to", lifecycleReadOnly},
			{"a volume goes from node to node", lifecycleNodes},
			{"a volume for several nodes", lifecycleSharedNodes},
			{"a volume for nodes is imported again", lifecycleRescue},
		} {
			cases = append(cases, testCase{
				name: fmt.Sprintf("lifecycle by %s: %s", workflow, c.name),
				run:  func(t *testing.T, target Target) { c.run(t, target, workflow) },
			})
		}
	}
	cases = append(cases, testCase{name: "lifecycle: a group snapshot is taken, found again, and goes with its last snapshot", run: lifecycleGroup})
	return append(cases, testCase{name: "lifecycle: auto takes the attachments API, and goes on with what the volume actions began", run: lifecycleAuto})
}

// actor takes volumes through their lives as one leader's term does.
type actor struct {
	t      *testing.T
	target Target
	ctx    context.Context
	raw    *client
	spec   backends.Spec
	// workflow is how to connect new volumes.
	workflow cinder.Workflow
	// project and account are those of the next term.
	project string
	account Account
	*backends.Lifecycle
}

func newActor(t *testing.T, target Target, workflow cinder.Workflow) *actor {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*target.Wait)
	t.Cleanup(cancel)
	uid := strings.ToLower(rand.Text())
	a := &actor{t: t, target: target, ctx: ctx, raw: target.client(), workflow: workflow, project: target.Project, spec: backends.Spec{
		Name:    "pvc-" + uid,
		SizeGiB: 1,
		Type:    target.Types.ISCSI,
		Stamp: stamps.Volume{Cluster: "contract", Namespace: "ns", Claim: "data", ClaimUID: uid, PV: "pvc-" + uid,
			Tenant: "tenant", StorageClass: "class"},
		Connector: cinder.Connector{Host: "contract", Initiator: "iqn.2026-01.example:contract"},
	}}
	own := target.account()
	a.account = own
	a.newTerm()
	t.Cleanup(func() {
		// Not with the test's context, which has already ended.
		a.ctx = context.Background()
		a.project, a.account = target.Project, own
		a.newTerm()
		for _, v := range a.mine() {
			if err := a.Remove(a.ctx, a.of(v)); err != nil {
				t.Errorf("cannot clean up: %v", err)
			}
		}
	})
	return a
}

// newTerm forgets everything, like another leader.
func (a *actor) newTerm() {
	a.t.Helper()
	credentials, sources := a.target.source(a.project, a.account)
	config := backends.Config{Name: a.target.Name, Auth: credentials, Workflow: a.workflow}
	metrics := backends.NewMetrics(prometheus.NewRegistry())
	a.Lifecycle = backends.NewLifecycle(backends.LifecycleOptions{
		Config:  config,
		Pool:    backends.NewPool(backends.PoolOptions{Metrics: metrics, Sources: sources}),
		Cluster: "contract",
		Fence:   func() error { return nil },
		Term:    context.Background(),
		Logger:  slog.New(slog.DiscardHandler),
		Metrics: metrics,
		Poll:    a.target.Poll,
		ReadLag: a.target.Lag,
	})
}

func (a *actor) must(err error) {
	a.t.Helper()
	if err != nil {
		a.t.Fatal(err)
	}
}

func (a *actor) connect() backends.Connected {
	a.t.Helper()
	connected, err := a.Connect(a.ctx, a.spec)
	a.must(err)
	return connected
}

func (a *actor) of(v cinder.Volume) backends.Target {
	return backends.Target{VolumeID: v.ID, Stamp: a.spec.Stamp, Connector: a.spec.Connector}
}

// mine lists the volumes of this actor's claim, bypassing the lifecycle.
func (a *actor) mine() []cinder.Volume {
	a.t.Helper()
	all, err := a.Volumes(a.ctx)
	a.must(err)
	var mine []cinder.Volume
	for _, v := range all {
		if a.spec.Stamp.Owns(v) {
			mine = append(mine, v)
		}
	}
	return mine
}

func (a *actor) action(id, name string, body any) {
	a.t.Helper()
	got := a.raw.call(a.t, http.MethodPost, "/volumes/"+id+"/action", object{name: body})
	if got.status != http.StatusAccepted && got.status != http.StatusOK {
		a.t.Fatalf("%s: status %d", name, got.status)
	}
}

func (a *actor) status(id string) cinder.Status {
	a.t.Helper()
	got := a.raw.call(a.t, http.MethodGet, "/volumes/"+id, nil)
	if got.status == http.StatusNotFound {
		return ""
	}
	status, _ := got.object(a.t, "volume")["status"].(string)
	return cinder.Status(status)
}

func (a *actor) wantStatus(id string, want cinder.Status) {
	a.t.Helper()
	if got := a.status(id); got != want {
		a.t.Errorf("volume %s is %q, want %q", id, got, want)
	}
}

// make creates a volume with this actor's stamp, bypassing the lifecycle, and
// waits until it is available.
func (a *actor) make() cinder.Volume {
	a.t.Helper()
	metadata := a.spec.Stamp.Metadata(nil)
	if a.workflow == cinder.WorkflowAttachment {
		metadata[stamps.Prefix+"workflow"] = "attachment"
	}
	got := a.raw.call(a.t, http.MethodPost, "/volumes", object{"volume": object{
		"name": a.spec.Name, "size": a.spec.SizeGiB, "volume_type": a.spec.Type, "metadata": metadata,
	}})
	got.want(a.t, http.StatusAccepted)
	id, _ := got.object(a.t, "volume")["id"].(string)
	waitStatus(a.t, a.target, a.raw, id, "available")
	return cinder.Volume{ID: id}
}

var connectorObject = object{"host": "contract", "initiator": "iqn.2026-01.example:contract"}

// attach makes an attachment, bypassing the lifecycle.
func (a *actor) attach(id string, connector object) {
	a.t.Helper()
	body := object{"volume_uuid": id}
	if connector != nil {
		body["connector"] = connector
	}
	a.raw.call(a.t, http.MethodPost, "/attachments", object{"attachment": body}, "3.44").want(a.t, http.StatusOK)
}

func (a *actor) reserveBy(id string) {
	a.t.Helper()
	if a.workflow == cinder.WorkflowAttachment {
		a.attach(id, nil)
		return
	}
	a.action(id, "os-reserve", object{})
}

func (a *actor) connectBy(id string) {
	a.t.Helper()
	if a.workflow == cinder.WorkflowAttachment {
		a.attach(id, connectorObject)
		return
	}
	a.action(id, "os-reserve", object{})
	a.action(id, "os-initialize_connection", object{"connector": connectorObject})
}

func lifecycleWhole(t *testing.T, target Target, workflow cinder.Workflow) {
	a := newActor(t, target, workflow)
	connected := a.connect()
	var document struct {
		Protocol string `json:"driver_volume_type"`
		IQN      string `json:"target_iqn"`
		Data     struct {
			IQN string `json:"target_iqn"`
		} `json:"data"`
	}
	a.must(json.Unmarshal(connected.Document, &document))
	if document.Protocol != "iscsi" || document.Data.IQN+document.IQN == "" {
		t.Errorf("the connection is of protocol %q with target %q", document.Protocol, document.Data.IQN+document.IQN)
	}
	if byAttachment := connected.AttachmentID != ""; byAttachment != (workflow == cinder.WorkflowAttachment) {
		t.Errorf("the attachment's id is %q", connected.AttachmentID)
	}
	a.wantStatus(connected.Volume.ID, cinder.StatusAttaching)
	a.must(a.Complete(a.ctx, a.of(connected.Volume), false))
	a.wantStatus(connected.Volume.ID, cinder.StatusInUse)
	a.must(a.Remove(a.ctx, a.of(connected.Volume)))
	a.wantStatus(connected.Volume.ID, "")
	// Removing a volume that is gone succeeds.
	a.must(a.Remove(a.ctx, a.of(connected.Volume)))
}

func lifecycleAdoption(t *testing.T, target Target, workflow cinder.Workflow) {
	for _, c := range []struct {
		name  string
		leave func(*actor, string)
	}{
		{"available", func(*actor, string) {}},
		{"reserved", func(a *actor, id string) { a.action(id, "os-reserve", object{}) }},
		{"reserved in the workflow's way", (*actor).reserveBy},
		{"connected", (*actor).connectBy},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := newActor(t, target, workflow)
			left := a.make()
			c.leave(a, left.ID)
			connected := a.connect()
			if connected.Volume.ID != left.ID {
				t.Errorf("volume %s was created although %s existed", connected.Volume.ID, left.ID)
			}
			a.newTerm()
			if again := a.connect(); again.Volume.ID != left.ID {
				t.Errorf("the next leader made volume %s", again.Volume.ID)
			}
			a.must(a.Complete(a.ctx, a.of(connected.Volume), false))
			a.wantStatus(left.ID, cinder.StatusInUse)
		})
	}
}

// lifecycleAskedAnew: the policy changed between two attempts. Cinder keeps the
// request with the volume unchanged.
func lifecycleAskedAnew(t *testing.T, target Target, workflow cinder.Workflow) {
	a := newActor(t, target, workflow)
	first := a.connect()
	a.newTerm()
	a.spec.SizeGiB = 2
	second := a.connect()
	if second.Volume.ID == first.Volume.ID || second.Volume.SizeGiB != 2 || !second.Fresh {
		t.Errorf("volume %s of %d GiB replaced %s", second.Volume.ID, second.Volume.SizeGiB, first.Volume.ID)
	}
	a.wantStatus(first.Volume.ID, "")
	a.newTerm()
	if again := a.connect(); again.Volume.ID != second.Volume.ID {
		t.Errorf("the same request made volume %s", again.Volume.ID)
	}
}

// lifecycleElsewhere: the place comes with the login, and a project's member
// sees nothing of another project. A noauth endpoint shows everything to
// everyone, so that the volume is found and removed there.
func lifecycleElsewhere(t *testing.T, target Target, workflow cinder.Workflow) {
	a := newActor(t, target, workflow)
	connected := a.connect()
	if want := cinder.NewPlace(target.Endpoint, target.Project); connected.Place != want {
		t.Errorf("the volume's place is %v, want %v", connected.Place, want)
	}
	a.must(a.Complete(a.ctx, a.of(connected.Volume), false))
	if target.noauth() {
		a.project = scratchProject(t)
	} else {
		target.other(t)
		a.account = *target.Keystone.Other
	}
	a.newTerm()
	volume := a.of(connected.Volume)
	volume.Place = connected.Place
	var found []cinder.Place
	volume.Found = func(_ context.Context, at cinder.Place) error { found = append(found, at); return nil }
	err := a.Remove(a.ctx, volume)
	if target.noauth() {
		a.must(err)
		a.wantStatus(connected.Volume.ID, "")
		if want := cinder.NewPlace(target.Endpoint, a.project); len(found) != 1 || found[0] != want {
			t.Errorf("it was found at %v, want %v", found, want)
		}
		return
	}
	if !cinder.IsKind(err, backends.KindElsewhere) || len(found) > 0 {
		t.Errorf("the removal ended with %v, found at %v", err, found)
	}
	shown, err := a.Volumes(a.ctx)
	a.must(err)
	volume.Place = cinder.Place{}
	if err := a.Remove(a.ctx, volume); len(shown) == 0 && !cinder.IsKind(err, backends.KindElsewhere) {
		t.Errorf("without a record the removal ended with %v", err)
	}
	a.wantStatus(connected.Volume.ID, cinder.StatusInUse)
}

func lifecycleUndo(t *testing.T, target Target, workflow cinder.Workflow) {
	for _, state := range []string{"available", "reserved", "connected", "in use"} {
		t.Run(state, func(t *testing.T) {
			a := newActor(t, target, workflow)
			v := a.make()
			if state != "available" {
				a.reserveBy(v.ID)
			}
			if state == "connected" || state == "in use" {
				a.connect()
			}
			if state == "in use" {
				a.must(a.Complete(a.ctx, a.of(v), false))
				a.newTerm()
				a.must(a.Remove(a.ctx, a.of(v)))
			} else {
				a.newTerm()
				a.must(a.Abandon(a.ctx, a.spec.Stamp, a.spec.Connector, nil))
			}
			a.wantStatus(v.ID, "")
		})
	}
}

func lifecycleCompleteTwice(t *testing.T, target Target, workflow cinder.Workflow) {
	a := newActor(t, target, workflow)
	v := a.connect().Volume
	a.must(a.Complete(a.ctx, a.of(v), false))
	// This term still expects the volume to be attaching; the next one looks.
	a.must(a.Complete(a.ctx, a.of(v), false))
	a.newTerm()
	a.must(a.Complete(a.ctx, a.of(v), false))
	got := a.raw.call(t, http.MethodGet, "/volumes/"+v.ID, nil)
	attachments, _ := got.object(t, "volume")["attachments"].([]any)
	if len(attachments) != 1 {
		t.Errorf("%d attachments", len(attachments))
	}
}

func lifecycleForeign(t *testing.T, target Target, workflow cinder.Workflow) {
	a := newActor(t, target, workflow)
	v := a.make()
	other := a.of(v)
	other.Stamp.ClaimUID = "another-claim"
	if err := a.Remove(a.ctx, other); !cinder.IsKind(err, backends.KindNotOurs) {
		t.Errorf("error %v", err)
	}
	if err := a.Complete(a.ctx, other, false); !cinder.IsKind(err, backends.KindNotOurs) {
		t.Errorf("error %v", err)
	}
	a.wantStatus(v.ID, cinder.StatusAvailable)
}

func lifecycleDuplicate(t *testing.T, target Target, workflow cinder.Workflow) {
	a := newActor(t, target, workflow)
	first, second := a.make(), a.make()
	connected := a.connect()
	if connected.Volume.ID != first.ID && connected.Volume.ID != second.ID {
		t.Errorf("volume %s was created although there were two", connected.Volume.ID)
	}
	a.newTerm()
	if mine := a.mine(); len(mine) != 1 || mine[0].ID != connected.Volume.ID {
		t.Errorf("%d volumes are left", len(mine))
	}
}

func lifecycleError(t *testing.T, target Target, workflow cinder.Workflow) {
	kind := needType(t, target.Types.Fail, "CONTRACT_TYPE_FAIL")
	a := newActor(t, target, workflow)
	a.spec.Type = kind
	_, err := a.Connect(a.ctx, a.spec)
	var failed *cinder.Error
	if !errors.As(err, &failed) || failed.Kind != backends.KindVolumeFailed {
		t.Fatalf("error %v", err)
	}
	if strings.Contains(failed.Message, "gives no reason") || !strings.Contains(failed.Message, "went to error and was removed") {
		t.Errorf("message %q", failed.Message)
	}
	a.newTerm()
	if mine := a.mine(); len(mine) != 0 {
		t.Errorf("%d volumes are left", len(mine))
	}
}

func lifecycleSnapshot(t *testing.T, target Target, workflow cinder.Workflow) {
	a := newActor(t, target, workflow)
	v := a.make()
	got := a.raw.call(t, http.MethodPost, "/snapshots", object{"snapshot": object{"volume_id": v.ID, "name": a.spec.Name}})
	got.want(t, http.StatusAccepted)
	snapshot, _ := got.object(t, "snapshot")["id"].(string)
	path := "/snapshots/" + snapshot
	eventually(t, target, "the snapshot", func() (string, bool) {
		status, _ := a.raw.call(t, http.MethodGet, path, nil).object(t, "snapshot")["status"].(string)
		return status, status == "available"
	})
	if err := a.Remove(a.ctx, a.of(v)); !cinder.IsKind(err, backends.KindHasSnapshots) && !cinder.IsKind(err, backends.KindInUse) || !strings.Contains(fmt.Sprint(err), "snapshots") {
		t.Errorf("error %v", err)
	}
	a.wantStatus(v.ID, cinder.StatusAvailable)
	a.raw.call(t, http.MethodDelete, path, nil).want(t, http.StatusAccepted)
	waitGone(t, target, a.raw, path)
}

// lifecycleUsed: a volume that was in use is removed only with a
// PersistentVolume that names it, even if it was detached by hand.
func lifecycleUsed(t *testing.T, target Target, workflow cinder.Workflow) {
	a := newActor(t, target, workflow)
	v := a.connect().Volume
	a.must(a.Complete(a.ctx, a.of(v), false))
	a.newTerm()
	for _, state := range []cinder.Status{cinder.StatusInUse, cinder.StatusAvailable} {
		a.wantStatus(v.ID, state)
		if err := a.Abandon(a.ctx, a.spec.Stamp, a.spec.Connector, nil); !cinder.IsKind(err, backends.KindRecorded) {
			t.Errorf("%s: error %v", state, err)
		}
		if err := a.RemoveUnrecorded(a.ctx, v.ID, a.spec.Stamp, a.spec.Connector, nil); !cinder.IsKind(err, backends.KindRecorded) {
			t.Errorf("%s: error %v", state, err)
		}
		if state == cinder.StatusInUse {
			a.action(v.ID, "os-detach", object{})
		}
	}
	a.must(a.Remove(a.ctx, a.of(v)))
	a.wantStatus(v.ID, "")
}

func lifecycleReadOnly(t *testing.T, target Target, workflow cinder.Workflow) {
	a := newActor(t, target, workflow)
	a.spec.ReadOnly = true
	v := a.connect().Volume
	a.must(a.Complete(a.ctx, a.of(v), true))
	got := a.raw.call(t, http.MethodGet, "/attachments/detail?volume_id="+v.ID, nil, "3.54")
	attachments, _ := got.body["attachments"].([]any)
	if len(attachments) != 1 || attachments[0].(map[string]any)["attach_mode"] != "ro" {
		t.Errorf("attachments %v", attachments)
	}
}

func lifecycleAuto(t *testing.T, target Target) {
	a := newActor(t, target, cinder.WorkflowReserve)
	left := a.make()
	a.reserveBy(left.ID)
	a.workflow = cinder.WorkflowAuto
	a.newTerm()
	connected := a.connect()
	if connected.Volume.ID != left.ID || connected.AttachmentID != "" {
		t.Errorf("volume %s with attachment %q, left was %s", connected.Volume.ID, connected.AttachmentID, left.ID)
	}
	a.must(a.Remove(a.ctx, a.of(left)))
	a.newTerm()
	if connected := a.connect(); connected.AttachmentID == "" {
		t.Error("a new volume was not connected by the attachments API")
	}
}
