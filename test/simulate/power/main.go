// Command power measures what the simulation finds: it takes one safeguard after the other
// away from the program, and looks for a seed with a finding. It changes no file of the
// checkout. It is run in test/simulate, after make simulate has made the overlay.
package main

import (
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
}

func main() {
	var m measurement
	list := flag.String("mistakes", "power/mistakes.yaml", "`file` with the mistakes")
	only := flag.String("only", "", "`regular expression` for the names of the mistakes")
	flag.StringVar(&m.checkout, "checkout", "../..", "`directory` of the checkout")
	flag.StringVar(&m.overlay, "overlay", "../../bin/simulate/overlay.json", "overlay `file` of Go's runtime")
	flag.IntVar(&m.seeds, "seeds", 60, "how many seeds a mistake may take")
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
	fmt.Println("| without | found at seed | CPU seconds | as |\n|---|---|---|---|")
	for _, one := range mistakes {
		if !chosen.MatchString(one.Name) {
			continue
		}
		measured++
		result, err := m.measure(one)
		if err != nil {
			return fmt.Errorf("%s: %w", one.Name, err)
		}
		if result.seed > 0 {
			found++
			fmt.Printf("| %s | %d | %.0f | %s |\n", one.Name, result.seed, result.took.Seconds(), result.as)
		} else {
			fmt.Printf("| %s | not in %d | %.0f | |\n", one.Name, m.seeds, result.took.Seconds())
		}
	}
	fmt.Printf("\n%d of %d found\n", found, measured)
	return nil
}

// result is the first seed with a finding, or 0, and what it found.
type result struct {
	seed int
	as   string
	took time.Duration
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
	for seed := 1; seed <= m.seeds; seed++ {
		run := exec.Command(binary, "-test.run=^TestSeeds$", "-alone", fmt.Sprint("-seed=", seed))
		run.Dir = build.Dir
		run.Env = append(os.Environ(), "GOMAXPROCS=1", "GOGC=off", "TMPDIR="+m.directory)
		output, err := run.CombinedOutput()
		sum.took += run.ProcessState.UserTime() + run.ProcessState.SystemTime()
		if err != nil {
			sum.seed, sum.as = seed, finding(string(output))
			return sum, nil
		}
	}
	return sum, nil
}

// finding returns the kind of the first finding in a seed's output.
func finding(output string) string {
	if found := regexp.MustCompile(`seed \d+: ([a-z A-Z]+): `).FindStringSubmatch(output); found != nil {
		return found[1]
	}
	first, _, _ := strings.Cut(strings.TrimSpace(output), "\n")
	return first
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
