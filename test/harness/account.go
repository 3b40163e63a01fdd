package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"
)

// defaultProvisioner is the name in deploy/base, and its Lease's.
const (
	defaultProvisioner = "openstack.org/standalone-cinder"
	defaultLease       = "openstack.org-standalone-cinder"
)

// accounts makes a service account for each provisioner name, with what deploy/base
// gives the account of the program: the rights, which name the Lease, and the
// admission policies, which name the provisioner.
type accounts struct {
	mu sync.Mutex
	// kubeconfigs are the paths by provisioner name.
	kubeconfigs map[string]string
}

// Account returns the name of the service account that replicas with this
// provisioner name use, in Namespace.
func Account(provisioner string) string {
	if provisioner == defaultProvisioner {
		return ServiceAccount
	}
	return "provisioner-" + strings.NewReplacer("/", "-", ".", "-", "_", "-").Replace(strings.ToLower(provisioner))
}

// account returns the kubeconfig of a provisioner's account, which it makes if
// needed.
func (s *Suite) account(ctx context.Context, provisioner string) (string, error) {
	if s.plane == nil {
		return s.kubeconfig, nil
	}
	s.accounts.mu.Lock()
	defer s.accounts.mu.Unlock()
	if path, ok := s.accounts.kubeconfigs[provisioner]; ok {
		return path, nil
	}
	name := Account(provisioner)
	var manifests [][]byte
	for _, file := range []string{"serviceaccount.yaml", "rbac.yaml", "admissionpolicy.yaml"} {
		manifest, err := s.manifestOf(file, provisioner, name)
		if err != nil {
			return "", fmt.Errorf("account of %s: %w", provisioner, err)
		}
		manifests = append(manifests, manifest)
	}
	if err := s.Apply(ctx, manifests...); err != nil {
		return "", fmt.Errorf("account of %s: %w", provisioner, err)
	}
	path, err := s.plane.ServiceAccountKubeconfig(ctx, Namespace, name)
	if err != nil {
		return "", err
	}
	if s.accounts.kubeconfigs == nil {
		s.accounts.kubeconfigs = map[string]string{}
	}
	s.accounts.kubeconfigs[provisioner] = path
	return path, nil
}

// RemoveAdmissionPolicies removes the admission policies of a provisioner's account,
// once its replicas are gone: the API server evaluates every policy in the cluster at
// every write, so those of a hundred finished tests would make the others slow.
func (s *Suite) RemoveAdmissionPolicies(ctx context.Context, provisioner string) error {
	name := Account(provisioner)
	if s.plane == nil || name == ServiceAccount {
		return nil
	}
	s.accounts.mu.Lock()
	defer s.accounts.mu.Unlock()
	if _, ok := s.accounts.kubeconfigs[provisioner]; !ok {
		return nil
	}
	admission := s.Client.AdmissionregistrationV1()
	for _, object := range protected {
		// The binding goes first: a binding without its policy is an error of the API server's.
		err := admission.ValidatingAdmissionPolicyBindings().Delete(ctx, name+object, metav1.DeleteOptions{})
		if err == nil || apierrors.IsNotFound(err) {
			err = admission.ValidatingAdmissionPolicies().Delete(ctx, name+object, metav1.DeleteOptions{})
		}
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("admission policies of %s: %w", provisioner, err)
		}
	}
	delete(s.accounts.kubeconfigs, provisioner)
	return nil
}

// protected are the ends of the admission policies' names in deploy/base.
var protected = []string{"-persistentvolumes", "-secrets", "-claims", "-snapshots"}

// objectNames matches where deploy/base names its objects, or where its
// expressions name the account. The namespace, which has the same name, stays.
var objectNames = regexp.MustCompile(`(?m)(^ *(?:- )?(?:name|policyName): |:)standalone-cinder(-persistentvolumes|-secrets|-claims|-snapshots|['\n]|$)`)

// manifestOf returns a file of deploy/base for another provisioner and account.
func (s *Suite) manifestOf(file, provisioner, account string) ([]byte, error) {
	content, err := os.ReadFile(filepath.Join(s.root, "deploy", "base", file))
	// As an operator does who has ceph-csi.
	content = bytes.Replace(content, []byte("- name: secretNamespaces\n      expression: \"[]\""), []byte("- name: secretNamespaces\n      expression: \"['ceph-csi']\""), 1)
	if err != nil || account == ServiceAccount {
		return content, err
	}
	const mark = "\x00"
	content = bytes.ReplaceAll(content, []byte(defaultProvisioner), []byte(mark+"provisioner"))
	content = bytes.ReplaceAll(content, []byte(defaultLease), []byte(mark+"lease"))
	content = objectNames.ReplaceAll(content, []byte("${1}"+account+"${2}"))
	content = bytes.ReplaceAll(content, []byte(mark+"provisioner"), []byte(provisioner))
	content = bytes.ReplaceAll(content, []byte(mark+"lease"), []byte(strings.ReplaceAll(provisioner, "/", "-")))
	return content, nil
}

