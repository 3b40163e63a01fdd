package claims

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/ledger"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

// TestClaimGetsTheVolumeThatItAsksFor: the claim gets it by ID or by name, with Retain,
// and only once.
func TestClaimGetsTheVolumeThatItAsksFor(t *testing.T) {
	for _, wanted := range []string{"volume-1", "data"} {
		t.Run(wanted, func(t *testing.T) {
			f := newFixture(t, data("volume-1", nil), data("volume-2", func(v *cinder.Volume) { v.Name = "volume-1" }), data("volume-3", func(v *cinder.Volume) { v.Name = "data-3" }))
			claim := f.ask("team-a", "mine", "fast", wanted, nil)
			f.sync(claim)
			f.sync(claim)
			if f.served("volume-1") != "mine" || f.served("volume-2") != "" || f.served("volume-3") != "" {
				t.Fatalf("another volume was imported: %v", f.newEvents())
			}
			pv, err := f.client.CoreV1().PersistentVolumes().Get(t.Context(), "imported-volume-1", metav1.GetOptions{})
			f.must(err)
			ref := pv.Spec.ClaimRef
			if ref.UID != claim.UID || pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain || pv.Spec.Capacity.Storage().String() != "4Gi" || len(f.secretsOf(pv.Name)) == 0 {
				t.Errorf("%+v", pv.Spec)
			}
			if stamp := stamps.Of(f.projects["gold"].volumes["volume-1"]); stamp.Tenant != "a" || stamp.ClaimUID != "uid-mine" || stamp.PV != "imported-volume-1" {
				t.Errorf("stamped %+v", stamp)
			}
			want := "Normal VolumeImported tenant a, rule tenants[0].classes[0]: volume volume-1 (4 GiB) of backend gold is imported; its PersistentVolume imported-volume-1 keeps it when the claim is deleted"
			if events := f.newEvents(); !slices.Equal(events, []string{want}) || !slices.Equal(f.counted, []string{"success"}) {
				t.Errorf("events %q, outcomes %q", events, f.counted)
			}
		})
	}
}

