package integration

import (
	"context"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// applyWorld is a ConfigMap, and two replicas whose files the test updates as kubelets do.
type applyWorld struct {
	*statusWorld
	configMap string
}

func newApplyWorld(t *testing.T, name string) *applyWorld {
	t.Helper()
	address := proxyableAddress(t)
	w := &applyWorld{&statusWorld{world: newWorld(t, name, cindersim.Options{})}, name + "-policy"}
	for i := range 2 {
		w.admit(i, w.startPod(w.podName(i), address))
	}
	_, err := suite.Client.CoreV1().ConfigMaps(harness.Namespace).Create(w.ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: w.configMap}, Data: map[string]string{"policy.yaml": w.policy, "other": "stays"},
	}, metav1.CreateOptions{})
	w.must(err)
	w.kubeconfig = w.applier()
	return w
}

// admit declares a replica's pod.
func (w *applyWorld) admit(i int, replica *harness.Replica) {
	w.Helper()
	w.replicas = append(w.replicas, replica)
	_, text, err := net.SplitHostPort(replica.Address)
	w.must(err)
	port, err := strconv.Atoi(text)
	w.must(err)
	w.declare(w.podName(i), int32(port))
}

// applier returns a kubeconfig with the rights that the command's help names, and no others.
func (w *applyWorld) applier() string {
	w.Helper()
	namespace := w.name + "-stranger"
	_, err := suite.Client.CoreV1().ServiceAccounts(namespace).Create(w.ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "applier"}}, metav1.CreateOptions{})
	w.must(err)
	subjects := []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: namespace, Name: "applier"}}
	name := metav1.ObjectMeta{Name: w.name + "-applier"}
	_, err = suite.Client.RbacV1().Roles(harness.Namespace).Create(w.ctx, &rbacv1.Role{ObjectMeta: name, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{w.configMap, w.configMap + "-teams", "absent"}, Verbs: []string{"get", "patch"}},
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list"}},
		{APIGroups: []string{""}, Resources: []string{"pods/proxy"}, Verbs: []string{"get"}},
	}}, metav1.CreateOptions{})
	w.must(err)
	_, err = suite.Client.RbacV1().RoleBindings(harness.Namespace).Create(w.ctx, &rbacv1.RoleBinding{
		ObjectMeta: name, Subjects: subjects, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name.Name},
	}, metav1.CreateOptions{})
	w.must(err)
	// Those of policy check, docs/policy-commands.md.
	_, err = suite.Client.RbacV1().ClusterRoles().Create(w.ctx, &rbacv1.ClusterRole{ObjectMeta: name, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"persistentvolumeclaims", "persistentvolumes", "namespaces"}, Verbs: []string{"get", "list"}},
		{APIGroups: []string{"storage.k8s.io"}, Resources: []string{"storageclasses"}, Verbs: []string{"list"}},
	}}, metav1.CreateOptions{})
	w.must(err)
	_, err = suite.Client.RbacV1().ClusterRoleBindings().Create(w.ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: name, Subjects: subjects, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name.Name},
	}, metav1.CreateOptions{})
	w.must(err)
	kubeconfig, err := suite.ControlPlane().ServiceAccountKubeconfig(w.ctx, namespace, "applier")
	w.must(err)
	return kubeconfig
}

// declare replaces a pod by one that has the labels of a replica, and names its port: of a
// pod that exists, the port cannot be changed.
func (w *applyWorld) declare(name string, port int32) {
	w.Helper()
	pods := suite.Client.CoreV1().Pods(harness.Namespace)
	before, err := pods.Get(w.ctx, name, metav1.GetOptions{})
	w.must(err)
	now := int64(0)
	w.must(pods.Delete(w.ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &now}))
	next := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"applied": w.name}}, Spec: before.Spec}
	next.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: "http", ContainerPort: port}}
	next, err = pods.Create(w.ctx, next, metav1.CreateOptions{})
	w.must(err)
	next.Status = before.Status
	_, err = pods.UpdateStatus(w.ctx, next, metav1.UpdateOptions{})
	w.must(err)
}

// held returns what the ConfigMap has.
func (w *applyWorld) held() map[string]string {
	w.Helper()
	found, err := suite.Client.CoreV1().ConfigMaps(harness.Namespace).Get(w.ctx, w.configMap, metav1.GetOptions{})
	w.must(err)
	return found.Data
}

// kubelet updates the files of the replicas until the test ends or stop is called.
func (w *applyWorld) kubelet() (stop func()) {
	ctx, cancel := context.WithCancel(w.ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		last := w.policy
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(200 * time.Millisecond):
			}
			found, err := suite.Client.CoreV1().ConfigMaps(harness.Namespace).Get(ctx, w.configMap, metav1.GetOptions{})
			if err != nil || found.Data["policy.yaml"] == last {
				continue
			}
			last = found.Data["policy.yaml"]
			for _, replica := range w.replicas {
				if err := replica.WritePolicy(last); err != nil {
					w.Error(err)
				}
			}
		}
	}()
	return func() { cancel(); <-done }
}

