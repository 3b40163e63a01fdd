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
			"time":    formatTime,
			"seconds": func(s float64) string { return time.Duration(s * float64(time.Second)).Round(time.Second).String() },
			"list":    func(names []string) string { return strings.Join(names, ", ") },
			"quota":   quotaText,
			"meter":   newMeter,
		}).Parse(pageHTML)),
		ContentSecurityPolicy: fmt.Sprintf("default-src 'none'; style-src 'sha256-%s'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
			base64.StdEncoding.EncodeToString(digest[:])),
	}
}

// Write renders a report; answer is nil if nothing was asked.
func (p *Page) Write(w io.Writer, report Report, answer *Answer) error {
	data := struct {
		*Report
		Style  template.CSS
		Asked  bool
		Answer Answer
	}{Report: &report, Style: template.CSS(pageStyle)}
	if answer != nil {
		data.Asked, data.Answer = true, *answer
	}
	return p.template.Execute(w, data)
}

// meter is a bar. If the limit is 0, the bar is full.
type meter struct {
	Value, High, Max int64
	Text             string
}

func newMeter(q Quota) *meter {
	if q.Limit == nil || q.Used == nil {
		return nil
	}
	m := &meter{Value: *q.Used, High: *q.Limit - *q.Limit/10, Max: *q.Limit, Text: quotaText(q)}
	if *q.Limit == 0 {
		m.Value, m.High, m.Max = 1, 0, 1
	}
	return m
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
