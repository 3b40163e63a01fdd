package claims

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
)

// drivers makes a volume one that a claim of tenant a in mode csi left behind.
func drivers(v *cinder.Volume) {
	stamped("cluster-1", "a", "gone")(v)
	v.Metadata[stamps.KeyMode] = stamps.ModeCSI
}

// TestClaimGetsAVolumeOfTheDriver: the StorageClass may also name the driver. The
// volume stays available.
func TestClaimGetsAVolumeOfTheDriver(t *testing.T) {
	for _, class := range []string{"csi", "driver"} {
		t.Run(class, func(t *testing.T) {
			f := newFixture(t, data("volume-1", drivers))
			claim := f.ask("team-a", "mine", class, "data", nil)
			f.sync(claim)
			f.sync(claim)
			want := "Normal VolumeImported tenant a, rule tenants[0].classes[2]: volume volume-1 (4 GiB) of backend gold is imported; its PersistentVolume imported-volume-1 keeps it when the claim is deleted"
			if events := f.newEvents(); !slices.Equal(events, []string{want}) {
				t.Fatalf("events %q", events)
			}
			pv, err := f.client.CoreV1().PersistentVolumes().Get(t.Context(), "imported-volume-1", metav1.GetOptions{})
			f.must(err)
			source := pv.Spec.CSI
			if source == nil || source.VolumeHandle != "gold/volume-1" || source.VolumeAttributes["neverFormat"] != "true" || source.VolumeAttributes["filesystemUUIDs"] != "" || len(f.secretsOf(pv.Name)) == 0 {
				t.Errorf("source %+v", source)
			}
			if v := f.projects["gold"].volumes["volume-1"]; v.Status != cinder.StatusAvailable || stamps.Of(v).ClaimUID != "uid-mine" {
				t.Errorf("volume %+v", v)
			}
		})
	}
}

// TestTenantCannotNameAFilesystem: only what an administrator recorded counts.
func TestTenantCannotNameAFilesystem(t *testing.T) {
	f := newFixture(t, data("volume-1", nil))
	claim := f.ask("team-a", "mine", "csi", "data", nil)
	f.sync(claim)
	want := "Warning ImportRefused volume volume-1 was not in mode csi, and the UUID of its filesystem, by which the CSI driver identifies it, is not recorded; ask an operator to record it at Cinder: " +
		"openstack volume set --property standalone-cinder.openstack.org/filesystem-uuids=UUID volume-1"
	if events := f.newEvents(); !slices.Equal(events, []string{want}) || f.served("volume-1") != "" || stamps.Of(f.projects["gold"].volumes["volume-1"]).Cluster != "" {
		t.Fatalf("events %q", events)
	}
	const uuid = "6f3d7f7c-8b0f-4b43-8d4e-3f3b9d3f6a11"
	f.projects["gold"].put(data("volume-1", func(v *cinder.Volume) { v.Metadata["standalone-cinder.openstack.org/filesystem-uuids"] = uuid }))
	f.sync(claim)
	pv, err := f.client.CoreV1().PersistentVolumes().Get(t.Context(), "imported-volume-1", metav1.GetOptions{})
	f.must(err)
	if got := pv.Spec.CSI.VolumeAttributes["filesystemUUIDs"]; got != uuid {
		t.Errorf("filesystem %q", got)
	}
}

// TestEndOfAnImportInModeCSI: the claim is deleted before its PersistentVolume exists.
// The volume stays as it is, and the tenant's next claim gets it, even under the next
// leader.
func TestEndOfAnImportInModeCSI(t *testing.T) {
	f := newFixture(t, data("volume-1", drivers))
	f.projects["gold"].die = "connect"
	claim := f.ask("team-a", "mine", "csi", "data", nil)
	f.sync(claim)
	f.projects["gold"].die = ""
	f.remove(claim, true)
	f.endLeftovers()
	if v := f.projects["gold"].volumes["volume-1"]; v.Status != cinder.StatusAvailable || len(f.secretsOf("imported-volume-1")) > 0 || f.served("volume-1") != "" {
		t.Errorf("volume %+v, Secrets %v", v, f.secretsOf("imported-volume-1"))
	}
	f.term()
	next := f.ask("team-a", "next", "csi", "data", nil)
	f.sync(next)
	if f.served("volume-1") != "next" {
		t.Errorf("events %q", f.newEvents())
	}
}
