//go:build e2e

package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/staged"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/test/controlplane"
	"github.com/standalone-cinder/standalone-cinder/test/deploy"
	"github.com/standalone-cinder/standalone-cinder/test/e2e/kubelet"
	"github.com/standalone-cinder/standalone-cinder/test/e2e/rig"
	"github.com/standalone-cinder/standalone-cinder/test/e2e/vm"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

const (
	kubeletProject      = 0xc71
	kubeletZonedProject = 0xc72
	// podUser and podGroup are those of the pods, and volumeGroup is their fsGroup.
	podUser, podGroup, volumeGroup = 1000, 1000, 2000
	// diskGroup is the group of devices on Debian.
	diskGroup = 6
)

func kubeletPolicy(env rig.Env) string {
	return fmt.Sprintf(`
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
clusterID: e2e-kubelet
defaults: {mode: csi}
backends:
  - {name: lab, auth: {noauth: {endpoint: %[1]q, user: %[2]s, project: "%032[3]x"}}}
  - name: racks
    auth: {noauth: {endpoint: %[1]q, user: %[2]s, project: "%032[4]x"}}
    zones:
      - {name: nova, nodeLabels: {topology.kubernetes.io/zone: rack-a}}
      - {name: zone-b, nodeLabels: {topology.kubernetes.io/zone: rack-b}}
tenants:
  - name: team-c
    namespaces: [team-c]
    classes:
      - {storageClasses: [files], backends: [lab], volumeType: %[5]s, fsType: ext4}
      - {storageClasses: [xfs], backends: [lab], volumeType: %[5]s, fsType: xfs}
      - {storageClasses: [racks, racks-late], backends: [racks], volumeType: %[5]s, fsType: ext4, pick: spread}
`, env.Noauth.Endpoint, env.Noauth.User, kubeletProject, kubeletZonedProject, env.Types.ISCSI)
}

// kubeletCluster is a cluster with nodes that have real kubelets. Nothing stands in
// for what a cluster does by itself.
type kubeletCluster struct {
	csiCluster
	env   rig.Env
	nodes map[string]*csiNode
	// storage has the addresses that the nodes reach.
	storage []string
	image   vm.Image
	media   string
	// logs are of the processes on this machine.
	logs map[string]func() string
	mu   sync.Mutex
	// passwords are what no log may have.
	passwords map[string]bool
	// verbosity is that of the kubelets' logs.
	verbosity int
}

// startKubelets boots the nodes and waits until the driver's DaemonSet runs on them. A
// namespace that enforces the profile "restricted" has claims of the policy's classes. The
// path of a previous build may be empty.
func startKubelets(ctx context.Context, t *testing.T, previous string, names ...string) *kubeletCluster {
	t.Helper()
	env, err := rig.Load(rig.EnvFile())
	must(t, err)
	c := startKubeletsWith(ctx, t, kubeletOptions{policy: kubeletPolicy(env), classes: []string{"files", "xfs", "racks"}, previous: previous}, names...)
	_, err = c.Client.CoreV1().Namespaces().Patch(ctx, "team-c", types.MergePatchType,
		[]byte(`{"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}`), metav1.PatchOptions{})
	must(t, err)
	late := storagev1.VolumeBindingWaitForFirstConsumer
	must(t, c.CreateClass(ctx, "racks-late", csiProvisioner, func(class *storagev1.StorageClass) { class.VolumeBindingMode = &late }))
	return c
}

// kubeletOptions describe a cluster with kubelets.
type kubeletOptions struct {
	suite  harness.SuiteOptions
	policy string
	// classes are those of the provisioner.
	classes []string
	// images are on the nodes beside those of every test.
	images []kubelet.Image
	// previous is a build of the program that runs until upgrade ends it, here and on the
	// nodes. It may be empty.
	previous string
	// verbosity of the kubelets' logs; 0 means 5, at which they show what they ask of drivers.
	verbosity int
}

// startKubeletsWith does the same for any policy.
func startKubeletsWith(ctx context.Context, t *testing.T, options kubeletOptions, names ...string) *kubeletCluster {
	t.Helper()
	c := newKubelets(t, names...)
	c.verbosity = cmp.Or(options.verbosity, c.verbosity)
	options.suite.Resizer, options.suite.ControlPlane = true, c.plane(t)
	c.csiCluster = startCSIWith(ctx, t, options.suite, options.previous, options.policy, options.classes...)
	pluginImage, images := kubelet.ProgramImage, options.images
	if options.previous != "" {
		pluginImage, images = kubelet.PreviousImage, append(images, kubelet.Previous(options.previous))
	}
	c.prepare(ctx, t, pluginImage)
	c.start(ctx, t, images...)
	return c
}

