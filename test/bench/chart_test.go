package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestTicksAreRoundAndReachTheLargest(t *testing.T) {
	for _, c := range []struct {
		largest float64
		want    []float64
	}{
		{0, []float64{0, 0.2, 0.4, 0.6, 0.8, 1}},
		{1.31, []float64{0, 0.5, 1, 1.5}},
		{10, []float64{0, 2, 4, 6, 8, 10}},
		{500, []float64{0, 100, 200, 300, 400, 500}},
		{2000, []float64{0, 500, 1000, 1500, 2000}},
	} {
		if got := ticks(c.largest); !slices.Equal(got, c.want) {
			t.Errorf("%g: %v, want %v", c.largest, got, c.want)
		}
	}
}

func TestLinesHaveABoundedNumberOfPointsAndEndWithTheLastClaim(t *testing.T) {
	for _, n := range []int{1, 2, maxPoints, maxPoints + 1, 5000} {
		times := make([]time.Duration, n)
		for i := range times {
			times[i] = time.Duration(i+1) * time.Second
		}
		points := thinned(times)
		if len(points) > maxPoints+3 {
			t.Errorf("%d claims have %d points", n, len(points))
		}
		if last := points[len(points)-1]; last != (point{float64(n), float64(n)}) {
			t.Errorf("%d claims end at %v", n, last)
		}
	}
	if points := thinned(nil); points != nil {
		t.Errorf("no claims have %v", points)
	}
}

func TestTimesCountFromTheFirstClaimOfTheirRound(t *testing.T) {
	at := func(second int) time.Time { return time.Unix(int64(second), 0) }
	lives := []life{{filed: at(11), bound: at(13)}, {filed: at(10), bound: at(14)}, {filed: at(100), bound: at(101)}, {filed: at(100), bound: at(105)}}
	got := sinceFirst(lives, 2, filed, bound)
	if want := []time.Duration{1 * time.Second, 3 * time.Second, 4 * time.Second, 5 * time.Second}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := took(lives, filed, bound); !slices.Equal(got, []time.Duration{1 * time.Second, 2 * time.Second, 4 * time.Second, 5 * time.Second}) {
		t.Errorf("%v", got)
	}
	if got := sinceFirst(nil, 0, filed, bound); got != nil {
		t.Errorf("no claims: %v", got)
	}
}

// TestChartIsSVG: well-formed, with every text and one line for each, whatever the
// texts are and however few claims there were.
func TestChartIsSVG(t *testing.T) {
	for _, times := range [][]time.Duration{nil, {time.Second}, {time.Second, 2 * time.Second, 2 * time.Second}} {
		var b bytes.Buffer
		c := chart{title: `1 < 2 & "x"`, panels: []panel{{title: "one", lines: []line{{"a<b", dark, false, times}, {"c", darkGray, true, times}}}, {title: "two", lines: []line{{"d", dark, false, times}}},
			podsPanel([]podWait{{Class: "csi-ext4", Bound: 1, Attached: 2, Runs: 15}, {Class: "csi-ext4", Moved: true, Runs: 19}})}}
		if err := c.write(&b); err != nil {
			t.Fatal(err)
		}
		root, lines, text := "", 0, ""
		decoder := xml.NewDecoder(&b)
		for {
			token, err := decoder.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			switch token := token.(type) {
			case xml.StartElement:
				if root == "" {
					root = token.Name.Space + " " + token.Name.Local
				}
				if token.Name.Local == "polyline" {
					lines++
				}
			case xml.CharData:
				text += string(token)
			}
		}
		if root != "http://www.w3.org/2000/svg svg" {
			t.Errorf("the root is %s", root)
		}
		if lines != 2*3 {
			t.Errorf("%d lines, want three and their samples", lines)
		}
		for _, want := range []string{c.title, "one", "two", "a<b", "c", "d", "csi-ext4", "csi-ext4, moved"} {
			if !strings.Contains(text, want) {
				t.Errorf("%q is missing in %q", want, text)
			}
		}
	}
}
