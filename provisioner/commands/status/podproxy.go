package status

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
)

// askPod asks a pod through the API server's proxy.
//
// Whether the pod's port uses TLS is set in a file of the web configuration, which
// neither the pod's spec nor its probes show. The pod's own answer tells, so no right
// to read pods is needed. The API server does not verify the pod's certificate, because
// it connects to an address (k8s.io/kubernetes/pkg/controlplane/apiserver,
// CreateProxyTransport).
func (o *connection) askPod(ctx context.Context, client kubernetes.Interface, pod string, parameters map[string]string) ([]byte, error) {
	scheme := "http"
	data, err := o.throughProxy(ctx, client, "", pod, parameters)
	if apierrors.IsBadRequest(err) && strings.Contains(podAnswer(err), "HTTP request to an HTTPS server") {
		scheme = "https"
		data, err = o.throughProxy(ctx, client, scheme, pod, parameters)
	}
	if err == nil {
		return data, nil
	}
	from := o.namespace + "/" + pod
	byAddress := fmt.Sprintf("run kubectl -n %s port-forward %s %d, and give --url %s://127.0.0.1:%d and --http-config-file", o.namespace, pod, o.port, scheme, o.port)
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("pod %s does not exist, or serves no status at port %d; give --pod, --port or --url: %w", from, o.port, err)
	case apierrors.IsUnauthorized(err) && podAnswer(err) != "":
		return nil, fmt.Errorf("pod %s asks for a login, and the API server's proxy passes none on; %s: %w", from, byAddress, err)
	case scheme == "https" && apierrors.IsServiceUnavailable(err) && podAnswer(err) == "":
		// The proxy failed. It may have lost the connection before it could read the
		// pod's reason.
		return nil, fmt.Errorf("pod %s does not accept the TLS connection of the API server's proxy, probably because it asks for a client certificate, which the proxy lacks; %s: %w", from, byAddress, err)
	case apierrors.IsServiceUnavailable(err) && podAnswer(err) == "":
		return nil, fmt.Errorf("the API server's proxy does not reach pod %s at port %d; if the pod runs, does a NetworkPolicy keep the API server out (networkPolicy of the chart)? %s: %w", from, o.port, byAddress, err)
	}
	return nil, fmt.Errorf("pod %s cannot be asked through the API server's proxy (port %d; it needs the right to get pods/proxy): %w", from, o.port, err)
}

func (o *connection) throughProxy(ctx context.Context, client kubernetes.Interface, scheme, pod string, parameters map[string]string) ([]byte, error) {
	name := net.JoinSchemeNamePort(scheme, pod, fmt.Sprint(o.port))
	request := client.CoreV1().RESTClient().Get().Namespace(o.namespace).Resource("pods").Name(name).SubResource("proxy").Suffix("status.json")
	for key, value := range parameters {
		request = request.Param(key, value)
	}
	result := request.Do(ctx)
	// The error that Raw returns lacks the API server's message.
	if err := result.Error(); err != nil {
		return nil, err
	}
	return result.Raw()
}

// podAnswer returns the text of an error that the pod sent; empty if the API server
// itself answered.
func podAnswer(err error) string {
	var status apierrors.APIStatus
	if errors.As(err, &status) && status.Status().Details != nil {
		for _, cause := range status.Status().Details.Causes {
			if cause.Type == metav1.CauseTypeUnexpectedServerResponse {
				return cause.Message
			}
		}
	}
	return ""
}
