package campaign

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"sync"
	"time"

	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	corev1 "k8s.io/api/core/v1"

	"github.com/standalone-cinder/standalone-cinder/test/chaos/books"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/checker"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/machine"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/plan"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/timeline"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim/drivers"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim/keystone"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
	"github.com/standalone-cinder/standalone-cinder/test/hostile"
)

// world is everything that one seed has: a simulator, three replicas with a
// network of their own each, namespaces and StorageClasses.
type world struct {
	suite   *harness.Suite
	options Options
	plan    plan.Plan
	names   names
	sim     *cindersim.Simulator
	slots   []*slot
	started time.Time

	timeline *timeline.Timeline
	watch    *watch
	claims   *books.Claims
	// snapshots are the tenants' VolumeSnapshots and VolumeGroupSnapshots.
	snapshots      *books.Snapshots
	snapshotClient snapshotclient.Interface
	// attachments are the VolumeAttachments that pods need.
	attachments *books.Attachments
	// arrays are those that machines reach, by volume type, and pods are what runs on
	// machines; see machines.go.
	arrays   map[string]*drivers.Array
	storage  *machine.Storage
	machines []*station
	pods     *books.Pods
	// workloads are what moves pods between machines, and keeping is under way for each.
	workloads []*workload
	keeping   sync.WaitGroup
	endKeep   context.CancelFunc
	// sockets is the directory of the replicas' sockets; empty without CSI.
	sockets string
	fates   *books.Fates
	// course and quotas are for the sampler, and for the ending afterwards.
	course *checker.Course
	quotas *checker.Quotas

	mu      sync.Mutex
	counts  Counts
	foreign map[string]cindersim.Volume
	// given are those foreign volumes that were ours, as they were then.
	given map[string]cindersim.Volume
	// late are the claims whose creates were delayed on the network.
	late map[string]bool
	// variant and places are the replicas' configuration, and moved is when the
	// places last changed.
	variant int
	places  places
	moved   time.Time
	// hostility are the hostile phases under way, and attacks counts the hostile
	// answers by name.
	hostility []*hostility
	attacks   map[string]int
	// uses are what nodes used.
	uses []checker.NodeUse
	// elsewhere is what others than the sampler have found, and the sampler has
	// not yet noted.
	elsewhere []checker.Finding

	// configuring is locked by the actor that writes the replicas' files.
	configuring sync.Mutex
	// isOther is the set of projects to which backends lead when they do not lead
	// home.
	isOther map[string]bool

	// fronts are the hostile servers before the simulator's endpoints.
	fronts       []*hostile.Server
	stopSampling func()
}

// Times of the simulated Cinder.
const (
	createDelay = 300 * time.Millisecond
	deleteDelay = 200 * time.Millisecond
	latency     = 30 * time.Millisecond
	rpcTimeout  = 6 * time.Second
)

func newWorld(ctx context.Context, suite *harness.Suite, options Options, seed uint64) (_ *world, err error) {
	w := &world{
		suite:     suite,
		options:   options,
		plan:      options.Plan(seed),
		names:     names{seed},
		timeline:  timeline.New(options.Log),
		claims:    books.NewClaims(),
		snapshots: books.NewSnapshots(),

		attachments: books.NewAttachments(),
		arrays:      arrays(),
		pods:        books.NewPods(),
		fates:       books.NewFates(),
		course:      checker.NewCourse(connectorHost),
		foreign:     map[string]cindersim.Volume{},
		given:       map[string]cindersim.Volume{},
		late:        map[string]bool{},
		attacks:     map[string]int{},
	}
	defer func() {
		if err != nil {
			w.close()
		}
	}()
	if w.snapshotClient, err = snapshotclient.NewForConfig(suite.Config); err != nil {
		return nil, err
	}
	identity := keystone.DefaultIdentity()
	// Short, so that a rotated password is noticed.
	identity.ValidationCache = time.Second
	for _, backend := range []string{plan.Gold, plan.Silver} {
		name := otherUser(backend)
		identity.Projects = append(identity.Projects, keystone.Project{Name: name})
		identity.Users = append(identity.Users, keystone.User{Name: name, Password: name + "-pass", Projects: []string{name}})
	}
	w.sim, err = cindersim.New(cindersim.Options{
		Seed: seed, Identity: identity, Types: volumeTypes(w.arrays), ExtendDelay: createDelay, CreateDelay: createDelay, DeleteDelay: deleteDelay, SnapshotDelay: createDelay, BackupDelay: 2 * createDelay, PlacementDelay: createDelay / 4,
		Latency: latency, RPCTimeout: rpcTimeout, Lag: options.Lag,
		Front: w.front,
	})
	if err != nil {
		return nil, err
	}
	if err := w.sim.Start(); err != nil {
		return nil, err
	}
	w.isOther = map[string]bool{}
	for _, backend := range []string{plan.Gold, plan.Silver, plan.Lab} {
		w.isOther[w.otherProject(backend)] = true
	}
	w.quotas = checker.NewQuotas(w.names.cluster(), w.backendOf(), w.names.classes())
	if err := w.makeNodes(ctx); err != nil {
		return nil, err
	}
	if err := w.makeMachines(ctx); err != nil {
		return nil, err
	}
	for i := range plan.Slots {
		s, err := newSlot(ctx, w, i)
		if err != nil {
			return nil, err
		}
		w.slots = append(w.slots, s)
	}
	if err := w.allow(0); err != nil {
		return nil, err
	}
	if err := w.makeObjects(ctx); err != nil {
		return nil, err
	}
	for _, where := range []string{plan.Gold, plan.Silver, plan.Lab} {
		if err := w.addForeign(where, ""); err != nil {
			return nil, err
		}
	}
	w.watch = newWatch(suite.Client, w.names)
	if err := w.watch.start(ctx); err != nil {
		return nil, err
	}
	starting, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if err := w.startReplicas(starting); err != nil {
		return nil, fmt.Errorf("replicas do not start: %w", err)
	}
	w.started = time.Now()
	w.timeline.Begin(w.started)
	w.stopSampling = w.sample(ctx)
	return w, nil
}

