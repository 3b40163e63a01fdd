//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/test/conformance"
	"github.com/standalone-cinder/standalone-cinder/test/e2e/rig"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// suiteNamespaces are what the suite calls the namespaces of its cases, except those about
// topology: their volumes are in zones.
var suiteNamespaces = []string{
	"capacity", "disruptive", "ephemeral", "fsgroupchangepolicy", "multivolume", "populator", "provisioning", "read-write-once-pod", "selinux-mount",
	"snapshotting", "snapshottable", "stress", "volume", "volume-expand", "volume-modify", "volumegroupsnapshotclass", "volumegroupsnapshottable", "volumeio", "volumelimits", "volumemode",
}

// cephSecret and fixedKeySecret are what the policy calls the key of Ceph's user, and that
// of Cinder's key manager.
const (
	cephSecret     = "ceph-cinder"
	fixedKeySecret = "cinder-key"
)

func conformancePolicy(env rig.Env, mode string) string {
	patterns := make([]string, len(suiteNamespaces))
	for i, name := range suiteNamespaces {
		patterns[i] = name + "-*"
	}
	rule, secrets := fmt.Sprintf("mode: %s", mode), ""
	if mode == "csi" {
		rule += fmt.Sprintf(", groups: true, volumeTypes: [%s, other]", env.Types.ISCSI)
		secrets = "csi: {cephSecret: " + cephSecret + ", encryption: {fixedKeySecret: " + fixedKeySecret + "}}"
	}
	return fmt.Sprintf(`
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
clusterID: e2e-conformance-%[8]s
backends:
  - name: lab
    auth: {noauth: {endpoint: %[1]q, user: %[2]s, project: "%032[3]x"}}
    connector: {host: k8s-e2e, initiator: %[6]q}
    %[9]s
  - name: racks
    auth: {noauth: {endpoint: %[1]q, user: %[2]s, project: "%032[4]x"}}
    connector: {host: k8s-e2e, initiator: %[6]q}
    zones:
      - {name: nova, nodeLabels: {topology.kubernetes.io/zone: rack-a}}
      - {name: zone-b, nodeLabels: {topology.kubernetes.io/zone: rack-b}}
tenants:
  - name: suite
    namespaces: [%[5]s]
    classes: [{storageClasses: ["*"], backends: [lab], %[7]s}]
  - name: zones
    namespaces: ["topology-*"]
    classes: [{storageClasses: ["*"], backends: [racks], %[7]s}]
`, env.Noauth.Endpoint, env.Noauth.User, kubeletProject, kubeletZonedProject, strings.Join(patterns, ", "), sharedInitiator, rule, mode, secrets)
}

// TestKubernetesStorageSuite runs Kubernetes' own tests of storage drivers, in a cluster
// with two nodes whose kubelets are real. make conformance runs it.
func TestKubernetesStorageSuite(t *testing.T) {
	focus, report := os.Getenv("CONFORMANCE_FOCUS"), os.Getenv("CONFORMANCE_REPORT")
	if report == "" {
		t.Skip("make conformance runs it")
	}
	for _, mode := range []string{"csi", "native"} {
		drivers := []string{mode, mode + "-shared"}
		if mode == "csi" {
			drivers = append(drivers, "csi-rbd", "csi-encrypted")
		}
		if only := os.Getenv("CONFORMANCE_DRIVER"); only != "" {
			drivers = slices.DeleteFunc(drivers, func(driver string) bool { return driver != only })
		}
		if len(drivers) > 0 {
			t.Run(mode, func(t *testing.T) { runConformance(t, mode, drivers, focus, report) })
		}
	}
}

