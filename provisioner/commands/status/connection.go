package status

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/standalone-cinder/standalone-cinder/provisioner/wiring"
)

const (
	askTimeout = 30 * time.Second
	// maxReport exceeds the size of any report.
	maxReport = 64 << 20
)

// connection says how the commands reach a cluster, and the program in it.
type connection struct {
	kubeconfig string
	// overrides are kubectl's own flags.
	overrides clientcmd.ConfigOverrides
	// namespace is the program's namespace.
	namespace       string
	provisionerName string
	pod             string
	port            int
	url             string
	// httpConfigFile has the TLS settings and the login for url.
	httpConfigFile string
}

// addFlags adds the flags. namespaceFlag is the name of the flag for the program's
// namespace, and short is its letter.
func (o *connection) addFlags(c *cobra.Command, namespaceFlag, short string) {
	flags := c.Flags()
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig `file`; default is $KUBECONFIG, else ~/.kube/config, else the pod's service account")
	names := clientcmd.RecommendedConfigOverrideFlags("")
	// The program's namespace has its own flag, and an API server takes no password.
	names.ContextOverrideFlags.Namespace.LongName = ""
	names.AuthOverrideFlags.Username.LongName, names.AuthOverrideFlags.Password.LongName = "", ""
	clientcmd.BindOverrideFlags(&o.overrides, flags, names)
	flags.StringVarP(&o.namespace, namespaceFlag, short, DefaultNamespace, "`namespace` where the program runs")
	flags.StringVar(&o.provisionerName, "provisioner-name", wiring.DefaultProvisionerName, "`name` by which StorageClasses refer to the program")
	flags.StringVar(&o.pod, "pod", "", "`name` of the replica's pod to ask; default is the leader's")
	flags.IntVar(&o.port, "port", 8080, "port of the replicas' status")
	flags.StringVar(&o.url, "url", "", "`address` to ask instead of a pod, such as http://127.0.0.1:8080")
	flags.StringVar(&o.httpConfigFile, "http-config-file", "", "`file` with the TLS and the login for --url, in the format of Prometheus' HTTP clients, if --web-config-file protects the replica")
}

func (o *connection) config() (*rest.Config, error) {
	clientConfig, err := wiring.ConnectAsKubectl(o.kubeconfig, &o.overrides)
	if err != nil {
		return nil, err
	}
	clientConfig.Timeout = cmp.Or(clientConfig.Timeout, askTimeout)
	clientConfig.Wrap(func(next http.RoundTripper) http.RoundTripper { return boundedAnswers{next} })
	return clientConfig, nil
}

func (o *connection) client() (kubernetes.Interface, error) {
	clientConfig, err := o.config()
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(clientConfig)
	if err != nil {
		return nil, fmt.Errorf("kubernetes client: %w", err)
	}
	return client, nil
}

// boundedAnswers cuts off answers that are longer than any report. Behind the API
// server's proxy, a pod may send whatever it likes.
type boundedAnswers struct{ http.RoundTripper }

func (b boundedAnswers) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := b.RoundTripper.RoundTrip(r)
	if err == nil {
		answer.Body = &boundedBody{answer.Body, maxReport}
	}
	return answer, err
}

type boundedBody struct {
	io.ReadCloser
	left int
}

func (b *boundedBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errors.New("it sent more than a status report can be")
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}

// fetch gets a report, and returns whom it asked.
func (o *connection) fetch(ctx context.Context, parameters map[string]string) (data []byte, from string, err error) {
	if o.url != "" && o.pod != "" {
		return nil, "", errors.New("--url and --pod each name a replica to ask; give one of them")
	}
	if o.url != "" {
		data, err = o.fetchURL(ctx, parameters)
		return data, o.address(), err
	}
	if o.httpConfigFile != "" {
		return nil, "", errors.New("--http-config-file needs --url: the API server's proxy to pods passes on neither a login nor a client certificate")
	}
	client, err := o.client()
	if err != nil {
		return nil, "", err
	}
	pod := o.pod
	if strings.Contains(pod, "/") {
		return nil, "", fmt.Errorf("--pod is %q; give the name alone", pod)
	}
	if pod == "" {
		if pod, err = o.leader(ctx, client); err != nil {
			return nil, "", err
		}
	}
	data, err = o.askPod(ctx, client, pod, parameters)
	return data, "pod " + o.namespace + "/" + pod, err
}

