package report

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/test/chaos/campaign"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/checker"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/evidence"
)

func TestTableCountsByKind(t *testing.T) {
	var out strings.Builder
	Table(&out, []campaign.Result{
		{Seed: 7, Took: 95 * time.Second, Settled: 12400 * time.Millisecond, Counts: campaign.Counts{
			Claims: 300, Bound: 210, Deleted: 300, Snapshots: 17, Backups: 5, Groups: 6, Together: 2, Kills: 4, Pauses: 3, Rolls: 6, ServerFailures: 2, Cuts: 40, Faults: 250,
			Flaps: 9, Full: 17, Flips: 21, Retypes: 6, Grows: 12, Removals: 11, Unbound: 3, Places: 5, NodeUses: 33,
			Pods: 34, Attached: 46, Staged: 60, Sealed: 13, Losses: 14, Forced: 9, Rebound: 23, Lies: 120, Attacks: 60, PeakMemory: 90 << 20,
		}},
		{Seed: 8, Findings: []checker.Finding{{Kind: checker.Leaked}, {Kind: checker.Leaked}, {Kind: checker.Stuck}}},
	})
	want := `SEED  TOOK  CLAIMS  BOUND  DELETED  SNAPSHOTS  BACKUPS  GROUPS  TAKEN TOGETHER  KILLS  PAUSES  STOPS  API SERVER  NETWORK  CINDER FAULTS  SETTLED IN
7     95 s  300     210    300      17         5        6       2               4      3       6      2           40       250            12.4 s
8     0 s   0       0      0        0          0        0       0               0      0       0      0           0        0              0.0 s

SEED  FLAPS  FULL  PLACES  FLIPS  RETYPED  GROWN  REMOVED  UNBOUND  NODE USES  PODS  ATTACHED  STAGED  SEALED  LOST  FORCED  REBOUND  LIES  ATTACKS  PEAK MEMORY
7     9      17    5       21     6        12     11       3        33         34    46        60      13      14    9       23       120   60       90 MiB
8     0      0     0       0      0        0      0        0        0          0     0         0       0       0     0       0        0     0        0 MiB

SEED  LEAKED  DUPLICATE  LOST  WRONGLY DELETED  TAKEN FROM A NODE  FOREIGN TOUCHED  UNUSABLE  WRONG TYPE  STUCK  LEAKED SECRET  LEAKED SNAPSHOT  LEAKED GROUP SNAPSHOT  LEAKED BACKUP  LOST SNAPSHOT  TORN GROUP  LEAKED ATTACHMENT  LOST ATTACHMENT  DOUBLED ATTACHMENT  TWO WRITERS  WRONG CONTENT  IN THE CLEAR  KEY SHOWN  HELD FOR EVER  MISCOUNTED  OVER QUOTA  STALE LEADER  CRASHED
7     0       0          0     0                0                  0                0         0           0      0              0                0                      0              0              0           0                  0                0                   0            0              0             0          0              0           0           0             0
8     2       0          0     0                0                  0                0         0           1      0              0                0                      0              0              0           0                  0                0                   0            0              0             0          0              0           0           0             0

`
	if got := out.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestFailureShowsFindingVolumeJournalLogAndReplay(t *testing.T) {
	var journal []string
	for i := range maxLines + 3 {
		journal = append(journal, fmt.Sprintf("request %d", i))
	}
	finding := checker.Finding{Kind: checker.Lost, Object: "PersistentVolume pvc-1", Text: "volume v1 does not exist\nand more", VolumeID: "v1"}
	r := campaign.Result{Seed: 9, Findings: []checker.Finding{finding}, Evidence: evidence.Evidence{Details: []evidence.Detail{
		{Finding: finding, Volume: "its state", Journal: journal, Log: []string{strings.Repeat("x", maxWidth+1)}},
	}}}
	var out strings.Builder
	Failure(&out, r, "make chaos CHAOS='-seed 9'")
	text := out.String()
	for _, want := range []string{
		"seed 9: 1 findings", "lost: PersistentVolume pvc-1\n  volume v1 does not exist\n  and more\n", "volume: its state",
		"... 3 lines before\n    request 3\n", fmt.Sprintf("request %d\n", maxLines+2), strings.Repeat("x", maxWidth) + "...\n",
		"replay: make chaos CHAOS='-seed 9'\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in\n%s", want, text)
		}
	}
	if strings.Contains(text, "request 2\n") {
		t.Error("more of the journal is shown than is read")
	}
}

func TestFailureShowsEveryFindingAndDetailsOfTheFirst(t *testing.T) {
	r := campaign.Result{Seed: 1}
	for i := range maxDetails + 2 {
		f := checker.Finding{Kind: checker.Stuck, Object: fmt.Sprintf("claim %d", i), Text: "is pending"}
		r.Findings = append(r.Findings, f)
		r.Evidence.Details = append(r.Evidence.Details, evidence.Detail{Finding: f, Volume: "shown"})
	}
	var out strings.Builder
	Failure(&out, r, "")
	if got := strings.Count(out.String(), "stuck: claim "); got != maxDetails+2 {
		t.Errorf("%d findings are shown, want all %d", got, maxDetails+2)
	}
	if got := strings.Count(out.String(), "volume: shown"); got != maxDetails {
		t.Errorf("%d details are shown, want %d", got, maxDetails)
	}
}
