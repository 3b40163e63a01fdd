package integration

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

const growNamespace = "standalone-cinder-grow"

// growKubelet plays the kubelet for the pods of kubectl cinder grow.
type growKubelet struct {
	node string

	mu sync.Mutex
	// said is the termination message of the next pods; empty lets them wait.
	said string
	// ran are the arguments of the pods that were answered.
	ran []string
}

func (k *growKubelet) answer(said string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.said = said
}

func (k *growKubelet) run(ctx context.Context) {
	pods := suite.Client.CoreV1().Pods(growNamespace)
	for ; ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
		list, err := pods.List(ctx, metav1.ListOptions{})
		if err != nil {
			continue
		}
		k.mu.Lock()
		for i := range list.Items {
			pod := &list.Items[i]
			switch {
			case pod.Spec.NodeName != k.node:
			case pod.DeletionTimestamp != nil:
				_ = pods.Delete(ctx, pod.Name, *metav1.NewDeleteOptions(0))
			case k.said != "" && pod.Status.Phase == corev1.PodPending:
				pod.Status.Phase = corev1.PodSucceeded
				if strings.Contains(k.said, "error") {
					pod.Status.Phase = corev1.PodFailed
				}
				pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "grow", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: k.said}}}}
				if _, err := pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err == nil {
					k.ran = append(k.ran, pod.Spec.NodeName+" "+strings.Join(pod.Spec.Containers[0].Args, " "))
				}
			}
		}
		k.mu.Unlock()
	}
}

// mayGrow installs the component node-grow, and returns the kubeconfig of an account with
// its roles, and no others.
func (w *world) mayGrow() string {
	w.Helper()
	w.must(suite.ApplyFile(w.ctx, filepath.Join("deploy", "components", "node-grow", "nodegrow.yaml")))
	namespace := w.name + "-stranger"
	_, err := suite.Client.CoreV1().ServiceAccounts(namespace).Create(w.ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "operator"}}, metav1.CreateOptions{})
	w.must(err)
	subjects := []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: namespace, Name: "operator"}}
	_, err = suite.Client.RbacV1().RoleBindings(growNamespace).Create(w.ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: w.name}, Subjects: subjects, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: growNamespace},
	}, metav1.CreateOptions{})
	w.must(err)
	_, err = suite.Client.RbacV1().ClusterRoleBindings().Create(w.ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: w.name}, Subjects: subjects, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: growNamespace + "-volumes"},
	}, metav1.CreateOptions{})
	w.must(err)
	_, err = suite.Client.RbacV1().RoleBindings(w.name+"-a").Create(w.ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: w.name}, Subjects: subjects, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: growNamespace},
	}, metav1.CreateOptions{})
	w.must(err)
	kubeconfig, err := suite.ControlPlane().ServiceAccountKubeconfig(w.ctx, namespace, "operator")
	w.must(err)
	return kubeconfig
}

