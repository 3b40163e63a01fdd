package controlplane

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/client-go/kubernetes"
)

// serviceAccountIssuer is the issuer and the audience of service account
// tokens, as most clusters call it.
const serviceAccountIssuer = "https://kubernetes.default.svc"

// startEtcd starts etcd and waits for it.
func (c *ControlPlane) startEtcd(ctx context.Context) error {
	// The name distinguishes this etcd from another on the same port.
	name := rand.Text()
	return withFreePorts(2, func(ports []int) error {
		client, peer := "http://"+loopback(ports[0]), "http://"+loopback(ports[1])
		p, err := c.run("etcd",
			"--name="+name,
			"--data-dir="+filepath.Join(c.dir, "etcd"),
			"--listen-client-urls="+client,
			"--advertise-client-urls="+client,
			"--listen-peer-urls="+peer,
			"--initial-advertise-peer-urls="+peer,
			"--initial-cluster="+name+"="+peer,
			// What a test wrote need not survive a power failure.
			"--unsafe-no-fsync",
			// Room for tests whose objects are as large as the API server accepts.
			"--quota-backend-bytes=8589934592",
			"--log-level=warn",
		)
		if err != nil {
			return err
		}
		c.etcdPort = ports[0]
		return p.waitReady(ctx, func(ctx context.Context) error { return etcdServes(ctx, client, name) })
	})
}

// etcdServes asks for the list of members, which etcd answers once it can
// write, and looks for the name.
func etcdServes(ctx context.Context, url, name string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v3/cluster/member/list", strings.NewReader("{}"))
	if err != nil {
		return err
	}
	body, err := ask(http.DefaultClient, request)
	if err != nil {
		return err
	}
	var list struct {
		Members []struct{ Name string }
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return fmt.Errorf("list of etcd's members: %w", err)
	}
	if len(list.Members) != 1 || list.Members[0].Name != name {
		return fmt.Errorf("etcd's only member should be %q: %s", name, bytes.TrimSpace(body))
	}
	return nil
}

// startAPIServer starts the API server on a port of its own, which it keeps
// from then on, writes the kubeconfigs and waits until it is ready.
func (c *ControlPlane) startAPIServer(ctx context.Context) error {
	return withFreePorts(1, func(ports []int) error {
		c.serverPort = ports[0]
		for _, user := range users(c.options.Nodes) {
			err := writeKubeconfig(c.kubeconfigPath(user), c.serverURL(), c.credentials.certificate, user, "default", c.credentials.tokens[user])
			if err != nil {
				return err
			}
		}
		return c.runAPIServer(ctx)
	})
}

// auditArguments returns the flags of the API server that make it write
// AuditPath.
func (c *ControlPlane) auditArguments() ([]string, error) {
	if c.options.AuditPolicy == "" {
		return nil, nil
	}
	path := filepath.Join(c.dir, "audit-policy.yaml")
	if err := os.WriteFile(path, []byte(c.options.AuditPolicy), 0o600); err != nil {
		return nil, err
	}
	// Readers of the log want one file, not rotated ones.
	return []string{"--audit-policy-file=" + path, "--audit-log-path=" + c.AuditPath(), "--audit-log-maxsize=10000"}, nil
}

// proxyArguments returns what the API server needs to reach kubelets by a proxy.
func (c *ControlPlane) proxyArguments() ([]string, error) {
	if c.options.NodeProxy == "" {
		return nil, nil
	}
	path := filepath.Join(c.dir, "egress-selector.json")
	selector := fmt.Sprintf(`{"apiVersion": "apiserver.k8s.io/v1beta1", "kind": "EgressSelectorConfiguration", "egressSelections": [
  {"name": "cluster", "connection": {"proxyProtocol": "HTTPConnect", "transport": {"uds": {"udsName": %q}}}}
]}`, c.options.NodeProxy)
	if err := os.WriteFile(path, []byte(selector), 0o600); err != nil {
		return nil, err
	}
	return []string{"--egress-selector-config-file=" + path, "--kubelet-preferred-address-types=Hostname"}, nil
}

