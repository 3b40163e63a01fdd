package provisioner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"unique"

	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/retry"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/tracing"
)

// tasks queues all work that finishes or undoes other work. Each item has its own delays.
type tasks struct {
	*memory
	*ending
	loop *worker.Loop[task]
	// doers do the tasks, by kind. They are registered before the loop runs.
	doers     map[followupKind]func(ctx context.Context, item followup) error
	backends  Backends
	cachedPVs corelisters.PersistentVolumeLister
	tracer    tracing.Tracer
	logger    *slog.Logger
}

// task is a followup in eight bytes. If a large backend is silent as the term begins,
// one task is queued for each of its PersistentVolumes, and the tables of the queue and
// of the turns never shrink again.
type task = unique.Handle[followup]

// followup describes a task; completionOf, rebindOf, misstampedOf, undoOf, removalOf and
// markOf build one.
type followup struct {
	kind    followupKind
	pv      string
	claim   types.UID
	backend string
	volume  string
	place   cinder.Place
}

type followupKind string

const (
	completion followupKind = "complete" // a PersistentVolume's volume: pv
	rebind     followupKind = "rebind"   // a PersistentVolume with another claim: pv; or with another claim in its volume's stamp: pv, volume
	undo       followupKind = "undo"     // what was begun for a claim: claim
	removeOne  followupKind = "remove"   // one volume of a claim: claim, backend, volume
	mark       followupKind = "mark"     // one volume of a claim: as for removeOne, and place
)

func completionOf(pvName string) task { return unique.Make(followup{kind: completion, pv: pvName}) }

func undoOf(claim types.UID) task { return unique.Make(followup{kind: undo, claim: claim}) }

func removalOf(claim types.UID, backend, volumeID string) task {
	return unique.Make(followup{kind: removeOne, claim: claim, backend: backend, volume: volumeID})
}

func markOf(origin objects.Origin) task {
	return unique.Make(followup{kind: mark, claim: types.UID(origin.ClaimUID), backend: origin.Backend, volume: origin.VolumeID, place: origin.Place})
}

func newTasks(o Options, over *ending, known *memory) *tasks {
	t := &tasks{
		memory: known, ending: over, doers: map[followupKind]func(context.Context, followup) error{},
		backends: o.Backends, cachedPVs: o.PersistentVolumes, tracer: o.Tracer, logger: o.Logger,
	}
	t.loop = worker.New(worker.Options[task]{
		Name: "followup", Workers: o.FollowupWorkers, Do: t.attempt,
		Describe: func(key task) string { return "the worker of " + key.Value().String() },
		Board:    o.Board, Monitor: o.Monitor, MaxWorkTime: o.MaxWorkTime,
	})
	return t
}

// handle registers who does the tasks of a kind.
func (t *tasks) handle(kind followupKind, by func(ctx context.Context, item followup) error) {
	t.doers[kind] = by
}

// attempt handles an item when its turn comes. A backend that does not answer must not
// occupy every worker.
func (t *tasks) attempt(ctx context.Context, a *worker.Attempt[task]) worker.Outcome {
	item := a.Key.Value()
	tenant, backend := t.tenantAndBackend(item)
	if backend != "" && item.kind != rebind && !slices.Contains(t.backends.Names(), backend) {
		// Only another policy can unblock it. A rebind reports that itself.
		t.logger.Warn("A follow-up waits because its backend is not in the policy", "backend", backend, "persistentVolume", item.pv, "claimUID", item.claim)
		a.Await(triggersAt(backend)...)
		return worker.Outcome{Done: true}
	}
	if !a.Begin(tenant, backend) {
		return worker.Outcome{}
	}
	err := t.do(ctx, item)
	var waits *waitError
	switch {
	case err == nil:
		return worker.Outcome{Done: true}
	case t.stopping():
		return worker.Outcome{}
	case errors.As(err, &waits):
		t.logger.Info("A follow-up waits", "persistentVolume", item.pv, "claimUID", item.claim, "reason", err)
		a.Await(waits.triggers...)
		return worker.Outcome{Done: true}
	}
	t.logger.Warn("Follow-up failed and will be retried", "persistentVolume", item.pv, "claimUID", item.claim, "volume", item.volume, "error", err)
	a.Await(triggersAt(backend)...)
	return worker.Outcome{Retry: new(retry.For(err))}
}

// add queues an item.
func (t *tasks) add(item task) { t.loop.Queue.Add(item) }

// tenantAndBackend returns what an item's turn counts against.
func (t *tasks) tenantAndBackend(item followup) (tenant, backend string) {
	if item.pv == "" {
		position, _ := t.ledger.PositionOf(item.claim)
		return position.Tenant, cmp.Or(item.backend, position.Backend)
	}
	pv, err := t.cachedPVs.Get(item.pv)
	if err != nil {
		return "", ""
	}
	return pv.Annotations[objects.AnnotationTenant], pv.Annotations[objects.AnnotationBackend]
}

func (t *tasks) do(ctx context.Context, item followup) (err error) {
	claim := cmp.Or(string(item.claim), strings.TrimPrefix(item.pv, objects.PVNamePrefix))
	ctx, span := t.tracer.Start(ctx, claim, string(item.kind), tracing.PersistentVolume.String(objects.PVNameFor(claim)))
	defer func() { endSpan(span, err) }()
	return t.doers[item.kind](ctx, item)
}

func (i followup) String() string {
	return fmt.Sprintf("followup %s %s%s %s %s", i.kind, i.pv, i.claim, i.backend, i.volume)
}

// removeDuplicates queues the duplicates of a recorded volume for removal.
func (t *tasks) removeDuplicates(volumes Recorded, recorded objects.Origin) {
	for _, id := range volumes.Duplicates(recorded.ClaimUID, recorded.VolumeID) {
		t.add(removalOf(types.UID(recorded.ClaimUID), recorded.Backend, id))
	}
}

// followupTasks counts tasks. Failed tasks that will be retried count as under way.
type followupTasks struct{ queued, completing, undoing int }

func (t *tasks) count() followupTasks {
	counts := followupTasks{queued: t.loop.Queue.Len()}
	present := map[task]bool{}
	for _, item := range slices.Concat(t.loop.Turns.Working(), t.loop.Awaiting()) {
		present[item] = true
	}
	for item := range present {
		if kind := item.Value().kind; kind == completion || kind == mark {
			counts.completing++
		} else {
			counts.undoing++
		}
	}
	return counts
}
