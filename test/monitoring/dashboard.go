package monitoring

import "fmt"

// A dashboard, as far as Grafana's schema is needed here.
type dashboard struct {
	UID           string     `json:"uid"`
	Title         string     `json:"title"`
	Tags          []string   `json:"tags"`
	SchemaVersion int        `json:"schemaVersion"`
	Version       int        `json:"version"`
	Editable      bool       `json:"editable"`
	Refresh       string     `json:"refresh"`
	Time          timeRange  `json:"time"`
	Templating    templating `json:"templating"`
	Panels        []panel    `json:"panels"`
}

type timeRange struct {
	From string `json:"from"`
	To   string `json:"to"`
}

type templating struct {
	List []variable `json:"list"`
}

type variable struct {
	Name       string      `json:"name"`
	Label      string      `json:"label"`
	Type       string      `json:"type"`
	Query      string      `json:"query"`
	Datasource *datasource `json:"datasource,omitempty"`
	IncludeAll bool        `json:"includeAll"`
	Multi      bool        `json:"multi"`
	AllValue   string      `json:"allValue,omitempty"`
	Refresh    int         `json:"refresh"`
}

type datasource struct {
	Type string `json:"type"`
	UID  string `json:"uid"`
}

type panel struct {
	ID          int          `json:"id"`
	Type        string       `json:"type"`
	Title       string       `json:"title"`
	Description string       `json:"description,omitempty"`
	GridPos     gridPosition `json:"gridPos"`
	Datasource  *datasource  `json:"datasource,omitempty"`
	FieldConfig *fieldConfig `json:"fieldConfig,omitempty"`
	Targets     []target     `json:"targets,omitempty"`
}

type gridPosition struct {
	H int `json:"h"`
	W int `json:"w"`
	X int `json:"x"`
	Y int `json:"y"`
}

type fieldConfig struct {
	Defaults  fieldDefaults `json:"defaults"`
	Overrides []struct{}    `json:"overrides"`
}

type fieldDefaults struct {
	Unit string `json:"unit"`
}

type target struct {
	RefID        string      `json:"refId"`
	Datasource   *datasource `json:"datasource"`
	Expr         string      `json:"expr"`
	LegendFormat string      `json:"legendFormat"`
}

// chosen is the data source that the user selects.
var chosen = &datasource{Type: "prometheus", UID: "${datasource}"}

// row is a line of panels below a heading.
type row struct {
	title  string
	panels []view
}

// view is a panel's content.
type view struct {
	title, kind, unit string
	queries           []query
}

type query struct{ expr, legend string }

const (
	graph = "timeseries"
	stat  = "stat"
	table = "table"
)

const in = `namespace=~"$namespace"`

