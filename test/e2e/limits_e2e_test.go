//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/standalone-cinder/standalone-cinder/test/e2e/kubelet"
	"github.com/standalone-cinder/standalone-cinder/test/e2e/rig"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

const (
	limitsProject = 0xc74
	// The rig's limits are far below what the emulated disk does.
	limitedBytes, limitedRequests = 512 << 10, 20
)

// TestLimitsOfATypeHoldInThePod measures, in a pod of a real kubelet, a volume of a type
// with front-end QoS: direct I/O is within a tenth of the limits. A volume of the same
// backend without them is faster, so the limits and not the machine are what is measured.
func TestLimitsOfATypeHoldInThePod(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
	defer cancel()
	env, err := rig.Load(rig.EnvFile())
	must(t, err)
	c := startKubeletsWith(ctx, t, kubeletOptions{classes: []string{"limited", "free"}, policy: fmt.Sprintf(`
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
clusterID: e2e-kubelet
defaults: {mode: csi}
backends:
  - {name: lab, auth: {noauth: {endpoint: %q, user: %s, project: "%032x"}}}
tenants:
  - name: team-c
    namespaces: [team-c]
    classes:
      - {storageClasses: [limited], backends: [lab], volumeType: %s, fsType: ext4}
      - {storageClasses: [free], backends: [lab], volumeType: %s, fsType: ext4}
`, env.Noauth.Endpoint, env.Noauth.User, limitsProject, env.Types.Limited, env.Types.ISCSI)}, "node-1")
	speeds := map[string]map[string][2]float64{}
	for _, class := range []string{"limited", "free"} {
		c.bound(ctx, t, harness.Claim("team-c", class, class, "1Gi", nil))
		c.create(ctx, t, c.pod(class, class, func(pod *corev1.Pod) { pod.Spec.Containers[0].Args = []string{"measure", "/data", "10s"} }))
		speeds[class] = c.measured(ctx, t, class)
		t.Log(class, speeds[class])
	}
	for what, limit := range map[string][2]float64{
		"write of 65536": {limitedBytes, 0}, "read of 65536": {limitedBytes, 0}, "write of 4096": {0, limitedRequests}, "read of 4096": {0, limitedRequests},
	} {
		for i, want := range limit {
			if want == 0 {
				continue
			}
			if got := speeds["limited"][what][i]; got < want*0.9 || got > want*1.1 {
				t.Errorf("%s: %.1f a second, and the limit is %.0f", what, got, want)
			}
			if free := speeds["free"][what][i]; free < want*1.5 {
				t.Errorf("%s: without limits, it is only %.1f a second, so nothing is proven of %.0f", what, free, want)
			}
		}
	}
	for _, class := range []string{"limited", "free"} {
		c.removePod(ctx, t, class)
	}
}

var measuredLine = regexp.MustCompile(`measured (\w+ of \d+): (\d+) bytes and ([\d.]+) requests a second`)

// measured waits for what a pod measures: bytes and requests a second.
func (c *kubeletCluster) measured(ctx context.Context, t *testing.T, name string) map[string][2]float64 {
	t.Helper()
	pod := c.runs(ctx, t, name)
	found := map[string][2]float64{}
	must(t, harness.Eventually(ctx, func() (string, error) {
		log, err := kubelet.ContainerLog(ctx, c.nodes[pod.Spec.NodeName].Machine, "team-c", name)
		if err != nil || !strings.Contains(log, "measured everything") {
			return "pod " + name + " still measures: " + log, err
		}
		for _, line := range measuredLine.FindAllStringSubmatch(log, -1) {
			bytes, err := strconv.ParseFloat(line[2], 64)
			must(t, err)
			requests, err := strconv.ParseFloat(line[3], 64)
			must(t, err)
			found[line[1]] = [2]float64{bytes, requests}
		}
		return "", nil
	}))
	return found
}
