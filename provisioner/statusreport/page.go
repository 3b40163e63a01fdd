package statusreport

import (
	"crypto/sha256"
	_ "embed" // for the page and its style
	"encoding/base64"
	"fmt"
	"html/template"
	"io"
	"strings"
	"time"
)

// Page renders reports as HTML. It needs no scripts and loads nothing from elsewhere.
type Page struct {
	template *template.Template
	// ContentSecurityPolicy allows the page its own style, and to send the form to its
	// own server, but nothing else.
	ContentSecurityPolicy string
}

var (
	//go:embed page.html
	pageHTML string
	//go:embed page.css
	pageStyle string
)

// NewPage prepares the page.
func NewPage() *Page {
	digest := sha256.Sum256([]byte(pageStyle))
	return &Page{
		template: template.Must(template.New("page").Funcs(template.FuncMap{
			"stamp":    formatTime,
			"since":    func(r *Report, t time.Time) age { return age{t, r.Age(t)} },
			"aged":     func(r *Report, b Backend) agedBackend { return agedBackend{b, age{b.Since, r.Age(b.Since)}} },
			"expiring": (*Report).expiring,
			"seconds":  func(s float64) string { return time.Duration(s * float64(time.Second)).Round(time.Second).String() },
			"list":     func(names []string) string { return strings.Join(names, ", ") },
			"quota":    quotaText,
			"meter":    newMeter,
			"urgency":  urgencyOf,
		}).Parse(pageHTML)),
		ContentSecurityPolicy: fmt.Sprintf("default-src 'none'; style-src 'sha256-%s'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
			base64.StdEncoding.EncodeToString(digest[:])),
	}
}

// age is a time, and how long ago it was.
type age struct {
	Time time.Time
	Age  string
}

type agedBackend struct {
	Backend
	Age age
}

// View is a report as a person looks at it.
type View struct {
	*Report
	// Answer is nil if nothing was asked.
	Answer *Answer
	// Find is the tenant or namespace that the person looked for.
	Find string
	// Refresh makes the browser load the page again and again.
	Refresh bool
}

// Write renders a report.
func (p *Page) Write(w io.Writer, view View) error {
	data := struct {
		View
		Style    template.CSS
		Asked    bool
		Answer   Answer
		RefreshS int
	}{View: view, Style: template.CSS(pageStyle), RefreshS: refreshSeconds}
	if view.Answer != nil {
		data.Asked, data.Answer = true, *view.Answer
	}
	return p.template.Execute(w, data)
}

// refreshSeconds is the pause before a browser loads the page again.
const refreshSeconds = 10

// meter is a bar. Browsers color it by where the value is: above Low it is a warning,
// above High an alarm.
type meter struct {
	Value, Max int64
	Low, High  float64
	Text       string
}

// newMeter returns nil for a quota that has no limit, or that allows nothing.
func newMeter(q Quota) *meter {
	if !q.isLimited() {
		return nil
	}
	limit := *q.Limit
	return &meter{Value: min(*q.Used, limit), Max: limit, Low: float64(limit-limit/10) - .5, High: float64(limit) - .5, Text: quotaText(q)}
}

// urgencyOf returns the class of a pending object: what only waits is quiet, what the
// policy or something else holds up is a warning, and what fails is an alarm.
func urgencyOf(p Pending) string {
	switch p.State {
	case "failing":
		return "bad"
	case "denied", "blocked":
		return "warn"
	}
	return "quiet"
}

// quotaText formats used and limit; a dash stands for what is not known or not limited.
func quotaText(q Quota) string {
	if q.Limit == nil {
		return number(q.Used) + ", no limit"
	}
	return number(q.Used) + " of " + number(q.Limit)
}

func number(n *int64) string {
	if n == nil {
		return "–"
	}
	return fmt.Sprint(*n)
}

func formatTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}
