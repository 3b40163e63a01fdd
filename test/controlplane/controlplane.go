// Package controlplane runs a real Kubernetes control plane for tests: etcd,
// kube-apiserver with RBAC and service accounts, kube-controller-manager and,
// if wanted, kube-scheduler, all built from their Go modules. There are no
// nodes: objects are stored, admitted, authorized, bound and protected as in
// any cluster, but no container ever runs, unless a test connects the kubelets
// of its own nodes.
//
// Everything listens on loopback, on ports picked at start, and keeps its
// state in one directory. Several control planes may run side by side, also
// in one process.
package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// DefaultControllerManagerQPS is the client rate the controller manager gets
// unless Options say otherwise, in requests per second. At its own default of
// 20 it binds about four claims a second, which would hide the speed of
// whatever a test measures.
const DefaultControllerManagerQPS = 2000

// DefaultControllers returns the controllers that run unless Options say
// otherwise: those that bind, protect and expand claims and volumes, those
// behind namespaces and service accounts, and the one that fills the aggregated
// roles view, edit and admin.
func DefaultControllers() []string {
	return []string{
		controllerVolumeBinder,
		"persistentvolume-protection-controller",
		"persistentvolumeclaim-protection-controller",
		"persistentvolume-expander-controller",
		"namespace-controller",
		controllerServiceAccount,
		"serviceaccount-token-controller",
		controllerRootCAPublisher,
		"clusterrole-aggregation-controller",
	}
}

// The controllers whose work Start waits for.
const (
	controllerVolumeBinder    = "persistentvolume-binder-controller"
	controllerServiceAccount  = "serviceaccount-controller"
	controllerRootCAPublisher = "root-ca-certificate-publisher-controller"
)

// Options configure a control plane. The zero value is useful.
type Options struct {
	// Dir holds etcd's data, credentials, kubeconfigs and one log file per
	// component. It is made if it does not exist and left alone by Stop; a
	// later Start on the same directory finds the same objects and accepts
	// the same service account tokens, though on another port. Empty means a
	// temporary directory, which Stop removes.
	Dir string

	// ControllerManagerQPS is the controller manager's client rate in
	// requests per second; 0 means DefaultControllerManagerQPS. The burst is
	// twice that.
	ControllerManagerQPS int

	// Controllers are the controllers to run, in the form of the controller
	// manager's --controllers flag, by their long names; empty means
	// DefaultControllers.
	Controllers []string

	// Scheduler says whether to run kube-scheduler. Claims of a StorageClass
	// that binds at once need none; WaitForFirstConsumer does.
	Scheduler bool

	// Nodes are the names of nodes whose kubelets connect. Each gets a kubeconfig, at
	// NodeKubeconfigPath, and just the rights of a node: with nodes, the API server also
	// has the node authorizer and the admission plugin NodeRestriction.
	Nodes []string

	// NodeProxy is the UNIX socket of an HTTP proxy through which the API server reaches the
	// kubelets, by the names of their nodes, for the logs of pods and commands in them; empty
	// means that it reaches none.
	NodeProxy string

	// AuditPolicy says which requests the API server writes to AuditPath, as a
	// manifest of kind audit.k8s.io/v1 Policy; empty means none.
	AuditPolicy string

	// Log is told about long steps, one line each; nil means standard error.
	// What the components say goes to their log files.
	Log io.Writer
}

func (o Options) withDefaults() Options {
	if o.ControllerManagerQPS == 0 {
		o.ControllerManagerQPS = DefaultControllerManagerQPS
	}
	if len(o.Controllers) == 0 {
		o.Controllers = DefaultControllers()
	}
	if o.Log == nil {
		o.Log = os.Stderr
	}
	return o
}

// runs reports whether the controller of that name is among those to run, by
// the rules of the --controllers flag.
func (o Options) runs(controller string) bool {
	if slices.Contains(o.Controllers, "-"+controller) {
		return false
	}
	return slices.Contains(o.Controllers, controller) || slices.Contains(o.Controllers, "*")
}

// ControlPlane is a running control plane. Its methods may be called by
// several goroutines at once.
type ControlPlane struct {
	options     Options
	binary      string
	dir         string
	temporary   bool
	dirLock     *fileLock
	credentials *credentials
	client      kubernetes.Interface

	mu         sync.Mutex
	stopped    bool
	etcdPort   int
	serverPort int

	// processes are in the order they were started in; apiServer is one of
	// them, or nil while it is down.
	processes []*process
	apiServer *process
}

