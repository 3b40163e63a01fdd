package statuspage

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/provisioner/statusreport"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func pointer(n int64) *int64 { return &n }

func exampleAnswer() *statusreport.Answer {
	return &statusreport.Answer{
		Question: statusreport.Question{Namespace: "team-a", StorageClass: `fast"><script>alert(1)</script>`, Size: "10Gi"},
		Tenant:   "team-a", Reason: "NoMatchingClass", Message: "no rule of tenant team-a has the StorageClass",
		Considered: []statusreport.Consideration{
			{Path: "tenants[0]", Name: "team-a", Detail: "its name is listed", Matched: true},
			{Path: "tenants[0].classes[0]", Name: "[fast, fast-*]", Detail: "does not include it"},
		},
		Notes: []string{"The cluster has no such StorageClass."},
	}
}

// TestPagesLookTheSame compares the pages of the reports that statusreport's golden files
// have with golden files.
func TestPagesLookTheSame(t *testing.T) {
	for name, answer := range map[string]*statusreport.Answer{"leader": exampleAnswer(), "follower": nil} {
		text, err := os.ReadFile(filepath.Join("..", "..", "statusreport", "testdata", name+".json"))
		if err != nil {
			t.Fatal(err)
		}
		var report statusreport.Report
		if err := json.Unmarshal(text, &report); err != nil {
			t.Fatal(err)
		}
		var page bytes.Buffer
		if err := (Page{Report: &report, Answer: answer}).Write(&page); err != nil {
			t.Fatal(err)
		}
		// A line for each element makes the golden file readable.
		got := strings.ReplaceAll(page.String(), "><", ">\n<") + "\n"
		path := filepath.Join("testdata", name+".html")
		if *update {
			if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s is no longer the same; if that is on purpose, run go test -update ./provisioner/app/statuspage\n%s", path, got)
		}
		if strings.Contains(got, "<script") || strings.Contains(got, "<b>") {
			t.Error("the page passes on markup")
		}
	}
}

// TestWhatAPersonLookedForStaysInLinksAndForms: it may be any text.
func TestWhatAPersonLookedForStaysInLinksAndForms(t *testing.T) {
	var page bytes.Buffer
	if err := (Page{Report: &statusreport.Report{}, Find: `a&refresh"><b>`, Refresh: true}).Write(&page); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`href="?find=a%26refresh%22%3E%3Cb%3E"`, `value="a&amp;refresh&#34;&gt;&lt;b&gt;"`} {
		if !strings.Contains(page.String(), want) {
			t.Errorf("%s is missing: %s", want, page.String())
		}
	}
}

// TestMetersAreColoredByUrgency: a browser shows a value above high as an alarm, and above
// low as a warning. What is suspended by a limit of 0 is neither.
func TestMetersAreColoredByUrgency(t *testing.T) {
	for _, c := range []struct {
		quota statusreport.Quota
		want  string
	}{
		{statusreport.Quota{Used: pointer(5), Limit: pointer(10)}, "room"},
		{statusreport.Quota{Used: pointer(9), Limit: pointer(10)}, "warning"},
		{statusreport.Quota{Used: pointer(10), Limit: pointer(10)}, "alarm"},
		{statusreport.Quota{Used: pointer(12), Limit: pointer(10)}, "alarm"},
		{statusreport.Quota{Used: pointer(1), Limit: pointer(1)}, "alarm"},
		{statusreport.Quota{Used: pointer(0), Limit: pointer(1)}, "room"},
		{statusreport.Quota{Used: pointer(0), Limit: pointer(0)}, "none"},
		{statusreport.Quota{Used: pointer(5)}, "none"},
		{statusreport.Quota{Limit: pointer(5)}, "none"},
	} {
		got := "none"
		if m := newMeter(c.quota); m != nil {
			switch {
			case m.value > m.high:
				got = "alarm"
			case m.value > m.low:
				got = "warning"
			default:
				got = "room"
			}
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", c.quota, got, c.want)
		}
	}
}

// TestAPageAboutATenantThatDoesNotExistFindsNothingWell: nothing is known to be well.
func TestAPageAboutATenantThatDoesNotExistFindsNothingWell(t *testing.T) {
	r := statusreport.Report{Time: time.Now(), Leader: statusreport.Leader{Identity: "x"}, Selection: &statusreport.Selection{Namespace: "nobody", Message: "namespace nobody belongs to no tenant"}, Claims: &statusreport.Claims{}, Deletions: &statusreport.Deletions{}}
	var page bytes.Buffer
	if err := (Page{Report: &r, Find: "nobody"}).Write(&page); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(page.String(), "All is well") || !strings.Contains(page.String(), "belongs to no tenant") {
		t.Error(page.String())
	}
}
