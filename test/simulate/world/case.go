package world

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/wiring"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/checker"
	"github.com/standalone-cinder/standalone-cinder/test/simulate/apiserver"
	"github.com/standalone-cinder/standalone-cinder/test/simulate/gate"
)

// Mishap is what befalls a request of a replica, once.
type Mishap string

// The mishaps. A killed replica is replaced; a late request arrives when everybody has gone
// on without it.
const (
	KilledBefore  Mishap = "killed before"
	KilledAfter   Mishap = "killed after"
	RequestLost   Mishap = "request lost"
	RequestFailed Mishap = "request failed"
	AnswerLost    Mishap = "answer lost"
	AnswerDelayed Mishap = "answer delayed"
	Late          Mishap = "late"
	LateKilled    Mishap = "late, killed"
	Twice         Mishap = "twice"
)

// Mishaps returns all.
func Mishaps() []Mishap {
	return []Mishap{KilledBefore, KilledAfter, RequestLost, RequestFailed, AnswerLost, AnswerDelayed, Late, LateKilled, Twice}
}

// Kills reports whether the replica ends.
func (m Mishap) Kills() bool { return m == KilledBefore || m == KilledAfter || m == LateKilled }

// mattersToReads reports whether it makes a difference to a request that changes nothing.
func (m Mishap) mattersToReads() bool {
	return m == KilledBefore || m == RequestLost || m == RequestFailed || m == AnswerDelayed
}

// Step is a request of a replica.
type Step struct {
	Client, What string
}

// Reads reports whether it changes nothing.
func (s Step) Reads() bool { return strings.Contains(s.What, " GET ") }

// Befalls reports whether a mishap makes sense for the step.
func (s Step) Befalls(m Mishap) bool { return !s.Reads() || m.mattersToReads() }

// Kind returns the step without names that only one object has.
func (s Step) Kind() string {
	parts := strings.FieldsFunc(s.What, func(r rune) bool { return r == '/' })
	for i, part := range parts {
		if strings.Count(part, "-") > 3 || len(part) == 32 || strings.HasPrefix(part, "snapcontent-") {
			parts[i] = "…"
		}
	}
	kind, _, _ := strings.Cut(strings.Join(parts, "/"), "?")
	return kind
}

// Case is a scenario in which something befalls one request of a replica, and then perhaps
// one of the replica that takes over.
type Case struct {
	Scenario string
	// Step is the number of the request since the scenario began, from 1. Again is that of
	// the second; zero for none.
	Step, Again int
	// What is what the step was in a run without mishaps; empty does not matter.
	What   string
	Mishap Mishap
	// Abandons means that the claim is deleted meanwhile.
	Abandons bool
}

// Outcome is what became of a case.
type Outcome struct {
	// Steps are the requests of replicas since the scenario began, and Recovery is the
	// number of the first one after the mishap.
	Steps    []Step
	Recovery int
	// Reached means that something befell all requests that the case names.
	Reached  bool
	Findings []checker.Finding
}

// CaseSeed is the seed of all cases: Cinder shows its own writes, and lists are watches.
const CaseSeed = 4

