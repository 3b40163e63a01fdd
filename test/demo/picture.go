package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"regexp"
	"strings"
	"text/template"
)

// The steps of the tour that the picture shows: a reader who has not installed anything
// should see claims become volumes, one that is denied, and a leader that is killed.
const firstShown, lastShown = "4.", "6."

// picture is a terminal as SVG. Lines are white, with colors that are told apart on a dark
// background.
var picture = template.Must(template.New("picture").Funcs(template.FuncMap{"text": escaped}).Parse(
	`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {{.Width}} {{.Height}}" width="{{.Width}}" height="{{.Height}}" role="img" font-family="ui-monospace, Menlo, Consolas, monospace" font-size="12">
<title>make demo: claims of two tenants become volumes, one is denied, and the leader is killed</title>
<rect width="{{.Width}}" height="{{.Height}}" rx="8" fill="#0d1117"/>
<circle cx="18" cy="16" r="5" fill="#ff5f57"/><circle cx="36" cy="16" r="5" fill="#febc2e"/><circle cx="54" cy="16" r="5" fill="#28c840"/>
{{range .Lines}}<text x="14" y="{{.Y}}" xml:space="preserve" fill="{{.Color}}"{{if .Bold}} font-weight="bold"{{end}}>{{text .Text}}</text>
{{end}}</svg>
`))

type screen struct {
	Width, Height int
	Lines         []screenLine
}

type screenLine struct {
	Y     int
	Text  string
	Color string
	Bold  bool
}

const (
	characterWidth = 7.3
	lineHeight     = 17
	firstLine      = 46
)

var (
	isStep    = regexp.MustCompile(`^\d+\. `)
	isCommand = regexp.MustCompile(`^ *\$ `)
	isResult  = regexp.MustCompile(`^ *\+\d`)
	isRefusal = regexp.MustCompile(`^ *Warning `)
)

// drawTour writes a picture of what a tour has said.
func drawTour(to io.Writer, said string) error {
	s := screen{}
	longest, step := 0, ""
	for line := range strings.Lines(said) {
		line = strings.TrimRight(line, " \n")
		if isStep.MatchString(line) {
			step, _, _ = strings.Cut(line, " ")
		}
		if step < firstShown || step > lastShown {
			continue
		}
		drawn := screenLine{Y: firstLine + len(s.Lines)*lineHeight, Text: line, Color: "#c9d1d9", Bold: isStep.MatchString(line)}
		switch {
		case drawn.Bold:
			drawn.Color = "#79c0ff"
		case isCommand.MatchString(line):
			drawn.Color = "#7ee787"
		case isResult.MatchString(line):
			drawn.Color = "#ffa657"
		case isRefusal.MatchString(line):
			drawn.Color = "#ff7b72"
		}
		longest = max(longest, len([]rune(line)))
		s.Lines = append(s.Lines, drawn)
	}
	if len(s.Lines) == 0 {
		return fmt.Errorf("the tour has no steps %s to %s", firstShown, lastShown)
	}
	s.Width, s.Height = int(float64(longest)*characterWidth)+28, firstLine+len(s.Lines)*lineHeight
	return picture.Execute(to, s)
}

func escaped(text string) (string, error) {
	var b bytes.Buffer
	err := xml.EscapeText(&b, []byte(text))
	return b.String(), err
}