// TestRefusals checks every message, and that nothing is changed.
func TestRefusals(t *testing.T) {
	notFound := func(wanted string) string {
		return `Warning ImportedVolumeNotFound tenants[0].classes[0].import grants no volume with the ID or the name "` + wanted + `" on the backends of the rule; correct the claim's annotation, or ask an operator`
	}
	for name, c := range map[string]struct {
		volumes []cinder.Volume
		class   string
		wanted  string
		change  func(*corev1.PersistentVolumeClaim)
		want    string
	}{
		"no such volume":       {nil, "fast", "id", nil, notFound("id")},
		"longer than a name":   {nil, "fast", strings.Repeat("é", 256), nil, "Warning InvalidClaim annotation standalone-cinder.openstack.org/import-volume has 256 characters, more than the ID or the name of any volume"},
		"as long as a name":    {nil, "fast", strings.Repeat("é", 255), nil, notFound(strings.Repeat("é", 255))},
		"another name":         {[]cinder.Volume{data("id", func(v *cinder.Volume) { v.Name = "other" })}, "fast", "id", nil, notFound("id")},
		"other metadata":       {[]cinder.Volume{data("id", func(v *cinder.Volume) { v.Metadata["owner"] = "b" })}, "fast", "id", nil, notFound("id")},
		"another tenant's":     {[]cinder.Volume{data("id", stamped("cluster-1", "b", "gone"))}, "fast", "id", nil, notFound("id")},
		"another cluster's":    {[]cinder.Volume{data("id", stamped("cluster-2", "a", "gone"))}, "fast", "id", nil, notFound("id")},
		"one granted, two not": {[]cinder.Volume{data("1", func(v *cinder.Volume) { v.Metadata["owner"] = "b" }), data("2", stamped("cluster-1", "b", "gone"))}, "fast", "data", nil, notFound("data")},
		"two of the name": {[]cinder.Volume{data("2", nil), data("1", nil), data("3", stamped("cluster-1", "b", "gone"))}, "fast", "data", nil,
			`Warning AmbiguousVolume 2 volumes that tenants[0].classes[0].import grants have the name "data": 1, 2; give the ID of one in the annotation standalone-cinder.openstack.org/import-volume`},
		"no import": {[]cinder.Volume{data("id", nil)}, "new", "id", nil,
			"Warning ImportNotGranted tenants[0].classes[1] grants no volumes that exist at Cinder; ask an operator to add import to the rule, or for standalone-cinder volume import"},
		"nothing named": {[]cinder.Volume{data("id", nil)}, "fast", "", nil,
			"Warning InvalidClaim annotation standalone-cinder.openstack.org/import-volume is empty; give the ID or the name of a volume"},
		"too small": {[]cinder.Volume{data("id", nil)}, "fast", "id", func(claim *corev1.PersistentVolumeClaim) {
			claim.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("5Gi")
		}, "Warning ImportRefused claim team-a/mine requests 5Gi, but volume id has 4 GiB; extend it first, or request less"},
		"a source": {[]cinder.Volume{data("id", nil)}, "fast", "id", func(claim *corev1.PersistentVolumeClaim) {
			claim.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "other"}
		}, "Warning ImportRefused claim team-a/mine asks for the content of another object; an imported volume has its own"},
		"encrypted": {[]cinder.Volume{data("id", func(v *cinder.Volume) { v.Encrypted = true })}, "fast", "id", nil,
			"Warning ImportRefused volume id is encrypted by Cinder, and such volumes cannot be imported"},
		"in use": {[]cinder.Volume{data("id", func(v *cinder.Volume) { v.Status = cinder.StatusInUse })}, "fast", "id", nil,
			"Warning ImportFailed backend gold: volume id is in-use"},
		"no room": {[]cinder.Volume{data("id", func(v *cinder.Volume) { v.SizeGiB = 11 })}, "fast", "id", nil, "Warning QuotaExceeded "},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, c.volumes...)
			claim := f.ask("team-a", "mine", c.class, c.wanted, c.change)
			before, _ := f.projects["gold"].All(t.Context())
			f.sync(claim)
			f.sync(claim)
			events := f.newEvents()
			wantOutcome := "denied"
			if name == "in use" {
				wantOutcome = "conflict"
			}
			if !slices.Equal(f.counted, []string{wantOutcome, wantOutcome}) {
				t.Errorf("outcomes %q", f.counted)
			}
			if len(events) != 1 || events[0] != c.want && !(strings.HasSuffix(c.want, " ") && strings.HasPrefix(events[0], c.want)) {
				t.Errorf("events %q, want %q", events, c.want)
			}
			after, _ := f.projects["gold"].All(t.Context())
			if !slices.EqualFunc(before, after, func(a, b cinder.Volume) bool {
				return a.Status == b.Status && stamps.Of(a) == stamps.Of(b)
			}) || f.served("id") != "" || f.position(claim) != "" {
				t.Errorf("something was changed: %+v, %s", after, f.position(claim))
			}
		})
	}
}

// TestForeignClaimsAreLeftAlone covers claims of other provisioners, bound claims, and
// those without the annotation.
func TestForeignClaimsAreLeftAlone(t *testing.T) {
	f := newFixture(t, data("id", nil))
	for name, claim := range map[string]*corev1.PersistentVolumeClaim{
		"another provisioner's": f.ask("team-a", "foreign", "foreign", "id", nil),
		"bound":                 f.ask("team-a", "bound", "fast", "id", func(claim *corev1.PersistentVolumeClaim) { claim.Spec.VolumeName = "pv" }),
		"a populator's": f.ask("team-a", "populated", "fast", "id", func(claim *corev1.PersistentVolumeClaim) {
			group := "example.org"
			claim.Spec.DataSourceRef = &corev1.TypedObjectReference{APIGroup: &group, Kind: "Image", Name: "debian"}
		}),
		"a new volume": f.ask("team-a", "plain", "fast", "id", func(claim *corev1.PersistentVolumeClaim) { claim.Annotations = nil }),
	} {
		f.sync(claim)
		if events := f.newEvents(); len(events) > 0 || f.served("id") != "" {
			t.Errorf("%s: %q", name, events)
		}
	}
}

