package harness

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/wiring"
)

// Leader returns the identity of the process that holds a provisioner's Lease.
func (s *Suite) Leader(ctx context.Context, provisioner string) (identity string, err error) {
	lease, err := s.Client.CoordinationV1().Leases(Namespace).Get(ctx, wiring.LeaseName(provisioner), metav1.GetOptions{})
	if err == nil && lease.Spec.HolderIdentity != nil {
		identity = *lease.Spec.HolderIdentity
	}
	return identity, err
}

// ReportPod gives the pod of a process a status, as a kubelet does; there is no kubelet
// here. Pods that do not exist are made.
func (s *Suite) ReportPod(ctx context.Context, provisioner, identity string, status corev1.PodStatus) error {
	yes, no := true, false
	pods := s.Client.CoreV1().Pods(Namespace)
	pod, err := pods.Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: wiring.PodOf(identity)},
		Spec: corev1.PodSpec{
			SchedulerName: "none", ServiceAccountName: Account(provisioner), AutomountServiceAccountToken: &no,
			SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: &yes, SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
			Containers: []corev1.Container{{Name: "standalone-cinder", Image: "registry.example/standalone-cinder", SecurityContext: &corev1.SecurityContext{
				AllowPrivilegeEscalation: &no, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			}}},
		},
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		pod, err = pods.Get(ctx, wiring.PodOf(identity), metav1.GetOptions{})
	}
	if err != nil {
		return err
	}
	pod.Status = status
	_, err = pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	return err
}

// Ended is the status of a pod whose container has ended and been started again.
func Ended(identity string) corev1.PodStatus {
	return corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{
		Name: "standalone-cinder", RestartCount: 1, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
		LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "Error", ContainerID: "containerd://1", Message: identity}},
	}}}
}
