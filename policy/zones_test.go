package policy

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// zonedPolicy has backends with zones and without.
const zonedPolicy = `
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
backends:
  - name: lab
    auth: {cloud: lab}
    connector: {nodeLabels: {site: north}}
    zones:
      - {name: az1, nodeLabels: {rack: a}}
      - {name: az2, nodeLabels: {rack: b, site: north}}
  - name: attic
    auth: {cloud: attic}
    zones:
      - {name: az1, nodeLabels: {rack: a}}
      - {name: az9, nodeLabels: {rack: z}}
  - {name: cellar, auth: {cloud: cellar}, connector: {nodeLabels: {site: south}}}
  - {name: everywhere, auth: {cloud: everywhere}}
  - {name: stopped, auth: {cloud: stopped}, suspended: true, zones: [{name: az1, nodeLabels: {rack: a}}, {name: az2, nodeLabels: {rack: b}}]}
tenants:
  - name: a
    namespaces: [team-a]
    classes:
      - {storageClasses: [lab], backends: [lab]}
      - {storageClasses: [fixed], backends: [lab], availabilityZone: az2}
      - {storageClasses: [two], backends: [lab, attic]}
      - {storageClasses: [all], backends: [lab, cellar, everywhere]}
      - {storageClasses: [stopped], backends: [stopped, lab]}
      - {storageClasses: [spread], backends: [lab, attic], pick: spread}
      - {storageClasses: [three], backends: [lab, everywhere, attic], pick: spread}
      - {storageClasses: [spread-fixed], backends: [lab], pick: spread, availabilityZone: az2}
`

// where lists the candidates with the zones in which their volumes may be, the
// first of which is that of a new volume.
func where(d Decision) string {
	var candidates []string
	for _, name := range d.Backends {
		placement, mapped := d.PlacementOn(name)
		if mapped {
			name += "/" + strings.Join(placement.Names(), "+")
		}
		candidates = append(candidates, name)
	}
	return strings.Join(candidates, " ")
}

