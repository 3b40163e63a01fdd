package snapshot

import (
	"fmt"
	"slices"
	"testing"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// TestAttackAGroupThatWasBegunBeforeASwapIsGivenUp: the claims of a group swap their volumes
// while Cinder takes the snapshots. The content records the former volumes, so each call of
// the sidecar fails as Damaged, before it could go on or give up. When the owner deletes the
// group, the snapshots are not removed, and the sidecar deletes the content without them: they
// stay at Cinder, and keep the volumes from being deleted.
func TestAttackAGroupThatWasBegunBeforeASwapIsGivenUp(t *testing.T) {
	for name, swapped := range map[string]bool{"not swapped": false, "swapped": true} {
		t.Run(name, func(t *testing.T) {
			b := newGroupBench(t, true, ofCSI(func(c *groupv1.VolumeGroupSnapshotContent) {
				begun(c)
				beingDeleted(c)
			}))
			b.counting.counted[Shelf{"gold", false}] = true
			for i := range 2 {
				(&ice{groupShelf: b.shelf}).has(fmt.Sprintf("volume-%d", i+1))
				if swapped {
					b.volumes[i].Annotations[objects.AnnotationVolume] = fmt.Sprintf("volume-%d", 2-i)
					b.volumes[i].Annotations[objects.AnnotationSwapped] = fmt.Sprintf(`{"handle": "gold/volume-%d"}`, i+1)
				}
			}
			b.grouped.countGroup(b.groupContent())
			_, err := (Sidecar{b.Controller}).TakeGroup(t.Context(), b.volumes, "groupsnapshot-g1", map[string]string{"consistency": "none"})
			if !slices.ContainsFunc(b.shelf.calls, func(call string) bool {
				return len(call) > 7 && call[:7] == "abandon" || len(call) > 6 && call[:6] == "remove"
			}) {
				t.Errorf("nothing is removed: requests %q, error %v", b.shelf.calls, err)
			}
		})
	}
}
