package plan

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"
)

var usual = Options{Duration: 2 * time.Minute, ClaimEvery: 700 * time.Millisecond, Hostile: true, Snapshots: true, CSI: true}

func TestOneSeedMakesOnePlan(t *testing.T) {
	for _, seed := range []uint64{1, 2, 1 << 63} {
		if !reflect.DeepEqual(Make(seed, usual), Make(seed, usual)) {
			t.Errorf("seed %d makes two plans", seed)
		}
	}
}

func TestSeedsMakeDifferentPlans(t *testing.T) {
	one, other := Make(1, usual), Make(2, usual)
	for name, same := range map[string]bool{
		"claims":        reflect.DeepEqual(one.Claims, other.Claims),
		"processes":     reflect.DeepEqual(one.Processes, other.Processes),
		"server":        reflect.DeepEqual(one.Server, other.Server),
		"cinder":        reflect.DeepEqual(one.Cinder, other.Cinder),
		"links":         reflect.DeepEqual(one.Links, other.Links),
		"administrator": reflect.DeepEqual(one.Administrator, other.Administrator),
		"volumes":       reflect.DeepEqual(one.Volumes, other.Volumes),
		"nodes":         reflect.DeepEqual(one.Nodes, other.Nodes),
		"places":        reflect.DeepEqual(one.Places, other.Places),
		"hostile":       reflect.DeepEqual(one.Hostile, other.Hostile),
		"pods":          reflect.DeepEqual(one.Pods, other.Pods),
		"movers":        reflect.DeepEqual(one.Movers, other.Movers),
		"machines":      reflect.DeepEqual(one.Machines, other.Machines),
		"workloads":     reflect.DeepEqual(one.Workloads, other.Workloads),
	} {
		if same {
			t.Errorf("seeds 1 and 2 have the same %s", name)
		}
	}
}

func TestActorsDoNotShareTheirChance(t *testing.T) {
	often := usual
	often.ClaimEvery /= 3
	one, other := Make(7, usual), Make(7, often)
	if reflect.DeepEqual(one.Claims, other.Claims) {
		t.Fatal("more claims make no other plan; this test would prove nothing")
	}
	one.Claims, other.Claims, one.Snapshots, other.Snapshots, one.Grows, other.Grows = nil, nil, nil, nil, nil, nil
	if !reflect.DeepEqual(one, other) {
		t.Error("what the tenants do changes what happens to replicas, servers or network")
	}
	links := map[string]bool{}
	for _, link := range one.Links {
		var at []time.Duration
		for _, step := range link.Steps {
			at = append(at, step.At)
		}
		key := link.String()
		if links[key] {
			t.Errorf("two links are called %s", key)
		}
		links[key] = true
		for _, other := range one.Links {
			if other.String() != key && len(at) > 0 && len(other.Steps) > 0 && other.Steps[0].At == at[0] {
				t.Errorf("%s and %s begin alike", key, other)
			}
		}
	}
	if len(links) != 2*Slots {
		t.Errorf("%d links, want two for each of %d replicas", len(links), Slots)
	}
}

func TestALongerPlanBeginsLikeAShorterOne(t *testing.T) {
	short := usual
	short.Duration = 50 * time.Second
	for seed := range uint64(20) {
		whole, part := Make(seed, usual), Make(seed, short)
		for _, tenant := range TenantNames() {
			begins(t, "claims of "+tenant, whole.Claims[tenant], part.Claims[tenant], func(s ClaimStep) time.Duration { return s.At })
			begins(t, "snapshots of "+tenant, whole.Snapshots[tenant], part.Snapshots[tenant], func(s SnapshotStep) time.Duration { return s.At })
			begins(t, "growth of "+tenant, whole.Grows[tenant], part.Grows[tenant], func(s GrowStep) time.Duration { return s.At })
		}
		begins(t, "processes", whole.Processes, part.Processes, func(s ProcessStep) time.Duration { return s.At })
		begins(t, "server", whole.Server, part.Server, func(s ServerStep) time.Duration { return s.At })
		begins(t, "cinder", whole.Cinder, part.Cinder, func(s CinderStep) time.Duration { return s.At })
		begins(t, "administrator", whole.Administrator, part.Administrator, func(s AdministratorStep) time.Duration { return s.At })
		begins(t, "volumes", whole.Volumes, part.Volumes, func(s VolumeStep) time.Duration { return s.At })
		begins(t, "nodes", whole.Nodes, part.Nodes, func(s NodeStep) time.Duration { return s.At })
		begins(t, "places", whole.Places, part.Places, func(s PlaceStep) time.Duration { return s.At })
		begins(t, "hostile", whole.Hostile, part.Hostile, func(s HostileStep) time.Duration { return s.At })
		begins(t, "pods", whole.Pods, part.Pods, func(s PodStep) time.Duration { return s.At })
		begins(t, "movers", whole.Movers, part.Movers, func(s MoverStep) time.Duration { return s.At })
		begins(t, "workloads", whole.Workloads, part.Workloads, func(s WorkloadStep) time.Duration { return s.At })
		for i := range whole.Machines {
			begins(t, fmt.Sprintf("machine %d", i), whole.Machines[i], part.Machines[i], func(s MachineStep) time.Duration { return s.At })
		}
		for i := range whole.Links {
			begins(t, whole.Links[i].String(), whole.Links[i].Steps, part.Links[i].Steps, func(s LinkStep) time.Duration { return s.At })
		}
	}
}