func TestZones(t *testing.T) {
	p := mustParse(t, zonedPolicy)
	node := func(labels ...string) *Node {
		n := &Node{Name: "n1", Labels: map[string]string{}}
		for _, label := range labels {
			key, value, _ := strings.Cut(label, "=")
			n.Labels[key] = value
		}
		return n
	}
	rack := func(values ...string) []Topology { return []Topology{{"rack": values}} }
	copied := &Source{Name: "claim team-a/source", Tenant: "a", Backend: "lab", SizeGiB: 1}
	for name, test := range map[string]struct {
		class   string
		request Request
		want    string
		// reason, path and part are of the denial.
		reason     Reason
		path, part string
	}{
		"the first zone, without a node":       {class: "lab", want: "lab/az1+az2"},
		"the zone that the rule fixes":         {class: "fixed", want: "lab/az2"},
		"the zone that the class chooses":      {class: "lab", request: Request{Parameters: map[string]string{"availability": "az2"}}, want: "lab/az2"},
		"a class may not change a fixed zone":  {class: "fixed", request: Request{Parameters: map[string]string{"availability": "az1"}}, reason: ParameterNotAllowed, path: "tenants[0].classes[1].availabilityZone", part: `but the policy fixes it at "az2"`},
		"a zone that the backend does not map": {class: "lab", request: Request{Parameters: map[string]string{"availability": "az3"}}, reason: ParameterInvalid, path: "backends[0].zones", part: `sets the parameter availability to "az3", but backend lab has only the zones az1, az2 (backends[0].zones); choose one of them, or add the zone`},
		"the backend that maps the zone":       {class: "two", request: Request{Parameters: map[string]string{"availability": "az9"}}, want: "attic/az9"},
		"the zone of the node":                 {class: "lab", request: Request{Node: node("site=north", "rack=b")}, want: "lab/az2"},
		"a node of the zone, but not of the connector": {class: "lab", request: Request{Node: node("site=south", "rack=b")}, reason: NodeNotReached, path: "backends[0].zones",
			part: "scheduled to node n1, but backend lab exports volumes only to nodes with the labels rack=a,site=north (zone az1), or rack=b,site=north (zone az2) (backends[0].zones); "},
		"a node of no zone":                   {class: "lab", request: Request{Node: node("site=north", "rack=c")}, reason: NodeNotReached, path: "backends[0].zones", part: "n1"},
		"a node outside of the fixed zone":    {class: "fixed", request: Request{Node: node("site=north", "rack=a")}, reason: NodeNotReached, path: "backends[0].zones", part: "only to nodes with the labels rack=b,site=north (zone az2) (backends[0].zones)"},
		"the backend that reaches the node":   {class: "two", request: Request{Node: node("rack=z")}, want: "attic/az9"},
		"one zone on each backend":            {class: "two", request: Request{Node: node("rack=a", "site=north")}, want: "lab/az1 attic/az1"},
		"zones and backends without any":      {class: "all", request: Request{Node: node("rack=b", "site=north")}, want: "lab/az2 everywhere"},
		"the zone within the topologies":      {class: "lab", request: Request{Topologies: rack("b", "c")}, want: "lab/az2"},
		"all zones within the topologies":     {class: "lab", request: Request{Topologies: rack("a", "b")}, want: "lab/az1+az2"},
		"by a label of the connector":         {class: "lab", request: Request{Topologies: []Topology{{"site": {"north"}}}}, want: "lab/az1+az2"},
		"no zone within the topologies":       {class: "lab", request: Request{Topologies: rack("c")}, reason: UnsupportedTopology, path: "backends[0].zones", part: "the volumes of backend lab can be used on nodes with the labels rack=a,site=north (zone az1), or rack=b,site=north (zone az2) (backends[0].zones); remove allowedTopologies, or give a zone of the backend nodeLabels that are among them"},
		"the fixed zone is outside":           {class: "fixed", request: Request{Topologies: rack("a")}, reason: UnsupportedTopology, path: "backends[0].zones", part: "rack=b"},
		"topologies and a node that disagree": {class: "lab", request: Request{Topologies: rack("a"), Node: node("site=north", "rack=b")}, reason: NodeNotReached, path: "backends[0].zones", part: "only to nodes with the labels rack=a,site=north (zone az1) ("},
		"a suspended backend is no candidate": {class: "stopped", want: "lab/az1+az2"},
		"a copy goes where its source is":     {class: "lab", request: Request{Source: copied, Node: node("site=north", "rack=b")}, want: "lab/az1+az2"},
		"a copy within the topologies":        {class: "lab", request: Request{Source: copied, Topologies: rack("b")}, want: "lab/az2"},
		"a copy in the fixed zone":            {class: "fixed", request: Request{Source: copied}, want: "lab/az2"},
		"a copy beyond the connector's nodes": {class: "lab", request: Request{Source: copied, Node: node("site=south", "rack=b")}, reason: NodeNotReached, path: "backends[0].connector.nodeLabels", part: "only to nodes with the labels site=north ("},
	} {
		t.Run(name, func(t *testing.T) {
			r := test.request
			r.Namespace, r.StorageClass, r.Bytes = "team-a", test.class, gib
			d := p.Decide(r)
			if got := where(d); got != test.want {
				t.Errorf("the volume may be at %q, want %q (%v)", got, test.want, d.Denial)
			}
			if test.reason == "" {
				return
			}
			if d.Denial == nil || d.Denial.Reason != test.reason || d.Denial.Path != test.path || !strings.Contains(d.Denial.Message, test.part) {
				t.Errorf("denied with %+v, want %s at %s with %q", d.Denial, test.reason, test.path, test.part)
			}
		})
	}
}

func TestVolumeOnItsZone(t *testing.T) {
	p := mustParse(t, zonedPolicy)
	request := Request{Namespace: "team-a", StorageClass: "all", Bytes: gib}
	d := p.Decide(request)
	for backend, want := range map[string]string{"lab": "az1", "everywhere": "", "cellar": ""} {
		if got := d.VolumeOn(backend).AvailabilityZone; got != want {
			t.Errorf("on %s the volume is requested in zone %q, want %q", backend, got, want)
		}
	}
	placement, _ := d.PlacementOn("lab")
	if zone, ok := placement.Zone("az2"); !ok || fmt.Sprint(zone.NodeLabels) != "map[rack:b site:north]" {
		t.Errorf("az2 has the nodes %v", zone.NodeLabels)
	}
	request.Source = &Source{Tenant: "a", Backend: "lab", SizeGiB: 1}
	if got := p.Decide(request).VolumeOn("lab").AvailabilityZone; got != "" {
		t.Errorf("a copy is requested in zone %q, but Cinder must choose that of the source", got)
	}
}

