package provisioner

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/statusreport"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/journal"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

func countsOf(steps []statusreport.Step) string {
	var text []string
	for _, step := range steps {
		if step.Count > 0 {
			text = append(text, fmt.Sprintf("%s %d", step.Step, step.Count))
		}
	}
	return strings.Join(text, ", ")
}

// TestReportFollowsAClaim follows a claim from a denial through a failure to its
// volume.
func TestReportFollowsAClaim(t *testing.T) {
	f, _, gold := newCountedFixture(t)
	all := Selected{Limit: statusreport.DefaultLimit}
	pending := func() statusreport.Pending {
		t.Helper()
		report := f.ReportClaims(all)
		if report.Total != 1 || len(report.Pending) != 1 {
			t.Fatalf("pending are %+v", report.Pending)
		}
		return report.Pending[0]
	}
	f.limit("0")
	claim := f.claim(nil)
	f.admits(claim)
	denied := pending()
	if denied.State != "denied" || denied.Reason != "QuotaExceeded" || !strings.HasPrefix(denied.Message, "tenant a would use 1 of 0 volumes") || denied.Namespace != "team-a" || denied.Name != "data" || denied.Since.IsZero() {
		t.Errorf("%+v", denied)
	}

	f.limit("5")
	f.admits(claim)
	gold.err = &cinder.Error{Kind: cinder.KindInvalid, Backend: "gold", Message: "no such type"}
	gold.onCall = func() {
		report := f.ReportClaims(all)
		if got := countsOf(report.InFlight); got != "connecting 1" || report.Total != 0 {
			t.Errorf("while Cinder makes the volume: %s, pending %d", got, report.Total)
		}
	}
	if _, err := f.provision(claim); err == nil {
		t.Fatal("the attempt succeeded")
	}
	gold.onCall = nil
	failing := pending()
	if failing.State != "failing" || failing.Reason != "" || !strings.Contains(failing.Message, "no such type") {
		t.Errorf("%+v", failing)
	}

	gold.err = nil
	pv, err := f.provision(claim)
	f.must(err)
	if got := countsOf(f.ReportClaims(all).InFlight); got != "saving 1" {
		t.Errorf("while the PersistentVolume is saved: %s", got)
	}
	pv.UID, pv.Annotations[objects.AnnotationProvisionedBy] = "pv-uid", "test"
	f.store(pv)
	f.followup.VolumeSeen(pv)
	if got := countsOf(f.ReportClaims(all).InFlight); got != "queued 1" {
		t.Errorf("before the last step: %s", got)
	}
	gold.onCall = func() {
		if got := countsOf(f.ReportClaims(all).InFlight); got != "completing 1" {
			t.Errorf("during the last step: %s", got)
		}
	}
	f.follow(f.followup)
	gold.onCall = nil
	if report := f.ReportClaims(all); countsOf(report.InFlight) != "" || report.Total != 0 {
		t.Errorf("after the last step: %+v", report)
	}
	if used := f.Census().Shares; fmt.Sprint(used) != "map[{a gold}:{1 2 0 0 0 0}]" {
		t.Errorf("used is %v", used)
	}
}

// TestAnOutageDeniesNoClaim: the claim is granted, and only its backend keeps it waiting.
func TestAnOutageDeniesNoClaim(t *testing.T) {
	f, _, gold := newCountedFixture(t)
	gold.health = &cinder.Error{Kind: cinder.KindUnavailable, Backend: "gold", Message: "down"}
	f.admits(f.claim(nil))
	report := f.ReportClaims(Selected{Limit: 9})
	if len(report.Pending) != 1 || report.Pending[0].State != "blocked" || report.Pending[0].Reason != "BackendUnavailable" {
		t.Errorf("%+v", report.Pending)
	}
	if got := f.PendingClaims(); len(got) != 1 || got[0].State != parking.Blocked {
		t.Errorf("counted as %+v", got)
	}
	gold.health = nil
	f.publish(parking.Backend, "gold")
	f.wantRequeued("data")
}

// TestReportOfDeletions checks which deletions wait, and for what.
func TestReportOfDeletions(t *testing.T) {
	f, _, gold := newCountedFixture(t)
	pv, err := f.provision(f.claim(nil))
	f.must(err)
	f.store(pv)
	f.released(pv)
	gold.health = &cinder.Error{Kind: cinder.KindUnavailable, Backend: "gold", Message: "down"}
	f.ShouldDelete(t.Context(), pv)
	f.parkedVolumes.loop.Turns.Begin(pv.Name, "a", "gold")
	for _, c := range []struct {
		selected Selected
		want     int
	}{
		{Selected{}, 1}, {Selected{Namespace: "team-a"}, 1}, {Selected{Namespace: "team-a", Claim: "data"}, 1},
		{Selected{Namespace: "team-b"}, 0}, {Selected{Namespace: "team-a", Claim: "other"}, 0},
		{Selected{Namespaces: sets.New("team-a", "team-c")}, 1}, {Selected{Namespaces: sets.New("team-c")}, 0}, {Selected{Namespaces: sets.New[string]()}, 0},
	} {
		selected, want := c.selected, c.want
		selected.Limit = 9
		report := f.ReportDeletions(selected)
		if report.Total != want || report.InProgress != want {
			t.Errorf("%+v: %d deletions wait and %d are in progress, want %d", selected, report.Total, report.InProgress, want)
		}
		if want == 1 {
			one := report.Pending[0]
			if one.PersistentVolume != pv.Name || one.Backend != "gold" || one.State != "blocked" || one.Reason != "BackendUnavailable" || one.Message != "backend gold: down" {
				t.Errorf("%+v", one)
			}
		}
	}
}

// TestReportOfManyIsShort: of 20,000 pending claims, the report lists the oldest, and a
// selected one even if it is not among them.
func TestReportOfManyIsShort(t *testing.T) {
	f := newFixture(t)
	const many = 20_000
	now := time.Now()
	for i := range many {
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
			Namespace: fmt.Sprint("team-", i%7), Name: fmt.Sprint("data-", i), UID: types.UID(fmt.Sprint(i)), CreationTimestamp: metav1.NewTime(now.Add(-time.Duration(i) * time.Second)),
		}}
		f.parkedClaims.lot.IsNews(claim.UID, "QuotaExceeded", "full", true)
		f.parkedClaims.lot.Park(claim, parking.Denied)
		f.journal.Begin(claim.UID, journal.Beginning{Backend: "gold", Stamp: stamps.Volume{Namespace: claim.Namespace, Claim: claim.Name}})
	}
	report := f.ReportClaims(Selected{Limit: 10})
	if report.Total != many || len(report.Pending) != 10 || report.NotShown != many-10 || report.Pending[0].Name != fmt.Sprint("data-", many-1) {
		t.Errorf("total %d, listed %d, not shown %d, first %s", report.Total, len(report.Pending), report.NotShown, report.Pending[0].Name)
	}
	report = f.ReportClaims(Selected{Limit: 10, Namespace: "team-1", Claim: "data-1"})
	if report.Total != 1 || report.Pending[0].Name != "data-1" {
		t.Errorf("selected: %+v", report.Waiting)
	}
}
