package docs

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestFollow: a page whose commands do what it says is followed to its end.
func TestFollow(t *testing.T) {
	session := &Session{
		Dir: t.TempDir(), Environment: os.Environ(), Log: t.Logf,
		Replaced: strings.NewReplacer("NAME", "world"),
	}
	defer session.Close()
	page := parse("a.md", "<!-- file: greeting -->\n```yaml\nhello NAME\n```\n"+
		"```sh\ncat greeting > copy\n```\n"+
		"<!-- terminal -->\n```console\n$ echo started; sleep 600\nstarted\n```\n"+
		"<!-- not run: it would fail -->\n```sh\nfalse\n```\n"+
		"```console\n$ cat copy\nhello world\n```\n"+
		"<!-- terminals closed -->\n```sh\ntest -e copy\n```\n")
	if err := session.Follow(t.Context(), page, page.Blocks); err != nil {
		t.Fatal(err)
	}
	if len(session.terminals) != 0 {
		t.Error("a terminal is open")
	}
}

// TestFollowFindsMistakes: whatever a reader would stumble over is an error that
// names the line.
func TestFollowFindsMistakes(t *testing.T) {
	for name, page := range map[string]string{
		"a command that fails":               "```sh\ntrue\nfalse\n```\n",
		"a command that does not exist":      "```sh\ntrue\nno-such-program --flag\n```\n",
		"an unset variable":                  "```sh\ntrue\necho \"$NO_SUCH_VARIABLE\"\n```\n",
		"a failure within a pipe":            "```sh\ntrue\nfalse | cat\n```\n",
		"another output":                     "```console\n$ true\n$ echo Pending\nBound\n```\n",
		"lines in another order":             "```console\n$ true\n$ printf 'a\\nb\\n'\nb\na\n```\n",
		"a terminal that ends":               "<!-- terminal -->\n```console\n$ echo other\nstarted\n```\n",
		"a terminal that never says as much": "<!-- terminal -->\n```console\n$ sleep 600\nstarted\n```\n",
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			session := &Session{Dir: t.TempDir(), Environment: os.Environ(), Log: t.Logf}
			defer session.Close()
			parsed := parse("a.md", page)
			err := session.Follow(ctx, parsed, parsed.Blocks)
			if err == nil || !strings.HasPrefix(err.Error(), "a.md:3: ") {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestFollowWaitsForWhatAReaderWouldLookForAgain: only commands that look are
// repeated.
func TestFollowWaitsForWhatAReaderWouldLookForAgain(t *testing.T) {
	directory := t.TempDir()
	kubectl := "#!/bin/sh\necho x >> count\nif [ $(wc -l < count) -ge 3 ]; then echo Bound; else echo Pending; fi\n"
	if err := os.WriteFile(filepath.Join(directory, "kubectl"), []byte(kubectl), 0o755); err != nil {
		t.Fatal(err)
	}
	for command, isRepeated := range map[string]bool{
		"kubectl get pvc":                     true,
		"bin/kubectl -n team-a describe pod":  true,
		"kubectl delete pvc data":             false,
		"kubectl -n team-a apply -f get.yaml": false,
	} {
		if looksOnly(command) != isRepeated {
			t.Errorf("%s: repeated: %t", command, !isRepeated)
		}
	}
	session := &Session{Dir: directory, Environment: append(os.Environ(), "PATH="+directory+":"+os.Getenv("PATH")), Log: t.Logf}
	page := parse("a.md", "```console\n$ kubectl get pvc\nBound\n```\n")
	if err := session.Follow(t.Context(), page, page.Blocks); err != nil {
		t.Error(err)
	}
}