// TestZonesOfBackendsThatAreNoCandidates: a volume of an earlier attempt may be
// there.
func TestZonesOfBackendsThatAreNoCandidates(t *testing.T) {
	p := mustParse(t, zonedPolicy)
	for class, want := range map[string]string{"stopped": "stopped", "two": "lab"} {
		d := p.Decide(Request{Namespace: "team-a", StorageClass: class, Bytes: gib, Node: &Node{Name: "n", Labels: map[string]string{"rack": "z", "site": "north"}}})
		placement, mapped := d.PlacementOn(want)
		if slices.Contains(d.Backends, want) || !mapped || strings.Join(placement.Names(), " ") != "az1 az2" {
			t.Errorf("%s: backend %s has the zones %v, candidates are %v", class, want, placement.Names(), d.Backends)
		}
	}
}

func TestReplicasAreSpread(t *testing.T) {
	p := mustParse(t, zonedPolicy)
	first := func(class, claim string) string {
		d := p.Decide(Request{Namespace: "team-a", Claim: claim, StorageClass: class, Bytes: gib})
		if !d.Allowed() {
			t.Fatal(d.Denial)
		}
		return d.Backends[0] + "/" + d.VolumeOn(d.Backends[0]).AvailabilityZone
	}
	for class, want := range map[string][]string{
		"spread": {"attic/az1", "attic/az9", "lab/az1", "lab/az2"},
		// A backend without zones has its turn as often as the others.
		"three":        {"attic/az1", "attic/az9", "everywhere/", "lab/az1", "lab/az2"},
		"spread-fixed": {"lab/az2"},
	} {
		backends := len(p.Decide(Request{Namespace: "team-a", StorageClass: class, Bytes: gib}).Backends)
		var all []string
		previous := ""
		for replica := range 2 * backends {
			at := first(class, fmt.Sprintf("data-web-%d", replica))
			backend, _, _ := strings.Cut(at, "/")
			if backends > 1 && backend == previous {
				t.Errorf("%s: replica %d has the same backend as the one before", class, replica)
			}
			previous = backend
			all = append(all, at)
		}
		slices.Sort(all)
		if got := slices.Compact(all); !slices.Equal(got, want) {
			t.Errorf("%s: the replicas are at %v, want %v", class, got, want)
		}
	}
	if got := where(p.Decide(Request{Namespace: "team-a", StorageClass: "spread", Bytes: gib})); got != "lab/az1+az2 attic/az1+az9" {
		t.Errorf("a claim without a name has the order %s", got)
	}
}

