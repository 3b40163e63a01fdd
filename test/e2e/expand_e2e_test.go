//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// TestVolumesInUseGrow extends LUNs in use, by both workflows, and reads the new
// size through the targets; the data stays.
func TestVolumesInUseGrow(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	w := startWorld(ctx, t)
	grown := w.stations[:3]
	wanted := map[string]int{} // by namespace
	for i := range grown {
		s := &grown[i]
		// The last one has a filesystem.
		_, err := w.CreateClaim(ctx, harness.Claim(s.namespace, s.name+"-0", s.name, s.size, func(claim *corev1.PersistentVolumeClaim) {
			if block := corev1.PersistentVolumeBlock; i < len(grown)-1 {
				claim.Spec.VolumeMode = &block
			}
		}))
		must(t, err)
		wanted[s.namespace]++
	}
	for namespace, count := range wanted {
		_, err := w.WaitBound(ctx, namespace, count)
		must(t, err)
	}
	must(t, harness.Eventually(ctx, func() (string, error) { return notInUse(ctx, w.env, len(grown)) }))
	for i, s := range grown {
		t.Run(s.name, func(t *testing.T) {
			claims, pattern := w.Client.CoreV1().PersistentVolumeClaims(s.namespace), bytes.Repeat([]byte(s.name+";"), 64)
			checkISCSI(t, w, w.volumeOf(ctx, t, s, 0), pattern)
			patch := func(text string) {
				_, err := claims.Patch(ctx, s.name+"-0", types.MergePatchType, []byte(text), metav1.PatchOptions{})
				must(t, err)
			}
			becomes := func(want string) {
				must(t, harness.Eventually(ctx, func() (string, error) {
					claim, err := claims.Get(ctx, s.name+"-0", metav1.GetOptions{})
					if err != nil {
						return "", err
					}
					is := strings.TrimSpace(fmt.Sprintf("%s %s", claim.Status.Capacity.Storage(), claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage]))
					if is != want {
						return fmt.Sprintf("claim %s is %s, want %s", claim.Name, is, want), nil
					}
					return "", nil
				}))
			}
			patch(`{"spec": {"resources": {"requests": {"storage": "3Gi"}}}}`)
			if i == len(grown)-1 {
				becomes("2Gi NodeResizePending")
			} else {
				becomes("3Gi")
			}
			pv := w.volumeOf(ctx, t, s, 0)
			if capacity := pv.Spec.Capacity.Storage().String(); capacity != "3Gi" {
				t.Errorf("the PersistentVolume has %s", capacity)
			}
			kept, err := w.disk(t, pv).Read(ctx, 4096, len(pattern))
			must(t, err)
			if !bytes.Equal(kept, pattern) {
				t.Error("the data did not survive the growth")
			}
			checkISCSI(t, w, pv, pattern) // compares the target's size
			if i == len(grown)-1 {
				patch(`{"metadata": {"annotations": {"standalone-cinder.openstack.org/filesystem-grown": "3Gi"}}}`)
				becomes("3Gi")
			}
		})
	}
	must(t, harness.Eventually(ctx, func() (string, error) { return notInUse(ctx, w.env, len(grown)) }))
	for namespace := range wanted {
		must(t, w.DeleteClaims(ctx, namespace))
	}
	must(t, w.WaitForNoPersistentVolumes(ctx, provisioner))
	must(t, harness.Eventually(ctx, func() (string, error) { return volumesLeft(ctx, w.env) }))
}
