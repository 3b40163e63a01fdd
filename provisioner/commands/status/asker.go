package status

import (
	"context"
	"fmt"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/standalone-cinder/standalone-cinder/provisioner/statusreport"
)

// Asker asks single replicas through the API server's proxy, for other commands.
type Asker struct {
	Client    kubernetes.Interface
	namespace string
}

// NewAsker connects as the status commands do. Its client cuts off answers that no report
// can have.
func NewAsker(kubeconfig, context, namespace string) (*Asker, error) {
	of := connection{kubeconfig: kubeconfig, overrides: clientcmd.ConfigOverrides{CurrentContext: context}}
	client, err := of.client()
	if err != nil {
		return nil, err
	}
	return &Asker{client, namespace}, nil
}

// Ask returns the report of the replica in a pod, with as few claims as possible.
func (a *Asker) Ask(ctx context.Context, pod string, port int) (*statusreport.Report, error) {
	to := connection{namespace: a.namespace, port: port}
	data, err := to.askPod(ctx, a.Client, pod, map[string]string{"limit": "1"})
	if err != nil {
		// The error names flags of that command.
		return nil, fmt.Errorf("standalone-cinder status --pod %s would say: %w", pod, err)
	}
	return parseReport(data, "pod "+a.namespace+"/"+pod)
}
