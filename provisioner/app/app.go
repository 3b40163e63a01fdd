package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	eventrecord "k8s.io/client-go/tools/record"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/auth"
	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner"
	"github.com/standalone-cinder/standalone-cinder/provisioner/events"
	"github.com/standalone-cinder/standalone-cinder/provisioner/record"
	"github.com/standalone-cinder/standalone-cinder/provisioner/wiring"
)

// resyncPeriod is how often every object is checked again without a reason.
const resyncPeriod = 15 * time.Minute

// fewClients is the smallest number of logged-in clients to keep; a reload may
// add backends.
const fewClients = 256

// App is one replica.
type App struct {
	options   Options
	logger    *slog.Logger
	namespace string
	identity  string

	policy  atomic.Pointer[policy.Policy]
	mappers *mappers.Registry
	pool    *backends.Pool

	client kubernetes.Interface
	// leaseClient has a rate limit of its own, so that a flood of claims cannot
	// delay the renewal of the lease.
	leaseClient kubernetes.Interface
	factory     informers.SharedInformerFactory
	nodes       *nodeCaches
	recorder    *events.Recorder
	broadcaster eventrecord.EventBroadcaster
	cluster     string
	// clusterUID is the UID of namespace kube-system.
	clusterUID string
	// leads reports whether this replica leads; never nil.
	leads atomic.Pointer[leadership]
	// leaseReleased is called when another replica releases the lease; nil unless
	// this replica is a candidate.
	leaseReleased atomic.Pointer[func()]
	retired       retiredBackends

	backendMetrics     *backends.Metrics
	provisionerMetrics *provisioner.Metrics
	reloads            *reloadMetrics
	audits             *auditMetrics
	status             *status
	listener           net.Listener
}

// New does everything that can fail on a wrong configuration, and nothing that
// contacts a server.
func New(options Options) (*App, error) {
	if err := options.Validate(); err != nil {
		return nil, err
	}
	keepSchemeStill()
	loaded, err := policy.Load(options.PolicyFile, options.Protocols.Describe())
	if err != nil {
		return nil, err
	}
	for _, warning := range loaded.Warnings {
		options.Logger.Warn("Policy: " + warning.Error())
	}
	if err := checkCloudsFile(options.CloudsFile, loaded, options.Logger); err != nil {
		return nil, err
	}
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
	leaseConfig := rest.CopyConfig(config)
	leaseConfig.QPS, leaseConfig.Burst = 20, 40
	// A renewal that hangs must fail early enough for another try.
	leaseConfig.Timeout = options.RenewDeadline / 2
	leaseClient, err := kubernetes.NewForConfig(leaseConfig)
	if err != nil {
		return nil, fmt.Errorf("kubernetes client: %w", err)
	}

	var a *App
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &fencedTransport{
			next:     next,
			mayWrite: func() error { return a.mayWrite() },
			termCtx:  func() context.Context { return a.leads.Load().ctx },
		}
	})
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("kubernetes client: %w", err)
	}

	registry := options.Metrics
	backendMetrics := backends.NewMetrics(registry)
	a = &App{
		options:            options,
		logger:             options.Logger,
		namespace:          namespace,
		identity:           newIdentity(),
		mappers:            registryOfProtocols,
		client:             client,
		leaseClient:        leaseClient,
		factory:            informers.NewSharedInformerFactoryWithOptions(client, resyncPeriod, informers.WithTransform(record.NewTrimmer().Trim)),
		backendMetrics:     backendMetrics,
		provisionerMetrics: provisioner.NewMetrics(registry, registryOfProtocols.Protocols()),
		reloads:            newReloadMetrics(registry),
		audits:             newAuditMetrics(registry),
	}
	a.leads.Store(&leadership{ctx: context.Background(), fence: mayNot})
	if a.nodes, err = newNodeCaches(client); err != nil {
		return nil, err
	}
	registry.MustRegister(newMissingCollector(a))
	a.pool = backends.NewPool(backends.PoolOptions{
		Warn:     func(backend, message string) { a.logger.Warn(message, "backend", backend) },
		Size:     max(fewClients, len(loaded.Backends)),
		Sources:  auth.Sources{CloudsFile: options.CloudsFile, BaseDir: filepath.Dir(options.PolicyFile)},
		Metrics:  backendMetrics,
		MayWrite: a.mayWrite,
	})
	a.policy.Store(loaded)
	a.status = newStatus(a, registry)
	a.listener, err = net.Listen("tcp", options.Listen)
	if err != nil {
		return nil, fmt.Errorf("--listen %s: %w", options.Listen, err)
	}
	return a, nil
}

