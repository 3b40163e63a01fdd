package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
)

func TestPictureShowsTheStepsFromClaimsToTheKilledLeader(t *testing.T) {
	said := "A guided tour.\n\n3. Replicas\n   not shown\n\n4. Claims\n   CLAIM  <5Gi> & \"more\"\n\n5. A denial\n   Warning NoMatchingTenant: guest\n6. The end of a leader\n   $ kill -9 1\n   +15.6 s  replica 3 leads\n7. Deletion\n   not shown either\n"
	var svg bytes.Buffer
	if err := drawTour(&svg, said); err != nil {
		t.Fatal(err)
	}
	for decoder := xml.NewDecoder(bytes.NewReader(svg.Bytes())); ; {
		if _, err := decoder.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("%v in\n%s", err, svg.String())
		}
	}
	for _, wanted := range []string{"4. Claims", "&lt;5Gi&gt; &amp;", "Warning NoMatchingTenant", "+15.6 s"} {
		if !strings.Contains(svg.String(), wanted) {
			t.Errorf("lacks %q:\n%s", wanted, svg.String())
		}
	}
	if strings.Contains(svg.String(), "not shown") {
		t.Errorf("shows other steps:\n%s", svg.String())
	}
	if err := drawTour(io.Discard, "nothing\n"); err == nil {
		t.Error("a picture of nothing")
	}
}