// startPlainKubelets boots nodes that have no driver, of a cluster in which nothing is
// installed.
func startPlainKubelets(ctx context.Context, t *testing.T, options harness.SuiteOptions, names ...string) *kubeletCluster {
	t.Helper()
	c := newKubelets(t, names...)
	options.Log, options.ControlPlane = os.Stderr, c.plane(t)
	var err error
	c.Suite, err = harness.StartSuite(ctx, options)
	must(t, err)
	t.Cleanup(func() { must(t, c.Stop()) })
	must(t, c.CreateNamespace(ctx, "team-c", map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}))
	c.start(ctx, t)
	return c
}

// newKubelets returns the nodes of a cluster before anything runs.
func newKubelets(t *testing.T, names ...string) *kubeletCluster {
	t.Helper()
	if minor := os.Getenv(controlplane.MinorVariable); minor != "" && minor < controlplane.KubeletMinor {
		t.Skipf("the kubelet is of %s, and the control plane of %s", controlplane.KubeletMinor, minor)
	}
	env, err := rig.Load(rig.EnvFile())
	must(t, err)
	c := &kubeletCluster{env: env, nodes: map[string]*csiNode{}, passwords: map[string]bool{}, verbosity: 5}
	c.storage = env.Portals
	if env.CephMonitor != "" {
		c.storage = slices.Concat(c.storage, cephAddresses(t.Context(), t, env))
	}
	for _, name := range names {
		c.nodes[name] = &csiNode{name: name, initiator: "iqn.2026-01.example:" + name, cuts: map[string]func(){}, env: env}
	}
	return c
}

// plane returns what the nodes need of a control plane.
func (c *kubeletCluster) plane(t *testing.T) controlplane.Options {
	t.Helper()
	return controlplane.Options{Scheduler: true, Controllers: []string{"*"}, Nodes: slices.Sorted(maps.Keys(c.nodes)), NodeProxy: c.proxy(t)}
}

// start boots the nodes, with more images if wanted, and waits until they are ready.
func (c *kubeletCluster) start(ctx context.Context, t *testing.T, images ...kubelet.Image) {
	t.Helper()
	program, err := controlplane.Kubelet(ctx, os.Stderr)
	must(t, err)
	c.media, err = kubelet.Media(ctx, filepath.Join("..", ".."), t.TempDir(), program, images...)
	must(t, err)
	c.image, err = vm.Build(ctx, vm.DefaultDirectory())
	must(t, err)
	var boots errgroup.Group
	for _, n := range c.nodes {
		t.Cleanup(func() {
			if n.Machine == nil {
				return
			}
			if t.Failed() {
				n.explain(t)
			}
			n.Kill()
		})
		boots.Go(func() error { return c.boot(ctx, n) })
	}
	must(t, boots.Wait())
	c.ready(ctx, t)
}

// proxy lets the API server reach the kubelets.
func (c *kubeletCluster) proxy(t *testing.T) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "nodes.sock")
	listener, err := net.Listen("unix", socket)
	must(t, err)
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: kubelet.Proxy(func(node string) *vm.Machine {
		if n := c.nodes[node]; n != nil {
			return n.Machine
		}
		return nil
	})}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	return socket
}

// boot starts a node, with an empty disk, and its kubelet.
func (c *kubeletCluster) boot(ctx context.Context, n *csiNode) (err error) {
	n.Machine, err = vm.Start(ctx, vm.Options{Image: c.image, Name: n.name, Initiator: n.initiator, Memory: kubelet.Memory, Disk: c.media})
	if err != nil {
		return err
	}
	for _, address := range c.storage {
		if n.cuts[address], err = n.Reach(address); err != nil {
			return err
		}
	}
	n.cutOff, err = kubelet.Start(ctx, n.Machine, n.name, c.ControlPlane().NodeKubeconfigPath(n.name), c.verbosity)
	return err
}

// prepare sets up what an administrator would: what the component csi has for the
// nodes, and a resizer beside the attacher.
func (c *kubeletCluster) prepare(ctx context.Context, t *testing.T, pluginImage string) {
	t.Helper()
	rendered, err := deploy.Overlay(ctx, t.TempDir(), "csi")
	must(t, err)
	objects, err := deploy.Objects(rendered)
	must(t, err)
	applied := map[string]int{}
	for _, object := range objects {
		switch kind := object.GetKind(); {
		case kind == "DaemonSet":
			forTheTest(t, object, pluginImage)
		case kind == "Namespace", kind == "CSIDriver", object.GetName() == "standalone-cinder-node":
		default:
			continue // The program runs on this machine, with an account of its own.
		}
		applied[object.GetKind()]++
		manifest, err := object.MarshalJSON()
		must(t, err)
		must(t, c.Apply(ctx, manifest))
	}
	if len(applied) != 8 {
		t.Fatalf("the component has only %v", applied)
	}
	resizer, err := c.Resizer(ctx, csiProvisioner)(c.socket)
	must(t, err)
	t.Cleanup(resizer.Stop)
	c.logs = map[string]func() string{"the program": c.replica.Log, "csi-attacher": c.attacher.Log, "csi-resizer": resizer.Log}
}