// arguments are those of policy apply for a policy.
func (w *applyWorld) arguments(policy string, more ...string) []string {
	w.Helper()
	file := filepath.Join(w.TempDir(), "policy.yaml")
	w.must(os.WriteFile(file, []byte(policy), 0o600))
	return append([]string{"policy", "apply", file, "--kubeconfig", w.kubeconfig, "--provisioner-name", w.provisioner, "--namespace", harness.Namespace,
		"--configmap", w.configMap, "--selector", "applied=" + w.name}, more...)
}

func (w *applyWorld) apply(policy string, wantCode int, more ...string) string {
	w.Helper()
	code, output, err := suite.Run(w.ctx, w.arguments(policy, more...)...)
	w.must(err)
	if code != wantCode {
		w.Errorf("exit code %d, want %d:\n%s", code, wantCode, output)
	}
	return output
}

// TestPolicyApply writes the ConfigMap, and waits for two replicas through the API server's
// proxy.
func TestPolicyApply(t *testing.T) {
	t.Parallel()
	w := newApplyWorld(t, "apply")
	stop := w.kubelet()
	defer stop()
	changed := w.change("    volumeSize: {max: 10Gi}\n", "    volumeSize: {max: 20Gi}\n")

	text := w.apply(changed, 0, "--dry-run")
	w.contains("a dry run", text, "tenant tenant-b: volumeSize.max 10Gi -> 20Gi", "stays as it is (--dry-run)")
	if w.held()["policy.yaml"] != w.policy {
		t.Error("a dry run has written")
	}
	text = w.apply(changed, 0)
	w.contains("apply", text, "Gained:\n  tenant tenant-b: volumeSize.max 10Gi -> 20Gi\n", "replica apply-0 runs revision", "replica apply-1 runs revision", "every replica (2) runs revision")
	if held := w.held(); held["policy.yaml"] != changed || held["other"] != "stays" {
		t.Errorf("the ConfigMap holds %q", held)
	}
	text = w.apply(changed, 0)
	w.contains("the same again", text, "nothing changes", "already", "every replica (2) runs revision")

	text = w.apply(strings.Replace(changed, "clusterID: cluster-apply", "clusterID: another", 1), 1)
	w.contains("what replicas refuse", text, "~ clusterID: cluster-apply -> another", `replica apply-0 refuses revision`, `changing it from "cluster-apply" to "another"`, "2 of 2 replicas refused revision")
	text = w.apply(changed, 0)
	w.contains("the way back", text, "every replica (2) runs revision")

	text = w.apply(strings.Replace(changed, "backends: [gold]", "backends: [golt]", 1), 1)
	w.contains("a mistake", text, `unknown backend "golt"`, "has 1 error")
	text = w.apply(changed, 2, "--configmap", "absent")
	w.contains("another name", text, "there is no ConfigMap "+harness.Namespace+"/absent")

	_, err := suite.Client.CoreV1().ConfigMaps(harness.Namespace).Patch(w.ctx, w.configMap, types.MergePatchType, []byte(`{"immutable":true}`), metav1.PatchOptions{})
	w.must(err)
	text = w.apply(w.policy, 1, "--dry-run")
	w.contains("a dry run of what cannot be written", text, "is not written: ", "immutable")
}

// TestPolicyApplyIsToldOfOthersAndMayBeKilled: nothing is overwritten unseen, and a killed
// command leaves either policy whole.
func TestPolicyApplyIsToldOfOthersAndMayBeKilled(t *testing.T) {
	t.Parallel()
	w := newApplyWorld(t, "applykill")
	changed := w.change("    volumeSize: {max: 10Gi}\n", "    volumeSize: {max: 20Gi}\n")

	// No kubelet runs, so no replica gets the policy.
	text := w.apply(changed, 1, "--timeout", "3s")
	w.contains("no kubelet", text, "not finished after 3s", "replica applykill-0 runs revision", "replica applykill-1 runs revision", "run the same command again to wait on")

	theirs := w.change("    volumeSize: {max: 10Gi}\n", "    volumeSize: {max: 5Gi}\n")
	// More than once, because on a busy machine the command may begin after the first time.
	ended := make(chan struct{})
	others := time.NewTicker(2 * time.Second)
	defer others.Stop()
	go func() {
		for {
			select {
			case <-ended:
				return
			case <-others.C:
			}
			_, err := suite.Client.CoreV1().ConfigMaps(harness.Namespace).Patch(w.ctx, w.configMap, types.MergePatchType,
				[]byte(`{"data":{"policy.yaml":`+strconv.Quote(theirs)+`}}`), metav1.PatchOptions{})
			if err != nil {
				w.Error(err)
				return
			}
		}
	}()
	text = w.apply(changed, 1, "--timeout", "1m")
	close(ended)
	w.contains("somebody else", text, "somebody has replaced the policy in ConfigMap")

	for _, after := range []time.Duration{20, 60, 120, 240, 480, 960} {
		command := exec.Command(suite.Program, w.arguments(changed)...)
		w.must(command.Start())
		time.Sleep(after * time.Millisecond)
		w.must(command.Process.Signal(syscall.SIGKILL))
		_ = command.Wait()
		if held := w.held(); held["policy.yaml"] != theirs && held["policy.yaml"] != changed || held["other"] != "stays" {
			t.Fatalf("killed after %d ms, it left %q", after, held)
		}
	}
	stop := w.kubelet()
	defer stop()
	w.contains("the same again", w.apply(changed, 0), "every replica (2) runs revision")
}

