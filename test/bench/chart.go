package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/template"
	"time"
)

// chart is a row of panels, drawn as SVG. Plotting libraries bring fonts and rasterizers,
// and their layout changes with each version.
type chart struct {
	title  string
	panels []panel
}

// panel is a plot of how many claims were done by when, or of bars.
type panel struct {
	title string
	lines []line
	bars  []bar
}

// bar is a wait with its first part, both in seconds.
type bar struct {
	title        string
	first, whole float64
}

// line is one way's claims, each with its time; it rises by one at every time.
type line struct {
	title, color string
	dashed       bool
	times        []time.Duration
}

// The colors of the lines.
const (
	dark, light       = "#0b5c8a", "#58b0dc"
	darkGray, midGray = "#555555", "#aaaaaa"
)

// throughputChart shows when the claims of the two ways took their steps.
func throughputChart(limit, program *way) chart {
	since := func(w *way, from, to step) []time.Duration { return sinceFirst(w.lives, len(w.rounds), from, to) }
	ours, base := program.lives, limit.lives
	return chart{
		title: fmt.Sprintf("%d claims, standalone-cinder next to a bare loop that sends the same requests", len(ours)),
		panels: []panel{
			{title: "claims over time, since the first was created", lines: []line{
				{"recorded", light, false, since(program, filed, recorded)}, {"Bound", dark, false, since(program, filed, bound)},
				{"recorded (loop)", midGray, true, since(limit, filed, recorded)}, {"Bound (loop)", darkGray, true, since(limit, filed, bound)},
			}},
			{title: "claims gone over time, since their deletion", lines: []line{
				{"gone", dark, false, since(program, removed, gone)}, {"gone (loop)", darkGray, true, since(limit, removed, gone)},
			}},
			{title: "claims by the time that each took", lines: []line{
				{"until Bound", dark, false, took(ours, filed, bound)}, {"until gone", light, false, took(ours, removed, gone)},
				{"until Bound (loop)", darkGray, true, took(base, filed, bound)}, {"until gone (loop)", midGray, true, took(base, removed, gone)},
			}},
		},
	}
}

// sinceFirst lists when claims took a step, each counted from the first of its
// round that took another. The rounds have the same number of claims.
func sinceFirst(lives []life, rounds int, from, to step) []time.Duration {
	var times []time.Duration
	for round := range slices.Chunk(lives, max(1, len(lives)/max(1, rounds))) {
		first := slices.MinFunc(round, func(a, b life) int { return a[from].Compare(b[from]) })[from]
		for _, l := range round {
			times = append(times, l[to].Sub(first))
		}
	}
	slices.Sort(times)
	return times
}

// The measures of the drawing, in pixels.
const (
	plotWidth, plotHeight = 270, 190
	panelWidth            = 340
	marginLeft, marginTop = 48, 62
	legendLine            = 17
	// maxPoints bounds the points of a line, and with them the size of the file.
	maxPoints = 150
)

// drawing is the chart in pixels, for the template.
type drawing struct {
	Title         string
	Width, Height int
	Panels        []drawnPanel
}

type drawnPanel struct {
	Title               string
	X, Y, Right, Bottom int
	XTicks, YTicks      []tick
	Lines               []drawnLine
	Bars                []drawnBar
	XLabelY, TitleY     int
}

type drawnBar struct {
	Title         string
	Y, First, End float64
}

type tick struct {
	At    float64
	Label string
}

type drawnLine struct {
	Title, Color, Dash, Points string
	LegendX, LegendY           int
}