// TestGrowOnTheNode: the command works with the rights of its roles alone, and deletes its
// pod; the test plays the node.
func TestGrowOnTheNode(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "grow", cindersim.Options{})
	w.policy = strings.Replace(w.policy, "volumeSize: {max: 10Gi}", "volumeSize: {max: 20Gi}", 1)
	w.start()
	kubeconfig := w.mayGrow()
	node := growKubelet{node: "grow-1"}
	go node.run(w.ctx)

	files, block := w.served("a", "files", "gold", "10Gi", nil), w.served("a", "block", "gold", "10Gi", asBlock)
	command := func() (*exec.Cmd, *strings.Builder) {
		c, output := exec.CommandContext(w.ctx, suite.Program, "grow", files.Name, "-n", files.Namespace, "--kubeconfig", kubeconfig), &strings.Builder{}
		c.Args[0], c.Stdout, c.Stderr = "kubectl-cinder", output, output
		return c, output
	}
	ends := func(c *exec.Cmd, output *strings.Builder, code int, texts ...string) {
		t.Helper()
		if c.ProcessState == nil {
			_ = c.Wait()
		}
		if is := c.ProcessState.ExitCode(); is != code {
			t.Errorf("exit code %d, want %d:\n%s", is, code, output)
		}
		for _, text := range texts {
			if !strings.Contains(output.String(), text) {
				t.Errorf("the output lacks %q:\n%s", text, output)
			}
		}
		left, err := suite.Client.CoreV1().Pods(growNamespace).List(w.ctx, metav1.ListOptions{})
		w.must(err)
		for _, pod := range left.Items {
			if pod.Spec.NodeName == node.node {
				t.Errorf("pod %s is left", pod.Name)
			}
		}
	}
	grow := func(code int, texts ...string) {
		t.Helper()
		c, output := command()
		_ = c.Run()
		ends(c, output, code, texts...)
	}

	grow(1, "claim grow-a/files: it already has the 10Gi of its volume")
	w.ask(files, "20Gi")
	w.becomes(files, pending20)
	grow(1, "no pod on a node uses it, so its filesystem is not mounted; start a pod that uses it")
	app, err := suite.Client.CoreV1().Pods(files.Namespace).Create(w.ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "app"},
		Spec: corev1.PodSpec{
			NodeName:   "grow-1",
			Containers: []corev1.Container{{Name: "app", Image: "none"}},
			Volumes:    []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: files.Name}}}},
		},
	}, metav1.CreateOptions{})
	w.must(err)
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		// The API server must first know the PodTemplate as a parameter of the policy.
		c, output := command()
		node.answer(`{"error": "PersistentVolume pvc-1: WrongDisk: nothing was changed"}`)
		_ = c.Run()
		if strings.Contains(output.String(), "is forbidden") {
			return output.String(), nil
		}
		ends(c, output, 1, "node grow-1: PersistentVolume pvc-1: WrongDisk: nothing was changed")
		return "", nil
	}))
	node.answer(`{"device": "sdb", "filesystem": "ext4", "bytes": 10737418240}`)
	grow(1, "the device has 10737418240 bytes, and the PersistentVolume 21474836480")
	w.becomes(files, pending20)

	// Two at once, of which the first is interrupted.
	node.answer("")
	c, output := command()
	w.must(c.Start())
	name := "grow-" + string(files.UID)
	var pod *corev1.Pod
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		pod, err = suite.Client.CoreV1().Pods(growNamespace).Get(w.ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "there is no pod yet", nil
		}
		return "", err
	}))
	second, refusal := command()
	_ = second.Run()
	if code := second.ProcessState.ExitCode(); code != 1 || !strings.Contains(refusal.String(), "of another call has been working on it since") {
		t.Errorf("a second call: exit code %d, %s", code, refusal)
	}
	w.must(c.Process.Signal(syscall.SIGINT))
	ends(c, output, 1, "the pod has not ended on node grow-1")

	// What a killed call left is replaced.
	_, err = suite.Client.CoreV1().Pods(growNamespace).Create(w.ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: pod.Labels}, Spec: pod.Spec}, metav1.CreateOptions{})
	w.must(err)
	node.answer(`{"device": "dm-3", "paths": ["sdb", "sdc"], "filesystem": "ext4", "bytes": 21474836480}`)
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		now, err := suite.Client.CoreV1().Pods(growNamespace).Get(w.ctx, name, metav1.GetOptions{})
		if err == nil && now.Status.Phase != corev1.PodSucceeded {
			return "the pod is " + string(now.Status.Phase), nil
		}
		return "", err
	}))
	grow(0, "pod standalone-cinder-grow/"+name+" works on node grow-1", "grew the ext4 filesystem on dm-3 (sdb, sdc) of node grow-1 to 20Gi", "claim grow-a/files has 20Gi")
	w.becomes(files, "cinder 20, pv 20Gi, claim 20Gi")
	grow(1, "it already has the 20Gi of its volume")
	pv, err := suite.Client.CoreV1().PersistentVolumes().Get(w.ctx, files.Spec.VolumeName, metav1.GetOptions{})
	w.must(err)
	want := "grow-1 node grow --host-root=/host --kubelet-dir=/var/lib/kubelet --result-file=/dev/termination-log --persistent-volume=" + pv.Name +
		" --bytes=21474836480 --disk=" + wire.DiskAt(pv.Spec.ISCSI.IQN, int(pv.Spec.ISCSI.Lun)) + " --pod=" + string(app.UID)
	node.mu.Lock()
	if last := node.ran[len(node.ran)-1]; last != want {
		t.Errorf("the pod ran %q, want %q", last, want)
	}
	node.mu.Unlock()

	w.ask(block, "20Gi")
	w.becomes(block, "cinder 20, pv 20Gi, claim 20Gi")
	files = block
	grow(1, "it is a raw block volume, which has no filesystem")

	w.attackGrowth(kubeconfig, pod)
	w.attackClaim(kubeconfig, block)
}

