// Package wiring translates between packages that do not know each other, and
// finds the cluster, for the daemon and the commands alike.
package wiring

import (
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/auth"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/policy"
)

// MappingsOf translates the mappings of a backend.
func MappingsOf(backend *policy.Backend) map[string]mappers.Mapping {
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

// BackendConfig translates a backend from the policy. The packages policy and
// backends do not know each other.
func BackendConfig(p *policy.Policy, from *policy.Backend, cluster string) backends.Config {
	config := backends.Config{
		Name: from.Name,
		Auth: auth.Source{
			Cloud:       from.Auth.Cloud,
			Environment: from.Auth.Environment,
		},
		Region:    from.Region,
		Interface: string(from.Interface),
		Workflow:  cinder.Workflow(from.Workflow),
		Connector: cinder.Connector{
			Host:      from.Connector.Host,
			IP:        from.Connector.IP,
			Initiator: from.Connector.Initiator,
			WWPNs:     from.Connector.WWPNs,
			NQN:       from.Connector.NQN,
			Multipath: from.Connector.Multipath,
		},
		Limits: cinder.Limits{
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
		config.Auth.Noauth = &auth.Noauth{Endpoint: noauth.Endpoint, User: noauth.User, Project: noauth.Project}
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
