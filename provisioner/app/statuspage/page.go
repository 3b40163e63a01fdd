package statuspage

import (
	"crypto/sha256"
	_ "embed" // for the page's style
	"encoding/base64"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"

	"github.com/standalone-cinder/standalone-cinder/provisioner/statusreport"
)

//go:embed page.css
var pageStyle string

// ContentSecurityPolicy allows the page its own style, and to send its forms to its own
// server, but nothing else.
func ContentSecurityPolicy() string {
	digest := sha256.Sum256([]byte(pageStyle))
	return fmt.Sprintf("default-src 'none'; style-src 'sha256-%s'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
		base64.StdEncoding.EncodeToString(digest[:]))
}

// Page is a report as a person looks at it. It needs no scripts and loads nothing from
// elsewhere.
type Page struct {
	*statusreport.Report
	// Answer is nil if nothing was asked.
	Answer *statusreport.Answer
	// Find is the tenant or namespace that the person looked for.
	Find string
	// Refresh makes the browser load the page again and again.
	Refresh bool
}

// refreshSeconds is the pause before a browser loads the page again.
const refreshSeconds = 10

// Write renders the page as HTML. Html/template would keep the linker from dropping any
// method that nothing calls, and so make the program half as large again.
func (p Page) Write(w io.Writer) error {
	title := "standalone-cinder: " + p.Replica.Identity
	if len(p.Troubles()) > 0 {
		title = "✗ " + title
	}
	return h.Doctype(h.HTML(h.Lang("en"),
		h.Head(
			h.Meta(h.Charset("utf-8")),
			h.Meta(h.Name("viewport"), h.Content("width=device-width, initial-scale=1")),
			g.If(p.Refresh && p.Answer == nil, h.Meta(g.Attr("http-equiv", "refresh"), h.Content(strconv.Itoa(refreshSeconds)))),
			h.TitleEl(g.Text(title)),
			h.StyleEl(g.Raw(pageStyle)),
		),
		h.Body(
			p.header(),
			h.Main(
				p.verdict(), p.notices(), p.refusals(),
				g.Map(p.Sections(), p.section),
				p.audit(), p.backends(), p.tenants(), p.keptVolumes(), p.question(), p.inFlight(), p.replica(),
			),
		),
	)).Render(w)
}

func (p Page) header() g.Node {
	find := "?find=" + url.QueryEscape(p.Find)
	refresh := h.A(h.Href(find+"&refresh"), g.Text("keep up to date"))
	if p.Refresh {
		refresh = g.Group{g.Textf("loaded again every %d seconds (", refreshSeconds), h.A(h.Href(find), g.Text("stop")), g.Text(")")}
	}
	return h.Header(
		h.H1(g.Text("standalone-cinder "), h.Small(h.Class("quiet"), g.Text(p.Program.Version))),
		h.P(h.Class("quiet"), g.Text("Report of "), moment(p.Time), g.Text(" · also as "), h.A(h.Href("status.json"), g.Text("JSON")),
			g.Text(" and "), h.A(h.Href("status.txt"), g.Text("text")), g.Text(" · "), refresh),
		h.Form(h.Method("get"), h.Action(""),
			h.Label(g.Text("Tenant or namespace "), h.Input(h.Name("find"), h.MaxLength("253"), h.Value(p.Find))),
			h.Button(g.Text("Show")),
			g.If(p.Find != "", g.Group{g.Text(" "), h.A(h.Href("./"), g.Text("show everything"))}),
		),
	)
}

// verdict says what is wrong, or what waits, or that all is well.
func (p Page) verdict() g.Node {
	troubles, delays := p.Troubles(), p.Delays()
	list := func(class string) g.Node {
		return h.Section(h.Class("verdict "+class), h.ID("verdict"), items(slices.Concat(troubles, delays)))
	}
	switch {
	case len(troubles) > 0:
		return list("trouble")
	case p.LeaderOnly != "", p.Selection != nil && p.Selection.Message != "":
		return nil
	case len(delays) > 0:
		return list("notice")
	}
	return h.P(h.Class("verdict good"), h.ID("verdict"), g.Text("All is well: every backend in use answers, and nothing waits."))
}

