package audit

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

var now = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// here is the place to which both backends lead.
var here = cinder.Place{Endpoint: "http://cinder:8776/v3", Project: "p1"}

// stamped returns a volume of a claim, an hour old.
func stamped(id, uid string, status cinder.Status, change func(*cinder.Volume)) cinder.Volume {
	v := cinder.Volume{ID: id, Status: status, SizeGiB: 1, CreatedAt: now.Add(-time.Hour), Metadata: stamps.Volume{
		Cluster: "cluster-1", Namespace: "team-a", Claim: "data", ClaimUID: uid, PV: "pvc-" + uid, Tenant: "a", StorageClass: "fast",
	}.Metadata(nil)}
	if change != nil {
		change(&v)
	}
	return v
}

// recorded returns the PersistentVolume of a claim, an hour old.
func recorded(uid, volume string, change func(*objects.Volume)) *objects.Volume {
	r := &objects.Volume{CreatedAt: now.Add(-time.Hour), Origin: objects.Origin{
		PVName: "pvc-" + uid, VolumeID: volume, Backend: "gold", Place: here, Tenant: "a", Cluster: "cluster-1", ClaimUID: uid,
	}}
	if change != nil {
		change(r)
	}
	return r
}

func at(place cinder.Place) func(*objects.Volume) {
	return func(r *objects.Volume) { r.Place = place }
}

const remedy = "put the configuration and credentials of backend gold back to what they were, or, if the volume is certainly gone, run: " +
	"kubectl annotate pv pvc-1 --overwrite standalone-cinder.openstack.org/endpoint=http://cinder:8776/v3 standalone-cinder.openstack.org/project-id=p1"

func ofAnotherCluster(v *cinder.Volume) {
	v.Metadata[stamps.Prefix+"kube-system-uid"] = "another-uid"
}

func attached(v *cinder.Volume) { v.Metadata["readonly"] = "False" }

