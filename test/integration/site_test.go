package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim/keystone"
	"github.com/standalone-cinder/standalone-cinder/test/faultproxy"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// site is a simulated Cinder and the replicas that use it, each behind a network
// of its own to Cinder and to the API server. Everything that goes over those
// networks is recorded, and traps interfere with what a test picks.
//
// Its methods return errors rather than end a test: a site may outlive the test
// that made it.
type site struct {
	name        string
	namespace   string
	class       string
	provisioner string
	sim         *cindersim.Simulator
	options     siteOptions
	// keystone and cataloged are the networks to Keystone and to the endpoint
	// that its catalog names, which all replicas share; nil with noauth.
	keystone, cataloged *faultproxy.Proxy
	// decoys are volumes that only look like those of the claims, as they were
	// when they were put there.
	decoys []cindersim.Volume

	mu sync.Mutex
	// nodes are all replicas that were ever started.
	nodes  []*node
	record []*exchange
	tape   []step
	last   map[string]string
	counts map[step]int
	traps  []*trap
}

// siteOptions are the differences between sites.
type siteOptions struct {
	cinder cindersim.Options
	// workflow is the policy's; the default is reserve.
	workflow string
	// csi puts the policy's rule into mode csi.
	csi bool
	// backend is a further line of the policy's backend.
	backend string
	// reports makes changes of nodes' reports count as steps.
	reports bool
	// rule is a line of the policy's rule; empty: what the mode needs.
	rule string
	// quota is the tenant's, as a flow mapping; empty: it has none.
	quota string
	// tenants are further tenants of the policy, namespaces and classes those of the first
	// one besides the site's own. In all of these, NAME stands for the site's name.
	tenants             string
	namespaces, classes []string
	// keystone makes the replicas log in as a member of a project, instead of
	// being everybody's administrator by noauth.
	keystone bool
	// retain is the reclaim policy of the StorageClass.
	retain bool
	// silver is a second backend, of the same Cinder, with a StorageClass of its own, NAME-silver.
	silver bool
	// requestTimeout is the policy's for requests to Cinder; the default is 2 s.
	requestTimeout time.Duration
	// apiPatience is how long a client waits, on its way to the API server, for
	// a request or answer that is held; the default is 3 s.
	apiPatience time.Duration
	// arguments are the replicas'; nil means those for a short lease.
	arguments []string
	// auditEvery is the policy's time between audits; 0 is the default.
	auditEvery time.Duration
	// namedReads makes reads of single objects from the API server count as
	// steps.
	namedReads bool
	// sockets is a directory for the sockets of CSI controllers; empty: there are none.
	sockets string
}

// node is a replica and its networks.
type node struct {
	*harness.Replica
	name        string
	api, cinder *faultproxy.Proxy
	killed      bool
	// hold, if set, sees every request first, and may delay it.
	hold func(service string, r faultproxy.Request)
	// socket is that of its CSI controller, if it has one.
	socket string
	// logged is how much of the log belongs to earlier cases.
	logged int
	// apart has its steps counted apart from those of others.
	apart bool
}

// exchange is a request as it went over a network.
type exchange struct {
	at      time.Time
	node    string
	service string
	request faultproxy.Request
	// what is the request's signature.
	what    string
	verdict faultproxy.Verdict
	codes   []int // one for every time that the server answered
}

// changes reports whether the request is more than a read.
func (e *exchange) changes() bool { return e.request.Method != "GET" }

func (e *exchange) String() string {
	return fmt.Sprintf("%s %s: %s: %s, answered %v", e.at.Format("05.000"), e.node, e.what, e.verdict, e.codes)
}

// step is the nth request of its kind.
type step struct {
	// what is a signature: service, method and path, without the parts that
	// differ between claims.
	what string
	nth  int
}