var rows = []row{
	{"Overview", []view{
		{"Replicas that lead", stat, "short", []query{{`sum by (namespace) (standalone_cinder_leader{` + in + `})`, "{{namespace}}"}}},
		{"Backends that do not answer", stat, "short", []query{{`count(min by (namespace, backend) (standalone_cinder_backend_up{` + in + `}) == 0) or vector(0)`, ""}}},
		{"Pending claims", stat, "short", []query{{`sum(max by (namespace, state, reason) (standalone_cinder_pending_claims{` + in + `})) or vector(0)`, ""}}},
		{"Oldest failing claim", stat, "s", []query{{`time() - min(standalone_cinder_oldest_pending_claim_timestamp_seconds{` + in + `,state=~"failing|blocked"})`, ""}}},
		{"Refused policy files", stat, "short", []query{{`count(standalone_cinder_policy_last_reload_successful{` + in + `} == 0) or vector(0)`, ""}}},
		{"Audit findings", stat, "short", []query{{`sum(max by (namespace, kind, backend) (standalone_cinder_audit_findings{` + in + `})) or vector(0)`, ""}}},
	}},
	{"Claims", []view{
		{"Bound within a minute", graph, "percentunit", []query{{`sum by (namespace, backend) (rate(standalone_cinder_claim_bound_duration_seconds_bucket{` + in + `,le=~"60(\\.0)?"}[$__rate_interval])) / sum by (namespace, backend) (rate(standalone_cinder_claim_bound_duration_seconds_count{` + in + `}[$__rate_interval]))`, "{{backend}}"}}},
		{"Time to Bound, 99th percentile", graph, "s", []query{{`histogram_quantile(0.99, sum by (namespace, backend, le) (rate(standalone_cinder_claim_bound_duration_seconds_bucket{` + in + `}[$__rate_interval])))`, "{{backend}}"}}},
		{"Claims Bound per second, by tenant", graph, "ops", []query{{`sum by (tenant) (rate(standalone_cinder_claim_bound_duration_seconds_count{` + in + `}[$__rate_interval]))`, "{{tenant}}"}}},
		{"Pending claims, by reason", graph, "short", []query{{`max by (namespace, state, reason) (standalone_cinder_pending_claims{` + in + `})`, "{{state}} {{reason}}"}}},
		{"Attempts per second, by outcome", graph, "ops", []query{{`sum by (outcome) (rate(standalone_cinder_provision_duration_seconds_count{` + in + `}[$__rate_interval]))`, "{{outcome}}"}}},
		{"Workers", graph, "short", []query{{`max by (namespace, work, state) (standalone_cinder_turns{` + in + `})`, "{{work}} {{state}}"}}},
	}},
	{"Volumes and quotas", []view{
		{"PersistentVolumes, by backend and protocol", graph, "short", []query{{`sum by (backend, protocol) (max by (namespace, backend, protocol, phase, reclaim_policy) (standalone_cinder_persistentvolumes{` + in + `}))`, "{{backend}} {{protocol}}"}}},
		{"Released, by reclaim policy", graph, "short", []query{{`sum by (backend, reclaim_policy) (max by (namespace, backend, protocol, phase, reclaim_policy) (standalone_cinder_persistentvolumes{` + in + `,phase="Released"}))`, "{{backend}} {{reclaim_policy}}"}}},
		{"Pending deletions, by reason", graph, "short", []query{{`max by (namespace, state, reason) (standalone_cinder_pending_deletions{` + in + `})`, "{{state}} {{reason}}"}}},
		{"Deletions per second, by outcome", graph, "ops", []query{{`sum by (outcome) (rate(standalone_cinder_delete_duration_seconds_count{` + in + `}[$__rate_interval]))`, "{{outcome}}"}}},
		{"Used share of quotas", graph, "percentunit", []query{{`max by (namespace, scope, name, resource) (standalone_cinder_quota{` + in + `,type="used"}) / (max by (namespace, scope, name, resource) (standalone_cinder_quota{` + in + `,type="hard"}) > 0)`, "{{scope}} {{name}} {{resource}}"}}},
		{"Audit findings", graph, "short", []query{{`max by (namespace, kind, backend) (standalone_cinder_audit_findings{` + in + `})`, "{{kind}} {{backend}}"}}},
	}},
	{"Backends", []view{
		{"Backends that answer", graph, "bool", []query{{`min by (namespace, backend) (standalone_cinder_backend_up{` + in + `})`, "{{backend}}"}}},
		{"Requests per second, by code", graph, "reqps", []query{{`sum by (backend, code) (rate(standalone_cinder_openstack_request_duration_seconds_count{` + in + `}[$__rate_interval]))`, "{{backend}} {{code}}"}}},
		{"Request latency, 95th percentile", graph, "s", []query{{`histogram_quantile(0.95, sum by (backend, operation, le) (rate(standalone_cinder_openstack_request_duration_seconds_bucket{` + in + `}[$__rate_interval])))`, "{{backend}} {{operation}}"}}},
		{"Volumes waited for", graph, "short", []query{{`sum by (backend) (standalone_cinder_volumes_in_flight{` + in + `})`, "{{backend}}"}}},
		{"Failed logins", graph, "short", []query{{`sum by (backend) (increase(standalone_cinder_logins_total{` + in + `,outcome="failure"}[$__rate_interval]))`, "{{backend}}"}}},
		{"Certificates and tokens expire in", table, "s", []query{
			{`min by (namespace, backend, certificate) (standalone_cinder_certificate_expiry_timestamp_seconds{` + in + `}) - time()`, "{{backend}} {{certificate}}"},
			{`max by (namespace, backend) (standalone_cinder_token_expiry_timestamp_seconds{` + in + `}) - time()`, "{{backend}} token"},
		}},
	}},
	{"Program and API server", []view{
		{"Memory", graph, "bytes", []query{{`process_resident_memory_bytes{` + in + `} and on (namespace, pod) standalone_cinder_leader`, "{{pod}}"}}},
		{"Processor", graph, "short", []query{{`rate(process_cpu_seconds_total{` + in + `}[$__rate_interval]) and on (namespace, pod) standalone_cinder_leader`, "{{pod}}"}}},
		{"Policy revisions", table, "short", []query{{`count by (namespace, revision) (standalone_cinder_policy_info{` + in + `})`, "{{revision}}"}}},
		{"Requests to the API server, by code", graph, "reqps", []query{{`sum by (code) (rate(rest_client_requests_total{` + in + `}[$__rate_interval]) and on (namespace, pod) standalone_cinder_leader)`, "{{code}}"}}},
		{"Wait for the client's rate limit, 99th percentile", graph, "s", []query{{`histogram_quantile(0.99, sum by (le) (rate(rest_client_rate_limiter_duration_seconds_bucket{` + in + `}[$__rate_interval]) and on (namespace, pod) standalone_cinder_leader))`, "99th percentile"}}},
		{"Queues", graph, "short", []query{
			{`sum by (name) (workqueue_depth{` + in + `} and on (namespace, pod) standalone_cinder_leader == 1)`, "{{name}}"},
			{`sum(standalone_cinder_events_waiting{` + in + `})`, "events"},
		}},
	}},
}