// notices say what the report leaves out.
func (p Page) notices() g.Node {
	var all g.Group
	if p.LeaderOnly != "" {
		all = append(all, h.P(h.Class("notice"), h.ID("leader-only"), g.Text(p.LeaderOnly)))
	}
	if s := p.Selection; s != nil {
		text := ""
		if s.Namespace != "" {
			text = "Only namespace " + s.Namespace
			if s.Tenant != "" {
				text += " of tenant " + s.Tenant
			}
		} else if s.Tenant != "" {
			text = "Only tenant " + s.Tenant
		}
		if s.Message != "" {
			text += ": " + s.Message
		}
		all = append(all, h.P(h.Class("notice"), h.ID("selection"), g.Text(text)))
	}
	return all
}

// refusals list the files that are not in force.
func (p Page) refusals() g.Node {
	var all g.Group
	if len(p.Policy.Refused) > 0 {
		all = append(all, h.Section(h.Class("trouble"), h.H2(g.Text("The policy file is refused")), items(p.Policy.Refused)))
	}
	if len(p.Credentials) > 0 {
		all = append(all, h.Section(h.Class("trouble"), h.H2(g.Text("Credentials cannot be read")), h.Dl(g.Map(p.Credentials, func(c statusreport.CredentialTrouble) g.Node {
			return described(c.Backend, g.Text(c.Message))
		}))))
	}
	return all
}

func (p Page) section(s statusreport.Section) g.Node {
	var titles g.Group
	for _, title := range s.Columns {
		titles = append(titles, column(title))
	}
	titles = append(titles, column("State"), numbers("For"), column("Why"))
	return part(s.ID, fmt.Sprintf("%s (%s)", s.Name, s.Count),
		g.If(len(s.Pending) > 0, table("", titles, g.Map(s.Pending, func(pending statusreport.Pending) g.Node {
			var cells g.Group
			for i, text := range s.Cells(pending) {
				if i == 0 {
					cells = append(cells, subject(text))
				} else {
					cells = append(cells, cell(g.Text(text)))
				}
			}
			var atLeast, reason g.Node
			if p.MayBeOlder(pending) {
				atLeast = g.Text("at least ")
			}
			if pending.Reason != "" {
				reason = g.Group{h.Strong(g.Text(pending.Reason)), g.Text(" ")}
			}
			return h.Tr(cells, h.Td(h.Class("state "+urgencyOf(pending)), g.Text(pending.State)),
				number(atLeast, p.age(pending.Since)), cell(reason, g.Text(pending.Message)))
		}))),
		more(s.NotShown),
	)
}

func (p Page) audit() g.Node {
	if p.Audit == nil || p.Audit.Total == 0 {
		return nil
	}
	return h.Section(h.ID("audit"),
		h.H2(g.Textf("Audit findings (%d, ", p.Audit.Total), p.age(p.Audit.Time), g.Text(" ago)")),
		table("", g.Group{column("Finding"), column("Subject"), column("Backend"), column("Why")}, g.Map(p.Audit.Findings, func(f statusreport.Finding) g.Node {
			return h.Tr(subject(f.Kind), cell(g.Text(f.Subject)), cell(g.Text(f.Backend)), cell(g.Text(f.Message)))
		})),
		more(p.Audit.NotShown),
	)
}