// forTheTest changes what a machine without a registry needs, and has the plugin log as much
// as it can.
func forTheTest(t *testing.T, daemonSet *unstructured.Unstructured, image string) {
	t.Helper()
	containers, _, err := unstructured.NestedSlice(daemonSet.Object, "spec", "template", "spec", "containers")
	must(t, err)
	if len(containers) != 1 {
		t.Fatalf("the DaemonSet has %d containers", len(containers))
	}
	container := containers[0].(map[string]any)
	container["image"], container["imagePullPolicy"] = image, "Never"
	container["args"] = append(container["args"].([]any), "-v=4")
	must(t, unstructured.SetNestedSlice(daemonSet.Object, containers, "spec", "template", "spec", "containers"))
}

// ready waits until every kubelet has registered its node, and the driver if there is one,
// and labels the nodes.
func (c *kubeletCluster) ready(ctx context.Context, t *testing.T) {
	t.Helper()
	racks := map[string]string{"node-1": "rack-a", "node-2": "rack-b"}
	must(t, harness.Eventually(ctx, func() (string, error) {
		for name := range c.nodes {
			node, err := c.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return name + " is not registered", nil
			}
			if err != nil {
				return "", err
			}
			for _, condition := range node.Status.Conditions {
				if condition.Type == corev1.NodeReady && condition.Status != corev1.ConditionTrue {
					return name + " is not ready: " + condition.Message, nil
				}
			}
			if c.attacher == nil {
				continue
			}
			told, err := c.Client.StorageV1().CSINodes().Get(ctx, name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) || err == nil && len(told.Spec.Drivers) != 1 {
				return name + " has not the driver", nil
			}
			if err != nil {
				return "", err
			}
			id, err := wire.ParseNodeID(told.Spec.Drivers[0].NodeID)
			if err != nil || told.Spec.Drivers[0].Name != wire.DriverName || id.Name != name || id.InitiatorName != c.nodes[name].initiator {
				return "", errors.Join(err, fmt.Errorf("the kubelet of %s registered %+v", name, told.Spec.Drivers))
			}
		}
		return "", nil
	}))
	for name := range c.nodes {
		c.patchNode(ctx, t, name, fmt.Sprintf(`{"metadata": {"labels": {"topology.kubernetes.io/zone": %q}}}`, racks[name]))
	}
}

// explain logs what a node of a failed test says.
func (n *csiNode) explain(t *testing.T) {
	log, err := n.Run(context.Background(), `grep -vE 'Housekeeping|SyncLoop' /var/log/kubelet.log | grep -E ' [EW][0-9]+ |^[EW]|csi' | tail -60
for log in $(find /var/log/pods -type f); do echo "$log:"; tail -15 "$log"; done
dmesg | tail -20; iscsiadm -m session; lsblk; grep standalone /proc/mounts`)
	t.Logf("%s: %v\n%s", n.name, err, log)
}

// pod returns a pod that the profile "restricted" allows. It writes to a claim.
func (c *kubeletCluster) pod(name, claim string, change func(*corev1.Pod)) *corev1.Pod {
	user, group, owner, grace, no, yes := int64(podUser), int64(podGroup), int64(volumeGroup), int64(5), false, true
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-c", Name: name},
		Spec: corev1.PodSpec{
			AutomountServiceAccountToken: &no, EnableServiceLinks: &no, TerminationGracePeriodSeconds: &grace, RestartPolicy: corev1.RestartPolicyNever,
			DNSPolicy: corev1.DNSDefault,
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: &yes, RunAsUser: &user, RunAsGroup: &group, FSGroup: &owner,
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name: "writer", Image: kubelet.WorkloadImage, ImagePullPolicy: corev1.PullNever, Args: []string{"write", "/data"},
				SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: &no, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
				VolumeMounts:    []corev1.VolumeMount{{Name: "data", MountPath: "/data"}},
			}},
			Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}},
		},
	}
	if change != nil {
		change(pod)
	}
	return pod
}

func on(node string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node} }
}

// raw makes a pod write to a device.
func raw(pod *corev1.Pod) {
	container := &pod.Spec.Containers[0]
	container.VolumeDevices = []corev1.VolumeDevice{{Name: "data", DevicePath: "/dev/data"}}
	container.VolumeMounts, container.Args = nil, []string{"write", "/dev/data"}
	pod.Spec.SecurityContext.SupplementalGroups = []int64{diskGroup}
}

func (c *kubeletCluster) create(ctx context.Context, t *testing.T, pod *corev1.Pod) {
	t.Helper()
	_, err := c.Client.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	must(t, err)
}