// overview lays the rows out, three panels to a line.
func overview() dashboard {
	d := dashboard{
		UID: "standalone-cinder", Title: "standalone-cinder", Tags: []string{"standalone-cinder", "storage"}, SchemaVersion: 39, Version: 1,
		Refresh: "1m", Time: timeRange{From: "now-6h", To: "now"},
		Templating: templating{List: []variable{
			{Name: "datasource", Label: "Data source", Type: "datasource", Query: "prometheus", Refresh: 1},
			{Name: "namespace", Label: "Namespace", Type: "query", Query: "label_values(standalone_cinder_leader, namespace)", Datasource: chosen,
				IncludeAll: true, Multi: true, AllValue: ".*", Refresh: 2},
		}},
	}
	const width, height = 8, 7
	next := func(kind, title string) panel { return panel{ID: len(d.Panels) + 1, Type: kind, Title: title} }
	y := 0
	for _, r := range rows {
		heading := next("row", r.title)
		heading.GridPos = gridPosition{H: 1, W: 24, X: 0, Y: y}
		d.Panels = append(d.Panels, heading)
		y++
		for i, v := range r.panels {
			p := next(v.kind, v.title)
			p.GridPos = gridPosition{H: height, W: width, X: i % 3 * width, Y: y + i/3*height}
			p.Datasource, p.FieldConfig = chosen, &fieldConfig{Defaults: fieldDefaults{Unit: v.unit}, Overrides: []struct{}{}}
			for j, q := range v.queries {
				p.Targets = append(p.Targets, target{RefID: fmt.Sprintf("%c", 'A'+j), Datasource: chosen, Expr: q.expr, LegendFormat: q.legend})
			}
			d.Panels = append(d.Panels, p)
		}
		y += (len(r.panels) + 2) / 3 * height
	}
	return d
}
