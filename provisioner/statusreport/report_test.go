package statusreport

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func pointer(n int64) *int64 { return &n }

func quotas(volumesUsed, volumesLimit, gigabytesUsed, gigabytesLimit int64) []Quota {
	quota := func(resource Resource, used, limit int64) Quota {
		q := Quota{Resource: resource, Used: pointer(used)}
		if limit >= 0 {
			q.Limit = pointer(limit)
		}
		return q
	}
	return []Quota{quota(Volumes, volumesUsed, volumesLimit), quota(Gigabytes, gigabytesUsed, gigabytesLimit)}
}

// withSnapshots adds the quotas that only tenants and rules have.
func withSnapshots(of []Quota, used, limit int64) []Quota {
	return append(of, Quota{Resource: Snapshots, Used: pointer(used), Limit: pointer(limit)}, Quota{Resource: SnapshotGigabytes, Used: pointer(10 * used)},
		Quota{Resource: Backups, Used: pointer(used), Limit: pointer(2 * limit)}, Quota{Resource: BackupGigabytes, Used: pointer(10 * used)})
}

// exampleTime is the time of the example.
var exampleTime = time.Date(2026, 11, 22, 9, 30, 0, 0, time.UTC)

// example returns a leader's report with every state.
func example() Report {
	at := func(minutes int) time.Time { return exampleTime.Add(time.Duration(-minutes) * time.Minute) }
	return Report{
		APIVersion: APIVersion, Kind: Kind, Time: exampleTime,
		Program: Program{Version: "v0.2.0", Commit: "0123456789ab"},
		Replica: Replica{Identity: "standalone-cinder-6c9f7-x2x7k_1f0e", Namespace: "standalone-cinder", ProvisionerName: "openstack.org/standalone-cinder", Ready: true, Leads: true, LeadsSince: at(600)},
		Leader:  Leader{Identity: "standalone-cinder-6c9f7-x2x7k_1f0e", Lease: "standalone-cinder/openstack.org-standalone-cinder"},
		Policy: Policy{
			File: "/etc/standalone-cinder/policy/policy.yaml", Revision: "7451c22f1e46", Source: FromLastGood, KeptIn: "Secret standalone-cinder/openstack.org-standalone-cinder-last-good",
			Refused: []string{`policy.yaml:12:7: tenants[0].classes[0].volumeTyp: unknown field; did you mean "volumeType"?`},
		},
		Credentials: []CredentialTrouble{{Backend: "lab", Message: `clouds.yaml has no entry "lab"; credentials that were read before stay in use`}},
		Backends: []Backend{
			{Name: "gold", State: Answers, FailuresInARow: 2, LastFailure: "create volume: 500 Internal Server Error", LastFailureAt: at(1), Quotas: quotas(37, 40, 1210, 5000),
				Certificates: []Certificate{{"keystone", at(-15 * 24 * 60)}, {"cinder", at(-300 * 24 * 60)}}},
			{Name: "silver", State: CircuitOpen, Since: at(12), LastFailure: "list volumes: dial tcp 203.0.113.7:8776: connect: connection refused", LastFailureAt: at(0), Quotas: quotas(5, -1, 50, -1),
				Certificates: []Certificate{{"client", at(12)}, {"cinder", at(-20 * 24 * 60)}}},
			{Name: "lab", State: Unused, Suspended: true, Quotas: quotas(0, 0, 0, -1)},
			{Name: "old", State: Answers, Retired: true, Quotas: []Quota{}},
		},
		Tenants: []Tenant{
			{
				Name: "team-a", Quotas: withSnapshots(quotas(20, 20, 420, 500), 9, 10),
				Rules: []Rule{
					{Path: "tenants[0].classes[0]", StorageClasses: []string{"fast", "fast-*"}, Backends: []string{"gold", "silver"}, Quotas: withSnapshots(quotas(18, -1, 400, 450), 9, 10)},
					{Path: "tenants[0].classes[1]", StorageClasses: []string{"*"}, Backends: []string{"lab"}, Quotas: withSnapshots(quotas(2, -1, 20, -1), 0, 5)},
				},
				Shares: []Share{{Backend: "gold", Volumes: 17, Gigabytes: 390}, {Backend: "silver", Volumes: 3, Gigabytes: 30}},
			},
			{Name: "team-b", Quotas: withSnapshots(quotas(22, -1, 840, -1), 4, 40), Rules: []Rule{}, Shares: []Share{{Backend: "gold", Volumes: 20, Gigabytes: 820}, {Backend: "silver", Volumes: 2, Gigabytes: 20}}},
		},
		TenantsNotShown: 3,
		Claims: &Claims{
			InFlight: []Step{
				{Step: Choosing, Count: 1}, {Step: Connecting, Count: 4, OldestSeconds: 12.5}, {Step: Saving, Count: 2, OldestSeconds: 0.25},
				{Step: Queued}, {Step: Completing, Count: 3}, {Step: Undoing},
			},
			Waiting: NewWaiting([]Pending{
				{Namespace: "team-a-ci", Name: "cache", StorageClass: "fast", State: "waiting", Since: at(1), Created: at(1)},
				{Namespace: "team-a", Name: "data", StorageClass: "fast", State: "denied", Reason: "QuotaExceeded", Message: "tenant team-a would use 21 of 20 volumes (tenants[0].quota.volumes)", Since: at(30), Created: at(31)},
				{Namespace: "team-b", Name: "db", StorageClass: "slow", Backend: "gold", State: "failing", Message: "backend gold: create volume: <b>\"type\" & zone</b>\tdo not fit\n\x1b[31m", Since: at(3), Created: at(5)},
				{Namespace: "stranger", Name: "later", StorageClass: "fast", State: "denied", Reason: "NoMatchingTenant", Since: exampleTime, Created: exampleTime},
			}, 3),
		},
		Deletions: &Deletions{InProgress: 2, Waiting: NewWaiting([]Pending{{
			Namespace: "team-b", Name: "tmp", PersistentVolume: "pvc-5c6c2324-e7e2-428c-9b9e-93f1ab117834", StorageClass: "slow", Backend: "silver",
			State: "blocked", Reason: "BackendUnavailable", Message: "backend silver: requests are blocked until a probe succeeds", Since: at(12), Created: at(9000),
		}}, DefaultLimit)},
		Expansions: &Waiting{Total: 1, Pending: []Pending{{
			Namespace: "team-a", Name: "logs", PersistentVolume: "pvc-0b6ecf5e-6f3c-4be1-a1d4-a7b54b5a0c5c", StorageClass: "fast",
			State: "denied", Reason: "QuotaExceeded", Message: "tenant team-a would use 530 of 500 GiB (tenants[0].quota.gigabytes)", Since: at(7), Created: at(9000),
		}}},
		Snapshots: &Waiting{Total: 2, Pending: []Pending{
			{Namespace: "team-b", Name: "nightly", State: "failing", Reason: "SnapshotCreationFailed", Message: "backend gold: create snapshot: 500 Internal Server Error", Since: at(4), Created: at(5)},
		}, NotShown: 1},
		Attachments: &Attachments{Attached: 52, InProgress: 3, Waiting: Waiting{Total: 2, Pending: []Pending{
			{Namespace: "team-a", Name: "data-0", PersistentVolume: "pvc-8f0c7f60-8b1f-4a53-bc3c-90a7a93f4c0d", Node: "node-2", StorageClass: "fast", Backend: "gold", State: "waiting", Reason: "Attaching", Since: at(6), Created: at(6)},
			{Namespace: "team-a", Name: "data-0", PersistentVolume: "pvc-8f0c7f60-8b1f-4a53-bc3c-90a7a93f4c0d", Node: "node-3", StorageClass: "fast", Backend: "gold", State: "blocked", Reason: StillStaged, Message: "node node-3 may still write to the volume"},
		}}},
		Audit: &Audit{Time: at(12), Total: 2, Findings: []Finding{
			{Kind: "OrphanVolume", Subject: "volume 5f16ea52-5560-41a6-b710-da9a50ab7b5e of claim team-a/old", Backend: "gold", Message: "the claim is gone and no PersistentVolume names the volume"},
			{Kind: "BackendUnreadable", Subject: "all volumes", Backend: "silver", Message: "list volumes: connection refused"},
		}},
		Pods: []Pod{
			{Name: "standalone-cinder-6c9f7-9h8wd", Node: "node-1", Image: "ghcr.io/standalone-cinder/standalone-cinder:v0.2.0", Ready: true, Created: at(2000)},
			{Name: "standalone-cinder-6c9f7-x2x7k", Node: "node-2", Image: "ghcr.io/standalone-cinder/standalone-cinder:v0.2.0", Ready: true, Restarts: 1, Created: at(2000)},
			{Name: "standalone-cinder-7d11b-aaaaa", Node: "node-3", Image: "ghcr.io/standalone-cinder/standalone-cinder:v0.3.0", Created: at(9)},
			{Name: "standalone-cinder-6c9f7-old00", Node: "node-3", Image: "ghcr.io/standalone-cinder/standalone-cinder:v0.1.0", Ending: true, Created: at(9000)},
		},
		KeptVolumes: []Kept{{Tenant: "team-a", Share: Share{Backend: "gold", Volumes: 2, Gigabytes: 40}}},
		Moves:       []Move{{Copy: "former", Share: Share{Backend: "gold", Volumes: 3, Gigabytes: 60}, Oldest: exampleTime.Add(-50 * time.Hour)}},
	}
}