// Start starts a control plane and returns once a claim could be bound by it:
// the API server is ready, the default namespace has its service account, and
// the binder has been seen to bind.
//
// ctx bounds the start only; Stop ends what was started. The error of a
// component that does not come up carries the end of that component's log, and
// leaves nothing running.
func Start(ctx context.Context, options Options) (*ControlPlane, error) {
	options = options.withDefaults()
	binary, err := Binary(ctx, options.Log)
	if err != nil {
		return nil, err
	}
	c := &ControlPlane{options: options, binary: binary}
	if err := c.start(ctx); err != nil {
		// The reason for the failed start matters more than one for a failed
		// clean-up, but both are said.
		return nil, errors.Join(fmt.Errorf("start control plane: %w", err), c.discard())
	}
	return c, nil
}

func (c *ControlPlane) start(ctx context.Context) error {
	if err := c.openDir(); err != nil {
		return err
	}
	var err error
	if c.credentials, err = loadCredentials(c.dir, c.options.Nodes); err != nil {
		return err
	}
	if err := c.startEtcd(ctx); err != nil {
		return err
	}
	if err := c.startAPIServer(ctx); err != nil {
		return err
	}
	if c.client, err = kubernetes.NewForConfig(c.RESTConfig()); err != nil {
		return fmt.Errorf("client for the API server: %w", err)
	}
	if err := c.startControllerManager(); err != nil {
		return err
	}
	if c.options.Scheduler {
		if err := c.startScheduler(ctx); err != nil {
			return err
		}
	}
	return c.waitForControllers(ctx)
}

// openDir makes the state directory and takes it for this control plane alone.
func (c *ControlPlane) openDir() error {
	dir := c.options.Dir
	if dir == "" {
		var err error
		if dir, err = os.MkdirTemp("", "controlplane-"); err != nil {
			return fmt.Errorf("state directory: %w", err)
		}
		c.temporary = true
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("state directory %s: %w", c.options.Dir, err)
	}
	c.dir = dir
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	lock, taken, err := tryLock(filepath.Join(dir, "lock"))
	switch {
	case err != nil:
		return fmt.Errorf("state directory: %w", err)
	case !taken:
		return fmt.Errorf("state directory %s is in use by another control plane: stop that one or give another directory", dir)
	}
	c.dirLock = lock
	return nil
}

// Stop ends every component at once, without grace, and removes the state
// directory if it was a temporary one. It returns an error if a component had
// ended by itself before, with the end of that component's log. Further calls
// do nothing.
func (c *ControlPlane) Stop() error {
	c.mu.Lock()
	var crashed []error
	for _, p := range c.processes {
		crashed = append(crashed, p.crashed())
	}
	c.mu.Unlock()
	return errors.Join(append(crashed, c.discard())...)
}

// discard ends and removes everything, without any checks.
func (c *ControlPlane) discard() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return nil
	}
	c.stopped = true
	for _, p := range slices.Backward(c.processes) {
		p.kill()
	}
	c.processes, c.apiServer = nil, nil

	var errs []error
	if c.dirLock != nil {
		errs = append(errs, c.dirLock.unlock())
	}
	if c.temporary && c.dir != "" {
		errs = append(errs, os.RemoveAll(c.dir))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("stop control plane: %w", err)
	}
	return nil
}

// Dir returns the state directory. Each component's log is <component>.log in
// it.
func (c *ControlPlane) Dir() string { return c.dir }

// AuditPath returns the path of the API server's audit events, one JSON object per
// line.
func (c *ControlPlane) AuditPath() string { return filepath.Join(c.dir, "audit.log") }

// KubeconfigPath returns the path of a kubeconfig of an administrator (group
// system:masters).
func (c *ControlPlane) KubeconfigPath() string { return c.kubeconfigPath(userAdmin) }

// NodeKubeconfigPath returns the path of a kubeconfig of a node's kubelet. The options
// must name the node.
func (c *ControlPlane) NodeKubeconfigPath(node string) string {
	return c.kubeconfigPath(nodeUser(node))
}

// RESTConfig returns a client configuration of an administrator, without a
// client-side rate limit or timeout. Each call returns a new one.
func (c *ControlPlane) RESTConfig() *rest.Config {
	return &rest.Config{
		Host:            c.serverURL(),
		BearerToken:     c.credentials.tokens[userAdmin],
		TLSClientConfig: rest.TLSClientConfig{CAData: c.credentials.certificate},
		UserAgent:       "controlplane-test",
		QPS:             -1,
	}
}
