//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/test/e2e/rig"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// TestPodsUseEncryptedVolumes has real kubelets, the DaemonSet and a leader with volumes of
// Cinder's encrypted types: each is made for a claim, moves to the next node, and grows, and
// its key is in no log.
func TestPodsUseEncryptedVolumes(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
	defer cancel()
	env, err := rig.Load(rig.EnvFile())
	must(t, err)
	c := startKubeletsWith(ctx, t, kubeletOptions{classes: []string{"luks", "luks2"}, policy: fmt.Sprintf(`
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
clusterID: e2e-kubelet
backends:
  - name: lab
    auth: {noauth: {endpoint: %q, user: %s, project: "%032x"}}
    csi: {encryption: {fixedKeySecret: cinder-key}}
tenants:
  - name: team-c
    namespaces: [team-c]
    classes:
      - {storageClasses: [luks], backends: [lab], volumeType: %s, fsType: ext4, mode: csi}
      - {storageClasses: [luks2], backends: [lab], volumeType: %s, fsType: xfs, mode: csi}
`, env.Noauth.Endpoint, env.Noauth.User, kubeletProject, env.Types.LUKS, env.Types.LUKS2)}, "node-1", "node-2")
	_, err = c.Client.CoreV1().Secrets(harness.Namespace).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "cinder-key"}, StringData: map[string]string{"fixedKey": env.FixedKey},
	}, metav1.CreateOptions{})
	must(t, err)
	c.passwords[env.FixedKey] = true
	for _, class := range []string{"luks", "luks2"} {
		t.Run(class, func(t *testing.T) {
			c.bound(ctx, t, harness.Claim("team-c", class, class, "1Gi", nil))
			c.moves(ctx, t, class+"-writer", class, nil)
			c.grows(ctx, t, class+"-writer", class)
		})
	}
	t.Run("nothing is left", func(t *testing.T) { c.nothingLeft(ctx, t) })
	t.Run("no log has the key", func(t *testing.T) { c.noPassword(ctx, t) })
}