// RunCase runs a case in a world of its own.
func (w *World) RunCase(c Case) (Outcome, error) {
	at := slices.IndexFunc(scenarios(), func(s scenario) bool { return s.name == c.Scenario })
	if at < 0 {
		return Outcome{}, fmt.Errorf("there is no scenario %q", c.Scenario)
	}
	of := scenarios()[at]
	if err := w.settle(settles); err != nil {
		return Outcome{}, err
	}
	for _, prepare := range of.prepare {
		prepare(w)
		if err := w.settle(settles); err != nil {
			return Outcome{}, err
		}
	}
	if len(w.course.Findings()) > 0 {
		return Outcome{Findings: w.course.Findings()}, nil
	}
	made := w.sim.CountByOperation()[createVolume]
	w.trap = &trap{of: c}
	of.enter(w)
	if err := w.settle(settles); err != nil {
		return Outcome{}, err
	}
	t := w.trap
	w.trap = nil
	most := of.creates
	if t.at(c.Step) == createVolume && (c.Mishap == Late || c.Mishap == LateKilled || c.Mishap == Twice) {
		most++
	}
	if n := w.sim.CountByOperation()[createVolume] - made; n > most {
		w.course.Note(checker.Finding{Kind: checker.Duplicate, Object: "the case", Text: fmt.Sprintf("%d volumes were made, want no more than %d", n, most)})
	}
	w.removeAll()
	if err := w.settle(settles); err != nil {
		return Outcome{}, err
	}
	for _, g := range w.sim.Groups() {
		w.course.Note(checker.Finding{Kind: checker.LeakedGroup, Object: "group " + g.ID, Text: "it is still at Cinder"})
	}
	return Outcome{Steps: t.steps, Recovery: t.recovery, Reached: t.sprung && (c.Again == 0 || t.sprungAgain), Findings: w.course.Findings()}, nil
}

const createVolume = "volume.create"

// removeAll deletes all claims.
func (w *World) removeAll() {
	for _, claim := range apiserver.Objects[*corev1.PersistentVolumeClaim](w.api) {
		if claim.DeletionTimestamp == nil {
			w.removeClaim(claim)
		}
	}
}

// trap counts the steps of replicas, and lets something befall them.
type trap struct {
	of    Case
	steps []Step
	// sprung and sprungAgain mean that a mishap has happened.
	sprung, sprungAgain bool
	recovery            int
	// caught is the passage that something befalls, and twice that it is carried out
	// once more.
	caught *gate.Passage
	twice  bool
}

// at returns the operation of a step, as far as it matters.
func (t *trap) at(step int) string {
	if step > 0 && step <= len(t.steps) && strings.Contains(t.steps[step-1].What, " POST /v3/") && strings.HasSuffix(t.steps[step-1].What, "/volumes") {
		return createVolume
	}
	return ""
}

// isStep reports whether a passage counts: what a replica sends for the sake of claims.
func isStep(p gate.Passage) bool {
	return p.Kind == gate.Request && strings.HasPrefix(p.Client, "replica-") && !strings.HasSuffix(p.Client, besideReplica) &&
		!strings.Contains(p.What, "watch=true") && !strings.Contains(p.What, "limit=") && !strings.Contains(p.What, "/events") &&
		!strings.Contains(p.What, "/leases/"+wiring.LeaseName(provisionerName))
}

// spring lets something befall a passage, or not, and returns how the network is for it.
func (w *World) spring(p gate.Passage, usual gate.Weather) gate.Weather {
	t := w.trap
	if isStep(p) {
		t.steps = append(t.steps, Step{p.Client, p.Server + " " + p.What})
		switch n := len(t.steps); {
		case !t.sprung && n == t.of.Step:
			if t.of.What != "" && t.steps[n-1].Kind() != t.of.What {
				return usual // another course than that of the run without mishaps
			}
			t.sprung, t.recovery, t.caught = true, n+1, &p
			if t.of.Abandons {
				w.removeAll()
			}
			return w.befall(p, t.of.Mishap, usual)
		case t.sprung && !t.sprungAgain && n == t.of.Again:
			t.sprungAgain = true
			return w.befall(p, KilledBefore, usual)
		}
	}
	if t.caught != nil && p.Kind == gate.Answer && p.Client == t.caught.Client && p.What == t.caught.What {
		t.caught = nil
		switch t.of.Mishap {
		case AnswerLost:
			usual.Lost = 1
		case AnswerDelayed:
			usual.Until = time.Now().Add(10 * time.Second)
		}
	}
	return usual
}

// befall lets a mishap befall a request.
func (w *World) befall(p gate.Passage, m Mishap, usual gate.Weather) gate.Weather {
	w.note("%s: %s %s %s", m, p.Client, p.Server, p.What)
	const late = 45 * time.Second
	switch m {
	case KilledBefore:
		usual.Lost = 1
		w.killNamed(p.Client)
	case RequestLost:
		usual.Lost = 1
	case RequestFailed:
		usual.Failed = 1
	case Late:
		usual.Until = time.Now().Add(late)
	case LateKilled:
		usual.Until = time.Now().Add(late)
		w.killNamed(p.Client)
	case Twice:
		w.trap.twice = true
	}
	return usual
}

