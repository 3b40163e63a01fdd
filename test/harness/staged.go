package harness

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/staged"
)

// Machine returns the machine that the tests' Node of a name runs on.
func Machine(node, boot string) staged.Machine {
	return staged.Machine{SystemUUID: "uuid-of-" + node, Boot: boot}
}

// ReportStaged reports what a node has staged, by their handles in order, as its plugin
// does.
func (s *Suite) ReportStaged(ctx context.Context, node string, machine staged.Machine, volumes ...string) error {
	return s.Report(ctx, node, staged.Report{Machine: machine, Volumes: volumes})
}

// Report writes what a node has, as its plugin does.
func (s *Suite) Report(ctx context.Context, node string, report staged.Report) error {
	report.Written = time.Now()
	lease := report.Lease(Namespace, node)
	leases := s.Client.CoordinationV1().Leases(Namespace)
	for {
		_, err := leases.Create(ctx, lease, metav1.CreateOptions{})
		if !apierrors.IsAlreadyExists(err) {
			return err
		}
		present, err := leases.Get(ctx, lease.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return err
		}
		lease.ResourceVersion = present.ResourceVersion
		if _, err = leases.Update(ctx, lease, metav1.UpdateOptions{}); !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return err
		}
		lease.ResourceVersion = ""
	}
}
