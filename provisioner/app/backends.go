package app

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"sync"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner"
)

// termBackends gives the lifecycles of one term, made when they are first
// asked for.
type termBackends struct {
	policy  func() *policy.Policy
	cluster string
	pool    *backends.Pool
	metrics *backends.Metrics
	fence   func() error
	hold    context.Context
	logger  *slog.Logger

	mu         sync.Mutex
	lifecycles map[string]*backends.Lifecycle
}

var _ provisioner.Backends = (*termBackends)(nil)

func (t *termBackends) Volumes(name string) (provisioner.Volumes, error) {
	config, err := t.config(name)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	lifecycle, ok := t.lifecycles[name]
	if !ok {
		lifecycle = backends.NewLifecycle(backends.LifecycleOptions{
			Config:  config,
			Pool:    t.pool,
			Cluster: t.cluster,
			Fence:   t.fence,
			Hold:    t.hold,
			Logger:  t.logger,
			Metrics: t.metrics,
		})
		t.lifecycles[name] = lifecycle
	}
	return lifecycle, nil
}

func (t *termBackends) Connector(name string) (backends.Connector, error) {
	config, err := t.config(name)
	return config.Connector, err
}

func (t *termBackends) Names() []string {
	var names []string
	for _, backend := range t.policy().Backends {
		names = append(names, backend.Name)
	}
	return names
}

func (t *termBackends) config(name string) (backends.Config, error) {
	backend, ok := t.policy().Backend(name)
	if !ok {
		return backends.Config{}, fmt.Errorf("backend %q is not in the policy; add it back, at least with suspended: true, so that its volumes can be deleted", name)
	}
	return backendConfig(t.policy(), backend, t.cluster), nil
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