// makeObjects creates namespaces and StorageClasses.
func (w *world) makeObjects(ctx context.Context) error {
	for _, tenant := range plan.AllTenants() {
		if err := w.suite.CreateNamespace(ctx, w.names.namespace(tenant), w.names.labels(tenant)); err != nil {
			return err
		}
	}
	for _, class := range plan.Classes() {
		err := w.suite.CreateClass(ctx, w.names.class(class), w.names.provisioner(), func(c *storagev1.StorageClass) {
			c.Parameters = classParameters()
			if array := plan.ArrayOf(class); w.arrays[array] != nil {
				c.Parameters = map[string]string{"type": array}
			}
			if class == plan.Kept {
				retain := corev1.PersistentVolumeReclaimRetain
				c.ReclaimPolicy = &retain
			}
		})
		if err != nil {
			return err
		}
	}
	if err := w.makeKeys(ctx); err != nil {
		return err
	}
	return w.makeSnapshotClasses(ctx)
}

func classParameters() map[string]string { return map[string]string{"type": "iscsi"} }

// backendOf names the backend of each project.
func (w *world) backendOf() map[string]string {
	backends := map[string]string{podsProject: plan.Pods}
	for backend, project := range arrayProjects() {
		backends[project] = backend
	}
	for _, backend := range []string{plan.Gold, plan.Silver, plan.Lab} {
		backends[w.project(backend)], backends[w.otherProject(backend)] = backend, backend
	}
	return backends
}

func (w *world) project(backend string) string {
	if backend == plan.Lab {
		return cindersim.DefaultNoauthProject
	}
	return w.sim.ProjectID(userOf(backend))
}

// userOf returns the Keystone user of a backend, and the name of its project.
func userOf(backend string) string {
	if backend == plan.Gold {
		return "team-a"
	}
	return "team-b"
}

// close ends everything that this seed started and removes what it made.
func (w *world) close() {
	if w.stopSampling != nil {
		w.stopSampling()
	}
	if w.endKeep != nil {
		w.endKeep()
	}
	w.keeping.Wait()
	for _, s := range w.slots {
		s.close()
	}
	if w.sockets != "" {
		_ = os.RemoveAll(w.sockets)
	}
	if w.watch != nil {
		w.watch.stop()
	}
	for _, front := range w.fronts {
		front.Close()
	}
	if w.sim != nil {
		w.sim.Close()
	}
	w.sweep()
}

// found passes a finding to the sampler.
func (w *world) found(f checker.Finding) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.elsewhere = append(w.elsewhere, f)
}

// findings returns all findings; the sampler has stopped.
func (w *world) findings() []checker.Finding {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range w.elsewhere {
		w.course.Note(f)
	}
	return w.course.Findings()
}

// change counts an action.
func (w *world) change(count func(*Counts)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	count(&w.counts)
}

func (w *world) count() Counts {
	w.mu.Lock()
	defer w.mu.Unlock()
	counts := w.counts
	counts.Claims, counts.Deleted = w.claims.Totals()
	counts.Snapshots, counts.Backups, counts.Groups = w.snapshots.Total(plan.Single), w.snapshots.Total(plan.Backup), w.snapshots.Total(plan.Group)
	counts.Together = w.groupsTaken()
	counts.Pods, counts.Attached = w.attachments.Totals()
	for _, m := range w.machines {
		counts.Staged += m.Stages()
	}
	for _, n := range w.attacks {
		counts.Lies += n
	}
	counts.Attacks = len(w.attacks)
	counts.Bound = w.watch.everBound()
	for _, entry := range w.sim.Journal() {
		switch {
		case entry.Fault != "":
			counts.Faults++
		case entry.Status == http.StatusRequestEntityTooLarge:
			counts.Full++
		}
	}
	return counts
}

// try is how long one request to the API server may take: while paused, the
// server does not answer.
const try = 5 * time.Second

// insist repeats a request to the API server until it gets an answer. An error
// about the object itself is an answer.
func insist(ctx context.Context, request func(ctx context.Context) error) error {
	for {
		bounded, cancel := context.WithTimeout(ctx, try)
		err := request(bounded)
		cancel()
		if err == nil || apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) || apierrors.IsInvalid(err) {
			return err
		}
		if !sleep(ctx, 200*time.Millisecond) {
			return fmt.Errorf("%w; the last answer was: %w", ctx.Err(), err)
		}
	}
}