// TestNativeClaimIsClonedIntoModeCSI: the command reads the UUID while a pod uses the claim,
// and clones it once no pod does; the test plays the node.
func TestNativeClaimIsClonedIntoModeCSI(t *testing.T) {
	t.Parallel()
	w := csiWorld(t, "tocsi")
	w.policy = w.change(`["tocsi-mistaken"]`, `["tocsi-mistaken", "tocsi-native"]`)
	w.must(suite.CreateClass(w.ctx, "tocsi-native", w.provisioner, nil))
	w.start()
	w.must(suite.ApplyFile(w.ctx, filepath.Join("deploy", "components", "node-grow", "nodegrow.yaml")))
	node := growKubelet{node: "tocsi-1"}
	go node.run(w.ctx)
	const uuid = "6f3d7f7c-8b0f-4b43-8d4e-3f3b9d3f6a11"
	node.answer(`{"device": "sdb", "paths": ["sdb"], "filesystem": "ext4", "uuid": "` + uuid + `", "bytes": 1073741824}`)
	claim := w.served("b", "data", "native", "1Gi", nil)
	app, err := suite.Client.CoreV1().Pods(claim.Namespace).Create(w.ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "app"},
		Spec: corev1.PodSpec{
			NodeName:   node.node,
			Containers: []corev1.Container{{Name: "app", Image: "none"}},
			Volumes:    []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name}}}},
		},
	}, metav1.CreateOptions{})
	w.must(err)

	command := func() *exec.Cmd {
		c := exec.CommandContext(w.ctx, suite.Program, "to-csi", claim.Name, "-n", claim.Namespace, "--storage-class", "tocsi-driver", "--kubeconfig", suite.ControlPlane().KubeconfigPath())
		c.Args[0] = "kubectl-cinder"
		return c
	}
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		// The API server must first know the PodTemplate as a parameter of the policy.
		c, output := command(), &strings.Builder{}
		c.Args = append(c.Args, "--timeout=10s")
		c.Stdout, c.Stderr = output, output
		if err := c.Run(); err == nil || !strings.Contains(output.String(), "waiting: pod app uses it; stop the workload") {
			return output.String(), nil
		}
		return "", nil
	}))
	w.must(suite.Client.CoreV1().Pods(claim.Namespace).Delete(w.ctx, app.Name, *metav1.NewDeleteOptions(0)))
	for range 2 {
		output, err := command().CombinedOutput()
		if err != nil || !strings.Contains(string(output), "claim tocsi-b/data-csi, made at ") || strings.Contains(string(output), "works on node") {
			t.Errorf("%v\n%s", err, output)
		}
	}
	pv, volume := w.madeFor("data-csi")
	if uuids := pv.Spec.CSI.VolumeAttributes["filesystemUUIDs"]; uuids != uuid || volume.SourceID != w.volumeOf(claim).ID {
		t.Errorf("the copy of volume %q may have the filesystems %q", volume.SourceID, uuids)
	}
}

// attackClaim tries to write something else than the confirmation on a claim.
func (w *world) attackClaim(kubeconfig string, claim *corev1.PersistentVolumeClaim) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	w.must(err)
	operator, err := kubernetes.NewForConfig(config)
	w.must(err)
	patch := func(client kubernetes.Interface, change string) error {
		_, err := client.CoreV1().PersistentVolumeClaims(claim.Namespace).Patch(w.ctx, claim.Name, types.MergePatchType, []byte(change), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	w.must(patch(operator, `{"metadata": {"annotations": {"standalone-cinder.openstack.org/filesystem-grown": "1Gi"}}}`))
	for _, change := range []string{
		`{"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "none", "uid": "none"}]}}`,
		`{"metadata": {"finalizers": null}}`,
		`{"metadata": {"labels": {"a": "b"}}}`,
		`{"metadata": {"annotations": {"a": "b"}}}`,
		`{"metadata": {"annotations": {"pv.kubernetes.io/bind-completed": null}}}`,
		`{"spec": {"resources": {"requests": {"storage": "21Gi"}}}}`,
	} {
		if err := patch(operator, change); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "may write only the annotation") {
			w.Errorf("%s: got %v, want the policy to refuse it", change, err)
		}
		w.must(patch(suite.Client, change))
	}
}

