// Package docs keeps the documentation true: it runs the commands of README.md
// and of the tutorial, and checks what the other pages name.
package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

// Page is a page of the documentation.
type Page struct {
	// Path is relative to the repository.
	Path    string
	Blocks  []Block
	Links   []Link
	Anchors map[string]bool
	// Prose is the text outside of fenced blocks.
	Prose string
}

// Block is a fenced block.
type Block struct {
	Language, Content string
	// Headings are those that the block is below, the highest first.
	Headings []string
	// Remark is the HTML comment on the line before the block.
	Remark string
	Line   int
}

// Link is a link from a page to something else.
type Link struct {
	Target string
	Line   int
}

var (
	fence   = regexp.MustCompile("^( *)```([a-z]*)$")
	heading = regexp.MustCompile(`^(#+) (.*)$`)
	remark  = regexp.MustCompile(`^\s*<!-- (.*) -->$`)
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	inLink  = regexp.MustCompile(`\[([^]]*)\]\([^)]*\)`)
	noWord  = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// Root returns the path of the repository.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Dir(filepath.Dir(filepath.Dir(file)))
}

// Pages returns README.md and similar pages, and everything below docs/.
func Pages() ([]*Page, error) {
	var pages []*Page
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "mappers/README.md", "test/*/README.md"} {
		paths, err := filepath.Glob(filepath.Join(Root(), pattern))
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			relative, err := filepath.Rel(Root(), path)
			if err != nil {
				return nil, err
			}
			page, err := Read(relative)
			if err != nil {
				return nil, err
			}
			pages = append(pages, page)
		}
	}
	return pages, nil
}

// Read reads one page.
func Read(path string) (*Page, error) {
	content, err := os.ReadFile(filepath.Join(Root(), path))
	if err != nil {
		return nil, err
	}
	return parse(path, string(content)), nil
}

func parse(path, content string) *Page {
	page := &Page{Path: path, Anchors: map[string]bool{}}
	var headings []string
	var block *Block
	var indent, before string
	var prose strings.Builder
	for i, line := range strings.Split(content, "\n") {
		opened := fence.FindStringSubmatch(line)
		switch {
		case block != nil && strings.TrimSpace(line) == "```":
			page.Blocks = append(page.Blocks, *block)
			block = nil
		case block != nil:
			block.Content += strings.TrimPrefix(line, indent) + "\n"
		case opened != nil:
			indent = opened[1]
			block = &Block{Language: opened[2], Headings: slices.Clone(headings), Line: i + 1}
			if found := remark.FindStringSubmatch(before); found != nil {
				block.Remark = found[1]
			}
		default:
			prose.WriteString(line + "\n")
			if found := heading.FindStringSubmatch(line); found != nil {
				depth := len(found[1])
				headings = append(headings[:min(depth-1, len(headings))], found[2])
				page.Anchors[anchor(found[2])] = true
			}
			for _, found := range link.FindAllStringSubmatch(line, -1) {
				page.Links = append(page.Links, Link{Target: found[1], Line: i + 1})
			}
		}
		before = line
	}
	page.Prose = prose.String()
	return page
}

// anchor returns the name by which a link reaches a heading.
func anchor(heading string) string {
	text := inLink.ReplaceAllString(heading, "$1")
	text = noWord.ReplaceAllString(strings.ToLower(text), "")
	return strings.ReplaceAll(text, " ", "-")
}

// Command is a command of a block, with the output that the page shows.
type Command struct {
	Text   string
	Output []string
	Line   int
}

// Commands returns the commands of a block of the language sh or console.
func (b Block) Commands() []Command {
	var commands []Command
	var end string // of a here-document
	for i, line := range strings.Split(strings.TrimSuffix(b.Content, "\n"), "\n") {
		last := len(commands) - 1
		text, isPrompted := strings.CutPrefix(line, "$ ")
		continued := last >= 0 && (end != "" || strings.HasSuffix(commands[last].Text, "\\"))
		switch {
		case continued:
			commands[last].Text += "\n" + line
			if line == end {
				end = ""
			}
			continue
		case b.Language == "console" && !isPrompted:
			if last >= 0 {
				commands[last].Output = append(commands[last].Output, line)
			}
			continue
		case b.Language == "sh":
			text = line
		}
		if strings.TrimSpace(text) == "" || strings.HasPrefix(text, "#") {
			continue
		}
		commands = append(commands, Command{Text: text, Line: b.Line + 1 + i})
		if _, after, ok := strings.Cut(text, "<<'"); ok {
			end, _, _ = strings.Cut(after, "'")
		}
	}
	return commands
}

// Section returns the blocks below a heading.
func (p *Page) Section(heading string) []Block {
	var blocks []Block
	for _, block := range p.Blocks {
		if slices.Contains(block.Headings, heading) {
			blocks = append(blocks, block)
		}
	}
	return blocks
}
