package integration

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/provisioner/statusreport"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// statusWorld is three replicas that the API server's proxy can reach: for each
// there is a Pod object, which no kubelet runs, with an address of this machine.
type statusWorld struct {
	*world
	replicas []*harness.Replica
	// kubeconfig is an operator's, with the rights of deploy/examples/status-reader.yaml.
	kubeconfig string
	// plugin is the program under the name of the kubectl plugin.
	plugin string
}

func newStatusWorld(t *testing.T, name string) *statusWorld {
	t.Helper()
	address := proxyableAddress(t)
	w := &statusWorld{world: newWorld(t, name, cindersim.Options{})}
	w.policy = strings.Replace(w.policy, "    namespaces: [\""+name+"-b\"]", "    namespaces: [\""+name+"-b\"]\n    quota: {volumes: 2, gigabytes: 5}", 1)
	w.policy = strings.Replace(w.policy, "clusterID: cluster-"+name+"\n", "clusterID: cluster-"+name+"\naudit: {interval: 500ms, grace: 1m}\n", 1)
	for i := range 3 {
		w.replicas = append(w.replicas, w.startPod(w.podName(i), address))
	}
	w.kubeconfig, w.plugin = w.operator(), w.linkPlugin()
	return w
}

// startPod starts a replica, and creates the Pod object by which the API server
// reaches it.
func (w *statusWorld) startPod(name, address string, arguments ...string) *harness.Replica {
	w.Helper()
	replica, err := suite.StartReplica(w.ctx, harness.ReplicaOptions{
		Policy: w.policy, Clouds: w.clouds, Provisioner: w.provisioner,
		Arguments: append([]string{"--listen", address + ":0"}, arguments...), Environment: []string{"POD_NAME=" + name},
	})
	w.must(err)
	w.Cleanup(func() {
		replica.Kill()
		if w.Failed() {
			w.Logf("a replica said:\n%s", replica.Log())
		}
	})
	w.createPod(name, address)
	return replica
}

func (w *statusWorld) linkPlugin() string {
	w.Helper()
	plugin := filepath.Join(w.TempDir(), "kubectl-cinder")
	w.must(os.Symlink(suite.Program, plugin))
	return plugin
}

// proxyableAddress returns an address of this machine to which the API server
// forwards: it refuses loopback and link-local addresses.
func proxyableAddress(t *testing.T) string {
	t.Helper()
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range addresses {
		if network, ok := address.(*net.IPNet); ok && network.IP.To4() != nil && network.IP.IsGlobalUnicast() {
			return network.IP.String()
		}
	}
	t.Skip("this machine has only loopback and link-local addresses, to which the API server does not forward")
	return ""
}

func (w *statusWorld) podName(i int) string { return fmt.Sprintf("%s-%d", w.name, i) }

func (w *statusWorld) createPod(name, address string) {
	w.Helper()
	no, yes := false, true
	pods := suite.Client.CoreV1().Pods(harness.Namespace)
	pod, err := pods.Create(w.ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			ServiceAccountName: harness.ServiceAccount,
			// The test plays the kubelet, and the scheduler would write to the status, too.
			SchedulerName:   "none",
			SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: &yes, SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
			Containers: []corev1.Container{{Name: "standalone-cinder", Image: "none", SecurityContext: &corev1.SecurityContext{
				AllowPrivilegeEscalation: &no, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			}}},
		},
	}, metav1.CreateOptions{})
	w.must(err)
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: address, PodIPs: []corev1.PodIP{{IP: address}}}
	_, err = pods.UpdateStatus(w.ctx, pod, metav1.UpdateOptions{})
	w.must(err)
}

// operator returns a kubeconfig with the documented rights, and no others.
func (w *statusWorld) operator() string {
	w.Helper()
	w.must(suite.ApplyFile(w.ctx, filepath.Join("deploy", "examples", "status-reader.yaml")))
	namespace := w.name + "-stranger"
	_, err := suite.Client.CoreV1().ServiceAccounts(namespace).Create(w.ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "operator"}}, metav1.CreateOptions{})
	w.must(err)
	subjects := []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: namespace, Name: "operator"}}
	_, err = suite.Client.RbacV1().RoleBindings(harness.Namespace).Create(w.ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: w.name + "-operator"}, Subjects: subjects,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "standalone-cinder-status"},
	}, metav1.CreateOptions{})
	w.must(err)
	for _, role := range []string{"standalone-cinder-claims", "standalone-cinder-classes", "standalone-cinder-volumes"} {
		_, err := suite.Client.RbacV1().ClusterRoleBindings().Create(w.ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: w.name + "-" + role}, Subjects: subjects,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		}, metav1.CreateOptions{})
		w.must(err)
	}
	kubeconfig, err := suite.ControlPlane().ServiceAccountKubeconfig(w.ctx, namespace, "operator")
	w.must(err)
	return kubeconfig
}