// runs waits until a pod runs, and returns it.
func (c *kubeletCluster) runs(ctx context.Context, t *testing.T, name string) *corev1.Pod {
	t.Helper()
	var pod *corev1.Pod
	err := harness.Eventually(ctx, func() (_ string, err error) {
		pod, err = c.Client.CoreV1().Pods("team-c").Get(ctx, name, metav1.GetOptions{})
		if err != nil || pod.Status.Phase == corev1.PodRunning {
			return "", err
		}
		if pod.Status.Phase == corev1.PodFailed {
			log, _ := kubelet.ContainerLog(ctx, c.nodes[pod.Spec.NodeName].Machine, "team-c", name)
			return "", fmt.Errorf("pod %s failed: %s", name, log)
		}
		return fmt.Sprintf("pod %s is %s: %+v", name, pod.Status.Phase, pod.Status.Conditions), nil
	})
	if err != nil {
		events, _ := c.Client.CoreV1().Events("team-c").List(context.Background(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + name})
		for _, event := range events.Items {
			t.Log(event.Reason, event.Message)
		}
	}
	must(t, err)
	return pod
}

var (
	foundLine = regexp.MustCompile(`found (\d+) as user (\d+), group of the file (\d+)`)
	wroteLine = regexp.MustCompile(`wrote (\d+) of size (\d+)`)
	textLine  = regexp.MustCompile(`has the text (".*")`)
)

// writer is what a pod reported: what it found when it started, how far it is, how large
// its volume is, and the text there, if any. A pod that ended, or was started again, is an
// error.
type writer struct {
	found, user, group, wrote, size int64
	text                            string
}

func (c *kubeletCluster) told(ctx context.Context, t *testing.T, name string) writer {
	t.Helper()
	pod, err := c.Client.CoreV1().Pods("team-c").Get(ctx, name, metav1.GetOptions{})
	must(t, err)
	if pod.Status.Phase != corev1.PodRunning || pod.Status.ContainerStatuses[0].RestartCount > 0 {
		t.Fatalf("pod %s: %+v", name, pod.Status)
	}
	log, err := kubelet.ContainerLog(ctx, c.nodes[pod.Spec.NodeName].Machine, "team-c", name)
	must(t, err)
	number := func(text string) int64 {
		n, err := strconv.ParseInt(text, 10, 64)
		must(t, err)
		return n
	}
	var w writer
	if found := foundLine.FindStringSubmatch(log); found != nil {
		w.found, w.user, w.group = number(found[1]), number(found[2]), number(found[3])
	}
	if wrote := wroteLine.FindAllStringSubmatch(log, -1); wrote != nil {
		last := wrote[len(wrote)-1]
		w.wrote, w.size = number(last[1]), number(last[2])
	}
	if text := textLine.FindStringSubmatch(log); text != nil {
		w.text, err = strconv.Unquote(text[1])
		must(t, err)
	}
	return w
}

// writes waits until a pod has written something new, and remembers the password
// of the volume at its node.
func (c *kubeletCluster) writes(ctx context.Context, t *testing.T, name string) (w writer) {
	t.Helper()
	pod := c.runs(ctx, t, name)
	must(t, harness.Eventually(ctx, func() (string, error) {
		if w = c.told(ctx, t, name); w.wrote <= w.found+20 {
			return fmt.Sprintf("pod %s does not write: %+v", name, w), nil
		}
		return "", nil
	}))
	c.remember(ctx, t, pod)
	return w
}

// remember notes the password of a pod's volume, which only its Secret may have.
func (c *kubeletCluster) remember(ctx context.Context, t *testing.T, pod *corev1.Pod) {
	t.Helper()
	claim, err := c.Client.CoreV1().PersistentVolumeClaims("team-c").Get(ctx, pod.Spec.Volumes[0].PersistentVolumeClaim.ClaimName, metav1.GetOptions{})
	must(t, err)
	pv, err := c.Client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	must(t, err)
	var reference *corev1.SecretReference
	if pv.Spec.ISCSI != nil {
		reference = pv.Spec.ISCSI.SecretRef
	} else {
		reference = pv.Spec.CSI.NodeStageSecretRef
	}
	secret, err := c.Client.CoreV1().Secrets(reference.Namespace).Get(ctx, reference.Name, metav1.GetOptions{})
	must(t, err)
	attachments, err := c.Client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	must(t, err)
	public, err := json.Marshal([]any{pod, claim, pv, attachments})
	must(t, err)
	var passwords, passphrases []string
	for key, entry := range secret.Data {
		if key == "node.session.auth.password" {
			passwords = append(passwords, string(entry))
		} else if pv.Spec.ISCSI == nil {
			passwords = append(passwords, valuesOf("password", entry)...)
			passphrases = append(passphrases, valuesOf("passphrase", entry)...)
		}
	}
	for _, secret := range slices.Concat(passwords, passphrases) {
		c.mu.Lock()
		c.passwords[secret] = true
		c.mu.Unlock()
		if strings.Contains(string(public), secret) {
			t.Error("an object that is no Secret has a password")
		}
	}
	remembered := len(passwords)
	if remembered != 1 {
		t.Errorf("the Secret of claim %s has %d passwords, want one", claim.Name, remembered)
	}
}

