package simulate

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"testing/cryptotest"
	"testing/synctest"

	"github.com/standalone-cinder/standalone-cinder/test/sample"
	"github.com/standalone-cinder/standalone-cinder/test/simulate/world"
)

var (
	update  = flag.Bool("update", false, "write testdata/requests.txt")
	oneCase = flag.String("case", "", "run the one case in this process, and print its outcome; JSON")
	lanes   = flag.Int("lanes", 2, "how many cases run at once")
)

// TestCrashMatrix lets everything happen that can, at every request of a replica in every
// scenario of world.Scenarios: the replica dies before its effect and after it, the request
// or its answer is lost, fails or is late, or is carried out twice; and the claim is
// deleted meanwhile. The replica that takes over is killed, too, at each kind of request
// that any of them sends. Whatever happens, nothing is left, lost or doubled.
func TestCrashMatrix(t *testing.T) {
	if *oneCase != "" {
		simulateCase(t)
		return
	}
	picked := sample.New(t)
	var requests strings.Builder
	requests.WriteString("# What replicas request in each scenario in which nothing goes wrong.\n# TestCrashMatrix lets everything happen at each; go test -run CrashMatrix -update writes this.\n")
	for _, scenario := range world.Scenarios() {
		t.Run(scenario, func(t *testing.T) {
			recorded := runCase(t, world.Case{Scenario: scenario})
			fmt.Fprintf(&requests, "\n%s\n", scenario)
			for _, step := range recorded.Steps {
				fmt.Fprintf(&requests, "  %s\n", step.Kind())
			}
			if report(t, "undisturbed", recorded); !t.Failed() && !*update {
				crashMatrix(t, scenario, recorded, picked)
			}
		})
	}
	checkRequests(t, requests.String())
}

// checkRequests fails if the scenarios have other requests than are known.
func checkRequests(t *testing.T, got string) {
	const file = "testdata/requests.txt"
	if strings.Contains(flag.Lookup("test.run").Value.String(), "/") {
		return // somebody picks scenarios
	}
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if want, err := os.ReadFile(file); err != nil || string(want) != got {
		t.Errorf("%s is not what replicas request (%v); see what has changed, and write it with -update", file, err)
	}
}

func crashMatrix(t *testing.T, scenario string, recorded world.Outcome, picked *sample.Sample) {
	var cases []world.Case
	for i, step := range recorded.Steps {
		for _, mishap := range world.Mishaps() {
			for _, abandons := range []bool{false, true} {
				if step.Befalls(mishap) && picked.Takes(fmt.Sprint(scenario, step.Kind(), abandons)) {
					cases = append(cases, world.Case{Scenario: scenario, Step: i + 1, What: step.Kind(), Mishap: mishap, Abandons: abandons})
				}
			}
		}
	}
	outcomes := runCases(t, cases)
	var again []world.Case
	seen := map[string]bool{}
	for i, c := range cases {
		if !c.Mishap.Kills() || !outcomes[i].Reached {
			continue
		}
		for n, step := range outcomes[i].Steps[outcomes[i].Recovery-1:] {
			if kind := step.Kind(); !seen[kind] && !step.Reads() {
				seen[kind] = true
				c.Again = outcomes[i].Recovery + n
				again = append(again, c)
			}
		}
	}
	outcomes = append(outcomes, runCases(t, again)...)
	missed := 0
	for _, o := range outcomes {
		if !o.Reached {
			missed++
		}
	}
	if most := len(outcomes) / 10; missed > most {
		t.Errorf("%d of %d cases took another course than the run without mishaps", missed, len(outcomes))
	}
	t.Logf("%d requests, %d cases, of which %d took another course", len(recorded.Steps), len(outcomes), missed)
}

// runCases runs cases side by side, and reports what is wrong.
func runCases(t *testing.T, cases []world.Case) []world.Outcome {
	outcomes := make([]world.Outcome, len(cases))
	var group sync.WaitGroup
	free := make(chan struct{}, *lanes)
	for i, c := range cases {
		group.Go(func() {
			free <- struct{}{}
			defer func() { <-free }()
			outcomes[i] = runCase(t, c)
		})
	}
	group.Wait()
	for i, c := range cases {
		text, _ := json.Marshal(c)
		report(t, string(text), outcomes[i])
		if len(outcomes[i].Findings) > 0 && *traces != "" {
			runCase(t, c, "-traces="+*traces)
		}
	}
	return outcomes
}

func report(t *testing.T, of string, o world.Outcome) {
	t.Helper()
	for _, f := range o.Findings {
		t.Errorf("%s: %s: %s: %s (volume %s, claim %s)", of, f.Kind, f.Object, f.Text, f.VolumeID, f.ClaimUID)
	}
}

// outcomeMark is how the line begins that has the outcome of a case.
const outcomeMark = "outcome: "

// runCase runs a case in a process of its own, so that it always takes the same course.
func runCase(t *testing.T, c world.Case, arguments ...string) world.Outcome {
	text, err := json.Marshal(c)
	if err != nil {
		t.Error(err)
		return world.Outcome{}
	}
	command := exec.Command(os.Args[0], append(arguments, "-test.run=^TestCrashMatrix$", "-case="+string(text))...)
	command.Env = append(os.Environ(), "GOMAXPROCS=1", "GOGC=off")
	output, err := command.CombinedOutput()
	_, after, found := bytes.Cut(output, []byte(outcomeMark))
	line, _, _ := bytes.Cut(after, []byte("\n"))
	var o world.Outcome
	if err == nil {
		err = json.Unmarshal(line, &o)
	}
	if err != nil || !found {
		t.Errorf("%s: %v\n%.5000s", text, err, output)
	}
	return o
}

// simulateCase runs the case of -case in this process.
func simulateCase(t *testing.T) {
	var c world.Case
	if err := json.Unmarshal([]byte(*oneCase), &c); err != nil {
		t.Fatal(err)
	}
	cryptotest.SetGlobalRandom(t, world.CaseSeed)
	dir := t.TempDir()
	var outcome world.Outcome
	var w *world.World
	synctest.Test(t, func(t *testing.T) {
		var err error
		if w, err = world.New(world.CaseSeed, dir); err != nil {
			panic(err) // what it has started does not end
		}
		if outcome, err = w.RunCase(c); err != nil {
			t.Error(err)
		}
		w.Close()
	})
	text, err := json.Marshal(outcome)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println(outcomeMark + string(text))
	writeTraces(strings.NewReplacer("/", "_", " ", "_").Replace(fmt.Sprint(c)), w)
}