// TestPolicyApplyOfSeveralConfigMaps: one has the backends, another the tenants, and replicas
// mount both into the directory of their --policy.
func TestPolicyApplyOfSeveralConfigMaps(t *testing.T) {
	t.Parallel()
	address := proxyableAddress(t)
	w := &applyWorld{&statusWorld{world: newWorld(t, "applydir", cindersim.Options{})}, "applydir-policy"}
	base, tenants, _ := strings.Cut(w.policy, "tenants:\n")
	header, _, _ := strings.Cut(base, "clusterID:")
	teams := header + "tenants:\n" + tenants
	configMaps := suite.Client.CoreV1().ConfigMaps(harness.Namespace)
	all := map[string]string{"base.yaml": base, "teams.yaml": teams}
	for name, data := range map[string]map[string]string{w.configMap: {"base.yaml": base}, w.configMap + "-teams": {"teams.yaml": teams}} {
		_, err := configMaps.Create(w.ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: data}, metav1.CreateOptions{})
		w.must(err)
	}
	for i := range 2 {
		replica, err := suite.StartReplica(w.ctx, harness.ReplicaOptions{
			PolicyFiles: all, Clouds: w.clouds, Provisioner: w.provisioner, Arguments: []string{"--listen", address + ":0"}, Environment: []string{"POD_NAME=" + w.podName(i)},
		})
		w.must(err)
		w.Cleanup(replica.Kill)
		w.createPod(w.podName(i), address)
		w.admit(i, replica)
	}
	w.kubeconfig = w.applier()
	// update does what the kubelets do, once the command has written.
	update := func(written string) {
		for {
			found := map[string]string{}
			for _, name := range []string{w.configMap, w.configMap + "-teams"} {
				held, err := configMaps.Get(w.ctx, name, metav1.GetOptions{})
				if err != nil {
					w.Error(err)
					return
				}
				maps.Copy(found, held.Data)
			}
			if strings.Contains(found["teams.yaml"]+found["more.yaml"], written) {
				for _, replica := range w.replicas {
					if err := replica.WritePolicyFiles(found); err != nil {
						w.Error(err)
					}
				}
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
	apply := func(wantCode int, path, configMap string, more ...string) string {
		code, output, err := suite.Run(w.ctx, append([]string{"policy", "apply", path, "--kubeconfig", w.kubeconfig, "--provisioner-name", w.provisioner, "--namespace", harness.Namespace,
			"--configmap", configMap, "--selector", "applied=" + w.name}, more...)...)
		w.must(err)
		if code != wantCode {
			w.Errorf("exit code %d, want %d:\n%s", code, wantCode, output)
		}
		return output
	}
	file := func(dir, name, text string) string {
		path := filepath.Join(dir, name)
		w.must(os.WriteFile(path, []byte(text), 0o600))
		return path
	}

	changed := file(t.TempDir(), "teams.yaml", strings.Replace(teams, "max: 10Gi", "max: 20Gi", 1))
	go update("max: 20Gi")
	text := apply(0, changed, w.configMap+"-teams", "--beside", w.configMap)
	w.contains("a team's file", text, "Gained:\n  tenant tenant-b: volumeSize.max 10Gi -> 20Gi\n", "replica applydir-0 runs revision", "every replica (2) runs revision")

	dir := t.TempDir()
	file(dir, "teams.yaml", strings.Replace(teams, "max: 10Gi", "max: 20Gi", 1))
	file(dir, "more.yaml", header+"tenants: [{name: tenant-c, namespaces: [c], classes: [{storageClasses: [c], backends: [gold]}]}]\n")
	go update("tenant-c")
	text = apply(0, dir, w.configMap+"-teams", "--beside", w.configMap)
	w.contains("a directory", text, "Gained:\n  tenant tenant-c is new", "every replica (2) runs revision")

	w.must(os.Remove(filepath.Join(dir, "more.yaml")))
	text = apply(0, dir, w.configMap+"-teams", "--beside", w.configMap, "--dry-run")
	w.contains("a file less", text, "Lost:\n  tenant tenant-c goes", "the key more.yaml goes", "stays as it is (--dry-run)")

	text = apply(1, file(dir, "teams.yaml", strings.Replace(teams, "name: tenant-b", "name: tenant-a", 1)), w.configMap+"-teams", "--beside", w.configMap)
	w.contains("a mistake", text, `tenants[0] (`+dir+`/teams.yaml:`, `is already called "tenant-a"`)
	text = apply(1, file(t.TempDir(), "policy.yaml", w.policy), w.configMap)
	w.contains("one file", text, "reads all keys of ConfigMap "+harness.Namespace+"/applydir-policy, not only policy.yaml; give a directory")
}
