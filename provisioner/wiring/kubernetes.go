package wiring

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const podNamespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// OwnNamespace returns the namespace of the Lease and the volumes' Secrets: that of the
// flag, or else the pod's.
func OwnNamespace(flag string) (string, error) {
	if flag != "" {
		return flag, nil
	}
	if namespace := os.Getenv("POD_NAMESPACE"); namespace != "" {
		return namespace, nil
	}
	if content, err := os.ReadFile(podNamespaceFile); err == nil {
		if namespace := strings.TrimSpace(string(content)); namespace != "" {
			return namespace, nil
		}
	}
	return "", errors.New("the namespace for the Lease and the volumes' Secrets is not known; give --namespace or set POD_NAMESPACE")
}

// Kube says how to reach the API server, and how fast to send requests.
type Kube struct {
	// Config replaces Kubeconfig for a caller that already has a connection. Without
	// either, the environment decides.
	Config     *rest.Config
	Kubeconfig string
	QPS        float64
	Burst      int
}

// KubeConfig returns the configuration for connecting to the API server.
func KubeConfig(options Kube) (*rest.Config, error) {
	config := options.Config
	if config == nil {
		var err error
		path := options.Kubeconfig
		path = cmp.Or(path, os.Getenv(clientcmd.RecommendedConfigPathEnvVar))
		if path == "" {
			config, err = rest.InClusterConfig()
		} else {
			config, err = clientcmd.BuildConfigFromFlags("", path)
		}
		if err != nil {
			return nil, fmt.Errorf("no connection to Kubernetes (give --kubeconfig, or run in a pod): %w", err)
		}
	}
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = float32(options.QPS), options.Burst
	config.UserAgent = "standalone-cinder"
	return config, nil
}

// KubeClient returns a client of Kubernetes' own types, which both sides read and write
// in protobuf with less work than in JSON. client-go by itself leaves out events and
// informers made from a REST client. Custom resources have no protobuf.
func KubeClient(config *rest.Config) (*kubernetes.Clientset, error) {
	config = rest.CopyConfig(config)
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("kubernetes client: %w", err)
	}
	return client, nil
}

// KubectlConfig returns the configuration that kubectl would use: that of the given
// file, or else of $KUBECONFIG, of ~/.kube/config, or of the pod, in this order, with what
// the flags override. Commands use it. The daemon reads no file from a home directory.
func KubectlConfig(kubeconfig string, overrides *clientcmd.ConfigOverrides) clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)
}

// ConnectAsKubectl returns the connection configuration of a KubectlConfig.
func ConnectAsKubectl(kubeconfig string, overrides *clientcmd.ConfigOverrides) (*rest.Config, error) {
	config, err := KubectlConfig(kubeconfig, overrides).ClientConfig()
	if kubeconfig == "" && clientcmd.IsEmptyConfig(err) {
		return nil, errors.New("no connection to Kubernetes: neither $KUBECONFIG nor ~/.kube/config has a configuration, and this is not a pod; give --kubeconfig")
	}
	switch {
	case kubeconfig != "" && (clientcmd.IsEmptyConfig(err) || err != nil && isManifest(kubeconfig)):
		// The client's own words are about its code, or advise a variable that only it reads.
		return nil, fmt.Errorf("kubeconfig %s: it is another file than a kubeconfig, which has kind: Config and a cluster; give --kubeconfig", kubeconfig)
	case err != nil && kubeconfig != "":
		return nil, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	case err != nil:
		return nil, fmt.Errorf("no connection to Kubernetes (give --kubeconfig): %w", err)
	}
	return config, nil
}

// isManifest reports whether a file has an object that no kubeconfig is.
func isManifest(path string) bool {
	_, err := clientcmd.LoadFromFile(path)
	return runtime.IsNotRegisteredError(err)
}

// DefaultProvisionerName is the name of the historic program, so that an upgrade needs
// no new StorageClasses.
const DefaultProvisionerName = "openstack.org/standalone-cinder"

// EventSource is the component of the program's events.
const EventSource = "standalone-cinder"
