// Package world is one simulated world: replicas of the whole program, Kubernetes'
// controllers, an API server and a Cinder, in one synctest bubble.
package world

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"
	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/books"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/checker"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/simulate/apiserver"
	"github.com/standalone-cinder/standalone-cinder/test/simulate/cluster"
	"github.com/standalone-cinder/standalone-cinder/test/simulate/gate"
)

const (
	apiHost         = "kubernetes"
	ownNamespace    = "standalone-cinder"
	provisionerName = "simulate.example/cinder"
	clusterID       = "simulation"
	// lagStep is how much more Cinder's reads lag with the next of four seeds, and lagMargin
	// by how much replicas are told more.
	lagStep, lagMargin = 1500 * time.Millisecond, 500 * time.Millisecond
	// settles is how long it may take after all trouble has ended.
	settles = 20 * time.Minute
)

// World is everything that one seed has.
type World struct {
	// random decides what happens; the gate has a source of its own.
	random *rand.Rand
	dir    string
	// lag is how much Cinder's reads lag.
	lag  time.Duration
	sim  *cindersim.Simulator
	api  *apiserver.Server
	gate *gate.Gate
	// hosts are the servers, by name.
	hosts   map[string]http.Handler
	slots   [2]slot
	started int
	// dead are replicas that were killed or stopped.
	dead []*replica

	claims    *books.Claims
	fates     *books.Fates
	snapshots *books.Snapshots
	course    *checker.Course
	quotas    *checker.Quotas
	policy    *policy.Policy
	foreign   map[string]cindersim.Volume
	// seen are all volumes as they were last.
	seen map[string]cindersim.Volume
	// sent is when the requests of Cinder's journal were sent, by their numbers.
	sent map[int]time.Time
	// leader is the replica that took the Lease last, holder what the Lease says.
	leader, holder string
	ledSince       time.Time

	fleet

	cinder, kubernetes trouble
	// cut and withheld say until when a client is cut off, or gets no events.
	cut, withheld map[string]time.Time
	faults        []*cindersim.Injection
	planned       []planned

	// trap lets something befall a request; nil for nothing.
	trap *trap

	trace []string
	steps int

	controllers *network
	stop        context.CancelFunc
}

// slot is a place for a replica, which starts again at some time.
type slot struct {
	replica *replica
	again   time.Time
}

// planned is what somebody will do.
type planned struct {
	at time.Time
	do func()
}

// trouble is weather that ends.
type trouble struct {
	gate.Weather
	until time.Time
}

// New makes a world whose files are in a directory. It must be called in the bubble.
func New(seed uint64, dir string) (*World, error) {
	w := &World{
		random: rand.New(rand.NewPCG(seed, 0)), dir: dir, lag: time.Duration(seed%4) * lagStep,
		claims: books.NewClaims(), fates: books.NewFates(), snapshots: books.NewSnapshots(), course: checker.NewCourse(policy.DefaultConnectorHost),
		fleet:   fleet{arrays: newArrays(), pods: books.NewPods(), attachments: books.NewAttachments(), taints: seed%2 == 0, fenced: map[string]bool{}},
		foreign: map[string]cindersim.Volume{}, seen: map[string]cindersim.Volume{}, sent: map[int]time.Time{}, cut: map[string]time.Time{}, withheld: map[string]time.Time{},
	}
	ids, past := rand.New(rand.NewPCG(seed, 2)), rand.New(rand.NewPCG(seed, 3))
	w.api = apiserver.New(apiserver.Options{
		// Without lists by watches, clients begin with what an API server remembers.
		Deliver: w.deliver, Behind: func() int { return past.IntN(100) }, WatchLists: seed%3 != 0,
		NewUID: func() types.UID {
			var id uuid.UUID
			binary.LittleEndian.PutUint64(id[:8], ids.Uint64())
			binary.LittleEndian.PutUint64(id[8:], ids.Uint64())
			return types.UID(id.String())
		},
	})
	w.gate = gate.New(gate.Options{Seed: seed, Weather: w.weather, Passed: w.passed})
	var err error
	w.sim, err = cindersim.New(cindersim.Options{Seed: seed + 1, Types: volumeTypes(w.arrays), CreateDelay: 300 * time.Millisecond, DeleteDelay: 200 * time.Millisecond, PlacementDelay: 100 * time.Millisecond, BackupDelay: 500 * time.Millisecond,
		Lag: w.lag})
	if err != nil {
		return nil, err
	}
	w.sim.SetURLs("http://noauth/v3", "http://cinder/v3", "http://keystone/v3")
	w.hosts = map[string]http.Handler{apiHost: w.api, "noauth": w.sim.NoauthHandler(), "cinder": w.sim.CinderHandler(), "keystone": w.sim.KeystoneHandler()}
	if err := w.prepare(); err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	w.stop = stop
	w.controllers = w.newNetwork("controllers")
	config := &rest.Config{Host: "http://" + apiHost, Dial: w.controllers.DialContext, QPS: 1000, Burst: 1000}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	if err := cluster.Start(ctx, client); err != nil {
		return nil, err
	}
	snapshots, err := snapshotclient.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	cluster.StartSnapshots(ctx, client, snapshots)
	if err := w.boot(ctx); err != nil {
		return nil, err
	}
	return w, w.restart()
}