// sprang does what follows once a passage that was caught has had its effect.
func (w *World) sprang(p gate.Passage) {
	if t := w.trap; t != nil && t.caught != nil && *t.caught == p && t.of.Mishap == KilledAfter {
		t.caught = nil
		w.killNamed(p.Client)
	}
}

// isTwice reports whether a request that passes is to be carried out twice.
func (w *World) isTwice(p gate.Passage) bool {
	if t := w.trap; t != nil && t.twice && t.caught != nil && *t.caught == p {
		t.twice = false
		return true
	}
	return false
}

// killNamed kills a replica, in whose place another starts.
func (w *World) killNamed(name string) {
	for i := range w.slots {
		if s := &w.slots[i]; s.replica != nil && s.replica.name == name {
			w.kill(s, time.Now().Add(time.Second))
		}
	}
}

// scenario is a part of the life of claims.
type scenario struct {
	name string
	// prepare leads to where the scenario begins, with a quiet period after each.
	prepare []func(*World)
	enter   func(*World)
	// creates is how many volumes it makes.
	creates int
}

// Scenarios returns the names of all scenarios.
func Scenarios() []string {
	var names []string
	for _, s := range scenarios() {
		names = append(names, s.name)
	}
	return names
}

func scenarios() []scenario {
	claim := func(namespace, class string) func(*World) {
		return func(w *World) { w.makeClaim(namespace, "data", class, 1) }
	}
	steps := func(all ...func(*World)) []func(*World) { return all }
	take := func(class string) func(*World) { return func(w *World) { w.takeSnapshotOf(class) } }
	takeGroup := func(class string) func(*World) { return func(w *World) { w.takeGroupOf(class) } }
	run := func(class string) func(*World) {
		return func(w *World) {
			w.runPodsOf(class, 0)
			w.workloads[0].patience = 5 * time.Second
		}
	}
	moveTo := func(n int) func(*World) {
		return func(w *World) {
			p := w.workloads[0]
			p.wanted = placement{w.machines[n], p.wanted.pod + 1, p.wanted.attachment}
		}
	}
	end := func(w *World) { w.workloads[0].wanted = placement{} }
	return []scenario{
		{"claim by reservation", nil, claim("a", "fast"), 1},
		{"claim by attachment", nil, claim("b", "fast"), 1},
		{"claim of several backends", nil, claim("c", "dual"), 1},
		{"leader takes over", nil, func(w *World) { w.killNamed(w.leader); claim("a", "fast")(w) }, 1},
		{"deletion by reservation", steps(claim("a", "fast")), (*World).deleteClaim, 0},
		{"deletion by attachment", steps(claim("b", "fast")), (*World).deleteClaim, 0},
		{"clone", steps(claim("a", "fast")), (*World).cloneClaim, 1},
		{"growth", steps(claim("a", "fast")), (*World).growClaim, 0},
		{"acknowledged growth", steps(claim("a", "fast"), (*World).growClaim), (*World).acknowledgeGrowth, 0},
		{"snapshot", steps(claim("a", "fast")), take(snapshotClass), 0},
		{"deletion of a snapshot", steps(claim("a", "fast"), take(snapshotClass)), (*World).deleteSnapshot, 0},
		{"restored snapshot", steps(claim("a", "fast"), take(snapshotClass)), (*World).restoreSnapshot, 1},
		{"backup", steps(claim("a", "fast")), take(backupClass), 0},
		{"deletion of a backup", steps(claim("a", "fast"), take(backupClass)), (*World).deleteSnapshot, 0},
		{"restored backup", steps(claim("a", "fast"), take(backupClass)), (*World).restoreSnapshot, 1},
		{"group", steps(claim("a", "fast")), takeGroup(groupClass), 0},
		{"deletion of a group", steps(claim("a", "fast"), takeGroup(groupClass)), (*World).deleteGroup, 0},
		{"group of an array", steps(claim("a", "fast")), takeGroup(arrayClass), 0},
		{"deletion of a group of an array", steps(claim("a", "fast"), takeGroup(arrayClass)), (*World).deleteGroup, 0},
		{"volume for a populator's claim", steps(claim("d", "moved")), func(w *World) { w.giveVolume((*World).populate) }, 0},
		{"volume handed to another claim", steps(claim("d", "moved")), func(w *World) { w.giveVolume((*World).handOver) }, 0},
		{"volume in mode csi for a populator's claim", steps(claim("d", shown)), func(w *World) { w.giveVolume((*World).populate) }, 0},
		{"volume in mode csi handed to another claim", steps(claim("d", shown)), func(w *World) { w.giveVolume((*World).handOver) }, 0},
		{"claim in mode csi", nil, claim(stager, shown), 1},
		{"deletion in mode csi", steps(claim(stager, shown)), (*World).deleteClaim, 0},
		{"first pod", nil, run(shown), 1},
		{"first pod of an encrypted volume", nil, run(sealed), 1},
		{"clone of an encrypted volume", steps(claim(stager, sealed)), func(w *World) { w.clone(w.onlyClaim()) }, 1},
		{"pod moves", steps(run(masked)), moveTo(1), 0},
		{"pod ends", steps(run(shown)), end, 0},
		{"claim of a pod is deleted", steps(run(masked)), (*World).deleteClaim, 0},
		{"machine is cut off", steps(run(shown)), func(w *World) { w.lose(w.machines[0], cutOff) }, 0},
		{"machine that the array keeps out is cut off", steps(run(masked)), func(w *World) { w.lose(w.machines[0], cutOff) }, 0},
		{"machine is tainted", steps(run(shown)), func(w *World) { w.lose(w.machines[0], tainted) }, 0},
		{"machine is replaced", steps(run(shown)), func(w *World) { w.lose(w.machines[0], replaced) }, 0},
	}
}