// exampleOfFollower returns what another replica reports at the same time.
func exampleOfFollower() Report {
	r := example()
	r.Replica = Replica{Identity: "standalone-cinder-6c9f7-9h8wd_77aa", Namespace: r.Replica.Namespace, ProvisionerName: r.Replica.ProvisionerName, Ready: true}
	r.LeaderOnly = "this replica does not lead: ask " + r.Leader.Identity + " for usage, health of backends, claims and deletions"
	r.Policy.Source, r.Policy.Refused, r.Credentials = FromFile, nil, []CredentialTrouble{}
	r.Claims, r.Deletions, r.KeptVolumes, r.Moves, r.TenantsNotShown = nil, nil, nil, nil, 0
	r.Expansions, r.Snapshots, r.Attachments, r.Audit, r.Pods = nil, nil, nil, nil, nil
	unused := func(quotas []Quota) {
		for i := range quotas {
			quotas[i].Used = nil
		}
	}
	for i := range r.Backends {
		r.Backends[i] = Backend{Name: r.Backends[i].Name, Suspended: r.Backends[i].Suspended, Retired: r.Backends[i].Retired, State: Unknown, Quotas: r.Backends[i].Quotas}
		unused(r.Backends[i].Quotas)
	}
	for i := range r.Tenants {
		unused(r.Tenants[i].Quotas)
		r.Tenants[i].Shares = nil
		for _, rule := range r.Tenants[i].Rules {
			unused(rule.Quotas)
		}
	}
	return r
}

