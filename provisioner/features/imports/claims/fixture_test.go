package claims

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	eventrecord "k8s.io/client-go/tools/record"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/imports"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodeuse"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/secrets"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/ledger"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/placement"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/liveness"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

const testPolicy = `
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
backends:
  - {name: gold, auth: {cloud: gold}}
  - {name: silver, auth: {cloud: silver}}
tenants:
  - name: a
    namespaces: [team-a]
    quota: {volumes: 2, gigabytes: 10}
    classes:
      - {storageClasses: [fast], backends: [gold, silver], import: {names: ["data*"], metadata: {owner: a}}}
      - {storageClasses: [new], backends: [gold]}
      - {storageClasses: [csi, driver], backends: [gold, silver], mode: csi, import: {names: ["data*"], metadata: {owner: a}}}
  - name: b
    namespaces: [team-b]
    classes: [{storageClasses: ["*"], backends: [gold], import: {names: ["*"]}}]
  - name: c
    namespaces: [team-c]
    classes: [{storageClasses: ["*"], backends: [silver], import: {names: ["*"]}}]
`

const connection = `{"driver_volume_type": "iscsi", "data": {"target_portal": "10.0.0.1:3260", "target_iqn": "iqn.2010-10.org.openstack:volume", "target_lun": 1,
  "auth_method": "CHAP", "auth_username": "user", "auth_password": "secret"}}`

// project fakes a backend's project. It stamps and connects as a Lifecycle does.
type project struct {
	mu      sync.Mutex
	volumes map[string]cinder.Volume
	health  error
	listErr error
	// listings and reads count the requests.
	listings, reads int
	// hangs makes reads of single volumes wait until it is closed.
	hangs    chan struct{}
	place    cinder.Place
	document string
	canceled []string
	// die ends an import before the step of that name. onStamp changes a volume just
	// before it is stamped, onReserve just before it is reserved.
	die                string
	onStamp, onReserve func(v *cinder.Volume)
}

var errDied = &cinder.Error{Backend: "gold", Kind: cinder.KindUnavailable, Message: "the connection broke"}

func (p *project) All(context.Context) ([]cinder.Volume, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.listings++
	all := slices.Collect(maps.Values(p.volumes))
	slices.SortFunc(all, func(a, b cinder.Volume) int { return strings.Compare(a.ID, b.ID) })
	return all, p.listErr
}

func (p *project) Look(ctx context.Context, target backends.Target) (cinder.Volume, cinder.Place, error) {
	v, err := p.Volume(ctx, target.VolumeID)
	switch {
	case !cinder.IsKind(err, cinder.KindNotFound):
		return v, p.place, err
	case target.Place.IsKnown() && target.Place != p.place:
		return v, p.place, &cinder.Error{Backend: "gold", Kind: backends.KindElsewhere, Message: "volume " + target.VolumeID + " was elsewhere"}
	}
	return v, p.place, nil
}