// TestImportContinuesWhereItWasKilled: it is killed before every step, and continued by
// the same leader or the next one, whatever the annotation says then.
func TestImportContinuesWhereItWasKilled(t *testing.T) {
	for _, step := range []string{"stamp", "reserve", "connect"} {
		for _, next := range []bool{false, true} {
			for _, annotation := range []string{"kept", "removed", "another"} {
				if step == "stamp" && annotation != "kept" {
					continue // nothing was begun
				}
				t.Run(step+" "+annotation, func(t *testing.T) {
					f := newFixture(t, data("id", nil), data("other", nil))
					claim := f.ask("team-a", "mine", "fast", "id", nil)
					f.projects["gold"].die = step
					f.sync(claim)
					f.projects["gold"].die = ""
					if f.served("id") != "" {
						t.Fatal("it was not killed")
					}
					switch annotation {
					case "removed":
						claim.Annotations = nil
					case "another":
						claim.Annotations[objects.AnnotationImport] = "other"
					}
					_, err := f.client.CoreV1().PersistentVolumeClaims("team-a").Update(t.Context(), claim, metav1.UpdateOptions{})
					f.must(err)
					if next {
						f.term()
						// The new leader's listing shows what was stamped.
						f.must(f.Room.CountBackend(t.Context(), "gold"))
					}
					f.sync(claim)
					if f.served("id") != "mine" || f.served("other") != "" {
						t.Errorf("not imported: %q", f.newEvents())
					}
				})
			}
		}
	}
}

// TestTwoClaimsForOneVolume: the first one gets it. The other is told so only if it
// belongs to the same tenant.
func TestTwoClaimsForOneVolume(t *testing.T) {
	f := newFixture(t, data("id", nil))
	first, second, theirs := f.ask("team-a", "first", "fast", "id", nil), f.ask("team-a", "second", "fast", "id", nil), f.ask("team-b", "theirs", "fast", "id", nil)
	f.projects["gold"].die = "connect"
	f.sync(first)
	f.newEvents()
	f.sync(second)
	f.sync(theirs)
	want := []string{
		"Warning ImportRefused volume id is stamped for claim team-a/first, which exists",
		`Warning ImportedVolumeNotFound tenants[1].classes[0].import grants no volume with the ID or the name "id" on the backends of the rule; correct the claim's annotation, or ask an operator`,
	}
	if events := f.newEvents(); !slices.Equal(events, want) {
		t.Errorf("events %q", events)
	}
	f.projects["gold"].die = ""
	f.sync(first)
	f.sync(second)
	f.sync(theirs)
	if f.served("id") != "first" {
		t.Errorf("it went to %q", f.served("id"))
	}
	if f.position(second) != "" || f.position(theirs) != "" {
		t.Errorf("room is reserved: %s, %s", f.position(second), f.position(theirs))
	}
}

// TestVolumeIsCheckedAgain: a volume that is renamed, or whose metadata changes,
// between the plan and the stamp or the reservation is not imported.
func TestVolumeIsCheckedAgain(t *testing.T) {
	protect := func(v *cinder.Volume) { v.Name = "protected" }
	for name, set := range map[string]func(*project){
		"before the stamp":        func(p *project) { p.onStamp = protect },
		"another tenant's stamp":  func(p *project) { p.onStamp = stamped("cluster-1", "b", "gone") },
		"another cluster's":       func(p *project) { p.onStamp = stamped("cluster-2", "a", "gone") },
		"after it, when reserved": func(p *project) { p.onReserve = protect },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, data("id", nil))
			claim := f.ask("team-a", "mine", "fast", "id", nil)
			set(f.projects["gold"])
			f.sync(claim)
			want := `Warning ImportedVolumeNotFound tenants[0].classes[0].import grants no volume with the ID or the name "id" on the backends of the rule; correct the claim's annotation, or ask an operator`
			if events := f.newEvents(); !slices.Equal(events, []string{want}) {
				t.Errorf("events %q", events)
			}
			if v := f.projects["gold"].volumes["id"]; v.Status != cinder.StatusAvailable || f.served("id") != "" {
				t.Errorf("it is %s, for %q", v.Status, f.served("id"))
			}
		})
	}
}

// TestClaimThatGoesTakesItsReservationBack: the same leader ends it, or the next one,
// which sees the volume only in a listing. A volume that is recorded or was in use
// stays as it is.
func TestClaimThatGoesTakesItsReservationBack(t *testing.T) {
	for _, step := range []string{"stamp", "reserve", "connect", ""} {
		for _, next := range []bool{false, true} {
			name := "killed before " + step
			if next {
				name += ", next leader"
			}
			t.Run(name, func(t *testing.T) {
				f := newFixture(t, data("id", nil))
				claim := f.ask("team-a", "mine", "fast", "id", nil)
				f.projects["gold"].die = step
				f.sync(claim)
				if next {
					f.term()
				}
				f.remove(claim, !next)
				if next {
					f.Left("gold", f.projects["gold"].volumes["id"])
				}
				f.endLeftovers()
				p := f.projects["gold"]
				recorded := step == ""
				if status := p.volumes["id"].Status; recorded != (status == cinder.StatusAttaching) {
					t.Errorf("the volume is %s", status)
				}
				if len(f.left) > 0 || recorded && len(p.canceled) > 0 || (len(f.secretsOf("imported-id")) > 0) != recorded {
					t.Errorf("left %v, canceled %v, secrets %v", f.left, p.canceled, f.secretsOf("imported-id"))
				}
				want := ""
				if !next && step != "stamp" {
					want = "gold id seen=true imported=true"
				}
				if recorded {
					want = strings.Replace(want, "seen=true", "seen=false", 1) // the hub counts it when it sees the PersistentVolume
				}
				if got := f.position(claim); got != want {
					t.Errorf("it counts as %q, want %q", got, want)
				}
			})
		}
	}
}

