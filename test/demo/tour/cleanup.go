package tour

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// deleteAll deletes all claims, stops the leader halfway through, and checks
// that nothing is left.
func (t *tour) deleteAll(ctx context.Context) error {
	t.out.Step("Everything is deleted, and the leader is stopped halfway through")
	before, err := t.possessions(ctx)
	if err != nil {
		return err
	}
	if filed := int(t.filed.Load()); before.pvs != filed || before.secrets == 0 {
		return fmt.Errorf("%d claims have %d PersistentVolumes and %d Secrets", filed, before.pvs, before.secrets)
	}
	passwords := []string{t.password}
	for _, v := range t.sim.Volumes() {
		if v.Export.Password != "" {
			passwords = append(passwords, v.Export.Password)
		}
	}
	ctx, cancel := within(ctx, 90)
	defer cancel()
	leader, err := t.leader(ctx, 30)
	if err != nil {
		return err
	}
	if err := t.deleteClaims(ctx); err != nil {
		return err
	}
	begun := time.Now()
	err = harness.Eventually(ctx, func() (string, error) {
		for _, v := range t.sim.Volumes() {
			if v.Status == "deleting" {
				return "", nil
			}
		}
		if len(t.sim.Volumes()) < before.volumes {
			return "", nil
		}
		return "no volume is being deleted", nil
	})
	if err != nil {
		return err
	}
	leader.dismiss()
	if err := leader.Stop(ctx); err != nil {
		return fmt.Errorf("replica %d does not stop properly: %w", leader.number, err)
	}
	stopped := time.Since(begun)
	next, err := t.leader(ctx, 30)
	if err != nil {
		return fmt.Errorf("after the leader was stopped: %w", err)
	}
	tookOver := time.Since(begun)
	var left possessions
	err = harness.Eventually(ctx, func() (string, error) {
		var err error
		if left, err = t.possessions(ctx); err != nil || left == (possessions{}) {
			return "", err
		}
		return fmt.Sprintf("%d PersistentVolumes, %d volumes at Cinder and %d Secrets are left", left.pvs, left.volumes, left.secrets), nil
	})
	if err != nil {
		return fmt.Errorf("%s after the claims were deleted: %w", time.Since(begun).Round(time.Second), err)
	}
	gone := time.Since(begun)
	for _, r := range t.replicas {
		for _, password := range passwords {
			if strings.Contains(r.Log(), password) {
				// The error must not repeat the password.
				return fmt.Errorf("replica %d has logged a password", r.number)
			}
		}
	}

	t.out.Command(fmt.Sprintf("kubectl delete pvc --all -n %s (and -n %s, -n %s)", t.names.shop(), t.names.research(), t.names.guest()))
	t.out.Command(fmt.Sprintf("kill -TERM %d", leader.PID()))
	t.out.Table([][]string{
		{after(stopped), fmt.Sprintf("replica %d has finished or handed over its work, released the lease and exited with 0", leader.number)},
		{after(tookOver), fmt.Sprintf("replica %d leads: unlike a killed leader, a stopped one leaves no lease to wait for", next.number)},
		{after(gone), "nothing is left:"},
	})
	row := func(what string, before, left int) []string {
		return []string{what, fmt.Sprint(before), fmt.Sprint(left)}
	}
	t.out.Table([][]string{
		{"", "BEFORE", "NOW"},
		row("PersistentVolumes", before.pvs, left.pvs),
		row("volumes at Cinder", before.volumes, left.volumes),
		row("CHAP Secrets in "+harness.Namespace, before.secrets, left.secrets),
	})
	t.out.Say("None of the %d passwords of Keystone and CHAP is in the three replicas' logs.", len(passwords))
	return nil
}

// possessions count what the program has made.
type possessions struct{ pvs, volumes, secrets int }

func (t *tour) possessions(ctx context.Context) (possessions, error) {
	pvs, err := t.suite.PersistentVolumes(ctx, t.names.provisioner)
	if err != nil {
		return possessions{}, err
	}
	secrets, err := t.secrets(ctx)
	return possessions{pvs: len(pvs), volumes: len(t.sim.Volumes()), secrets: len(secrets)}, err
}

// secrets returns the Secrets that the program made for the tour's volumes.
func (t *tour) secrets(ctx context.Context) ([]corev1.Secret, error) {
	list, err := t.suite.Client.CoreV1().Secrets(harness.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var ours []corev1.Secret
	for _, secret := range list.Items {
		if secret.Annotations[annotationCluster] == t.names.cluster {
			ours = append(ours, secret)
		}
	}
	return ours, nil
}

func (t *tour) deleteClaims(ctx context.Context) error {
	for _, namespace := range t.names.namespaces() {
		if err := t.suite.DeleteClaims(ctx, namespace); err != nil {
			return fmt.Errorf("the claims in %s cannot be deleted: %w", namespace, err)
		}
	}
	return nil
}

// Cleanup of a shared cluster is bounded, so that a visitor who wants to leave
// can.
const (
	cleanUpTimeout = 2 * time.Minute
	// releaseTimeout is for the program to remove its volumes: a killed leader's
	// lease must expire first.
	releaseTimeout = 40 * time.Second
	// namespaceTimeout is for the cluster to empty the namespaces.
	namespaceTimeout = 30 * time.Second
)

// tearDown ends and removes everything that the tour has started and made,
// however far it got. It does what it can and reports what it could not do.
func (t *tour) tearDown(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, cleanUpTimeout)
	defer cancel()
	var problems []error
	shared := t.names.id != "" && t.changed
	if shared {
		// While the replicas still run, since only they remove volumes properly.
		problems = append(problems, t.release(ctx))
	}
	for _, r := range t.replicas {
		r.dismiss()
		r.Kill()
	}
	if t.sim != nil {
		t.sim.Close()
	}
	if shared {
		problems = append(problems, t.restoreCluster(ctx))
	}
	if t.suite != nil {
		problems = append(problems, t.suite.Stop())
	}
	if err := errors.Join(problems...); err != nil {
		return fmt.Errorf("cleaning up: %w", err)
	}
	return nil
}

