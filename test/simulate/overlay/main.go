// Command overlay makes Go's runtime draw, in synctest bubbles, from a source of each
// goroutine that its ancestry alone decides: for the cases of select, the order of maps,
// the order of timers at the same instant and package math/rand. It also makes the
// scheduler and mutexes ignore the machine's clock. Thus, with GOMAXPROCS=1, the same seed
// has the same trace. It writes changed copies of Go's files into a directory, and
// prints the name of the file for go test -overlay.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// edit replaces text that is there exactly once, in a file of the standard library.
type edit struct{ file, before, after string }

func edits() []edit {
	return []edit{
		{"runtime/runtime2.go", "\tbubble  *synctestBubble\n", "\tbubble  *synctestBubble\n\tsimulated uint64 // the state of its random source; 0 outside of bubbles\n"},
		{"runtime/proc.go", "\tif isSystemGoroutine(newg, false) {\n\t\tsched.ngsys.Add(1)", "\tnewg.simulated = 0\n\tif isSystemGoroutine(newg, false) {\n\t\tsched.ngsys.Add(1)"},
		{"runtime/proc.go", "\t\tnewg.bubble = callergp.bubble\n", `		newg.bubble = callergp.bubble
		if newg.bubble != nil {
			// The functions of timers are started by no goroutine of the bubble.
			parent := callergp
			if parent.simulated == 0 {
				parent = newg.bubble.root
			}
			newg.simulated = parent.simulate() | 1
		}
`},
		{"runtime/synctest.go", "\tgp.bubble = bubble\n\tdefer func() {\n", "\tgp.bubble, gp.simulated = bubble, 1\n\tdefer func() {\n\t\tgp.simulated = 0\n"},
		// The keys of hashes, and where the heap begins: maps have pointers as keys, too.
		{"runtime/rand.go", "\tglobalRand.state.Init(*seed)\n\tclear(seed[:])\n", "\tclear(seed[:])\n\tglobalRand.state.Init(*seed)\n"},
		{"runtime/rand.go", "func rand() uint64 {\n", "func rand() uint64 {\n\tif gp := getg(); gp.simulated != 0 {\n\t\treturn gp.simulate()\n\t}\n"},
		// Maps that come from a pool are not made again, so how many are made says nothing.
		{"runtime/rand.go", "func maps_rand() uint64 {\n", "func maps_rand() uint64 {\n\tif gp := getg(); gp.simulated != 0 {\n\t\treturn 0x9e3779b97f4a7c15\n\t}\n"},
		{"runtime/rand.go", "// mrandinit initializes", `// simulate returns the next number of a goroutine of a bubble, by splitmix64.
//
//go:nosplit
func (gp *g) simulate() uint64 {
	gp.simulated += 0x9e3779b97f4a7c15
	z := gp.simulated
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// mrandinit initializes`},
		// Nothing is preempted because of the clock of the machine.
		{"runtime/proc.go", "func retake(now int64) uint32 {\n", "func retake(now int64) uint32 {\n\tif true {\n\t\treturn 0\n\t}\n"},
		{"internal/sync/mutex.go", "starvationThresholdNs = 1e6", "starvationThresholdNs = 1e18"},
		{"runtime/select.go", "j := cheaprandn(uint32(norder + 1))", "j := cheaprandn(uint32(norder + 1))\n\t\tif gp.simulated != 0 {\n\t\t\tj = randn(uint32(norder + 1))\n\t\t}"},
		{"runtime/time.go", "t.rand = cheaprand()", "t.rand = uint32(rand())"},
	}
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: overlay DIRECTORY")
		os.Exit(2)
	}
	name, err := write(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "overlay:", err)
		os.Exit(1)
	}
	fmt.Println(name)
}

// flat returns a name without directories, which is no Go file of this repository.
func flat(file string) string { return strings.ReplaceAll(file, "/", "_") + ".txt" }

func write(directory string) (string, error) {
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return "", err
	}
	texts, replaced := map[string]string{}, map[string]string{}
	for _, e := range edits() {
		original := filepath.Join(strings.TrimSpace(string(root)), "src", e.file)
		if texts[e.file] == "" {
			content, err := os.ReadFile(original)
			if err != nil {
				return "", err
			}
			texts[e.file], replaced[original] = string(content), filepath.Join(directory, flat(e.file))
		}
		if n := strings.Count(texts[e.file], e.before); n != 1 {
			return "", fmt.Errorf("%s has %d times what is to be replaced: another version of Go needs other edits: %q", original, n, e.before)
		}
		texts[e.file] = strings.Replace(texts[e.file], e.before, e.after, 1)
	}
	for file, text := range texts {
		// An unchanged file keeps what was built with it.
		name := filepath.Join(directory, flat(file))
		if present, err := os.ReadFile(name); err == nil && string(present) == text {
			continue
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			return "", err
		}
	}
	content, err := json.MarshalIndent(map[string]any{"Replace": replaced}, "", "\t")
	if err != nil {
		return "", err
	}
	name := filepath.Join(directory, "overlay.json")
	return name, os.WriteFile(name, content, 0o644)
}