// AllowCSINodes gives an installation's account what the component csi of the
// manifests gives it: its role, and its changes of the admission policies.
func (s *Suite) AllowCSINodes(ctx context.Context, provisioner string) error {
	if _, err := s.account(ctx, provisioner); err != nil {
		return err
	}
	account := Account(provisioner)
	name := account + "-csi"
	role, own, err := s.componentRoles()
	if err != nil {
		return err
	}
	own.ObjectMeta = metav1.ObjectMeta{Name: name}
	if _, err := s.Client.RbacV1().Roles(Namespace).Create(ctx, own, metav1.CreateOptions{}); err != nil {
		return err
	}
	if _, err := s.Client.RbacV1().RoleBindings(Namespace).Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name}, Subjects: subjects(account),
	}, metav1.CreateOptions{}); err != nil {
		return err
	}
	if err := s.grant(ctx, account, name, role.Rules); err != nil || s.plane == nil {
		return err
	}
	return s.patchPolicies(ctx, account, "csi")
}

func subjects(account string) []rbacv1.Subject {
	return []rbacv1.Subject{{Kind: "ServiceAccount", Name: account, Namespace: Namespace}}
}

// grant gives an account a ClusterRole of its own.
func (s *Suite) grant(ctx context.Context, account, name string, rules []rbacv1.PolicyRule) error {
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}
	if _, err := s.Client.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{}); err != nil {
		return err
	}
	return s.bind(ctx, account, name, name)
}

// bind binds an account to a ClusterRole.
func (s *Suite) bind(ctx context.Context, account, name, role string) error {
	_, err := s.Client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role}, Subjects: subjects(account),
	}, metav1.CreateOptions{})
	return err
}

// AllowTenantStatus installs the component tenant-status of the manifests, for an
// installation's account, too.
func (s *Suite) AllowTenantStatus(ctx context.Context, provisioner string) error {
	if _, err := s.account(ctx, provisioner); err != nil {
		return err
	}
	file := filepath.Join("deploy", "components", "tenant-status", "tenantstatus.yaml")
	if err := s.ApplyFile(ctx, file); err != nil {
		return err
	}
	account := Account(provisioner)
	return s.bind(ctx, account, account+"-tenant-status", ServiceAccount+"-tenant-status")
}

// AllowSchedules installs the component snapshot-schedules of the manifests for an
// installation's account.
func (s *Suite) AllowSchedules(ctx context.Context, provisioner string) error {
	return s.allow(ctx, provisioner, "snapshot-schedules", "snapshotschedules.yaml")
}

// AllowGroups does that for the component group-snapshots.
func (s *Suite) AllowGroups(ctx context.Context, provisioner string) error {
	return s.allow(ctx, provisioner, "group-snapshots", "groupsnapshots.yaml")
}

// AllowTaints does that for the component taint-lost-nodes. remove removes its admission
// policies.
func (s *Suite) AllowTaints(ctx context.Context, provisioner string) (remove func(context.Context) error, err error) {
	name := Account(provisioner) + "-taint-lost-nodes"
	remove = func(ctx context.Context) error {
		admission := s.Client.AdmissionregistrationV1()
		var errs []error
		for _, name := range []string{name, name + "-pods"} {
			errs = append(errs, admission.ValidatingAdmissionPolicyBindings().Delete(ctx, name, metav1.DeleteOptions{}),
				admission.ValidatingAdmissionPolicies().Delete(ctx, name, metav1.DeleteOptions{}))
		}
		return errors.Join(errs...)
	}
	return remove, s.allow(ctx, provisioner, "taint-lost-nodes", "taintlostnodes.yaml")
}

// allow installs a component for an installation's account.
func (s *Suite) allow(ctx context.Context, provisioner, component, file string) error {
	if _, err := s.account(ctx, provisioner); err != nil {
		return err
	}
	content, err := s.component(component, file)
	if err != nil {
		return err
	}
	account := Account(provisioner)
	content = []byte(strings.NewReplacer(ServiceAccount+"-"+component, account+"-"+component, "name: "+ServiceAccount+"\n", "name: "+account+"\n", ":"+ServiceAccount+"'", ":"+account+"'").Replace(string(content)))
	return s.Apply(ctx, content)
}

