// Package commands contains the commands, other than run, that read or change a cluster
// and map connections. They run beside the leader with the rights of an operator, use the
// features and the proofs, and know neither the hub nor a term. main calls them.
package commands

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/auth"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/policy"
	policycli "github.com/standalone-cinder/standalone-cinder/policy/cli"
	"github.com/standalone-cinder/standalone-cinder/policy/document"
	"github.com/standalone-cinder/standalone-cinder/policy/review"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/wiring"
)

// A command that reads a cluster once is a guest there: it sends requests slowly, and
// does not wait forever for a server that does not answer.
const (
	readingQPS     = 20
	readingBurst   = 40
	readingTimeout = 30 * time.Second
)

// Places returns where the backends of a policy lead, as far as that is known without a
// request. It reads only files that the policy or the caller names, because a
// clouds.yaml or an environment that happens to be here may differ from the running
// program's.
func Places(p *policy.Policy, cloudsFile string) map[string]review.Place {
	places := map[string]review.Place{}
	sources := auth.Sources{CloudsFile: cloudsFile}
	for i := range p.Backends {
		backend := &p.Backends[i]
		if backend.Auth.Environment || backend.Auth.Cloud != "" && cloudsFile == "" {
			continue
		}
		if at := backends.Expect(sources, wiring.BackendConfig(p, backend, "")); at != (cinder.Place{}) {
			places[backend.Name] = review.Place(at)
		}
	}
	return places
}

// CheckCredentials reads the credentials of every backend whose files are known,
// without a request. It ignores the environment, because the running program has
// another one.
func CheckCredentials(p *policy.Policy, cloudsFile string) []policycli.Finding {
	var findings []policycli.Finding
	sources := auth.Sources{CloudsFile: cloudsFile}
	for i := range p.Backends {
		backend := &p.Backends[i]
		if backend.Auth.Environment || backend.Auth.NoAuth != nil {
			continue
		}
		path, config := fmt.Sprintf("backends[%d].auth.cloudConfig", i), wiring.BackendConfig(p, backend, "")
		if backend.Auth.Cloud != "" {
			path = fmt.Sprintf("backends[%d].auth.cloud", i)
		}
		for _, unknown := range sources.UnknownKeys(config.Auth) {
			meant, near := document.Suggest(unknown.Key, unknown.Known)
			if unknown.Key == "region" {
				meant, near = "region_name", true
			}
			if near {
				findings = append(findings, policycli.Finding{Path: path, Warning: true, Message: fmt.Sprintf(
					"%s: the key %q is not used; did you mean %q?", unknown.At, unknown.Key, meant)})
			}
		}
		found, err := sources.Resolve(config.Auth)
		if err != nil {
			message := fmt.Sprintf("backend %s cannot log in with these credentials: %s", backend.Name, err)
			var unknown *auth.UnknownAuthKeyError
			if errors.As(err, &unknown) {
				if meant, near := document.Suggest(unknown.Key, unknown.Known); near {
					message += fmt.Sprintf("; did you mean %q?", meant)
				}
			}
			findings = append(findings, policycli.Finding{Path: path, Message: message})
		}
		for _, warning := range found.Warnings {
			findings = append(findings, policycli.Finding{Path: path, Warning: true, Message: warning})
		}
	}
	return findings
}

// ReadExisting reads the claims and PersistentVolumes of a provisioner from the cluster
// of a kubeconfig file. It only lists, and contacts no cluster but that of the file,
// whatever the environment says.
func ReadExisting(ctx context.Context, kubeconfig, provisionerName string) (review.Existing, error) {
	client, err := readingClient(kubeconfig)
	if err != nil {
		return review.Existing{}, err
	}
	return objects.ReadExisting(ctx, client, provisionerName)
}

// ReadCSI reads whether the cluster of a kubeconfig file is set up for mode csi.
func ReadCSI(ctx context.Context, kubeconfig string) (*review.CSI, error) {
	client, err := readingClient(kubeconfig)
	if err != nil {
		return nil, err
	}
	return objects.ReadCSI(ctx, client)
}

// readingConfig returns the connection configuration of a command that reads whole
// clusters.
func readingConfig(kubeconfig string) (*rest.Config, error) {
	config, err := wiring.ConnectAsKubectl(kubeconfig, &clientcmd.ConfigOverrides{})
	if err != nil {
		return nil, err
	}
	if config, err = wiring.KubeConfig(wiring.Kube{Config: config, QPS: readingQPS, Burst: readingBurst}); err != nil {
		return nil, err
	}
	config.Timeout = readingTimeout
	return config, nil
}

// readingClient returns a client for the cluster of a kubeconfig file.
func readingClient(kubeconfig string) (kubernetes.Interface, error) {
	if kubeconfig == "" {
		return nil, errors.New("no kubeconfig file is given")
	}
	config, err := readingConfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	client, err := wiring.KubeClient(config)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	return client, nil
}
