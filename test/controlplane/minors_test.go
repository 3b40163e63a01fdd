package controlplane

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// minorSources returns a directory of nested modules of these minors.
func minorSources(t *testing.T, minors ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, minor := range minors {
		writeModule(t, filepath.Join(dir, minor), "v"+minor+".1")
	}
	return dir
}

func TestMinorIsChosenByItsNameOrElseTheNewest(t *testing.T) {
	sources := minorSources(t, "1.9", "1.34", "1.100", "1.36")
	if err := os.WriteFile(filepath.Join(sources, "README.md"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	const unknown = ": no control plane of that minor is offered: use one of 1.100, 1.36, 1.34, 1.9, or leave it unset for the newest"
	for _, test := range []struct {
		wanted, err string
		want        []string
	}{
		{wanted: "", want: []string{"1.100", "1.36", "1.34", "1.9"}},
		{wanted: "1.34", want: []string{"1.34"}},
		{wanted: "1.33", err: "KUBERNETES=1.33" + unknown},
		{wanted: "v1.34", err: "KUBERNETES=v1.34" + unknown},
		{wanted: "1.34.4", err: "KUBERNETES=1.34.4" + unknown},
	} {
		t.Run(test.wanted, func(t *testing.T) {
			got, err := choose(sources, test.wanted)
			var message string
			if err != nil {
				message = err.Error()
			}
			if !slices.Equal(got, test.want) || message != test.err {
				t.Errorf("got %q, %q, want %q, %q", got, message, test.want, test.err)
			}
		})
	}
}

func TestUnknownMinorIsRefusedBeforeAnythingIsBuilt(t *testing.T) {
	t.Setenv(BinaryVariable, "")
	t.Setenv(MinorVariable, "1.2")
	_, err := Binary(t.Context(), writerFunc(func(line string) { t.Errorf("logged %q", line) }))
	if err == nil || !strings.HasPrefix(err.Error(), "control plane's binary: KUBERNETES=1.2: no control plane of that minor is offered: use one of 1.") {
		t.Errorf("got %v", err)
	}
}

func TestNextMinorIsTriedOnlyIfTheNewestCannotBeDownloaded(t *testing.T) {
	refused := &refusedError{module: "k8s.io/kubernetes@v1.36.1", reason: "403 Forbidden", count: 1}
	broken := errors.New("does not compile")
	for _, test := range []struct {
		name           string
		built          []string
		fetch, compile map[string]error
		want           string
		wantErr        error
		wantCompiled   []string
		wantSaid       []string
	}{
		{
			name: "the newest is served", want: "controlplane-1.36", wantCompiled: []string{"1.36"},
		},
		{
			name: "the newest is refused", fetch: map[string]error{"1.36": refused},
			want: "controlplane-1.35", wantCompiled: []string{"1.35"},
			wantSaid: []string{"controlplane: Kubernetes 1.36 cannot be downloaded (k8s.io/kubernetes@v1.36.1: 403 Forbidden), so 1.35 is tried\n"},
		},
		{
			name: "two are refused", fetch: map[string]error{"1.36": refused, "1.35": refused},
			want: "controlplane-1.34", wantCompiled: []string{"1.34"},
			wantSaid: []string{
				"controlplane: Kubernetes 1.36 cannot be downloaded (k8s.io/kubernetes@v1.36.1: 403 Forbidden), so 1.35 is tried\n",
				"controlplane: Kubernetes 1.35 cannot be downloaded (k8s.io/kubernetes@v1.36.1: 403 Forbidden), so 1.34 is tried\n",
			},
		},
		{
			name: "all are refused", fetch: map[string]error{"1.36": refused, "1.35": refused, "1.34": refused},
			wantErr: refused,
			wantSaid: []string{
				"controlplane: Kubernetes 1.36 cannot be downloaded (k8s.io/kubernetes@v1.36.1: 403 Forbidden), so 1.35 is tried\n",
				"controlplane: Kubernetes 1.35 cannot be downloaded (k8s.io/kubernetes@v1.36.1: 403 Forbidden), so 1.34 is tried\n",
			},
		},
		{
			name: "the newest does not compile", compile: map[string]error{"1.36": broken}, wantErr: broken, wantCompiled: []string{"1.36"},
		},
		{
			name: "the newest has a broken module", fetch: map[string]error{"1.36": broken}, wantErr: broken,
		},
		{
			name: "the newest is built and refused", built: []string{"1.36"}, fetch: map[string]error{"1.36": refused}, want: "controlplane-1.36",
		},
		{
			name: "an older one is built", built: []string{"1.35"}, want: "controlplane-1.36", wantCompiled: []string{"1.36"},
		},
		{
			name: "an older one is built and nothing is served", built: []string{"1.34"},
			fetch: map[string]error{"1.36": refused, "1.35": refused, "1.34": refused}, want: "controlplane-1.34",
			wantSaid: []string{
				"controlplane: Kubernetes 1.36 cannot be downloaded (k8s.io/kubernetes@v1.36.1: 403 Forbidden), so 1.35 is tried\n",
				"controlplane: Kubernetes 1.35 cannot be downloaded (k8s.io/kubernetes@v1.36.1: 403 Forbidden), so 1.34 is tried\n",
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			sources, binDir := minorSources(t, "1.34", "1.35", "1.36"), t.TempDir()
			for _, minor := range test.built {
				mustBuild(t, filepath.Join(sources, minor), binDir, &builder{})
			}
			var compiled, said []string
			tools := toolchain{
				fetch: func(_ context.Context, source string) error { return test.fetch[filepath.Base(source)] },
				compile: func(_ context.Context, source, _, target string) error {
					compiled = append(compiled, filepath.Base(source))
					return errors.Join(test.compile[filepath.Base(source)], os.WriteFile(target, nil, 0o700))
				},
			}
			log := writerFunc(func(line string) {
				if !strings.Contains(line, ": building ") {
					said = append(said, line)
				}
			})
			path, err := firstServed(t.Context(), log, sources, []string{"1.36", "1.35", "1.34"}, binDir, tools)
			if !errors.Is(err, test.wantErr) || path != "" && filepath.Base(path) != test.want || path == "" && test.want != "" {
				t.Errorf("got %q, %v, want %q, %v", path, err, test.want, test.wantErr)
			}
			if !slices.Equal(compiled, test.wantCompiled) {
				t.Errorf("compiled %q, want %q", compiled, test.wantCompiled)
			}
			if !slices.Equal(said, test.wantSaid) {
				t.Errorf("said %q, want %q", said, test.wantSaid)
			}
		})
	}
}

func TestMinorsAreBuiltSideBySide(t *testing.T) {
	sources, binDir, b := minorSources(t, "1.35", "1.36"), t.TempDir(), &builder{}
	for range 2 {
		for minor, want := range map[string]string{"1.36": "v1.36.1", "1.35": "v1.35.1"} {
			if got := mustBuild(t, filepath.Join(sources, minor), binDir, b); !strings.HasPrefix(got, want+" ") {
				t.Errorf("%s holds %q, want one of %s", minor, got, want)
			}
		}
	}
	if got := b.count.Load(); got != 2 {
		t.Errorf("built %d times, want twice", got)
	}
}

// TestFetchTellsARefusedDownloadFromABrokenModule asks the real go command,
// whose words and formats the difference hangs on.
func TestFetchTellsARefusedDownloadFromABrokenModule(t *testing.T) {
	const gomod = "module example.org/library\n\ngo 1.26\n"
	archive := zipped(t, map[string]string{
		"example.org/library@v1.0.0/go.mod":     gomod,
		"example.org/library@v1.0.0/library.go": "package library\n",
	})
	const alone = "module example.org/program\n\ngo 1.26\n"
	const requires = alone + "\nrequire example.org/library v1.0.0\n"
	const imports = "package main\n\nimport _ \"example.org/library\"\n\nfunc main() {}\n"
	// The sum of the archive is a wrong one, as nothing here needs a right one.
	sums := "example.org/library v1.0.0 h1:" + sum("") + "\nexample.org/library v1.0.0/go.mod h1:" + sum(fmt.Sprintf("%x  go.mod\n", sha256.Sum256([]byte(gomod)))) + "\n"

	for _, test := range []struct {
		name string
		// status is the proxy's answer to whoever wants the archive.
		status               int
		gomod, gosum, source string
		// want is part of the error; empty, fetching must succeed.
		want    string
		refused bool
	}{
		{name: "nothing is needed", status: 403, gomod: alone, source: "package main\n\nfunc main() {}\n"},
		{name: "does not compile", status: 403, gomod: alone, source: "package main\n\nfunc main() { undefinedHere() }\n"},
		{name: "forbidden", status: 403, gomod: requires, gosum: sums, source: imports, want: "example.org/library@v1.0.0: reading http", refused: true},
		{name: "not found", status: 404, gomod: requires, gosum: sums, source: imports, want: "404 Not Found", refused: true},
		{name: "gone", status: 410, gomod: requires, gosum: sums, source: imports, want: "410 Gone", refused: true},
		{name: "out of order", status: 503, gomod: requires, gosum: sums, source: imports, want: "503 Service Unavailable", refused: true},
		{name: "another archive than go.sum knows", status: 200, gomod: requires, gosum: sums, source: imports, want: "checksum mismatch"},
		{name: "go.sum lacks a line", status: 200, gomod: requires, source: imports, want: "missing go.sum entry"},
		{name: "import that no module has", status: 403, gomod: alone, source: imports, want: "import lookup disabled"},
		{name: "no Go", status: 403, gomod: alone, source: "not Go\n", want: "expected 'package'"},
	} {
		t.Run(test.name, func(t *testing.T) {
			proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch r.URL.Path {
				case "/example.org/library/@v/v1.0.0.mod":
					fmt.Fprint(w, gomod)
				case "/example.org/library/@v/v1.0.0.info":
					fmt.Fprint(w, `{"Version": "v1.0.0"}`)
				case "/example.org/library/@v/v1.0.0.zip":
					w.WriteHeader(test.status)
					if test.status == http.StatusOK {
						_, _ = w.Write(archive)
					}
				default:
					http.NotFound(w, r)
				}
			}))
			defer proxy.Close()
			t.Setenv("GOPROXY", proxy.URL)
			t.Setenv("GOSUMDB", "off")
			t.Setenv("GOMODCACHE", t.TempDir())
			dir := t.TempDir()
			for name, content := range map[string]string{"go.mod": test.gomod, "go.sum": test.gosum, "main.go": test.source} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			err := goFetch(t.Context(), dir)
			_, refused := errors.AsType[*refusedError](err)
			switch {
			case test.want == "" && err != nil, test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("got %v, want %q", err, test.want)
			case refused != test.refused:
				t.Errorf("taken for a refused download: %v, want %v: %v", refused, test.refused, err)
			}
		})
	}
}

func zipped(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var archive bytes.Buffer
	writer := zip.NewWriter(&archive)
	for name, content := range files {
		file, err := writer.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := file.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	return archive.Bytes()
}

// sum returns what follows "h1:" in go.sum, of the list of a module's files.
func sum(list string) string {
	digest := sha256.Sum256([]byte(list))
	return base64.StdEncoding.EncodeToString(digest[:])
}

func TestFetchThatIsInterruptedIsNoRefusal(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := goFetch(ctx, moduleSource(t))
	if _, refused := errors.AsType[*refusedError](err); refused || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
}
