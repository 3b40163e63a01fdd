// Package wiring translates between packages that do not know each other, and finds the
// cluster for the daemon and the commands.
package wiring

import (
	"regexp"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/auth"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder/turns"
	"github.com/standalone-cinder/standalone-cinder/policy"
)

// BackendConfig translates a backend from the policy. The packages policy and
// backends do not know each other.
func BackendConfig(p *policy.Policy, from *policy.Backend, cluster string) backends.Config {
	config := backends.Config{
		Name: from.Name,
		Auth: auth.Config{
			Source:    auth.Source{Cloud: from.Auth.Cloud, Environment: from.Auth.Environment},
			Region:    from.Region,
			Interface: string(from.Interface),
			Endpoint:  from.Endpoint,
		},
		Workflow: cinder.Workflow(from.Workflow),
		Connector: cinder.Connector{
			Host:      from.Connector.Host,
			IP:        from.Connector.IP,
			Initiator: from.Connector.Initiator,
			WWPNs:     from.Connector.WWPNs,
			NQN:       from.Connector.NQN,
			Multipath: from.Connector.Multipath,
		},
		Limits: turns.Limits{
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
		config.Auth.Source.CloudConfig = p.ResolveFile(file)
	}
	if noauth := from.Auth.NoAuth; noauth != nil {
		config.Auth.Source.Noauth = &auth.Noauth{Endpoint: noauth.Endpoint, User: noauth.User, Project: noauth.Project}
	}
	if config.Connector.Initiator == "" {
		config.Connector.Initiator = defaultInitiator(cluster)
	}
	return config
}

// notInInitiator is what an iSCSI name must not contain (RFC 3722 as applied by
// RFC 7143, section 4.2.7).
var notInInitiator = regexp.MustCompile(`[^a-z0-9.:-]+`)

// defaultInitiator derives an initiator name from the cluster's ID: every node
// of the cluster shares it, and no other cluster on the same array does.
func defaultInitiator(cluster string) string {
	const longest = 223 - len("iqn.2018-01.io.k8s.standalone-cinder:")
	suffix := strings.Trim(notInInitiator.ReplaceAllString(strings.ToLower(cluster), "-"), "-")
	if len(suffix) > longest {
		suffix = suffix[:longest]
	}
	return "iqn.2018-01.io.k8s.standalone-cinder:" + suffix
}
