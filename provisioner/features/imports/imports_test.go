package imports

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodeuse"
)

// freeVolumes treats every volume as importable.
type freeVolumes struct{ Volumes }

func (freeVolumes) Importable(cinder.Volume, stamps.Volume, cinder.Connector, bool) error {
	return nil
}

func claim(name, uid, volumeName string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name, UID: types.UID(uid)}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: volumeName}}
}

func naming(name, volume string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"standalone-cinder.openstack.org/volume-id": volume}}}
}

// TestKeptVolumeIsFreeWhenNothingNeedsIt: a stamp binds a volume as long as Kubernetes
// has its claim or its PersistentVolume, unless the stamp was copied together with the
// data.
func TestKeptVolumeIsFreeWhenNothingNeedsIt(t *testing.T) {
	made := time.Date(2026, 11, 20, 15, 0, 0, 0, time.UTC)
	stamped := func(id string, created time.Time) cinder.Volume {
		metadata := stamps.Volume{Cluster: "cluster-1", Namespace: "team-a", Claim: "data", ClaimUID: "uid-1", PV: "pvc-uid-1"}.Metadata(nil)
		metadata["standalone-cinder.openstack.org/requested-at"] = made.Format(time.RFC3339)
		return cinder.Volume{ID: id, Status: cinder.StatusAvailable, Metadata: metadata, CreatedAt: created}
	}
	original, restored := stamped("volume-1", made), stamped("volume-2", made.Add(48*time.Hour))
	for name, c := range map[string]struct {
		volume  cinder.Volume
		objects []runtime.Object
		want    string
	}{
		"nothing is left":               {original, nil, ""},
		"its claim exists":              {original, []runtime.Object{claim("data", "uid-1", "pvc-uid-1")}, "claim team-a/data"},
		"another claim of its name":     {original, []runtime.Object{claim("data", "uid-2", "")}, ""},
		"its PersistentVolume exists":   {original, []runtime.Object{naming("pvc-uid-1", "volume-1")}, "PersistentVolume pvc-uid-1"},
		"restored, original in use":     {restored, []runtime.Object{naming("pvc-uid-1", "volume-1"), claim("data", "uid-1", "pvc-uid-1")}, ""},
		"restored, claim still pending": {restored, []runtime.Object{claim("data", "uid-1", "")}, "claim team-a/data"},
		"restored, and recorded":        {restored, []runtime.Object{naming("pvc-uid-1", "volume-2")}, "PersistentVolume pvc-uid-1"},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset(c.objects...)
			importer := &Importer{Site: Site{Client: client, Cluster: "cluster-1", Nodes: nodeuse.New(nodeuse.Options{Client: client})}, Backend: &policy.Backend{Name: "gold"}, Volumes: freeVolumes{}}
			err := importer.checkUnclaimed(t.Context(), c.volume)
			var refusal *RefusedError
			if c.want == "" && err != nil || c.want != "" && (!errors.As(err, &refusal) || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("error %v, want %q", err, c.want)
			}
			known, err := objects.ReadObjects(t.Context(), importer.Client)
			if err != nil {
				t.Fatal(err)
			}
			listed := importer.List([]cinder.Volume{c.volume}, known)
			if len(listed) != 1 || listed[0].Importable != (c.want == "") || !strings.Contains(listed[0].Why, c.want) {
				t.Errorf("listed as %+v", listed)
			}
		})
	}
}

// TestAwaitedVolumeIsListedAsSuch: an interrupted import holds its volume.
func TestAwaitedVolumeIsListedAsSuch(t *testing.T) {
	importer := &Importer{Site: Site{Client: fake.NewClientset(claim("data", "uid-1", "imported-volume-1"))}, Backend: &policy.Backend{Name: "gold"}, Volumes: freeVolumes{}}
	known, err := objects.ReadObjects(t.Context(), importer.Client)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range importer.List([]cinder.Volume{{ID: "volume-1"}, {ID: "volume-2"}}, known) {
		if l.Importable != (l.ID == "volume-2") || l.Owner() != "nobody" {
			t.Errorf("listed as %+v", l)
		}
	}
}