var svg = template.Must(template.New("chart").Funcs(template.FuncMap{"text": escaped}).Parse(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {{.Width}} {{.Height}}" width="{{.Width}}" height="{{.Height}}" role="img" font-family="sans-serif" font-size="11">
<title>{{text .Title}}</title>
<rect width="{{.Width}}" height="{{.Height}}" fill="white"/>
<text x="12" y="20" font-size="13">{{text .Title}}</text>
{{range $p := .Panels}}<g>
<text x="{{.X}}" y="{{.TitleY}}">{{text .Title}}</text>
{{range .XTicks}}<line x1="{{.At}}" x2="{{.At}}" y1="{{$p.Y}}" y2="{{$p.Bottom}}" stroke="#e6e6e6"/><text x="{{.At}}" y="{{$p.XLabelY}}" text-anchor="middle">{{text .Label}}</text>
{{end}}{{range .YTicks}}<line x1="{{$p.X}}" x2="{{$p.Right}}" y1="{{.At}}" y2="{{.At}}" stroke="#e6e6e6"/><text x="{{$p.X}}" dx="-6" y="{{.At}}" dy="4" text-anchor="end">{{text .Label}}</text>
{{end}}<path d="M{{.X}} {{.Y}}V{{.Bottom}}H{{.Right}}" fill="none" stroke="black"/>
{{range .Lines}}<polyline fill="none" stroke="{{.Color}}" stroke-width="2"{{with .Dash}} stroke-dasharray="{{.}}"{{end}} points="{{.Points}}"/>
<text x="{{.LegendX}}" dx="28" y="{{.LegendY}}" dy="4">{{text .Title}}</text><polyline fill="none" stroke="{{.Color}}" stroke-width="2"{{with .Dash}} stroke-dasharray="{{.}}"{{end}} points="{{.LegendX}},{{.LegendY}} {{.LegendEnd}},{{.LegendY}}"/>
{{end}}{{range .Bars}}<path d="M{{$p.X}} {{.Y}}H{{.End}}" stroke="#58b0dc" stroke-width="6"/><path d="M{{$p.X}} {{.Y}}H{{.First}}" stroke="#0b5c8a" stroke-width="6"/><text x="{{.End}}" dx="4" y="{{.Y}}" dy="4" font-size="10">{{text .Title}}</text>
{{end}}</g>
{{end}}</svg>
`))

// LegendEnd returns where the sample of a line ends.
func (l drawnLine) LegendEnd() int { return l.LegendX + 22 }

func escaped(text string) (string, error) {
	var b bytes.Buffer
	err := xml.EscapeText(&b, []byte(text))
	return b.String(), err
}

// write writes the chart as SVG.
func (c chart) write(to io.Writer) error {
	d := drawing{Title: c.title, Width: len(c.panels)*panelWidth + 10}
	rows := 0
	for i, p := range c.panels {
		d.Panels = append(d.Panels, p.draw(i*panelWidth+marginLeft))
		rows = max(rows, (len(p.lines)+1)/2)
	}
	d.Height = marginTop + plotHeight + 34 + rows*legendLine
	return svg.Execute(to, d)
}

func (p panel) draw(x int) drawnPanel {
	longest, most := time.Duration(0), 0
	for _, l := range p.lines {
		if len(l.times) > 0 {
			longest = max(longest, l.times[len(l.times)-1])
		}
		most = max(most, len(l.times))
	}
	for _, b := range p.bars {
		// The bars leave room for their titles.
		longest = max(longest, time.Duration(1.4*b.whole*float64(time.Second)))
	}
	xs, ys := ticks(longest.Seconds()), ticks(float64(most))
	d := drawnPanel{Title: p.title, X: x, Y: marginTop, Right: x + plotWidth, Bottom: marginTop + plotHeight, XLabelY: marginTop + plotHeight + 15, TitleY: marginTop - 12}
	atX := func(seconds float64) float64 { return rounded(float64(x) + plotWidth*seconds/xs[len(xs)-1]) }
	atY := func(claims float64) float64 { return rounded(float64(d.Bottom) - plotHeight*claims/ys[len(ys)-1]) }
	for _, at := range xs {
		d.XTicks = append(d.XTicks, tick{atX(at), fmt.Sprintf("%g s", at)})
	}
	if len(p.bars) > 0 {
		ys = nil
	}
	for i, b := range p.bars {
		at := float64(d.Y) + plotHeight*(float64(i)+0.5)/float64(len(p.bars))
		d.Bars = append(d.Bars, drawnBar{b.title, rounded(at), atX(b.first), atX(b.whole)})
	}
	for _, at := range ys {
		d.YTicks = append(d.YTicks, tick{atY(at), fmt.Sprintf("%g", at)})
	}
	for i, l := range p.lines {
		drawn := drawnLine{Title: l.title, Color: l.color, LegendX: x + i%2*(plotWidth/2), LegendY: d.Bottom + 32 + i/2*legendLine}
		if l.dashed {
			drawn.Dash = "5 3"
		}
		var points []string
		for _, at := range thinned(l.times) {
			points = append(points, fmt.Sprintf("%g,%g", atX(at.seconds), atY(at.claims)))
		}
		drawn.Points = strings.Join(points, " ")
		d.Lines = append(d.Lines, drawn)
	}
	return d
}

// point is how many claims were done by a time.
type point struct{ seconds, claims float64 }

// thinned returns a line that begins before the first claim, with a bounded
// number of points.
func thinned(times []time.Duration) []point {
	if len(times) == 0 {
		return nil
	}
	points := []point{{0, 0}, {times[0].Seconds(), 0}}
	stride := (len(times) + maxPoints - 1) / maxPoints
	for i := stride - 1; i < len(times); i += stride {
		points = append(points, point{times[i].Seconds(), float64(i + 1)})
	}
	if last := len(times); last%stride != 0 {
		points = append(points, point{times[last-1].Seconds(), float64(last)})
	}
	return points
}

// ticks returns round numbers from 0 to at least the largest value, six of them at
// most.
func ticks(largest float64) []float64 {
	if largest <= 0 {
		largest = 1
	}
	unit := math.Pow(10, math.Floor(math.Log10(largest))-1)
	for _, factor := range []float64{1, 2, 5, 10, 20, 50, 100} {
		if n := math.Ceil(largest / (unit * factor)); n <= 5 {
			all := make([]float64, int(n)+1)
			for i := range all {
				all[i] = roundTo(float64(i)*unit*factor, unit)
			}
			return all
		}
	}
	return []float64{0, largest}
}

// roundTo takes away what the arithmetic of binary fractions adds.
func roundTo(value, unit float64) float64 {
	if unit >= 1 {
		return math.Round(value)
	}
	per := math.Round(1 / unit)
	return math.Round(value*per) / per
}

// rounded returns a position to a tenth of a pixel.
func rounded(at float64) float64 { return math.Round(at*10) / 10 }