// release deletes the remaining claims and waits until the program has removed
// their volumes. After a complete tour there is nothing to do.
func (t *tour) release(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	if err := t.deleteClaims(ctx); err != nil {
		return err
	}
	if !slices.ContainsFunc(t.replicas, (*replica).running) {
		return nil
	}
	// restoreCluster removes what is still there then.
	_ = t.suite.WaitForNoPersistentVolumes(ctx, t.names.provisioner)
	return nil
}

// restoreCluster removes the tour's objects from a shared cluster. No replica
// runs at this point, and the simulated Cinder is gone with its volumes: the
// remaining PersistentVolumes refer to nothing and are removed by force.
func (t *tour) restoreCluster(ctx context.Context) error {
	core := t.suite.Client.CoreV1()
	var problems []error
	try := func(err error, what string, arguments ...any) {
		if err != nil && !apierrors.IsNotFound(err) {
			problems = append(problems, wrapped(err, "%s cannot be removed", fmt.Sprintf(what, arguments...)))
		}
	}
	pvs, err := t.suite.PersistentVolumes(ctx, t.names.provisioner)
	try(err, "PersistentVolumes of %s", t.names.provisioner)
	for _, pv := range pvs {
		try(core.PersistentVolumes().Delete(ctx, pv.Name, metav1.DeleteOptions{}), "PersistentVolume %s", pv.Name)
		_, err := core.PersistentVolumes().Patch(ctx, pv.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		try(err, "PersistentVolume %s", pv.Name)
	}
	secrets, err := t.secrets(ctx)
	try(err, "Secrets in %s", harness.Namespace)
	for _, secret := range secrets {
		try(core.Secrets(harness.Namespace).Delete(ctx, secret.Name, metav1.DeleteOptions{}), "Secret %s/%s", harness.Namespace, secret.Name)
	}
	try(t.forgetLastGood(ctx), "the last good policy in %s", harness.Namespace)
	leases := t.suite.Client.CoordinationV1().Leases(harness.Namespace)
	held, err := leases.List(ctx, metav1.ListOptions{})
	try(err, "the Lease in %s", harness.Namespace)
	if err == nil {
		for _, lease := range held.Items {
			// It is named after the provisioner, and that name is unique.
			if strings.HasSuffix(lease.Name, "-"+t.names.id) {
				try(leases.Delete(ctx, lease.Name, metav1.DeleteOptions{}), "Lease %s/%s", harness.Namespace, lease.Name)
			}
		}
	}
	for _, class := range t.names.classes() {
		try(t.suite.Client.StorageV1().StorageClasses().Delete(ctx, class, metav1.DeleteOptions{}), "StorageClass %s", class)
	}
	namespaces := t.names.namespaces()
	if t.madeNamespace {
		namespaces = append(namespaces, harness.Namespace)
	}
	for _, namespace := range namespaces {
		try(core.Namespaces().Delete(ctx, namespace, metav1.DeleteOptions{}), "namespace %s", namespace)
	}
	if err := errors.Join(problems...); err != nil {
		return fmt.Errorf("%w\nthe remaining objects carry the label %s=%s", err, labelTour, t.names.id)
	}
	t.waitNamespacesGone(ctx, namespaces)
	return nil
}

// forgetLastGood removes the policy that the next tour's replicas would start
// with.
func (t *tour) forgetLastGood(ctx context.Context) error {
	secrets := t.suite.Client.CoreV1().Secrets(harness.Namespace)
	all, err := secrets.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range all.Items {
		// It is named after the provisioner, and that name is unique.
		if name := all.Items[i].Name; strings.HasSuffix(name, "-"+t.names.id+"-last-good") {
			return secrets.Delete(ctx, name, metav1.DeleteOptions{})
		}
	}
	return nil
}

// waitNamespacesGone waits for the cluster to empty the deleted namespaces. It
// is not the tour's fault if that takes long.
func (t *tour) waitNamespacesGone(ctx context.Context, namespaces []string) {
	ctx, cancel := context.WithTimeout(ctx, namespaceTimeout)
	defer cancel()
	var left []string
	err := harness.Eventually(ctx, func() (string, error) {
		left = nil
		for _, namespace := range namespaces {
			_, err := t.suite.Client.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
			if !apierrors.IsNotFound(err) {
				left = append(left, namespace)
			}
		}
		return strings.Join(left, ", "), nil
	})
	if err != nil {
		t.out.Say("The cluster is still terminating the namespaces %s.", strings.Join(left, ", "))
	}
}