// attackGrowth tries, as one who may use the command and as an administrator, to run
// something else in its namespace.
func (w *world) attackGrowth(kubeconfig string, good *corev1.Pod) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	w.must(err)
	operator, err := kubernetes.NewForConfig(config)
	w.must(err)
	try := func(client kubernetes.Interface, change func(*corev1.Pod)) error {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "grow-attack"}, Spec: *good.Spec.DeepCopy()}
		change(pod)
		_, err := client.CoreV1().Pods(growNamespace).Create(w.ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	w.must(try(operator, func(*corev1.Pod) {}))
	// OpenShift's admission adds these.
	w.must(try(operator, func(pod *corev1.Pod) {
		pod.Annotations = map[string]string{"openshift.io/scc": "privileged", "security.openshift.io/validated-scc-subject-type": "user"}
	}))
	container := func(change func(*corev1.Container)) func(*corev1.Pod) {
		return func(pod *corev1.Pod) { change(&pod.Spec.Containers[0]) }
	}
	arguments := func(change func([]string) []string) func(*corev1.Pod) {
		return container(func(c *corev1.Container) { c.Args = change(c.Args) })
	}
	_, err = suite.Client.NodeV1().RuntimeClasses().Create(w.ctx, &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: w.name}, Handler: "other"}, metav1.CreateOptions{})
	w.must(err)
	shell := &corev1.ExecAction{Command: []string{"/host/bin/sh"}}
	yes, no, late := true, false, int64(1e6)
	restarts, most := corev1.ContainerRestartPolicyAlways, corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("500Gi")}
	for name, change := range map[string]func(*corev1.Pod){
		"another image":      container(func(c *corev1.Container) { c.Image = "busybox" }),
		"another entrypoint": container(func(c *corev1.Container) { c.Command = []string{"/host/bin/sh"} }),
		"another directory":  container(func(c *corev1.Container) { c.WorkingDir = "/host" }),
		"a variable":         container(func(c *corev1.Container) { c.Env = []corev1.EnvVar{{Name: "GODEBUG", Value: "x"}} }),
		"variables of a Secret": container(func(c *corev1.Container) {
			c.EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "x"}}}}
		}),
		"a hook": container(func(c *corev1.Container) {
			c.Lifecycle = &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{Exec: shell}}
		}),
		"a probe": container(func(c *corev1.Container) {
			c.LivenessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: shell}}
		}),
		"a startup probe": container(func(c *corev1.Container) {
			c.StartupProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: shell}}
		}),
		"the program hidden": container(func(c *corev1.Container) { c.VolumeMounts[0].MountPath = "/" }),
		"one directory":      container(func(c *corev1.Container) { c.VolumeMounts[0].SubPath = "tmp" }),
		"mounts that spread": container(func(c *corev1.Container) {
			both := corev1.MountPropagationBidirectional
			c.VolumeMounts[0].MountPropagation = &both
		}),
		"a message elsewhere":       container(func(c *corev1.Container) { c.TerminationMessagePath = "/host/etc/passwd" }),
		"more memory":               container(func(c *corev1.Container) { c.Resources.Limits = nil }),
		"the memory of other pods":  func(pod *corev1.Pod) { pod.Spec.Resources = &corev1.ResourceRequirements{Requests: most} },
		"the ports of other pods":   container(func(c *corev1.Container) { c.Ports = []corev1.ContainerPort{{ContainerPort: 443}} }),
		"restarts of the container": container(func(c *corev1.Container) { c.RestartPolicy = &restarts }),
		"restarts by a rule": container(func(c *corev1.Container) {
			never := corev1.ContainerRestartPolicyNever
			c.RestartPolicy, c.RestartPolicyRules = &never, []corev1.ContainerRestartRule{{
				Action: corev1.ContainerRestartRuleActionRestart, ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: corev1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{1}},
			}}
		}),
		"a slow end":  func(pod *corev1.Pod) { pod.Spec.TerminationGracePeriodSeconds = &late },
		"a finalizer": func(pod *corev1.Pod) { pod.Finalizers = []string{"example.org/never"} },
		"an owner": func(pod *corev1.Pod) {
			pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "n", UID: "u"}}
		},
		"no node":                    func(pod *corev1.Pod) { pod.Spec.NodeName = "" },
		"another security context":   container(func(c *corev1.Container) { c.SecurityContext.ReadOnlyRootFilesystem = &no }),
		"run":                        arguments(func([]string) []string { return []string{"run", "--policy=/host/tmp/x"} }),
		"no arguments":               arguments(func([]string) []string { return nil }),
		"only those of the template": arguments(func(a []string) []string { return a[:5] }),
		"another root":               arguments(func(a []string) []string { a[2] = "--host-root=/host/tmp/x"; return a }),
		"programs of a tenant":       arguments(func(a []string) []string { return append(a, "--tool-directories=/tmp") }),
		"another result file":        arguments(func(a []string) []string { return append(a, "--result-file=/host/etc/cron.d/x") }),
		"a flag within another":      arguments(func(a []string) []string { a[5] += " --result-file=/host/etc/cron.d/x"; return a }),
		"a flag in a second line":    arguments(func(a []string) []string { return append(a, "--pod=u1\n--tool-directories=/tmp") }),
		"two flags as one":           arguments(func(a []string) []string { return append([]string{strings.Join(a[:3], " ")}, a[3:]...) }),
		"a path for a name":          arguments(func(a []string) []string { a[5] = "--persistent-volume=../../x"; return a }),
		"a second container": func(pod *corev1.Pod) {
			pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: "x", Image: "x"})
		},
		"an init container":             func(pod *corev1.Pod) { pod.Spec.InitContainers = []corev1.Container{{Name: "x", Image: "x"}} },
		"another directory of the node": func(pod *corev1.Pod) { pod.Spec.Volumes[0].HostPath.Path = "/tmp" },
		"a further volume":              func(pod *corev1.Pod) { pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "x"}) },
		"another account":               func(pod *corev1.Pod) { pod.Spec.ServiceAccountName, pod.Spec.DeprecatedServiceAccount = "default", "" },
		"a token":                       func(pod *corev1.Pod) { pod.Spec.AutomountServiceAccountToken = &yes },
		"more time":                     func(pod *corev1.Pod) { pod.Spec.ActiveDeadlineSeconds = &late },
		"no end":                        func(pod *corev1.Pod) { pod.Spec.ActiveDeadlineSeconds = nil },
		"restarts":                      func(pod *corev1.Pod) { pod.Spec.RestartPolicy = corev1.RestartPolicyAlways },
		"the node's processes":          func(pod *corev1.Pod) { pod.Spec.HostPID = true },
		"the node's memory":             func(pod *corev1.Pod) { pod.Spec.HostIPC = true },
		"a network of its own":          func(pod *corev1.Pod) { pod.Spec.HostNetwork = false },
		"another user":                  func(pod *corev1.Pod) { pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &late} },
		"another runtime":               func(pod *corev1.Pod) { pod.Spec.RuntimeClassName = &w.name },
		"the place of other pods":       func(pod *corev1.Pod) { pod.Spec.PriorityClassName, pod.Spec.Priority = "system-node-critical", nil },
		"an order to the runtime":       func(pod *corev1.Pod) { pod.Annotations = map[string]string{"cdi.k8s.io/x": "y"} },
	} {
		w.refused(name, try(operator, change))
	}

	// Those who may do more than the roles allow cannot change or enter a pod either.
	pods := suite.Client.CoreV1().Pods(growNamespace)
	pod, err := pods.Create(w.ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "grow-attacked"}, Spec: good.Spec}, metav1.CreateOptions{})
	w.must(err)
	_, err = pods.Patch(w.ctx, pod.Name, types.StrategicMergePatchType, []byte(`{"spec": {"containers": [{"name": "grow", "image": "busybox"}]}}`), metav1.PatchOptions{})
	w.refused("an image that is changed", err)
	_, err = pods.Patch(w.ctx, pod.Name, types.StrategicMergePatchType, []byte(`{"spec": {"ephemeralContainers": [{"name": "x", "image": "busybox"}]}}`), metav1.PatchOptions{}, "ephemeralcontainers")
	w.refused("an ephemeral container", err)
	for _, way := range []string{"exec", "attach", "portforward"} {
		err := suite.Client.CoreV1().RESTClient().Post().Namespace(growNamespace).Resource("pods").Name(pod.Name).SubResource(way).
			VersionedParams(&corev1.PodExecOptions{Command: []string{"/standalone-cinder"}, Stdout: true}, scheme.ParameterCodec).Do(w.ctx).Error()
		w.refused(way, err)
	}
	_, err = pods.Patch(w.ctx, pod.Name, types.MergePatchType, []byte(`{"metadata": {"labels": {"a": "b"}}}`), metav1.PatchOptions{})
	w.must(err)
	w.must(pods.Delete(w.ctx, pod.Name, *metav1.NewDeleteOptions(0)))
}

// refused checks that the policy of the component node-grow refused something.
func (w *world) refused(what string, err error) {
	w.Helper()
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "ValidatingAdmissionPolicy '"+growNamespace+"'") || strings.Contains(err.Error(), "expression") {
		w.Errorf("%s: got %v, want the policy to refuse it", what, err)
	}
}