// onlyClaim returns the claim that there is.
func (w *World) onlyClaim() *corev1.PersistentVolumeClaim {
	return apiserver.Objects[*corev1.PersistentVolumeClaim](w.api)[0]
}

// acknowledgeGrowth says that the filesystem of the only claim has grown, as a tenant does.
func (w *World) acknowledgeGrowth() {
	claim := w.onlyClaim()
	size := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	_, _ = change(w, claim, func(c *corev1.PersistentVolumeClaim) {
		if c.Annotations == nil {
			c.Annotations = map[string]string{}
		}
		c.Annotations[objects.AnnotationFilesystemGrown] = size.String()
	})
	w.await(func() bool {
		now, err := w.Claim(claim.Namespace, claim.Name)
		return err != nil || now.Status.Capacity.Storage().Cmp(size) == 0 || now.DeletionTimestamp != nil
	}, func() {})
}

// giveVolume gives the only volume to another claim.
func (w *World) giveVolume(give func(*World, *corev1.PersistentVolume, *corev1.PersistentVolumeClaim, *corev1.PersistentVolumeClaim)) {
	pv := w.pvs()[0]
	before, err := w.Claim(pv.Spec.ClaimRef.Namespace, pv.Spec.ClaimRef.Name)
	if err != nil {
		w.note("%s: %s", pv.Name, err)
		return
	}
	give(w, pv, before, claimOf("e", "next", *before.Spec.StorageClassName, 1))
}

// makeClaim creates a claim.
func (w *World) makeClaim(namespace, name, class string, gib int) types.UID {
	made, err := w.api.Create(claimOf(namespace, name, class, gib))
	if err != nil {
		w.note("claim %s cannot be created: %s", name, err)
		return ""
	}
	w.note("tenant %s creates claim %s (%s): %d GiB of %s", namespace, name, made.GetUID(), gib, class)
	w.claims.NoteMade(made.GetUID())
	return made.GetUID()
}
