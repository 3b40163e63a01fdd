package app

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner"
)

// termBackends gives the lifecycles of one term, made when they are first
// asked for and brought up to date when the policy is.
type termBackends struct {
	policy  func() *policy.Policy
	retired *retiredBackends
	cluster string
	pool    *backends.Pool
	metrics *backends.Metrics
	fence   func() error
	hold    context.Context
	logger  *slog.Logger
	nodes   *nodePools
	// answers is told when a backend answers again, moved when its name leads
	// to another endpoint.
	answers func(name string)
	moved   func(name string)

	mu         sync.Mutex
	lifecycles map[string]*termBackend
}

// termBackend is a lifecycle with the policy that configured it last.
type termBackend struct {
	*backends.Lifecycle
	source *policy.Policy
}

var _ provisioner.Backends = (*termBackends)(nil)

func (t *termBackends) Volumes(name string) (provisioner.Volumes, error) {
	lifecycle, moved, err := t.configured(name)
	if err != nil {
		return nil, err
	}
	if moved {
		t.tellMoved(name)
	}
	return lifecycle, nil
}

func (t *termBackends) tellMoved(name string) {
	t.logger.Warn("The backend's configuration or credentials lead elsewhere now; volumes made before are looked for there", "backend", name)
	t.moved(name)
}

// configured returns a backend's lifecycle as the policy in force wants it. The
// policy is read under the lock: of two callers the later must not put an older
// configuration back.
func (t *termBackends) configured(name string) (lifecycle *backends.Lifecycle, moved bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	source, backend, err := t.find(name)
	if err != nil {
		return nil, false, err
	}
	present, ok := t.lifecycles[name]
	if ok && present.source == source {
		return present.Lifecycle, false, nil
	}
	config := backendConfig(source, backend, t.cluster)
	if !ok {
		present = &termBackend{Lifecycle: t.newLifecycle(config)}
		t.lifecycles[name] = present
	}
	present.source = source
	return present.Lifecycle, ok && present.Configure(config), nil
}

func (t *termBackends) newLifecycle(config backends.Config) *backends.Lifecycle {
	return backends.NewLifecycle(backends.LifecycleOptions{
		Config:  config,
		Pool:    t.pool,
		Cluster: t.cluster,
		Fence:   t.fence,
		Hold:    t.hold,
		Logger:  t.logger,
		Metrics: t.metrics,
		HealthChanged: func(err error) {
			if err == nil {
				t.answers(config.Name)
			}
		},
		Moved: func() { t.tellMoved(config.Name) },
	})
}

func (t *termBackends) Connector(name string) (backends.Connector, error) {
	source, backend, err := t.find(name)
	if err != nil {
		return backends.Connector{}, err
	}
	connector := backendConfig(source, backend, t.cluster).Connector
	if selected := backend.Connector.NodeLabels; len(selected) > 0 && len(connector.WWPNs) == 0 {
		if connector.WWPNs, err = t.nodes.wwpns(t.hold, selected); err != nil {
			return connector, fmt.Errorf("backend %s: %w", name, err)
		}
	}
	return connector, nil
}

func (t *termBackends) NodeLabels(name string) map[string]string {
	_, backend, err := t.find(name)
	if err != nil {
		return nil
	}
	return backend.Connector.NodeLabels
}

func (t *termBackends) Mappings(name string) map[string]mappers.Mapping {
	_, backend, err := t.find(name)
	if err != nil {
		return nil
	}
	return mappingsOf(backend)
}

func (t *termBackends) Names() []string {
	var names []string
	for _, backend := range t.policy().Backends {
		names = append(names, backend.Name)
	}
	return append(names, t.retired.names()...)
}

// update gives every lifecycle of the term its new configuration.
func (t *termBackends) update() {
	for name := range t.present() {
		// One whose backend is gone from the policy keeps what it had.
		_, _ = t.Volumes(name)
	}
}

// tryAgain asks those of the backends at once that did not answer.
func (t *termBackends) tryAgain(names []string) {
	present := t.present()
	for _, name := range names {
		if lifecycle, ok := present[name]; ok {
			lifecycle.ProbeNow()
		}
	}
}

// present is every lifecycle of the term, by its backend's name.
func (t *termBackends) present() map[string]*backends.Lifecycle {
	t.mu.Lock()
	defer t.mu.Unlock()
	present := make(map[string]*backends.Lifecycle, len(t.lifecycles))
	for name, b := range t.lifecycles {
		present[name] = b.Lifecycle
	}
	return present
}

// find returns a backend and the policy that says so: the one in force, or the
// one that had the backend last.
func (t *termBackends) find(name string) (*policy.Policy, *policy.Backend, error) {
	source := t.policy()
	if backend, ok := source.Backend(name); ok {
		return source, backend, nil
	}
	if retired, ok := t.retired.get(name); ok {
		return retired.of, retired.backend, nil
	}
	return nil, nil, fmt.Errorf("backend %q is not in the policy; add it back, at least with suspended: true, so that its volumes can be deleted", name)
}