func (w *World) prepare() error {
	all := []apiserver.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem}}, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ownNamespace}},
	}
	pod, err := podOfReplicas()
	if err != nil {
		return err
	}
	keys := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ownNamespace, Name: keySecret, Labels: map[string]string{objects.LabelKeyEncryption: "true"}}, Data: map[string][]byte{}}
	for variant := range variants {
		keys.Data[fmt.Sprint(variant)] = []byte(fmt.Sprintf("%064x", variant+1))
	}
	all = append(all, keys, pod)
	for _, tenant := range []string{"a", "b", "c", "d", "e", stager} {
		all = append(all, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: tenant}})
	}
	for _, class := range classes() {
		policy, mode := corev1.PersistentVolumeReclaimDelete, storagev1.VolumeBindingImmediate
		if class == "kept" {
			policy = corev1.PersistentVolumeReclaimRetain
		}
		all = append(all, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: class}, Provisioner: provisionerName,
			Parameters: parametersOf(class), ReclaimPolicy: &policy, VolumeBindingMode: &mode, AllowVolumeExpansion: new(true)})
	}
	for _, object := range append(all, snapshotObjects()...) {
		if _, err := w.api.Create(object); err != nil {
			return err
		}
	}
	if err := writeFile(filepath.Join(w.dir, "clouds.yaml"), w.sim.CloudsYAML()); err != nil {
		return err
	}
	w.quotas = checker.NewQuotas(clusterID, w.backendOf(), classes())
	w.reload(0)
	return w.addForeign()
}

// addForeign adds volumes that are not ours, and look as if they were.
func (w *World) addForeign() error {
	for project := range w.backendOf() {
		for _, metadata := range []map[string]string{{"owner": "somebody"}, {checker.StampCluster: "another-cluster", checker.StampClaimUID: "another", checker.StampPV: "pvc-another"},
			{checker.StampCluster: clusterID, checker.StampClaimUID: "half", checker.StampPV: "pvc-another"}} {
			id, err := w.sim.AddVolume(cindersim.Volume{Name: "pvc-another", Project: project, SizeGiB: 1, Metadata: metadata})
			if err != nil {
				return err
			}
			w.foreign[id], _ = w.sim.Volume(id)
		}
	}
	return nil
}

func classes() []string { return []string{"fast", "dual", "kept", "moved", shown, masked, sealed} }

func parametersOf(class string) map[string]string {
	switch class {
	case shown, masked:
		return map[string]string{"type": class}
	case sealed:
		return map[string]string{"type": masked}
	}
	return map[string]string{"type": "iscsi"}
}

// weather is how the network is for a passage now.
func (w *World) weather(p gate.Passage) gate.Weather {
	now, weather := time.Now(), gate.Weather{Delay: 20 * time.Millisecond}
	trouble := w.cinder
	if p.Server == apiHost {
		trouble = w.kubernetes
	}
	if now.Before(trouble.until) && p.Client != "controllers" {
		weather = trouble.Weather
	}
	pod := strings.TrimSuffix(p.Client, besideReplica)
	weather.Until = w.cut[pod]
	if p.Kind == gate.Event {
		weather.Lost, weather.Failed = weather.Lost/20, 0
		if until := w.withheld[pod]; until.After(weather.Until) {
			weather.Until = until
		}
	}
	if w.trap != nil {
		return w.spring(p, weather)
	}
	return weather
}

// Run makes trouble and lets it settle, a few times, and returns what was wrong.
func (w *World) Run(rounds int) ([]checker.Finding, error) {
	if err := w.run(5 * time.Second); err != nil {
		return nil, err
	}
	for round := range rounds {
		for until := time.Now().Add(2 * time.Minute); time.Now().Before(until); {
			w.act()
			if err := w.run(time.Duration(w.random.Int64N(int64(2 * time.Second)))); err != nil {
				return nil, err
			}
		}
		w.calm()
		if round == rounds-1 {
			w.removeAll()
		}
		if err := w.settle(settles); err != nil {
			return nil, err
		}
		if len(w.course.Findings()) > 0 {
			break
		}
	}
	return w.course.Findings(), nil
}

// run lets time pass.
func (w *World) run(during time.Duration) error {
	for until := time.Now().Add(during); ; {
		if err := w.restart(); err != nil {
			return err
		}
		w.catchUp(time.Now())
		w.runPods()
		step := min(time.Until(until), time.Second)
		w.gate.Run(time.Now().Add(step))
		w.ended()
		w.look()
		if !time.Now().Before(until) {
			return nil
		}
	}
}