// checkCloudsFile makes sure that the file of --clouds-file can be read if the
// policy needs it. Later, credentials that were read before stay in use; there are
// none yet.
func checkCloudsFile(path string, p *policy.Policy, logger *slog.Logger) error {
	if path == "" {
		return nil
	}
	_, err := os.ReadFile(path)
	if err == nil {
		return nil
	}
	var pathError *fs.PathError
	if errors.As(err, &pathError) {
		err = pathError.Err
	}
	var needing []string
	for i, backend := range p.Backends {
		if backend.Auth.Cloud != "" {
			needing = append(needing, fmt.Sprintf("%s (%s:%d)", backend.Name, p.Source, p.Line(fmt.Sprintf("backends[%d].auth.cloud", i))))
		}
	}
	if len(needing) == 0 {
		logger.Warn("--clouds-file cannot be read; the policy does not need it", "file", path, "error", err)
		return nil
	}
	return fmt.Errorf("--clouds-file %s cannot be read: %w; these backends log in with its entries: %s; nothing is in force, because no credentials were read before: mount the file, or correct the flag", path, err, strings.Join(needing, ", "))
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
}

// mayNot is the fence of a replica that does not lead.
func mayNot() error { return errors.New("this replica does not lead") }

// term returns the current term, nil while this replica does not lead.
func (a *App) term() *term { return a.leads.Load().term }

// mayWrite keeps a replica that does not lead from changing anything at Cinder
// or in Kubernetes.
func (a *App) mayWrite() error { return a.leads.Load().fence() }

// Address is where the replica serves health and metrics.
func (a *App) Address() string { return a.listener.Addr().String() }

// Run serves until the context ends, then hands over. It returns when the lease
// is released and nothing is running.
func (a *App) Run(ctx context.Context) error {
	// Events, health and caches must outlive the signal to stop.
	background, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()

	a.logger.Info("Serving health and metrics", "address", a.Address())
	serveErrors := a.status.serve(background, a.listener)

	a.broadcaster = eventrecord.NewBroadcaster(eventrecord.WithContext(background))
	defer a.broadcaster.Shutdown()
	a.recorder = events.NewRecorder(a.broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "standalone-cinder"}), scheme.Scheme, a.options.Metrics, haveManyMatters)
	a.broadcaster.StartRecordingToSink(a.recorder.Sink(&typedcorev1.EventSinkImpl{Interface: a.client.CoreV1().Events("")}))
	go a.recorder.Run(background)

	if err := a.findCluster(ctx); err != nil {
		return ignoreStop(ctx, err)
	}
	a.factory.Core().V1().PersistentVolumeClaims().Informer()
	if err := a.factory.Core().V1().PersistentVolumes().Informer().AddIndexers(record.Indexers()); err != nil {
		return err
	}
	a.factory.Core().V1().Namespaces().Informer()
	a.factory.Storage().V1().StorageClasses().Informer()
	a.factory.Start(background.Done())
	a.nodes.factory.Start(background.Done())
	for kind, synced := range a.factory.WaitForCacheSync(ctx.Done()) {
		if !synced && ctx.Err() == nil {
			return fmt.Errorf("cannot read %s from the API server", kind)
		}
	}
	a.logger.Info("Ready", "identity", a.identity, "cluster", a.cluster, "policy", a.options.PolicyFile, "revision", a.policy.Load().Revision())
	a.status.setReady()
	go newReloader(a).run(background)
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

// findCluster determines the IDs that are stamped on volumes. If the API server
// is not up yet, as after a restart of the whole cluster, it waits.
func (a *App) findCluster(ctx context.Context) error {
	backoff := wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Jitter: 0.1, Steps: 20, Cap: 15 * time.Second}
	for {
		uid, err := record.ClusterUID(ctx, a.client)
		if err == nil {
			a.clusterUID, a.cluster = uid, cmp.Or(a.policy.Load().ClusterID, uid)
			return nil
		}
		a.logger.Warn("The cluster's ID is not known yet; trying again", "error", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(backoff.Step()):
		}
	}
}