func (p Page) backends() g.Node {
	rows := g.Map(p.Backends, func(b statusreport.Backend) g.Node {
		state := g.Group{p.state(b)}
		for _, c := range b.Certificates {
			if text := p.Expiring(c); text != "" {
				state = append(state, g.Text(", "), warning(text))
			}
		}
		quotas := quotaCells(b.Quotas)
		if len(b.Quotas) == 0 {
			quotas = g.Group{cell(), cell()}
		}
		var failure g.Group
		if b.LastFailure != "" {
			failure = g.Group{g.Text(b.LastFailure + " "), quiet(g.Text("("), p.age(b.LastFailureAt), g.Text(" ago)"))}
		}
		return h.Tr(subject(b.Name), cell(state), quotas, cell(failure))
	})
	return part("backends", "Backends", table("",
		g.Group{column("Backend"), column("State"), numbers("Volumes"), numbers("GiB"), column("Last failure")}, orNone(rows, 5)))
}

func (p Page) state(b statusreport.Backend) g.Node {
	all := g.Group{}
	switch {
	case b.Suspended:
		all = append(all, quiet(g.Textf("suspended, %s", b.State)))
	case b.State == statusreport.CircuitOpen:
		all = append(all, h.Span(h.Class("bad"), g.Text("circuit open")))
	default:
		all = append(all, g.Text(string(b.State)))
	}
	if p.Age(b.Since) != "" {
		all = append(all, g.Text(" "), quiet(g.Text("for "), p.age(b.Since)))
	}
	if b.FailuresInARow > 0 {
		all = append(all, g.Text(", "), warning(fmt.Sprintf("%d failures in a row", b.FailuresInARow)))
	}
	if b.Retired {
		all = append(all, g.Text(", "), quiet(g.Text("not in the policy: kept for deletions")))
	}
	return all
}

func (p Page) tenants() g.Node {
	var rows g.Group
	for _, t := range p.Tenants {
		var shares []string
		for _, s := range t.Shares {
			shares = append(shares, fmt.Sprintf("%s: %d (%d GiB)", s.Backend, s.Volumes, s.Gigabytes))
		}
		rows = append(rows, h.Tr(h.Th(h.Scope("row"), h.A(h.Href("?find="+url.QueryEscape(t.Name)), g.Text(t.Name))),
			cell(g.Text(strings.Join(shares, ", "))), quotaCells(t.Quotas)))
		for _, r := range t.Rules {
			rows = append(rows, h.Tr(cell(g.Text(r.Path)),
				cell(g.Textf("%s → %s", strings.Join(r.StorageClasses, ", "), strings.Join(r.Backends, ", "))), quotaCells(r.Quotas)))
		}
	}
	return part("tenants", "Tenants",
		table("", g.Group{
			column("Tenant or rule"), column("StorageClasses and backends"), numbers("Volumes"), numbers("GiB"), numbers("Snapshots"), numbers("GiB of snapshots"), numbers("Backups"), numbers("GiB of backups"),
		}, orNone(rows, 8)),
		more(p.TenantsNotShown),
	)
}

func (p Page) keptVolumes() g.Node {
	if len(p.KeptVolumes) == 0 {
		return nil
	}
	return part("kept", "Kept volumes",
		h.P(g.Text("They count, although their PersistentVolumes are gone.")),
		table("", g.Group{column("Tenant"), column("Backend"), numbers("Volumes"), numbers("GiB")}, g.Map(p.KeptVolumes, func(k statusreport.Kept) g.Node {
			return h.Tr(cell(g.Text(k.Tenant)), cell(g.Text(k.Backend)), number(g.Textf("%d", k.Volumes)), number(g.Textf("%d", k.Gigabytes)))
		})),
	)
}

// question is a form, and the answer if there is one.
func (p Page) question() g.Node {
	asked := statusreport.Answer{Question: statusreport.Question{Size: "1Gi"}}
	if p.Answer != nil {
		asked = *p.Answer
	}
	field := func(label string, attributes ...g.Node) g.Node {
		return h.Label(g.Text(label+" "), h.Input(attributes...))
	}
	return part("question", "Which rule would a claim hit?",
		h.Form(h.Method("get"), h.Action("#question"),
			field("Namespace", h.Name("namespace"), h.Required(), h.MaxLength("63"), h.Value(asked.Namespace)),
			field("StorageClass", h.Name("storageClass"), h.Required(), h.MaxLength("253"), h.Value(asked.StorageClass)),
			field("Size", h.Name("size"), g.Attr("size", "8"), h.MaxLength("30"), h.Value(asked.Size)),
			h.Button(g.Text("Ask")),
		),
		g.If(p.Answer != nil, h.Div(h.ID("answer"), answer(asked))),
	)
}

