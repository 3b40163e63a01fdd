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
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/app/batches"
	"github.com/standalone-cinder/standalone-cinder/provisioner/app/lastgood"
	"github.com/standalone-cinder/standalone-cinder/provisioner/app/leasecheck"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/socket"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/wiring"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/events"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/liveness"
)

// replica is what the parts of a replica share.
type replica struct {
	options   Options
	logger    *slog.Logger
	namespace string
	identity  string

	// policy is the policy in force. It is empty until the start has found one.
	policy  atomic.Pointer[policy.Policy]
	mappers *mappers.Registry
	// pool is created once the first policy is known.
	pool           *backends.Pool
	backendMetrics *backends.Metrics
	// lastGood keeps the policy in force for replicas that start while the file is bad.
	lastGood lastgood.Store
	// fromKept means that the policy in force was taken from lastGood.
	fromKept atomic.Bool
	reloads  *reloadMetrics
	retired  retiredBackends

	client kubernetes.Interface
	// snapshotClient reads and changes the objects of snapshots.
	snapshotClient snapshotclient.Interface
	// metadataClient watches the CRDs of snapshots, and the Secret of lastGood.
	metadataClient metadata.Interface
	dialer         *batches.Dialer
	factory        informers.SharedInformerFactory
	nodes          *nodeCaches
	recorder       *events.Recorder
	cluster        string
	// clusterUID is the UID of namespace kube-system.
	clusterUID string
	// csiSocket is nil unless there are sidecars.
	csiSocket *socket.Socket
	// leads holds whether this replica leads; never nil.
	leads  atomic.Pointer[leadership]
	status *status

	monitor *liveness.Monitor
	// maxByPolicy is a time.Duration; see maxWorkTime.
	maxByPolicy atomic.Int64
}

// newReplica makes the clients and caches of a replica without a policy.
func newReplica(options Options, config *rest.Config, namespace string) (*replica, error) {
	protocols, err := mappers.New(mappers.Options{SecretNamespace: namespace, Protocols: options.Protocols})
	if err != nil {
		return nil, err
	}
	r := &replica{
		options:        options,
		logger:         options.Logger,
		namespace:      namespace,
		identity:       newIdentity(os.Getenv),
		mappers:        protocols,
		backendMetrics: backends.NewMetrics(options.Metrics),
		reloads:        newReloadMetrics(options.Metrics),
		status:         newStatus(options.Build, options.Metrics),
		monitor:        liveness.New(),
	}
	r.policy.Store(&policy.Policy{})
	r.leads.Store(&leadership{ctx: context.Background(), fence: notLeading})
	r.dialer = newDialer(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &leasecheck.Transport{Next: next, MayWrite: r.mayWrite, TermCtx: func() context.Context { return r.leads.Load().ctx }}
	})
	if r.client, err = wiring.KubeClient(config); err != nil {
		return nil, err
	}
	if r.snapshotClient, err = snapshotclient.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("client for snapshots: %w", err)
	}
	if r.metadataClient, err = metadata.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("client for metadata: %w", err)
	}
	r.factory = informers.NewSharedInformerFactoryWithOptions(r.client, resyncPeriod, informers.WithTransform(objects.NewTrimmer().Trim))
	if r.nodes, err = newNodeCaches(r.client, namespace, options.CSIEndpoint != ""); err != nil {
		return nil, err
	}
	r.lastGood = lastgood.Store{
		Client: r.client, Namespace: namespace, Name: wiring.LeaseName(options.ProvisionerName) + "-last-good", MaxPolicySize: policy.MaxEncodedSize,
		// The admission policies in deploy/ let the program change only Secrets with
		// this label.
		Labels: map[string]string{objects.LabelManagedBy: objects.ManagedBy},
	}
	options.Metrics.MustRegister(newMissingCollector(r), newTermCollector(r))
	return r, nil
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
func (r *replica) term() *term { return r.leads.Load().term }

// mayWrite keeps a replica that does not lead from changing anything at Cinder
// or in Kubernetes.
func (r *replica) mayWrite() error { return r.leads.Load().fence() }

// tell writes an event about the program itself. It is about the Lease, the one object
// that all replicas share. Only the leader writes it, so that three replicas do not
// report everything three times.
func (r *replica) tell(eventType, reason, message string) {
	if r.term() == nil {
		return
	}
	lease := &corev1.ObjectReference{
		APIVersion: "coordination.k8s.io/v1",
		Kind:       "Lease",
		Namespace:  r.namespace,
		Name:       wiring.LeaseName(r.options.ProvisionerName),
	}
	r.recorder.Event(lease, eventType, reason, message)
}

// keepEachMessage reports whether events with this kind and reason must not replace
// each other: those about the Lease, which stands for everything that the program
// reports, and the warnings about connections, because one claim may have several.
func keepEachMessage(kind, reason string) bool {
	return kind == "Lease" || reason == "ConnectionWarning"
}
