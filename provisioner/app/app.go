package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	eventrecord "k8s.io/client-go/tools/record"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller/metrics"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner"
	"github.com/standalone-cinder/standalone-cinder/provisioner/app/batches"
	"github.com/standalone-cinder/standalone-cinder/provisioner/app/lastgood"
	"github.com/standalone-cinder/standalone-cinder/provisioner/app/leasecheck"
	"github.com/standalone-cinder/standalone-cinder/provisioner/app/library"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/socket"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/attach"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/expand"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/snapshot"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/wiring"
	"github.com/standalone-cinder/standalone-cinder/provisioner/work/events"
	"github.com/standalone-cinder/standalone-cinder/provisioner/work/liveness"
)

// resyncPeriod is how often every object is checked again even if it has not changed.
const resyncPeriod = 15 * time.Minute

// minClients is the smallest number of logged-in clients to keep; a reload may
// add backends.
const minClients = 256

// A follower reads its watches in batches, so its caches may be late by followersPause;
// when it is elected, it reads at once what has arrived. Connections younger than
// followersYoung are read at once.
const (
	followersPause = time.Second
	followersYoung = 10 * time.Second
)

// App is one replica.
type App struct {
	options   Options
	logger    *slog.Logger
	namespace string
	identity  string

	// policy is the policy in force. It is empty until the start has found one.
	policy  atomic.Pointer[policy.Policy]
	mappers *mappers.Registry
	// pool is created once the start knows which credentials are kept.
	pool *backends.Pool
	// lastGood keeps what is in force for replicas that start while a file is bad.
	lastGood lastgood.Store
	// fromKept means that the policy in force was taken from lastGood.
	fromKept atomic.Bool

	client kubernetes.Interface
	// snapshotClient reads and changes the objects of snapshots.
	snapshotClient snapshotclient.Interface
	// metadataClient watches the CRDs of snapshots, and the Secret of lastGood.
	metadataClient metadata.Interface
	// leaseClient has a rate limit of its own, so that a flood of claims cannot
	// delay the renewal of the lease.
	leaseClient kubernetes.Interface
	// leaseWatch is read at once, while a follower's other watches are read in batches.
	leaseWatch  kubernetes.Interface
	dialer      *batches.Dialer
	factory     informers.SharedInformerFactory
	nodes       *nodeCaches
	recorder    *events.Recorder
	broadcaster eventrecord.EventBroadcaster
	cluster     string
	// clusterUID is the UID of namespace kube-system.
	clusterUID string
	// leads holds whether this replica leads; never nil.
	leads atomic.Pointer[leadership]
	// leaseReleased is called when another replica releases the lease; nil unless
	// this replica is a candidate.
	leaseReleased atomic.Pointer[func()]
	retired       retiredBackends

	backendMetrics     *backends.Metrics
	provisionerMetrics *provisioner.Metrics
	expandMetrics      *expand.Metrics
	reloads            *reloadMetrics
	audits             *auditMetrics
	snapshotMetrics    *snapshot.Metrics
	importMetrics      *importMetrics
	attachMetrics      *attach.Metrics
	// libraryMetrics are those of the provisioning library. All terms share them.
	libraryMetrics metrics.Metrics
	status         *status
	monitor        *liveness.Monitor
	// maxByPolicy is a time.Duration; see maxWorkTime.
	maxByPolicy atomic.Int64
	health      *healthz
	listener    net.Listener
	// healthListener is nil unless health has a port of its own.
	healthListener net.Listener
	// csiSocket is nil unless there are sidecars.
	csiSocket *socket.Socket
	// patience is how long a leader waits for its csi-attacher; standsBack lets others take
	// the lease that a leader has given up because of it.
	patience   *patience
	standsBack bool
	// pprofListener is nil unless profiles are served.
	pprofListener net.Listener
}

