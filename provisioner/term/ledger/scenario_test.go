package ledger_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/ledger"
)

// TestLedgerScenarios runs the steps in testdata. "policy" defines a policy, "term" begins with
// an empty ledger under one, "reload" puts another in force, and most others call the
// ledger for a claim or VolumeSnapshot. They need not repeat what an earlier step said of
// it, and print the answer, where the claim counts now, and the usage that has changed.
// The flag -rewrite replaces what they print.
func TestLedgerScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		s := &scenario{policies: map[string]*policy.Policy{}}
		datadriven.RunTest(t, path, s.run)
	})
}

type scenario struct {
	*ledger.Ledger
	policies map[string]*policy.Policy
	inForce  *policy.Policy
	subjects map[string]subject
	shown    map[ledger.Scope]policy.Usage
}

// subject is what the steps say of a claim or VolumeSnapshot.
type subject struct {
	ledger.Snapshot
	uid, leftBy                        types.UID
	backend, volume, imports, revision string
}

func (s *scenario) run(t *testing.T, d *datadriven.TestData) (answer string) {
	switch d.Cmd {
	case "policy":
		s.policies[d.CmdArgs[0].Key] = parse(t, d.Input)
		return ""
	case "reload", "term":
		if s.inForce = s.policies[d.CmdArgs[0].Key]; d.Cmd == "term" {
			s.Ledger, s.subjects, s.shown = ledger.New(func() *policy.Policy { return s.inForce }), map[string]subject{}, nil
		}
		return ""
	case "take-freed":
		var freed []string
		for _, of := range s.TakeFreed() {
			freed = append(freed, string(of.Kind)+" "+of.Name)
		}
		return strings.Join(slices.Sorted(slices.Values(freed)), "\n")
	case "shares":
		shares := map[string]policy.Usage{}
		for of, used := range s.Census().Shares {
			shares[tenant(of.Tenant)+" on "+of.Backend] = used
		}
		for of, used := range s.Census().Kept {
			shares["left behind by "+tenant(of.Tenant)+" on "+of.Backend] = used
		}
		answer = list(shares)
	case "list-snapshots":
		var names []string
		var ago time.Duration
		d.MaybeScanArgs(t, "names", &names)
		d.MaybeScanArgs(t, "ago", &ago)
		listed := map[types.UID]ledger.Snapshot{}
		for _, name := range names {
			listed[types.UID(name)] = s.read(t, d, name).Snapshot
		}
		for _, tenant := range s.FoundSnapshots(s.read(t, d, "").backend, false, listed, time.Now().Add(-ago)) {
			answer += freed(tenant, true)
		}
	default:
		of := s.read(t, d, d.CmdArgs[0].Key)
		if answer = s.call(d.Cmd, of); !strings.Contains(d.Cmd, "snapshot") {
			answer += s.position(of.uid)
		}
	}
	return answer + s.changes()
}

func (s *scenario) read(t *testing.T, d *datadriven.TestData, name string) subject {
	of := s.subjects[name]
	of.uid, of.leftBy, of.imports, of.Estimated, of.revision = types.UID(name), "", "", false, s.inForce.Revision()
	for key, to := range map[string]any{"tenant": &of.Tenant, "class": &of.StorageClass, "gib": &of.GiB, "estimated": &of.Estimated, "volume": &of.volume,
		"on": &of.backend, "import": &of.imports, "left-by": &of.leftBy, "revision": &of.revision} {
		d.MaybeScanArgs(t, key, to)
	}
	s.subjects[name] = of
	return of
}

// offers reports whether the ledger has offered freed room since the last call.
func (s *scenario) offers() bool {
	select {
	case <-s.Freed():
		return true
	default:
		return false
	}
}

func (s *scenario) call(method string, of subject) string {
	s.offers()
	volume := ledger.Volume{Tenant: of.Tenant, StorageClass: of.StorageClass, GiB: of.GiB, VolumeID: of.volume}
	request := policy.Request{Namespace: "team-" + of.Tenant, StorageClass: of.StorageClass, Bytes: of.GiB << 30}
	holding := policy.Holding{Tenant: of.Tenant, Backend: of.backend}
	decided := func(d policy.Decision) ledger.Decided {
		if d.Denial != nil {
			panic(d.Denial.Message)
		}
		return ledger.Decided{Decision: d, Revision: of.revision, Import: of.imports, LeftBy: of.leftBy}
	}
	return map[string]func() string{
		"reserve": func() string {
			backend, passedOver, refused, err := s.Reserve(of.uid, of.StorageClass, decided(s.inForce.Decide(request)))
			if backend != "" {
				return "granted on " + backend + "\n" + passed(passedOver)
			}
			return granted(refused, err)
		},
		"reserve-snapshot": func() string {
			r := policy.SnapshotRequest{Namespace: request.Namespace, StorageClass: of.StorageClass, Backend: of.backend, Tenant: of.Tenant}
			denial, err := s.ReserveSnapshot(of.uid, of.backend, of.Snapshot, decided(s.inForce.DecideSnapshot(r)))
			return granted(&ledger.Refusal{Denial: denial}, err)
		},
		"record":                 func() string { return freed("", s.Record(of.uid, volume, of.backend)) },
		"found":                  func() string { return freed("", s.Found(of.uid, volume, of.backend)) },
		"keep":                   func() string { s.Keep(of.uid); return "" },
		"persistent-volume-gone": func() string { s.PersistentVolumeGone(of.uid); return "" },
		"release":                func() string { return freed("", s.Release(of.uid)) },
		"release-reservation":    func() string { return freed("", s.ReleaseReservation(of.uid)) },
		"grow":                   func() string { return granted(s.Grow(of.uid, decided(s.inForce.DecideExpansion(request, holding)))) },
		"hold-growth":            func() string { s.HoldGrowth(of.uid, of.GiB); return "" },
		"give-up-growth": func() string {
			return map[bool]string{false: "goes on\n"}[s.GiveUpGrowth(of.uid)] + freed("", s.offers())
		},
		"settle-growth":                func() string { s.SettleGrowth(of.uid, of.GiB); return freed("", s.offers()) },
		"record-snapshot":              func() string { return freed(s.RecordSnapshot(of.uid, of.backend, of.Snapshot)) },
		"snapshot-content-gone":        func() string { s.ContentGone(of.uid); return "" },
		"release-snapshot":             func() string { return freed(s.ReleaseSnapshot(of.uid)) },
		"release-snapshot-reservation": func() string { return freed(s.ReleaseSnapshotReservation(of.uid)) },
	}[method]()
}