func (p *project) Volume(_ context.Context, id string) (cinder.Volume, error) {
	if p.hangs != nil {
		<-p.hangs
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reads++
	v, ok := p.volumes[id]
	if !ok {
		return v, &cinder.Error{Backend: "gold", Kind: cinder.KindNotFound, Message: "no such volume"}
	}
	return v, nil
}

func (p *project) Importable(v cinder.Volume, stamp stamps.Volume, _ cinder.Connector, _ bool) error {
	if stamps.Of(v).Cluster == "" && v.Status != cinder.StatusAvailable {
		return &cinder.Error{Backend: "gold", Kind: cinder.KindConflict, Message: "volume " + v.ID + " is " + string(v.Status)}
	}
	return nil
}

func (p *project) Import(ctx context.Context, spec backends.Import) (backends.Connected, error) {
	v, err := p.Volume(ctx, spec.VolumeID)
	if err != nil {
		return backends.Connected{}, err
	}
	if !spec.Unattended {
		return backends.Connected{}, fmt.Errorf("nobody attends to this import")
	}
	if p.onStamp != nil {
		p.onStamp(&v)
	}
	if !spec.Stamp.Owns(v) {
		if p.die == "stamp" {
			return backends.Connected{}, errDied
		}
		if err := spec.Granted(v); err != nil {
			return backends.Connected{}, err
		}
		if stamps.Of(v).Cluster != "" {
			if err := spec.Unclaimed(ctx, v); err != nil {
				return backends.Connected{}, err
			}
		}
		v.Metadata = maps.Clone(v.Metadata)
		maps.Copy(v.Metadata, spec.Stamp.Metadata(spec.Metadata))
		if spec.CSI {
			v.Metadata[stamps.KeyMode] = stamps.ModeCSI
		}
		p.put(v)
	}
	if spec.CSI {
		if p.die == "connect" {
			return backends.Connected{}, errDied
		}
		return backends.Connected{Volume: v}, spec.Granted(v)
	}
	if p.die == "reserve" {
		return backends.Connected{}, errDied
	}
	v.Status = cinder.StatusAttaching
	if p.onReserve != nil {
		p.onReserve(&v)
	}
	p.put(v)
	if err := spec.Granted(v); err != nil {
		return backends.Connected{}, err
	}
	if p.die == "connect" {
		return backends.Connected{}, errDied
	}
	return backends.Connected{Volume: v, Document: []byte(p.document), Fresh: true}, nil
}

func (p *project) CancelImport(ctx context.Context, target backends.Target) error {
	v, err := p.Volume(ctx, target.VolumeID)
	if err != nil {
		return err
	}
	if !target.Stamp.Owns(v) {
		return &cinder.Error{Backend: "gold", Kind: backends.KindNotOurs, Message: "another stamp"}
	}
	p.canceled = append(p.canceled, v.ID)
	if stamps.IsCSI(v) {
		return nil
	}
	v.Status = cinder.StatusAvailable
	p.put(v)
	return nil
}

func (p *project) put(v cinder.Volume) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.volumes[v.ID] = v
}

// Volumes, Relist, KnowsNothingOf and Health are for the ledger.
func (p *project) Volumes(ctx context.Context) ([]cinder.Volume, error) { return p.All(ctx) }
func (p *project) Relist(ctx context.Context) ([]cinder.Volume, error)  { return p.All(ctx) }
func (p *project) KnowsNothingOf(stamps.Volume) bool                    { return true }
func (p *project) Health() error                                        { return p.health }

type fixture struct {
	*Controller
	t           *testing.T
	policy      *policy.Policy
	projects    map[string]*project
	client      *fake.Clientset
	events      *eventrecord.FakeRecorder
	factory     informers.SharedInformerFactory
	provisioned []string
	counted     []string
}

func newFixture(t *testing.T, volumes ...cinder.Volume) *fixture {
	t.Helper()
	f := &fixture{t: t, client: fake.NewClientset(
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team-a"}}, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team-b"}}, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team-c"}},
	), projects: map[string]*project{}}
	f.allow(testPolicy)
	for _, name := range []string{"gold", "silver"} {
		f.projects[name] = &project{volumes: map[string]cinder.Volume{}, document: connection, place: cinder.Place{Endpoint: "http://cinder/v3", Project: name}}
	}
	for _, v := range volumes {
		f.projects["gold"].put(v)
	}
	f.factory = informers.NewSharedInformerFactory(f.client, 0)
	f.must(f.factory.Core().V1().PersistentVolumeClaims().Informer().AddIndexers(objects.ClaimIndexers()))
	f.must(f.factory.Core().V1().PersistentVolumes().Informer().AddIndexers(objects.Indexers()))
	for name, provisioner := range map[string]string{"fast": "test", "new": "test", "foreign": "other", "csi": "test", "driver": "standalone-cinder.openstack.org"} {
		class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner}
		_, err := f.client.StorageV1().StorageClasses().Create(t.Context(), class, metav1.CreateOptions{})
		f.must(err)
		f.must(f.factory.Storage().V1().StorageClasses().Informer().GetStore().Add(class))
	}
	f.term()
	return f
}