// The changes that a claim's life is made of.
const (
	stepCreate       = "cinder POST volumes"
	stepOpen         = "cinder POST attachments"
	stepReserve      = "cinder POST volumes/ID/action os-reserve"
	stepInitialize   = "cinder POST volumes/ID/action os-initialize_connection"
	stepSecret       = "kubernetes POST api/v1/namespaces/standalone-cinder/secrets"
	stepRecord       = "kubernetes POST api/v1/persistentvolumes"
	stepAttach       = "cinder POST volumes/ID/action os-attach"
	stepTerminate    = "cinder POST volumes/ID/action os-terminate_connection"
	stepComplete     = "cinder POST attachments/ID/action os-complete"
	stepClose        = "cinder DELETE attachments/ID"
	stepDetach       = "cinder POST volumes/ID/action os-detach"
	stepUnreserve    = "cinder POST volumes/ID/action os-unreserve"
	stepDelete       = "cinder DELETE volumes/ID"
	stepDeleteSecret = "kubernetes DELETE api/v1/namespaces/standalone-cinder/secrets/pvc-ID-credentials"
	stepDeleteRecord = "kubernetes DELETE api/v1/persistentvolumes/pvc-ID"
	stepDeleteNodes  = "kubernetes DELETE api/v1/namespaces/standalone-cinder/secrets/pvc-ID-node"
	stepMark         = "cinder POST volumes/ID/metadata"
	stepLetGo        = "kubernetes PATCH api/v1/persistentvolumes/pvc-ID" // the finalizer
	stepProtect      = "kubernetes PATCH api/v1/namespaces/NAMESPACE/persistentvolumeclaims/source"
)

func (s step) String() string {
	if s.nth == 1 {
		return s.what
	}
	return fmt.Sprintf("%s #%d", s.what, s.nth)
}

// reads reports whether the step changes nothing.
func (s step) reads() bool { return strings.Contains(s.what, " GET ") }

// trap does something to one step.
type trap struct {
	step    step
	verdict faultproxy.Verdict
	// sprung is closed when the request has arrived, done when the server has
	// answered it as often as the verdict requires; by is the replica that made
	// it.
	sprung, done chan struct{}
	by           *node
	exchange     *exchange
}

// caught is closed when the request is where the verdict wants it: before its effect,
// or after that.
func (t *trap) caught() <-chan struct{} {
	switch t.verdict {
	case faultproxy.HoldAfter, faultproxy.LoseAfter, faultproxy.Twice:
		return t.done
	}
	return t.sprung
}

