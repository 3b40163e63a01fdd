package provisioner

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// limit gives the tenant a quota of that many volumes.
func (f *fixture) limit(volumes string) {
	f.t.Helper()
	f.inForce("volumeSize: {max: 10Gi}", "quota: {volumes: "+volumes+"}")
}

func (f *fixture) named(name string) *corev1.PersistentVolumeClaim {
	return f.claim(func(c *corev1.PersistentVolumeClaim) { c.Name, c.UID = name, types.UID("uid-"+name) })
}

const exceeded = "Warning QuotaExceeded tenant a would use 2 of 1 volumes (tenants[0].quota.volumes)"

func TestClaimBeyondTheQuotaIsDeniedUntilRoomIsFreed(t *testing.T) {
	f := newFixture(t)
	f.limit("1")
	f.count()
	first, second := f.named("first"), f.named("second")
	if !f.admits(first) {
		t.Fatal("the first claim is denied")
	}
	for range 3 {
		if f.admits(second) {
			t.Fatal("the second claim is admitted")
		}
	}
	if events := f.newEvents(); len(events) != 1 || events[0] != exceeded {
		t.Errorf("events %q, want %q once", events, exceeded)
	}
	pv, err := f.provision(first)
	f.must(err)
	pv.UID, pv.Annotations[objects.AnnotationProvisionedBy] = "pv-uid", "test"
	followup := f.followup
	followup.VolumeSeen(pv)
	// A released volume uses room until it is gone.
	pv.Status.Phase = corev1.VolumeReleased
	followup.VolumeSeen(pv)
	if f.admits(second) {
		t.Error("a released volume does not count")
	}
	go f.offerFreedRoom(t.Context())
	returned := make(chan string, 1)
	f.onRequeue = func(name string) { returned <- name }
	f.must(f.delete(pv))
	followup.VolumeGone(pv)
	select {
	case name := <-returned:
		if name != "second" {
			t.Errorf("claim %s came back", name)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("freed room was not offered to any claim")
	}
	if !f.admits(second) {
		t.Error("the second claim is denied although there is room")
	}
}

func TestNewLeaderCountsUnrecordedVolumes(t *testing.T) {
	f := newFixture(t)
	f.limit("1")
	f.backends["gold"].listed = []cinder.Volume{f.stamped("uid-of-another")}
	if _, err := f.provision(f.named("first")); !isIgnored(err) {
		t.Errorf("error %v, want one that the library ignores", err)
	}
	if events := f.newEvents(); len(events) != 1 || events[0] != exceeded {
		t.Errorf("events %q, want %q", events, exceeded)
	}
	if f.admits(f.named("second")) {
		t.Error("a claim was admitted although a volume at Cinder uses the quota")
	}
	// The volume's own claim adopts it.
	owner := f.claim(func(c *corev1.PersistentVolumeClaim) { c.Name, c.UID = "another", "uid-of-another" })
	if !f.admits(owner) {
		t.Error("the volume's own claim is denied")
	}
}

func TestNewLeaderCountsRecordedVolumesFirst(t *testing.T) {
	f := newFixture(t)
	pv := f.recorded()
	f.limit("1")
	f.newTerm(nil)
	f.seen()
	f.count()
	if f.admits(f.named("second")) {
		t.Error("a claim was admitted although a recorded volume uses the quota")
	}
	if got := f.ledger.Usage(policy.TenantScope, "a"); got != (policy.Usage{Volumes: 1, Gigabytes: 2}) {
		t.Errorf("PersistentVolume %s counts as %+v", pv.Name, got)
	}
}

func TestAttemptThatLeftNothingFreesItsRoom(t *testing.T) {
	f := newFixture(t)
	f.limit("1")
	f.count()
	first, second := f.named("first"), f.named("second")
	f.backends["gold"].err = &cinder.Error{Kind: cinder.KindNotFound, Backend: "gold", Message: "no such type"}
	if !f.admits(first) {
		t.Fatal("the first claim is denied")
	}
	if _, err := f.provision(first); err == nil {
		t.Fatal("the attempt succeeded")
	}
	if !f.admits(second) {
		t.Error("a claim that Cinder rejects blocks others")
	}
	// If an attempt may have left a volume, its room stays reserved.
	f.backends["gold"].hasVolumeOf = map[string]bool{"uid-second": true}
	if _, err := f.provision(second); err == nil {
		t.Fatal("the attempt succeeded")
	}
	if f.admits(first) {
		t.Error("the room of a volume that may exist was given away")
	}
}

func TestDeletedClaimFreesItsRoom(t *testing.T) {
	f := newFixture(t)
	f.limit("1")
	f.count()
	first := f.named("first")
	f.admits(first)
	f.forgetClaim(first)
	f.must(f.claimGone(t.Context(), first.UID))
	if !f.admits(f.named("second")) {
		t.Error("a claim that is gone keeps its room")
	}
}

func TestEventSaysWhyEarlierBackendsWerePassedOver(t *testing.T) {
	f := newFixture(t)
	f.inForce("auth: {cloud: gold}", "auth: {cloud: gold}\n    limits: {volumes: 0}")
	f.class.Name = "both"
	_, err := f.provision(f.claim(nil))
	f.must(err)
	const want = "Normal BackendChosen tenant a, rule tenants[0].classes[0]: 2 GiB on backend silver; passed over: backend gold would use 1 of 0 volumes (backends[0].limits.volumes)"
	if events := f.newEvents(); len(events) != 1 || events[0] != want {
		t.Errorf("events %q\nwant %q", events, want)
	}
	wantCalls(t, f.backends["gold"])
}

func TestPersistentVolumesOfOthersDoNotCount(t *testing.T) {
	for name, change := range map[string]func(*corev1.PersistentVolume){
		"another provisioner": func(pv *corev1.PersistentVolume) { pv.Annotations[objects.AnnotationProvisionedBy] = "other" },
		"another cluster id":  func(pv *corev1.PersistentVolume) { pv.Annotations[objects.AnnotationCluster] = "cluster-2" },
		"created by hand":     func(pv *corev1.PersistentVolume) { pv.ObjectMeta = metav1.ObjectMeta{Name: "by-hand"} },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			pv := f.recorded()
			f.newTerm(nil)
			change(pv)
			f.seen()
			if got := f.ledger.Usage(policy.TenantScope, "a"); got != (policy.Usage{}) {
				t.Errorf("it counts as %+v", got)
			}
		})
	}
}

