package monitoring

import (
	"bytes"
	"cmp"
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/template"
)

// line is a series as the dashboard shows it: a value for each step, NaN where there is
// none.
type line struct {
	legend string
	values []float64
}

// The measures of the drawing, in pixels. A panel has the place that the dashboard gives it.
const (
	columnWidth, rowHeight = 50, 24
	pictureWidth           = 24 * columnWidth
	plotLeft, plotTop      = 56, 30
	legendHeight           = 34
)

// colors tell the lines of a panel apart; with more lines they repeat.
var colors = []string{"#3f8f3f", "#c78a00", "#2c78b5", "#c8502f", "#7a4fa3", "#b03a75", "#4b8f8c", "#7d6b3a"}

// legends is the number of lines of a panel that the picture names.
const legends = 4

// drawing is the dashboard in pixels, for the template.
type drawing struct {
	Width, Height int
	Texts         []drawnText
	Boxes         []box
	Lines         []drawnLine
}

type box struct{ X, Y, Width, Height int }

type drawnText struct {
	X, Y, Size          int
	Anchor, Color, Text string
	Bold                bool
}

type drawnLine struct {
	Path, Color string
	Width       float64
}

// Plotting libraries bring fonts and rasterizers, and their layout changes with each
// version.
var svg = template.Must(template.New("dashboard").Funcs(template.FuncMap{"text": escaped}).Parse(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {{.Width}} {{.Height}}" width="{{.Width}}" height="{{.Height}}" role="img" font-family="sans-serif">
<title>The dashboard with a recording of five minutes</title>
<rect width="{{.Width}}" height="{{.Height}}" fill="#f4f5f5"/>
{{range .Boxes}}<rect x="{{.X}}" y="{{.Y}}" width="{{.Width}}" height="{{.Height}}" rx="2" fill="white" stroke="#dcdcdc"/>
{{end}}{{range .Lines}}<path d="{{.Path}}" fill="none" stroke="{{.Color}}" stroke-width="{{.Width}}"/>
{{end}}{{range .Texts}}<text x="{{.X}}" y="{{.Y}}" font-size="{{.Size}}" fill="{{.Color}}"{{with .Anchor}} text-anchor="{{.}}"{{end}}{{if .Bold}} font-weight="bold"{{end}}>{{text .Text}}</text>
{{end}}</svg>
`))

func escaped(text string) (string, error) {
	var b bytes.Buffer
	err := xml.EscapeText(&b, []byte(text))
	return b.String(), err
}

// draw writes a dashboard whose panels have these lines, by panel ID, over minutes.
func draw(to io.Writer, of dashboard, lines map[int][]line, minutes int) error {
	d := drawing{Width: pictureWidth}
	for _, p := range of.Panels {
		d.Height = max(d.Height, (p.GridPos.Y+p.GridPos.H)*rowHeight+8)
		place := box{p.GridPos.X*columnWidth + 4, p.GridPos.Y*rowHeight + 4, p.GridPos.W*columnWidth - 8, p.GridPos.H*rowHeight - 8}
		if p.Type == "row" {
			d.text(drawnText{X: place.X + 4, Y: place.Y + 15, Size: 15, Bold: true, Text: p.Title})
			continue
		}
		d.Boxes = append(d.Boxes, place)
		d.text(drawnText{X: place.X + 10, Y: place.Y + 18, Size: 12, Bold: true, Text: p.Title})
		of, unit := lines[p.ID], p.FieldConfig.Defaults.Unit
		switch p.Type {
		case stat:
			d.stat(place, of, unit)
		case table:
			d.table(place, of, unit)
		default:
			d.graph(place, of, unit, minutes)
		}
	}
	return svg.Execute(to, d)
}

func (d *drawing) text(t drawnText) {
	if t.Color == "" {
		t.Color = "#24292e"
	}
	d.Texts = append(d.Texts, t)
}

// stat shows the last value, large.
func (d *drawing) stat(place box, lines []line, unit string) {
	value := "No data"
	if len(lines) > 0 {
		value = shown(last(lines[0]), unit)
	}
	d.text(drawnText{X: place.X + place.Width/2, Y: place.Y + place.Height/2 + 22, Size: 40, Anchor: "middle", Color: colors[0], Text: value})
}

// table shows the last value of each line.
func (d *drawing) table(place box, lines []line, unit string) {
	for i, l := range lines {
		y := place.Y + 44 + i*20
		if y > place.Y+place.Height-8 {
			return
		}
		d.text(drawnText{X: place.X + 12, Y: y, Size: 12, Text: l.legend})
		d.text(drawnText{X: place.X + place.Width - 12, Y: y, Size: 12, Anchor: "end", Text: shown(last(l), unit)})
	}
}

func (d *drawing) graph(place box, lines []line, unit string, minutes int) {
	left, right := place.X+plotLeft, place.X+place.Width-14
	top, bottom := place.Y+plotTop, place.Y+place.Height-legendHeight-16
	largest := 0.0
	for _, l := range lines {
		largest = max(largest, highest(l))
	}
	steps := ticks(largest, unit)
	y := func(value float64) float64 { return float64(bottom) - float64(bottom-top)*value/steps[len(steps)-1] }
	for _, at := range steps {
		d.Lines = append(d.Lines, drawnLine{fmt.Sprintf("M%d %.1fH%d", left, y(at), right), "#e8e8e8", 1})
		d.text(drawnText{X: left - 6, Y: int(y(at)) + 4, Size: 10, Anchor: "end", Color: "#5a6066", Text: shown(at, unit)})
	}
	for minute := range minutes + 1 {
		at := left + (right-left)*minute/minutes
		d.text(drawnText{X: at, Y: bottom + 13, Size: 10, Anchor: "middle", Color: "#5a6066", Text: fmt.Sprintf("%d min", minute)})
	}
	// The highest are named.
	slices.SortFunc(lines, func(a, b line) int {
		return cmp.Or(cmp.Compare(highest(b), highest(a)), strings.Compare(a.legend, b.legend))
	})
	for i, l := range lines {
		color := colors[i%len(colors)]
		d.Lines = append(d.Lines, drawnLine{path(l.values, float64(left), float64(right), y), color, 1.5})
		if i < legends {
			x, line := place.X+12+i%2*(place.Width-16)/2, bottom+28+i/2*14
			d.Lines = append(d.Lines, drawnLine{fmt.Sprintf("M%d %dh12", x, line-3), color, 2.5})
			d.text(drawnText{X: x + 16, Y: line, Size: 10, Text: cut(l.legend, 31)})
		}
	}
	if more := len(lines) - legends; more > 0 {
		d.text(drawnText{X: right, Y: place.Y + 18, Size: 10, Anchor: "end", Color: "#5a6066", Text: fmt.Sprintf("and %d more", more)})
	}
}

// path joins the values, with gaps where there are none.
func path(values []float64, left, right float64, y func(float64) float64) string {
	var b strings.Builder
	command := "M"
	for i, value := range values {
		if math.IsNaN(value) || math.IsInf(value, 0) {
			command = "M"
			continue
		}
		fmt.Fprintf(&b, "%s%s %s", command, decimal(left+(right-left)*float64(i)/float64(len(values)-1)), decimal(y(value)))
		command = "L"
	}
	return b.String()
}

func decimal(pixels float64) string {
	return strconv.FormatFloat(math.Round(pixels*10)/10, 'f', -1, 64)
}

func cut(text string, to int) string {
	if r := []rune(text); len(r) > to {
		return string(r[:to-1]) + "…"
	}
	return text
}

// last returns the last value that a line has.
func last(l line) float64 {
	for _, value := range slices.Backward(l.values) {
		if !math.IsNaN(value) {
			return value
		}
	}
	return math.NaN()
}

func highest(l line) float64 {
	largest := 0.0
	for _, value := range l.values {
		if !math.IsNaN(value) && !math.IsInf(value, 0) {
			largest = max(largest, value)
		}
	}
	return largest
}

// ticks returns round numbers from 0 to at least the largest value, six of them at most.
func ticks(largest float64, unit string) []float64 {
	if largest <= 0 {
		largest = 1
	}
	switch unit {
	case "bool":
		return []float64{0, 1}
	case "bytes":
		const mib = 1 << 20
		steps := ticks(largest/mib, "")
		for i := range steps {
			steps[i] *= mib
		}
		return steps
	}
	decade := math.Pow(10, math.Floor(math.Log10(largest)))
	for _, step := range []float64{decade / 5, decade / 2, decade, decade * 2} {
		if n := math.Ceil(largest/step - 1e-9); n <= 5 {
			steps := []float64{}
			for i := 0.0; i <= n; i++ {
				steps = append(steps, i*step)
			}
			return steps
		}
	}
	return []float64{0, largest}
}

// shown writes a value with Grafana's units.
func shown(value float64, unit string) string {
	number := func(v float64) string { return strconv.FormatFloat(v, 'g', 3, 64) }
	if math.IsNaN(value) {
		return "No data"
	}
	switch unit {
	case "s":
		switch {
		case value >= 2*86400:
			return fmt.Sprintf("%.0f days", value/86400)
		case value >= 7200:
			return number(value/3600) + " h"
		case value >= 120:
			return number(value/60) + " min"
		case value > 0 && value < 1:
			return number(value*1000) + " ms"
		}
		return number(value) + " s"
	case "percentunit":
		return fmt.Sprintf("%.0f%%", value*100)
	case "ops", "reqps":
		return number(value) + "/s"
	case "bytes":
		return fmt.Sprintf("%.0f MiB", value/(1<<20))
	case "bool":
		return map[bool]string{true: "yes", false: "no"}[value != 0]
	}
	return number(value)
}
