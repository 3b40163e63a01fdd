// Package simulate runs the whole program in worlds that a seed decides.
package simulate

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"

	"github.com/standalone-cinder/standalone-cinder/test/chaos/checker"
	"github.com/standalone-cinder/standalone-cinder/test/simulate/world"
)

var (
	seed     = flag.Uint64("seed", 0, "first seed; 0 draws one")
	seeds    = flag.Uint64("seeds", 20, "how many seeds")
	duration = flag.Duration("duration", 0, "how long to go on with further seeds, in place of -seeds")
	rounds   = flag.Int("rounds", 3, "rounds of trouble and calm")
	alone    = flag.Bool("alone", false, "run the one seed in this process")
	traces   = flag.String("traces", "", "directory for the traces and logs of all seeds, and of cases with findings")
)

func TestMain(m *testing.M) {
	// Client-go waits after errors, by a clock that is older than the bubble's.
	utilruntime.ErrorHandlers = nil
	klog.SetLogger(logr.Discard())
	os.Exit(m.Run())
}

// TestSeeds runs each seed in a process of its own, which begins with an empty heap: maps
// have pointers as keys, so their order depends on what was there before.
func TestSeeds(t *testing.T) {
	if *alone {
		simulate(t, *seed)
		return
	}
	if *seed == 0 {
		*seed = rand.Uint64N(1 << 40)
	}
	began := time.Now()
	for i := uint64(0); *duration == 0 && i < *seeds || time.Since(began) < *duration; i++ {
		t.Run(fmt.Sprint("seed ", *seed+i), func(t *testing.T) {
			command := exec.Command(os.Args[0], "-test.run=^TestSeeds$", "-test.v", "-alone", fmt.Sprint("-seed=", *seed+i), fmt.Sprint("-rounds=", *rounds), "-traces="+*traces)
			command.Env = append(os.Environ(), "GOMAXPROCS=1", "GOGC=off")
			output, err := command.CombinedOutput()
			if t.Logf("%s", output); err != nil {
				t.Error(err)
			}
		})
	}
}

func simulate(t *testing.T, seed uint64) {
	// What crypto/rand gives is part of identities and tokens.
	cryptotest.SetGlobalRandom(t, seed)
	// The same name each time: it is in errors.
	dir := filepath.Join(os.TempDir(), fmt.Sprint("simulate-", seed))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	var w *world.World
	var findings []checker.Finding
	var simulated time.Duration
	began := time.Now()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		// All goroutines of the bubble descend from this one, and so do their sources.
		for range seed % 1000 {
			rand.Uint64()
		}
		var err error
		if w, err = world.New(seed, dir); err != nil {
			panic(err) // what it has started does not end
		}
		if findings, err = w.Run(*rounds); err != nil {
			t.Error(err)
		}
		simulated = time.Since(start)
		w.Close()
	})
	trace := w.Trace()
	t.Logf("seed %d: %d steps, %s in %s, trace %x", seed, w.Steps(), simulated, time.Since(began).Round(time.Millisecond), sha256.Sum256([]byte(strings.Join(trace, "\n"))))
	for _, f := range findings {
		t.Errorf("seed %d: %s: %s: %s (volume %s, claim %s)", seed, f.Kind, f.Object, f.Text, f.VolumeID, f.ClaimUID)
	}
	if len(findings) > 0 {
		t.Logf("the last steps of seed %d:\n%s", seed, strings.Join(trace[max(0, len(trace)-50):], "\n"))
	}
	writeTraces(fmt.Sprint(seed), w)
}

// writeTraces writes what has happened in a world, and its logs, below -traces.
func writeTraces(name string, w *world.World) {
	if *traces == "" {
		return
	}
	into := filepath.Join(*traces, name)
	_ = os.MkdirAll(into, 0o700)
	_ = os.WriteFile(filepath.Join(into, "trace"), []byte(strings.Join(w.Trace(), "\n")), 0o600)
	for name, log := range w.Logs() {
		_ = os.WriteFile(filepath.Join(into, name), []byte(log), 0o600)
	}
}
