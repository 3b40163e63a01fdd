//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// TestVolumesAreMadeInTheirZones spreads claims over two availability zones of
// Cinder, and clones each: a clone is where its source is, and every
// PersistentVolume leads to the nodes of the zone in which Cinder has the volume.
func TestVolumesAreMadeInTheirZones(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	w := startWorld(ctx, t)
	const namespace, class = "team-b", "zoned"
	claim := func(name, source string) {
		_, err := w.CreateClaim(ctx, harness.Claim(namespace, name, class, "1Gi", func(c *corev1.PersistentVolumeClaim) {
			if source != "" {
				c.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: source}
			}
		}))
		must(t, err)
	}
	zoneOf := func(name string) string {
		t.Helper()
		pv := w.persistentVolume(ctx, t, namespace, name)
		zone := w.zoneOf(ctx, t, zonedProject, pv)
		pattern := bytes.Repeat([]byte(name+";"), 512)[:512]
		disk := w.disk(t, pv)
		must(t, disk.Write(ctx, 0, pattern))
		read, err := disk.Read(ctx, 0, 512)
		must(t, err)
		if !bytes.Equal(read, pattern) {
			t.Errorf("claim %s: what was written is not read back", name)
		}
		return zone
	}
	const replicas = 4
	for i := range replicas {
		claim(fmt.Sprintf("data-%d", i), "")
	}
	_, err := w.WaitBound(ctx, namespace, replicas)
	must(t, err)
	found := map[string]int{}
	zones := make([]string, replicas)
	for i := range replicas {
		zones[i] = zoneOf(fmt.Sprintf("data-%d", i))
		found[zones[i]]++
	}
	if found["nova"] != replicas/2 || found["zone-b"] != replicas/2 {
		t.Errorf("the replicas of a StatefulSet are in the zones %v", zones)
	}
	for i := range replicas {
		claim(fmt.Sprintf("copy-%d", i), fmt.Sprintf("data-%d", i))
	}
	_, err = w.WaitBound(ctx, namespace, 2*replicas)
	must(t, err)
	for i := range replicas {
		if zone := zoneOf(fmt.Sprintf("copy-%d", i)); zone != zones[i] {
			t.Errorf("data-%d is in zone %s, and its clone in %s", i, zones[i], zone)
		}
	}
	must(t, w.DeleteClaims(ctx, namespace))
	must(t, w.WaitForNoPersistentVolumes(ctx, provisioner))
	must(t, harness.Eventually(ctx, func() (string, error) { return volumesLeft(ctx, w.env) }))
}

// TestFullZoneSendsAClaimToTheNext: every volume in the first zone of the rule's
// backend ends in error.
func TestFullZoneSendsAClaimToTheNext(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	w := startWorld(ctx, t)
	const namespace = "team-b"
	_, err := w.CreateClaim(ctx, harness.Claim(namespace, "data", "filled", "1Gi", nil))
	must(t, err)
	_, err = w.WaitBound(ctx, namespace, 1)
	must(t, err)
	if zone := w.zoneOf(ctx, t, filledProject, w.persistentVolume(ctx, t, namespace, "data")); zone != "zone-b" {
		t.Errorf("the volume is in zone %s", zone)
	}
	event, err := w.WaitEvent(ctx, namespace, "data", "BackendChosen", "availability zone zone-b; passed over: backend filled, availability zone zone-full: ")
	must(t, err)
	t.Log(event.Message)
	must(t, w.DeleteClaims(ctx, namespace))
	must(t, w.WaitForNoPersistentVolumes(ctx, provisioner))
	must(t, harness.Eventually(ctx, func() (string, error) { return volumesLeft(ctx, w.env) }))
}

// zoneOf returns where Cinder has a volume, to whose nodes its PersistentVolume must
// lead.
func (w *world) zoneOf(ctx context.Context, t *testing.T, project int, pv *corev1.PersistentVolume) string {
	t.Helper()
	var answer struct {
		Volume struct {
			Zone string `json:"availability_zone"`
		} `json:"volume"`
	}
	must(t, askProject(ctx, w.env, fmt.Sprintf("%032x", project), "/volumes/"+pv.Annotations[annotationVolume], &answer))
	rack := map[string]string{"nova": "rack-a", "zone-b": "rack-b"}[answer.Volume.Zone]
	terms := pv.Spec.NodeAffinity.Required.NodeSelectorTerms
	if rack == "" || len(terms) != 1 || fmt.Sprint(terms[0].MatchExpressions) != fmt.Sprintf("[{topology.kubernetes.io/zone In [%s]}]", rack) {
		t.Errorf("%s: the volume is in zone %q, and the PersistentVolume leads to %v", pv.Name, answer.Volume.Zone, terms)
	}
	return answer.Volume.Zone
}

// persistentVolume returns the PersistentVolume of a claim.
func (w *world) persistentVolume(ctx context.Context, t *testing.T, namespace, claim string) *corev1.PersistentVolume {
	t.Helper()
	bound, err := w.Client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, claim, metav1.GetOptions{})
	must(t, err)
	pv, err := w.Client.CoreV1().PersistentVolumes().Get(ctx, bound.Spec.VolumeName, metav1.GetOptions{})
	must(t, err)
	return pv
}