// NameClaims installs the component claim-policy of the manifests for a provisioner, and
// waits until the claims of one of its classes get its name. remove removes it again.
func (s *Suite) NameClaims(ctx context.Context, provisioner, class string) (remove func(context.Context) error, err error) {
	content, err := s.component("claim-policy", "claimpolicy.yaml")
	if err != nil {
		return nil, err
	}
	name := Account(provisioner) + "-new-claims"
	content = bytes.ReplaceAll(content, []byte(defaultProvisioner), []byte(provisioner))
	content = bytes.ReplaceAll(content, []byte(ServiceAccount+"-new-claims"), []byte(name))
	if err := s.Apply(ctx, content); err != nil {
		return nil, err
	}
	remove = func(ctx context.Context) error {
		admission := s.Client.AdmissionregistrationV1()
		return errors.Join(admission.MutatingAdmissionPolicyBindings().Delete(ctx, name, metav1.DeleteOptions{}),
			admission.MutatingAdmissionPolicies().Delete(ctx, name, metav1.DeleteOptions{}))
	}
	return remove, Eventually(ctx, func() (string, error) {
		claim, err := s.Client.CoreV1().PersistentVolumeClaims("default").Create(ctx, Claim("default", "tried", class, "1Gi", nil), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil || len(claim.Annotations) > 0 {
			return "", err
		}
		return "claims do not get the provisioner's name yet", nil
	})
}

// component reads a file of a component of the manifests.
func (s *Suite) component(name, file string) ([]byte, error) {
	return os.ReadFile(filepath.Join(s.root, "deploy", "components", name, file))
}

// componentRoles returns the roles that the component csi gives the program: for the
// cluster, and for its own namespace.
func (s *Suite) componentRoles() (*rbacv1.ClusterRole, *rbacv1.Role, error) {
	content, err := s.component("csi", "csi.yaml")
	if err != nil {
		return nil, nil, err
	}
	var cluster *rbacv1.ClusterRole
	var own *rbacv1.Role
	for _, document := range bytes.Split(content, []byte("\n---\n")) {
		var role rbacv1.Role
		if err := yaml.Unmarshal(document, &role); err != nil {
			return nil, nil, err
		}
		switch {
		case role.Kind == "ClusterRole":
			cluster = &rbacv1.ClusterRole{Rules: role.Rules}
		case role.Kind == "Role" && role.Name == ServiceAccount+"-csi":
			own = &role
		}
	}
	if cluster == nil || own == nil {
		return nil, nil, errors.New("the component csi lacks a ClusterRole or a Role")
	}
	return cluster, own, nil
}

// patchPolicies changes the admission policies of an account as a component does.
func (s *Suite) patchPolicies(ctx context.Context, account, component string) error {
	content, err := s.component(component, "kustomization.yaml")
	if err != nil {
		return err
	}
	var kustomization struct {
		Patches []struct {
			Target struct{ Kind, Name string }
			Patch  string
		}
	}
	if err := yaml.Unmarshal(content, &kustomization); err != nil {
		return err
	}
	for _, patch := range kustomization.Patches {
		if patch.Target.Kind != "ValidatingAdmissionPolicy" {
			continue
		}
		operations, err := yaml.YAMLToJSON([]byte(patch.Patch))
		if err != nil {
			return err
		}
		name := account + strings.TrimPrefix(patch.Target.Name, ServiceAccount)
		if _, err := s.Client.AdmissionregistrationV1().ValidatingAdmissionPolicies().Patch(ctx, name, types.JSONPatchType, operations, metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("patch of %s: %w", patch.Target.Name, err)
		}
	}
	return nil
}

// TrustParameters gives an installation's account what the component
// csi-trust-parameters of the manifests gives it.
func (s *Suite) TrustParameters(ctx context.Context, provisioner string) error {
	account := Account(provisioner)
	if err := s.grant(ctx, account, account+"-csi-trust-parameters", []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"persistentvolumeclaims"}, Verbs: []string{"create", "delete"}},
		{APIGroups: []string{"snapshot.storage.k8s.io"}, Resources: []string{"volumesnapshots"}, Verbs: []string{"create", "delete"}},
	}); err != nil {
		return err
	}
	return s.patchPolicies(ctx, account, "csi-trust-parameters")
}
