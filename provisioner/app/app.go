package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	eventrecord "k8s.io/client-go/tools/record"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/app/library"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/wiring"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/events"
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
	*replica
	// reloader is what puts policies into force, elector what leads, server what
	// answers.
	reloader *reloader
	elector  *elector
	server   *server

	broadcaster eventrecord.EventBroadcaster
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
		a.status.setRefused("", refused)
	}
	return a, nil
}

// assemble makes a replica without a policy.
func assemble(options Options) (*App, error) {
	namespace, err := wiring.OwnNamespace(options.Namespace)
	if err != nil {
		return nil, err
	}
	config, err := wiring.KubeConfig(wiring.Kube{Config: options.Config, Kubeconfig: options.Kubeconfig, QPS: options.KubeQPS, Burst: options.KubeBurst})
	if err != nil {
		return nil, err
	}
	if options.Network != nil {
		config.Dial = options.Network.DialContext
	}
	// The elector's connections are those of the configuration before newReplica changes it.
	leases := rest.CopyConfig(config)
	of, err := newReplica(options, config, namespace)
	if err != nil {
		return nil, err
	}
	a := &App{replica: of, reloader: newReloader(of)}
	if a.elector, err = newElector(of, leases); err != nil {
		return nil, err
	}
	a.server, err = newServer(of)
	return a, err
}

// Address returns where the replica serves health and metrics.
func (a *App) Address() string { return a.server.listener.Addr().String() }

// Run serves until the context ends, then hands over. It returns when the lease
// is released and nothing is running.
func (a *App) Run(ctx context.Context) error {
	// Events, health and caches must outlive the signal to stop.
	background, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()

	serveErrors := a.server.serve(background)
	defer a.server.closeToSidecars()

	a.broadcaster = eventrecord.NewBroadcaster(eventrecord.WithContext(background))
	defer a.broadcaster.Shutdown()
	a.recorder = events.NewRecorder(a.broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: wiring.EventSource}), scheme.Scheme, a.options.Metrics, keepEachMessage)
	a.broadcaster.StartRecordingToSink(a.recorder.Sink(&typedcorev1.EventSinkImpl{Interface: a.client.CoreV1().Events("")}))
	go a.recorder.Run(background)

	if err := a.reloader.begin(ctx); err != nil {
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
	go a.reloader.run(background)
	if a.options.LeaderElect {
		go a.elector.watchLease(background)
	}

	led := make(chan error, 1)
	go func() { led <- a.elector.lead(ctx) }()
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