// valuesOf returns the values of a key in JSON.
func valuesOf(key string, document []byte) (values []string) {
	for _, found := range regexp.MustCompile(`"`+key+`":"([^"]+)"`).FindAllSubmatch(document, -1) {
		values = append(values, string(found[1]))
	}
	return values
}

func (c *kubeletCluster) removePod(ctx context.Context, t *testing.T, name string) {
	t.Helper()
	must(t, c.Client.CoreV1().Pods("team-c").Delete(ctx, name, metav1.DeleteOptions{}))
	c.gone(ctx, t, name)
}

func (c *kubeletCluster) gone(ctx context.Context, t *testing.T, name string) {
	t.Helper()
	must(t, harness.Eventually(ctx, func() (string, error) {
		_, err := c.Client.CoreV1().Pods("team-c").Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return "pod " + name + " is still there", err
	}))
}

// moves takes a pod from the first node to the second, and returns what it reported
// there.
func (c *kubeletCluster) moves(ctx context.Context, t *testing.T, name, claim string, change func(*corev1.Pod)) writer {
	t.Helper()
	place := func(node string) *corev1.Pod {
		return c.pod(name, claim, func(pod *corev1.Pod) {
			on(node)(pod)
			if change != nil {
				change(pod)
			}
		})
	}
	c.create(ctx, t, place("node-1"))
	before := c.writes(ctx, t, name)
	if before.found != 0 {
		t.Errorf("a new volume has %d records", before.found)
	}
	before = c.told(ctx, t, name)
	c.removePod(ctx, t, name)
	c.create(ctx, t, place("node-2"))
	after := c.writes(ctx, t, name)
	if after.found < before.wrote {
		t.Errorf("the pod wrote %d records on one node, and found %d on the other", before.wrote, after.found)
	}
	return after
}

// grows asks for 2 GiB, which a running pod must see.
func (c *kubeletCluster) grows(ctx context.Context, t *testing.T, pod, claim string) {
	t.Helper()
	c.patch(ctx, t, claim, `{"spec": {"resources": {"requests": {"storage": "2Gi"}}}}`)
	must(t, harness.Eventually(ctx, func() (string, error) {
		if w := c.told(ctx, t, pod); w.size < 19<<30/10 {
			return fmt.Sprintf("the volume has %d bytes", w.size), nil
		}
		now, err := c.Client.CoreV1().PersistentVolumeClaims("team-c").Get(ctx, claim, metav1.GetOptions{})
		if err != nil || now.Status.Capacity.Storage().String() == "2Gi" && len(harness.Conditions(now)) == 0 {
			return "", err
		}
		return fmt.Sprintf("claim %s: %+v", claim, now.Status), nil
	}))
}

// TestPodsUseVolumesInModeCSI has two nodes with real kubelets, and the node plugin as
// the DaemonSet of the manifests: whatever happens between a pod and Cinder is done
// by the programs that do it in a cluster.
func TestPodsUseVolumesInModeCSI(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Minute)
	defer cancel()
	previous := os.Getenv(previousVariable)
	c := startKubelets(ctx, t, previous, "node-1", "node-2")
	t.Run("a pod follows another on the next node", func(t *testing.T) { c.follows(ctx, t) })
	t.Run("a filesystem grows while a pod uses it", func(t *testing.T) { c.grows(ctx, t, "second", "data") })
	if previous != "" {
		t.Run("an upgrade while pods write", func(t *testing.T) { c.upgrade(ctx, t, "second") })
	}
	t.Run("a driver and a kubelet that are started again", func(t *testing.T) { c.restarts(ctx, t, "second", c.nodes["node-2"]) })
	if !testing.Short() {
		t.Run("at once", func(t *testing.T) {
			t.Run("a raw device moves and grows", func(t *testing.T) {
				t.Parallel()
				c.bound(ctx, t, harness.Claim("team-c", "raw", "files", "1Gi", func(claim *corev1.PersistentVolumeClaim) {
					block := corev1.PersistentVolumeBlock
					claim.Spec.VolumeMode = &block
				}))
				c.moves(ctx, t, "raw-writer", "raw", raw)
				c.grows(ctx, t, "raw-writer", "raw")
			})
			t.Run("xfs moves and grows", func(t *testing.T) {
				t.Parallel()
				c.claim(ctx, t, "xfs", "xfs")
				c.moves(ctx, t, "xfs-writer", "xfs", nil)
				c.grows(ctx, t, "xfs-writer", "xfs")
			})
			t.Run("pods go where their volumes are", func(t *testing.T) {
				t.Parallel()
				c.zones(ctx, t)
			})
			t.Run("ten pods", func(t *testing.T) {
				t.Parallel()
				c.ten(ctx, t)
			})
		})
		t.Run("a node loses its power", func(t *testing.T) { c.losesPower(ctx, t) })
	}
	t.Run("nothing is left", func(t *testing.T) { c.nothingLeft(ctx, t) })
	t.Run("no log has a password", func(t *testing.T) { c.noPassword(ctx, t) })
}

