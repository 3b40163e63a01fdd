//go:build e2e

// Package e2e runs the program against real Cinder, Keystone, iSCSI and Ceph,
// in a real control plane.
package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/test/e2e/rig"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

const (
	provisioner          = "openstack.org/standalone-cinder"
	annotationVolume     = "standalone-cinder.openstack.org/volume-id"
	annotationAttachment = "standalone-cinder.openstack.org/attachment-id"
	annotationSecret     = "standalone-cinder.openstack.org/secret"
	annotationSharedBy   = "standalone-cinder.openstack.org/shared-by-backend"
	ours                 = "app.kubernetes.io/managed-by=standalone-cinder"
	// each is how many claims a class gets.
	each = 2
	// The projects of the backends with zones.
	zonedProject, filledProject = 0x20e, 0x20f
)

// station is a StorageClass and what its claims are like.
type station struct {
	name, namespace, size string
	// attachments says that its volumes are connected by the attachments API.
	attachments bool
	// shared makes its claims ask for raw volumes that every node may write to.
	shared bool
	// check uses a PersistentVolume as a node would.
	check func(t *testing.T, w *world, pv *corev1.PersistentVolume, pattern []byte)
}

// stations returns those of two tenants on backends side by side: the same
// Cinder behind Keystone, by an application credential and by a password, and
// without authentication; every protocol by every workflow. Each backend has a
// project of its own; the classes for volumes of many writers share those of
// gold and silver.
func stations(env rig.Env) []station {
	all := []station{
		{name: "gold", namespace: "team-a", size: "1Gi", check: checkISCSI},
		{name: "silver", namespace: "team-a", size: "1Gi", attachments: true, check: checkISCSI},
		{name: "lab", namespace: "team-b", size: "1500Mi", attachments: true, check: checkISCSI},
		{name: "gold-shared", namespace: "team-a", size: "1Gi", shared: true, check: checkShared},
		{name: "silver-shared", namespace: "team-a", size: "1Gi", attachments: true, shared: true, check: checkShared},
	}
	if env.Types.RBD != "" {
		all = append(all,
			station{name: "ceph-reserve", namespace: "team-b", size: "1Gi", check: checkCephCSI},
			station{name: "ceph-attachment", namespace: "team-b", size: "1Gi", attachments: true, check: checkCephCSI},
			station{name: "ceph-keyring", namespace: "team-b", size: "1Gi", attachments: true, check: checkCephCSI},
			station{name: "ceph-native", namespace: "team-b", size: "1Gi", check: checkNativeRBD},
		)
	}
	return all
}