func answer(a statusreport.Answer) g.Node {
	if a.Mistake != "" {
		return h.P(h.Class("bad"), g.Text(a.Mistake))
	}
	decision := h.P(h.Strong(h.Class("bad"), g.Text("denied")), g.Textf(": %s: %s", a.Reason, a.Message))
	if a.Granted {
		decision = h.P(h.Strong(g.Text("granted")), g.Textf(": tenant %s, rule %s, backend %s", a.Tenant, a.Rule, a.Backend))
	}
	return g.Group{
		decision,
		table("", g.Group{column(""), column("Place in the policy"), column("Name"), column("Why")}, g.Map(a.Considered, func(c statusreport.Consideration) g.Node {
			mark := "–"
			if c.Matched {
				mark = "✓"
			}
			return h.Tr(cell(g.Text(mark)), cell(g.Text(c.Path)), cell(g.Text(c.Name)), cell(g.Text(c.Detail)))
		})),
		g.Map(a.Notes, func(note string) g.Node { return h.P(h.Class("quiet"), g.Text(note)) }),
	}
}

func (p Page) inFlight() g.Node {
	if p.Claims == nil {
		return nil
	}
	var titles, cells g.Group
	for _, s := range p.Claims.InFlight {
		titles = append(titles, numbers(string(s.Step)))
		count := g.Group{g.Textf("%d", s.Count)}
		if s.OldestSeconds != 0 {
			oldest := time.Duration(s.OldestSeconds * float64(time.Second)).Round(time.Second)
			count = append(count, g.Text(" "), quiet(g.Textf("(oldest %s)", oldest)))
		}
		cells = append(cells, number(count))
	}
	return part("in-flight", "Claims in flight", table("", titles, h.Tr(cells)))
}

func (p Page) replica() g.Node {
	role, leader := g.Text("not ready"), g.Group{g.Text("not known")}
	if p.Replica.Leads {
		role = g.Group{g.Text("leads since "), moment(p.Replica.LeadsSince)}
	} else if p.Replica.Ready {
		role = g.Text("follower")
	}
	if p.Leader.Identity != "" {
		leader = g.Group{g.Text(p.Leader.Identity)}
	}
	if p.Leader.Lease != "" {
		leader = append(leader, g.Text(" "), quiet(g.Textf("(Lease %s)", p.Leader.Lease)))
	}
	policy := fmt.Sprintf("%s, revision %s", p.Policy.File, p.Policy.Revision)
	if p.Policy.Revision == "" {
		policy += "none yet"
	}
	if p.Policy.Source == statusreport.FromLastGood {
		policy += fmt.Sprintf(" (the last good one, kept in %s)", p.Policy.KeptIn)
	}
	facts := g.Group{described("Replica", g.Text(p.Replica.Identity+", "), role), described("Leader", leader), described("Policy", g.Text(policy))}
	if p.Audit != nil {
		facts = append(facts, described("Last audit", moment(p.Audit.Time), g.Textf(", findings: %d", p.Audit.Total)))
	}
	return part("replica", "Replica and policy", h.Dl(facts), g.If(len(p.Pods) > 0, table("pods",
		g.Group{column("Pod"), column("State"), column("Image"), column("Node"), numbers("Restarts"), numbers("Age")},
		g.Map(p.Pods, func(pod statusreport.Pod) g.Node {
			return h.Tr(subject(pod.Name), cell(g.If(!pod.Ready, h.Class("warn")), g.Text(pod.State())),
				cell(g.Text(pod.Image)), cell(g.Text(pod.Node)), number(g.Textf("%d", pod.Restarts)), number(p.age(pod.Created)))
		}))))
}