// restarts ends the driver's pod and the kubelet of a node while a pod writes there.
func (c *kubeletCluster) restarts(ctx context.Context, t *testing.T, writer string, n *csiNode) {
	before := c.told(ctx, t, writer)
	pods := func() (names []string) {
		list, err := c.Client.CoreV1().Pods(deploy.NodeNamespace).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + n.name})
		must(t, err)
		for _, pod := range list.Items {
			if pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil {
				names = append(names, pod.Name)
			}
		}
		return names
	}
	first := pods()
	if len(first) != 1 {
		t.Fatalf("%s has the pods %q of the driver", n.name, first)
	}
	must(t, c.Client.CoreV1().Pods(deploy.NodeNamespace).Delete(ctx, first[0], metav1.DeleteOptions{}))
	var second []string
	must(t, harness.Eventually(ctx, func() (string, error) {
		if second = pods(); len(second) != 1 || second[0] == first[0] {
			return fmt.Sprintf("%s has the pods %q of the driver", n.name, second), nil
		}
		return "", nil
	}))
	registered := func(times int) {
		must(t, harness.Eventually(ctx, func() (string, error) {
			log, err := kubelet.ContainerLog(ctx, n.Machine, deploy.NodeNamespace, second[0])
			if err != nil || strings.Count(log, "kubelet registered the driver") >= times {
				return "", err
			}
			return fmt.Sprintf("the kubelet has not registered the driver %d times", times), nil
		}))
	}
	registered(1)
	must(t, kubelet.Restart(ctx, n.Machine, n.name))
	registered(2)
	must(t, harness.Eventually(ctx, func() (string, error) {
		if now := c.told(ctx, t, writer); now.wrote < before.wrote+50 {
			return fmt.Sprintf("the pod is stuck at %+v", now), nil
		}
		return "", nil
	}))
}