func TestOrdinals(t *testing.T) {
	for name, want := range map[string]string{
		"data-web-0": "data-web 0", "data-web-12": "data-web 12", "data": "data 0", "data-": "data- 0", "data-x": "data-x 0",
		"data-01": "data-01 0", "data-+1": "data-+1 0", "-1": "-1 0", "7": "7 0", "data-4294967295": "data 4294967295", "data-4294967296": "data-4294967296 0",
	} {
		base, ordinal := splitOrdinal(name)
		if got := fmt.Sprintf("%s %d", base, ordinal); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

// TestSpreadingIsDeterministic: what changes between leaders and commands must not
// change the order, and the order never adds or loses a candidate.
func TestSpreadingIsDeterministic(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	p, another := mustParse(t, zonedPolicy), mustParse(t, "# the same rules\n"+zonedPolicy)
	racks := []string{"a", "b", "z"}
	for range 2_000 {
		r := Request{Namespace: "team-a", Claim: fmt.Sprintf("c%d-%d", random.IntN(50), random.IntN(20)), StorageClass: []string{"spread", "three", "two", "all"}[random.IntN(4)], Bytes: gib}
		if random.IntN(2) == 0 {
			r.Topologies = []Topology{{"rack": racks[:1+random.IntN(3)]}}
		}
		if random.IntN(2) == 0 {
			r.Node = &Node{Name: "n", Labels: map[string]string{"rack": racks[random.IntN(3)], "site": "north"}}
		}
		d := p.Decide(r)
		if again := another.Decide(r); where(again) != where(d) {
			t.Fatalf("%+v: at %s, and then at %s", r, where(d), where(again))
		}
		listed := r
		listed.Claim = ""
		if got, want := parts(where(d)), parts(where(p.Decide(listed))); !slices.Equal(got, want) {
			t.Fatalf("%+v: candidates %v, but %v in the order of the policy", r, got, want)
		}
		for _, name := range d.Backends {
			placement, _ := d.PlacementOn(name)
			for _, zone := range placement.Zones {
				if !r.mayUse(zone.NodeLabels) || !r.Node.has(zone.NodeLabels) {
					t.Fatalf("%+v: zone %s of %s is out of reach", r, zone.Name, name)
				}
			}
		}
	}
}

// parts splits candidates into pairs of a backend and a zone, sorted.
func parts(candidates string) []string {
	var all []string
	for _, candidate := range strings.Fields(candidates) {
		backend, zones, _ := strings.Cut(candidate, "/")
		for _, zone := range strings.Split(zones, "+") {
			all = append(all, backend+"/"+zone)
		}
	}
	slices.Sort(all)
	return all
}

func TestMistakesInZones(t *testing.T) {
	for name, test := range map[string]struct {
		from, to, want string
		warning        bool
	}{
		"no zone":                 {"zones: [{name: az1, nodeLabels: {rack: a}}, {name: az2, nodeLabels: {rack: b}}]", "zones: []", "backends[4].zones: the list is empty; name Cinder's availability zones with the labels of their nodes, or remove the key", false},
		"two of one name":         {"{name: az2, nodeLabels: {rack: b, site: north}}", "{name: az1, nodeLabels: {rack: b}}", `backends[0].zones[1].name: backends[0].zones[0] (line 8) is already called "az1", and a zone has one set of nodes; give each a different name`, false},
		"no name":                 {"{name: az9, nodeLabels: {rack: z}}", "{nodeLabels: {rack: z}}", "backends[1].zones[1].name: is missing; give the availability zone's name in Cinder", false},
		"a name with a blank":     {"{name: az9,", `{name: "az9 ",`, `backends[1].zones[1].name: "az9 " cannot be used: it begins or ends with a space, which Cinder would drop`, false},
		"a list of names":         {"{name: az9,", `{name: "az8,az9",`, `backends[1].zones[1].name: "az8,az9" is one name, not a list; give each zone an entry of its own`, true},
		"no labels":               {"{name: az9, nodeLabels: {rack: z}}", "{name: az9}", "backends[1].zones[1].nodeLabels: is missing or empty; name the labels that only the nodes of the zone have", false},
		"empty labels":            {"{name: az9, nodeLabels: {rack: z}}", "{name: az9, nodeLabels: {}}", "backends[1].zones[1].nodeLabels: is missing or empty; name the labels that only the nodes of the zone have", false},
		"a label's key":           {"{rack: z}", "{-rack: z}", `backends[1].zones[1].nodeLabels.-rack: "-rack" cannot be a label's key; use at most 63 letters, digits, '-', '_' and '.', beginning and ending with a letter or digit, if need be after a DNS name and a slash`, false},
		"a contradiction":         {"{rack: b, site: north}", "{rack: b, site: south}", "backends[0].zones[1].nodeLabels.site: no node can have both site=south and site=north, which backends[0].connector.nodeLabels.site (line 6) demands; make them equal, or remove one", false},
		"one with the defaults":   {"backends:\n", "defaults: {connector: {nodeLabels: {rack: q}}}\nbackends:\n", "backends[1].zones[0].nodeLabels.rack: no node can have both rack=a and rack=q, which defaults.connector.nodeLabels.rack (line 3) demands; make them equal, or remove one", false},
		"a fixed zone of none":    {"availabilityZone: az2}\n      - {storageClasses: [two]", "availabilityZone: az3}\n      - {storageClasses: [two]", `tenants[0].classes[1].availabilityZone: backend "lab" has no zone "az3" (backends[0].zones, line 8); add it there with the labels of its nodes, or fix another zone; it has az1, az2`, false},
		"a fixed zone of one":     {"backends: [lab, attic]}", "backends: [lab, attic], availabilityZone: az2}", `tenants[0].classes[2].availabilityZone: backend "attic" has no zone "az2" (backends[1].zones, line 13); add it there with the labels of its nodes, or fix another zone; it has az1, az9`, false},
		"an unknown pick":         {"pick: spread}", "pick: spraed}", `tenants[0].classes[5].pick: unknown pick "spraed"; did you mean "spread"?`, false},
		"a strange pick":          {"pick: spread}", "pick: random}", `tenants[0].classes[5].pick: unknown pick "random"; use one of first, spread`, false},
		"nothing to spread":       {"[lab, attic], pick: spread}", "[everywhere], pick: spread}", `tenants[0].classes[5].pick: spread has no effect: the rule has one backend, and claims one zone there; name more backends, or give backend "everywhere" zones`, true},
		"a pick at a tenant":      {"namespaces: [team-a]", "namespaces: [team-a]\n    pick: spread", `tenants[0].pick: unknown key "pick"; it belongs to a rule, under classes`, false},
		"labels at a backend":     {"- {name: everywhere,", "- {name: everywhere, nodeLabels: {a: b},", `backends[3].nodeLabels: unknown key "nodeLabels"; it belongs under connector, or under an entry of zones`, false},
		"labels of another name":  {"{name: az9, nodeLabels:", "{name: az9, labels:", `backends[1].zones[1].labels: unknown key "labels"; did you mean "nodeLabels"?`, false},
		"zones at a rule":         {"{storageClasses: [lab], backends: [lab]}", "{storageClasses: [lab], backends: [lab], zones: [az1]}", `tenants[0].classes[0].zones: unknown key "zones"; zones are mapped to nodes at the backend; a rule fixes one with availabilityZone`, false},
		"zones that are names":    {"zones: [{name: az1, nodeLabels: {rack: a}}, {name: az2, nodeLabels: {rack: b}}]", "zones: [az1]", `backends[4].zones[0]: must be a mapping of keys to values, not a string; its keys are name, nodeLabels`, false},
		"a pick that is is known": {"pick: spread, availabilityZone: az2}", "pick: first}", "", true},
	} {
		t.Run(name, func(t *testing.T) {
			text := strings.Replace(zonedPolicy[1:], test.from, test.to, 1)
			if text == zonedPolicy[1:] {
				t.Fatal("nothing was replaced")
			}
			p, err := Parse([]byte(text), "", protocols())
			var said []string
			switch {
			case test.warning && err == nil:
				for _, w := range p.Warnings {
					said = append(said, w.Path+": "+w.Message)
				}
				said = slices.DeleteFunc(said, func(s string) bool { return strings.HasPrefix(s, "tenants[0].classes[7].pick") && test.want != "" })
			case err != nil:
				said = strings.Split(err.Error(), "\n")
			}
			if !slices.ContainsFunc(append(said, ""), func(s string) bool {
				return test.want == "" && len(said) == 0 || test.want != "" && strings.Contains(s, test.want)
			}) {
				t.Errorf("said:\n%s\nwant:\n%s", strings.Join(said, "\n"), test.want)
			}
		})
	}
}

// TestCoveredTopologies: what a topology allows may be covered by several sets of
// labels together.
func TestCoveredTopologies(t *testing.T) {
	for name, c := range map[string]struct {
		topology Topology
		sets     []map[string]string
		want     bool
	}{
		"by one":                    {Topology{"rack": {"a"}}, []map[string]string{{"rack": "a"}}, true},
		"by two":                    {Topology{"rack": {"a", "b"}}, []map[string]string{{"rack": "a"}, {"rack": "b"}}, true},
		"in part":                   {Topology{"rack": {"a", "b", "c"}}, []map[string]string{{"rack": "a"}, {"rack": "b"}}, false},
		"by four of two labels":     {Topology{"rack": {"a", "b"}, "site": {"n", "s"}}, []map[string]string{{"rack": "a", "site": "n"}, {"rack": "a", "site": "s"}, {"rack": "b", "site": "n"}, {"rack": "b", "site": "s"}}, true},
		"by three of four":          {Topology{"rack": {"a", "b"}, "site": {"n", "s"}}, []map[string]string{{"rack": "a", "site": "n"}, {"rack": "a", "site": "s"}, {"rack": "b", "site": "n"}}, false},
		"by a label for the rest":   {Topology{"rack": {"a", "b"}, "site": {"n", "s"}}, []map[string]string{{"rack": "a"}, {"site": "n"}, {"rack": "b", "site": "s"}}, true},
		"by all nodes":              {Topology{}, []map[string]string{{"rack": "a"}, {}}, true},
		"not without the label":     {Topology{"site": {"n"}}, []map[string]string{{"rack": "a"}, {"rack": "b"}}, false},
		"by the empty value":        {Topology{"rack": {"", "a"}}, []map[string]string{{"rack": ""}, {"rack": "a"}}, true},
		"another label has several": {Topology{"rack": {"a"}, "host": {"1", "2"}}, []map[string]string{{"rack": "a"}}, true},
		"nothing covers anything":   {Topology{"rack": {"a", "b"}}, nil, false},
		"a label with many more":    {Topology{"rack": strings.Split(strings.Repeat("x,", 50)+"a", ",")}, []map[string]string{{"rack": "a"}}, false},
	} {
		if got := c.topology.covered(c.sets); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
	}
	wide := Topology{}
	set := map[string]string{}
	for i := range 64 {
		key := fmt.Sprintf("k%d", i)
		wide[key], set[key] = []string{"a", "b"}, "a"
	}
	if parts := wide.parts([]map[string]string{set}); parts != maxParts+1 {
		t.Errorf("%d parts", parts)
	}
}

// TestLabelsThatNodesMayWriteSeparateNoTenants: a kubelet may write most labels of its own
// Node, and so join the pool of another tenant.
func TestLabelsThatNodesMayWriteSeparateNoTenants(t *testing.T) {
	const text = `
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
backends:
  - {name: gold-a, auth: {cloud: gold-a}, connector: {nodeLabels: {pool: a, site: north}}}
  - {name: gold-b, auth: {cloud: gold-b}, connector: {nodeLabels: {pool: b, site: north}}}
tenants:
  - {name: a, namespaces: [team-a], classes: [{storageClasses: [gold], backends: [gold-a]}]}
  - {name: b, namespaces: [team-b], classes: [{storageClasses: [gold], backends: [gold-b]}]}
`
	const want = `backends[1].connector.nodeLabels.pool: the label pool keeps the nodes of backends "gold-a" and "gold-b" apart, which different tenants use, but a node may write it on itself`
	for name, test := range map[string]struct{ old, written, want string }{
		"any label":                 {"", "", want},
		"a zone":                    {"pool:", "topology.kubernetes.io/zone:", strings.ReplaceAll(strings.Replace(want, "nodeLabels.pool", `nodeLabels["topology.kubernetes.io/zone"]`, 1), "label pool", "label topology.kubernetes.io/zone")},
		"a protected label":         {"pool:", "node-restriction.kubernetes.io/pool:", ""},
		"a protected label of ours": {"pool:", "example.node-restriction.kubernetes.io/pool:", ""},
		"the role":                  {"pool:", "node-role.kubernetes.io/a:", ""},
		"the same tenants":          {"backends: [gold-a]", "backends: [gold-a, gold-b]", want},
		"all use both":              {"backends: [gold-a]}]}\n  - {name: b, namespaces: [team-b], classes: [{storageClasses: [gold], backends: [gold-b]}]}", "backends: [gold-a, gold-b]}]}", ""},
		"the same nodes":            {"pool: b", "pool: a", ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := mustParse(t, strings.ReplaceAll(text, cmp.Or(test.old, "\x00"), test.written))
			var found []string
			for _, warning := range p.Warnings {
				found = append(found, warning.Error())
			}
			all := strings.Join(found, "\n")
			if test.want == "" && strings.Contains(all, "keeps the nodes") || !strings.Contains(all, test.want) {
				t.Errorf("the warnings are %q, want %q", found, test.want)
			}
		})
	}
}