// begins checks that the steps of a plan before the end of a shorter plan are
// the shorter plan's.
func begins[S any](t *testing.T, actor string, whole, part []S, at func(S) time.Duration) {
	t.Helper()
	before := slices.DeleteFunc(slices.Clone(whole), func(s S) bool { return at(s) >= 50*time.Second })
	if len(before) != len(part) {
		t.Errorf("%s: %d steps in the shorter plan, %d in the same time of the longer", actor, len(part), len(before))
		return
	}
	for i := range part {
		if !reflect.DeepEqual(before[i], part[i]) {
			t.Errorf("%s: step %d is %v in the shorter plan and %v in the longer", actor, i, part[i], before[i])
		}
	}
}

func TestStepsAreInOrderAndWithinTheTime(t *testing.T) {
	for seed := range uint64(20) {
		p := Make(seed, usual)
		for _, tenant := range TenantNames() {
			var before time.Duration
			made := map[string]bool{}
			for _, s := range p.Claims[tenant] {
				if s.At < before || s.At >= usual.Duration {
					t.Fatalf("seed %d: %s at %s after %s", seed, s, s.At, before)
				}
				before = s.At
				switch {
				case s.Kind == Create && made[s.Claim]:
					t.Errorf("seed %d: tenant %s makes %s while it is there", seed, tenant, s.Claim)
				case s.Kind != Create && !made[s.Claim]:
					t.Errorf("seed %d: tenant %s: %s, which is not there", seed, tenant, s)
				}
				made[s.Claim] = s.Kind != Delete
			}
		}
	}
}

// TestSomePlansHaveEverything catches a kind of fault that wrong weights would
// exclude.
func TestSomePlansHaveEverything(t *testing.T) {
	missing := map[string]bool{}
	for _, kind := range []string{
		string(KillLeader), string(KillFollower), string(KillAll), string(PauseLeader), string(PauseFollower), string(StopLeader), string(Roll),
		string(KillServer), string(PauseServer), string(ExpireTokens), string(StopServices), string(FailVolumes), string(FillQuota), string(Flap),
		string(Keep), string(KeepReleased), string(Remove), string(RemoveReleased), string(RemoveUnbound), string(Strip),
		string(Unmount), string(NodeGone), string(NodeLost), string(NodeBoots), string(OtherProject), string(OtherAddress), string(Cut), string(Stall),
		string(Blind), string(Reload), string(BadPolicy), string(Rotate), string(Foreign), string(GiveAway), string(Retype), string(Create), string(Delete),
		string(Retain), "respond-before", "respond-after", "hang-before", "hang-after", "drop-before", "drop-after", "delay", "fail-backend",
		"hostile gold", "hostile silver", "hostile lab", "hostile keystone",
		"lose-before", "lose-after", "hold-before", "hold-after", "late", "late-answer", "twice", "401", "413", "429", "503", Fast, Dual, Kept, Unlisted,
		string(LoseMachine), string(KillPlugin), string(RestartKubelet), string(CrashMachine), string(TaintMachine), string(DeleteMachine), string(ReplaceMachine),
		"a lost machine with another kubelet", "a lost machine without its plugin", Shown, Masked, Sealed, "the same machine again", "without being detached",
		string(ByHand), string(ByPopulator), "mode csi", "the claim first", "a larger volume", "a claim anew", "another tenant", "another claim of the tenant",
	} {
		missing[kind] = true
	}
	for seed := range uint64(10) {
		p := Make(seed, usual)
		for _, s := range p.Processes {
			delete(missing, string(s.Kind))
		}
		for _, s := range p.Server {
			delete(missing, string(s.Kind))
		}
		for _, s := range p.Cinder {
			delete(missing, string(s.Kind))
			delete(missing, s.Fault.Kind.String())
			for code, text := range map[int]string{401: "401", 413: "413", 429: "429", 503: "503"} {
				if s.Fault.Code == code {
					delete(missing, text)
				}
			}
		}
		for _, link := range p.Links {
			for _, s := range link.Steps {
				delete(missing, string(s.Kind))
				if s.Kind == Meddle {
					delete(missing, s.Verdict.String())
				}
			}
		}
		for _, s := range p.Administrator {
			delete(missing, string(s.Kind))
		}
		for _, s := range p.Volumes {
			delete(missing, string(s.Kind))
		}
		for _, s := range p.Nodes {
			delete(missing, string(s.Kind))
		}
		for _, s := range p.Places {
			delete(missing, string(s.Place))
		}
		for _, s := range p.Hostile {
			delete(missing, "hostile "+s.Where)
		}
		for _, s := range p.Movers {
			for _, move := range s.Moves {
				delete(missing, string(move.Way))
				for text, is := range map[string]bool{
					"mode csi": s.OnNodes, "the claim first": move.ClaimFirst, "a larger volume": move.Grows, "a claim anew": move.Anew,
					"another tenant": move.Tenant != s.Tenant, "another claim of the tenant": move.Tenant == s.Tenant,
				} {
					if is {
						delete(missing, text)
					}
				}
			}
		}
		for _, steps := range p.Machines {
			for _, s := range steps {
				delete(missing, string(s.Kind))
				if s.Restarts {
					delete(missing, "a lost machine with another kubelet")
				}
				if s.Kills {
					delete(missing, "a lost machine without its plugin")
				}
			}
		}
		for _, s := range p.Workloads {
			delete(missing, s.Class)
			for i := 1; i < len(s.Stays); i++ {
				if s.Stays[i].Machine != s.Stays[i-1].Machine {
					continue
				}
				delete(missing, "the same machine again")
				if !s.Stays[i].Again {
					delete(missing, "without being detached")
				}
			}
		}
		for _, steps := range p.Claims {
			for _, s := range steps {
				delete(missing, string(s.Kind))
				delete(missing, s.Class)
			}
		}
	}
	for kind := range missing {
		t.Errorf("ten plans of %s never have %q", usual.Duration, kind)
	}
}

