package document

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

var (
	yamlErrorPattern     = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)$`)
	unknownAnchorPattern = regexp.MustCompile(`^unknown anchor '(.*)' referenced$`)
)

// unfinished are lines that a tool or a word processor left. The parser takes them for a
// part of a text, so that it gives up only at a later line.
var unfinished = []struct {
	line    *regexp.Regexp
	problem string
}{
	{regexp.MustCompile(`(?m)^<<<<<<< `), "a merge conflict was left here; keep one side, and remove the lines that begin with <<<<<<<, ======= and >>>>>>>"},
	{regexp.MustCompile(`(?m)^[ \t]*\x{a0}\s*[^\s#]`), "the line is indented with U+00A0, which only looks like a space; type the spaces again"},
}

// fillIn is what to do with a template, which no reader of this package fills in.
const fillIn = "fill that in first, as with helm template, and give the result"

// syntaxHints explain the YAML parser's errors to operators.
var syntaxHints = map[string]string{
	"did not find expected alphabetic or numeric character": `a value that begins with * or & must be put in quotes, such as "*", or a quote before it is not closed`,
	"found character that cannot start any token":           "a value that begins with this character must be put in quotes",
	"mapping values are not allowed in this context":        "the line has one ': ' too many, or is indented wrongly",
	"did not find expected key":                             "the line is indented wrongly, or something before it is not closed",
	"did not find expected '-' indicator":                   "the line is indented wrongly, or a hyphen is missing",
	"could not find expected ':'":                           "a key without a colon, or something before it is not closed",
	"found incompatible YAML document":                      "only the directive %YAML 1.1 is understood; remove the line",
	"found unexpected end of stream":                        "a quote is not closed",
	"did not find expected ',' or ']'":                      "a bracket is not closed, or a comma is missing",
	"did not find expected ',' or '}'":                      "a brace is not closed, or a comma is missing",
}

// reportSyntax reports what the YAML parser could not read. There is at most one such
// mistake, because the parser stops there.
func (d *Document) reportSyntax(err error, data []byte) {
	problem := err.Error()
	reported := 0
	if m := yamlErrorPattern.FindStringSubmatch(problem); m != nil {
		if n, err := strconv.Atoi(m[1]); err == nil {
			reported = n
		}
		problem = m[2]
	}
	line, text := brokenLine(data, reported)
	for _, left := range unfinished {
		if found := left.line.FindIndex(data); found != nil {
			if before := 1 + bytes.Count(data[:found[0]], []byte("\n")); before <= line {
				d.errorAt(Position{Line: before}, "", left.problem)
				return
			}
		}
	}
	at := Position{Line: line}
	switch m := unknownAnchorPattern.FindStringSubmatch(problem); {
	case bytes.HasPrefix(bytes.TrimLeft(text, " \t"), []byte("{{")):
		d.errorAt(at, "", "the line begins with {{, which is of a template; "+fillIn)
	case bytes.IndexByte(indentation(text), '\t') >= 0 && (strings.Contains(problem, "tab") || strings.Contains(problem, "cannot start any token")):
		d.errorAt(at, "", "the line is indented with a tab; YAML allows only spaces there")
	case m != nil:
		d.errorAt(at, "", fmt.Sprintf("*%s is read as a reference to something called &%s, which does not exist; put a pattern that begins with * in quotes: %q", m[1], m[1], "*"+m[1]))
	default:
		if hint := syntaxHints[problem]; hint != "" {
			problem = hint + " (" + problem + ")"
		}
		d.errorAt(at, "", "from this line on the file is not valid YAML: "+problem)
	}
}

func indentation(line []byte) []byte {
	return line[:len(line)-len(bytes.TrimLeft(line, " \t"))]
}

// maxReread bounds the bytes that are reread to find the line of a syntax error; the
// parser handles about 10 MB/s.
const maxReread = 10 << 20

// brokenLine finds the line from which the file is unreadable: the one after the file's
// longest readable beginning. The parser itself only gives the line of the surrounding
// construct, one that is off by one, or none.
//
// It searches backwards from where the parser gave up. If something is never closed, that
// is the end of the file, and the line in the parser's error (0 for the first) is that of
// the opening.
func brokenLine(data []byte, reported int) (int, []byte) {
	lines := bytes.SplitAfter(data, []byte("\n"))
	feed := &lineReader{lines: lines}
	_ = readAll(feed)
	from := feed.next
	if from >= len(lines) && reported > 0 {
		from = min(reported+1, len(lines))
	}
	good, reread := 0, 0
	for i := from; i > 0 && reread < maxReread; i-- {
		head := bytes.Join(lines[:i], nil)
		reread += len(head)
		if readAll(bytes.NewReader(head)) == nil {
			good = i
			break
		}
	}
	for i := good; i < len(lines); i++ {
		if text := bytes.TrimSpace(lines[i]); len(text) > 0 && text[0] != '#' {
			return i + 1, lines[i]
		}
	}
	return good + 1, nil
}

// lineReader returns one line at a time, so that next shows how far a reader got.
type lineReader struct {
	lines [][]byte
	next  int
	rest  []byte
}

func (r *lineReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		if r.next == len(r.lines) {
			return 0, io.EOF
		}
		r.rest = r.lines[r.next]
		r.next++
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// readAll reads every document of a stream.
func readAll(r io.Reader) error {
	decoder := yaml.NewDecoder(r)
	for {
		var n yaml.Node
		if err := decoder.Decode(&n); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}
