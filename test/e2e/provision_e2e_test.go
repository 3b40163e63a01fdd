//go:build e2e

// Package e2e runs the program against real Cinder, Keystone and iSCSI, in a
// real control plane.
package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/test/e2e/rig"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

const provisioner = "openstack.org/standalone-cinder"

// policyOf has two tenants on two backends side by side: one Cinder behind
// Keystone, by an application credential, and one without authentication.
func policyOf(env rig.Env) string {
	return fmt.Sprintf(`
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
backends:
  - name: gold
    auth: {cloud: team-a-appcred}
    region: %s
    interface: internal
    connector: {host: k8s-e2e, initiator: "iqn.2026-01.example:e2e"}
  - name: lab
    auth: {noauth: {endpoint: %q, user: %s, project: %s}}
    connector: {host: k8s-e2e, multipath: true}
tenants:
  - name: team-a
    namespaces: [team-a]
    classes:
      - {storageClasses: [gold], backends: [gold], volumeType: %s, fsType: ext4}
      - {storageClasses: [broken], backends: [gold], volumeType: %s}
  - name: team-b
    namespaces: [team-b]
    classes:
      - {storageClasses: [lab], backends: [lab], volumeType: %s}
`, env.Region, env.Noauth.Endpoint, env.Noauth.User, env.Noauth.Project, env.Types.ISCSI, env.Types.Fail, env.Types.ISCSIMultipath)
}

func TestClaimsBecomeVolumesThatHoldData(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	env, err := rig.Load(rig.EnvFile())
	if err != nil {
		t.Fatal(err)
	}
	targetsBefore, err := env.Targets(ctx)
	must(t, err)
	clouds, err := os.ReadFile(env.CloudsFile)
	must(t, err)
	suite, err := harness.StartSuite(ctx, harness.SuiteOptions{Log: os.Stderr})
	must(t, err)
	t.Cleanup(func() { must(t, suite.Stop()) })
	for _, name := range []string{"team-a", "team-b"} {
		must(t, suite.CreateNamespace(ctx, name, nil))
	}
	for _, name := range []string{"gold", "lab", "broken"} {
		must(t, suite.CreateClass(ctx, name, provisioner, func(class *storagev1.StorageClass) {}))
	}
	replicas := make([]*harness.Replica, 3)
	for i := range replicas {
		replicas[i], err = suite.StartReplica(ctx, harness.ReplicaOptions{Policy: policyOf(env), Clouds: string(clouds), Provisioner: provisioner})
		must(t, err)
		t.Cleanup(replicas[i].Kill)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for i, replica := range replicas {
				t.Logf("replica %d said:\n%s", i, replica.Log())
			}
		}
	})

	const each = 4
	for i := range each {
		_, err := suite.CreateClaim(ctx, harness.Claim("team-a", fmt.Sprintf("data-%d", i), "gold", "1Gi", nil))
		must(t, err)
		_, err = suite.CreateClaim(ctx, harness.Claim("team-b", fmt.Sprintf("data-%d", i), "lab", "1500Mi", nil))
		must(t, err)
	}
	a, err := suite.WaitBound(ctx, "team-a", each)
	must(t, err)
	b, err := suite.WaitBound(ctx, "team-b", each)
	must(t, err)

	secrets := map[string]bool{}
	for i, claim := range append(a, b...) {
		pv, err := suite.Client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
		must(t, err)
		chap, err := suite.Client.CoreV1().Secrets(pv.Spec.ISCSI.SecretRef.Namespace).Get(ctx, pv.Spec.ISCSI.SecretRef.Name, metav1.GetOptions{})
		must(t, err)
		secrets[string(chap.Data["node.session.auth.password"])] = true
		portals := append([]string{pv.Spec.ISCSI.TargetPortal}, pv.Spec.ISCSI.Portals...)
		if claim.Namespace == "team-b" && len(portals) < 2 {
			t.Errorf("the volume of a backend with two portals names %v", portals)
		}
		pattern := bytes.Repeat([]byte(fmt.Sprintf("%s/%s holds %d;", claim.Namespace, claim.Name, i)), 64)
		disk := diskOf(pv, chap)
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
	must(t, harness.Eventually(ctx, func() (string, error) { return notAll(ctx, env, each) }))

	_, err = suite.CreateClaim(ctx, harness.Claim("team-a", "broken", "broken", "1Gi", nil))
	must(t, err)
	event, err := suite.WaitEvent(ctx, "team-a", "broken", "ProvisioningFailed", "went to error and was removed")
	must(t, err)
	t.Logf("a volume that Cinder cannot make: %s", event.Message)

	for _, namespace := range []string{"team-a", "team-b"} {
		must(t, suite.DeleteClaims(ctx, namespace))
	}
	must(t, suite.WaitNoPersistentVolumes(ctx, provisioner))
	must(t, harness.Eventually(ctx, func() (string, error) {
		left, err := env.Targets(ctx)
		if err == nil && len(left) != len(targetsBefore) {
			return fmt.Sprintf("%d targets are exported, %d were before", len(left), len(targetsBefore)), nil
		}
		return "", err
	}))
	must(t, harness.Eventually(ctx, func() (string, error) { return volumesLeft(ctx, env) }))
	left, err := suite.Client.CoreV1().Secrets(harness.Namespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/managed-by=standalone-cinder"})
	must(t, err)
	if len(left.Items) > 0 {
		t.Errorf("%d Secrets are left", len(left.Items))
	}
	for i, replica := range replicas {
		for secret := range secrets {
			if strings.Contains(replica.Log(), secret) {
				t.Errorf("replica %d printed a CHAP password", i)
			}
		}
		for _, secret := range []string{env.TeamA.Password, env.TeamACredential.Secret} {
			if strings.Contains(replica.Log(), secret) {
				t.Errorf("replica %d printed a credential of Keystone", i)
			}
		}
	}
}

func diskOf(pv *corev1.PersistentVolume, chap *corev1.Secret) rig.Disk {
	disk := rig.Disk{
		Portal:       pv.Spec.ISCSI.TargetPortal,
		IQN:          pv.Spec.ISCSI.IQN,
		LUN:          int(pv.Spec.ISCSI.Lun),
		CHAPUser:     string(chap.Data["node.session.auth.username"]),
		CHAPPassword: string(chap.Data["node.session.auth.password"]),
	}
	if name := pv.Spec.ISCSI.InitiatorName; name != nil {
		disk.Initiator = *name
	}
	return disk
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
