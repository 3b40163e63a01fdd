// Command power measures what the simulation finds: it takes one safeguard after the other
// away from the program, and looks for a seed with a finding. It changes no file of the
// checkout. It is run in test/simulate, after make simulate has made the overlay.
package main

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/standalone-cinder/standalone-cinder/test/sample"
)

// mistake is a safeguard, and the edits that take it away.
type mistake struct {
	Name  string `json:"name"`
	Edits []edit `json:"edits"`
}

// edit replaces text, wherever it is in a file of the checkout.
type edit struct {
	File   string `json:"file"`
	Before string `json:"before"`
	After  string `json:"after"`
}

// measurement measures mistakes.
type measurement struct {
	// checkout and directory are where the program is, and where changed copies go.
	checkout, directory string
	// overlay is that of Go's runtime.
	overlay string
	seeds   int
	// sample is the part of the crash matrix that runs if no seed has a finding: one case in
	// so many, or none.
	sample int
}

func main() {
	var m measurement
	list := flag.String("mistakes", "power/mistakes.yaml", "`file` with the mistakes")
	only := flag.String("only", "", "`regular expression` for the names of the mistakes")
	flag.StringVar(&m.checkout, "checkout", "../..", "`directory` of the checkout")
	flag.StringVar(&m.overlay, "overlay", "../../bin/simulate/overlay.json", "overlay `file` of Go's runtime")
	flag.IntVar(&m.seeds, "seeds", 60, "how many seeds a mistake may take")
	flag.IntVar(&m.sample, "sample", 4, "run one in `N` cases of the crash matrix if no seed has a finding; 0 for none")
	flag.Parse()
	if err := m.run(*list, *only); err != nil {
		fmt.Fprintln(os.Stderr, "power:", err)
		os.Exit(1)
	}
}

func (m *measurement) run(list, only string) (err error) {
	if m.checkout, err = filepath.Abs(m.checkout); err != nil {
		return err
	}
	text, err := os.ReadFile(list)
	if err != nil {
		return err
	}
	var mistakes []mistake
	if err := yaml.UnmarshalStrict(text, &mistakes); err != nil {
		return fmt.Errorf("%s: %w", list, err)
	}
	chosen, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	if m.directory, err = os.MkdirTemp("", "power-"); err != nil {
		return err
	}
	defer os.RemoveAll(m.directory)
	found, measured := 0, 0
	fmt.Println("| without | found by | CPU seconds | as |\n|---|---|---|---|")
	for _, one := range mistakes {
		if !chosen.MatchString(one.Name) {
			continue
		}
		measured++
		result, err := m.measure(one)
		if err != nil {
			return fmt.Errorf("%s: %w", one.Name, err)
		}
		if result.by != "" {
			found++
		}
		fmt.Printf("| %s | %s | %.0f | %s |\n", one.Name, cmp.Or(result.by, "nothing"), result.took.Seconds(), result.as)
	}
	fmt.Printf("\n%d of %d found\n", found, measured)
	return nil
}

// result is what had a finding first, or nothing, and what that was.
type result struct {
	by, as string
	took   time.Duration
}

func (m *measurement) measure(one mistake) (result, error) {
	overlay, err := m.plant(one)
	if err != nil {
		return result{}, err
	}
	binary := filepath.Join(m.directory, "simulate.test")
	build := exec.Command("go", "test", "-c", "-overlay", overlay, "-o", binary, ".")
	build.Dir = filepath.Join(m.checkout, "test/simulate")
	if output, err := build.CombinedOutput(); err != nil {
		return result{}, fmt.Errorf("%w\n%s", err, output)
	}
	var sum result
	run := func(by string, arguments []string, environment ...string) bool {
		command := exec.Command(binary, arguments...)
		command.Dir = build.Dir
		command.Env = append(append(os.Environ(), "TMPDIR="+m.directory), environment...)
		output, err := command.CombinedOutput()
		sum.took += command.ProcessState.UserTime() + command.ProcessState.SystemTime()
		if found := finding(string(output)); err != nil && found != "" {
			sum.by, sum.as = by, found
		}
		return sum.by != ""
	}
	for seed := 1; seed <= m.seeds; seed++ {
		if run(fmt.Sprint("seed ", seed), []string{"-test.run=^TestSeeds$", "-alone", fmt.Sprint("-seed=", seed)}, "GOMAXPROCS=1", "GOGC=off") {
			return sum, nil
		}
	}
	if m.sample > 0 {
		run("the crash matrix", []string{"-test.run=^TestCrashMatrix$"}, fmt.Sprintf("%s=%d", sample.Variable, m.sample))
	}
	return sum, nil
}

// finding returns the kind of the first finding in the output of a seed or of the matrix. That
// a mistake makes replicas request something else is none.
func finding(output string) string {
	if found := regexp.MustCompile(`(?m)(?:seed \d+|undisturbed|\}): ([a-z A-Z]+): `).FindStringSubmatch(output); found != nil {
		return found[1]
	}
	if strings.Contains(output, "panic: ") {
		return "panic"
	}
	return ""
}

// plant writes the overlay of a program with a mistake.
func (m *measurement) plant(one mistake) (string, error) {
	text, err := os.ReadFile(m.overlay)
	if err != nil {
		return "", err
	}
	var overlay struct{ Replace map[string]string }
	if err := json.Unmarshal(text, &overlay); err != nil {
		return "", err
	}
	texts := map[string]string{}
	for _, e := range one.Edits {
		if texts[e.File] == "" {
			content, err := os.ReadFile(filepath.Join(m.checkout, e.File))
			if err != nil {
				return "", err
			}
			texts[e.File] = string(content)
		}
		if !strings.Contains(texts[e.File], e.Before) {
			return "", fmt.Errorf("%s does not contain %q", e.File, e.Before)
		}
		texts[e.File] = strings.ReplaceAll(texts[e.File], e.Before, e.After)
	}
	for file, text := range texts {
		changed := filepath.Join(m.directory, strings.ReplaceAll(file, "/", "_"))
		if err := os.WriteFile(changed, []byte(text), 0o600); err != nil {
			return "", err
		}
		overlay.Replace[filepath.Join(m.checkout, file)] = changed
	}
	if text, err = json.Marshal(overlay); err != nil {
		return "", err
	}
	name := filepath.Join(m.directory, "overlay.json")
	return name, os.WriteFile(name, text, 0o600)
}