// backendConfigs is every backend that may be asked, those that a reload took
// out of the policy included.
func (a *App) backendConfigs() []backends.Config {
	inForce := a.policy.Load()
	var configs []backends.Config
	for i := range inForce.Backends {
		configs = append(configs, backendConfig(inForce, &inForce.Backends[i], a.cluster))
	}
	for _, name := range a.retired.names() {
		if retired, ok := a.retired.get(name); ok {
			configs = append(configs, backendConfig(retired.of, retired.backend, a.cluster))
		}
	}
	return configs
}

// mappingsOf translates what a backend's connections become.
func mappingsOf(backend *policy.Backend) map[string]mappers.Mapping {
	mappings := make(map[string]mappers.Mapping, len(backend.Mapping))
	for protocol, from := range backend.Mapping {
		to := mappers.Mapping{
			As:                         mappers.Form(from.As),
			Driver:                     from.Driver,
			VolumeHandle:               from.VolumeHandle,
			FSType:                     from.FSType,
			ReadOnly:                   from.ReadOnly,
			Discard:                    from.Discard,
			Attributes:                 from.Attributes,
			Options:                    from.Options,
			NodeStageSecretRef:         secretReference(from.NodeStageSecretRef),
			NodePublishSecretRef:       secretReference(from.NodePublishSecretRef),
			NodeExpandSecretRef:        secretReference(from.NodeExpandSecretRef),
			ControllerPublishSecretRef: secretReference(from.ControllerPublishSecretRef),
			ControllerExpandSecretRef:  secretReference(from.ControllerExpandSecretRef),
			SecretRef:                  secretReference(from.SecretRef),
			ClusterID:                  from.ClusterID,
			ImageFeatures:              from.ImageFeatures,
			Interface:                  from.Interface,
			WWID:                       from.WWID,
		}
		if secret := from.Secret; secret != nil {
			to.Secret = &mappers.SecretTemplate{Type: secret.Type, Data: secret.Data, References: secret.References}
		}
		mappings[protocol] = to
	}
	return mappings
}

func secretReference(from *policy.SecretReference) *corev1.SecretReference {
	if from == nil {
		return nil
	}
	return &corev1.SecretReference{Name: from.Name, Namespace: from.Namespace}
}

// backendConfig translates a backend from the policy's terms. The packages
// policy and backends do not know each other.
func backendConfig(p *policy.Policy, from *policy.Backend, cluster string) backends.Config {
	config := backends.Config{
		Name: from.Name,
		Auth: backends.Auth{
			Cloud:       from.Auth.Cloud,
			Environment: from.Auth.Environment,
		},
		Region:    from.Region,
		Interface: string(from.Interface),
		Workflow:  backends.Workflow(from.Workflow),
		Connector: backends.Connector{
			Host:      from.Connector.Host,
			IP:        from.Connector.IP,
			Initiator: from.Connector.Initiator,
			WWPNs:     from.Connector.WWPNs,
			NQN:       from.Connector.NQN,
			Multipath: from.Connector.Multipath,
		},
		Limits: backends.Limits{
			Concurrency:       int(from.Limits.Concurrency),
			RequestsPerSecond: from.Limits.RequestsPerSecond,
		},
		Timeouts: backends.Timeouts{
			Create:  from.Timeouts.Create,
			Delete:  from.Timeouts.Delete,
			Request: from.Timeouts.Request,
		},
	}
	if file := from.Auth.CloudConfig; file != "" {
		config.Auth.CloudConfig = p.ResolveFile(file)
	}
	if noauth := from.Auth.NoAuth; noauth != nil {
		config.Auth.Noauth = &backends.Noauth{Endpoint: noauth.Endpoint, User: noauth.User, Project: noauth.Project}
	}
	if config.Connector.Initiator == "" {
		config.Connector.Initiator = defaultInitiator(cluster)
	}
	return config
}

// notInInitiator is what an iSCSI name must not contain (RFC 3722 as applied
// by RFC 7143, section 4.2.7).
var notInInitiator = regexp.MustCompile(`[^a-z0-9.:-]+`)

// defaultInitiator derives an initiator name from the cluster's id: every node
// of the cluster shares it, no other cluster on the same array does.
func defaultInitiator(cluster string) string {
	const longest = 223 - len("iqn.2018-01.io.k8s.standalone-cinder:")
	suffix := strings.Trim(notInInitiator.ReplaceAllString(strings.ToLower(cluster), "-"), "-")
	if len(suffix) > longest {
		suffix = suffix[:longest]
	}
	return "iqn.2018-01.io.k8s.standalone-cinder:" + suffix
}
