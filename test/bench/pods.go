package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// podWait is how long a pod waited for its volume, in seconds from its beginning, as
// TestHowLongPodsWait of test/e2e writes it. What did not happen is 0.
type podWait struct {
	// Class is the mode, a hyphen, and the filesystem or "paths".
	Class string `json:"class"`
	// Moved means that the pod of an earlier one's claim started on another node.
	Moved    bool    `json:"moved"`
	Bound    float64 `json:"bound"`
	Attached float64 `json:"attached"`
	Runs     float64 `json:"runs"`
}

func (w podWait) title() string {
	if w.Moved {
		return w.Class + ", moved"
	}
	return w.Class
}

func readPods(path string) (waits []podWait, err error) {
	content, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(content, &waits)
	}
	if err != nil {
		return nil, fmt.Errorf("-pods %s: %w", path, err)
	}
	return waits, nil
}

// pods reports what TestHowLongPodsWait has measured.
func pods(_ context.Context, _ *harness.Suite, o options, r *results, out io.Writer) error {
	if o.pods == "" {
		return nil
	}
	waits, err := readPods(o.pods)
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\npods on emulated nodes\tBound\tattached\truns")
	for _, w := range waits {
		fmt.Fprintf(table, "%s\t%.1f s\t%.1f s\t%.1f s\n", w.title(), w.Bound, w.Attached, w.Runs)
		name := "pods." + strings.ReplaceAll(w.title(), ", ", ".")
		r.set(name+".attached_seconds", w.Attached)
		r.set(name+".runs_seconds", w.Runs)
	}
	return table.Flush()
}

// podsPanel shows a bar for each wait: Cinder's part, and that of the kubelet and the node
// plugin.
func podsPanel(waits []podWait) panel {
	p := panel{title: "pods on emulated nodes, seconds until they run"}
	for _, w := range waits {
		p.bars = append(p.bars, bar{w.title(), max(w.Bound, w.Attached), w.Runs})
	}
	return p
}