// TestClaimThatExistsKeepsItsReservation: a late event about another claim of its name
// must not take the reservation away.
func TestClaimThatExistsKeepsItsReservation(t *testing.T) {
	f := newFixture(t, data("id", nil))
	claim := f.ask("team-a", "mine", "fast", "id", nil)
	f.projects["gold"].die = "connect"
	f.sync(claim)
	f.Left("gold", f.projects["gold"].volumes["id"])
	f.endLeftovers()
	if v := f.projects["gold"].volumes["id"]; v.Status != cinder.StatusAttaching {
		t.Errorf("the volume is %s", v.Status)
	}
}

// TestClaimThatGoesLeavesTheReservationOfAnother: it may have been impossible to note
// the contest on the volume.
func TestClaimThatGoesLeavesTheReservationOfAnother(t *testing.T) {
	f := newFixture(t, data("id", nil))
	claim := f.ask("team-a", "mine", "fast", "id", nil)
	f.projects["gold"].die = "connect"
	f.sync(claim)
	f.contested.Store("id", true)
	f.remove(claim, true)
	f.endLeftovers()
	if p := f.projects["gold"]; len(p.canceled) > 0 || len(f.left) > 0 || f.position(claim) != "gold id seen=true imported=true" {
		t.Errorf("canceled %v, left %v, counts as %q", p.canceled, f.left, f.position(claim))
	}
}

// TestClaimOfAnotherNamespaceIsNotNamed: an operator imports the volume for that claim.
func TestClaimOfAnotherNamespaceIsNotNamed(t *testing.T) {
	f := newFixture(t, data("id", nil))
	f.ask("team-b", "theirs", "fast", "", func(claim *corev1.PersistentVolumeClaim) {
		claim.Annotations, claim.Spec.VolumeName = nil, "imported-id"
	})
	f.sync(f.ask("team-a", "mine", "fast", "id", nil))
	want := "Warning ImportRefused another claim waits for volume id"
	if events := f.newEvents(); !slices.Equal(events, []string{want}) || f.served("id") != "" {
		t.Errorf("events %q", events)
	}
}

// TestManyClaimsShareAListing: claims that ask for volumes that do not exist must not
// list the whole backend each. What a shared listing shows is read again.
func TestManyClaimsShareAListing(t *testing.T) {
	f := newFixture(t, data("id", nil))
	f.ShareListings = time.Minute
	for i := range 100 {
		f.sync(f.ask("team-a", fmt.Sprint("claim-", i), "fast", fmt.Sprint("none-", i), nil))
	}
	if listings := f.projects["gold"].listings; listings != 1 {
		t.Errorf("the backend was listed %d times", listings)
	}
	f.newEvents()
	f.projects["gold"].put(data("id", stamped("cluster-1", "b", "gone")))
	f.sync(f.ask("team-a", "late", "fast", "data", nil))
	want := `Warning ImportedVolumeNotFound tenants[0].classes[0].import grants no volume with the ID or the name "data" on the backends of the rule; correct the claim's annotation, or ask an operator`
	if events := f.newEvents(); !slices.Equal(events, []string{want}) || f.served("id") != "" {
		t.Errorf("events %q", events)
	}
}

// TestVolumeMadeAfterASharedListingIsFoundSoon: the claim need not wait for the rare
// retries of denied claims.
func TestVolumeMadeAfterASharedListingIsFoundSoon(t *testing.T) {
	f := newFixture(t)
	f.ShareListings = 50 * time.Millisecond
	f.sync(f.ask("team-a", "early", "fast", "none", nil))
	f.projects["gold"].put(data("id", nil))
	f.ask("team-a", "mine", "fast", "id", func(claim *corev1.PersistentVolumeClaim) { claim.CreationTimestamp = metav1.Now() })
	f.loop.Queue.Add("team-a/mine")
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { f.Run(ctx) })
	defer running.Wait()
	defer stop()
	for deadline := time.Now().Add(20 * time.Second); f.served("id") == ""; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the volume was not found")
		}
	}
}

