package integration

import (
	"fmt"
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// copyShapes are what a claim for the content of another volume may ask for.
var copyShapes = []struct {
	name   string
	gib    int
	change func(*corev1.PersistentVolumeClaim)
	check  func(*corev1.PersistentVolume) (mistake string)
}{
	{name: "equal", gib: 1},
	{name: "larger", gib: 3},
	{name: "read-only", gib: 1,
		change: func(claim *corev1.PersistentVolumeClaim) {
			claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany}
		},
		check: func(pv *corev1.PersistentVolume) string {
			if modes := pv.Spec.AccessModes; len(modes) != 1 || modes[0] != corev1.ReadOnlyMany || !pv.Spec.ISCSI.ReadOnly {
				return fmt.Sprintf("has the access modes %v and the source %+v", modes, pv.Spec.ISCSI)
			}
			return ""
		},
	},
	{name: "by-reference", gib: 1, change: func(claim *corev1.PersistentVolumeClaim) {
		source := claim.Spec.DataSource
		claim.Spec.DataSource = nil
		claim.Spec.DataSourceRef = &corev1.TypedObjectReference{APIGroup: source.APIGroup, Kind: source.Kind, Name: source.Name}
	}},
}

// TestCopiesOfEveryShape makes volumes with the content of claims and of snapshots,
// as the provisioning suite of Kubernetes' end-to-end tests does:
// of filesystems and raw disks, and several at once.
//
//tier:outage
func TestCopiesOfEveryShape(t *testing.T) {
	t.Parallel()
	w := newSnapshotWorld(t, "copies")
	w.install()
	w.start()
	group := snapshotv1.GroupName
	sources := map[string]*corev1.TypedLocalObjectReference{}
	var claims []*corev1.PersistentVolumeClaim
	origin := map[string]cindersim.Volume{}
	snapshots := map[string]string{}
	for name, mode := range map[string]corev1.PersistentVolumeMode{"files": corev1.PersistentVolumeFilesystem, "disk": corev1.PersistentVolumeBlock} {
		w.file("b", name, "lab", func(claim *corev1.PersistentVolumeClaim) { claim.Spec.VolumeMode = &mode })
		_, origin[name] = w.boundVolume("b", name)
		content := w.take("b", name, name, w.class)
		snapshots[name] = *w.ready("b", content.Name).Status.SnapshotHandle
		sources["PersistentVolumeClaim"] = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: name}
		sources["VolumeSnapshot"] = &corev1.TypedLocalObjectReference{APIGroup: &group, Kind: "VolumeSnapshot", Name: name}
		for _, source := range sources {
			for _, shape := range copyShapes {
				claims = append(claims, harness.Claim(w.name+"-b", copyName(source.Kind, name, shape.name), w.name+"-lab", fmt.Sprintf("%dGi", shape.gib),
					func(claim *corev1.PersistentVolumeClaim) {
						claim.Spec.VolumeMode, claim.Spec.DataSource = &mode, source.DeepCopy()
						if shape.change != nil {
							shape.change(claim)
						}
					}))
			}
		}
	}
	for _, claim := range claims {
		_, err := suite.CreateClaim(w.ctx, claim)
		w.must(err)
	}
	for name := range origin {
		for kind := range sources {
			for _, shape := range copyShapes {
				copied := copyName(kind, name, shape.name)
				pv, volume := w.boundVolume("b", copied)
				if kind == "VolumeSnapshot" && volume.SnapshotID != snapshots[name] || kind != "VolumeSnapshot" && volume.SourceID != origin[name].ID {
					t.Errorf("the volume of claim %s is %+v", copied, volume)
				}
				size := resource.MustParse(fmt.Sprintf("%dGi", shape.gib))
				if got := pv.Spec.Capacity[corev1.ResourceStorage]; volume.SizeGiB != shape.gib || got.Cmp(size) != 0 {
					t.Errorf("the volume of claim %s has %d GiB at Cinder and a PersistentVolume of %s, want %s", copied, volume.SizeGiB, &got, &size)
				}
				if shape.check != nil {
					if mistake := shape.check(&pv); mistake != "" {
						t.Errorf("the PersistentVolume of claim %s %s", copied, mistake)
					}
				}
			}
		}
	}
	w.clean()
}

// copyName returns the name of the claim for a copy.
func copyName(kind, source, shape string) string {
	if kind == "VolumeSnapshot" {
		return "restored-" + source + "-" + shape
	}
	return "cloned-" + source + "-" + shape
}
