package wiring

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"
)

// TestLibraryLines sends lines as the libraries do.
func TestLibraryLines(t *testing.T) {
	modified := apierrors.NewConflict(schema.GroupResource{Resource: "leases"}, "lease", errors.New("the object has been modified; please apply your changes to the latest version and try again"))
	for name, test := range map[string]struct {
		write       func()
		quiet, loud string
	}{
		"an event":         {func() { klog.InfoS("Event occurred", "reason", "Provisioning") }, "", "DEBUG Event occurred"},
		"a failed attempt": {func() { utilruntime.HandleError(errors.New(`error syncing claim "uid": backend gold: no room`)) }, "WARN An attempt failed and will be retried", ""},
		"a race": {func() {
			utilruntime.HandleError(errors.New(`error syncing volume "pvc-1": persistentvolumes "pvc-1" not found`))
		}, "", "DEBUG The PersistentVolume is gone already"},
		"a missing volume": {func() {
			utilruntime.HandleError(errors.New(`error syncing volume "pvc-1": Secret "a" not found at the backend`))
		}, "WARN An attempt failed and will be retried", ""},
		"a retry":           {func() { klog.InfoS("Retrying syncing claim", "key", "uid") }, "", "DEBUG Retrying syncing claim"},
		"a lost race":       {func() { klog.ErrorS(modified, "Failed to update lease") }, "", "DEBUG Another replica holds the lease"},
		"a failed renewal":  {func() { klog.ErrorS(errors.New("timed out"), "Failed to update lease") }, "WARN Failed to update lease", ""},
		"any other error":   {func() { klog.ErrorS(errors.New("broken"), "Something") }, "ERROR Something", ""},
		"an unknown object": {func() { utilruntime.HandleError(errors.New("broken")) }, "ERROR Unhandled Error", ""},
	} {
		t.Run(name, func(t *testing.T) {
			defer klog.ClearLogger()
			for verbosity, want := range map[int]string{0: test.quiet, 2: test.quiet + test.loud} {
				var written bytes.Buffer
				if _, err := NewLogger(&written, LogText, verbosity); err != nil {
					t.Fatal(err)
				}
				test.write()
				var got string
				if found := regexp.MustCompile(`level=(\w+) (?:source=\S+ )?msg=(?:"([^"]*)"|(\w+))`).FindStringSubmatch(written.String()); found != nil {
					got = found[1] + " " + found[2] + found[3]
				}
				if got != want {
					t.Errorf("verbosity %d: got %q, want %q: %s", verbosity, got, want, written.String())
				}
			}
		})
	}
}

// TestLibrariesStillWriteTheseLines fails when a new version of a library writes
// different lines.
func TestLibrariesStillWriteTheseLines(t *testing.T) {
	const provisioning = "sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"
	var all string
	for _, pkg := range []string{provisioning, "k8s.io/apimachinery/pkg/util/runtime", "k8s.io/client-go/tools/leaderelection", "k8s.io/client-go/tools/record"} {
		all += sourcesOf(t, pkg)
	}
	for _, line := range libraryLines() {
		if !strings.Contains(all, `"`+line.message) {
			t.Errorf("no library writes %q", line.message)
		}
	}
	for _, text := range []string{"error syncing volume", "error syncing claim", "in work queue no longer exists"} {
		if !strings.Contains(sourcesOf(t, provisioning), text) {
			t.Errorf("the library makes no error with %q", text)
		}
	}
}

func sourcesOf(t *testing.T, pkg string) (text string) {
	t.Helper()
	dir, err := exec.Command("go", "list", "-f", "{{.Dir}}", pkg).Output()
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(dir)), "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s has no sources: %v", pkg, err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		text += string(content)
	}
	return text
}

// TestLinesKeepTheirAttributes covers the attributes of the logger and those of the
// line.
func TestLinesKeepTheirAttributes(t *testing.T) {
	var written bytes.Buffer
	logger := slog.New(libraryHandler{slog.NewTextHandler(&written, nil), libraryLines()}).With("lock", "a").WithGroup("g")
	logger.Error("Failed to update lease", "err", fmt.Errorf("timed out"))
	if text := written.String(); !strings.Contains(text, `level=WARN msg="Failed to update lease" lock=a g.err="timed out"`) {
		t.Errorf("got %s", text)
	}
}
