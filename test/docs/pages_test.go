package docs

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/policy"
)

// TestLinksLeadSomewhere: relative links of the pages lead to files, and to
// headings of theirs.
func TestLinksLeadSomewhere(t *testing.T) {
	pages, err := Pages()
	if err != nil {
		t.Fatal(err)
	}
	byPath := map[string]*Page{}
	for _, page := range pages {
		byPath[page.Path] = page
	}
	links := 0
	for _, page := range pages {
		for _, link := range page.Links {
			if strings.Contains(link.Target, "://") {
				continue
			}
			links++
			file, fragment, _ := strings.Cut(link.Target, "#")
			target := path.Join(path.Dir(page.Path), file)
			if file == "" {
				target = page.Path
			}
			if _, err := os.Stat(filepath.Join(Root(), target)); err != nil {
				t.Errorf("%s:%d: %s does not exist", page.Path, link.Line, link.Target)
			} else if to := byPath[target]; fragment != "" && (to == nil || !to.Anchors[fragment]) {
				t.Errorf("%s:%d: %s has no heading %s", page.Path, link.Line, target, fragment)
			}
		}
	}
	if links < 200 {
		t.Errorf("there are only %d links", links)
	}
}

// TestEveryPageIsFound: a reader who starts at docs/README.md finds every page
// below docs/ by following links.
func TestEveryPageIsFound(t *testing.T) {
	pages, err := Pages()
	if err != nil {
		t.Fatal(err)
	}
	byPath := map[string]*Page{}
	for _, page := range pages {
		byPath[page.Path] = page
	}
	waiting, found := []string{"docs/README.md"}, map[string]bool{}
	for len(waiting) > 0 {
		page := byPath[waiting[0]]
		waiting = waiting[1:]
		if page == nil || found[page.Path] {
			continue
		}
		found[page.Path] = true
		for _, link := range page.Links {
			file, _, _ := strings.Cut(link.Target, "#")
			waiting = append(waiting, path.Join(path.Dir(page.Path), file))
		}
	}
	for _, page := range pages {
		if strings.HasPrefix(page.Path, "docs/") && !found[page.Path] {
			t.Errorf("no links lead from docs/README.md to %s", page.Path)
		}
	}
}

// TestPoliciesOfThePagesAreGood: whoever copies a whole policy gets no errors.
func TestPoliciesOfThePagesAreGood(t *testing.T) {
	pages, err := Pages()
	if err != nil {
		t.Fatal(err)
	}
	policies := 0
	for _, page := range pages {
		for _, block := range page.Blocks {
			if block.Language != "yaml" || !strings.Contains(block.Content, "\nkind: Policy\n") {
				continue
			}
			policies++
			if _, err := policy.Parse([]byte(block.Content), page.Path, mappers.BuiltIn().Describe()); err != nil {
				t.Errorf("%s:%d: %v", page.Path, block.Line, err)
			}
		}
	}
	if policies < 6 {
		t.Errorf("the pages have only %d policies", policies)
	}
}

var (
	namedPath   = regexp.MustCompile("[ `(=]((?:deploy|test|docs|testdata|backends|provisioner|policy|mappers|build)/[A-Za-z0-9_./-]*[A-Za-z0-9_-])")
	namedTarget = regexp.MustCompile("(?m)(?:`|^|^[A-Z0-9_]+=\\S+ |\\$ )make ([a-z][a-z0-9-]*)")
	isTarget    = regexp.MustCompile(`(?m)^([a-z][a-z0-9-]*):`)
	generated   = regexp.MustCompile(`^deploy/overlays/(NAME|mine)`)
)

// TestPathsAndTargetsOfThePagesExist: files of the repository that pages name
// exist, and so do make targets.
func TestPathsAndTargetsOfThePagesExist(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(Root(), "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	targets := map[string]bool{}
	for _, found := range isTarget.FindAllStringSubmatch(string(makefile), -1) {
		targets[found[1]] = true
	}
	pages, err := Pages()
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		if page.Path == "CHANGELOG.md" || page.Path == "docs/faults.md" {
			continue // they also name what is gone
		}
		text := page.Prose
		for _, block := range page.Blocks {
			if block.Language == "sh" || block.Language == "console" {
				text += "\n" + block.Content
			}
		}
		for _, found := range namedTarget.FindAllStringSubmatch(text, -1) {
			if !targets[found[1]] {
				t.Errorf("%s names make %s, which does not exist", page.Path, found[1])
			}
		}
		for _, found := range namedPath.FindAllStringSubmatch(text, -1) {
			if _, err := fs.Stat(os.DirFS(Root()), path.Clean(found[1])); err != nil && !generated.MatchString(found[1]) {
				t.Errorf("%s names %s, which does not exist", page.Path, found[1])
			}
		}
	}
}

// TestCommandsAreRunOrSayWhyNot: a block of commands on a page for readers is
// followed by a test, or the comment before it says why it is not.
func TestCommandsAreRunOrSayWhyNot(t *testing.T) {
	followed := map[string]bool{"docs/tutorial.md": true}
	for _, page := range Lifecycle {
		followed[page] = true
	}
	pages, err := Pages()
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		if followed[page.Path] || !strings.HasPrefix(page.Path, "docs/how-to/") && !strings.HasPrefix(page.Path, "docs/explanation/") {
			continue
		}
		for _, block := range page.Blocks {
			if (block.Language == "sh" || block.Language == "console") && !strings.HasPrefix(block.Remark, "not run: ") {
				t.Errorf("%s:%d: nothing runs these commands, and no comment says why", page.Path, block.Line)
			}
		}
	}
}

// TestParse checks the reader of pages itself.
func TestParse(t *testing.T) {
	page := parse("a.md", "# One\n\n## Two `x`: three\n\n<!-- terminal -->\n```console\n$ a \\\n    b\nout\n$ c <<'END'\nx\nEND\nmore\n```\n\n  ```sh\n  # no command\n  d\n  ```\n[t](b.md#c)\n")
	if !page.Anchors["two-x-three"] || len(page.Links) != 1 || page.Links[0].Target != "b.md#c" {
		t.Errorf("anchors %v, links %v", page.Anchors, page.Links)
	}
	commands := page.Blocks[0].Commands()
	if len(commands) != 2 || commands[0].Text != "a \\\n    b" || commands[0].Output[0] != "out" || commands[1].Text != "c <<'END'\nx\nEND" || commands[1].Output[0] != "more" || commands[1].Line != 10 {
		t.Errorf("%+v", commands)
	}
	if page.Blocks[0].Remark != "terminal" || len(page.Section("Two `x`: three")) != 2 {
		t.Errorf("%+v", page.Blocks)
	}
	if commands := page.Blocks[1].Commands(); len(commands) != 1 || commands[0].Text != "d" {
		t.Errorf("%+v", commands)
	}
}

func TestMissing(t *testing.T) {
	for _, c := range []struct {
		expected, output, want string
	}{
		{"a\nb", "a\nx\nb", ""},
		{"b\na", "a\nx\nb", "a"},
		{"NAME   AGE\ndata   5s", "NAME  AGE\ndata  12m3s", ""},
		{"good...\n...\nend", "goodness\nx\nend", ""},
		{"revision 0123456789ab", "revision ba9876543210", ""},
		{"Bound", "Pending", "Bound"},
	} {
		if got := Missing(strings.Split(c.expected, "\n"), c.output); got != c.want {
			t.Errorf("Missing(%q, %q) = %q, want %q", c.expected, c.output, got, c.want)
		}
	}
}