func TestCompare(t *testing.T) {
	shared := func(name, backend string, unneeded time.Duration) objects.Secret {
		return objects.Secret{Name: name, SharedBy: backend, Cluster: "cluster-1", CreatedAt: now.Add(-3 * time.Hour), UnneededSince: now.Add(-unneeded)}
	}
	for _, c := range []struct {
		name    string
		volumes []cinder.Volume
		lab     []cinder.Volume
		err     error
		foreign string
		records []*objects.Volume
		claims  map[string]objects.Claim
		secrets []objects.Secret
		want    []string
	}{
		{name: "all is well", volumes: []cinder.Volume{stamped("v1", "1", "in-use", attached)}, records: []*objects.Volume{recorded("1", "v1", nil)},
			secrets: []objects.Secret{{Name: "pvc-1-credentials", PV: "pvc-1", Cluster: "cluster-1", CreatedAt: now.Add(-time.Hour)}}},
		{name: "orphan that was never recorded", volumes: []cinder.Volume{stamped("v1", "1", "attaching", nil)},
			want: []string{"OrphanVolume v1 removable: no PersistentVolume names it and its claim is gone; it is attaching and 1h0m0s old; it was never attached, so it contains no data written from this cluster"}},
		{name: "another cluster's volume with the same clusterID", volumes: []cinder.Volume{stamped("v1", "1", "attaching", ofAnotherCluster)},
			want: []string{`SharedClusterID v1: it is stamped under kube-system UID "another-uid", but this cluster's is "uid-1": two clusters share clusterID "cluster-1"; give each its own in the policy`}},
		{name: "orphan with data", volumes: []cinder.Volume{stamped("v1", "1", "available", attached)},
			want: []string{"OrphanVolume v1: no PersistentVolume names it and its claim is gone; it is available and 1h0m0s old; it has been attached and may contain data; it may have been kept on purpose"}},
		{name: "restored backup", volumes: []cinder.Volume{stamped("v1", "1", "available", func(v *cinder.Volume) {
			v.Metadata["standalone-cinder.openstack.org/requested-at"] = now.Add(-30 * time.Hour).Format(time.RFC3339)
		})}, want: []string{"OrphanVolume v1: no PersistentVolume names it and its claim is gone; it is available and 1h0m0s old; it is younger than its stamp and looks like a restored backup"}},
		{name: "stamp that contradicts itself", volumes: []cinder.Volume{stamped("v1", "1", "available", func(v *cinder.Volume) {
			v.Metadata["csi.storage.k8s.io/pv/name"] = "pvc-2"
		})}, want: []string{"OrphanVolume v1: no PersistentVolume names it and its claim is gone; it is available and 1h0m0s old; its stamp contradicts itself, so it may not be this program's volume"}},
		{name: "young orphan", volumes: []cinder.Volume{stamped("v1", "1", "attaching", func(v *cinder.Volume) { v.CreatedAt = now.Add(-time.Minute) })}},
		{name: "claim that waits for its volume", volumes: []cinder.Volume{stamped("v1", "1", "attaching", nil)},
			claims: map[string]objects.Claim{"1": {}},
			want:   []string{"UnfinishedVolume v1: its claim is pending, and the volume is attaching and 1h0m0s old"}},
		{name: "claim that uses another PersistentVolume", volumes: []cinder.Volume{stamped("v1", "1", "attaching", nil)},
			claims: map[string]objects.Claim{"1": {Elsewhere: true}},
			want:   []string{"OrphanVolume v1 removable: no PersistentVolume names it and its claim is gone; it is attaching and 1h0m0s old; it was never attached, so it contains no data written from this cluster"}},
		{name: "duplicate on another backend", volumes: []cinder.Volume{stamped("v1", "1", "in-use", attached)}, lab: []cinder.Volume{stamped("v2", "1", "attaching", nil)},
			records: []*objects.Volume{recorded("1", "v1", nil)},
			want:    []string{"SecondVolume v2 removable: PersistentVolume pvc-1 of the same claim names volume v1 on backend gold"}},
		{name: "two backends that show the same volumes", volumes: []cinder.Volume{stamped("v1", "1", "in-use", attached)}, lab: []cinder.Volume{stamped("v1", "1", "in-use", attached)},
			records: []*objects.Volume{recorded("1", "v1", nil)}},
		{name: "volume that is lost", records: []*objects.Volume{recorded("1", "v1", nil)},
			want: []string{"MissingVolume v1: its volume does not exist; its data is lost unless the storage array has a copy"}},
		{name: "volume whose PersistentVolume was edited", volumes: []cinder.Volume{stamped("v1", "1", "in-use", attached)}, records: []*objects.Volume{recorded("1", "edited", nil)},
			want: []string{
				"MissingVolume edited: its volume does not exist, but volume v1 has its stamp; if somebody edited the PersistentVolume, correct its annotation standalone-cinder.openstack.org/volume-id",
				"SecondVolume v1: PersistentVolume pvc-1 of the same claim names volume edited on backend gold"}},
		{name: "volume that is deleted, just before its PersistentVolume", records: []*objects.Volume{recorded("1", "v1", func(r *objects.Volume) { r.Released, r.Deleted = true, true })}},
		{name: "volume that was to be kept, and is lost", records: []*objects.Volume{recorded("1", "v1", func(r *objects.Volume) { r.Released = true })},
			want: []string{"MissingVolume v1: its volume does not exist; its data is lost unless the storage array has a copy"}},
		{name: "volume of another endpoint", volumes: []cinder.Volume{stamped("v2", "2", "in-use", attached)},
			records: []*objects.Volume{recorded("2", "v2", at(cinder.Place{})), recorded("1", "v1", at(cinder.Place{Endpoint: "http://old:8776/v3", Project: "p0"}))},
			want:    []string{"VolumeElsewhere v1: its volume was recorded at http://old:8776/v3 (project p0), but the backend points to http://cinder:8776/v3 (project p1), where it does not exist; " + remedy}},
		{name: "volume found at another address than the recorded one", volumes: []cinder.Volume{stamped("v1", "1", "in-use", attached)},
			records: []*objects.Volume{recorded("1", "v1", at(cinder.Place{Endpoint: "https://cinder:8776/v3", Project: "p1"}))}},
		{name: "volume without a record, where no other is", records: []*objects.Volume{recorded("1", "v1", at(cinder.Place{}))},
			want: []string{"VolumeElsewhere v1: its volume does not exist at http://cinder:8776/v3 (project p1), but nothing shows that it was ever there: " +
				"the PersistentVolume does not record where it was made, and there is no other volume of this cluster; " + remedy}},
		{name: "volume without a record, where others are", volumes: []cinder.Volume{stamped("v2", "2", "in-use", attached)},
			records: []*objects.Volume{recorded("2", "v2", nil), recorded("1", "v1", at(cinder.Place{}))},
			want:    []string{"MissingVolume v1: its volume does not exist; its data is lost unless the storage array has a copy"}},
		{name: "volume without the stamp", foreign: "v1", records: []*objects.Volume{recorded("1", "v1", nil)},
			want: []string{"ForeignVolume v1: its volume exists but does not carry this cluster's stamp; it will not be deleted"}},
		{name: "volume of another claim", volumes: []cinder.Volume{stamped("v1", "2", "in-use", attached)}, records: []*objects.Volume{recorded("1", "v1", nil)},
			want: []string{"ForeignVolume v1: its volume is stamped for something else; it will not be deleted"}},
		{name: "volume that is being swapped", volumes: []cinder.Volume{stamped("v1", "2", "attaching", func(v *cinder.Volume) { v.Metadata[stamps.KeySwap] = "pvc-2" })}, records: []*objects.Volume{recorded("1", "v1", nil)},
			want: []string{"StuckVolume v1: its volume is being swapped with that of PersistentVolume pvc-2; if nobody does that now, run standalone-cinder volume swap or move again"}},
		{name: "volume in error", volumes: []cinder.Volume{stamped("v1", "1", "error_deleting", attached)}, records: []*objects.Volume{recorded("1", "v1", nil)},
			want: []string{"StuckVolume v1: its volume is error_deleting"}},
		{name: "volume whose attachment never completed", volumes: []cinder.Volume{stamped("v1", "1", "attaching", nil)}, records: []*objects.Volume{recorded("1", "v1", nil)},
			want: []string{"StuckVolume v1: its volume is still attaching, 1h0m0s after the PersistentVolume was created"}},
		{name: "volume in mode csi that no node has", volumes: []cinder.Volume{stamped("v1", "1", "available", attached)},
			records: []*objects.Volume{recorded("1", "v1", func(r *objects.Volume) { r.CSI = true })}},
		{name: "volume in mode csi that a node gets", volumes: []cinder.Volume{stamped("v1", "1", "attaching", attached)},
			records: []*objects.Volume{recorded("1", "v1", func(r *objects.Volume) { r.CSI = true })}},
		{name: "volume in mode csi in error", volumes: []cinder.Volume{stamped("v1", "1", "error", attached)},
			records: []*objects.Volume{recorded("1", "v1", func(r *objects.Volume) { r.CSI = true })},
			want:    []string{"StuckVolume v1: its volume is error"}},
		{name: "kept volume of a released PersistentVolume", volumes: []cinder.Volume{stamped("v1", "1", "available", attached)},
			records: []*objects.Volume{recorded("1", "v1", func(r *objects.Volume) { r.Released = true })}},
		{name: "backend that does not answer", err: errors.New("backend gold: down"), records: []*objects.Volume{recorded("1", "v1", nil)},
			want: []string{"BackendUnreadable : backend gold: down; its volumes are not compared"}},
		{name: "backend that is not in the policy", records: []*objects.Volume{recorded("1", "v1", func(r *objects.Volume) { r.Backend = "old" })},
			want: []string{"BackendMissing v1: its backend is not in the policy, so its volume cannot be deleted; add the backend back, with suspended: true if it is to take no more volumes"}},
		{name: "damaged record", records: []*objects.Volume{recorded("1", "v1", func(r *objects.Volume) { r.Damage = errors.New("damaged") })},
			want: []string{"DamagedRecord v1: damaged"}},
		{name: "Secret that nothing refers to", secrets: []objects.Secret{{Name: "s1", PV: "pvc-1", Cluster: "cluster-1", CreatedAt: now.Add(-time.Hour)}},
			want: []string{"OrphanSecret s1 removable: its PersistentVolume is gone, and so is the claim"}},
		{name: "Secret of another cluster", secrets: []objects.Secret{{Name: "s1", PV: "pvc-1", Cluster: "cluster-2", CreatedAt: now.Add(-time.Hour)}}},
		{name: "Secret of a volume that was kept", volumes: []cinder.Volume{stamped("v1", "1", "available", attached)},
			secrets: []objects.Secret{{Name: "s1", PV: "pvc-1", Cluster: "cluster-1", CreatedAt: now.Add(-time.Hour)}},
			want: []string{"OrphanSecret s1: its PersistentVolume is gone, and so is the claim",
				"OrphanVolume v1: no PersistentVolume names it and its claim is gone; it is available and 1h0m0s old; it has been attached and may contain data; it may have been kept on purpose"}},
		{name: "Secret with a backend that does not answer", err: errors.New("down"),
			secrets: []objects.Secret{{Name: "s1", PV: "pvc-1", Cluster: "cluster-1", CreatedAt: now.Add(-time.Hour)}},
			want:    []string{"BackendUnreadable : down; its volumes are not compared", "OrphanSecret s1: its PersistentVolume is gone, and so is the claim"}},
		{name: "duplicate that was attached", volumes: []cinder.Volume{stamped("v1", "1", "in-use", attached), stamped("v2", "1", "available", attached)},
			records: []*objects.Volume{recorded("1", "v1", nil)},
			want:    []string{"SecondVolume v2: PersistentVolume pvc-1 of the same claim names volume v1 on backend gold"}},
		{name: "shared Secret that the leader was to remove", secrets: []objects.Secret{shared("old-cephx-1", "old", 2*time.Hour)},
			want: []string{"OrphanSecret old-cephx-1: its backend is not in the policy, and no PersistentVolume has referred to it for 2h0m0s; the leader's next audit removes it"}},
		{name: "shared Secret that the leader is about to remove", secrets: []objects.Secret{shared("old-cephx-1", "old", 65*time.Minute)}},
		{name: "shared Secret that nothing was found to need", secrets: []objects.Secret{{Name: "old-cephx-1", SharedBy: "old", Cluster: "cluster-1", CreatedAt: now.Add(-3 * time.Hour)}}},
		{name: "shared Secret that is needed again", secrets: []objects.Secret{shared("needed", "old", 2*time.Hour)}},
		{name: "shared Secret of a backend of the policy", secrets: []objects.Secret{shared("gold-cephx-1", "gold", 2*time.Hour)}},
		{name: "Secret of a claim that waits", secrets: []objects.Secret{{Name: "s1", PV: "pvc-1", Cluster: "cluster-1", CreatedAt: now.Add(-time.Hour)}},
			claims: map[string]objects.Claim{"1": {}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			names := map[string]bool{}
			for _, r := range c.records {
				names[r.PVName] = true
			}
			found := Compare(State{Now: now, Cluster: "cluster-1", ClusterUID: "uid-1", Grace: 10 * time.Minute,
				Backends: map[string]Listing{
					"gold": {Volumes: c.volumes, Place: here, Unstamped: map[string]bool{c.foreign: true}, Err: c.err},
					"lab":  {Volumes: c.lab, Place: here},
				},
				Records: objects.Records{Volumes: c.records, Claims: c.claims, Secrets: c.secrets, Names: names, NeededSecrets: map[string]bool{"needed": true}},
			})
			var got []string
			for _, f := range found {
				removable := ""
				if f.Removable {
					removable = " removable"
				}
				got = append(got, fmt.Sprintf("%s %s%s%s: %s", f.Kind, f.Volume, f.Secret, removable, f.Message))
				if f.Removable && f.Kind != OrphanVolume && f.Kind != SecondVolume && f.Kind != OrphanSecret {
					t.Errorf("%+v could be removed", f)
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("found %q\nwant  %q", got, c.want)
			}
		})
	}
}