// TestReportsLookTheSame compares every form of a leader's and a follower's report
// with golden files.
func TestReportsLookTheSame(t *testing.T) {
	for name, report := range map[string]Report{"leader": example(), "follower": exampleOfFollower()} {
		var asJSON, table bytes.Buffer
		encoder := json.NewEncoder(&asJSON)
		encoder.SetIndent("", "  ")
		if err := encoder.Encode(report); err != nil {
			t.Fatal(err)
		}
		if err := report.WriteTable(&table); err != nil {
			t.Fatal(err)
		}
		for extension, got := range map[string][]byte{"json": asJSON.Bytes(), "txt": table.Bytes()} {
			path := filepath.Join("testdata", name+"."+extension)
			if *update {
				if err := os.WriteFile(path, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%s is no longer the same; if that is on purpose, run go test -update ./provisioner/statusreport\n%s", path, got)
			}
		}
		if strings.Contains(table.String(), "\x1b") {
			t.Error("the table passes control characters to the terminal")
		}
	}
}

// TestAReportCanBeReadBack: the commands read it.
func TestAReportCanBeReadBack(t *testing.T) {
	for _, want := range []Report{example(), exampleOfFollower()} {
		text, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		var got Report
		if err := json.Unmarshal(text, &got); err != nil {
			t.Fatal(err)
		}
		again, err := json.Marshal(got)
		if err != nil || !bytes.Equal(again, text) {
			t.Errorf("read back, the report is\n%s\nnot\n%s", again, text)
		}
	}
}

func TestTroublesAreWhatNeedsAnOperator(t *testing.T) {
	r := example()
	want := "[the policy file is refused the credentials of backend lab cannot be read backend silver does not answer for 12 min, which concerns tenants team-a, team-b backend silver: the client certificate has expired]"
	if got := fmt.Sprint(r.Troubles()); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	follower := exampleOfFollower()
	if got := follower.Troubles(); len(got) != 0 {
		t.Errorf("a follower has the troubles %q", got)
	}
	follower.Leader.Identity = ""
	if got := fmt.Sprint(follower.Troubles()); got != "[no replica is known to lead]" {
		t.Error(got)
	}
}

// TestTroubleWithABackendSaysWhatItIsAndWhomItConcerns: a tenant without a volume may wait for
// its first one.
func TestTroubleWithABackendSaysWhatItIsAndWhomItConcerns(t *testing.T) {
	const rejected = "auth.login: the credentials were rejected; check user, password, project and domains (HTTP 401)"
	at := func(seconds int) time.Time { return exampleTime.Add(time.Duration(-seconds) * time.Second) }
	rule := func(backends ...string) []Rule { return []Rule{{Backends: backends}} }
	for name, c := range map[string]struct {
		report Report
		want   string
	}{
		"the login is rejected": {Report{Backends: []Backend{{Name: "gold", State: Answers, FailuresInARow: 1, LastFailure: rejected, LastFailureAt: at(3)}}},
			"the login to backend gold is rejected, last 3 s ago: the credentials were rejected; check user, password, project and domains (HTTP 401)"},
		"the login is rejected for long": {Report{Backends: []Backend{{Name: "gold", State: CircuitOpen, Since: at(300), LastFailure: rejected, LastFailureAt: at(3)}}, Tenants: []Tenant{{Name: "a", Rules: rule("gold")}}},
			"the login to backend gold is rejected for 5 min, which concerns tenant a: the credentials were rejected; check user, password, project and domains (HTTP 401)"},
		"the login was rejected once":        {Report{Backends: []Backend{{Name: "gold", State: Answers, LastFailure: rejected, LastFailureAt: at(3)}}}, ""},
		"Keystone is silent":                 {Report{Backends: []Backend{{Name: "gold", State: CircuitOpen, LastFailure: "auth.login: no answer"}}}, "backend gold does not answer"},
		"Keystone fails":                     {Report{Backends: []Backend{{Name: "gold", State: CircuitOpen, LastFailure: "auth.login: the answer is 503 (HTTP 503)"}}}, "backend gold does not answer"},
		"a request fails":                    {Report{Backends: []Backend{{Name: "gold", State: Answers, FailuresInARow: 1, LastFailure: "list volumes: the answer is 500 (HTTP 500)"}}}, ""},
		"a rule has only the backend":        {Report{Backends: []Backend{{Name: "gold", State: CircuitOpen}}, Tenants: []Tenant{{Name: "a", Rules: rule("gold")}, {Name: "b", Rules: rule("gold", "silver")}}}, "backend gold does not answer, which concerns tenant a"},
		"claims wait for it, and for others": {Report{Backends: []Backend{{Name: "gold", State: CircuitOpen}}, Claims: &Claims{Waiting: Waiting{Pending: []Pending{{Namespace: "x", Backend: "gold"}, {Namespace: "x", Backend: "gold"}, {Namespace: "y", Backend: "silver"}, {Namespace: "z"}}}}}, "backend gold does not answer, which concerns pending claims of namespace x"},
	} {
		c.report.Time, c.report.Leader.Identity = exampleTime, "x"
		if got := strings.Join(c.report.Troubles(), "; "); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestOnlyTheOldestAreListed: the others are counted.
func TestOnlyTheOldestAreListed(t *testing.T) {
	var pending []Pending
	for i := range 20 {
		pending = append(pending, Pending{Name: fmt.Sprint(i), Created: exampleTime.Add(-time.Duration(i) * time.Second)})
	}
	w := NewWaiting(pending, 2)
	if w.Total != 20 || w.NotShown != 18 || len(w.Pending) != 2 || w.Pending[0].Name != "19" || w.Pending[1].Name != "18" {
		t.Errorf("%+v", w)
	}
	if w = NewWaiting(nil, 2); w.Total != 0 || w.NotShown != 0 || w.Pending == nil {
		t.Errorf("%+v", w)
	}
}

// TestDelaysAreToldBeforeTheDetails: how much waits, how long, and which quota is full.
func TestDelaysAreToldBeforeTheDetails(t *testing.T) {
	r := example()
	want := `4 claims wait, the longest for 30 min
1 deletion waits, the longest for 12 min
1 expansion waits, the longest for 7 min
2 snapshots wait, the longest for 4 min
2 attachments wait, the longest for 6 min; volumes that Kubernetes has detached are still staged on node node-3
replicas run different images: ghcr.io/standalone-cinder/standalone-cinder:v0.2.0, ghcr.io/standalone-cinder/standalone-cinder:v0.3.0
not ready: pod standalone-cinder-7d11b-aaaaa
findings of the last audit: 2
backend gold: the keystone certificate expires in 15 days
backend silver: the cinder certificate expires in 20 days
a quota is full: tenant team-a`
	if got := strings.Join(r.Delays(), "\n"); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if follower := exampleOfFollower(); len(follower.Delays()) != 0 {
		t.Errorf("a follower has the delays %q", follower.Delays())
	}
	if got := named("tenant", []string{"a", "b", "c", "d", "e"}); got != "tenants a, b, c and 2 more" {
		t.Error(got)
	}
}

func TestAgesAreRead(t *testing.T) {
	r := example()
	for age, want := range map[time.Duration]string{
		-time.Second: "0 s", 119 * time.Second: "119 s", 2 * time.Minute: "2 min", 119 * time.Minute: "119 min", 47 * time.Hour: "47 h", 100 * time.Hour: "4 days",
	} {
		if got := r.Age(r.Time.Add(-age)); got != want {
			t.Errorf("%s: %s, want %s", age, got, want)
		}
	}
	if got := r.Age(time.Time{}); got != "" {
		t.Errorf("an unknown time is %s", got)
	}
}

// TestTheVerdictAgreesWithItsTables: the same page shows both.
func TestTheVerdictAgreesWithItsTables(t *testing.T) {
	full := func(used, limit int64) []Quota {
		return []Quota{{Resource: Volumes, Used: pointer(used), Limit: pointer(limit)}}
	}
	at := func(minutes int) time.Time { return exampleTime.Add(time.Duration(-minutes) * time.Minute) }
	waiting := NewWaiting([]Pending{
		{Name: "older", Created: at(60), Since: at(3)},
		{Name: "younger", Created: at(50), Since: at(40)},
	}, DefaultLimit)
	for name, c := range map[string]struct {
		report Report
		want   string
	}{
		"the claim that waits longest is not the oldest": {Report{Claims: &Claims{Waiting: waiting}}, "2 claims wait, the longest for 40 min"},
		"the quota of a rule is full":                    {Report{Tenants: []Tenant{{Name: "a", Quotas: full(1, 2), Rules: []Rule{{Path: "tenants[0].classes[0]", Quotas: full(2, 2)}}}}}, "a quota is full: tenant a"},
		"a backend is full":                              {Report{Backends: []Backend{{Name: "gold", State: Answers, Quotas: full(2, 2)}}}, "a limit is reached: backend gold"},
		"a suspended backend is full":                    {Report{Backends: []Backend{{Name: "gold", Suspended: true, Quotas: full(2, 2)}}}, ""},
		"nothing is full":                                {Report{Backends: []Backend{{Name: "gold", Quotas: full(1, 2)}}, Tenants: []Tenant{{Name: "a", Quotas: full(1, 2)}}}, ""},
	} {
		c.report.Time = exampleTime
		if got := strings.Join(c.report.Delays(), "; "); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestAWaitThatAnEarlierLeaderMayHaveSeenIsAtLeastThatLong: a leader knows only its own term.
func TestAWaitThatAnEarlierLeaderMayHaveSeenIsAtLeastThatLong(t *testing.T) {
	at := func(seconds int) time.Time { return exampleTime.Add(time.Duration(-seconds) * time.Second) }
	for name, c := range map[string]struct {
		since, created time.Time
		older          bool
	}{
		"denied as the term began":       {at(5), at(120), true},
		"created in the term":            {at(5), at(5), false},
		"denied later in the term":       {at(5), at(600), false},
		"known since before the term":    {at(300), at(300), false},
		"created and denied as it began": {at(2), at(2), false},
	} {
		r := Report{Time: exampleTime, Replica: Replica{LeadsSince: at(6)}}
		if name == "denied later in the term" {
			r.Replica.LeadsSince = at(500)
		}
		p := Pending{Namespace: "a", Name: "data", State: "denied", Since: c.since, Created: c.created}
		r.Claims = &Claims{Waiting: NewWaiting([]Pending{p}, DefaultLimit)}
		var table bytes.Buffer
		if err := r.WriteTable(&table); err != nil {
			t.Fatal(err)
		}
		got := []bool{r.MayBeOlder(p), strings.Contains(table.String(), FormatTime(c.since)+" or before"), strings.Contains(table.String(), "the longest for at least ")}
		if want := []bool{c.older, c.older, c.older}; !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v\n%s", name, got, want, table.String())
		}
	}
}
