package deploy

import (
	"context"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/standalone-cinder/standalone-cinder/test/controlplane"
)

// TestAPIServerAcceptsTheOverlays applies the example to a real API server, and
// then, as an operator who adds components later, the example with those that need
// no custom resources.
func TestAPIServerAcceptsTheOverlays(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	plane, err := controlplane.Start(ctx, controlplane.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := plane.Stop(); err != nil {
			t.Error(err)
		}
	}()
	for _, components := range [][]string{nil, {"noauth", "extra-ca", "network-policy", "web-config", "grafana-dashboards", "historic-volumes", "claim-policy", "tenant-status", "snapshot-schedules", "group-snapshots", "node-grow", "csi", "taint-lost-nodes", "csi-trust-parameters"}} {
		rendered, err := Overlay(ctx, t.TempDir(), components...)
		if err != nil {
			t.Fatal(err)
		}
		if err := plane.Apply(ctx, rendered); err != nil {
			t.Fatalf("components %v: %v", components, err)
		}
	}

	client, err := kubernetes.NewForConfig(plane.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	stored, err := client.AppsV1().Deployments(Namespace).Get(ctx, Release, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod := stored.Spec.Template.Spec
	checkMounts(t, pod)
	checkHealthPort(t, pod.Containers[0])
	checkPodSecurity(ctx, t, client, stored)
}

// checkPodSecurity: the pods of the nodes are privileged, and only their own namespace
// allows that.
func checkPodSecurity(ctx context.Context, t *testing.T, client kubernetes.Interface, replicas *appsv1.Deployment) {
	t.Helper()
	nodes, err := client.AppsV1().DaemonSets(NodeNamespace).Get(ctx, Release+"-node", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	admitted := func(namespace string, spec corev1.PodSpec) error {
		spec.ServiceAccountName = "" // the namespaces have different ones
		_, err := client.CoreV1().Pods(namespace).Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "tried"}, Spec: spec}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	for _, namespace := range []string{Namespace, NodeNamespace} {
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
		if _, err := client.CoreV1().ServiceAccounts(namespace).Create(ctx, account, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	if err := admitted(Namespace, replicas.Spec.Template.Spec); err != nil {
		t.Errorf("a replica with its sidecars: %v", err)
	}
	if err := admitted(NodeNamespace, nodes.Spec.Template.Spec); err != nil {
		t.Errorf("a node plugin in its namespace: %v", err)
	}
	if err := admitted(Namespace, nodes.Spec.Template.Spec); !apierrors.IsForbidden(err) {
		t.Errorf("a privileged pod in the program's namespace: got %v, want it forbidden", err)
	}
}

// checkHealthPort: the probes use a port of their own, which needs neither TLS nor a login.
func checkHealthPort(t *testing.T, container corev1.Container) {
	t.Helper()
	for name, probe := range map[string]*corev1.Probe{"startup": container.StartupProbe, "liveness": container.LivenessProbe, "readiness": container.ReadinessProbe} {
		if port := probe.HTTPGet.Port.StrVal; port != "health" {
			t.Errorf("the %s probe uses port %s", name, port)
		}
	}
	for _, port := range container.Ports {
		if port.Name == "health" && port.ContainerPort == 8081 {
			return
		}
	}
	t.Errorf("the ports are %v", container.Ports)
}
