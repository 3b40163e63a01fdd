package monitoring

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the dashboard")

var dashboards = filepath.Join(root, "deploy", "chart", "dashboards")

// TestDashboardIsMadeHere: what is shipped is what overview describes.
func TestDashboardIsMadeHere(t *testing.T) {
	var want bytes.Buffer
	encoder := json.NewEncoder(&want)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(overview()); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dashboards, "standalone-cinder.json")
	if *update {
		if err := os.WriteFile(path, want.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want.Bytes()) {
		t.Errorf("%s is not what dashboard.go describes; rewrite it with go test -update", path)
	}
}

// TestDashboards reads what is shipped, whoever made it.
func TestDashboards(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(dashboards, "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s has %d dashboards (%v)", dashboards, len(files), err)
	}
	known := publicFace(t)
	// What Grafana puts in, in the form of a value.
	variables := strings.NewReplacer("$__rate_interval", "5m", "$namespace", ".*")
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var d dashboard
		decoder := json.NewDecoder(bytes.NewReader(content))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&d); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if d.UID == "" || d.Title == "" || d.SchemaVersion == 0 || len(d.Panels) == 0 {
			t.Errorf("%s lacks a uid, a title, a schemaVersion or panels", file)
		}
		hasSource := false
		for _, v := range d.Templating.List {
			hasSource = hasSource || v.Type == "datasource" && v.Name == "datasource"
		}
		if !hasSource {
			t.Errorf("%s has no variable for the data source", file)
		}
		ids, taken := map[int]string{}, map[[2]int]string{}
		for _, p := range d.Panels {
			if other, ok := ids[p.ID]; ok {
				t.Errorf("panels %q and %q both have the id %d", p.Title, other, p.ID)
			}
			ids[p.ID] = p.Title
			g := p.GridPos
			if g.W < 1 || g.H < 1 || g.X < 0 || g.X+g.W > 24 {
				t.Errorf("panel %q does not fit into the grid: %+v", p.Title, g)
			}
			for x := g.X; x < g.X+g.W; x++ {
				for y := g.Y; y < g.Y+g.H; y++ {
					if other, ok := taken[[2]int{x, y}]; ok && other != p.Title {
						t.Fatalf("panels %q and %q overlap", p.Title, other)
					}
					taken[[2]int{x, y}] = p.Title
				}
			}
			if p.Type == "row" {
				continue
			}
			if len(p.Targets) == 0 || p.Datasource == nil || p.Datasource.UID != chosen.UID {
				t.Errorf("panel %q has no queries, or not the chosen data source", p.Title)
			}
			for _, query := range p.Targets {
				if query.Datasource == nil || query.Datasource.UID != chosen.UID {
					t.Errorf("panel %q: a query has not the chosen data source", p.Title)
				}
				known.check(t, p.Title, variables.Replace(query.Expr))
			}
		}
	}
}
