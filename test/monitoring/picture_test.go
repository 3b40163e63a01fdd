package monitoring

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/util/teststorage"
)

// recordedEvery is the time between two scrapes of the recording. To make another:
// go run ./test/bench -record test/monitoring/testdata/recording.txt.gz
const recordedEvery = 5 * time.Second

// unseen are the panels for which the recording has nothing, and why.
var unseen = map[string]string{
	"timeseries Audit findings": "nothing was lost",
	"timeseries Failed logins":  "every password was right",
}

// TestEveryPanelShowsARecording evaluates the dashboard's queries over what two replicas
// really exposed, and draws it.
func TestEveryPanelShowsARecording(t *testing.T) {
	storage, from, to := recording(t)
	engine := promql.NewEngine(promql.EngineOpts{
		MaxSamples: 1e7, Timeout: time.Minute, Parser: newParser(),
		// A pod that is gone leaves no staleness marker in the recording.
		LookbackDelta: 3 * recordedEvery,
	})
	variables := strings.NewReplacer("$__rate_interval", (4 * recordedEvery).String(), "$namespace", ".*")
	d, lines := overview(), map[int][]line{}
	for _, p := range d.Panels {
		for _, query := range p.Targets {
			q, err := engine.NewRangeQuery(t.Context(), storage, nil, variables.Replace(query.Expr), from, to, recordedEvery)
			if err != nil {
				t.Fatalf("%s: %v", p.Title, err)
			}
			matrix, err := q.Exec(t.Context()).Matrix()
			if err != nil {
				t.Fatalf("%s: %v", p.Title, err)
			}
			for _, series := range matrix {
				l := line{legend: legend(query.LegendFormat, series.Metric), values: make([]float64, to.Sub(from)/recordedEvery+1)}
				for i := range l.values {
					l.values[i] = math.NaN()
				}
				for _, point := range series.Floats {
					l.values[time.UnixMilli(point.T).Sub(from)/recordedEvery] = point.F
				}
				lines[p.ID] = append(lines[p.ID], l)
			}
			q.Close()
		}
		why := unseen[p.Type+" "+p.Title]
		if p.Type != "row" && (len(lines[p.ID]) == 0) != (why != "") {
			t.Errorf("panel %q has %d lines; as an exception: %q", p.Title, len(lines[p.ID]), why)
		}
	}
	var picture bytes.Buffer
	if err := draw(&picture, d, lines, int(to.Sub(from).Round(time.Minute)/time.Minute)); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(root, "docs", "dashboard.svg")
	if *update {
		if err := os.WriteFile(path, picture.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if kept, err := os.ReadFile(path); err != nil || !bytes.Equal(kept, picture.Bytes()) {
		t.Errorf("%s does not show the recording (%v); draw it with go test -update", path, err)
	}
}

var placeholder = regexp.MustCompile(`\{\{(\w+)\}\}`)

// legend fills in the labels, as Grafana does.
func legend(format string, of labels.Labels) string {
	return strings.Join(strings.Fields(placeholder.ReplaceAllStringFunc(format, func(found string) string {
		return of.Get(strings.Trim(found, "{}"))
	})), " ")
}

// recording loads the recorded scrapes, and returns when the first and the last were.
func recording(t *testing.T) (storage *teststorage.TestStorage, from, to time.Time) {
	t.Helper()
	file, err := os.Open(filepath.Join("testdata", "recording.txt.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	unpacked, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	storage = teststorage.New(t)
	pod, scraped := "", &bytes.Buffer{}
	load := func() {
		if scraped.Len() > 0 {
			appendScrape(t, storage, scraped.Bytes(), pod, to)
		}
		scraped.Reset()
	}
	text := bufio.NewScanner(unpacked)
	for text.Scan() {
		heading, ok := strings.CutPrefix(text.Text(), "# scrape ")
		if !ok {
			fmt.Fprintln(scraped, text.Text())
			continue
		}
		load()
		name, milliseconds, _ := strings.Cut(heading, " ")
		at, err := strconv.ParseInt(milliseconds, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		pod, to = name, time.UnixMilli(at)
		if from.IsZero() {
			from = to
		}
	}
	load()
	if err := text.Err(); err != nil {
		t.Fatal(err)
	}
	return storage, from, to
}

// appendScrape stores what a pod exposed, with the labels that a PodMonitor adds.
func appendScrape(t *testing.T, storage *teststorage.TestStorage, text []byte, pod string, at time.Time) {
	t.Helper()
	appender := storage.Appender(t.Context())
	parser := textparse.NewPromParser(text, labels.NewSymbolTable(), false)
	for {
		entry, err := parser.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if entry != textparse.EntrySeries {
			continue
		}
		var found labels.Labels
		parser.Labels(&found)
		_, _, value := parser.Series()
		full := labels.NewBuilder(found).Set("namespace", "standalone-cinder").Set("pod", pod).Labels()
		if _, err := appender.Append(0, full, at.UnixMilli(), value); err != nil {
			t.Fatal(err)
		}
	}
	if err := appender.Commit(); err != nil {
		t.Fatal(err)
	}
}