func runConformance(t *testing.T, mode string, drivers []string, focus, report string) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Hour)
	defer cancel()
	env, err := rig.Load(rig.EnvFile())
	must(t, err)
	root := filepath.Join("..", "..")
	programs, err := conformance.Build(ctx, root)
	must(t, err)
	images, err := conformance.Images(programs)
	must(t, err)
	c := startKubeletsWith(ctx, t, kubeletOptions{
		suite: harness.SuiteOptions{Snapshots: true, Snapshotter: true}, policy: conformancePolicy(env, mode), images: images, verbosity: 2,
	}, "node-1", "node-2")
	c.conformanceClasses(ctx, t, mode, env)
	must(t, c.InstallSnapshots(ctx))
	driver := csiProvisioner // which serves the snapshots of native volumes itself
	if mode == "csi" {
		driver = wire.DriverName
		snapshotter, err := c.Snapshotter(ctx, csiProvisioner)(c.socket)
		must(t, err)
		t.Cleanup(snapshotter.Stop)
	}
	snapshots, err := snapshotclient.NewForConfig(c.Config)
	must(t, err)
	_, err = snapshots.SnapshotV1().VolumeSnapshotClasses().Create(ctx, &snapshotv1.VolumeSnapshotClass{
		ObjectMeta: metav1.ObjectMeta{Name: mode}, Driver: driver, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
	}, metav1.CreateOptions{})
	must(t, err)
	_, err = snapshots.GroupsnapshotV1().VolumeGroupSnapshotClasses().Create(ctx, &groupv1.VolumeGroupSnapshotClass{
		ObjectMeta: metav1.ObjectMeta{Name: mode}, Driver: driver, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
		Parameters: map[string]string{"consistency": "none"}, // the rig's LVM has no consistent groups
	}, metav1.CreateOptions{})
	must(t, err)
	for _, name := range drivers {
		c.runSuite(ctx, t, programs, root, conformance.Run{
			Driver: name, Kubeconfig: c.ControlPlane().KubeconfigPath(), Focus: focus, Skip: os.Getenv("CONFORMANCE_SKIP"),
			Processes: os.Getenv("CONFORMANCE_PROCESSES"), Resume: os.Getenv("CONFORMANCE_RESUME") != "", Report: filepath.Join(report, name+".json"),
		})
	}
}

// runSuite runs the suite for one driver, and keeps the results.
func (c *kubeletCluster) runSuite(ctx context.Context, t *testing.T, programs conformance.Programs, root string, run conformance.Run) {
	t.Helper()
	command, err := programs.Command(ctx, run)
	must(t, err)
	command.Stdout, command.Stderr = os.Stdout, os.Stderr
	ended := command.Run()
	failed, err := conformance.Record(root, run.Report)
	if err = errors.Join(err, conformance.Unexpected(root, failed)); err != nil {
		t.Errorf("the results of %s: %v", run.Driver, err)
	}
	if ended != nil && len(failed) == 0 {
		t.Errorf("the suite of %s: %v", run.Driver, ended)
	}
	if hold := os.Getenv("CONFORMANCE_HOLD"); hold != "" {
		c.hold(ctx, t, hold, command)
	}
}

// hold keeps the cluster while a file exists, to look for a fault by hand.
func (c *kubeletCluster) hold(ctx context.Context, t *testing.T, file string, command *exec.Cmd) {
	t.Helper()
	must(t, os.WriteFile(file, fmt.Appendf(nil, "export KUBECONFIG=%s\n%s\n", c.ControlPlane().KubeconfigPath(), command), 0o600))
	for ctx.Err() == nil {
		if _, err := os.Stat(file); err != nil {
			return
		}
		time.Sleep(time.Second)
	}
}

// conformanceClasses makes the classes of which the suite uses copies.
func (c *kubeletCluster) conformanceClasses(ctx context.Context, t *testing.T, mode string, env rig.Env) {
	t.Helper()
	grows := mode == "csi"
	class := func(name, kind string) {
		must(t, c.CreateClass(ctx, name, csiProvisioner, func(class *storagev1.StorageClass) {
			class.Parameters, class.AllowVolumeExpansion = map[string]string{"type": kind}, &grows
		}))
	}
	class(mode, env.Types.ISCSI)
	class(mode+"-shared", env.Types.Shared)
	secret := func(name string, data map[string]string) {
		_, err := c.Client.CoreV1().Secrets(harness.Namespace).Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: data}, metav1.CreateOptions{})
		must(t, err)
	}
	if mode == "csi" {
		class("csi-encrypted", env.Types.LUKS)
		secret(fixedKeySecret, map[string]string{"fixedKey": env.FixedKey})
	}
	if env.Types.RBD != "" && mode == "csi" {
		class("csi-rbd", env.Types.RBD)
		secret(cephSecret, map[string]string{"userID": "cinder", "userKey": cephKey(t, env)})
	}
	_, err := c.Client.StorageV1().VolumeAttributesClasses().Create(ctx, &storagev1.VolumeAttributesClass{
		ObjectMeta: metav1.ObjectMeta{Name: "csi"}, DriverName: wire.DriverName, Parameters: map[string]string{"type": "other"},
	}, metav1.CreateOptions{})
	must(t, err)
}
