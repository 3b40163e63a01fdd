package deploy

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
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
	for _, components := range [][]string{nil, {"noauth", "extra-ca", "network-policy", "web-config", "grafana-dashboards", "historic-volumes", "csi", "csi-trust-parameters"}} {
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
}

// checkHealthPort: with a web configuration, the probes use a port that needs
// neither TLS nor a login.
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