// leader returns the name of the pod that holds the Lease.
func (o *connection) leader(ctx context.Context, client kubernetes.Interface) (pod string, err error) {
	name := wiring.LeaseName(o.provisionerName)
	lease, err := client.CoordinationV1().Leases(o.namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return "", fmt.Errorf("there is no Lease %s/%s: the program does not run there, or under another name, or without leader election; give its namespace, --provisioner-name, or --pod", o.namespace, name)
	case err != nil:
		return "", fmt.Errorf("cannot read Lease %s/%s, which names the leader: %w", o.namespace, name, err)
	case lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "":
		return "", fmt.Errorf("no replica leads: nobody holds Lease %s/%s; --pod asks a follower", o.namespace, name)
	}
	if pod = wiring.PodOf(*lease.Spec.HolderIdentity); pod == "" {
		return "", fmt.Errorf("the holder of Lease %s/%s, %q, names no pod; give --pod", o.namespace, name, *lease.Spec.HolderIdentity)
	}
	return pod, nil
}

// httpClient returns the client for --url.
func (o *connection) httpClient() (*http.Client, error) {
	if o.httpConfigFile == "" {
		return &http.Client{Timeout: askTimeout}, nil
	}
	protected, err := readHTTPConfig(o.httpConfigFile)
	if err != nil {
		return nil, fmt.Errorf("--http-config-file %s: %w", o.httpConfigFile, err)
	}
	// The transport would send the login to another host, too. No replica redirects.
	here := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &http.Client{Transport: protected, Timeout: askTimeout, CheckRedirect: here}, nil
}

// unreachable returns the error for a replica that cannot be reached by --url.
func (o *connection) unreachable(err error) error {
	remedy := "is kubectl port-forward running?"
	if certificate := (*tls.CertificateVerificationError)(nil); errors.As(err, &certificate) {
		remedy = "name its authority in --http-config-file"
	} else if errors.Is(err, http.ErrSchemeMismatch) {
		remedy = "it speaks HTTP; write http:// instead of https://"
	}
	// A url.Error would repeat the address.
	if failed := (*url.Error)(nil); errors.As(err, &failed) {
		err = failed.Err
	}
	return fmt.Errorf("--url: cannot reach %s (%s): %w", o.address(), remedy, err)
}

// address returns the address without its password.
func (o *connection) address() string {
	at, err := url.Parse(o.url)
	if err != nil {
		return "an address that cannot be read"
	}
	return at.Redacted()
}

// fetchURL gets a report without Kubernetes.
func (o *connection) fetchURL(ctx context.Context, parameters map[string]string) ([]byte, error) {
	at, err := url.Parse(o.url)
	if err != nil || at.Host == "" || at.Scheme != "http" && at.Scheme != "https" {
		// It may hold a password in a place that nothing can tell.
		return nil, errors.New("--url is not an address such as http://127.0.0.1:8080: it must begin with http:// or https:// and a host")
	}
	client, err := o.httpClient()
	if err != nil {
		return nil, err
	}
	at = at.JoinPath("status.json")
	query := at.Query()
	for key, value := range parameters {
		query.Set(key, value)
	}
	at.RawQuery = query.Encode()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, o.unreachable(err)
	}
	defer response.Body.Close() //nolint:errcheck // Nothing was written.
	body, err := io.ReadAll(io.LimitReader(response.Body, maxReport+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", o.address(), err)
	case len(body) > maxReport:
		return nil, errors.New(o.address() + " sent more than a status report can be")
	case response.StatusCode == http.StatusUnauthorized:
		return nil, fmt.Errorf("%s answered %s: give its login in --http-config-file", o.address(), response.Status)
	case response.StatusCode == http.StatusBadRequest && at.Scheme == "http" && strings.Contains(string(body), "HTTPS"):
		return nil, fmt.Errorf("%s speaks HTTPS; write https:// instead of http://", o.address())
	case response.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%s answered %s: %s", o.address(), response.Status, strings.TrimSpace(string(body[:min(len(body), 300)])))
	}
	return body, nil
}