// New does everything that a wrong configuration can make fail, and contacts no server.
// A bad policy does not make it fail, because Run looks for the last good one.
func New(options Options) (*App, error) {
	if err := options.Validate(); err != nil {
		return nil, err
	}
	library.KeepSchemeStill()
	_, refused := policy.Load(options.PolicyFile, options.Protocols.Describe())
	a, err := assemble(options)
	if err != nil {
		return nil, errors.Join(refused, err)
	}
	if refused != nil {
		a.logger.Error("The policy file is bad; looking for the last good policy", "in", a.lastGood.String(), "error", refused)
		a.status.setRefused(refused)
	}
	return a, nil
}

// assemble makes a replica without a policy.
func assemble(options Options) (*App, error) {
	namespace, err := wiring.OwnNamespace(options.Namespace)
	if err != nil {
		return nil, err
	}
	registryOfProtocols, err := mappers.New(mappers.Options{SecretNamespace: namespace, Protocols: options.Protocols})
	if err != nil {
		return nil, err
	}
	config, err := wiring.KubeConfig(wiring.Kube{Config: options.Config, Kubeconfig: options.Kubeconfig, QPS: options.KubeQPS, Burst: options.KubeBurst})
	if err != nil {
		return nil, err
	}
	leaseWatch, err := kubernetes.NewForConfig(rest.CopyConfig(config))
	if err != nil {
		return nil, fmt.Errorf("kubernetes client: %w", err)
	}
	leaseConfig := rest.CopyConfig(config)
	leaseConfig.QPS, leaseConfig.Burst = 20, 40
	// A renewal that hangs must fail early enough for another try.
	leaseConfig.Timeout = options.RenewDeadline / 2
	leaseClient, err := kubernetes.NewForConfig(leaseConfig)
	if err != nil {
		return nil, fmt.Errorf("kubernetes client: %w", err)
	}

	dialer := newDialer(config)
	var a *App
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &leasecheck.Transport{
			Next:     next,
			MayWrite: func() error { return a.mayWrite() },
			TermCtx:  func() context.Context { return a.leads.Load().ctx },
		}
	})
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("kubernetes client: %w", err)
	}
	snapshotClient, err := snapshotclient.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client for snapshots: %w", err)
	}
	metadataClient, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client for metadata: %w", err)
	}

	registry := options.Metrics
	backendMetrics := backends.NewMetrics(registry)
	a = &App{
		options:            options,
		logger:             options.Logger,
		namespace:          namespace,
		identity:           newIdentity(os.Getenv),
		mappers:            registryOfProtocols,
		client:             client,
		snapshotClient:     snapshotClient,
		metadataClient:     metadataClient,
		leaseClient:        leaseClient,
		leaseWatch:         leaseWatch,
		dialer:             dialer,
		factory:            informers.NewSharedInformerFactoryWithOptions(client, resyncPeriod, informers.WithTransform(objects.NewTrimmer().Trim)),
		backendMetrics:     backendMetrics,
		provisionerMetrics: provisioner.NewMetrics(registry, append(registryOfProtocols.Protocols(), objects.ProtocolCSI)),
		expandMetrics:      expand.NewMetrics(registry),
		reloads:            newReloadMetrics(registry),
		audits:             newAuditMetrics(registry),
		snapshotMetrics:    snapshot.NewMetrics(registry),
		importMetrics:      newImportMetrics(registry),
		attachMetrics:      attach.NewMetrics(registry),
		libraryMetrics:     library.NewMetrics(registry),
		monitor:            liveness.New(),
		patience:           newPatience(options.AttacherTimeout),
	}
	a.leads.Store(&leadership{ctx: context.Background(), fence: notLeading})
	if a.nodes, err = newNodeCaches(client, namespace, options.CSIEndpoint != ""); err != nil {
		return nil, err
	}
	registry.MustRegister(newMissingCollector(a), newTermCollector(a))
	a.lastGood = lastgood.Store{
		Client: client, Namespace: namespace, Name: wiring.LeaseName(options.ProvisionerName) + "-last-good", MaxPolicySize: policy.MaxFileSize,
		// The admission policies in deploy/ let the program change only Secrets with
		// this label.
		Labels: map[string]string{objects.LabelManagedBy: objects.ManagedBy},
	}
	a.policy.Store(&policy.Policy{})
	a.health = &healthz{monitor: a.monitor, logger: a.logger}
	a.status = newStatus(a, registry)
	return a, a.listen()
}