// runAPIServer starts the API server on its port and waits until it is ready.
func (c *ControlPlane) runAPIServer(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(c.RESTConfig())
	if err != nil {
		return fmt.Errorf("client for the API server: %w", err)
	}
	arguments, err := c.auditArguments()
	if err != nil {
		return err
	}
	authorizers := "RBAC"
	if len(c.options.Nodes) > 0 {
		authorizers = "Node,RBAC"
		arguments = append(arguments, "--enable-admission-plugins=NodeRestriction")
	}
	proxy, err := c.proxyArguments()
	if err != nil {
		return err
	}
	p, err := c.run("kube-apiserver", append(append(arguments, proxy...),
		"--bind-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", c.serverPort),
		// A loopback address would be refused as the endpoint of the Service kubernetes.
		"--endpoint-reconciler-type=none",
		"--advertise-address=127.0.0.1",
		"--service-cluster-ip-range=10.0.0.0/24",
		"--tls-cert-file="+c.credentials.certificatePath,
		"--tls-private-key-file="+c.credentials.keyPath,
		"--etcd-servers=http://"+loopback(c.etcdPort),
		// As in any cluster whose nodes run drivers in pods.
		"--allow-privileged=true",
		"--authorization-mode="+authorizers,
		"--token-auth-file="+c.credentials.tokensPath,
		"--service-account-issuer="+serviceAccountIssuer,
		"--service-account-key-file="+c.credentials.accountKeyPath,
		"--service-account-signing-key-file="+c.credentials.accountKeyPath,
	)...)
	if err != nil {
		return err
	}
	err = p.waitReady(ctx, func(ctx context.Context) error {
		return client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
	if err != nil {
		// An API server that is merely late would keep the port from the next
		// one.
		p.kill()
		return err
	}
	c.apiServer = p
	return nil
}

const controllerManager = "kube-controller-manager"

// startControllerManager starts the controllers. waitForControllers waits for
// them.
func (c *ControlPlane) startControllerManager() error {
	_, err := c.run(controllerManager,
		"--kubeconfig="+c.kubeconfigPath(userControllerManager),
		"--controllers="+strings.Join(c.options.Controllers, ","),
		// The controller manager's own role allows little. Without this,
		// binding fails with "forbidden", seen nowhere but in its log.
		"--use-service-account-credentials",
		"--service-account-private-key-file="+c.credentials.accountKeyPath,
		"--root-ca-file="+c.credentials.certificatePath,
		fmt.Sprintf("--kube-api-qps=%d", c.options.ControllerManagerQPS),
		fmt.Sprintf("--kube-api-burst=%d", 2*c.options.ControllerManagerQPS),
		"--leader-elect=false",
		"--secure-port=0",
	)
	return err
}

// startScheduler starts the scheduler and waits until its caches are filled.
func (c *ControlPlane) startScheduler(ctx context.Context) error {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(c.credentials.certificate)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}

	return withFreePorts(1, func(ports []int) error {
		p, err := c.run("kube-scheduler",
			"--kubeconfig="+c.kubeconfigPath(userScheduler),
			"--leader-elect=false",
			"--bind-address=127.0.0.1",
			fmt.Sprintf("--secure-port=%d", ports[0]),
			"--tls-cert-file="+c.credentials.certificatePath,
			"--tls-private-key-file="+c.credentials.keyPath,
			// Only the probe below sends it requests.
			"--authentication-skip-lookup",
		)
		if err != nil {
			return err
		}
		return p.waitReady(ctx, func(ctx context.Context) error {
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+loopback(ports[0])+"/readyz", nil)
			if err != nil {
				return err
			}
			_, err = ask(client, request)
			return err
		})
	})
}

// run starts a component and records it for Stop. It forgets an ended one of
// the same name.
func (c *ControlPlane) run(name string, arguments ...string) (*process, error) {
	p, err := startProcess(c.binary, name, c.dir, arguments)
	if err != nil {
		return nil, err
	}
	for i, earlier := range c.processes {
		if earlier.name == name {
			c.processes[i] = p
			return p, nil
		}
	}
	c.processes = append(c.processes, p)
	return p, nil
}

// ask returns the body of a good answer.
func ask(client *http.Client, request *http.Request) (body []byte, err error) {
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	body, err = io.ReadAll(response.Body)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", request.Method, request.URL, err)
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s %s: %s: %s", request.Method, request.URL, response.Status, bytes.TrimSpace(body))
	}
	return body, nil
}

func (c *ControlPlane) serverURL() string { return "https://" + loopback(c.serverPort) }
