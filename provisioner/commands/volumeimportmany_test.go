package commands

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/imports"
)

// TestWhichPersistentVolumesAreImported: those of other drivers for Cinder whose claims are
// known, of the StorageClasses that the flag names.
func TestWhichPersistentVolumesAreImported(t *testing.T) {
	pv := func(name, claim, class, source, more string) string {
		return fmt.Sprintf(`{"metadata": {"name": %q%s}, "spec": {"storageClassName": %q, "claimRef": %s, "volumeMode": "Block", "accessModes": ["ReadWriteMany"], "mountOptions": ["noatime"], %s}, "status": {"phase": %q}}`,
			name, strings.TrimPrefix(more, "bound"), class, claim, source, map[bool]string{true: "Bound", false: "Released"}[strings.HasPrefix(more, "bound")])
	}
	claim := func(name string) string { return fmt.Sprintf(`{"namespace": "shop", "name": %q}`, name) }
	const csi, intree, iscsi = `"csi": {"driver": "cinder.csi.openstack.org", "volumeHandle": "v-csi"}`, `"cinder": {"volumeID": "v-tree"}`, `"iscsi": {"lun": 1}`
	list := `{"kind": "PersistentVolumeList", "apiVersion": "v1", "items": [` + strings.Join([]string{
		pv("two", claim("b"), "old", strings.Replace(csi, "v-csi", "v-two", 1), ""),
		pv("one", claim("a"), "old", intree, `, "annotations": {"standalone-cinder.openstack.org/filesystem-uuids": "6f3d7f7c-8b0f-4b43-8d4e-3f3b9d3f6a11"}`),
		pv("historic", claim("c"), "ssd", iscsi, `, "annotations": {"cinderVolumeId": "v-historic"}`),
		pv("foreign", claim("d"), "old", iscsi, ""),
		pv("unclaimed", "null", "old", csi, ""),
		pv("other-class", claim("e"), "gone", csi, ""),
		pv("left-behind", claim("f"), "old", csi, ""),
		pv("bound", claim("f"), "old", csi, "bound"),
		pv("either", claim("g"), "old", csi, ""),
		pv("or", claim("g"), "old", csi, ""),
		pv("no-uuid", claim("h"), "old", csi, `, "annotations": {"standalone-cinder.openstack.org/filesystem-uuids": "sda1"}`),
	}, ",") + `]}`
	classes, err := readClasses("old=gold,ssd=fast")
	if err != nil {
		t.Fatal(err)
	}
	flags := &importFlags{classes: classes}
	all, skipped, err := flags.requestsOf([]byte(list))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, one := range all {
		if !one.OnlyID {
			t.Errorf("%s: a volume of that name would be taken", one.pv)
		}
		if !slices.Equal(one.mountOptions, []string{"noatime"}) {
			t.Errorf("%s: mount options %q", one.pv, one.mountOptions)
		}
		got = append(got, fmt.Sprintf("%s %s/%s %s %s %v %s %v", one.pv, one.Namespace, one.Claim, one.StorageClass, one.Volume, one.AccessModes, one.VolumeMode, one.FilesystemUUIDs))
	}
	want := []string{
		"one shop/a gold v-tree [ReadWriteMany] Block [6f3d7f7c-8b0f-4b43-8d4e-3f3b9d3f6a11]",
		"two shop/b gold v-two [ReadWriteMany] Block []",
		"historic shop/c fast v-historic [ReadWriteMany] Block []",
		"bound shop/f gold v-csi [ReadWriteMany] Block []",
	}
	if !slices.Equal(got, want) {
		t.Errorf("imported are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	wantSkipped := []string{
		"PersistentVolume foreign: neither cinder-csi nor the historic program made it",
		"PersistentVolume unclaimed: it has no claim",
		`PersistentVolume other-class: --storage-class does not say what becomes of StorageClass "gone"`,
		"PersistentVolume left-behind: claim shop/f is bound to PersistentVolume bound",
		"PersistentVolume either: 2 PersistentVolumes name claim shop/g, and the file does not tell which is its own: exactly one must be Bound",
		"PersistentVolume or: 2 PersistentVolumes name claim shop/g, and the file does not tell which is its own: exactly one must be Bound",
		"PersistentVolume no-uuid: its annotation standalone-cinder.openstack.org/filesystem-uuids is not a UUID",
	}
	if !slices.Equal(skipped, wantSkipped) {
		t.Errorf("left out are\n%s\nwant\n%s", strings.Join(skipped, "\n"), strings.Join(wantSkipped, "\n"))
	}
	flags.override = true
	flags.request.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	all, _, _ = flags.requestsOf([]byte(list))
	if len(all) != len(want) || slices.ContainsFunc(all, func(one oneImport) bool { return !slices.Equal(one.AccessModes, flags.request.AccessModes) }) {
		t.Errorf("with --access-mode: %+v", all)
	}
	flags.request.Namespace = "other"
	if all, _, err := flags.requestsOf([]byte(list)); err != nil || len(all) > 0 {
		t.Errorf("of another namespace: %v, %v", all, err)
	}
	for name, text := range map[string]string{"one PersistentVolume": `{"kind": "PersistentVolume"}`, "nothing": "", "no list": "- a"} {
		if _, _, err := flags.requestsOf([]byte(text)); err == nil || !strings.Contains(err.Error(), "kubectl get pv -o json") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestAVolumeOfTwoPersistentVolumesGoesToTheBoundOne: an administrator may have given a kept
// volume to a claim of another tenant, with a second PersistentVolume. In the order of the
// claims, the tenant that had it first would get it back.
func TestAVolumeOfTwoPersistentVolumesGoesToTheBoundOne(t *testing.T) {
	pv := func(name, namespace, source, phase string) string {
		return fmt.Sprintf(`{"metadata": {"name": %q}, "spec": {"storageClassName": "old", "claimRef": {"namespace": %q, "name": "data"}, %s}, "status": {"phase": %q}}`, name, namespace, source, phase)
	}
	const csi, intree = `"csi": {"driver": "cinder.csi.openstack.org", "volumeHandle": "v1"}`, `"cinder": {"volumeID": "v1"}`
	flags := &importFlags{classes: map[string]string{"old": "gold"}}
	for name, c := range map[string]struct{ phase, want string }{
		"given away": {"Bound", "new"},
		"unclear":    {"Released", ""},
	} {
		all, skipped, err := flags.requestsOf([]byte(`{"items": [` + pv("first", "a", intree, "Released") + "," + pv("new", "b", csi, c.phase) + `]}`))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, one := range all {
			got = append(got, one.pv)
		}
		if strings.Join(got, " ") != c.want || len(all)+len(skipped) != 2 || !strings.Contains(skipped[0], "volume v1") {
			t.Errorf("%s: %q are imported, want %q; left out: %q", name, got, c.want, skipped)
		}
	}
}

func TestStorageClassesOfManyImports(t *testing.T) {
	for _, wrong := range []string{"gold", "old=", "old=gold,old=fast", ""} {
		if _, err := readClasses(wrong); err == nil || !strings.Contains(err.Error(), "--storage-class must be OLD=NEW") {
			t.Errorf("%q: %v", wrong, err)
		}
	}
	// A PersistentVolume without a StorageClass has the empty one.
	if classes, err := readClasses("=gold"); err != nil || classes[""] != "gold" {
		t.Errorf("%v, %v", classes, err)
	}
}

// TestAVolumeThatNodesCannotMountIsRefused: the filesystem is that of the rule, not the one
// that the volume has.
func TestAVolumeThatNodesCannotMountIsRefused(t *testing.T) {
	plan := &imports.Plan{}
	plan.Decision.Volume.FSType = "ext4"
	for name, c := range map[string]struct {
		spec    string
		refused bool
	}{
		"another filesystem": {`"csi": {"driver": "cinder.csi.openstack.org", "volumeHandle": "v", "fsType": "xfs"}`, true},
		"another, in tree":   {`"cinder": {"volumeID": "v", "fsType": "xfs"}`, true},
		"the same":           {`"cinder": {"volumeID": "v", "fsType": "ext4"}`, false},
		"none is named":      {`"cinder": {"volumeID": "v"}`, false},
		"a raw block device": {`"volumeMode": "Block", "csi": {"driver": "cinder.csi.openstack.org", "volumeHandle": "v", "fsType": "xfs"}`, false},
	} {
		flags := &importFlags{classes: map[string]string{"": "gold"}}
		all, skipped, err := flags.requestsOf([]byte(`{"items": [{"metadata": {"name": "pv"}, "spec": {"claimRef": {"namespace": "a", "name": "data"}, ` + c.spec + `}}]}`))
		if err != nil || len(all) != 1 {
			t.Fatal(err, skipped)
		}
		if err := all[0].checkFSType(plan); (err != nil) != c.refused {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestMountOptionsThatAreNotKeptAreTold: they come from the StorageClass.
func TestMountOptionsThatAreNotKeptAreTold(t *testing.T) {
	made := &corev1.PersistentVolume{}
	made.Name, made.Spec.MountOptions = "imported-v1", []string{"discard"}
	for name, c := range map[string]struct {
		old   []string
		state string
		want  string
	}{
		"none":             {nil, stateReady, ""},
		"the same":         {[]string{"discard"}, stateReady, ""},
		"others":           {[]string{"noatime", "discard", "nodev"}, stateReady, "mountOptions noatime, nodev are not kept; set them on the StorageClass"},
		"already imported": {[]string{"noatime"}, stateAlready, "mountOptions noatime are not kept; set them on PersistentVolume imported-v1"},
	} {
		one := oneImport{mountOptions: c.old, state: c.state}
		if got := strings.Join(one.lostMountOptions(made), "; "); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// countedLists counts how often a project is listed. The first time, it does not answer.
type countedLists struct {
	imports.Volumes
	lists int
}

func (c *countedLists) All(context.Context) ([]cinder.Volume, error) {
	if c.lists++; c.lists == 1 {
		return nil, errors.New("no answer")
	}
	return []cinder.Volume{{ID: "v1"}, {ID: "v2"}}, nil
}

func TestManyImportsListTheProjectOnce(t *testing.T) {
	counted := &countedLists{}
	importer := &imports.Importer{Site: imports.Site{Client: fake.NewClientset()}, Backend: &policy.Backend{Name: "gold"}, Volumes: &listedOnce{Volumes: counted}}
	for n, want := range []string{"no answer", "StorageClass", "StorageClass", "no volume"} {
		one := oneImport{Request: imports.Request{Volume: fmt.Sprint("v", n), OnlyID: true}}
		if (&importFlags{}).importOne(t.Context(), importer, &one); !strings.Contains(one.why, want) {
			t.Errorf("%s: %s, want %s", one.Volume, one.why, want)
		}
	}
	if counted.lists != 2 {
		t.Errorf("the project was listed %d times", counted.lists)
	}
}
