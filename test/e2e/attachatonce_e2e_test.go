//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/test/e2e/rig"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// TestManyAttachmentsAtOnce attaches volumes to ten nodes at once, through the real
// csi-attacher and at real Cinder, and detaches them. It logs how long that takes next to
// the bare requests. The nodes are only objects: nothing uses the volumes.
func TestManyAttachmentsAtOnce(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	atOnce := 50
	if testing.Short() {
		atOnce = 10
	}
	env, err := rig.Load(rig.EnvFile())
	must(t, err)
	c := startCSI(ctx, t, csiFeaturesPolicy(env), "files")
	nodes := make([]*csiNode, 10)
	for i := range nodes {
		nodes[i] = &csiNode{name: fmt.Sprintf("at-once-%d", i), initiator: fmt.Sprintf("iqn.2026-01.example:at-once-%d", i)}
		id, err := wire.Node{Name: nodes[i].name, InitiatorName: nodes[i].initiator}.NodeID()
		must(t, err)
		_, err = c.Client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodes[i].name}}, metav1.CreateOptions{})
		must(t, err)
		must(t, c.ReportStaged(ctx, nodes[i].name, harness.Machine(nodes[i].name, "boot-1")))
		_, err = c.Client.StorageV1().CSINodes().Create(ctx, &storagev1.CSINode{
			ObjectMeta: metav1.ObjectMeta{Name: nodes[i].name},
			Spec:       storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: wire.DriverName, NodeID: id}}},
		}, metav1.CreateOptions{})
		must(t, err)
	}
	for i := range atOnce {
		_, err := c.CreateClaim(ctx, harness.Claim("team-c", fmt.Sprintf("data-%d", i), "files", "1Gi", nil))
		must(t, err)
	}
	claims, err := c.WaitBound(ctx, "team-c", atOnce)
	must(t, err)
	pvs := make([]*corev1.PersistentVolume, atOnce)
	for i := range claims {
		pvs[i] = c.served(ctx, t, &claims[i])
	}
	project := fmt.Sprintf("%032x", csiProject)
	nodeOf := func(i int) *csiNode { return nodes[i%len(nodes)] }

	bare := inParallel(t, atOnce, func(i int) error {
		var made struct {
			Attachment struct{ ID string } `json:"attachment"`
		}
		node := nodeOf(i)
		err := send(ctx, env, http.MethodPost, project, "/attachments", map[string]any{"attachment": map[string]any{
			"volume_uuid": volumeID(t, pvs[i]), "connector": map[string]any{"host": node.name, "initiator": node.initiator},
		}}, &made)
		if err == nil {
			err = send(ctx, env, http.MethodPost, project, "/attachments/"+made.Attachment.ID+"/action", map[string]any{"os-complete": nil}, nil)
		}
		return err
	})
	attachments, err := attachmentsByVolume(ctx, env)
	must(t, err)
	bareDetached := inParallel(t, atOnce, func(i int) error {
		return send(ctx, env, http.MethodDelete, project, "/attachments/"+attachments[volumeID(t, pvs[i])][0].ID, nil, nil)
	})

	attached := inParallel(t, atOnce, func(i int) error {
		c.ask(ctx, t, pvs[i], nodeOf(i))
		return nil
	}) + c.untilAttachments(ctx, t, atOnce)
	attachments, err = attachmentsByVolume(ctx, env)
	must(t, err)
	for _, pv := range pvs {
		if got := attachments[volumeID(t, pv)]; len(got) != 1 || got[0].Status != "attached" {
			t.Errorf("volume %s has the attachments %+v", volumeID(t, pv), got)
		}
	}
	detached := inParallel(t, atOnce, func(i int) error {
		c.giveUp(ctx, t, pvs[i], nodeOf(i))
		return nil
	}) + c.untilAttachments(ctx, t, 0)
	attachments, err = attachmentsByVolume(ctx, env)
	must(t, err)
	for _, pv := range pvs {
		if got := attachments[volumeID(t, pv)]; len(got) != 0 {
			t.Errorf("volume %s still has the attachments %+v", volumeID(t, pv), got)
		}
	}
	t.Logf("%d at once: attached after %s, by bare requests after %s (%.2f); detached after %s, %s (%.2f)", atOnce,
		attached.Round(time.Millisecond), bare.Round(time.Millisecond), attached.Seconds()/bare.Seconds(),
		detached.Round(time.Millisecond), bareDetached.Round(time.Millisecond), detached.Seconds()/bareDetached.Seconds())

	must(t, c.DeleteClaims(ctx, "team-c"))
	must(t, c.WaitForNoPersistentVolumes(ctx, csiProvisioner))
	must(t, harness.Eventually(ctx, func() (string, error) { return volumesLeft(ctx, env) }))
}

// untilAttachments waits until there are that many VolumeAttachments, all attached, and
// returns how long that took.
func (c csiCluster) untilAttachments(ctx context.Context, t *testing.T, want int) time.Duration {
	t.Helper()
	began := time.Now()
	must(t, harness.Eventually(ctx, func() (string, error) {
		all, err := c.Client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
		if err != nil {
			return "", err
		}
		made := 0
		for _, a := range all.Items {
			if a.Status.Attached {
				made++
			}
		}
		if made == want && len(all.Items) == want {
			return "", nil
		}
		return fmt.Sprintf("%d of %d attachments are made, want %d", made, len(all.Items), want), nil
	}))
	return time.Since(began)
}

// inParallel does something n times at once, and returns how long all of it
// took.
func inParallel(t *testing.T, n int, do func(i int) error) time.Duration {
	t.Helper()
	began := time.Now()
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() {
			if err := do(i); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return time.Since(began)
}