// Trace returns what has happened so far.
func (w *World) Trace() []string { return w.trace }

// Steps counts what has passed.
func (w *World) Steps() int { return w.steps }

// Logs returns what each replica and node has logged.
func (w *World) Logs() map[string]string {
	logs := map[string]string{}
	for _, s := range w.machines {
		logs[s.Name] = s.Log()
	}
	for _, s := range w.slots {
		if s.replica != nil {
			logs[s.replica.name] = s.replica.log.String()
		}
	}
	for _, r := range w.dead {
		logs[r.name] = r.log.String()
	}
	return logs
}

// variants is how many policies there are.
const variants = 3

// policyText returns one of the policies: with the limits as usual, lower or higher.
func policyText(variant int) string {
	scale := []int{10, 6, 16}[variant]
	limit := func(most int) string { return fmt.Sprint(most * scale / 10) }
	return strings.NewReplacer("groups: true", "groups: true, backups: true", "CLUSTER", clusterID, "PROJECT", cindersim.DefaultNoauthProject,
		"KEYS", keySecret, "VARIANT", fmt.Sprint(variant), "SHOWN", arrayProjects()[shown], "MASKED", arrayProjects()[masked],
		"GOLD", limit(26), "SILVER", limit(50), "LAB", limit(30), "A-VOLUMES", limit(19), "B-GIGABYTES", limit(36), "C-VOLUMES", limit(22)).Replace(`
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
clusterID: CLUSTER
defaults:
  timeouts: {create: 20s, delete: 20s, request: 4s}
  volumeSize: {max: 10Gi}
backends:
  - {name: gold, auth: {cloud: team-a}, workflow: reserve, limits: {volumes: GOLD}}
  - {name: silver, auth: {cloud: team-b}, workflow: attachment, limits: {gigabytes: SILVER}}
  - {name: lab, auth: {noauth: {endpoint: "http://noauth/v3", project: PROJECT}}, workflow: reserve, limits: {volumes: LAB}}
  - {name: shown, auth: {noauth: {endpoint: "http://noauth/v3", project: SHOWN}}, mode: csi}
  - {name: masked, auth: {noauth: {endpoint: "http://noauth/v3", project: MASKED}}, mode: csi, csi: {fencing: initiator}}
tenants:
  - name: a
    namespaces: [a]
    quota: {volumes: A-VOLUMES}
    classes:
      - {storageClasses: [fast], backends: [gold], groups: true}
      - {storageClasses: [dual], backends: [silver, lab], groups: true}
      - {storageClasses: [kept], backends: [gold], groups: true}
  - name: b
    namespaces: [b]
    quota: {gigabytes: B-GIGABYTES}
    classes:
      - {storageClasses: [fast], backends: [silver], groups: true}
      - {storageClasses: [dual], backends: [gold, lab], groups: true}
      - {storageClasses: [kept], backends: [lab], groups: true}
  - name: c
    namespaces: [c]
    quota: {volumes: C-VOLUMES}
    classes:
      - {storageClasses: [fast], backends: [lab], groups: true}
      - {storageClasses: [dual], backends: [lab, silver], groups: true}
  - {name: d, namespaces: [d], classes: [{storageClasses: [moved], backends: [gold, silver], groups: true}, {storageClasses: [shown], backends: [shown]}]}
  - {name: e, namespaces: [e], classes: [{storageClasses: [moved], backends: [gold, silver], groups: true}, {storageClasses: [shown], backends: [shown]}]}
  - {name: n, namespaces: [n], classes: [{storageClasses: [shown], backends: [shown]}, {storageClasses: [masked], backends: [masked]}, {storageClasses: [sealed], backends: [masked], encrypt: {keySecret: KEYS, entry: "VARIANT"}}]}
`)
}

func claimOf(namespace, name, class string, gib int) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{labelName: name}},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(fmt.Sprintf("%dGi", gib))}},
		},
	}
}

var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

func (w *World) note(format string, arguments ...any) {
	w.trace = append(w.trace, fmt.Sprintf("%12.6f ", time.Since(epoch).Seconds())+fmt.Sprintf(format, arguments...))
}

// Close ends everything.
func (w *World) Close() {
	for _, s := range w.slots {
		if s.replica != nil {
			s.replica.kill()
			w.dead = append(w.dead, s.replica)
		}
	}
	w.stop()
	w.controllers.cut()
	for _, s := range w.machines {
		s.network.cut()
	}
	w.sim.Close()
	w.gate.Close()
	for _, r := range w.dead {
		<-r.ended
	}
	// What sleeps ends; whatever is left then is a goroutine that stays for ever, and
	// synctest panics.
	time.Sleep(time.Hour)
}