func TestServersAreHostileOnlyIfTheyAreMeantToBe(t *testing.T) {
	kind := usual
	kind.Hostile = false
	one, other := Make(5, usual), Make(5, kind)
	if len(one.Hostile) == 0 || len(other.Hostile) > 0 {
		t.Errorf("%d and %d hostile phases", len(one.Hostile), len(other.Hostile))
	}
	one.Hostile = nil
	if !reflect.DeepEqual(one, other) {
		t.Error("hostile servers change what else happens")
	}
}

// TestVolumesMoveToClaimsThatAreNotThere: a claim of a populator is there at the same
// time as the one that has the volume, and a claim that was made anew stays.
func TestVolumesMoveToClaimsThatAreNotThere(t *testing.T) {
	again := 0
	for seed := range uint64(20) {
		for _, s := range Make(seed, usual).Movers {
			holder, anew := s.Tenant+"/"+s.Claim, map[string]bool{}
			for _, move := range s.Moves {
				next := move.Tenant + "/" + move.Claim
				if next == holder {
					again++
				}
				if next == holder && (move.Way == ByPopulator || move.Anew) || anew[next] {
					t.Errorf("seed %d: %s", seed, s)
				}
				anew[holder], holder = move.Anew, next
			}
		}
	}
	if again == 0 {
		t.Error("no claim gets the volume of an earlier one of its name")
	}
}

func TestWithoutCSINothingIsInModeCSI(t *testing.T) {
	native := usual
	native.CSI = false
	one, other := Make(5, usual), Make(5, native)
	if len(one.Pods) == 0 || len(other.Pods) > 0 {
		t.Errorf("%d and %d pods", len(one.Pods), len(other.Pods))
	}
	for i := range one.Movers {
		if other.Movers[i].OnNodes {
			t.Errorf("%s", other.Movers[i])
		}
		other.Movers[i].OnNodes = one.Movers[i].OnNodes
	}
	if len(one.Machines) != Machines || len(one.Workloads) == 0 || len(other.Machines) > 0 || len(other.Workloads) > 0 {
		t.Errorf("%d and %d machines, %d and %d workloads", len(one.Machines), len(other.Machines), len(one.Workloads), len(other.Workloads))
	}
	one.Pods, one.Machines, one.Workloads = nil, nil, nil
	if !reflect.DeepEqual(one, other) {
		t.Error("mode csi changes what else happens")
	}
}