// follows has two pods ask for a claim that only one may have. The second waits, and then
// finds on its own node what the first has written, as the group of both.
func (c *kubeletCluster) follows(ctx context.Context, t *testing.T) {
	c.bound(ctx, t, harness.Claim("team-c", "data", "files", "1Gi", func(claim *corev1.PersistentVolumeClaim) {
		claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
	}))
	c.create(ctx, t, c.pod("first", "data", on("node-1")))
	c.writes(ctx, t, "first")
	c.create(ctx, t, c.pod("second", "data", on("node-2")))
	must(t, harness.Eventually(ctx, func() (string, error) {
		second, err := c.Client.CoreV1().Pods("team-c").Get(ctx, "second", metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		for _, condition := range second.Status.Conditions {
			if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse && strings.Contains(condition.Message, "ReadWriteOncePod") {
				return "", nil
			}
		}
		return fmt.Sprintf("the second pod is told nothing: %+v", second.Status), nil
	}))
	before := c.told(ctx, t, "first")
	c.removePod(ctx, t, "first")
	after := c.writes(ctx, t, "second")
	if after.found < before.wrote {
		t.Errorf("the first pod wrote %d records, and the second found %d", before.wrote, after.found)
	}
	if after.user != podUser || after.group != volumeGroup {
		t.Errorf("user %d has files of group %d, want %d and %d", after.user, after.group, podUser, volumeGroup)
	}
	root := c.nodes["node-2"].run(ctx, t, "stat -c '%g %A' /var/lib/kubelet/pods/*/volumes/kubernetes.io~csi/*/mount")
	if root != fmt.Sprintf("%d drwxrwsr-x\n", volumeGroup) {
		t.Errorf("the root of the volume is %s", root)
	}
}

// zones lets volumes that only some nodes reach decide where their pods run, and
// vice versa.
func (c *kubeletCluster) zones(ctx context.Context, t *testing.T) {
	nodeOf := map[string]string{"nova": "node-1", "zone-b": "node-2"}
	found := map[string]bool{}
	zones := map[string]string{} // by claim
	for i := range 4 {
		name := fmt.Sprintf("rack-%d", i)
		zones[name] = c.zoneOf(ctx, t, c.claim(ctx, t, name, "racks"))
		c.create(ctx, t, c.pod(name, name, nil))
	}
	claims := map[string]*corev1.PersistentVolumeClaim{} // by zone
	for zone, node := range nodeOf {
		claim, err := c.CreateClaim(ctx, harness.Claim("team-c", "late-"+zone, "racks-late", "1Gi", nil))
		must(t, err)
		claims[zone] = claim
		c.create(ctx, t, c.pod("late-"+zone, claim.Name, on(node)))
	}
	for name, zone := range zones {
		found[zone] = true
		if pod := c.runs(ctx, t, name); pod.Spec.NodeName != nodeOf[zone] {
			t.Errorf("the volume is in %s, and its pod on %s", zone, pod.Spec.NodeName)
		}
		c.writes(ctx, t, name)
	}
	if len(found) != 2 {
		t.Errorf("the volumes are in the zones %v", found)
	}
	for zone, claim := range claims {
		c.writes(ctx, t, "late-"+zone)
		if made := c.zoneOf(ctx, t, c.served(ctx, t, claim)); made != zone {
			t.Errorf("the pod is in %s, and its volume in %s", zone, made)
		}
	}
}

func (c *kubeletCluster) zoneOf(ctx context.Context, t *testing.T, pv *corev1.PersistentVolume) string {
	t.Helper()
	var answer struct {
		Volume struct {
			Zone string `json:"availability_zone"`
		}
	}
	must(t, askProject(ctx, c.env, fmt.Sprintf("%032x", kubeletZonedProject), "/volumes/"+volumeID(t, pv), &answer))
	return answer.Volume.Zone
}

// ten has ten pods start at once, five on each node.
func (c *kubeletCluster) ten(ctx context.Context, t *testing.T) {
	var names []string
	for i := range 10 {
		name := fmt.Sprintf("one-of-ten-%d", i)
		names = append(names, name)
		_, err := c.CreateClaim(ctx, harness.Claim("team-c", name, "files", "1Gi", nil))
		must(t, err)
		c.create(ctx, t, c.pod(name, name, on(fmt.Sprintf("node-%d", i%2+1))))
	}
	started := time.Now()
	for _, name := range names {
		c.writes(ctx, t, name)
	}
	t.Logf("ten pods write after %s", time.Since(started).Round(time.Second))
	for _, name := range names {
		c.removePod(ctx, t, name)
	}
}

// outOfService says of a node that it is off, as the guide on lost nodes has it.
const outOfService = `{"spec": {"taints": [{"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}]}}`

// losesPower switches a node off for good, as far as anybody can tell, and follows what
// the guide on lost nodes says: an administrator taints the node, and the pod goes on
// elsewhere. Later the node is back.
func (c *kubeletCluster) losesPower(ctx context.Context, t *testing.T) {
	const lost, other = "node-1", "node-2"
	c.bound(ctx, t, harness.Claim("team-c", "of-a-lost-node", "files", "1Gi", nil))
	c.deploy(ctx, t, "of-a-lost-node", lost)
	first := c.worksOn(ctx, t, lost)
	c.writes(ctx, t, first)
	before := c.told(ctx, t, first)

	c.nodes[lost].Kill()
	c.isReady(ctx, t, lost, corev1.ConditionUnknown)
	tainted := time.Now()
	c.patchNode(ctx, t, lost, outOfService)
	second := c.worksOn(ctx, t, other)
	after := c.writes(ctx, t, second)
	t.Logf("the pod writes on the other node %s after the taint", time.Since(tainted).Round(time.Second))
	if after.found < before.wrote {
		t.Errorf("the pod wrote %d records before its node lost its power, and found %d on the other", before.wrote, after.found)
	}

	c.comesBack(ctx, t, lost)
	c.undeploy(ctx, t, second)
	c.create(ctx, t, c.pod("back", "of-a-lost-node", on(lost)))
	if back := c.writes(ctx, t, "back"); back.found < after.wrote {
		t.Errorf("the pod wrote %d records, and found %d on the node that is back", after.wrote, back.found)
	}
}

// deploy makes a Deployment of one pod that writes to a claim, on the preferred node. The pod
// writes a text, too, if there is one.
func (c *kubeletCluster) deploy(ctx context.Context, t *testing.T, claim, preferred string, text ...string) {
	t.Helper()
	labels := map[string]string{"app": "worker"}
	one := int32(1)
	pod := c.pod("worker", claim, nil)
	pod.Spec.Containers[0].Args = append(pod.Spec.Containers[0].Args, text...)
	pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{
		Weight:     100,
		Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{preferred}}}},
	}}}}
	_, err := c.Client.AppsV1().Deployments("team-c").Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "worker"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &one, Strategy: appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod.Spec},
		},
	}, metav1.CreateOptions{})
	must(t, err)
}

// worksOn waits until the Deployment's pod is on a node, and returns its name.
func (c *kubeletCluster) worksOn(ctx context.Context, t *testing.T, node string) (name string) {
	t.Helper()
	must(t, harness.Eventually(ctx, func() (string, error) {
		pods, err := c.Client.CoreV1().Pods("team-c").List(ctx, metav1.ListOptions{LabelSelector: "app=worker"})
		if err != nil {
			return "", err
		}
		for _, pod := range pods.Items {
			if pod.Spec.NodeName == node && pod.DeletionTimestamp == nil {
				name = pod.Name
				return "", nil
			}
		}
		return "no pod of the Deployment is on " + node, nil
	}))
	return name
}

// undeploy deletes the Deployment, and waits until its pod is gone.
func (c *kubeletCluster) undeploy(ctx context.Context, t *testing.T, pod string) {
	t.Helper()
	must(t, c.Client.AppsV1().Deployments("team-c").Delete(ctx, "worker", metav1.DeleteOptions{}))
	c.gone(ctx, t, pod)
}