// TestPersistentVolumeCounts: only this program's objects count, grouped by what
// operators distinguish.
func TestPersistentVolumeCounts(t *testing.T) {
	f := newFixture(t)
	early, late := time.Unix(1000, 0), time.Unix(2000, 0)
	add := func(name, backend, protocol, provisioner string, phase corev1.PersistentVolumePhase, since time.Time) {
		pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{
			objects.AnnotationVolume: "volume-" + name, objects.AnnotationBackend: backend, objects.AnnotationProtocol: protocol,
			objects.AnnotationProvisionedBy: provisioner, objects.AnnotationCluster: "cluster-1",
		}}}
		pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
		pv.Status.Phase = phase
		if !since.IsZero() {
			pv.Status.LastPhaseTransitionTime = &metav1.Time{Time: since}
		}
		f.must(f.factory.Core().V1().PersistentVolumes().Informer().GetStore().Add(pv))
	}
	add("1", "gold", "iscsi", "test", corev1.VolumeReleased, late)
	add("2", "gold", "iscsi", "test", corev1.VolumeReleased, early)
	add("3", "gold", "iscsi", "test", corev1.VolumeReleased, time.Time{})
	add("4", "removed", "invented", "test", corev1.VolumeBound, early)
	add("5", "gold", "iscsi", "another", corev1.VolumeBound, early)
	got, err := f.PersistentVolumeCounts()
	f.must(err)
	want := map[VolumeGroup]VolumeCount{
		{"gold", "iscsi", corev1.VolumeReleased, corev1.PersistentVolumeReclaimDelete}: {3, early},
		{"other", "other", corev1.VolumeBound, corev1.PersistentVolumeReclaimDelete}:   {1, early},
	}
	if !maps.Equal(got, want) {
		t.Errorf("counted %v\nwant %v", got, want)
	}
}

func TestTurnsAreCounted(t *testing.T) {
	f, _, _ := newCountedFixture(t)
	for i := range 3 {
		f.parkedClaims.loop.Turns.Begin(fmt.Sprint(i), "a", "gold")
	}
	f.parkedVolumes.loop.Turns.Begin("pv", "a", "gold")
	want := []Turns{{"claims", 3, 0}, {"deletions", 1, 0}, {"followup", 0, 0}}
	if got := f.Turns(); !slices.Equal(got, want) {
		t.Errorf("turns are %v, want %v", got, want)
	}
	for i := range 100 {
		f.parkedClaims.loop.Turns.Begin(fmt.Sprint(i), "a", "gold")
	}
	if got := f.Turns()[0]; got != (Turns{"claims", 50, 50}) {
		t.Errorf("turns are %v, want 50 held, since one tenant gets no more than half, and 50 waiting", got)
	}
}