// secretsOf lists the Secrets that were made for a PersistentVolume.
func (f *fixture) secretsOf(pv string) (names []string) {
	f.t.Helper()
	list, err := f.client.CoreV1().Secrets("own").List(context.WithoutCancel(f.t.Context()), metav1.ListOptions{})
	f.must(err)
	for i := range list.Items {
		if objects.IsSecretOf(&list.Items[i], pv) {
			names = append(names, list.Items[i].Name)
		}
	}
	return names
}

// allow puts a policy in force.
func (f *fixture) allow(text string) {
	f.t.Helper()
	parsed, err := policy.Parse([]byte(text), "policy.yaml", mappers.BuiltIn().Describe())
	f.must(err)
	f.policy = parsed
}

// term begins a term whose leader remembers nothing.
func (f *fixture) term() {
	registry, err := mappers.New(mappers.Options{SecretNamespace: "own", Protocols: mappers.BuiltIn()})
	f.must(err)
	current := func() *policy.Policy { return f.policy }
	f.events = eventrecord.NewFakeRecorder(200)
	f.Controller = New(Options{
		Site: imports.Site{
			ProvisionerName: "test", Cluster: "cluster-1", ClusterUID: "kube-system", Namespace: "own",
			Mappers: registry, Nodes: nodeuse.New(nodeuse.Options{Client: f.client}), Client: f.client,
			Secrets: secrets.New(secrets.Options{Client: f.client, Namespace: "own", Cluster: "cluster-1"}),
			Caches: objects.Objects{
				Claims:            f.factory.Core().V1().PersistentVolumeClaims().Informer().GetIndexer(),
				PersistentVolumes: f.factory.Core().V1().PersistentVolumes().Informer().GetIndexer(),
				Classes:           f.factory.Storage().V1().StorageClasses().Informer().GetIndexer(),
				Namespaces:        f.factory.Core().V1().Namespaces().Informer().GetIndexer(),
			},
		},
		Policy: current,
		Room: placement.New(placement.Options{
			Policy: current, Ledger: ledger.New(current), Term: f.t.Context(),
			Unfinished: func(types.UID) (stamps.Volume, bool) { return stamps.Volume{}, false },
			Backends:   func() []string { return []string{"gold", "silver"} },
			Volumes:    func(name string) (placement.Volumes, error) { return f.projects[name], nil },
		}),
		Volumes:    func(name string) (Volumes, error) { return f.projects[name], nil },
		Connector:  func(string) (cinder.Connector, error) { return cinder.Connector{Host: "k8s"}, nil },
		Count:      func(outcome string) { f.counted = append(f.counted, outcome) },
		OnBehalfOf: func(ctx context.Context, _ string) context.Context { return ctx },
		Provision:  func(claim *corev1.PersistentVolumeClaim) { f.provisioned = append(f.provisioned, claim.Name) },
		Recorder:   f.events, Workers: 4,
		Board:   parking.NewBoard(),
		Monitor: liveness.New(), MaxWorkTime: liveness.Always(time.Hour), Logger: slog.New(slog.DiscardHandler),
	})
	f.see()
	f.t.Cleanup(f.loop.Queue.ShutDown)
}

func (f *fixture) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// data returns a volume that tenant a may have.
func data(id string, change func(*cinder.Volume)) cinder.Volume {
	v := cinder.Volume{ID: id, Name: "data", SizeGiB: 4, Status: cinder.StatusAvailable, Metadata: map[string]string{"owner": "a"}}
	if change != nil {
		change(&v)
	}
	return v
}

