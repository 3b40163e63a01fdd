package claims

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// elsewhere makes a backend lead to another project, which has a volume of the same name,
// and returns how to make it lead home.
func (f *fixture) elsewhere(backend string) (home func()) {
	p := f.projects[backend]
	volumes, place := p.volumes, p.place
	p.volumes, p.place = map[string]cinder.Volume{"namesake": data("namesake", nil)}, cinder.Place{Endpoint: "http://cinder/v3", Project: "another"}
	return func() { p.volumes, p.place = volumes, place }
}

// TestAnImportWaitsWhileItsBackendLeadsElsewhere: the claim asked by name, and gets the
// volume that was stamped for it, not the one of that name in the other project.
func TestAnImportWaitsWhileItsBackendLeadsElsewhere(t *testing.T) {
	for _, step := range []string{"reserve", "connect"} {
		f := newFixture(t, data("id", nil))
		claim := f.ask("team-a", "mine", "fast", "data", nil)
		f.projects["gold"].die = step
		f.sync(claim)
		f.projects["gold"].die = ""
		home := f.elsewhere("gold")
		f.sync(claim)
		if f.served("namesake") != "" || !strings.Contains(f.position(claim), "gold id") {
			t.Errorf("killed before %s: it gets the namesake: %q, %s", step, f.newEvents(), f.position(claim))
		}
		home()
		f.sync(claim)
		if f.served("id") != "mine" {
			t.Errorf("killed before %s: not imported: %q", step, f.newEvents())
		}
	}
}

// TestAReservationIsNotForgottenWhileItsBackendLeadsElsewhere: the claim is deleted then.
func TestAReservationIsNotForgottenWhileItsBackendLeadsElsewhere(t *testing.T) {
	f := newFixture(t, data("id", nil))
	claim := f.ask("team-a", "mine", "fast", "data", nil)
	f.projects["gold"].die = "connect"
	f.sync(claim)
	home := f.elsewhere("gold")
	f.remove(claim, true)
	f.endLeftovers()
	if len(f.left) != 1 {
		t.Error("the reservation is forgotten")
	}
	home()
	f.endLeftovers()
	if v := f.projects["gold"].volumes["id"]; v.Status != cinder.StatusAvailable || len(f.left) > 0 || f.placeOf(claim.UID).IsKnown() {
		t.Errorf("the volume is %s, left %v, place %s", v.Status, f.left, f.placeOf(claim.UID))
	}
}

// TestSecretsOfImportsThatCameToNothingGo: the leader died before the PersistentVolume, or
// after the volume was disconnected, and the claim is gone. A volume that was kept keeps
// its Secrets.
func TestSecretsOfImportsThatCameToNothingGo(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*cinder.Volume)
		age    time.Duration
		goes   bool
	}{
		"of the CSI driver":          {drivers, 0, true},
		"native, and disconnected":   {nil, 0, true},
		"kept since another time":    {nil, time.Hour, false},
		"kept, of the CSI driver":    {drivers, time.Hour, false},
		"in use, as it was recorded": {func(v *cinder.Volume) { v.Status = cinder.StatusInUse }, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			v := data("id", test.change)
			for key, value := range (stamps.Volume{Cluster: "cluster-1", ClusterUID: "kube-system", Namespace: "team-a", Claim: "gone", ClaimUID: "uid-gone", PV: "imported-id", Tenant: "a"}).Metadata(nil) {
				v.Metadata[key] = value
			}
			v.Metadata[stamps.KeyRequestedAt] = time.Now().Add(-test.age).UTC().Format(time.RFC3339)
			f := newFixture(t, v)
			_, err := f.Secrets.Keep(t.Context(), "imported-id", "gold", mappers.Secret{Name: objects.SecretName("imported-id")}, true)
			f.must(err)
			f.Left("gold", v)
			f.endLeftovers()
			if (len(f.secretsOf("imported-id")) > 0) == test.goes {
				t.Errorf("there is a Secret: %t", !test.goes)
			}
		})
	}
}

// TestAnotherDriversVolumeNeedsTheRulesWord: in mode csi, both clusters might write to it.
func TestAnotherDriversVolumeNeedsTheRulesWord(t *testing.T) {
	for name, test := range map[string]struct {
		metadata map[string]string
		word     string
		granted  bool
	}{
		"none":                                {nil, "", true},
		"cinder-csi":                          {map[string]string{"cinder.csi.openstack.org/cluster": "other"}, "", false},
		"cinder-csi, with the claim":          {map[string]string{stamps.KeyPV: "pvc-1", stamps.KeyClaim: "theirs"}, "", false},
		"cinder-csi, by the rule":             {map[string]string{"cinder.csi.openstack.org/cluster": "other"}, ", cinder.csi.openstack.org/cluster: other", true},
		"another cinder-csi than in the rule": {map[string]string{"cinder.csi.openstack.org/cluster": "third"}, ", cinder.csi.openstack.org/cluster: other", false},
		"ours, without its stamp":             {map[string]string{stamps.KeyPV: "pvc-1", stamps.KeyClaimUID: "1"}, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, data("id", func(v *cinder.Volume) {
				for key, value := range test.metadata {
					v.Metadata[key] = value
				}
			}))
			f.allow(strings.Replace(testPolicy, "owner: a", "owner: a"+test.word, 1))
			f.sync(f.ask("team-a", "mine", "fast", "id", nil))
			if f.served("id") == "mine" != test.granted {
				t.Errorf("granted: %t; %q", !test.granted, f.newEvents())
			}
		})
	}
}

// TestAnImportKeepsTheVolumeMode: what a pod has written to a raw device may be a
// filesystem that harms the kernel that mounts it.
func TestAnImportKeepsTheVolumeMode(t *testing.T) {
	raw, mounted := corev1.PersistentVolumeBlock, corev1.PersistentVolumeFilesystem
	for name, test := range map[string]struct {
		was     string
		asks    corev1.PersistentVolumeMode
		granted bool
	}{
		"raw stays raw":              {stamps.VolumeModeBlock, raw, true},
		"raw becomes a filesystem":   {stamps.VolumeModeBlock, mounted, false},
		"a filesystem stays one":     {"", mounted, true},
		"a filesystem is read as is": {"", raw, true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, data("id", func(v *cinder.Volume) { v.Metadata[stamps.KeyVolumeMode] = test.was }))
			f.sync(f.ask("team-a", "mine", "fast", "id", func(claim *corev1.PersistentVolumeClaim) { claim.Spec.VolumeMode = &test.asks }))
			if f.served("id") == "mine" != test.granted {
				t.Errorf("granted: %t; %q", !test.granted, f.newEvents())
			}
		})
	}
}