// newSite makes a site without replicas. The caller must close it.
func newSite(ctx context.Context, name string, options siteOptions) (_ *site, err error) {
	s := &site{
		name: name, namespace: name, class: name, provisioner: "test.example/" + name, options: options,
		last: map[string]string{}, counts: map[step]int{},
	}
	if s.options.requestTimeout == 0 {
		s.options.requestTimeout = 2 * time.Second
	}
	if s.options.workflow == "" {
		s.options.workflow = "reserve"
	}
	if s.options.apiPatience == 0 {
		s.options.apiPatience = 3 * time.Second
	}
	cinder := options.cinder
	if options.keystone {
		cinder.Identity = keystone.DefaultIdentity()
		cinder.Identity.EndpointURL = func(_, _, _, address string) string { return s.via(s.cataloged, address) }
	}
	if s.sim, err = cindersim.New(cinder); err != nil {
		return nil, err
	}
	if err := s.sim.Start(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if options.keystone {
		if s.cataloged, err = s.network(nil, "cinder", s.sim.CinderURL()); err != nil {
			return nil, err
		}
		if s.keystone, err = s.network(nil, "keystone", s.sim.KeystoneURL()); err != nil {
			return nil, err
		}
	}
	if err := suite.CreateNamespace(ctx, s.namespace, nil); err != nil {
		return nil, err
	}
	if options.silver {
		if err := suite.CreateClass(ctx, s.class+"-silver", s.provisioner, nil); err != nil {
			return nil, err
		}
	}
	return s, suite.CreateClass(ctx, s.class, s.provisioner, func(class *storagev1.StorageClass) {
		if options.retain {
			retain := corev1.PersistentVolumeReclaimRetain
			class.ReclaimPolicy = &retain
		}
	})
}

// via returns an address with the proxy's host and port.
func (s *site) via(p *faultproxy.Proxy, address string) string {
	u, err := url.Parse(address)
	if err != nil || p == nil {
		return address
	}
	return p.URL() + u.RequestURI()
}

// network puts a proxy in front of a Cinder or Keystone.
func (s *site) network(n *node, service, address string) (*faultproxy.Proxy, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	p, err := faultproxy.Start(faultproxy.Options{Target: u.Scheme + "://" + u.Host})
	if err != nil {
		return nil, err
	}
	s.listen(n, service, p)
	return p, nil
}

// listen records what goes through a proxy, and lets traps judge it.
func (s *site) listen(n *node, service string, p *faultproxy.Proxy) {
	var requests sync.Map // of *exchange, by number
	p.Judge(func(r faultproxy.Request) faultproxy.Verdict {
		apart := false
		if n != nil {
			s.mu.Lock()
			hold := n.hold
			apart = n.apart
			s.mu.Unlock()
			if hold != nil {
				hold(service, r)
			}
		}
		what, counts := s.signature(service, r)
		if !counts {
			return faultproxy.Pass
		}
		if apart {
			what = n.name + ": " + what
		}
		e := s.arrived(n, service, what, r)
		requests.Store(r.Number, e)
		return e.verdict
	})
	p.Observe(func(r faultproxy.Request, code int) {
		if e, ok := requests.Load(r.Number); ok {
			s.answered(e.(*exchange), code)
		}
	})
}

var (
	hexProject = regexp.MustCompile(`^[0-9a-f]{32}$`)
	anyUUID    = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{64}`)
)

// readsByName are reads of single objects that belong to claims.
var readsByName = regexp.MustCompile(`/(persistentvolumes|persistentvolumeclaims|volumesnapshots|volumesnapshotcontents)/[^/]+$`)

// signature returns a request without what differs from claim to claim, and
// whether it counts: of the requests to the API server, only those count that
// change an object that belongs to a claim, which leaves out leases, events and
// the Secret with the last good policy.
func (s *site) signature(service string, r faultproxy.Request) (what string, counts bool) {
	segments := slices.DeleteFunc(strings.Split(strings.Trim(r.Path, "/"), "/"), func(segment string) bool {
		return segment == "" || segment == "v3" || hexProject.MatchString(segment)
	})
	path := anyUUID.ReplaceAllString(strings.Join(segments, "/"), "ID")
	path = strings.Replace(path, "/namespaces/"+s.namespace+"/", "/namespaces/NAMESPACE/", 1)
	what = service + " " + r.Method + " " + path
	if service == "kubernetes" {
		if s.options.namedReads && r.Method == "GET" && readsByName.MatchString(what) {
			return what, true
		}
		return what, r.Method != "GET" && !strings.HasSuffix(path, "/events") && (!strings.Contains(path, "/leases") || s.options.reports && strings.Contains(path, "/leases/staged-volumes.")) && !strings.Contains(path, "/events/") &&
			!strings.HasSuffix(path, "-last-good") && !bytes.Contains(r.Body, []byte("-last-good"))
	}
	if query, err := url.ParseQuery(r.Query); err == nil && len(query) > 0 {
		query.Del("sort")
		query.Del("marker")
		what += "?" + anyUUID.ReplaceAllString(query.Encode(), "ID")
	}
	if strings.HasSuffix(path, "/action") {
		var body map[string]json.RawMessage
		if json.Unmarshal(r.Body, &body) == nil {
			what += " " + strings.Join(slices.Sorted(maps.Keys(body)), ",")
		}
	}
	return what, true
}

// arrived notes a request and gives it its number among its kind. A read that
// is repeated with nothing in between is one step: how often something is
// polled differs from run to run.
func (s *site) arrived(n *node, service, what string, r faultproxy.Request) *exchange {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := &exchange{at: time.Now(), service: service, what: what, request: r, node: "a replica"}
	if n != nil {
		e.node = n.name
	}
	s.record = append(s.record, e)
	polled := !e.changes() && s.last[service] == what
	s.last[service] = what
	if polled {
		return e
	}
	s.counts[step{what: what}]++
	at := step{what, s.counts[step{what: what}]}
	s.tape = append(s.tape, at)
	for _, t := range s.traps {
		if t.step == at && t.exchange == nil {
			e.verdict, t.by, t.exchange = t.verdict, n, e
			close(t.sprung)
			break
		}
	}
	return e
}

func (s *site) answered(e *exchange, code int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e.codes = append(e.codes, code)
	want := 1
	if e.verdict == faultproxy.Twice {
		want = 2
	}
	for _, t := range s.traps {
		if t.exchange == e && len(e.codes) == want {
			close(t.done)
		}
	}
}

// begin begins a new tape, on which every kind of request counts from one.
func (s *site) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tape, s.last, s.counts, s.traps = nil, map[string]string{}, map[step]int{}, nil
}

// steps returns the tape so far.
func (s *site) steps() []step {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.tape)
}

// set sets a trap.
func (s *site) set(at step, verdict faultproxy.Verdict) *trap {
	t := &trap{step: at, verdict: verdict, sprung: make(chan struct{}), done: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.traps = append(s.traps, t)
	return t
}

// exchanges returns copies of the recorded exchanges that a test asks for.
func (s *site) exchanges(which func(*exchange) bool) []exchange {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []exchange
	for _, e := range s.record {
		if which(e) {
			e := *e
			e.codes = slices.Clone(e.codes)
			found = append(found, e)
		}
	}
	return found
}

// noauthEndpoint is where the policy finds Cinder by noauth. It is the same for
// all replicas, since PersistentVolumes record it, although each has a network of
// its own: the name leads nowhere but through the proxy in a replica's
// environment.
const noauthEndpoint = "http://cinder.site.example:8776/v3"

// policy returns the replicas' policy.
func (s *site) policy() string {
	auth := "{cloud: team-a}"
	if !s.options.keystone {
		auth = fmt.Sprintf("{noauth: {endpoint: %q, user: admin, project: %q}}", noauthEndpoint, cindersim.DefaultNoauthProject)
	}
	rule, quota, audit := "import: {names: [old data]}", "", ""
	if s.options.csi {
		rule = "mode: csi"
	}
	if s.options.rule != "" {
		rule = s.options.rule
	}
	if s.options.quota != "" {
		quota = "    quota: " + s.options.quota + "\n"
	}
	if s.options.auditEvery > 0 {
		audit = fmt.Sprintf("audit: {interval: %s}\n", s.options.auditEvery)
	}
	namespaces := strings.Join(append([]string{"NAME"}, s.options.namespaces...), ", ")
	classes := strings.Join(append([]string{"NAME"}, s.options.classes...), ", ")
	text := strings.NewReplacer("TENANTS\n", s.options.tenants, "NAMESPACES", namespaces, "CLASSES", classes).Replace(`
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
clusterID: cluster-NAME
AUDIT
backends:
  - name: gold
    auth: AUTH
    workflow: WORKFLOW
    BACKEND
    timeouts: {request: TIMEOUT}
    connector: {host: k8s, initiator: "iqn.2026-01.example:NAME"}
tenants:
  - name: tenant
    namespaces: [NAMESPACES]
    QUOTA
    classes:
      - storageClasses: [CLASSES]
        backends: [gold]
        RULE
TENANTS
`)
	if s.options.silver {
		text = strings.Replace(text, "backends: [gold]", "backends: [gold, silver]", 1)
		text = strings.Replace(text, "        RULE\n", "        RULE\n      - {storageClasses: [NAME-silver], backends: [silver, gold], mode: csi}\n", 1)
		text = strings.Replace(text, "tenants:", "  - {name: silver, auth: AUTH, workflow: WORKFLOW, timeouts: {request: TIMEOUT}}\ntenants:", 1)
	}
	backend := ""
	if s.options.backend != "" {
		backend = "    " + s.options.backend + "\n"
	}
	return strings.NewReplacer("AUDIT\n", audit, "    BACKEND\n", backend, "RULE", rule, "    QUOTA\n", quota, "NAME", s.name, "AUTH", auth, "WORKFLOW", s.options.workflow, "TIMEOUT", s.options.requestTimeout.String()).Replace(text)
}

// start starts a replica and waits until it is ready.
func (s *site) start(ctx context.Context) (*node, error) {
	s.mu.Lock()
	n := &node{name: fmt.Sprintf("replica-%d", len(s.nodes))}
	s.nodes = append(s.nodes, n)
	s.mu.Unlock()
	transport, err := suite.APIServerTransport()
	if err != nil {
		return nil, err
	}
	if n.api, err = faultproxy.Start(faultproxy.Options{Target: suite.Config.Host, Transport: transport, TLS: true, Patience: s.options.apiPatience}); err != nil {
		return nil, err
	}
	s.listen(n, "kubernetes", n.api)
	clouds := ""
	var environment []string
	if s.options.keystone {
		n.cinder = s.cataloged
		clouds = strings.ReplaceAll(s.sim.CloudsYAML(), s.sim.KeystoneURL(), s.via(s.keystone, s.sim.KeystoneURL()))
	} else {
		if n.cinder, err = s.network(n, "cinder", s.sim.NoauthEndpoint()); err != nil {
			return nil, err
		}
		// Loopback addresses never go through a proxy.
		environment = []string{"HTTP_PROXY=" + n.cinder.URL(), "NO_PROXY=", "no_proxy="}
	}
	arguments := s.options.arguments
	if arguments == nil {
		arguments = shortLease
	}
	replica, err := suite.StartReplica(ctx, harness.ReplicaOptions{
		Policy: s.policy(), Clouds: clouds, Provisioner: s.provisioner, Arguments: append(slices.Clone(arguments), s.endpoint(n)...),
		Environment: environment, APIServer: n.api.URL(), APIServerAuthority: n.api.Authority(),
	})
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n.Replica = replica
	return n, nil
}

// kill ends a replica at once. Requests held in its networks stay there.
func (s *site) kill(n *node) {
	n.Kill()
	s.mu.Lock()
	defer s.mu.Unlock()
	n.killed = true
}

// living returns the replicas that were started and not killed.
func (s *site) living() []*node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.nodes), func(n *node) bool { return n.killed || n.Replica == nil })
}

// leader waits until one of the living replicas leads.
func (s *site) leader(ctx context.Context) (*node, error) {
	var leader *node
	return leader, harness.Eventually(ctx, func() (string, error) {
		for _, n := range s.living() {
			if n.Leads(ctx) {
				leader = n
				return "", nil
			}
		}
		return "no replica leads", nil
	})
}

// holdBack lets f see every request of a replica first, and keep it waiting for
// as long as it likes.
func (s *site) holdBack(n *node, f func(service string, r faultproxy.Request)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n.hold = f
}

// countApart has a node's steps counted apart from those of others from now on.
func (s *site) countApart(n *node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n.apart = true
}

// release releases everything that is held in the networks.
func (s *site) release() {
	for _, p := range s.proxies() {
		p.Release()
	}
}

func (s *site) proxies() []*faultproxy.Proxy {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := []*faultproxy.Proxy{s.keystone, s.cataloged}
	for _, n := range s.nodes {
		all = append(all, n.api, n.cinder)
	}
	all = slices.DeleteFunc(all, func(p *faultproxy.Proxy) bool { return p == nil })
	slices.SortFunc(all, func(a, b *faultproxy.Proxy) int { return strings.Compare(a.URL(), b.URL()) })
	return slices.Compact(all)
}

// close ends everything, and reports what no test may overlook.
func (s *site) close() error {
	for _, n := range s.living() {
		n.Kill()
	}
	for _, p := range s.proxies() {
		p.Close()
	}
	s.sim.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	var failed []error
	for _, n := range s.nodes {
		if n.Replica == nil {
			continue
		}
		for _, sign := range []string{"DATA RACE", "panic:"} {
			if strings.Contains(n.Log(), sign) {
				failed = append(failed, fmt.Errorf("%s of %s said %q:\n%s", n.name, s.name, sign, n.Log()))
			}
		}
	}
	return errors.Join(failed...)
}

// news returns all logs and actions since the last call, for the analysis of a
// failure.
func (s *site) news() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var text strings.Builder
	text.WriteString("requests:\n")
	for _, e := range s.record {
		fmt.Fprintln(&text, " ", e)
	}
	s.record = nil
	for _, n := range s.nodes {
		if n.Replica == nil {
			continue
		}
		log := n.Log()
		if len(log) > n.logged {
			fmt.Fprintf(&text, "%s said:\n%s", n.name, log[n.logged:])
		}
		n.logged = len(log)
	}
	return text.String()
}

// claim makes a claim, and volumes that look like its own and are not: one that
// another cluster stamped for the same claim, and one whose stamp names another
// PersistentVolume.
func (s *site) claim(ctx context.Context, name string) (*corev1.PersistentVolumeClaim, error) {
	return s.claimOf(ctx, name, "")
}

// claimOf makes a claim for the content of another, or for none if the source's
// name is empty.
func (s *site) claimOf(ctx context.Context, name, source string) (*corev1.PersistentVolumeClaim, error) {
	var change func(*corev1.PersistentVolumeClaim)
	if source != "" {
		change = contentOf(source)
	}
	claim, err := suite.CreateClaim(ctx, harness.Claim(s.namespace, name, s.class, "1Gi", change))
	if err != nil {
		return nil, err
	}
	return claim, s.addDecoys(claim)
}

// addDecoys puts volumes there that look like a claim's own.
func (s *site) addDecoys(claim *corev1.PersistentVolumeClaim) error {
	pv := pvName(claim)
	for _, other := range []map[string]string{{annotation("cluster"): "another"}, {"csi.storage.k8s.io/pv/name": pv + "-b"}} {
		metadata := map[string]string{
			annotation("cluster"):              "cluster-" + s.name,
			annotation("claim-uid"):            string(claim.UID),
			annotation("tenant"):               "tenant",
			annotation("storage-class"):        s.class,
			"csi.storage.k8s.io/pvc/name":      claim.Name,
			"csi.storage.k8s.io/pvc/namespace": claim.Namespace,
			"csi.storage.k8s.io/pv/name":       pv,
		}
		maps.Copy(metadata, other)
		id, err := s.sim.AddVolume(cindersim.Volume{Name: pv, Project: s.project(), Metadata: metadata})
		if err != nil {
			return err
		}
		decoy, _ := s.sim.Volume(id)
		s.decoys = append(s.decoys, decoy)
	}
	return nil
}

func (s *site) project() string {
	if s.options.keystone {
		return "team-a"
	}
	return cindersim.DefaultNoauthProject
}

func pvName(claim *corev1.PersistentVolumeClaim) string { return "pvc-" + string(claim.UID) }

// deleteClaim deletes a claim and waits until it is gone.
func (s *site) deleteClaim(ctx context.Context, name string) error {
	claims := suite.Client.CoreV1().PersistentVolumeClaims(s.namespace)
	if err := claims.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	return harness.Eventually(ctx, func() (string, error) {
		_, err := claims.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return "claim " + name + " is not gone", err
	})
}

// ours returns the program's volumes.
func (s *site) ours() []cindersim.Volume {
	return slices.DeleteFunc(s.sim.Volumes(), func(v cindersim.Volume) bool {
		return slices.ContainsFunc(s.decoys, func(d cindersim.Volume) bool { return d.ID == v.ID })
	})
}

// decoysUntouched lists the changes to volumes that are not the program's.
func (s *site) decoysUntouched() error {
	for _, before := range s.decoys {
		after, ok := s.sim.Volume(before.ID)
		if !ok {
			return fmt.Errorf("volume %s, stamped %v, is not ours and is gone", before.ID, before.Metadata)
		}
		if !reflect.DeepEqual(after, before) {
			return fmt.Errorf("volume %s is not ours and was changed\nfrom %+v\nto   %+v", before.ID, before, after)
		}
	}
	return nil
}

// removeDecoys takes the decoys away.
func (s *site) removeDecoys() error {
	var failed []error
	for _, decoy := range s.decoys {
		failed = append(failed, s.sim.RemoveVolume(decoy.ID))
	}
	s.decoys = nil
	return errors.Join(failed...)
}

// secrets returns the program's Secrets of this site's cluster.
func (s *site) secrets(ctx context.Context) ([]corev1.Secret, error) {
	list, err := suite.Client.CoreV1().Secrets(harness.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list.Items, func(secret corev1.Secret) bool {
		return secret.Annotations[annotation("cluster")] != "cluster-"+s.name
	}), nil
}

// served waits until exactly what the claims need is there, and nothing else.
func (s *site) served(ctx context.Context, claims ...*corev1.PersistentVolumeClaim) error {
	err := s.eventually(ctx, func() (string, error) { return s.unlikeServed(ctx, claims) })
	return errors.Join(err, s.decoysUntouched())
}

// eventually does the same as harness.Eventually, for conditions that query the
// API server: if the time runs out during a query, the previous result is still
// reported.
func (s *site) eventually(ctx context.Context, condition func() (complaint string, err error)) error {
	last := ""
	return harness.Eventually(ctx, func() (string, error) {
		complaint, err := condition()
		if err != nil && ctx.Err() != nil {
			return last, nil
		}
		last = complaint
		return complaint, err
	})
}

// unlikeServed lists deviations from the state after all claims are served.
func (s *site) unlikeServed(ctx context.Context, claims []*corev1.PersistentVolumeClaim) (complaint string, err error) {
	volumes := s.ours()
	if len(volumes) != len(claims) {
		return fmt.Sprintf("%d volumes for %d claims: %s", len(volumes), len(claims), describe(volumes)), nil
	}
	byID := map[string]cindersim.Volume{}
	for _, v := range volumes {
		if s.options.csi && (v.Status != "available" || len(v.Attachments) != 0 || v.Metadata[annotation("attached")] != "true" || v.Metadata[annotation("mode")] != "csi") {
			return fmt.Sprintf("a volume is not made for the driver, and marked: %s, %v", describe(volumes), v.Metadata), nil
		}
		byID[v.ID] = v
		if s.options.csi {
			continue
		}
		if v.Status != "in-use" || len(v.Attachments) != 1 || v.Attachments[0].Host != "k8s" || !v.Export.Present || !slices.Equal(v.Export.ConnectedHosts, []string{"k8s"}) {
			return "a volume is not in use once: " + describe(volumes), nil
		}
	}
	pvs, err := suite.PersistentVolumes(ctx, s.provisioner)
	if err != nil {
		return "", err
	}
	secrets, err := s.secrets(ctx)
	if err != nil {
		return "", err
	}
	if len(pvs) != len(claims) || len(secrets) != len(claims) {
		return fmt.Sprintf("%d PersistentVolumes and %d Secrets for %d claims", len(pvs), len(secrets), len(claims)), nil
	}
	for _, claim := range claims {
		current, err := suite.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Get(ctx, claim.Name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		if current.Status.Phase != corev1.ClaimBound || current.Spec.VolumeName != pvName(claim) {
			return fmt.Sprintf("claim %s is %s to %q", claim.Name, current.Status.Phase, current.Spec.VolumeName), nil
		}
		i := slices.IndexFunc(pvs, func(pv corev1.PersistentVolume) bool { return pv.Name == pvName(claim) })
		if i < 0 || pvs[i].Status.Phase != corev1.VolumeBound || pvs[i].Spec.ClaimRef == nil || pvs[i].Spec.ClaimRef.UID != claim.UID {
			return fmt.Sprintf("no PersistentVolume is bound to claim %s", claim.Name), nil
		}
		if complaint := s.unlikeOurs(pvs[i], byID, secrets); complaint != "" {
			return complaint, nil
		}
	}
	return "", nil
}

// unlikeOurs compares a PersistentVolume with the volume that it names.
func (s *site) unlikeOurs(pv corev1.PersistentVolume, volumes map[string]cindersim.Volume, secrets []corev1.Secret) (complaint string) {
	v, ok := volumes[pv.Annotations[annotation("volume-id")]]
	if !ok {
		return fmt.Sprintf("PersistentVolume %s names a volume that does not exist: %q", pv.Name, pv.Annotations[annotation("volume-id")])
	}
	for key, want := range map[string]string{
		annotation("cluster"):         "cluster-" + s.name,
		annotation("claim-uid"):       string(pv.Spec.ClaimRef.UID),
		"csi.storage.k8s.io/pv/name":  pv.Name,
		"csi.storage.k8s.io/pvc/name": pv.Spec.ClaimRef.Name,
	} {
		if v.Metadata[key] != want {
			return fmt.Sprintf("volume %s of %s is stamped %v", v.ID, pv.Name, v.Metadata)
		}
	}
	return s.unlikeUsable(pv, v, secrets)
}

// unlikeUsable compares what nodes need of a PersistentVolume with its volume.
func (s *site) unlikeUsable(pv corev1.PersistentVolume, v cindersim.Volume, secrets []corev1.Secret) (complaint string) {
	if s.options.csi {
		return unlikeCSI(pv, v, secrets)
	}
	if pv.Spec.ISCSI == nil || pv.Spec.ISCSI.SecretRef == nil {
		return fmt.Sprintf("PersistentVolume %s has no iSCSI source with a Secret", pv.Name)
	}
	i := slices.IndexFunc(secrets, func(secret corev1.Secret) bool { return secret.Name == pv.Spec.ISCSI.SecretRef.Name })
	if i < 0 {
		return fmt.Sprintf("the Secret of %s does not exist", pv.Name)
	}
	if string(secrets[i].Data["node.session.auth.password"]) != v.Export.Password || string(secrets[i].Data["node.session.auth.username"]) != v.Export.Username {
		return fmt.Sprintf("the Secret of %s does not hold the credentials of its volume", pv.Name)
	}
	return ""
}

// gone waits until nothing is left of anything.
func (s *site) gone(ctx context.Context) error {
	err := s.eventually(ctx, func() (string, error) { return s.left(ctx) })
	return errors.Join(err, s.decoysUntouched())
}

// left lists what remains.
func (s *site) left(ctx context.Context) (complaint string, err error) {
	if volumes := s.ours(); len(volumes) > 0 {
		return fmt.Sprintf("%d volumes are left: %s", len(volumes), describe(volumes)), nil
	}
	pvs, err := suite.PersistentVolumes(ctx, s.provisioner)
	if err != nil {
		return "", err
	}
	if len(pvs) > 0 {
		return fmt.Sprintf("%d PersistentVolumes are left, such as %s (%s)", len(pvs), pvs[0].Name, pvs[0].Status.Phase), nil
	}
	secrets, err := s.secrets(ctx)
	if err == nil && len(secrets) > 0 {
		return fmt.Sprintf("%d Secrets are left, such as %s", len(secrets), secrets[0].Name), nil
	}
	return "", err
}

// describe describes volumes in one line.
func describe(volumes []cindersim.Volume) string {
	var parts []string
	for _, v := range volumes {
		parts = append(parts, fmt.Sprintf("%s of %s: %s, %d attachments, exported %v to %v", v.ID, v.Name, v.Status, len(v.Attachments), v.Export.Present, v.Export.ConnectedHosts))
	}
	return strings.Join(parts, "; ")
}

// creates counts the create requests that Cinder has performed.
func (s *site) creates() int {
	n := 0
	for _, entry := range s.sim.Journal() {
		if entry.Operation == "volume.create" && entry.Performed {
			n++
		}
	}
	return n
}
