//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/test/e2e/kubelet"
	"github.com/standalone-cinder/standalone-cinder/test/e2e/rig"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

const (
	moveFromProject = 0xc75
	moveToProject   = 0xc76
)

// TestPodsFindWhatTheyWroteAfterAMove moves volumes from iSCSI to Ceph, or to other iSCSI
// storage if the rig has no Ceph, by the command of the documentation and a pod on a real
// kubelet. Under the same claim, the next pod verifies each record that the former one wrote.
func TestPodsFindWhatTheyWroteAfterAMove(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
	defer cancel()
	env, err := rig.Load(rig.EnvFile())
	must(t, err)
	target := env.Types.ISCSIMultipath
	if env.CephMonitor != "" {
		target = env.Types.RBD
	}
	policy := fmt.Sprintf(`
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
clusterID: e2e-kubelet
defaults: {mode: csi}
backends:
  - {name: old, auth: {noauth: {endpoint: %[1]q, user: %[2]s, project: "%032[3]x"}}, csi: {encryption: {fixedKeySecret: cinder-key}}}
  - {name: new, auth: {noauth: {endpoint: %[1]q, user: %[2]s, project: "%032[4]x"}}}
tenants:
  - name: team-c
    namespaces: [team-c]
    classes:
      - {storageClasses: [ext4], backends: [old, new], volumeType: %[5]s, fsType: ext4}
      - {storageClasses: [xfs], backends: [old, new], volumeType: %[5]s, fsType: xfs}
      - {storageClasses: [luks], backends: [old, new], volumeType: %[7]s, fsType: ext4}
      - {storageClasses: [new-luks], backends: [new, old], volumeType: %[6]s, fsType: ext4, encrypt: {keySecret: keys, entry: first}}
      - {storageClasses: [new-plain], backends: [new, old], volumeType: %[6]s, fsType: ext4, encrypt: {keySecret: keys, entry: first}}
      - {storageClasses: [new-ext4], backends: [new, old], volumeType: %[6]s, fsType: ext4}
      - {storageClasses: [new-xfs], backends: [new, old], volumeType: %[6]s, fsType: xfs}
`, env.Noauth.Endpoint, env.Noauth.User, moveFromProject, moveToProject, env.Types.ISCSI, target, env.Types.LUKS2)
	c := startKubeletsWith(ctx, t, kubeletOptions{classes: []string{"ext4", "xfs", "luks", "new-ext4", "new-xfs", "new-luks", "new-plain"}, policy: policy}, "node-1")
	c.secret(ctx, t, "cinder-key", nil, map[string]string{"fixedKey": env.FixedKey})
	c.secret(ctx, t, "keys", map[string]string{objects.LabelKeyEncryption: "true"}, map[string]string{"first": strings.Repeat("0123456789abcdef", 4)})
	dir := t.TempDir()
	file := filepath.Join(dir, "policy.yaml")
	must(t, os.WriteFile(file, []byte(policy), 0o600))
	kubeconfig, err := c.Administrator(dir, "", nil)
	must(t, err)

	// What Cinder encrypts is moved to what nodes encrypt, and so is what nobody does.
	for _, claim := range []string{"ext4", "xfs", "luks", "plain", "raw"} {
		t.Run(claim, func(t *testing.T) {
			class, to, change := claim, "new-"+claim, func(pod *corev1.Pod) { pod.Spec.Containers[0].Args = []string{"write", "/data", "of " + claim} }
			var block func(*corev1.PersistentVolumeClaim)
			switch claim {
			case "plain":
				class = "ext4"
			case "raw":
				class, to, change = "ext4", "new-ext4", raw
				block = func(claim *corev1.PersistentVolumeClaim) { claim.Spec.VolumeMode = new(corev1.PersistentVolumeBlock) }
			}
			c.bound(ctx, t, harness.Claim("team-c", claim, class, "1Gi", block))
			c.create(ctx, t, c.pod("writer", claim, change))
			c.writes(ctx, t, "writer")
			before := c.told(ctx, t, "writer")
			if code, output, err := c.Run(ctx, moveOf(claim, to, file, kubeconfig)...); err != nil || code != 1 || !strings.Contains(output, "in use on node node-1") {
				t.Errorf("while a pod writes, the volume is moved: %d, %v: %s", code, err, output)
			}
			c.removePod(ctx, t, "writer")
			begin := time.Now()
			must(t, harness.Eventually(ctx, func() (string, error) {
				code, output, err := c.Run(ctx, moveOf(claim, to, file, kubeconfig)...)
				if err == nil && strings.Contains(output, "in use on node") {
					return output, nil // it is being detached
				}
				if err == nil && code != 0 {
					err = fmt.Errorf("exit code %d", code)
				}
				t.Log(output)
				return "", err
			}))
			t.Logf("moved after %s", time.Since(begin))
			for name, backend := range map[string]string{claim: "new", claim + "-former": "old"} {
				found, err := c.Client.CoreV1().PersistentVolumeClaims("team-c").Get(ctx, name, metav1.GetOptions{})
				must(t, err)
				pv, err := c.Client.CoreV1().PersistentVolumes().Get(ctx, found.Spec.VolumeName, metav1.GetOptions{})
				must(t, err)
				if at := pv.Annotations[objects.AnnotationBackend]; at != backend {
					t.Errorf("claim %s has a volume of backend %s", name, at)
				}
				if encrypted := name == "luks" || name == "plain"; encrypted != (objects.EncryptedOf(pv) != "") {
					t.Errorf("nodes encrypt the volume of claim %s for %q", name, objects.EncryptedOf(pv))
				}
			}
			// The former volume is no longer needed for anything.
			must(t, c.Client.CoreV1().PersistentVolumeClaims("team-c").Delete(ctx, claim+"-former", metav1.DeleteOptions{}))
			c.create(ctx, t, c.pod("reader", claim, change))
			after := c.writes(ctx, t, "reader")
			if after.found < before.wrote || after.group != before.group || after.text != before.text || claim != "raw" && after.text != "of "+claim {
				t.Errorf("the pod was at %+v, and the next is at %+v", before, after)
			}
			c.removePod(ctx, t, "reader")
		})
	}
	t.Run("nothing is left", func(t *testing.T) { c.nothingLeft(ctx, t) })
}

func moveOf(claim, class, policy, kubeconfig string) []string {
	return []string{
		"volume", "move", "team-c/" + claim, "--to-backend", "new", "--storage-class", class, "--image", kubelet.ProgramImage, "--apply",
		"--policy", policy, "--kubeconfig", kubeconfig, "--provisioner-name", csiProvisioner,
	}
}