func policyOf(env rig.Env) string {
	policy := fmt.Sprintf(`
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
backends:
  - name: gold
    auth: {cloud: team-a-appcred}
    region: %[1]s
    interface: internal
    workflow: reserve
    connector: {host: k8s-e2e, initiator: "iqn.2026-01.example:e2e"}
  - name: silver
    auth: {cloud: team-b}
    workflow: attachment
    connector: {host: k8s-e2e, initiator: "iqn.2026-01.example:e2e"}
  - name: lab
    auth: {noauth: {endpoint: %[2]q, user: %[3]s, project: %[4]s}}
    connector: {host: k8s-e2e, multipath: true}
  - name: zoned
    auth: {noauth: {endpoint: %[2]q, user: %[3]s, project: "%032[5]x"}}
    connector: {host: k8s-e2e}
    zones:
      - {name: nova, nodeLabels: {topology.kubernetes.io/zone: rack-a}}
      - {name: zone-b, nodeLabels: {topology.kubernetes.io/zone: rack-b}}
  - name: filled
    auth: {noauth: {endpoint: %[2]q, user: %[3]s, project: "%032[6]x"}}
    connector: {host: k8s-e2e}
    zones:
      - {name: zone-full, nodeLabels: {topology.kubernetes.io/zone: rack-a}}
      - {name: zone-b, nodeLabels: {topology.kubernetes.io/zone: rack-b}}
`, env.Region, env.Noauth.Endpoint, env.Noauth.User, env.Noauth.Project, zonedProject, filledProject)
	tenants := fmt.Sprintf(`
tenants:
  - name: team-a
    namespaces: [team-a]
    classes:
      - {storageClasses: [gold], backends: [gold], volumeType: %[1]s, fsType: ext4}
      - {storageClasses: [silver], backends: [silver], volumeType: %[1]s}
      - {storageClasses: [gold-shared], backends: [gold], volumeType: %[4]s}
      - {storageClasses: [silver-shared], backends: [silver], volumeType: %[4]s}
      - {storageClasses: [broken], backends: [gold], volumeType: %[2]s}
  - name: team-b
    namespaces: [team-b]
    classes:
      - {storageClasses: [lab], backends: [lab], volumeType: %[3]s}
      - {storageClasses: [zoned], backends: [zoned], volumeType: %[1]s, pick: spread}
      - {storageClasses: [filled], backends: [filled], volumeType: %[1]s}
`, env.Types.ISCSI, env.Types.Fail, env.Types.ISCSIMultipath, env.Types.Shared)
	if env.Types.RBD == "" {
		return policy + tenants
	}
	for i, backend := range []struct{ name, volumeType, workflow, mapping string }{
		{"ceph-reserve", env.Types.RBD, "reserve", operatorsMapping},
		{"ceph-attachment", env.Types.RBD, "attachment", operatorsMapping},
		{"ceph-keyring", env.Types.RBDKeyring, "auto", "{as: csi, clusterID: " + cephCluster + "}"},
		{"ceph-native", env.Types.RBDKeyring, "reserve", "{as: native}"},
	} {
		policy += fmt.Sprintf(`
  - name: %s
    auth: {noauth: {endpoint: %q, user: %s, project: "%032x"}}
    workflow: %s
    connector: {host: k8s-e2e}
    mapping: {rbd: %s}
`, backend.name, env.Noauth.Endpoint, env.Noauth.User, 0xce9+i, backend.workflow, backend.mapping)
		tenants += fmt.Sprintf("      - {storageClasses: [%[1]s], backends: [%[1]s], volumeType: %[2]s}\n", backend.name, backend.volumeType)
	}
	return policy + tenants
}

// world is what a test runs in.
type world struct {
	*harness.Suite
	env      rig.Env
	replicas []*harness.Replica
	stations []station
	// withheld is what no replica may print.
	withheld map[string]bool
}

func startWorld(ctx context.Context, t *testing.T) *world {
	env, err := rig.Load(rig.EnvFile())
	must(t, err)
	clouds, err := os.ReadFile(env.CloudsFile)
	must(t, err)
	suite, err := harness.StartSuite(ctx, harness.SuiteOptions{Snapshots: true, Log: os.Stderr})
	must(t, err)
	t.Cleanup(func() { must(t, suite.Stop()) })
	w := &world{Suite: suite, env: env, stations: stations(env), replicas: make([]*harness.Replica, 3),
		withheld: map[string]bool{env.TeamA.Password: true, env.TeamB.Password: true, env.TeamACredential.Secret: true}}
	for _, name := range []string{"team-a", "team-b"} {
		must(t, suite.CreateNamespace(ctx, name, nil))
	}
	for _, s := range append(w.stations, station{name: "broken"}, station{name: "zoned"}, station{name: "filled"}) {
		must(t, suite.CreateClass(ctx, s.name, provisioner, func(class *storagev1.StorageClass) {}))
	}
	if env.Types.RBD != "" {
		must(t, w.installCephCSI(ctx))
	}
	for i := range w.replicas {
		w.replicas[i], err = suite.StartReplica(ctx, harness.ReplicaOptions{Policy: policyOf(env), Clouds: string(clouds), Provisioner: provisioner})
		must(t, err)
		t.Cleanup(w.replicas[i].Kill)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for i, replica := range w.replicas {
				t.Logf("replica %d said:\n%s", i, replica.Log())
			}
		}
	})
	return w
}