// TestNameMustBeUnique: names of volumes are not unique at Cinder.
func TestNameMustBeUnique(t *testing.T) {
	importer := &Importer{Backend: &policy.Backend{Name: "gold"}, Volumes: namedVolumes{all: []cinder.Volume{
		{ID: "1", Name: "data"}, {ID: "2", Name: "data"}, {ID: "3", Name: "data-id"}, {ID: "data-id", Name: "one"},
	}}}
	for volume, want := range map[string]string{"1": "1", "one": "data-id", "data-id": "data-id", "data": "", "none": "", "Data": ""} {
		v, err := importer.find(t.Context(), volume)
		if v.ID != want || (err == nil) != (want != "") {
			t.Errorf("%s: volume %q, error %v", volume, v.ID, err)
		}
	}
}

// namedVolumes are the volumes of a project.
type namedVolumes struct {
	Volumes
	all []cinder.Volume
}

func (n namedVolumes) All(context.Context) ([]cinder.Volume, error) { return n.all, nil }

// TestZoneOfTheVolumeDecides: on a backend that maps its zones to nodes, the
// PersistentVolume is bound to the nodes of the volume's zone.
func TestZoneOfTheVolumeDecides(t *testing.T) {
	p, err := policy.Parse([]byte(`
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
backends:
  - name: lab
    auth: {cloud: lab}
    connector: {nodeLabels: {site: a}}
    zones:
      - {name: az1, nodeLabels: {rack: one}}
      - {name: az2, nodeLabels: {rack: two}}
      - {name: az3, nodeLabels: {rack: three}}
tenants:
  - name: team-a
    namespaces: [team-a]
    classes: [{storageClasses: [fast], backends: [lab]}]
`), "policy.yaml", mappers.BuiltIn().Describe())
	if err != nil {
		t.Fatal(err)
	}
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, AllowedTopologies: []corev1.TopologySelectorTerm{{
		MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: "rack", Values: []string{"one", "two"}}, {Key: "site", Values: []string{"a"}}},
	}}}
	importer := &Importer{
		Site: Site{Client: fake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team-a"}})}, Policy: p, Backend: &p.Backends[0],
	}
	for zone, want := range map[string]struct {
		labels map[string]string
		err    string
	}{
		"az1": {labels: map[string]string{"site": "a", "rack": "one"}},
		"az2": {labels: map[string]string{"site": "a", "rack": "two"}},
		"az3": {err: `volume volume-1 is in availability zone "az3", but on backend lab claim team-a/data can use only az1, az2; see the zones of the backend in the policy, and the allowedTopologies of StorageClass fast`},
		"":    {err: `volume volume-1 is in availability zone "", but on backend lab claim team-a/data can use only az1, az2; see the zones of the backend in the policy, and the allowedTopologies of StorageClass fast`},
	} {
		t.Run(zone, func(t *testing.T) {
			plan := &Plan{Volume: cinder.Volume{ID: "volume-1", SizeGiB: 1, Zone: zone}, Claim: claim("data", "uid-1", ""), Class: class}
			err := importer.decide(t.Context(), plan)
			got := ""
			if err != nil {
				got = err.Error()
			}
			if got != want.err {
				t.Errorf("%s\nwant %s", got, want.err)
			}
			if err == nil && !maps.Equal(plan.nodeLabels, want.labels) {
				t.Errorf("labels %v, want %v", plan.nodeLabels, want.labels)
			}
		})
	}
}

// listedVolumes are all volumes of a project.
type listedVolumes struct {
	freeVolumes
	all []cinder.Volume
}

func (l listedVolumes) All(context.Context) ([]cinder.Volume, error) { return l.all, nil }

// TestANameIsNotTakenForAnID: a copy may have the original's ID as its name, and whoever
// uses the project may name a volume after another tenant's.
func TestANameIsNotTakenForAnID(t *testing.T) {
	const lost = "6f2ce4b9-1c5b-4f8e-a2b6-1d0c9b3f7a55"
	importer := &Importer{Site: Site{Client: fake.NewClientset()}, Backend: &policy.Backend{Name: "gold"}, Volumes: listedVolumes{all: []cinder.Volume{{ID: "volume-2", Name: lost}}}}
	for onlyID, want := range map[bool]string{false: `StorageClass "gold" does not exist`, true: "no volume with the ID"} {
		_, err := importer.Plan(t.Context(), Request{Volume: lost, OnlyID: onlyID, Namespace: "team-a", Claim: "data", StorageClass: "gold"})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("only by ID: %t: %v, want %q", onlyID, err, want)
		}
	}
	_, err := importer.Plan(t.Context(), Request{Volume: "unknown"})
	if want := `backend gold has no volume with the ID or the name "unknown" in its project; see standalone-cinder volume list`; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}