// age is how long ago a time was; a browser shows the time itself, too.
func (p Page) age(t time.Time) g.Node {
	return h.Time(h.DateTime(statusreport.FormatTime(t)), h.Title(statusreport.FormatTime(t)), g.Text(p.Age(t)))
}

func moment(t time.Time) g.Node {
	return h.Time(h.DateTime(statusreport.FormatTime(t)), g.Text(statusreport.FormatTime(t)))
}

// part is a section under a title. The ID is an anchor of the page.
func part(id, title string, content ...g.Node) g.Node {
	return h.Section(h.ID(id), h.H2(g.Text(title)), g.Group(content))
}

func table(id string, titles g.Group, rows g.Node) g.Node {
	return h.Table(g.If(id != "", h.ID(id)), h.THead(h.Tr(titles)), h.TBody(rows))
}

// column is the title of a column, numbers that of one with numbers.
func column(title string) g.Node { return h.Th(h.Scope("col"), g.Text(title)) }
func numbers(title string) g.Node {
	return h.Th(h.Scope("col"), h.Class("number"), g.Text(title))
}

// subject is the first cell of a row, which says what the others are about.
func subject(name string) g.Node      { return h.Th(h.Scope("row"), g.Text(name)) }
func cell(content ...g.Node) g.Node   { return h.Td(content...) }
func number(content ...g.Node) g.Node { return h.Td(h.Class("number"), g.Group(content)) }

// orNone returns a row that says so if the policy has none of what the table lists.
func orNone(rows g.Group, columns int) g.Node {
	if len(rows) > 0 {
		return rows
	}
	return h.Tr(h.Td(h.ColSpan(strconv.Itoa(columns)), g.Text("The policy has none.")))
}

// more says how many rows a table leaves out.
func more(notShown int) g.Node {
	return g.If(notShown > 0, h.P(g.Textf("and %d more", notShown)))
}

func items(texts []string) g.Node {
	return h.Ul(g.Map(texts, func(text string) g.Node { return h.Li(g.Text(text)) }))
}

func described(term string, description ...g.Node) g.Node {
	return g.Group{h.Dt(g.Text(term)), h.Dd(description...)}
}

func quiet(content ...g.Node) g.Node { return h.Span(h.Class("quiet"), g.Group(content)) }
func warning(text string) g.Node     { return h.Span(h.Class("warn"), g.Text(text)) }

func quotaCells(quotas []statusreport.Quota) g.Group {
	return g.Map(quotas, func(q statusreport.Quota) g.Node {
		text := q.String()
		m := newMeter(q)
		if m == nil {
			return number(g.Text(text))
		}
		return number(h.Meter(h.Min("0"), h.Max(bound(m.max)), g.Attr("low", bound(m.low)), g.Attr("high", bound(m.high)),
			g.Attr("optimum", "0"), h.Value(bound(m.value)), g.Text(text)), g.Text(" "+text))
	})
}

// meter is a bar. Browsers color it by where the value is: above low it is a warning,
// above high an alarm.
type meter struct{ value, max, low, high float64 }

// newMeter returns nil for a quota that has no limit, or that allows nothing.
func newMeter(q statusreport.Quota) *meter {
	if !q.IsLimited() {
		return nil
	}
	limit := *q.Limit
	return &meter{value: float64(min(*q.Used, limit)), max: float64(limit), low: float64(limit-limit/10) - .5, high: float64(limit) - .5}
}

func bound(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

// urgencyOf returns the class of a pending object: what only waits is quiet, what the
// policy or something else holds up is a warning, and what fails is an alarm.
func urgencyOf(p statusreport.Pending) string {
	switch p.State {
	case "failing":
		return "bad"
	case "denied", "blocked":
		return "warn"
	}
	return "quiet"
}