func TestClaimsBecomeVolumesThatHoldData(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	w := startWorld(ctx, t)
	targetsBefore, err := w.env.Targets(ctx)
	must(t, err)

	wanted := map[string]int{} // by namespace
	for _, s := range w.stations {
		for i := range each {
			_, err := w.CreateClaim(ctx, harness.Claim(s.namespace, fmt.Sprintf("%s-%d", s.name, i), s.name, s.size, s.claim))
			must(t, err)
			wanted[s.namespace]++
		}
	}
	for namespace, count := range wanted {
		_, err := w.WaitBound(ctx, namespace, count)
		must(t, err)
	}
	must(t, harness.Eventually(ctx, func() (string, error) { return notInUse(ctx, w.env, each*len(w.stations)) }))
	attachments, err := attachmentsByVolume(ctx, w.env)
	must(t, err)
	for _, s := range w.stations {
		t.Run(s.name, func(t *testing.T) {
			for i := range each {
				pv := w.volumeOf(ctx, t, s, i)
				checkAttachment(t, s, pv, attachments)
				s.check(t, w, pv, bytes.Repeat([]byte(fmt.Sprintf("%s/%s-%d;", s.namespace, s.name, i)), 64))
			}
		})
	}
	if w.env.Types.RBD != "" {
		t.Run("a shared Secret outlives its volumes", func(t *testing.T) { sharedSecretOutlives(ctx, t, w, "ceph-keyring") })
	}

	_, err = w.CreateClaim(ctx, harness.Claim("team-a", "broken", "broken", "1Gi", nil))
	must(t, err)
	event, err := w.WaitEvent(ctx, "team-a", "broken", "ProvisioningFailed", "went to error and was removed")
	must(t, err)
	t.Logf("a volume that Cinder cannot make: %s", event.Message)

	for namespace := range wanted {
		must(t, w.DeleteClaims(ctx, namespace))
	}
	must(t, w.WaitForNoPersistentVolumes(ctx, provisioner))
	must(t, harness.Eventually(ctx, func() (string, error) {
		left, err := w.env.Targets(ctx)
		// Those of earlier tests may still be going away.
		left = slices.DeleteFunc(left, func(target rig.Target) bool {
			return slices.ContainsFunc(targetsBefore, func(before rig.Target) bool { return before.IQN == target.IQN })
		})
		if len(left) > 0 {
			return fmt.Sprintf("%d targets are exported that were not before, such as %s", len(left), left[0].IQN), nil
		}
		return "", err
	}))
	must(t, harness.Eventually(ctx, func() (string, error) { return volumesLeft(ctx, w.env) }))
	left, err := attachmentsByVolume(ctx, w.env)
	must(t, err)
	if len(left) > 0 {
		t.Errorf("attachments are left at Cinder: %v", left)
	}
	if w.env.Types.RBD != "" {
		must(t, harness.Eventually(ctx, func() (string, error) {
			images, err := w.env.Images(ctx)
			if err != nil || len(images) == 0 {
				return "", err
			}
			return fmt.Sprintf("the pool has the images %v", images), nil
		}))
	}
	// A shared Secret stays while its backend is in the policy.
	shared, err := w.sharedSecrets(ctx)
	must(t, err)
	secrets, err := w.Client.CoreV1().Secrets(harness.Namespace).List(ctx, metav1.ListOptions{LabelSelector: ours})
	must(t, err)
	for _, secret := range secrets.Items {
		// The last good policy outlives all volumes.
		if !slices.Contains(shared, secret.Name) && !strings.HasSuffix(secret.Name, "-last-good") {
			t.Errorf("Secret %s is left", secret.Name)
		}
	}
	for i, replica := range w.replicas {
		for secret := range w.withheld {
			if strings.Contains(replica.Log(), secret) {
				t.Errorf("replica %d printed a credential", i)
			}
		}
	}
}

// claim changes a claim to what those of the station are.
func (s station) claim(claim *corev1.PersistentVolumeClaim) {
	if !s.shared {
		return
	}
	block := corev1.PersistentVolumeBlock
	claim.Spec.VolumeMode, claim.Spec.AccessModes = &block, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
}

// volumeOf returns the PersistentVolume of a class's claim.
func (w *world) volumeOf(ctx context.Context, t *testing.T, s station, i int) *corev1.PersistentVolume {
	t.Helper()
	claim, err := w.Client.CoreV1().PersistentVolumeClaims(s.namespace).Get(ctx, fmt.Sprintf("%s-%d", s.name, i), metav1.GetOptions{})
	must(t, err)
	pv, err := w.Client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	must(t, err)
	return pv
}

// secret reads the Secret that a PersistentVolume refers to; nothing of it may
// be printed.
func (w *world) secret(t *testing.T, reference *corev1.SecretReference) map[string]string {
	t.Helper()
	if reference == nil {
		t.Fatal("the PersistentVolume refers to no Secret")
	}
	secret, err := w.Client.CoreV1().Secrets(reference.Namespace).Get(t.Context(), reference.Name, metav1.GetOptions{})
	must(t, err)
	data := map[string]string{}
	for key, value := range secret.Data {
		data[key] = string(value)
	}
	for _, key := range []string{"node.session.auth.password", "userKey", "key"} {
		if data[key] != "" {
			w.withheld[data[key]] = true
		}
	}
	return data
}