// comesBack boots a lost node, and removes its taint.
func (c *kubeletCluster) comesBack(ctx context.Context, t *testing.T, lost string) {
	t.Helper()
	must(t, c.boot(ctx, c.nodes[lost]))
	c.patchNode(ctx, t, lost, `{"spec": {"taints": null}}`)
	c.isReady(ctx, t, lost, corev1.ConditionTrue)
}

func (c *kubeletCluster) patchNode(ctx context.Context, t *testing.T, name, patch string) {
	t.Helper()
	_, err := c.Client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	must(t, err)
}

// isReady waits until a node's condition Ready has a status.
func (c *kubeletCluster) isReady(ctx context.Context, t *testing.T, name string, want corev1.ConditionStatus) {
	t.Helper()
	must(t, harness.Eventually(ctx, func() (string, error) {
		node, err := c.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		for _, condition := range node.Status.Conditions {
			if condition.Type == corev1.NodeReady && condition.Status == want {
				return "", nil
			}
		}
		return fmt.Sprintf("%s is not Ready=%s: %+v", name, want, node.Status.Conditions), nil
	}))
}

// nothingLeft removes the last pods and claims.
func (c *kubeletCluster) nothingLeft(ctx context.Context, t *testing.T) {
	must(t, c.Client.CoreV1().Pods("team-c").DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	must(t, c.DeleteClaims(ctx, "team-c"))
	must(t, c.WaitForNoPersistentVolumes(ctx, csiProvisioner))
	must(t, harness.Eventually(ctx, func() (string, error) {
		attachments, err := c.Client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
		if err != nil || len(attachments.Items) == 0 {
			return "", err
		}
		return fmt.Sprintf("%d VolumeAttachments are left, such as %s", len(attachments.Items), attachments.Items[0].Name), nil
	}))
	for name, n := range c.nodes {
		n.checkNothingLeft(ctx, t)
		node, err := c.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		must(t, err)
		if len(node.Status.VolumesInUse)+len(node.Status.VolumesAttached) > 0 {
			t.Errorf("%s still has %v, %v", name, node.Status.VolumesInUse, node.Status.VolumesAttached)
		}
		if c.attacher == nil {
			continue
		}
		lease, err := c.Client.CoordinationV1().Leases(harness.Namespace).Get(ctx, staged.LeaseName(name), metav1.GetOptions{})
		must(t, err)
		report := staged.Of(lease)
		if len(report.Volumes) > 0 || !report.IsSame(staged.MachineOf(node)) || report.Boot != node.Status.NodeInfo.BootID {
			t.Errorf("the plugin of %s reports %+v, and the kubelet %+v", name, report, node.Status.NodeInfo)
		}
	}
	for _, project := range []int{kubeletProject, kubeletZonedProject} {
		var left struct {
			Volumes     []volume
			Attachments []attachment
		}
		must(t, askProject(ctx, c.env, fmt.Sprintf("%032x", project), "/volumes/detail", &left))
		must(t, askProject(ctx, c.env, fmt.Sprintf("%032x", project), "/attachments", &left))
		if len(left.Volumes)+len(left.Attachments) > 0 {
			t.Errorf("left at Cinder: %+v", left)
		}
	}
	secrets, err := c.Client.CoreV1().Secrets(harness.Namespace).List(ctx, metav1.ListOptions{LabelSelector: ours})
	must(t, err)
	for _, secret := range secrets.Items {
		if strings.HasPrefix(secret.Name, "pvc-") {
			t.Errorf("Secret %s is left", secret.Name)
		}
	}
}

// noPassword looks for the passwords that volumes had.
func (c *kubeletCluster) noPassword(ctx context.Context, t *testing.T) {
	if len(c.passwords) == 0 {
		t.Error("no password was seen")
	}
	logs := map[string]string{}
	for who, log := range c.logs {
		logs[who] = log()
	}
	for name, n := range c.nodes {
		onNode, err := kubelet.Logs(ctx, n.Machine)
		must(t, err)
		// Those of the kubelet, of containerd and, if there is one, of the driver.
		if len(onNode) < 2 || c.attacher != nil && len(onNode) < 3 {
			t.Errorf("%s has only %d logs", name, len(onNode))
		}
		for path, log := range onNode {
			logs[name+":"+path] = log
		}
	}
	files, err := filepath.Glob(filepath.Join(c.ControlPlane().Dir(), "*.log"))
	must(t, err)
	for _, path := range files {
		log, err := os.ReadFile(path)
		must(t, err)
		logs[path] = string(log)
	}
	for who, log := range logs {
		for password := range c.passwords {
			if strings.Contains(log, password) {
				t.Errorf("the log of %s has a password", who)
			}
		}
	}
	t.Logf("%d passwords are in none of %d logs", len(c.passwords), len(logs))
}