// newDialer makes all further connections of a configuration.
func newDialer(config *rest.Config) *batches.Dialer {
	dial := config.Dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext // client-go's own
	}
	dialer := batches.New(batches.Options{Dial: dial, Pause: followersPause, Young: followersYoung})
	config.Dial = dialer.DialContext
	return dialer
}

// leadership is whether a replica leads, and with which term.
type leadership struct {
	// ctx ends with the current term, or ended with the last one.
	ctx context.Context
	// fence returns an error unless the replica may change something now.
	fence func() error
	// term is nil while the replica does not lead or has not yet counted what
	// exists.
	term *term
	// since is when the term began to serve claims.
	since time.Time
}

// notLeading is the fence of a replica that does not lead.
func notLeading() error { return errors.New("this replica does not lead") }

// term returns the current term; nil while this replica does not lead.
func (a *App) term() *term { return a.leads.Load().term }

// mayWrite keeps a replica that does not lead from changing anything at Cinder
// or in Kubernetes.
func (a *App) mayWrite() error { return a.leads.Load().fence() }

// Address returns where the replica serves health and metrics.
func (a *App) Address() string { return a.listener.Addr().String() }

// Run serves until the context ends, then hands over. It returns when the lease
// is released and nothing is running.
func (a *App) Run(ctx context.Context) error {
	// Events, health and caches must outlive the signal to stop.
	background, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()

	serveErrors := a.serve(background)
	defer a.closeToSidecars()

	a.broadcaster = eventrecord.NewBroadcaster(eventrecord.WithContext(background))
	defer a.broadcaster.Shutdown()
	a.recorder = events.NewRecorder(a.broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "standalone-cinder"}), scheme.Scheme, a.options.Metrics, keepEachMessage)
	a.broadcaster.StartRecordingToSink(a.recorder.Sink(&typedcorev1.EventSinkImpl{Interface: a.client.CoreV1().Events("")}))
	go a.recorder.Run(background)

	reloader, err := a.begin(ctx)
	if err != nil {
		return ignoreStop(ctx, err)
	}
	informers := a.processInformers()
	if err := informers.volumes.AddIndexers(objects.Indexers()); err != nil {
		return err
	}
	if err := informers.claims.AddIndexers(objects.ClaimIndexers()); err != nil {
		return err
	}
	a.factory.Start(background.Done())
	a.nodes.factory.Start(background.Done())
	for _, informer := range informers.all() {
		go a.watchInformer(background, informer)
	}
	for kind, synced := range a.factory.WaitForCacheSync(ctx.Done()) {
		if !synced {
			return ignoreStop(ctx, fmt.Errorf("cannot read %s from the API server", kind))
		}
	}
	a.logger.Info("Ready", "identity", a.identity, "cluster", a.cluster, "policy", a.options.PolicyFile, "revision", a.policy.Load().Revision())
	a.status.setReady()
	a.dialer.StartBatching()
	go reloader.run(background)
	if a.options.LeaderElect {
		go a.watchLease(background)
	}

	led := make(chan error, 1)
	go func() { led <- a.lead(ctx) }()
	select {
	case err := <-led:
		return err
	case err := <-serveErrors:
		return err
	}
}

func ignoreStop(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// tell writes an event about the program itself. It is about the Lease, the one object
// that all replicas share. Only the leader writes it, so that three replicas do not
// report everything three times.
func (a *App) tell(eventType, reason, message string) {
	if a.term() == nil {
		return
	}
	lease := &corev1.ObjectReference{
		APIVersion: "coordination.k8s.io/v1",
		Kind:       "Lease",
		Namespace:  a.namespace,
		Name:       wiring.LeaseName(a.options.ProvisionerName),
	}
	a.recorder.Event(lease, eventType, reason, message)
}

// keepEachMessage reports whether events with this kind and reason must not replace
// each other: those about the Lease, which stands for everything that the program
// reports, and the warnings about connections, because one claim may have several.
func keepEachMessage(kind, reason string) bool {
	return kind == "Lease" || reason == "ConnectionWarning"
}