// TestACalmPlanDisturbsMachinesAlone: as the other plan of the seed does.
func TestACalmPlanDisturbsMachinesAlone(t *testing.T) {
	calm := usual
	calm.Calm = true
	one, other := Make(5, usual), Make(5, calm)
	if len(other.Processes)+len(other.Server)+len(other.Cinder)+len(other.Links)+len(other.Hostile)+len(other.Places)+len(other.Pods) > 0 {
		t.Errorf("%+v", other)
	}
	if !reflect.DeepEqual(one.Machines, other.Machines) || !reflect.DeepEqual(one.Workloads, other.Workloads) || len(other.Workloads) == 0 {
		t.Error("what happens to machines differs")
	}
}

// TestWhatHappensToAMachineHappensInTurn: each step is over before the next one begins.
func TestWhatHappensToAMachineHappensInTurn(t *testing.T) {
	for seed := range uint64(20) {
		for n, steps := range Make(seed, usual).Machines {
			over := time.Duration(0)
			for _, s := range steps {
				if s.Machine != n || s.At < over || s.At >= usual.Duration {
					t.Errorf("seed %d: %s at %s after %s", seed, s, s.At, over)
				}
				over = s.At + s.For
			}
		}
	}
}

func TestPausesOutlastTheLease(t *testing.T) {
	for seed := range uint64(20) {
		p := Make(seed, usual)
		for _, s := range p.Processes {
			if (s.Kind == PauseLeader || s.Kind == PauseFollower) && s.For <= LeaseDuration {
				t.Errorf("seed %d: %s is shorter than the lease of %s", seed, s, LeaseDuration)
			}
		}
		for _, s := range p.Server {
			if s.Kind == PauseServer && s.For <= LeaseDuration {
				t.Errorf("seed %d: %s is shorter than the lease of %s", seed, s, LeaseDuration)
			}
		}
	}
}

func TestTheEndingKeepsAboutHalf(t *testing.T) {
	p := Make(3, usual)
	kept := 0
	const claims = 1000
	for i := range claims {
		if p.KeptAtTheEnd("a", fmt.Sprintf("data-%d", i)) {
			kept++
		}
	}
	if kept < claims*4/10 || kept > claims*6/10 {
		t.Errorf("%d of %d claims are kept", kept, claims)
	}
}

// TestCopiesAreOfEarlierClaims: some claims ask for the content of another, which
// they are large enough for.
func TestCopiesAreOfEarlierClaims(t *testing.T) {
	copies := 0
	for seed := range uint64(5) {
		for tenant, steps := range Make(seed, usual).Claims {
			created := map[string]ClaimStep{}
			for _, s := range steps {
				if s.Kind != Create {
					continue
				}
				if s.Copies != "" {
					copies++
					source, there := created[s.Copies]
					if !there || source.Block != s.Block || s.SizeMi < source.SizeMi || s.Copies == s.Claim {
						t.Errorf("seed %d: tenant %s: %s of %s", seed, tenant, s, source)
					}
				}
				created[s.Claim] = s
			}
		}
	}
	if copies < 50 {
		t.Errorf("%d copies in five plans", copies)
	}
}

// TestSnapshotsAreTakenAndDeleted: each is of a claim that was created before, and
// most are deleted again.
func TestSnapshotsAreTakenAndDeleted(t *testing.T) {
	taken, deleted, together := map[SnapshotKind]int{}, 0, 0
	for seed := range uint64(5) {
		p := Make(seed, usual)
		for _, tenant := range TenantNames() {
			there, before := map[string]bool{}, time.Duration(0)
			for _, s := range p.Snapshots[tenant] {
				isLate := func(c ClaimStep) bool { return c.Kind == Create && slices.Contains(s.Claims, c.Claim) && c.At <= s.At }
				switch {
				case s.At < before || s.At >= usual.Duration:
					t.Fatalf("seed %d: %s at %s after %s", seed, s, s.At, before)
				case s.Kind == Create && !slices.ContainsFunc(p.Claims[tenant], isLate):
					t.Errorf("seed %d: tenant %s: %s before it was created", seed, tenant, s)
				case s.Kind == Create:
					taken[s.As]++
					if len(s.Claims) > 1 {
						together++
					}
				case there[s.Snapshot]:
					deleted++
				default:
					t.Errorf("seed %d: tenant %s: %s, which is not there", seed, tenant, s)
				}
				there[s.Snapshot], before = s.Kind == Create, s.At
			}
		}
	}
	if taken[Single] < 50 || taken[Backup] < 30 || taken[Group] < 30 || together < 20 || deleted < 50 {
		t.Errorf("in five plans there are %v, %d of several claims, and %d are deleted", taken, together, deleted)
	}
}