// ask runs a command as the operator, and returns what it printed to standard
// output and, in errors, to standard error.
func (w *statusWorld) ask(program string, replica *harness.Replica, wantCode int, arguments ...string) string {
	w.Helper()
	_, port, err := net.SplitHostPort(replica.Address)
	w.must(err)
	command := exec.CommandContext(w.ctx, program, append([]string{arguments[0], "--kubeconfig", w.kubeconfig, "--provisioner-name", w.provisioner, "--port", port}, arguments[1:]...)...)
	var stdout, stderr strings.Builder
	command.Stdout, command.Stderr = &stdout, &stderr
	_ = command.Run()
	if code := command.ProcessState.ExitCode(); code != wantCode {
		w.Errorf("%s exits with %d, want %d:\n%s%s", strings.Join(arguments, " "), code, wantCode, stdout.String(), stderr.String())
	}
	return stdout.String() + stderr.String()
}

func (w *statusWorld) contains(what, text string, wanted ...string) {
	w.Helper()
	for _, one := range wanted {
		if !strings.Contains(text, one) {
			w.Errorf("%s lacks %q:\n%s", what, one, text)
		}
	}
}

// TestStatusCommandsAskTheLeader runs the commands with the documented rights
// against three replicas, through the API server's proxy.
//
//tier:outage
func TestStatusCommandsAskTheLeader(t *testing.T) {
	t.Parallel()
	w := newStatusWorld(t, "stat")
	leader := w.leader(w.replicas)
	var follower *harness.Replica
	followerPod, leaderPod := "", ""
	for i, replica := range w.replicas {
		if replica == leader {
			leaderPod = w.podName(i)
		} else {
			follower, followerPod = replica, w.podName(i)
		}
	}

	// Two claims of tenant-b use its quota up, and the third exceeds it; a claim
	// of a stranger has no tenant; one waits for its pod.
	w.claim("b", "one", "lab", "2Gi")
	w.claim("b", "two", "lab", "1Gi")
	_, err := suite.WaitBound(w.ctx, "stat-b", 2)
	w.must(err)
	w.claim("b", "three", "lab", "1Gi")
	_, err = suite.WaitEvent(w.ctx, "stat-b", "three", "QuotaExceeded", "3 of 2 volumes")
	w.must(err)
	w.claim("stranger", "data", "lab", "1Gi")
	_, err = suite.WaitEvent(w.ctx, "stat-stranger", "data", "NoMatchingTenant", "")
	w.must(err)
	w.must(suite.CreateClass(w.ctx, "stat-late", w.provisioner, func(class *storagev1.StorageClass) {
		mode := storagev1.VolumeBindingWaitForFirstConsumer
		class.VolumeBindingMode = &mode
	}))
	w.claim("a", "late", "late", "1Gi")

	// The tenant has room for 2 GiB more.
	_, err = suite.Client.CoreV1().PersistentVolumeClaims("stat-b").Patch(w.ctx, "two", types.MergePatchType, []byte(`{"spec": {"resources": {"requests": {"storage": "9Gi"}}}}`), metav1.PatchOptions{})
	w.must(err)
	_, err = suite.WaitEvent(w.ctx, "stat-b", "two", "QuotaExceeded", "")
	w.must(err)
	w.metricNamed(leader, "standalone_cinder_audit_timestamp_seconds")

	text := w.ask(suite.Program, leader, 0, "status")
	w.contains("status", text, "EXPANSIONS (1)", "stat-b/two", "11 of 5 GiB", "leader   "+leaderPod+"_", "stat-b/three", "QuotaExceeded", "stat-stranger/data", "NoMatchingTenant", "2 of 2", "3 of 5", "lab: 2 (3 GiB)")

	var report statusreport.Report
	w.must(json.Unmarshal([]byte(w.ask(suite.Program, leader, 0, "status", "--output", "json")), &report))
	if report.Claims == nil || report.Claims.Total != 2 || len(report.Claims.Pending) != 2 || !report.Replica.Leads || report.Audit == nil {
		t.Errorf("the leader's report: %+v", report)
	}
	for _, backend := range report.Backends {
		if backend.State != statusreport.Answers {
			t.Errorf("backend %+v", backend)
		}
	}

	text = w.ask(w.plugin, leader, 0, "quota", "stat-b")
	w.contains("quota", text, "tenant-b", "2 of 2", "3 of 5", "stat-lab")
	text = w.ask(w.plugin, leader, 1, "quota", "stat-stranger")
	w.contains("quota of a stranger", text, "belongs to no tenant", "kubectl cinder: namespace stat-stranger has no tenant")

	text = w.ask(w.plugin, leader, 0, "why", "three", "-n", "stat-b")
	w.contains("why", text, "denied since", "QuotaExceeded: tenant tenant-b would use 3 of 2 volumes", "warnings, newest first:")
	text = w.ask(w.plugin, leader, 0, "why", "pvc/data", "-n", "stat-stranger")
	w.contains("why", text, "NoMatchingTenant: namespace stat-stranger belongs to no tenant")
	text = w.ask(w.plugin, leader, 0, "why", "one", "-n", "stat-b")
	w.contains("why of a bound claim", text, "bound to PersistentVolume pvc-")
	w.contains("why of a bound claim", text, "no pod uses it")
	claim, err := suite.Client.CoreV1().PersistentVolumeClaims("stat-b").Get(w.ctx, "one", metav1.GetOptions{})
	w.must(err)
	text = w.ask(w.plugin, leader, 0, "why", "pv/"+claim.Spec.VolumeName)
	w.contains("why of a volume", text, "PersistentVolume "+claim.Spec.VolumeName+": Bound", "of tenant tenant-b", "claim stat-b/one has it")
	text = w.ask(w.plugin, leader, 2, "why", "vs/none", "-n", "stat-b")
	// Another test may have installed the CRDs.
	w.contains("why of no snapshot", text, "snapshot stat-b/none: ")
	text = w.ask(w.plugin, leader, 2, "why", "node/none")
	w.contains("why of no node", text, `nodes "none" not found`)
	text = w.ask(w.plugin, leader, 0, "why", "late", "-n", "stat-a")
	w.contains("why of a claim that waits for its pod", text, "WaitForFirstConsumer")
	text = w.ask(w.plugin, leader, 2, "why", "none", "-n", "stat-b")
	w.contains("why of no claim", text, `"none" not found`)

	// A follower says who knows the rest.
	text = w.ask(suite.Program, follower, 0, "status", "--pod", followerPod)
	w.contains("status of a follower", text, "ask "+leaderPod+"_", "– of 2")
	text = w.ask(w.plugin, follower, 0, "quota", "stat-b", "--pod", followerPod)
	w.contains("quota by a follower", text, "ask "+leaderPod+"_", "– of 2")
	text = w.ask(w.plugin, follower, 0, "why", "three", "-n", "stat-b", "--pod", followerPod)
	w.contains("why by a follower", text, "ask "+leaderPod+"_", "its last warning says: QuotaExceeded")
	text = w.ask(suite.Program, follower, 0, "status", "--url", "http://"+follower.Address)
	w.contains("status by address", text, "ask "+leaderPod+"_")

	// What cannot be asked is reported, with the reason.
	text = w.ask(suite.Program, leader, 2, "status", "--namespace", "stat-a")
	w.contains("status without the right", text, "cannot read Lease stat-a/test.example-stat")
	text = w.ask(suite.Program, leader, 2, "status", "--pod", "stat-9")
	w.contains("status of no pod", text, "does not exist, or serves no status at port", "give --pod, --port or --url", `"stat-9" not found`)
	text = w.ask(suite.Program, leader, 2, "status", "--port", "1")
	w.contains("status at a wrong port", text, "at port 1;", "connection refused")
	text = w.ask(w.plugin, leader, 0, "why", "three", "-n", "stat-b", "--provisioner-namespace", "stat-a")
	w.contains("why without the right to ask the program", text, "could not ask the program: cannot read Lease stat-a/", "its last warning says: QuotaExceeded")

	// A developer has rights in one namespace only.
	_, err = suite.Client.CoreV1().ServiceAccounts("stat-b").Create(w.ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "developer"}}, metav1.CreateOptions{})
	w.must(err)
	_, err = suite.Client.RbacV1().RoleBindings("stat-b").Create(w.ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "developer"}, Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "stat-b", Name: "developer"}},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "standalone-cinder-claims"},
	}, metav1.CreateOptions{})
	w.must(err)
	w.kubeconfig, err = suite.ControlPlane().ServiceAccountKubeconfig(w.ctx, "stat-b", "developer")
	w.must(err)
	text = w.ask(w.plugin, leader, 0, "why", "three", "-n", "stat-b")
	w.contains("why for a developer", text, "could not ask the program: cannot read Lease", "is forbidden", "its last warning says: QuotaExceeded")
	text = w.ask(w.plugin, leader, 0, "why", "one", "-n", "stat-b")
	w.contains("why of a bound claim for a developer", text, "bound to PersistentVolume pvc-", "no pod uses it")
	text = w.ask(w.plugin, leader, 2, "why", "late", "-n", "stat-a")
	w.contains("why in a namespace of others", text, "claim stat-a/late: ", "is forbidden")
	text = w.ask(w.plugin, leader, 2, "why", "node/worker-1")
	w.contains("why of a node for a developer", text, "node worker-1: ", "is forbidden")
	text = w.ask(w.plugin, leader, 2, "quota", "stat-b")
	w.contains("quota for a developer", text, "cannot read Lease", "is forbidden")

	w.must(suite.DeleteClaims(w.ctx, "stat-a"))
	w.must(suite.DeleteClaims(w.ctx, "stat-b"))
	w.must(suite.DeleteClaims(w.ctx, "stat-stranger"))
	w.noResidue()
}