// checkAttachment compares the workflow of a class with what Cinder has: both
// make one attachment of a volume, and only with the attachments API does the
// program know it.
func checkAttachment(t *testing.T, s station, pv *corev1.PersistentVolume, attachments map[string][]attachment) {
	t.Helper()
	at := attachments[pv.Annotations[annotationVolume]]
	if len(at) != 1 || at[0].Status != "attached" {
		t.Errorf("%s: the volume has the attachments %+v", pv.Name, at)
		return
	}
	want := ""
	if s.attachments {
		want = at[0].ID
	}
	if got := pv.Annotations[annotationAttachment]; got != want {
		t.Errorf("%s: the PersistentVolume names attachment %q, want %q", pv.Name, got, want)
	}
}

// disk returns the volume of a PersistentVolume as a node logs in to it.
func (w *world) disk(t *testing.T, pv *corev1.PersistentVolume) rig.Disk {
	t.Helper()
	disk := rig.Disk{Portal: pv.Spec.ISCSI.TargetPortal, IQN: pv.Spec.ISCSI.IQN, LUN: int(pv.Spec.ISCSI.Lun)}
	chap := w.secret(t, pv.Spec.ISCSI.SecretRef)
	disk.CHAPUser, disk.CHAPPassword = chap["node.session.auth.username"], chap["node.session.auth.password"]
	if name := pv.Spec.ISCSI.InitiatorName; name != nil {
		disk.Initiator = *name
	}
	return disk
}

func checkISCSI(t *testing.T, w *world, pv *corev1.PersistentVolume, pattern []byte) {
	ctx, disk := t.Context(), w.disk(t, pv)
	portals := append([]string{pv.Spec.ISCSI.TargetPortal}, pv.Spec.ISCSI.Portals...)
	if pv.Spec.StorageClassName == "lab" && len(portals) < 2 {
		t.Errorf("the volume of a backend with two portals names %v", portals)
	}
	must(t, disk.Write(ctx, 4096, pattern))
	// Written through the first portal, read through every one.
	for _, portal := range portals {
		disk.Portal = portal
		read, err := disk.Read(ctx, 4096, len(pattern))
		must(t, err)
		if !bytes.Equal(read, pattern) {
			t.Errorf("%s: what was written is not read back through portal %s", pv.Name, portal)
		}
	}
	size, err := disk.Size(ctx)
	must(t, err)
	if capacity := pv.Spec.Capacity.Storage().Value(); size != capacity {
		t.Errorf("%s: the target has %d bytes, the PersistentVolume says %d", pv.Name, size, capacity)
	}
	disk.CHAPPassword = "wrong-password-12"
	if _, err := disk.Read(ctx, 0, 512); err == nil {
		t.Errorf("%s: the target lets a wrong CHAP password in", pv.Name)
	}
}

// checkShared writes to a volume as two nodes would, one after the other.
func checkShared(t *testing.T, w *world, pv *corev1.PersistentVolume, pattern []byte) {
	if mode := pv.Spec.VolumeMode; mode == nil || *mode != corev1.PersistentVolumeBlock || pv.Spec.ISCSI.FSType != "" || pv.Spec.ISCSI.ReadOnly {
		t.Errorf("%s: volume mode %v, source %+v", pv.Name, mode, pv.Spec.ISCSI)
	}
	if modes := pv.Spec.AccessModes; len(modes) != 1 || modes[0] != corev1.ReadWriteMany {
		t.Errorf("%s: access modes %v", pv.Name, modes)
	}
	checkISCSI(t, w, pv, pattern)
	checkISCSI(t, w, pv, bytes.ToUpper(pattern))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// sharedSecrets lists the Secrets that the program made for several volumes.
func (w *world) sharedSecrets(ctx context.Context) ([]string, error) {
	list, err := w.Client.CoreV1().Secrets(harness.Namespace).List(ctx, metav1.ListOptions{LabelSelector: ours})
	if err != nil {
		return nil, err
	}
	var names []string
	for i := range list.Items {
		if list.Items[i].Annotations[annotationSharedBy] != "" {
			names = append(names, list.Items[i].Name)
		}
	}
	return names, nil
}