// TestClaimsThatGoLeaveWorkersToOthers: a tenant deletes many claims whose imports have
// begun, on a backend that hangs.
func TestClaimsThatGoLeaveWorkersToOthers(t *testing.T) {
	f := newFixture(t)
	hangs := make(chan struct{})
	f.projects["gold"].hangs = hangs
	for i := range 20 {
		f.end(types.UID(fmt.Sprint("uid-gone-", i)), leftover{backend: "gold", volume: fmt.Sprint("volume-", i), tenant: "a"})
	}
	f.projects["silver"].put(data("id", nil))
	f.ask("team-c", "theirs", "fast", "id", nil)
	f.loop.Queue.Add("team-c/theirs")
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { f.Run(ctx) })
	defer running.Wait()
	defer stop()
	defer close(hangs)
	for deadline := time.Now().Add(5 * time.Second); f.served("id") == ""; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("what another tenant's claims left behind occupies all workers")
		}
	}
}

// TestKeptVolumeNeedsItsRoomOnce: a volume that the tenant has left behind is
// imported although the quota is full with it.
func TestKeptVolumeNeedsItsRoomOnce(t *testing.T) {
	f := newFixture(t, data("id", func(v *cinder.Volume) { stamped("cluster-1", "a", "gone")(v); v.SizeGiB = 10 }))
	f.must(f.Room.CountBackend(t.Context(), "gold"))
	claim := f.ask("team-a", "mine", "fast", "id", nil)
	f.sync(claim)
	if f.served("id") != "mine" {
		t.Fatalf("events %q", f.newEvents())
	}
	if used := f.Room.Ledger.Usage("tenant", "a"); used.Volumes != 1 || used.Gigabytes != 10 {
		t.Errorf("used %+v", used)
	}
}

// TestClaimWithANewVolumeKeepsIt: the hub had begun before the annotation was written.
func TestClaimWithANewVolumeKeepsIt(t *testing.T) {
	f := newFixture(t, data("id", nil))
	claim := f.ask("team-a", "mine", "fast", "id", nil)
	f.Room.Ledger.Found(claim.UID, ledger.Volume{Tenant: "a", StorageClass: "fast", GiB: 1, VolumeID: "new"}, "gold")
	f.sync(claim)
	want := "Warning NewVolumeBegun the claim got the annotation standalone-cinder.openstack.org/import-volume only after the creation of a new volume had begun, and it keeps that volume; to import one, create a claim that has the annotation from the beginning"
	if events := f.newEvents(); !slices.Equal(events, []string{want}) || f.served("id") != "" || !slices.Equal(f.provisioned, []string{"mine"}) {
		t.Errorf("events %q, provisioned %v", events, f.provisioned)
	}
}

// TestSilentBackendIsNotAnAnswer: the volume may be there.
func TestSilentBackendIsNotAnAnswer(t *testing.T) {
	f := newFixture(t)
	f.projects["silver"].put(data("id", nil))
	f.projects["gold"].health = errDied
	claim := f.ask("team-a", "mine", "fast", "id", nil)
	f.sync(claim)
	if events := f.newEvents(); len(events) != 1 || !strings.HasPrefix(events[0], "Warning BackendUnavailable ") {
		t.Errorf("events %q", events)
	}
	f.projects["gold"].health = nil
	f.sync(claim)
	if f.served("id") != "mine" {
		t.Errorf("not imported: %q", f.newEvents())
	}
}

// TestClaimWaitsForItsClass: the class goes while the claim waits, and is made again.
func TestClaimWaitsForItsClass(t *testing.T) {
	f := newFixture(t)
	claim := f.ask("team-a", "mine", "fast", "data", nil)
	f.sync(claim) // there is no such volume
	classes := f.factory.Storage().V1().StorageClasses().Informer().GetStore()
	class, _, err := classes.GetByKey("fast")
	f.must(err)
	f.must(classes.Delete(class))
	f.sync(claim) // a retry
	f.must(classes.Add(class))
	f.Board.Publish(parking.Trigger{Kind: parking.Class, Name: "fast"})
	if f.loop.Queue.Len() != 1 {
		t.Error("the claim does not come back")
	}
}