// stamped puts a stamp on a volume that has been left behind.
func stamped(cluster, tenant, claim string) func(*cinder.Volume) {
	return func(v *cinder.Volume) {
		maps.Copy(v.Metadata, stamps.Volume{Cluster: cluster, ClusterUID: "kube-system", Namespace: "team-" + tenant, Claim: claim, ClaimUID: "uid-" + claim,
			PV: "pvc-uid-" + claim, Tenant: tenant, StorageClass: "fast"}.Metadata(nil))
	}
}

// ask makes a claim of 2 GiB that asks for a volume.
func (f *fixture) ask(namespace, name, class, wanted string, change func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	f.t.Helper()
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-" + name), Annotations: map[string]string{objects.AnnotationImport: wanted}},
		Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")}}},
	}
	if change != nil {
		change(claim)
	}
	created, err := f.client.CoreV1().PersistentVolumeClaims(namespace).Create(f.t.Context(), claim, metav1.CreateOptions{})
	f.must(err)
	f.must(f.factory.Core().V1().PersistentVolumeClaims().Informer().GetStore().Add(created))
	return created
}

// remove deletes a claim. noticed says whether the controller notices.
func (f *fixture) remove(claim *corev1.PersistentVolumeClaim, noticed bool) {
	f.t.Helper()
	f.must(f.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Delete(f.t.Context(), claim.Name, metav1.DeleteOptions{}))
	f.must(f.factory.Core().V1().PersistentVolumeClaims().Informer().GetStore().Delete(claim))
	if noticed {
		f.ClaimChanged(claim, nil)
	}
}

// sync works on a claim once.
func (f *fixture) sync(claim *corev1.PersistentVolumeClaim) {
	f.t.Helper()
	f.see()
	f.loop.Try(f.t.Context(), keyOf(claim))
}

// see brings the caches of PersistentVolumes and namespaces up to date, without a request
// that counts as the controller's.
func (f *fixture) see() {
	f.t.Helper()
	pvs, err := f.client.Tracker().List(corev1.SchemeGroupVersion.WithResource("persistentvolumes"), corev1.SchemeGroupVersion.WithKind("PersistentVolume"), "")
	f.must(err)
	namespaces, err := f.client.Tracker().List(corev1.SchemeGroupVersion.WithResource("namespaces"), corev1.SchemeGroupVersion.WithKind("Namespace"), "")
	f.must(err)
	var items []any
	for i := range pvs.(*corev1.PersistentVolumeList).Items {
		items = append(items, &pvs.(*corev1.PersistentVolumeList).Items[i])
	}
	f.must(f.Caches.PersistentVolumes.Replace(items, ""))
	items = nil
	for i := range namespaces.(*corev1.NamespaceList).Items {
		items = append(items, &namespaces.(*corev1.NamespaceList).Items[i])
	}
	f.must(f.Caches.Namespaces.Replace(items, ""))
}

// endLeftovers works on everything that claims left behind.
func (f *fixture) endLeftovers() {
	for claim := range maps.Clone(f.left) {
		f.loop.Try(f.t.Context(), leftKey+string(claim))
	}
}

// served returns the name of the claim that the volume's PersistentVolume serves; empty
// if there is no PersistentVolume.
func (f *fixture) served(volume string) string {
	f.t.Helper()
	pvs, err := f.client.CoreV1().PersistentVolumes().List(f.t.Context(), metav1.ListOptions{})
	f.must(err)
	for _, pv := range pvs.Items {
		if pv.Name == "imported-"+volume {
			return pv.Spec.ClaimRef.Name
		}
	}
	return ""
}

func (f *fixture) newEvents() []string {
	var events []string
	for {
		select {
		case event := <-f.events.Events:
			events = append(events, event)
		default:
			return events
		}
	}
}

func (f *fixture) position(claim *corev1.PersistentVolumeClaim) string {
	position, counts := f.Room.Ledger.PositionOf(claim.UID)
	if !counts {
		return ""
	}
	return fmt.Sprintf("%s %s seen=%t imported=%t", position.Backend, position.VolumeID, !position.NothingSeen, position.Imported)
}
